-- Lets a lease last longer; never creates one.
-- KEYS: lock, ended
-- ARGV: claim, request, ttl_ms
-- Returns: request, code, then by code: 1 extended: ms that were left, the lease; 0 not the holder: mark
local lock, ended = KEYS[1], KEYS[2]
local claim, request, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local _, now_ms = now()
local record = redis.call('HMGET', lock, 'h', 'u', 'a', 't', 'x', 'i')
local left_ms = record[1] == claim and tonumber(record[2]) - now_ms or 0
if left_ms <= 0 then
    return { request, 0, why_not(lock, ended, claim) }
end
if ttl_ms == '' then
    ttl_ms = record[4]
end
local until_ms = math.min(now_ms + tonumber(ttl_ms), tonumber(record[5]) or math.huge)
-- PEXPIRE and HDEL go first: they are allowed when memory is full, and once a script has written it may go on writing.
redis.call('PEXPIRE', lock, keep_ms(now_ms, tonumber(record[3]), until_ms, record[6]))
redis.call('HDEL', lock, 'r')
redis.call('HSET', lock, 'u', until_ms, 't', ttl_ms)
return tell_lease({ request, 1, left_ms }, lock, now_ms)
