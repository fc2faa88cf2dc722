-- Included by scripts that end leases: events, and what an ended lease leaves behind.

-- include: clock_step

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

-- Publishes that a lease has expired, unless it was published before.
local function publish_expired(channel, lock, lease)
    if not lease.options.is_published then
        publish_event(channel, 'expired', lock, lease)
    end
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

-- How long a lock without a holder stays closed; 0 or less if it is open.
local function closed_ms(lock)
    return (lock.lease and closed_until(lock.lease) or lock.open_ms or 0) - now_ms
end
