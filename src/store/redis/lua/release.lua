-- Ends a claim, or steps it back to a smaller depth.
-- KEYS: lock, ended
-- ARGV: claim, request, hold_count
-- Returns: request, code, then by code: 1 freed: ms that it was held; 2 stepped back: the lease; 0 not the holder: mark
local lock, ended = KEYS[1], KEYS[2]
local claim, request, hold_count = ARGV[1], ARGV[2], ARGV[3]

local _, now_ms = now()
local record = redis.call('HMGET', lock, 'h', 'u', 'a', 'i', 'n')
if record[1] ~= claim or tonumber(record[2]) <= now_ms then
    return { request, 0, why_not(lock, ended, claim) }
end
if hold_count ~= '' then
    redis.call('HDEL', lock, 'r')
    if tonumber(hold_count) < tonumber(record[5] or 1) then
        redis.call('HSET', lock, 'n', hold_count)
    end
    return tell_lease({ request, 2 }, lock, now_ms)
end
-- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
redis.call('DEL', lock)
redis.call('SET', ended, 'r', 'PX', REMEMBERED_MS)
local acquired_ms = tonumber(record[3])
close(lock, acquired_ms + (tonumber(record[4]) or 0), now_ms)
return { request, 1, now_ms - acquired_ms }
