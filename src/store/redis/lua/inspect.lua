-- Tells what a lock is doing.
-- KEYS: lock
-- ARGV: request
-- Returns: request, code, then by code: 0 free; 4 held: the lease; 5 cooling: ms
local lock = KEYS[1]
local request = ARGV[1]

local _, now_ms = now()
local record = redis.call('HMGET', lock, 'h', 'u', 'a', 'c', 'i', 'd')
local open_ms = tonumber(record[4]) or 0
if record[1] then
    local until_ms = tonumber(record[2])
    if until_ms > now_ms then
        return tell_lease({ request, 4 }, lock, now_ms)
    end
    open_ms = closed_until(tonumber(record[3]), until_ms, record[5], record[6])
end
if open_ms > now_ms then
    return { request, 5, open_ms - now_ms }
end
return { request, 0 }
