-- Tells what a lock is doing and who waits for it.
-- KEYS: lock_key
-- ARGV: request, channel
-- Returns: request, now_ms, the lock as everybody may see it
local lock_key = KEYS[1]
local request, channel = ARGV[1], ARGV[2]

local now_us, now_ms = now()
local lock = read(lock_key, now_ms)
if lock.limit then
    expire_holders(lock, now_us, now_ms, channel)
elseif channel ~= '' and lock.holder and lock.until_ms <= now_ms then
    -- Somebody watches: what has run out since the last look is told now.
    to_hash(lock)
    if redis.call('HSETNX', lock.key, 'y', '') == 1 then
        publish_event(channel, now_us, 'expired', lock, lock.key)
    end
end
return { request, now_ms, view(lock, now_ms) }
