-- Corrects locks that were written before the clock was set back, a bounded number of keys at a time.
-- KEYS:
-- ARGV: request, cursor, pattern, count
-- Returns: request, us that it took, next cursor ('0' at the end), then the keys of shared locks
local request, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
local answer = { request, 0, found[1] }
for _, key in ipairs(found[2]) do
    if read(key).limit then
        answer[#answer + 1] = key
    end
end
answer[2] = took()
return answer
