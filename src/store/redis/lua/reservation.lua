-- Included by scripts that change queues: the head of a lock's queue, reservations, and leaving the queue.

-- include: queue

-- Updates the score of a process in the queue.
local function reindex(lock, process)
    local first = redis.call('ZRANGE', process_queue_key(lock, process), 0, 0, 'WITHSCORES')
    if first[1] then
        redis.call('ZADD', queue_key(lock), first[2], process)
    else
        redis.call('ZREM', queue_key(lock), process)
    end
end

-- How long the lock is still reserved; 0 or less if the reservation is over. One with more time left than its length
-- was made before the clock was set back.
local function reservation_left_ms(lock)
    local left_ms = lock.reservation_until_ms - now_ms
    local lasts_ms = lock.reservation_ms or RESERVATION_MS
    if left_ms > lasts_ms then
        reserve_for(lock, lock.reserved_for, lasts_ms)
        announce_clock_step()
        return lasts_ms
    end
    return left_ms
end

-- Whether to pass over the process that has the reservation. Only scripts whose caller knows of no recent outage of the
-- store decide this.
local function is_passed_over(lock)
    if not lock.passes_over or reservation_left_ms(lock) > 0 then
        return false
    end
    if lock.reservation_ms ~= RESERVATION_EXTENSION_MS then
        reserve_for(lock, lock.reserved_for, RESERVATION_EXTENSION_MS)
        return false
    end
    return true
end

-- The first waiter whose process is alive. Passes over processes that are gone or did not claim their reservation, in
-- bounded steps. If the bound ends the search, the result is a waiter before all others: sequence 0.
local function first_waiter(lock)
    local queue = queue_key(lock)
    for _ = 1, PASSED_OVER_MAX do
        local process = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
        if not process[1] then
            forget_queue(lock)
            return nil
        end
        local process_queue = process_queue_key(lock, process[1])
        local first = redis.call('ZRANGE', process_queue, 0, 0, 'WITHSCORES')
        if first[2] ~= process[2] then
            reindex(lock, process[1])
        elseif lock.reserved_for == process[1] and is_passed_over(lock) then
            redis.call('ZREM', queue, process[1])
            withdraw_reservation(lock)
        else
            local ticket = ticket_of(lock, first[1])
            if ticket and ticket.process == process[1] then
                return { process = process[1], sequence = tonumber(first[2]), limit = ticket.limit, permits = ticket.permits }
            end
            redis.call('ZREM', process_queue, first[1])
            reindex(lock, process[1])
        end
    end
    return { sequence = 0 }
end

-- Reserves the lock for the head waiter, once, if the lock admits it.
local function reserve(lock)
    if not lock.last then
        return
    end
    local first = first_waiter(lock)
    if not first or not first.process then
        return
    end
    -- A waiter with another limit than the holders' is notified too, so that it gives way to the next.
    local what = conflict(lock, first.limit, first.permits)
    if what and what ~= OTHER_LIMIT then
        -- The lock is taken, so an earlier reservation is void.
        if lock.reserved_for then
            withdraw_reservation(lock)
        end
        return
    end
    if lock.reserved_for == first.process then
        return
    end
    reserve_for(lock, first.process, RESERVATION_MS)
    local _, name = split_key(lock)
    -- Without the right to the channel, the waiter learns it at its next poll.
    redis.pcall('PUBLISH', WAKE_CHANNEL .. first.process, name)
end

-- Removes a claim from the waiters of a process and returns whether it was there. A reservation of the process is for
-- its first waiter, and ends with it.
local function leave(lock, process, claim)
    local process_queue = process_queue_key(lock, process)
    if lock.reserved_for == process and redis.call('ZRANGE', process_queue, 0, 0)[1] == claim then
        withdraw_reservation(lock)
    end
    if redis.call('ZREM', process_queue, claim) == 0 then
        return false
    end
    reindex(lock, process)
    return true
end

-- Removes a claim from the waiters of another process. Its process is notified: otherwise the request there would learn
-- only at its turn that the claim has ended, or that its place is to be taken back. A message of the channel is the name
-- of a reserved lock, or a zero byte, a claim and its lock.
local function leave_elsewhere(lock, process, claim)
    if leave(lock, process, claim) then
        local _, name = split_key(lock)
        redis.pcall('PUBLISH', WAKE_CHANNEL .. process, '\0' .. claim .. name)
    end
end
