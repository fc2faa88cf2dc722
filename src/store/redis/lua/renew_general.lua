-- Continues renew_options.lua where its fast path ends.
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

-- Turns the record of an exclusive lease into that of a shared one.
local function step_down(lock, kept_ms, until_ms)
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
        step_down(lock, kept_ms, until_ms)
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
