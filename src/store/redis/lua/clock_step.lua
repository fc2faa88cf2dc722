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
-- now at the latest, or `lasts_max_ms`, and holds no longer than its max_hold. Returns its end and whether that has
-- changed; nothing if there is no such record.
local function shift_lease(record, lasts_max_ms)
    local times = redis.call('HMGET', record, 'u', 'a', 't', 'x')
    if not times[1] then
        return nil
    end
    local until_ms, acquired_ms, ceiling_ms = tonumber(times[1]), tonumber(times[2]), tonumber(times[4])
    local behind_ms = math.max(until_ms - now_ms - math.min(tonumber(times[3]), lasts_max_ms), 0)
    if behind_ms == 0 and acquired_ms <= now_ms then
        return until_ms, false
    end
    local shifted_ms = math.min(acquired_ms - behind_ms, now_ms)
    -- PEXPIRE first: it is allowed when memory is full, and a script that has written may keep writing.
    redis.call('PEXPIRE', record, redis.call('PTTL', record))
    until_ms = until_ms - behind_ms
    if ceiling_ms then
        ceiling_ms = ceiling_ms - acquired_ms + shifted_ms
        until_ms = math.min(until_ms, ceiling_ms)
        redis.call('HSET', record, 'x', ceiling_ms)
    end
    redis.call('HSET', record, 'u', until_ms, 'a', shifted_ms)
    announce_clock_step()
    return until_ms, true
end

-- Reads a lock, and corrects it if the clock was set back since it was stored.
local function read(lock_key)
    local lock = read_stored(lock_key)
    -- A compact record keeps the time of its grant, which is its fencing token, however late it is renewed.
    if lock.holder and (lock.until_ms - now_ms > lock.ttl_ms or not lock.compact and lock.acquired_ms > now_ms) then
        to_hash(lock)
        shift_lease(lock_key, math.huge)
        lock = read_stored(lock_key)
    end
    if lock.open_ms and lock.open_ms - now_ms > (lock.longest_ms or 0) then
        lock.open_ms = now_ms + (lock.longest_ms or 0)
        redis.call('PEXPIRE', lock_key, redis.call('PTTL', lock_key))
        redis.call('HSET', lock_key, 'c', lock.open_ms)
        announce_clock_step()
    end
    return lock
end

-- Corrects the lease of one of several holders. Returns its end; nothing if the claim has none.
local function shift_holder(lock, claim)
    local record = holder_key(lock, claim)
    local until_ms, is_shifted = shift_lease(record, lock.longest_ms or math.huge)
    if is_shifted then
        redis.call('ZADD', holders_key(lock), until_ms, claim .. redis.call('HGET', record, 'k'))
    end
    return until_ms
end

-- Corrects an entry among the holders, with its lease if it has one.
local function shift_entry(lock, member, end_ms)
    local end_max_ms = now_ms + lock.longest_ms
    if not shift_holder(lock, string.sub(member, 1, 16)) and end_ms > end_max_ms then
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
