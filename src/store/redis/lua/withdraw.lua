-- Undoes what an attempt was granted, or keeps it from being granted should its request arrive late.
-- KEYS: lock, ended
-- ARGV: claim, attempt
-- Returns: attempt, code: 1 undone, 0 there was nothing to undo
local lock, ended = KEYS[1], KEYS[2]
local claim, attempt = ARGV[1], ARGV[2]

local record = redis.call('HMGET', lock, 'h', 'r')
if record[1] == claim and record[2] == attempt then
    redis.call('DEL', lock)
    return { attempt, 1 }
end
local mark = redis.call('GET', ended) or 'c'
if string.sub(mark, 1, 1) == 'c' and not string.find(mark, attempt, 2, true) then
    redis.call('SET', ended, mark .. attempt, 'PX', REMEMBERED_MS)
end
return { attempt, 0 }
