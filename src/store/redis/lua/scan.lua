-- Finds locks that are held or waited for, a bounded number of keys at a time.
-- KEYS:
-- ARGV: request, cursor, pattern, count
-- Returns: request, next cursor ('0' at the end), how many of the locks looked at are held, then the keys found
local request, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- Whether anybody holds a shared lock. What is only kept taken begins with 8 zero bytes, see lease.lua.
local function is_shared(key, now_ms)
    local members = redis.call('ZRANGEBYSCORE', holders_key({ key = key }), '(' .. now_ms, '+inf', 'LIMIT', 0, TOLD_MAX)
    for _, member in ipairs(members) do
        if string.sub(member, 1, 8) ~= '\0\0\0\0\0\0\0\0' then
            return true
        end
    end
    return false
end

local _, now_ms = now()
local found = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
local answer, held = { request, found[1], 0 }, 0
for _, key in ipairs(found[2]) do
    local lease = compact_lease(key)
    local record = lease and { lease[3] } or redis.call('HMGET', key, 'u', 's', 'w')
    local is_held = record[1] and tonumber(record[1]) > now_ms
    if record[2] and not is_held then
        is_held = is_shared(key, now_ms)
    end
    if is_held then
        held = held + 1
    end
    if is_held or record[3] then
        answer[#answer + 1] = key
    end
end
answer[3] = held
return answer
