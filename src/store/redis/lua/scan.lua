-- Finds locks that are held or waited for, a bounded number of keys at a time.
-- KEYS: node
-- ARGV: request, cursor, pattern, count, reads_at_once
-- Returns: request, us that it took, next cursor ('0' at the end), how many keys there are of anybody, how many of the
--   locks visited are held, 1 if a node of a cluster would visit one slot only for a pattern that names it, then the keys
--   found
-- include: clock state
-- SCAN names no key, so the key of a slot of the node is declared: another node of a cluster refuses the script.
local node = KEYS[1]
local request, cursor, pattern, count, reads_at_once = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
local keys, held = found[2], 0
-- Redis 7.4 and Valkey 8, which says that it is Redis 7.2.
local visits_slots = redis.VALKEY_VERSION_NUM or (redis.REDIS_VERSION_NUM or 0) >= 0x070400
local answer = { request, 0, found[1], call('DBSIZE'), 0, visits_slots and 1 or 0 }
-- MGET returns nil for a hash, where GET would fail.
local records = keys[1] and reads_at_once == '1' and call('MGET', unpack(keys)) or {}
for index, key in ipairs(keys) do
    local record = records[index]
    if reads_at_once ~= '1' then
        record = call('MGET', key)[1]
    end
    local is_held, is_waited_for
    if record then
        -- Most leases have no options, and to unpack all of a record would take longer than to find it.
        is_held = struct.unpack('>I6', record, #record - 5) > now_ms
        is_waited_for = string.sub(record, 9, 9) == WITH_OPTIONS and unpack_lease(key, record).options.last
    else
        local lock = call('HMGET', key, 's', 'w')
        is_held, is_waited_for = lock[1] and sharers({ key = key }) > 0, lock[2]
    end
    if is_held then
        held = held + 1
    end
    if is_held or is_waited_for then
        answer[#answer + 1] = key
    end
end
answer[2], answer[5] = took(), held
return answer
