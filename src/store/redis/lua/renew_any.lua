-- Continues renew_alone.lua where its short way ends.
local locks, lost = {}, { request, 0 }
for number, lock in ipairs(KEYS) do
    local it = read(lock, now_ms)
    locks[number] = it
    it.claim = claimant(number, 9, 24)
    local how
    it.record, how = record_of(it, it.claim, now_ms)
    if not it.record then
        lost[#lost + 1] = number
        lost[#lost + 1] = why_not(how, ended_key(it, it.claim))
    end
end
if lost[3] then
    return lost
end
for number, it in ipairs(locks) do
    local is_alone = it.record == it.key
    if mode == 'x' and not is_alone then
        return { request, 12, number }
    elseif mode == 's' and not is_alone then
        local lease = redis.call('HMGET', it.record, 's', 'k')
        if lease[1] ~= limit or lease[2] ~= permits then
            return { request, 11, number }
        end
    end
end

-- The record of a lease that held alone becomes that of one of several.
local function step_down(it, kept_ms, until_ms)
    local fields = {}
    for index, field in ipairs(redis.call('HGETALL', it.key)) do
        fields[index] = field
    end
    vacate(it)
    it.record = holder_key(it, it.claim)
    share(it, it.claim, limit, permits, until_ms, kept_ms, now_ms)
    redis.call('HSET', it.record, 's', limit, 'k', permits, unpack(fields))
    redis.call('HDEL', it.record, 'w', 'p', 'v', 'g')
    redis.call('PEXPIRE', it.record, kept_ms)
end

local function renew(it, record)
    local until_ms, kept_ms = extend(it.record, record[2], ttl_ms == '' and record[3] or ttl_ms, record[4], record[5])
    if it.record ~= it.key then
        redis.call('ZADD', holders_key(it), until_ms, it.claim .. record[7])
        lasts(it, until_ms - now_ms)
        live(holders_key(it), kept_ms)
        live(it.key, kept_ms)
    elseif mode == 's' then
        step_down(it, kept_ms, until_ms)
        offer(it, now_ms)
    end
    if is_repeat then
        note_repeat(it.record, record[8], request)
    end
    tell(channel, now_us, 'renewed', it, it.record)
    return until_ms
end

local answer = { request, 1, now_ms }
for _, it in ipairs(locks) do
    local record = redis.call('HMGET', it.record, 'u', 'a', 't', 'x', 'i', 'd', 'k', 'z')
    local had_until_ms = tonumber(record[1])
    local until_ms = had_until_ms
    if not is_done(record[8], request) then
        until_ms = renew(it, record)
    end
    answer[#answer + 1] = had_until_ms - now_ms
    answer[#answer + 1] = closed_until(record[2], until_ms, record[5], record[6]) - now_ms
    answer[#answer + 1] = lease_in(it.record)
end
return answer
