-- Tells what a lock is doing and who waits for it.
-- KEYS: lock
-- ARGV: request, channel
-- Returns: request, now_ms, the lock as everybody may see it
local lock = KEYS[1]
local request, channel = ARGV[1], ARGV[2]

local now_us, now_ms = now()
local it = read(lock, now_ms)
if it.limit then
    reap(it, now_us, now_ms, channel)
elseif channel ~= '' and it.holder and it.until_ms <= now_ms then
    -- Somebody watches: what has run out since the last look is told now.
    spread(it)
    if redis.call('HSETNX', it.key, 'y', '') == 1 then
        tell(channel, now_us, 'expired', it, it.key)
    end
end
return { request, now_ms, view(it, now_ms) }
