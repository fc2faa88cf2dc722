-- Included by scripts that look at queues: the queue of a lock, and the tickets of its waiters.
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

-- include: state

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
