-- Finds held locks, a bounded number of keys at a time.
-- KEYS:
-- ARGV: request, cursor, pattern, count
-- Returns: request, next cursor ('0' at the end), then the keys of held locks among those looked at
local request, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local _, now_ms = now()
local found = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
local answer = { request, found[1] }
for _, key in ipairs(found[2]) do
    local until_ms = redis.call('HGET', key, 'u')
    if until_ms and tonumber(until_ms) > now_ms then
        answer[#answer + 1] = key
    end
end
return answer
