-- Included by scripts that look at queues or change them: the queue of a lock, the tickets of its waiters, and
-- reservations.
--
-- The waiters of each process are in a set of that process, ordered by their sequence numbers. The queue is the set of
-- processes, each scored by the sequence number of its first waiter; an outdated score is corrected when it is found. A
-- dead process shows by not claiming its reservation: then it is passed over, with all of its waiters. Its silence
-- alone proves nothing, because the store may have been unavailable itself; silence only lets the set expire in the
-- end.
-- A ticket is what is known of a claim while it waits and for a while after: sequence number, limit (- for an exclusive
-- claim), permits, how many locks the claim has or, if they are in several partitions of a cluster, a larger number that
-- identifies them, the process where it waits or waited, the earliest time (us) at which
-- the client can have made the request there, owner.
-- The lock itself has the last sequence number given, as long as there may be waiters; and while it is reserved for a
-- process, that process, the end (ms) of the reservation, and its length. These are the fields w, p, v and g of its hash,
-- or options of its record: last, reserved_for, reservation_until_ms and reservation_ms.
-- A reservation that is found expired is extended once.

-- include: holders

local function queue_key(lock)
    local slot, name = split_key(lock)
    return slot .. 'q:' .. name
end

local function process_queue_key(lock, process)
    local slot, name = split_key(lock)
    return slot .. 'w:' .. process .. ':' .. name
end

local function ticket_key(lock, claim)
    return split_key(lock) .. 't:' .. claim
end

-- Writes the queue of a lock into its record, if it has one; its hash changes by fields. The record is kept as long as
-- before, unless this says how long.
local function save_in_record(lock, kept_ms)
    local lease = lock.lease
    if not lease then
        return false
    end
    local options, is_reserved = lease.options, lock.reserved_for
    options.last, options.reserved_for = lock.last or nil, is_reserved or nil
    options.reservation_until_ms = is_reserved and lock.reservation_until_ms or nil
    options.reservation_ms = is_reserved and lock.reservation_ms or nil
    rewrite_lease(lease, kept_ms)
    return true
end

local function withdraw_reservation(lock)
    lock.reserved_for = nil
    if not save_in_record(lock) then
        redis.call('HDEL', lock.key, 'p', 'v', 'g')
    end
end

-- Reserves the lock for a process.
local function reserve_for(lock, process, lasts_ms)
    lock.reserved_for, lock.reservation_until_ms, lock.reservation_ms = process, now_ms + lasts_ms, lasts_ms
    if not save_in_record(lock) then
        redis.call('HSET', lock.key, 'p', process, 'v', lock.reservation_until_ms, 'g', lasts_ms)
    end
end

-- Notes that no claim waits for the lock.
local function forget_queue(lock)
    lock.last, lock.reserved_for = nil, nil
    if not save_in_record(lock) then
        redis.call('HDEL', lock.key, 'w', 'p', 'v', 'g')
    end
end

-- What a ticket says; nothing if there is none.
local function parse_ticket(ticket)
    if not ticket then
        return nil
    end
    local sequence, limit, permits, count, process, asked_us, owner =
        string.match(ticket, '^(%d+) (%S+) (%d+) (%d+) (%x+) (%d+) (.*)$')
    return {
        sequence = tonumber(sequence), limit = limit == '-' and '' or limit, permits = tonumber(permits),
        count = tonumber(count), process = process, asked_us = tonumber(asked_us), owner = owner,
    }
end

local function ticket_of(lock, claim)
    return parse_ticket(redis.call('GET', ticket_key(lock, claim)))
end

-- Whether a request was surely made before the one whose process has the ticket, or a later one of that process.
-- A time in the future was noted before the clock was set back, and proves nothing.
local function is_outdated(ticket, asked_latest_us)
    return ticket.asked_us <= now_us and asked_latest_us < ticket.asked_us
end

-- The length of the queue, and how many waiters are before a sequence number.
local function lengths(lock, sequence)
    local length, before = 0, 0
    for _, process in ipairs(redis.call('ZRANGE', queue_key(lock), 0, -1)) do
        local process_queue = process_queue_key(lock, process)
        length = length + redis.call('ZCARD', process_queue)
        if sequence then
            before = before + redis.call('ZCOUNT', process_queue, '-inf', string.format('(%.0f', sequence))
        end
    end
    return length, before
end

-- A conflict: the number of the lock, its queue length, and its state. If the lock would admit the claim, earlier
-- waiters are in its way.
local function describe_conflict(lock, number, admits)
    return { number, lock.last and lengths(lock) or 0, admits and { FREE } or state(lock) }
end

-- The public view of a lock: its state, its queue length, then of the head waiter: sequence, limit, permits, owner.
local function view(lock)
    if not lock.last then
        return { state(lock), 0 }
    end
    local answer = { state(lock), (lengths(lock)) }
    for _, process in ipairs(redis.call('ZRANGE', queue_key(lock), 0, -1)) do
        local first = redis.call('ZRANGE', process_queue_key(lock, process), 0, 0)
        local ticket = first[1] and ticket_of(lock, first[1])
        if ticket then
            for _, field in ipairs({ string.format('%.0f', ticket.sequence), ticket.limit, ticket.permits, ticket.owner }) do
                answer[#answer + 1] = field
            end
            break
        end
    end
    return answer
end

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
