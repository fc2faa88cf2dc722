-- Reads the state of a lock and its queue.
-- KEYS: lock_key
-- ARGV: request, channel
-- Returns: request, now_ms, the public view of the lock
-- include: clock primary queue
local lock_key = KEYS[1]
local request, channel = ARGV[1], ARGV[2]

local lock = read(lock_key)
require_primary(lock)
if lock.limit then
    expire_holders(lock, channel)
elseif channel ~= '' and lock.lease and lock.lease.until_ms <= now_ms and not lock.lease.options.is_published then
    -- Events are wanted: publish now what has expired since the last inspection.
    lock.lease.options.is_published = true
    rewrite_lease(lock.lease)
    publish_event(channel, 'expired', lock, lock.lease)
end
return { request, now_ms, view(lock) }
