-- Extends leases, all or none; never creates one. May change an exclusive lease to shared.
-- KEYS: for each lock: lock_key
-- ARGV: not_after, for each lock: caller, at the end: ttl_ms, mode, limit, permits, channel, rollback_right, is_repeat, is_check
-- Returns: request, code, then by code: 1 extended: now_ms, and for each lock ms that were left, ms that the lock stays
--   taken or closed without further operations, the lease; 0 not the holder: number of the lock and mark of each that
--   is not held; 11 the claim has other parameters, 12 it holds shared: number; 16 it came too late, and nothing was
--   done: now_us; 21 the caller only asked whether it could renew them, and it could.
--   The fast path packs its answer: 1 extended: now_ms, ms that were left, the compact record
-- include: clock
local not_after = ARGV[1]

-- The client has got an unknown outcome, and may have retried since.
if now_us > not_after + 0 then
    return { string.sub(ARGV[2], 1, 8), TOO_LATE, now_us }
end

-- Fast path: the claim holds the lock exclusively and keeps it so, no claim waits, and no process wants events. A
-- caller is the request and the claim; lease.lua describes the compact record.
if #KEYS == 1 and #ARGV <= 3 then
    local lock_key, caller = KEYS[1], ARGV[2]
    local record = call('MGET', lock_key)[1]
    if record and string.sub(record, 10, 25) == string.sub(caller, 9, 24) then
        local had_ttl_ms, granted_us, until_ms = struct.unpack('>I4I8I6', record, #record - 17)
        if until_ms > now_ms then
            local ttl_ms = ARGV[3] or had_ttl_ms
            local kept_ms = ttl_ms + TOMBSTONE_MS
            -- From now on no attempt may roll the grant back.
            record = NO_ATTEMPT .. string.sub(record, 9, -19) .. struct.pack('>I4I8I6', ttl_ms, granted_us, now_ms + ttl_ms)
            -- PEXPIRE is allowed when memory is full, and a script that has written may keep writing.
            if redis.pcall('SET', lock_key, record, 'PX', kept_ms).err then
                call('PEXPIRE', lock_key, kept_ms)
                call('SET', lock_key, record, 'PX', kept_ms)
            end
            return string.sub(caller, 1, 8) .. EXTENDED_TEXT .. struct.pack('>I6I6', now_ms, until_ms - now_ms) .. record
        end
    end
end

-- include: times
-- The options that most renewals lack.
local function caller(number, from, to)
    return string.sub(ARGV[1 + number], from, to)
end
local request = caller(1, 1, 8)
local ttl_ms, mode, limit, permits, channel, rollback_right, is_repeat, is_check = unpack(ARGV, #KEYS + 2)
ttl_ms, mode, channel, rollback_right, is_repeat = ttl_ms or '', mode or '', channel or '', rollback_right or '', is_repeat == '1'

-- Extends the lease in a record. From now on no attempt may roll the grant back, or the same as before (r). PEXPIRE and
-- HDEL first: they are allowed when memory is full, and a script that has written may keep writing.
local function extend(record, acquired_ms, lasts_ms, ceiling_ms, min_hold_ms)
    local until_ms = math.min(now_ms + tonumber(lasts_ms), tonumber(ceiling_ms) or math.huge)
    local kept_ms = keep_ms(tonumber(acquired_ms), until_ms, min_hold_ms)
    redis.call('PEXPIRE', record, kept_ms)
    if rollback_right == '' then
        redis.call('HDEL', record, 'r')
    end
    redis.call('HSET', record, 'u', until_ms, 't', lasts_ms)
    return until_ms, kept_ms
end

-- Fast path: the claim holds the lock exclusively and keeps it so, no process wants events, and no request was
-- repeated.
if #KEYS == 1 and mode == '' and channel == '' and not is_repeat and not is_check and call('MGET', unpack(KEYS))[1] == false then
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

-- include: reservation
local locks, lost = {}, { request, NOT_HELD }
for number, lock_key in ipairs(KEYS) do
    local lock = read(lock_key)
    locks[number] = lock
    lock.claim = caller(number, 9, 24)
    local how
    lock.record, how = record_of(lock, lock.claim)
    if not lock.record then
        lost[#lost + 1] = number
        lost[#lost + 1] = why_not(how, ended_key(lock, lock.claim))
    end
end
if lost[3] then
    return lost
end
for number, lock in ipairs(locks) do
    local is_alone = lock.record == lock.key
    if mode == 'x' and not is_alone then
        return { request, HOLDS_SHARED, number }
    elseif mode == 's' and not is_alone then
        local lease = call('HMGET', lock.record, 's', 'k')
        if lease[1] ~= limit or lease[2] ~= permits then
            return { request, CLAIM_MISMATCH, number }
        end
    end
end

if is_check then return { request, RENEWABLE } end

-- Turns the record of an exclusive lease into that of a shared one.
local function downgrade(lock, kept_ms, until_ms)
    local fields = {}
    for index, field in ipairs(redis.call('HGETALL', lock.key)) do
        fields[index] = field
    end
    delete_lease(lock)
    lock.record = holder_key(lock, lock.claim)
    share(lock, lock.claim, limit, permits, until_ms, kept_ms)
    redis.call('HSET', lock.record, 's', limit, 'k', permits, unpack(fields))
    redis.call('HDEL', lock.record, 'w', 'p', 'v', 'g')
    redis.call('PEXPIRE', lock.record, kept_ms)
end

local function renew(lock, record)
    local until_ms, kept_ms = extend(lock.record, record[2], ttl_ms == '' and record[3] or ttl_ms, record[4], record[5])
    if lock.record ~= lock.key then
        redis.call('ZADD', holders_key(lock), until_ms, lock.claim .. record[7])
        note_longest(lock, until_ms - now_ms)
        extend_ttl(holders_key(lock), kept_ms)
        extend_ttl(lock.key, kept_ms)
    elseif mode == 's' then
        downgrade(lock, kept_ms, until_ms)
        reserve(lock)
    end
    if is_repeat then
        note_repeat(lock.record, record[8], request)
    end
    publish_event(channel, 'renewed', lock, lock.record)
    return until_ms
end

local answer = { request, EXTENDED, now_ms }
for _, lock in ipairs(locks) do
    local record = call('HMGET', lock.record, 'u', 'a', 't', 'x', 'i', 'd', 'k', 'z')
    local had_until_ms = tonumber(record[1])
    local until_ms = had_until_ms
    if not is_done(record[8], request) then
        until_ms = renew(lock, record)
    end
    answer[#answer + 1] = had_until_ms - now_ms
    answer[#answer + 1] = closed_until(record[2], until_ms, record[5], record[6]) - now_ms
    answer[#answer + 1] = lease_in(lock.record)
end
return answer
