-- Ends a claim on each of its locks, or steps it back to a smaller depth; a claim that waits leaves the queues.
-- KEYS: for each lock: lock, ended
-- ARGV: request, hold_count, channel, for each lock: claim
-- Returns: request, now_ms, and for each lock a code and more: 1 freed: ms that it was held; 2 stepped back: the lease;
--   3 left the queue; 0 not the holder: mark
local request, hold_count, channel = ARGV[1], ARGV[2], ARGV[3]

local now_us, now_ms = now()

-- The short way: the lock is held by this claim alone, nobody waits or watches, and nothing closes it.
if #KEYS == 2 and hold_count == '' and channel == '' then
    local lock, ended, claim = KEYS[1], KEYS[2], ARGV[4]
    local record = redis.call('HMGET', lock, 'h', 'u', 'a', 'i', 'w')
    if record[1] == claim and tonumber(record[2]) > now_ms and not record[4] and not record[5] then
        -- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
        redis.call('DEL', lock)
        redis.call('SET', ended, 'r', 'PX', REMEMBERED_MS)
        return { request, now_ms, { 1, now_ms - record[3] } }
    end
end
