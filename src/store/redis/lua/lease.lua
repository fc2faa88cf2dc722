-- Included by scripts once their fast path is out of the question: a lock's record, who holds it, and what is told to
-- those who watch.
--
-- A lock is a hash. Held by one claim alone it is that claim's record: h claim digest, r attempt that nobody was told of
-- yet, f fencing token, a acquired (ms), u end of the lease (ms), t TTL (ms), n hold count if not 1, o owner, m metadata,
-- i min_hold (ms), x latest end (ms), d lock_delay (ms), y present once its expiry was told. A lease that a stream holds or has
-- held has j, the attempts that held it in turn: first that of the grant, last those of the streams that took it over. One
-- that was changed by requests that had to be sent again has z, the last of those: an earlier try of theirs that arrives now
-- changes nothing.
-- Held by several it has s, their common limit (0 for none), and k, the permits taken; each has a record of its own (with
-- the same fields, and s and k of its own) and an entry in the set of holders: digest and permits, scored by the end.
-- What min_hold or lock_delay keep taken after an end is an entry without a record. In place of the digest it has 8 zero
-- bytes and the fencing token (8) of the lease that ended: the same claim may hold again meanwhile. Beside them are e, how
-- many such entries there are, and l, the longest time (ms) for which an entry was ever made. A closed lock has c, the moment
-- (ms) from which it may be granted, and l, for how long it was closed. What a waited-for lock has beside is told in ticket.lua.
-- Times are moments of Redis's clock, which may be set back. What was acquired later than now, or ends later than its own
-- length from now, was written before the clock went back, and is made to end its own length from now: no lock stays closed
-- for longer than its settings say, and no lease that is alive is cut short. All processes are told, because that end comes
-- early if the clock is set right again.
-- The record of a lease without hold count, metadata, min_hold, max_hold and lock_delay is written in a compact form first,
-- which takes the least time and memory: a string, packed from the attempt (8 bytes, 0 when it is nobody's affair any
-- more), '1', the claim (16), the owner, the TTL in ms (4), the fencing token, which such a grant takes from the clock (8),
-- and the end (6). The fast paths know that form, and what only looks at a lock; what changes the record makes a hash of it.
-- A mark of an ended claim is a string: one of those below, v<reason> evicted, or c<attempts>: not ended, but these
-- attempts, at most WITHDRAWN_MAX, were withdrawn, and are refused should their requests arrive late. As long as nobody but
-- the attempt that made the grant was told of a lease that ran out, its mark goes on with the attempt (8), the fencing
-- token (8), the permits (4) and the withdrawn attempts: the withdrawal of that attempt makes the claim one that never held.
-- A record outlives its lease by TOMBSTONE_MS, so that the claim can be told that it expired.
--
-- The keys that a script is not given share the slot of the lock that it is given.

-- How many expired holders one script clears away.
local REAPED_MAX = 500

-- Of how many holders one answer tells, and with how many bytes of owners and metadata: over all of its locks together.
local LISTED_MAX, LISTED_BYTES_MAX = 100, 65536
-- Among how many entries of a lock it looks for holders to tell of.
local LOOKED_AT_MAX = 1000
-- Of how many holders of each lock the answer tells, and how many bytes it has left.
local listed_of_lock_max, listed_bytes_left = LISTED_MAX, LISTED_BYTES_MAX

-- How many withdrawn attempts of one claim are remembered, the latest, how many that held a lease in turn, and how many
-- requests that were sent again. A client that hangs up again and again must not make a key grow.
local WITHDRAWN_MAX, TURNS_MAX, REPEATED_MAX = 32, 32, 32

-- The attempt of a lease that nobody may roll back any more.
local NOBODY = '\0\0\0\0\0\0\0\0'

-- Redis keeps small whole numbers once for all keys, so that these marks take no memory of their own.
local RELEASED, EXPIRED, LOST = '1', '2', '3'

-- The lease in a compact record, in the order of `lease_in`; then whose it is. Nothing if there is no compact record.
local function compact_lease(lock_key)
    -- MGET takes a hash for nothing, where GET would fail.
    local record = redis.call('MGET', lock_key)[1]
    if not record then
        return nil
    end
    local ttl_ms, granted_us, until_ms = struct.unpack('>I4I8I6', record, #record - 17)
    local owner = string.sub(record, 26, -19)
    local lease = { string.format('%.0f', granted_us), math.floor(granted_us / 1000), until_ms, ttl_ms, false, owner, false, false, false }
    return lease, string.sub(record, 10, 25), string.sub(record, 1, 8)
end

-- A lock as it is stored.
local function read_stored(lock_key)
    local lease, claim, attempt = compact_lease(lock_key)
    if lease then
        return {
            key = lock_key, compact = lease, attempt = attempt, holder = claim,
            acquired_ms = lease[2], until_ms = lease[3], ttl_ms = lease[4],
        }
    end
    local record = redis.call('HMGET', lock_key, 'h', 'u', 'a', 't', 'c', 'i', 'd', 's', 'k', 'l', 'w', 'p', 'v', 'g')
    return {
        key = lock_key, holder = record[1], until_ms = tonumber(record[2]), acquired_ms = tonumber(record[3]),
        ttl_ms = tonumber(record[4]), open_ms = tonumber(record[5]), min_hold_ms = record[6], lock_delay_ms = record[7],
        limit = record[8], taken = tonumber(record[9]), longest_ms = tonumber(record[10]),
        last = record[11], reserved_for = record[12], reservation_until_ms = tonumber(record[13]), reservation_ms = tonumber(record[14]),
    }
end

-- Makes a hash of a compact record, before anything in it changes or the lock has more to tell.
local function to_hash(lock)
    local lease = lock.compact
    if not lease then
        return
    end
    local kept_ms = redis.call('PTTL', lock.key)
    -- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    redis.call('DEL', lock.key)
    redis.call('HSET', lock.key, 'h', lock.holder, 'f', lease[1], 'a', lease[2], 'u', lease[3], 't', lease[4])
    if lock.attempt ~= NOBODY then
        redis.call('HSET', lock.key, 'r', lock.attempt)
    end
    if lease[6] ~= '' then
        redis.call('HSET', lock.key, 'o', lease[6])
    end
    redis.call('PEXPIRE', lock.key, kept_ms)
    lock.compact = nil
end

-- What comes before and after the kind in the keys of a lock: its slot and its name.
local function split_key(lock)
    if not lock.slot then
        lock.slot, lock.name = string.match(lock.key, '^(lh:1:{%d+}:)l:(.*)$')
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

-- Lets a key live at least so long.
local function extend_ttl(key, keep_ms)
    if redis.call('PTTL', key) < keep_ms then
        redis.call('PEXPIRE', key, keep_ms)
    end
end
