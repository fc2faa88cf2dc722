-- Continues renew.lua where its fast path ends: the options, and a fast path for a lease whose record is a hash.
local function caller(number, from, to)
    return string.sub(ARGV[1 + number], from, to)
end
local request = caller(1, 1, 8)
local ttl_ms, mode, limit, permits, channel, withdrawable, is_repeat = unpack(ARGV, #KEYS + 2)
ttl_ms, mode, channel, withdrawable = ttl_ms or '', mode or '', channel or '', withdrawable or ''

-- Extends the lease in a record. From now on no attempt may roll the grant back, or the same as before (r). PEXPIRE and
-- HDEL first: they are allowed when memory is full, and a script that has written may keep writing.
local function extend(record, acquired_ms, lasts_ms, ceiling_ms, min_hold_ms)
    local until_ms = math.min(now_ms + tonumber(lasts_ms), tonumber(ceiling_ms) or math.huge)
    local kept_ms = keep_ms(tonumber(acquired_ms), until_ms, min_hold_ms)
    redis.call('PEXPIRE', record, kept_ms)
    if withdrawable == '' then
        redis.call('HDEL', record, 'r')
    end
    redis.call('HSET', record, 'u', until_ms, 't', lasts_ms)
    return until_ms, kept_ms
end

-- Fast path: the claim holds the lock exclusively and keeps it so, no process wants events, and no request was
-- repeated.
if #KEYS == 1 and mode == '' and channel == '' and not is_repeat and call('MGET', unpack(KEYS))[1] == false then
    local lock_key = unpack(KEYS)
    local record = call('HMGET', lock_key, 'h', 'u', 'a', 't', 'x', 'i', 'd', 'z')
    local left_ms = record[1] == caller(1, 9, 24) and tonumber(record[2]) - now_ms or 0
    -- A lease acquired later than now, or ending later than its TTL from now, is from before the clock was set back.
    if left_ms > 0 and left_ms <= tonumber(record[4]) and tonumber(record[3]) <= now_ms and not record[8] then
        local until_ms = extend(lock_key, record[3], ttl_ms == '' and record[4] or ttl_ms, record[5], record[6])
        local closed_ms = closed_until(record[3], until_ms, record[6], record[7]) - now_ms
        return { request, EXTENDED, now_ms, left_ms, closed_ms, lease_in(lock_key) }
    end
end

