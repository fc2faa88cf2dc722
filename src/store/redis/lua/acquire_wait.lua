-- Part of acquire.lua: the tickets of a claim that does not hold, and what is in its way. It enqueues a claim that waits,
-- or keeps it queued, and answers a claim that is refused.

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
-- This process has no waiter before this claim, so any entry before it is left over from a request that has ended.
if wait and wait.sequence ~= '' and wait.is_head == '1' and count == 1 and locks[1].last then
    local lock = locks[1]
    if call('ZREMRANGEBYSCORE', process_queue_key(lock, wait.process), '-inf', '(' .. wait.sequence) > 0 then
        reindex(lock, wait.process)
    end
end
for number, lock in ipairs(locks) do
    if lock.limit then
        expire_holders(lock, channel)
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
            what, left_ms = WAITED_FOR, lock.reserved_for and math.max(reservation_left_ms(lock), 1)
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

-- The process polls, so its set of waiters stays alive.
local function keep_alive(lock)
    redis.call('PEXPIRE', process_queue_key(lock, wait.process), wait.liveness_ms)
    redis.call('PEXPIRE', queue_key(lock), math.max(TOMBSTONE_MS, tonumber(wait.liveness_ms)))
end

-- Notes the last sequence number that was given, and keeps the lock at least as long as a tombstone.
local function note_last(lock, sequence_text)
    if lock.last and tonumber(lock.last) >= tonumber(sequence_text) then
        return extend_ttl(lock.key, TOMBSTONE_MS)
    end
    lock.last = sequence_text
    local lease = lock.lease
    if not save_in_record(lock, lease and math.max(keep_ms(lease), TOMBSTONE_MS)) then
        redis.call('HSET', lock.key, 'w', sequence_text)
        extend_ttl(lock.key, TOMBSTONE_MS)
    end
end

if wait and (first_block or may_grant == '0' or is_asked) then
    if is_new then
        local next_sequence = now_us
        for number, lock in ipairs(locks) do
            local length = lock.last and lengths(lock) or 0
            if length >= tonumber(wait.waiters_max) then
                return { attempt, TOO_MANY_WAITERS, number, length }
            end
            -- After a loss, earlier waiters return to their places. A clock that was set back may be behind these; the
            -- counter is not.
            next_sequence = math.max(next_sequence, (tonumber(lock.last) or 0) + 1, math.abs(lock.counter or 0))
        end
        sequence = sequence or next_sequence
    end
    local sequence_text = string.format('%.0f', sequence)
    local until_ms = tonumber(wait.until_ms) or now_ms + wait.wait_ms
    local position, length, was_lost = '', 0, 0
    local had_place = wait.sequence ~= '' and not is_new
    for _, lock in ipairs(locks) do
        local process_queue = process_queue_key(lock, wait.process)
        local is_elsewhere = lock.ticket and lock.ticket.process ~= wait.process
        if is_elsewhere then
            leave_elsewhere(lock, lock.ticket.process, lock.claim)
        end
        local asked_us = wait.asked_earliest_us
        if lock.ticket and not is_elsewhere and is_outdated(lock.ticket, tonumber(asked_us)) then
            -- A later request of this process waits, too.
            asked_us = string.format('%.0f', lock.ticket.asked_us)
        end
        call('SET', ticket_key(lock, lock.claim), string.format('%s %s %s %s %s %s %s',
            sequence_text, limit == '' and '-' or limit, permits, total, wait.process, asked_us, owner), 'PX', wait.keep_ms)
        if call('ZADD', process_queue, sequence_text, lock.claim) == 1 and had_place and not is_elsewhere then
            was_lost = 1
        end
        reindex(lock, wait.process)
        -- Last, because only an existing key can expire.
        keep_alive(lock)
        note_last(lock, sequence_text)
        if is_new then
            publish_event(channel, 'queued', lock, nil, owner)
        end
        if wait.wants_position == '1' then
            local all, before = lengths(lock, sequence)
            if position == '' or before + 1 > position then
                position, length = before + 1, all
            end
        end
        if lock.admits and lock.is_first and (first_block or is_asked) then
            -- It waits for another lock meanwhile; keep this one for it.
            reserve_for(lock, wait.process, wait.liveness_ms - OUTAGE_MS)
        -- A lock that is held exclusively admits nobody, so only polls look at its queue, to drop processes that are gone. It
        -- would take a fifth of the time of a new claim on many locks.
        elseif may_grant ~= '0' and (not is_new or lock.reserved_for or not is_held_exclusively(lock)) then
            reserve(lock)
        end
    end
    return { attempt, not first_block and is_asked and ADMITTED or WAITING, sequence_text, until_ms, recheck_in_ms or '', position, length, was_lost }
end

-- A claim that is asked about may have been granted these locks, and the data may be lost since. A grant would notice. The
-- claims in its way may have come after the loss.
if is_asked then
    for _, lock in ipairs(locks) do
        local _, why = next_fence(lock.counter, lock.last_fence_seen)
        if why then
            return { attempt, why }
        end
    end
end

-- What is in the way of a claim that does not wait.
local function describe_conflicts()
    local answer = { attempt, BLOCKED, now_ms }
    if is_asked then
        answer = { attempt, ASKED, ticket_sequence and string.format('%.0f', ticket_sequence) or '', now_ms }
    end
    for number, lock in ipairs(locks) do
        if lock.is_blocking then
            if lock.admits then
                reserve(lock)
            end
            answer[#answer + 1] = describe_conflict(lock, number, lock.admits)
        end
    end
    return answer
end

if first_block or is_asked then
    return describe_conflicts()
end
if may_grant == '0' then
    return { attempt, RECOVERING }
end
