-- Included by scripts that may only read: whether this Redis is still the primary.
--
-- A replica executes scripts, and refuses the first command that may write. Its data may be old, and a process that only
-- reads would not learn that another Redis is the primary: it would deny leases that were granted there.

-- include: lease

-- Fails on a replica. Changes nothing, as the key never exists; no other reason to refuse it is one to hide a lock.
local function require_primary(lock)
    local slot = split_key(lock)
    local deleted = redis.pcall('DEL', slot .. 'x')
    if type(deleted) == 'table' and string.find(deleted.err, 'READONLY', 1, true) then
        redis.call('DEL', slot .. 'x')
    end
end
