-- Corrects holders of a lock that were written before the clock was set back, a bounded number at a time.
-- KEYS: lock_key
-- ARGV: request, cursor, count
-- Returns: request, us that it took, next cursor ('0' at the end)
local lock_key = KEYS[1]
local request, cursor, count = ARGV[1], ARGV[2], ARGV[3]

local lock, next_cursor = read(lock_key), '0'
if lock.limit and lock.longest_ms then
    -- The scan returns every entry that stays, even if its rank changes meanwhile.
    local found = call('ZSCAN', holders_key(lock), cursor, 'COUNT', count)
    next_cursor = found[1]
    for i = 1, #found[2], 2 do
        shift_entry(lock, found[2][i], tonumber(found[2][i + 1]))
    end
end
return { request, took(), next_cursor }
