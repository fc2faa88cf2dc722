-- Included by scripts where their fast paths end: a lock as it is stored, and the keys beside it.
--
-- The key of a lock that is held exclusively, or was until its lease expired, is the record of that lease: record.lua
-- describes it. Any other lock of which something is known is a hash.
-- A shared lock has s, the common limit (0 for none), and k, the permits taken; each holder has a record of its own, and
-- an entry in the set of holders: digest and permits, scored by the end. What min_hold or lock_delay keep taken after an
-- end is a cool-down entry, without a record. In place of the digest it has 8 zero bytes and the fencing token (8) of
-- the ended lease, because the same claim may hold again meanwhile. The lock also has e, the number of cool-down
-- entries, and l, the longest time (ms) for which an entry was ever made. A closed lock has c, the time (ms) from which
-- it may be granted, and l, for how long it was closed. queue.lua describes the fields of a lock with waiters.
-- The mark of an ended claim is a string: one of those below, v<reason> evicted, or c<attempts>: not ended, but these
-- attempts, at most WITHDRAWN_MAX, were withdrawn, and are refused if their requests arrive late. If only the attempt
-- that made the grant had received an expired lease, the mark continues with the attempt (8), the fencing token (8),
-- the permits (4) and the withdrawn attempts: withdrawing that attempt makes the claim one that never held.
--
-- Keys that are not passed to a script share the hash slot of the lock that is. Outside of fast paths, a script reads the
-- lock before it touches them or writes anything: `read_string` fails while the slot moves to another node. On a fast path
-- for which one of several declared keys is absent, Redis does not execute the script while the slot moves.

-- include: record

-- The most holders that the answer lists of each lock, and how many bytes it has left.
local listed_of_lock_max, listed_bytes_left = LISTED_MAX, LISTED_BYTES_MAX

-- Reads a lock if it is a string. While a slot of a Redis Cluster moves to another node, its keys are on both. The node
-- where they were refuses a command if a key is absent, and the other node if it has several keys and one is absent. So
-- this command, with a key that never exists, fails on both. By the code of the error, the process knows that nothing was
-- done.
local function read_string(lock_key, slot)
    -- MGET returns nil for a hash, where GET would fail.
    local records = redis.pcall('MGET', lock_key, slot .. 'x')
    if records.err then
        error({ err = 'TRYAGAIN ' .. records.err })
    end
    return records[1]
end

-- Reads a lock as it is stored.
local function read_stored(lock_key)
    local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
    local record = read_string(lock_key, slot)
    if record then
        local lease = unpack_lease(lock_key, record)
        local options = lease.options
        return {
            key = lock_key, slot = slot, name = name, lease = lease, last = options.last, reserved_for = options.reserved_for,
            reservation_until_ms = options.reservation_until_ms, reservation_ms = options.reservation_ms,
        }
    end
    local fields = redis.call('HMGET', lock_key, 'c', 's', 'k', 'l', 'w', 'p', 'v', 'g')
    return {
        key = lock_key, slot = slot, name = name, open_ms = tonumber(fields[1]), limit = fields[2], taken = tonumber(fields[3]),
        longest_ms = tonumber(fields[4]), last = fields[5], reserved_for = fields[6],
        reservation_until_ms = tonumber(fields[7]), reservation_ms = tonumber(fields[8]),
    }
end

-- What precedes and follows the kind in the keys of a lock: its slot and its name.
local function split_key(lock)
    if not lock.slot then
        lock.slot, lock.name = string.match(lock.key, LOCK_KEY_PATTERN)
    end
    return lock.slot, lock.name
end

local function holders_key(lock)
    local slot, name = split_key(lock)
    return slot .. 's:' .. name
end

local function holder_key(lock, claim)
    return split_key(lock) .. 'h:' .. claim
end

local function ended_key(lock, claim)
    return split_key(lock) .. 'e:' .. claim
end

-- Makes a key live at least `keep_ms`.
local function extend_ttl(key, keep_ms)
    if redis.call('PTTL', key) < keep_ms then
        redis.call('PEXPIRE', key, keep_ms)
    end
end
