-- Reads the state of a lock and its queue.
-- KEYS: lock_key
-- ARGV: request, channel
-- Returns: request, now_ms, the public view of the lock
-- include: clock queue
local lock_key = KEYS[1]
local request, channel = ARGV[1], ARGV[2]

local lock = read(lock_key)
if lock.limit then
    expire_holders(lock, channel)
elseif channel ~= '' and lock.holder and lock.until_ms <= now_ms then
    -- Events are wanted: publish now what has expired since the last inspection.
    to_hash(lock)
    -- HDEL of nothing first: it is allowed when memory is full, and a script that has written may keep writing.
    call('HDEL', lock.key, '')
    if call('HSETNX', lock.key, 'y', '') == 1 then
        publish_event(channel, 'expired', lock, lock.key)
    end
end
return { request, now_ms, view(lock) }
