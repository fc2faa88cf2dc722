-- Included by scripts that end leases: events, and what an ended lease leaves behind.

-- include: times clock_step

-- Publishes an event if any process wants events. Without a record, the caller passes the owner.
local published = 0
local function publish_event(channel, kind, lock, record, owner)
    if channel == '' then
        return
    end
    published = published + 1
    local _, name = split_key(lock)
    local lease = record and redis.call('HMGET', record, 'f', 'u', 'o') or {}
    -- Without the right to the channel, the operation succeeds all the same.
    redis.pcall('PUBLISH', channel, string.format('%.0f.%d %s %s %s %s %s',
        now_us, published, kind, name, lease[1] or '-', lease[2] or '-', lease[3] or owner or ''))
end

-- Whether a repeated request has already changed a lease, by the repeats noted in its record.
local function is_done(repeated, request)
    return repeated and string.find(repeated, request, 1, true)
end

-- Notes a repeated request in the record that it has changed.
local function note_repeat(record, repeated, request)
    redis.call('HSET', record, 'z', string.sub((repeated or '') .. request, -8 * REPEATED_MAX))
end

-- Deletes the record of a lease, with all that only the holder needs; the queue stays.
local function delete_lease(lock)
    redis.call('DEL', lock.key)
    lock.holder, lock.limit, lock.open_ms, lock.longest_ms, lock.reserved_for = nil, nil, nil, nil, nil
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

-- Marks a claim whose lease expired. `attempt` made the grant, if no other request has received it.
local function mark_expired(lock, claim, how, attempt, fence, permits, keep_ms)
    local ended = ended_key(lock, claim)
    local mark = how
    if attempt then
        local before = redis.call('GET', ended) or ''
        local withdrawn = string.sub(before, 1, 1) == MARK_OPEN and string.sub(before, 2) or ''
        local lease = struct.pack('>I8I4', tonumber(fence), tonumber(permits))
        mark = how .. attempt .. lease .. withdrawn
    end
    redis.call('SET', ended, mark, 'PX', keep_ms)
end

-- The attempt that made a grant, if no other request has received it.
local function unacknowledged_attempt(attempt, turns)
    return attempt and attempt ~= NO_ATTEMPT and string.sub(turns or attempt, 1, 8) == attempt and attempt
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

-- How long a lock without a holder stays closed; 0 or less if it is open.
local function closed_ms(lock)
    if lock.holder then
        return closed_until(lock.acquired_ms, lock.until_ms, lock.min_hold_ms, lock.lock_delay_ms) - now_ms
    end
    return (lock.open_ms or 0) - now_ms
end
