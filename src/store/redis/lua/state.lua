-- Included by scripts that describe locks: the state of a lock, and what keeps it from a claim.

-- include: holders

-- Shares the room of the answer equally among this many locks.
local function share_answer_room(locks)
    listed_of_lock_max = math.max(math.floor(LISTED_MAX / locks), 1)
end

-- Adds a lease to those that the answer lists. The first lease without room ends the list, so that none is read
-- that is not listed.
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
        local over = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, REAPED_MAX)
        if #over == REAPED_MAX then
            -- More cool-downs may be over than were searched. Rather too many holders than none where there are some.
            return all
        end
        for _, member in ipairs(over) do
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
