-- Finds locks that are held or waited for, a bounded number of keys at a time.
-- KEYS:
-- ARGV: request, cursor, pattern, count
-- Returns: request, us that it took, next cursor ('0' at the end), how many of the locks looked at are held, then the
--   keys found
local request, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- How many holders are looked at together.
local LOOKED_AT = 10

-- Whether anybody holds a shared lock. What is only kept taken begins with 8 zero bytes, see lease.lua.
local function is_shared(key, now_ms)
    local holders = holders_key({ key = key })
    for offset = 0, TOLD_MAX - 1, LOOKED_AT do
        local members = redis.call('ZRANGEBYSCORE', holders, '(' .. now_ms, '+inf', 'LIMIT', offset, LOOKED_AT)
        for _, member in ipairs(members) do
            if string.sub(member, 1, 8) ~= NOBODY then
                return true
            end
        end
        if #members < LOOKED_AT then
            return false
        end
    end
    return false
end

local now_us, now_ms = now()
local found = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
local keys, held = found[2], 0
local answer = { request, 0, found[1], 0 }
-- MGET takes a hash for nothing, where GET would fail. What a compact record says of its end are its last 6 bytes.
local compact = keys[1] and redis.call('MGET', unpack(keys)) or {}
for index, key in ipairs(keys) do
    local record = compact[index]
    record = record and { (struct.unpack('>I6', record, #record - 5)) } or redis.call('HMGET', key, 'u', 's', 'w')
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
answer[2], answer[4] = took(now_us), held
return answer
