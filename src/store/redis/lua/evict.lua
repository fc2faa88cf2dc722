-- Takes a lock away from whoever holds it.
-- KEYS: lock, ended_prefix
-- ARGV: request, reason
-- Returns: request, code, then by code: 1 evicted: the lease; 0 nobody held it
local lock, ended_prefix = KEYS[1], KEYS[2]
local request, reason = ARGV[1], ARGV[2]

local _, now_ms = now()
local record = redis.call('HMGET', lock, 'h', 'u', 'd')
if not record[1] or tonumber(record[2]) <= now_ms then
    return { request, 0 }
end
local answer = tell_lease({ request, 1 }, lock, now_ms)
-- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
redis.call('DEL', lock)
redis.call('SET', ended_prefix .. record[1], 'v' .. reason, 'PX', REMEMBERED_MS)
close(lock, now_ms + (tonumber(record[3]) or 0), now_ms)
return answer
