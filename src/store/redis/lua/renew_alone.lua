-- Continues renew.lua where its short way ends: what else may be wished, and a short way for a lease whose record is a hash.
local function claimant(number, from, to)
    return string.sub(ARGV[number], from, to)
end
local request = claimant(1, 1, 8)
local ttl_ms, mode, limit, permits, channel, withdrawable = unpack(ARGV, #KEYS + 1)
ttl_ms, mode, channel, withdrawable = ttl_ms or '', mode or '', channel or '', withdrawable or ''

-- Lets the lease in a record last longer. Who may withdraw the grant is nobody any more, or as before (r). PEXPIRE and
-- HDEL go first: they are allowed when memory is full, and once a script has written it may go on writing.
local function extend(record, acquired_ms, lasts_ms, ceiling_ms, min_hold_ms)
    local until_ms = math.min(now_ms + tonumber(lasts_ms), tonumber(ceiling_ms) or math.huge)
    local kept_ms = keep_ms(now_ms, tonumber(acquired_ms), until_ms, min_hold_ms)
    redis.call('PEXPIRE', record, kept_ms)
    if withdrawable == '' then
        redis.call('HDEL', record, 'r')
    end
    redis.call('HSET', record, 'u', until_ms, 't', lasts_ms)
    return until_ms, kept_ms
end

-- The short way: the lock is held by this claim alone and will be, and nobody watches.
if #KEYS == 1 and mode == '' and channel == '' and redis.call('MGET', unpack(KEYS))[1] == false then
    local lock = unpack(KEYS)
    local record = redis.call('HMGET', lock, 'h', 'u', 'a', 't', 'x', 'i')
    local left_ms = record[1] == claimant(1, 9, 24) and tonumber(record[2]) - now_ms or 0
    -- A lease that was acquired later than now, or ends later than its TTL from now, was written before the clock was set back.
    if left_ms > 0 and left_ms <= tonumber(record[4]) and tonumber(record[3]) <= now_ms then
        extend(lock, record[3], ttl_ms == '' and record[4] or ttl_ms, record[5], record[6])
        return { request, 1, now_ms, left_ms, lease_in(lock) }
    end
end

