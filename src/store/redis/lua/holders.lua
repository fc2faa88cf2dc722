-- Included by scripts for locks of every kind: the holders of a shared lock, the state of a lock, and what keeps it from
-- a claim.

-- include: lease

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

-- Removes expired entries from the holders.
local function expire_holders(lock, channel)
    shift_holders(lock)
    local over = redis.call('ZRANGEBYSCORE', holders_key(lock), '-inf', now_ms, 'LIMIT', 0, REAPED_MAX)
    for _, member in ipairs(over) do
        expire_holder(lock, member, load_lease(holder_key(lock, string.sub(member, 1, 16))), channel)
    end
    end_sharing_if_empty(lock)
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

-- Shares the room of the answer equally among this many locks.
local function share_answer_room(locks)
    listed_of_lock_max = math.max(math.floor(LISTED_MAX / locks), 1)
end

-- Adds a lease to those that the answer lists. The first lease without room ends the list, so that nothing more is read
-- in vain.
local function add_listed(leases, lease)
    listed_bytes_left = listed_bytes_left - #lease.owner - #(lease.options.metadata or '')
    if listed_bytes_left >= 0 then
        leases[#leases + 1] = lease_fields(lease)
    end
end

-- How many claims share a lock. Cool-down entries are in the set of holders, and stay there after their end until an
-- acquire or an inspection removes them.
local function sharers(lock)
    local holders = holders_key(lock)
    local all = redis.call('ZCOUNT', holders, '(' .. now_ms, '+inf')
    local cooldowns = tonumber(redis.call('HGET', lock.key, 'e') or 0)
    if cooldowns > 0 then
        for _, member in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, REAPED_MAX)) do
            cooldowns = cooldowns - (is_cooldown(member) and 1 or 0)
        end
    end
    return all - cooldowns
end

-- How many claims share a lock, and the leases that the answer lists. Holders behind very many cool-down entries are
-- not listed.
local function shared_by(lock)
    local total, leases = sharers(lock), {}
    -- For most locks the first few entries are enough. More are read while those are cool-down entries.
    local offset, step = 0, listed_of_lock_max
    while total > 0 and offset < SEARCHED_MAX do
        local members = redis.call('ZRANGEBYSCORE', holders_key(lock), '(' .. now_ms, '+inf', 'LIMIT', offset, step)
        for _, member in ipairs(members) do
            if #leases < listed_of_lock_max and listed_bytes_left >= 0 and not is_cooldown(member) then
                local lease = load_lease(holder_key(lock, string.sub(member, 1, 16)))
                if lease then
                    add_listed(leases, lease)
                else
                    total = total - 1
                end
            end
        end
        if #members < step or #leases >= listed_of_lock_max or listed_bytes_left < 0 then
            break
        end
        offset, step = offset + step, LISTED_MAX
    end
    return total, leases
end

-- How long a lock without a holder stays closed; 0 or less if it is open.
local function closed_ms(lock)
    return (lock.lease and closed_until(lock.lease) or lock.open_ms or 0) - now_ms
end

-- Whether one claim holds the lock alone.
local function is_held_exclusively(lock)
    return lock.lease and lock.lease.until_ms > now_ms
end

-- The state of a lock: h with the number of holders and the leases that end first, c with the ms that it stays closed,
-- or f.
local function state(lock)
    if is_held_exclusively(lock) then
        local leases = {}
        if listed_bytes_left >= 0 then
            add_listed(leases, lock.lease)
        end
        return { HELD, 1, leases }
    end
    local left_ms = closed_ms(lock)
    if lock.limit then
        local total, leases = shared_by(lock)
        if total > 0 then
            return { HELD, total, leases }
        end
        left_ms = (tonumber(redis.call('ZRANGE', holders_key(lock), -1, -1, 'WITHSCORES')[2]) or 0) - now_ms
    end
    return left_ms > 0 and { COOLING, left_ms } or { FREE }
end

-- What keeps a lock from a claim, and for how long at most without further operations: h holders, c it is closed, l
-- another limit. Nothing if the lock admits it. `limit` is empty for an exclusive claim.
local function conflict(lock, limit, permits)
    if is_held_exclusively(lock) then
        return HELD, lock.lease.until_ms - now_ms
    end
    if not lock.limit then
        local left_ms = closed_ms(lock)
        return left_ms > 0 and COOLING or nil, left_ms
    end
    if limit ~= '' and limit ~= lock.limit then
        -- A cool-down does not enforce its limit. One holder is enough to know, and the answer lists none.
        local of_lock_max, bytes_left = listed_of_lock_max, listed_bytes_left
        listed_of_lock_max = 1
        local doing = state(lock)
        listed_of_lock_max, listed_bytes_left = of_lock_max, bytes_left
        return doing[1] == HELD and OTHER_LIMIT or COOLING, doing[2]
    end
    if limit == '' or limit ~= '0' and lock.taken + permits > tonumber(limit) then
        local first = redis.call('ZRANGE', holders_key(lock), 0, 0, 'WITHSCORES')
        return HELD, math.max((tonumber(first[2]) or now_ms) - now_ms, 1)
    end
    return nil
end
