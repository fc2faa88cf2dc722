-- Rolls back what an attempt received, and keeps the attempt from being granted if its request arrives late.
-- KEYS: for each lock: lock_key, ended
-- ARGV: attempt, is_close, channel, for each lock: claim
-- Returns: attempt, how many leases were ended
-- include: clock reservation
local attempt, is_close, channel = ARGV[1], ARGV[2], ARGV[3]

local ended_count = 0

-- Where an attempt is in the turns of a lease, if it is.
local function turn_of(turns)
    for from = 1, #turns, 8 do
        if string.sub(turns, from, from + 7) == attempt then
            return from
        end
    end
end

-- Takes an attempt that no client has received out of the turns of a lease: the lease goes back to the attempt before,
-- whose stream may be open. The grant itself has none before it.
local function undo_turn(lease, turns, from)
    if lease.attempt == attempt then
        lease.attempt = string.sub(turns, from - 8, from - 1)
    end
    lease.options.turns = string.sub(turns, 1, from - 1) .. string.sub(turns, from + 8)
    rewrite_lease(lease)
end

-- Whether a turn is over that the lease cannot go back to.
local function has_ended(turn)
    return turn == CLOSED_ATTEMPT or turn == UNDONE_ATTEMPT or turn == REFUSED_ATTEMPT
end

-- Whether every attempt before the last one is undone.
local function was_unused(turns)
    for from = 1, #turns - 8, 8 do
        local turn = string.sub(turns, from, from + 7)
        if turn ~= UNDONE_ATTEMPT and turn ~= REFUSED_ATTEMPT then
            return false
        end
    end
    return true
end

-- Whether the lease is to end, now that the attempt is undone or its stream is closed.
local function end_turn(lease)
    local has_right, turns = lease.attempt == attempt, lease.options.turns or lease.attempt
    local from = turn_of(turns)
    if not from then
        return false
    end
    local is_first = from == 1 or (has_right or is_close == '3') and has_ended(string.sub(turns, from - 8, from - 1))
    if is_close ~= '1' and not is_first then
        undo_turn(lease, turns, from)
        return false
    end
    if not has_right then
        local withdrawn = is_close == '1' and CLOSED_ATTEMPT or is_close == '3' and REFUSED_ATTEMPT or UNDONE_ATTEMPT
        lease.options.turns = string.sub(turns, 1, from - 1) .. withdrawn .. string.sub(turns, from + 8)
        rewrite_lease(lease)
    end
    return has_right
end

-- Ends a lease. If undone, it closes nothing, even if it expired before any other request received it, or if the grant and
-- one replay were both undone. A lease that was in use (is_close, or taken over) closes the lock like a release does; if it
-- has expired, it stays so.
local function roll_back(lock, lease)
    local options = lease.options
    local turns = options.turns or attempt
    local was_in_use = is_close == '1' or not was_unused(turns)
    if was_in_use and lease.until_ms <= now_ms then
        return
    end
    -- It counts from the grant, which lies in the future if the clock was set back since.
    local held_ms = math.max(now_ms - lease.acquired_ms, 0)
    local open_ms = was_in_use and now_ms + (options.min_hold_ms or 0) - held_ms or 0
    ended_count = ended_count + 1
    publish_event(channel, 'released', lock, lease)
    end_lease(lock, lease, open_ms)
    reserve(lock)
end

-- A claim whose lease expired before any other request received it never held: returns the permits that the lease keeps
-- taken, and the mark of a claim that has not ended.
local function forget_expired(lock, mark)
    local fence, permits = struct.unpack('>I8I4', string.sub(mark, 10, 21))
    local cooldown = struct.pack('>I8I8', 0, fence)
    cooldown = cooldown .. permits
    if lock.limit and redis.call('ZSCORE', holders_key(lock), cooldown) then
        return_permits(lock, cooldown, 0)
        end_sharing_if_empty(lock)
        reserve(lock)
    end
    return MARK_OPEN .. string.sub(mark, 22)
end

for number = 1, #KEYS / 2 do
    local lock, ended, claim = read(KEYS[number * 2 - 1]), KEYS[number * 2], ARGV[3 + number]
    local lease = lock.limit and read_holder(lock, claim) or lock.lease
    if lease and lease.claim == claim and end_turn(lease) then
        roll_back(lock, lease)
    end
    -- One attempt may send several requests: a late one must not be granted what was rolled back.
    local mark = call('GET', ended) or MARK_OPEN
    if is_close ~= '1' and string.find(mark, '^[23]') and string.sub(mark, 2, 9) == attempt then
        mark = forget_expired(lock, mark)
        call('DEL', ended)
        if is_close == '2' and mark ~= MARK_OPEN then
            call('SET', ended, mark, 'PX', TOMBSTONE_MS)
        end
    end
    if is_close ~= '2' and string.sub(mark, 1, 1) == MARK_OPEN and not string.find(mark, attempt, 2, true) then
        local attempts = string.sub(mark, 2) .. attempt
        -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
        call('DEL', ended)
        call('SET', ended, MARK_OPEN .. string.sub(attempts, -8 * WITHDRAWN_MAX), 'PX', TOMBSTONE_MS)
    end
end
return { attempt, ended_count }
