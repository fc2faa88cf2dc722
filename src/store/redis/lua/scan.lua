-- Finds locks that are held or waited for, a bounded number of keys at a time.
-- KEYS:
-- ARGV: request, cursor, pattern, count, reads_at_once
-- Returns: request, us that it took, next cursor ('0' at the end), how many of the locks visited are held, then the
--   keys found
-- include: clock state
local request, cursor, pattern, count, reads_at_once = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
local keys, held = found[2], 0
local answer = { request, 0, found[1], 0 }
-- MGET returns nil for a hash, where GET would fail. The last 6 bytes of a compact record are its end.
local compact = keys[1] and reads_at_once == '1' and call('MGET', unpack(keys)) or {}
for index, key in ipairs(keys) do
    local record = compact[index]
    if reads_at_once ~= '1' then
        record = call('MGET', key)[1]
    end
    record = record and { (struct.unpack('>I6', record, #record - 5)) } or call('HMGET', key, 'u', 's', 'w')
    local is_held = record[1] and tonumber(record[1]) > now_ms
    if record[2] and not is_held then
        is_held = sharers({ key = key }) > 0
    end
    if is_held then
        held = held + 1
    end
    if is_held or record[3] then
        answer[#answer + 1] = key
    end
end
answer[2], answer[4] = took(), held
return answer
