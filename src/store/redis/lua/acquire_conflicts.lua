-- Part of acquire.lua: the tickets of a claim that does not hold, and what is in its way.

-- Whether the claim of the lock's ticket waits at another process that is not passed over.
local function waits_elsewhere(lock, process)
    local other = lock.ticket.process
    if other == process or not redis.call('ZSCORE', process_queue_key(lock, other), lock.claim) then
        return false
    end
    if lock.reserved_for == other then
        -- No other request may poll that finds it gone.
        first_waiter(lock)
    end
    return redis.call('ZSCORE', queue_key(lock), other)
end

-- The tickets of the claim: it has one on each of its locks, or none at all, and all have the same sequence number. Other
-- tickets are of other claims with the same token, and the answer names the first lock that has one.
local sequence = wait and tonumber(wait.sequence)
local is_new, tickets, waited_for, ticket_sequence = not sequence or enters_queue == '1', 0, nil, nil
for number, lock in ipairs(locks) do
    if held > 0 and not lock.held then
        return { attempt, CLAIM_MISMATCH, number }
    end
    local ticket = lock.ticket
    if ticket then
        waited_for, ticket_sequence = waited_for or number, ticket_sequence or ticket.sequence
        if ticket.limit ~= limit or ticket.permits ~= tonumber(permits) or ticket.count ~= total or ticket.sequence ~= ticket_sequence then
            return { attempt, CLAIM_MISMATCH, waited_for }
        end
        sequence, is_new, tickets = sequence or ticket.sequence, false, tickets + 1
    end
end
if tickets > 0 and tickets < count and not (wait and wait.sequence ~= '') then
    return { attempt, CLAIM_MISMATCH, waited_for }
end
local first_block, recheck_in_ms = nil, nil
if wait and wait.until_ms ~= '' and now_ms > tonumber(wait.until_ms) then
    -- It must not be granted any more, but keeps its place: the clock may have been set forward.
    return { attempt, WAIT_EXPIRED }
end
for _, lock in ipairs(wait and locks or {}) do
    -- The client has retried elsewhere and waits there: this request must not take the place back, and neither may a
    -- first try that arrives late.
    local is_former = wait.sequence ~= '' or lock.ticket and is_outdated(lock.ticket, tonumber(wait.asked_latest_us))
    if lock.ticket and is_former and waits_elsewhere(lock, wait.process) then
        return { attempt, SUPERSEDED }
    end
end
-- A claim that has its place keeps it when memory is full, and is granted at its turn: a later one might be otherwise. ZREM of
-- nothing first: it is allowed then, and a script that has written may keep writing.
if not is_new then
    call('ZREM', queue_key(locks[1]), '')
end
-- This process has no waiter before this claim, so any entry before it is left over from a request that has ended.
if wait and wait.sequence ~= '' and wait.is_head == '1' and count == 1 and locks[1].last then
    local lock = locks[1]
    if call('ZREMRANGEBYSCORE', process_queue_key(lock, wait.process), '-inf', '(' .. wait.sequence) > 0 then
        reindex(lock, wait.process)
    end
end
for number, lock in ipairs(locks) do
    if lock.limit and expire_holders(lock, channel) then
        return { attempt, HOLDERS_EXPIRED }
    end
    local what, left_ms = conflict(lock, limit, tonumber(permits))
    if what == OTHER_LIMIT then
        return end_wait(LIMIT_MISMATCH, number, lock.limit)
    end
    lock.admits, lock.is_first = not what, true
    if lock.admits and lock.last then
        if wait and lock.reserved_for == wait.process and reservation_left_ms(lock) <= 0 then
            -- The process was slow, not dead.
            withdraw_reservation(lock)
            reindex(lock, wait.process)
        end
        local first = first_waiter(lock)
        lock.is_first = not first or sequence and first.sequence >= sequence
        if is_fair == '1' and not lock.is_first then
            what, left_ms = WAITED_FOR, lock.passes_over and lock.reserved_for and math.max(reservation_left_ms(lock), 1)
        end
    end
    if what then
        first_block = first_block or number
        lock.is_blocking = true
        if left_ms then
            recheck_in_ms = math.min(recheck_in_ms or left_ms, left_ms)
        end
    end
end
