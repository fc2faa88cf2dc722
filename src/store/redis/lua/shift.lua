-- Corrects locks that were written before the clock was set back, or the holders of one lock, a bounded number at a time.
-- KEYS: node_or_lock
-- ARGV: request, cursor, count, pattern
-- Returns: request, us that it took, next cursor ('0' at the end), then the keys of shared locks
-- include: clock state
-- SCAN names no key, so the key of a slot of the node is declared: another node of a cluster refuses the script. Without a
-- pattern, it is the key of the lock whose holders are corrected.
local node_or_lock = KEYS[1]
local request, cursor, count, pattern = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- The holders of one lock.
local function shift_all_holders(lock)
    if not (lock.limit and lock.longest_ms) then
        return '0'
    end
    -- The scan returns every entry that stays, even if its rank changes meanwhile.
    local found = redis.call('ZSCAN', holders_key(lock), cursor, 'COUNT', count)
    for i = 1, #found[2], 2 do
        shift_entry(lock, found[2][i], tonumber(found[2][i + 1]))
    end
    return found[1]
end

local answer = { request, 0 }
if pattern == '' then
    answer[3] = shift_all_holders(read(node_or_lock))
else
    local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
    answer[3] = found[1]
    for _, key in ipairs(found[2]) do
        if read(key).limit then
            answer[#answer + 1] = key
        end
    end
end
answer[2] = took()
return answer
