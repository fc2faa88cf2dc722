-- Included by scripts that read records: reads a lock, and corrects it if it was written before the clock was set back.

-- include: lease

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
