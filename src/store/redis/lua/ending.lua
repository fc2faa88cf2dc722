-- Included after step_back.lua: what those who watch are told, and what a lease leaves behind that has ended.

-- Tells those who watch, if there are any. Where there is no record, whose doing it is has to be said.
local published = 0
local function publish_event(channel, now_us, kind, lock, record, owner)
    if channel == '' then
        return
    end
    published = published + 1
    local _, name = split_key(lock)
    local lease = record and redis.call('HMGET', record, 'f', 'u', 'o') or {}
    -- A user without the right to the channel does what it does all the same.
    redis.pcall('PUBLISH', channel, string.format('%.0f.%d %s %s %s %s %s',
        now_us, published, kind, name, lease[1] or '-', lease[2] or '-', lease[3] or owner or ''))
end

-- Whether a request that was sent again has changed a lease before, by what its record says of such requests.
local function is_done(repeated, request)
    return repeated and string.find(repeated, request, 1, true)
end

-- Takes note of a request that was sent again, in a record that it has changed.
local function note_repeat(record, repeated, request)
    redis.call('HSET', record, 'z', string.sub((repeated or '') .. request, -8 * REPEATED_MAX))
end

-- Clears away the record of a lock and what nobody but its holder needs.
local function delete_lease(lock)
    redis.call('DEL', lock.key)
    lock.holder, lock.limit, lock.open_ms, lock.longest_ms, lock.reserved_for = nil, nil, nil, nil, nil
    if lock.last then
        redis.call('HSET', lock.key, 'w', lock.last)
        redis.call('PEXPIRE', lock.key, TOMBSTONE_MS)
    end
end

-- Leaves behind, once a record is cleared away, that the lock may not be granted for a while.
local function start_cooldown(lock, open_ms, now_ms)
    if open_ms > now_ms then
        lock.open_ms, lock.longest_ms = open_ms, open_ms - now_ms
        redis.call('HSET', lock.key, 'c', open_ms, 'l', lock.longest_ms)
        extend_ttl(lock.key, lock.longest_ms)
    end
end

-- Marks a claim whose lease ran out. `attempt` made the grant, as long as nobody else was told of it.
local function mark_run_out(lock, claim, how, attempt, fence, permits, keep_ms)
    local ended = ended_key(lock, claim)
    local mark = how
    if attempt then
        local before = redis.call('GET', ended) or ''
        local withdrawn = string.sub(before, 1, 1) == 'c' and string.sub(before, 2) or ''
        local lease = struct.pack('>I8I4', tonumber(fence), tonumber(permits))
        mark = how .. attempt .. lease .. withdrawn
    end
    redis.call('SET', ended, mark, 'PX', keep_ms)
end

-- The attempt that made a grant, as long as nobody else was told of it.
local function unacknowledged_attempt(attempt, turns)
    return attempt and attempt ~= NOBODY and string.sub(turns or attempt, 1, 8) == attempt and attempt
end

-- How a claim ended by its mark, or nothing if it has not.
local function how_ended(mark)
    local kind = mark and string.sub(mark, 1, 1)
    if kind == 'v' then
        return mark
    end
    return kind ~= 'c' and kind
end

-- Why a claim does not hold the lock: it expired, or its mark, or u unknown.
local function why_not(how, ended)
    if how == EXPIRED then
        return how
    end
    return how_ended(redis.call('GET', ended)) or 'u'
end

-- For how long nobody holds the lock and it stays closed all the same; 0 or less if it is open.
local function closed_ms(lock, now_ms)
    if lock.holder then
        return closed_until(lock.acquired_ms, lock.until_ms, lock.min_hold_ms, lock.lock_delay_ms) - now_ms
    end
    return (lock.open_ms or 0) - now_ms
end
