-- Included by scripts where their first fast path ends: the record of a lease, which every lease has in the same form.
--
-- A record is a string: the attempt that may roll the lease back (8 bytes, NO_ATTEMPT if none may), its kind (1), the
-- claim (16), the TTL in ms (6), the owner or more, and at the end the fencing token (7) and the end in ms (6). The kind
-- PLAIN, the commonest and cheapest, has the owner, and without one it is stored in one piece: Redis needs a second
-- allocation for more than 44 bytes. The kind WITH_OPTIONS has the owner and a table of options, packed by cmsgpack.
-- These options are absent from a record unless they apply:
-- - acquired_ms, the time of the grant, if the fencing token does not show it. Nearly always, the token is that time in us.
-- - metadata; hold_count, if it is not 1; min_hold_ms; lock_delay_ms; ceiling_ms, the latest end (ms) by max_hold.
-- - limit (0 for none) and permits, of a shared lease.
-- - turns, if several attempts have received the lease: those attempts in turn, first that of the grant. If one of them is
--   undone, the lease goes back to the one before. In place of an attempt there may be CLOSED_ATTEMPT, UNDONE_ATTEMPT for
--   that of the grant, REFUSED_ATTEMPT after which a young lease passes to no further attempt, or NO_ATTEMPT where a
--   renewal or a step back left no attempt that may roll it back.
-- - repeated, if repeated requests have changed the lease: the last of those requests. An earlier try of theirs that
--   arrives now changes nothing.
-- - reentered: the attempt that raised the hold count last.
-- - is_published: its expiry was published. is_of_stream: a stream holds or has held it.
-- - last, reserved_for, reservation_until_ms and reservation_ms: the queue of a lock that is held exclusively. queue.lua
--   describes them.
--
-- Times are on Redis's clock, which may be set back. A lease acquired later than now, or that ends later than its own
-- length from now, was written before the clock was set back, and is changed to end its own length from now: no lock
-- stays closed for longer than its settings say, and no live lease is cut short. All processes are notified, because
-- that end comes early if the clock is corrected again.
-- A record outlives its lease by TOMBSTONE_MS, so that the claim can learn that it expired.

-- The lease in a record that is stored under a key.
local function unpack_lease(key, record)
    local ttl_ms = struct.unpack('>I6', record, 26)
    local fence, until_ms = struct.unpack('>I7I6', record, #record - 12)
    local owner, options = string.sub(record, 32, -14), nil
    if string.sub(record, 9, 9) == WITH_OPTIONS then
        owner, options = cmsgpack.unpack(owner)
    end
    return {
        key = key, attempt = string.sub(record, 1, 8), claim = string.sub(record, 10, 25), owner = owner,
        fence = fence, acquired_ms = options and options.acquired_ms or math.floor(fence / 1000), ttl_ms = ttl_ms,
        until_ms = until_ms, options = options or {},
    }
end

-- The lease whose record is stored under a key, if there is one.
local function load_lease(key)
    local record = redis.call('GET', key)
    return record and unpack_lease(key, record)
end

-- How long the record of a lease is kept.
local function keep_ms(lease)
    return math.max(lease.until_ms + TOMBSTONE_MS, lease.acquired_ms + (lease.options.min_hold_ms or 0)) - now_ms
end

-- Writes the record of a lease.
local function write_lease(lease, kept_ms)
    local kind, owner = PLAIN, lease.owner
    local is_shown = lease.acquired_ms == math.floor(lease.fence / 1000)
    lease.options.acquired_ms = not is_shown and lease.acquired_ms or nil
    if next(lease.options) then
        kind, owner = WITH_OPTIONS, cmsgpack.pack(owner, lease.options)
    end
    local head = lease.attempt .. kind .. lease.claim .. struct.pack('>I6', lease.ttl_ms) .. owner
    local numbers = struct.pack('>I7I6', lease.fence, lease.until_ms)
    redis.call('SET', lease.key, head .. numbers, 'PX', kept_ms)
end

-- Writes the record of a lease that has one, to be kept as long as before unless it says how long.
local function rewrite_lease(lease, kept_ms)
    kept_ms = kept_ms or math.max(redis.call('PTTL', lease.key), 1)
    -- PEXPIRE first: it is allowed when memory is full, and a script that has written may keep writing.
    redis.call('PEXPIRE', lease.key, kept_ms)
    write_lease(lease, kept_ms)
end

-- When a lock whose lease expired may be granted again: lock_delay counts from the end, min_hold from the grant.
local function closed_until(lease)
    local options = lease.options
    return math.max(lease.until_ms + (options.lock_delay_ms or 0), lease.acquired_ms + (options.min_hold_ms or 0))
end

-- Whether the grant of a lease may be about to roll it back, because it is not counted.
local function is_undecided(lease)
    return lease.attempt ~= NO_ATTEMPT and now_ms - lease.acquired_ms < UNCOUNTED_MS
end

-- Whether the lease passes to no attempt but those that have received it: since it was last final it was not counted for one
-- of them. Passed on until it is old, a lease that is rolled back for a quota would become final.
local function is_closed_to(lease, attempt)
    local turns, is_closed = is_undecided(lease) and lease.options.turns or '', false
    for from = #turns - 7, 1, -8 do
        local turn = string.sub(turns, from, from + 7)
        if turn == NO_ATTEMPT or turn == attempt then
            return turn == NO_ATTEMPT and is_closed
        end
        is_closed = is_closed or turn == REFUSED_ATTEMPT
    end
    return is_closed
end

-- The lease in the form of every answer. False stands for what a lease lacks: a table in an answer ends at nil.
local function lease_fields(lease)
    local options = lease.options
    return {
        lease.fence, lease.acquired_ms, lease.until_ms, lease.ttl_ms, options.hold_count or false, lease.owner,
        options.metadata or false, options.limit or false, options.permits or false, lease.claim,
    }
end

-- What is left of min_hold and of max_hold, lock_delay, and whether the lease is a stream's; false for what does not apply.
local function hold_options(lease)
    local options = lease.options
    local min_hold_ms, ceiling_ms = options.min_hold_ms, options.ceiling_ms
    return {
        min_hold_ms and math.max(lease.acquired_ms + min_hold_ms - now_ms, 0) or false,
        ceiling_ms and ceiling_ms - now_ms or false, options.lock_delay_ms or false, options.is_of_stream and 1 or false,
    }
end
