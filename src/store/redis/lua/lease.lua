-- Included by scripts where their fast paths end: the record of a lock and the keys beside it.
--
-- A lock is a hash. Held exclusively it is the holder's record: h claim digest, r attempt that may roll the lease back,
-- f fencing token, a acquired (ms), u end of the lease (ms), t TTL (ms), n hold count if not 1, o owner, m metadata, i
-- min_hold (ms), x latest end (ms), d lock_delay (ms), y present once its expiry was published, b present
-- if a stream holds or has held it. A lease that several attempts have received has j, those attempts in turn, first that
-- of the grant: if one of them is undone, the lease goes back to the one before. In place of an attempt there may be
-- CLOSED_ATTEMPT, or NO_ATTEMPT where a renewal or a step back left no attempt that may roll it back. A lease that
-- repeated requests have changed has z, the last of those requests: an earlier try of theirs that arrives now changes
-- nothing. A lease whose hold count was raised has q, the attempt that raised it last.
-- A shared lock has s, the common limit (0 for none), and k, the permits taken; each holder has a record of its own
-- (with the same fields, and s and k of its own) and an entry in the set of holders: digest and permits, scored by the
-- end. What min_hold or lock_delay keep taken after an end is a cool-down entry, without a record. In place of the
-- digest it has 8 zero bytes and the fencing token (8) of the ended lease, because the same claim may hold again
-- meanwhile. The lock also has e, the number of cool-down entries, and l, the longest time (ms) for which an entry was
-- ever made. A closed lock has c, the time (ms) from which it may be granted, and l, for how long it was closed.
-- queue.lua describes the additional fields of a lock with waiters.
-- Times are on Redis's clock, which may be set back. A lease acquired later than now, or that ends later than its own
-- length from now, was written before the clock was set back, and is changed to end its own length from now: no lock
-- stays closed for longer than its settings say, and no live lease is cut short. All processes are notified, because
-- that end comes early if the clock is corrected again.
-- The record of a lease without hold count, metadata, min_hold, max_hold and lock_delay is first written in a compact
-- form, which takes the least time and memory: a string, packed from the attempt (8 bytes, 0 when none may roll it back
-- any more), '1', the claim (16), the owner, the TTL in ms (4), the time of the grant in us, which is also the fencing
-- token (8), and the end (6). So a lease with another fencing token, because the counter is ahead of the clock, is never
-- compact. The fast paths and read-only scripts understand that form; scripts that change the record make it a hash,
-- by to_hash and nothing else.
-- The mark of an ended claim is a string: one of those below, v<reason> evicted, or c<attempts>: not ended, but these
-- attempts, at most WITHDRAWN_MAX, were withdrawn, and are refused if their requests arrive late. If only the attempt
-- that made the grant had received an expired lease, the mark continues with the attempt (8), the fencing token (8),
-- the permits (4) and the withdrawn attempts: withdrawing that attempt makes the claim one that never held.
-- A record outlives its lease by TOMBSTONE_MS, so that the claim can learn that it expired.
--
-- Keys that are not passed to a script share the hash slot of the lock that is. Outside of fast paths, a script reads the
-- lock before it touches them or writes anything: `read_string` fails while the slot moves to another node. On a fast path
-- for which one of several declared keys is absent, Redis does not execute the script while the slot moves.

-- The most holders that the answer lists of each lock, and how many bytes it has left.
local listed_of_lock_max, listed_bytes_left = LISTED_MAX, LISTED_BYTES_MAX

-- Reads a lock if it is a string. While a slot of a Redis Cluster moves to another node, its keys are on both. The node
-- where they were refuses a command if a key is absent, and the other node if it has several keys and one is absent. So
-- this command, with a key that never exists, fails on both.
local function read_string(lock_key, slot)
    -- MGET returns nil for a hash, where GET would fail.
    local records = redis.pcall('MGET', lock_key, slot .. 'x')
    if records.err then
        error({ err = 'TRYAGAIN ' .. records.err })
    end
    return records[1]
end

-- The lease in a compact record, in the order of `lease_in`, then its claim and attempt.
local function compact_lease(record)
    local ttl_ms, granted_us, until_ms = struct.unpack('>I4I8I6', record, #record - 17)
    local owner = string.sub(record, 26, -19)
    local lease = { string.format('%.0f', granted_us), math.floor(granted_us / 1000), until_ms, ttl_ms, false, owner, false, false, false }
    return lease, string.sub(record, 10, 25), string.sub(record, 1, 8)
end

-- Reads a lock as it is stored.
local function read_stored(lock_key)
    local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
    local compact = read_string(lock_key, slot)
    if compact then
        local lease, claim, attempt = compact_lease(compact)
        return {
            key = lock_key, slot = slot, name = name, compact = lease, attempt = attempt, holder = claim,
            acquired_ms = lease[2], until_ms = lease[3], ttl_ms = lease[4],
        }
    end
    local record = redis.call('HMGET', lock_key, 'h', 'u', 'a', 't', 'c', 'i', 'd', 's', 'k', 'l', 'w', 'p', 'v', 'g')
    return {
        key = lock_key, slot = slot, name = name, holder = record[1], until_ms = tonumber(record[2]), acquired_ms = tonumber(record[3]),
        ttl_ms = tonumber(record[4]), open_ms = tonumber(record[5]), min_hold_ms = record[6], lock_delay_ms = record[7],
        limit = record[8], taken = tonumber(record[9]), longest_ms = tonumber(record[10]),
        last = record[11], reserved_for = record[12], reservation_until_ms = tonumber(record[13]), reservation_ms = tonumber(record[14]),
    }
end

-- Converts a compact record to a hash, before it changes or the lock gets more fields.
local function to_hash(lock)
    local lease = lock.compact
    if not lease then
        return
    end
    local kept_ms = redis.call('PTTL', lock.key)
    -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
    redis.call('DEL', lock.key)
    redis.call('HSET', lock.key, 'h', lock.holder, 'f', lease[1], 'a', lease[2], 'u', lease[3], 't', lease[4])
    if lock.attempt ~= NO_ATTEMPT then
        redis.call('HSET', lock.key, 'r', lock.attempt)
    end
    if lease[6] ~= '' then
        redis.call('HSET', lock.key, 'o', lease[6])
    end
    redis.call('PEXPIRE', lock.key, kept_ms)
    lock.compact = nil
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
