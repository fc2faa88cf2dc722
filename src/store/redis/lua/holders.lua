-- Included by scripts for locks of every kind: the holders of a shared lock.

-- include: ending

-- Notes how long an entry among the holders may last.
local function note_longest(lock, lasts_ms)
    if lasts_ms > (lock.longest_ms or 0) then
        lock.longest_ms = lasts_ms
        redis.call('HSET', lock.key, 'l', lasts_ms)
    end
end

-- Whether an entry among the holders is a cool-down. Most are not, so the first byte is compared before a string is
-- cut.
local function is_cooldown(member)
    return string.byte(member) == 0 and string.sub(member, 1, 8) == NO_ATTEMPT
end

-- Returns the permits of an ended lease: now, or at `open_ms` by a cool-down entry with the fencing token of that
-- lease.
local function return_permits(lock, member, open_ms, fence)
    local holders = holders_key(lock)
    redis.call('ZREM', holders, member)
    if is_cooldown(member) then
        redis.call('HINCRBY', lock.key, 'e', -1)
    end
    if open_ms > now_ms then
        note_longest(lock, open_ms - now_ms)
        -- Not the claim: its next lease must not replace this entry.
        local cooldown = struct.pack('>I8I8', 0, tonumber(fence))
        redis.call('ZADD', holders, open_ms, cooldown .. string.sub(member, 17))
        redis.call('HINCRBY', lock.key, 'e', 1)
        extend_ttl(holders, open_ms - now_ms)
        extend_ttl(lock.key, open_ms - now_ms)
        return
    end
    lock.taken = redis.call('HINCRBY', lock.key, 'k', -tonumber(string.sub(member, 17)))
end

-- Ends the sharing of a lock that has no entries left.
local function end_sharing_if_empty(lock)
    if redis.call('EXISTS', holders_key(lock)) == 0 then
        redis.call('HDEL', lock.key, 's', 'k', 'l', 'e')
        lock.limit, lock.taken, lock.longest_ms = nil, nil, nil
    end
end

-- Ends a lease. What it held stays closed until `open_ms`.
local function end_lease(lock, lease, open_ms)
    -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
    if lease == lock.lease then
        delete_lease(lock)
        start_cooldown(lock, open_ms)
        return
    end
    redis.call('DEL', lease.key)
    local member = lease.claim .. lease.options.permits
    return_permits(lock, member, open_ms, lease.fence)
    end_sharing_if_empty(lock)
end

-- Adds a lease to those of a shared lock, and writes its record.
local function share(lock, lease, limit, permits)
    local holders, kept_ms = holders_key(lock), keep_ms(lease)
    if lock.limit then
        lock.taken = redis.call('HINCRBY', lock.key, 'k', permits)
    else
        redis.call('DEL', holders)
        redis.call('HSET', lock.key, 's', limit, 'k', permits)
        lock.limit, lock.taken = limit, tonumber(permits)
    end
    redis.call('ZADD', holders, lease.until_ms, lease.claim .. permits)
    note_longest(lock, lease.until_ms - now_ms)
    extend_ttl(holders, kept_ms)
    extend_ttl(lock.key, kept_ms)
    lease.key, lease.options.limit, lease.options.permits = holder_key(lock, lease.claim), limit, permits
    write_lease(lease, kept_ms)
end

-- Removes an expired entry from the holders, with its lease if it has one.
local function expire_holder(lock, member, lease, channel)
    if not lease then
        return return_permits(lock, member, 0)
    end
    publish_event(channel, 'expired', lock, lease)
    -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
    redis.call('DEL', lease.key)
    mark_expired(lock, lease, MARK_EXPIRED)
    return_permits(lock, member, closed_until(lease), lease.fence)
end

-- How many holders this script may still end because they have expired, of all its locks together.
local endings_left = ENDED_AT_ONCE

-- Removes expired entries from the holders, as many of them as a short step can. Returns whether there may be more.
local function expire_holders(lock, channel)
    shift_holders(lock)
    local over = redis.call('ZRANGEBYSCORE', holders_key(lock), '-inf', now_ms, 'LIMIT', 0, endings_left)
    for _, member in ipairs(over) do
        expire_holder(lock, member, load_lease(holder_key(lock, string.sub(member, 1, 16))), channel)
    end
    end_sharing_if_empty(lock)
    endings_left = endings_left - #over
    return endings_left == 0
end

-- The lease of a claim if it holds, or why it does not: MARK_EXPIRED, or n for no record.
local function lease_of(lock, claim)
    local lease
    if lock.lease and lock.lease.claim == claim then
        lease = lock.lease
    elseif lock.limit then
        lease = read_holder(lock, claim)
    end
    if not lease then
        return nil, 'n'
    elseif lease.until_ms <= now_ms then
        return nil, MARK_EXPIRED
    end
    return lease
end
