-- Lets leases last longer, all or none; never creates one. May let a lease that holds alone step down to shared.
-- KEYS: for each lock: lock, ended
-- ARGV: request, ttl_ms, mode, limit, permits, channel, for each lock: claim
-- Returns: request, code, then by code: 1 extended: now_ms, and for each lock ms that were left, the lease; 0 not the
--   holder: number of the lock and mark of each that is not held; 11 claimed otherwise, 12 held by several: number
local request, ttl_ms, mode, limit, permits, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local now_us, now_ms = now()
local locks, lost = {}, { request, 0 }
for number = 1, #KEYS / 2 do
    local it = read(KEYS[number * 2 - 1])
    locks[number] = it
    it.claim = ARGV[6 + number]
    local how
    it.record, how = record_of(it, it.claim, now_ms)
    if not it.record then
        lost[#lost + 1] = number
        lost[#lost + 1] = why_not(how, KEYS[number * 2])
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
    share(it, it.claim, limit, permits, until_ms, kept_ms)
    redis.call('HSET', it.record, 's', limit, 'k', permits, unpack(fields))
    redis.call('HDEL', it.record, 'w', 'p', 'v')
    redis.call('PEXPIRE', it.record, kept_ms)
end

local answer = { request, 1, now_ms }
for _, it in ipairs(locks) do
    local record = redis.call('HMGET', it.record, 'u', 'a', 't', 'x', 'i', 'k')
    local lasts_ms = ttl_ms == '' and record[3] or ttl_ms
    local until_ms = math.min(now_ms + tonumber(lasts_ms), tonumber(record[4]) or math.huge)
    local kept_ms = keep_ms(now_ms, tonumber(record[2]), until_ms, record[5])
    -- PEXPIRE and HDEL go first: they are allowed when memory is full, and once a script has written it may go on writing.
    redis.call('PEXPIRE', it.record, kept_ms)
    redis.call('HDEL', it.record, 'r')
    redis.call('HSET', it.record, 'u', until_ms, 't', lasts_ms)
    if it.record ~= it.key then
        redis.call('ZADD', holders_key(it), until_ms, it.claim .. record[6])
        live(holders_key(it), kept_ms)
        live(it.key, kept_ms)
    elseif mode == 's' then
        step_down(it, kept_ms, until_ms)
        offer(it, now_ms)
    end
    tell(channel, now_us, 'renewed', it, it.record)
    answer[#answer + 1] = tonumber(record[1]) - now_ms
    answer[#answer + 1] = lease_in(it.record)
end
return answer
