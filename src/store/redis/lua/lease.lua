-- Included by scripts where their fast paths end: a lock as it is stored, the keys beside it, and what the end of a lease
-- leaves behind.
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
-- this command, with a key that never exists, fails on both.
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

-- Notifies all processes, once, that the clock was set back, so that each of them notices if the clock is corrected:
-- what is shifted here would end early then.
local is_step_announced = false
local function announce_clock_step()
    if not is_step_announced then
        is_step_announced = true
        -- Without the right to the channel, they learn it at their next check of the store.
        redis.pcall('PUBLISH', CLOCK_CHANNEL, now_ms)
    end
end

-- Shifts the times of a lease that was written before the clock was set back: it was acquired by now, ends its TTL from
-- now at the latest, or `lasts_max_ms`, and holds no longer than its max_hold. Returns whether they have changed.
local function shift_lease(lease, lasts_max_ms)
    local behind_ms = math.max(lease.until_ms - now_ms - math.min(lease.ttl_ms, lasts_max_ms), 0)
    if behind_ms == 0 and lease.acquired_ms <= now_ms then
        return false
    end
    local shifted_ms = math.min(lease.acquired_ms - behind_ms, now_ms)
    local ceiling_ms = lease.options.ceiling_ms
    lease.until_ms = lease.until_ms - behind_ms
    if ceiling_ms then
        ceiling_ms = ceiling_ms - lease.acquired_ms + shifted_ms
        lease.until_ms = math.min(lease.until_ms, ceiling_ms)
        lease.options.ceiling_ms = ceiling_ms
    end
    lease.acquired_ms = shifted_ms
    rewrite_lease(lease)
    announce_clock_step()
    return true
end

-- Reads a lock, and corrects it if the clock was set back since it was stored.
local function read(lock_key)
    local lock = read_stored(lock_key)
    if lock.lease then
        shift_lease(lock.lease, math.huge)
    elseif lock.open_ms and lock.open_ms - now_ms > (lock.longest_ms or 0) then
        lock.open_ms = now_ms + (lock.longest_ms or 0)
        redis.call('PEXPIRE', lock_key, redis.call('PTTL', lock_key))
        redis.call('HSET', lock_key, 'c', lock.open_ms)
        announce_clock_step()
    end
    return lock
end

-- Reads the lease of one of several holders, and corrects it. Nothing if the claim has none.
local function read_holder(lock, claim)
    local lease = load_lease(holder_key(lock, claim))
    if lease and shift_lease(lease, lock.longest_ms or math.huge) then
        redis.call('ZADD', holders_key(lock), lease.until_ms, claim .. lease.options.permits)
    end
    return lease
end

-- Corrects an entry among the holders, with its lease if it has one.
local function shift_entry(lock, member, end_ms)
    local end_max_ms = now_ms + lock.longest_ms
    if not read_holder(lock, string.sub(member, 1, 16)) and end_ms > end_max_ms then
        -- ZREM of nothing first: it is allowed when memory is full, and a script that has written may keep writing.
        redis.call('ZREM', holders_key(lock), '')
        redis.call('ZADD', holders_key(lock), end_max_ms, member)
        announce_clock_step()
    end
end

-- Corrects entries among the holders whose end shows that they were written before the clock was set back.
local function shift_holders(lock)
    if not lock.longest_ms then
        return
    end
    local behind = '(' .. now_ms + lock.longest_ms
    local ahead = redis.call('ZRANGEBYSCORE', holders_key(lock), behind, '+inf', 'WITHSCORES', 'LIMIT', 0, REAPED_MAX)
    for index = 1, #ahead, 2 do
        shift_entry(lock, ahead[index], tonumber(ahead[index + 1]))
    end
end

-- How many microseconds have passed since the clock was read, unless it was set or Redis freezes it for scripts.
local function took()
    local later = redis.call('TIME')
    return math.max(later[1] * 1000000 + later[2] - now_us, 0)
end

-- Publishes an event if any process wants events. Without a lease, the caller passes the owner.
local published = 0
local function publish_event(channel, kind, lock, lease, owner)
    if channel == '' then
        return
    end
    published = published + 1
    local _, name = split_key(lock)
    local lease_text = '- - ' .. (owner or '')
    if lease then
        lease_text = string.format('%.0f %.0f %s', lease.fence, lease.until_ms, lease.owner)
    end
    -- Without the right to the channel, the operation succeeds all the same.
    redis.pcall('PUBLISH', channel, string.format('%.0f.%d %s %s %s', now_us, published, kind, name, lease_text))
end

-- Whether a repeated request has already changed a lease.
local function is_done(lease, request)
    local repeated = lease.options.repeated
    return repeated and string.find(repeated, request, 1, true)
end

-- Notes a repeated request in the lease that it changes.
local function note_repeat(lease, request)
    lease.options.repeated = string.sub((lease.options.repeated or '') .. request, -8 * REPEATED_MAX)
end

-- Deletes the record of a lock, with all that only its holders need; the queue stays.
local function delete_lease(lock)
    redis.call('DEL', lock.key)
    lock.lease, lock.limit, lock.open_ms, lock.longest_ms, lock.reserved_for = nil, nil, nil, nil, nil
    if lock.last then
        redis.call('HSET', lock.key, 'w', lock.last)
        redis.call('PEXPIRE', lock.key, TOMBSTONE_MS)
    end
end

-- Keeps the lock closed for a while after its record was deleted.
local function start_cooldown(lock, open_ms)
    if open_ms > now_ms then
        lock.open_ms, lock.longest_ms = open_ms, open_ms - now_ms
        redis.call('HSET', lock.key, 'c', open_ms, 'l', lock.longest_ms)
        extend_ttl(lock.key, lock.longest_ms)
    end
end

-- Marks the claim of an expired lease. If no request but the grant's has received the lease, the mark has its attempt,
-- and the permits that it keeps taken.
local function mark_expired(lock, lease, how)
    local kept_ms = lease.until_ms + TOMBSTONE_MS - now_ms
    if kept_ms <= 0 then
        return
    end
    local ended = ended_key(lock, lease.claim)
    local mark, attempt = how, lease.attempt
    if attempt ~= NO_ATTEMPT and string.sub(lease.options.turns or attempt, 1, 8) == attempt then
        local before = redis.call('GET', ended) or ''
        local withdrawn = string.sub(before, 1, 1) == MARK_OPEN and string.sub(before, 2) or ''
        local left = struct.pack('>I8I4', lease.fence, tonumber(lease.options.permits or 0))
        mark = how .. attempt .. left .. withdrawn
    end
    redis.call('SET', ended, mark, 'PX', kept_ms)
end

-- How a claim ended, by its mark; nothing if it has not.
local function how_ended(mark)
    local kind = mark and string.sub(mark, 1, 1)
    if kind == MARK_EVICTED then
        return mark
    end
    return kind ~= MARK_OPEN and kind
end

-- Why a claim does not hold the lock: MARK_EXPIRED, or its mark, or MARK_UNKNOWN.
local function why_not(how, ended)
    if how == MARK_EXPIRED then
        return how
    end
    return how_ended(redis.call('GET', ended)) or MARK_UNKNOWN
end
