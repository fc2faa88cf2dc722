-- Continues acquire_any.lua with a claim that does not hold: its conflicts and its place in the queues.
-- The tickets of the claim: it has one on each of its locks, or none at all.
local sequence = wait and tonumber(wait.sequence)
local is_new, tickets = not sequence, 0
for number, lock in ipairs(locks) do
    if held > 0 and not lock.record then
        return { attempt, CLAIM_MISMATCH, number }
    end
    lock.ticket = ticket_of(lock, lock.claim)
    if lock.ticket then
        if lock.ticket.limit ~= limit or lock.ticket.permits ~= tonumber(permits) or lock.ticket.count ~= count then
            return { attempt, CLAIM_MISMATCH, number }
        end
        sequence, is_new, tickets = sequence or lock.ticket.sequence, false, tickets + 1
    end
end
for number, lock in ipairs(locks) do
    if tickets > 0 and not lock.ticket and not (wait and wait.sequence ~= '') then
        return { attempt, CLAIM_MISMATCH, number }
    end
end
local first_block, recheck_in_ms = nil, nil
if wait and wait.until_ms ~= '' and now_ms > tonumber(wait.until_ms) then
    -- It must not be granted any more, but keeps its place: the clock may have been set forward.
    return { attempt, WAIT_EXPIRED }
end
for _, lock in ipairs(wait and locks or {}) do
    -- The client has retried elsewhere and waits there: this request must not take the place back, and neither may a
    -- first try that arrives late.
    local is_former = wait.sequence ~= '' or lock.ticket and is_outdated(lock.ticket, tonumber(wait.asked_latest_us), now_us)
    if lock.ticket and is_former and waits_elsewhere(lock, wait.process, now_ms) then
        return { attempt, SUPERSEDED }
    end
end
-- This process has no waiter before this claim, so any entry before it is left over from a request that has ended.
if wait and wait.sequence ~= '' and wait.is_head == '1' and count == 1 and locks[1].last then
    local lock = locks[1]
    if redis.call('ZREMRANGEBYSCORE', process_queue_key(lock, wait.process), '-inf', '(' .. wait.sequence) > 0 then
        reindex(lock, wait.process)
    end
end
for number, lock in ipairs(locks) do
    if lock.limit then
        expire_holders(lock, now_us, now_ms, channel)
    end
    local what, left_ms = conflict(lock, limit, tonumber(permits), now_ms)
    if what == OTHER_LIMIT then
        return for_good(LIMIT_MISMATCH, number, lock.limit)
    end
    lock.admits, lock.is_first = not what, true
    if lock.admits and lock.last then
        if wait and lock.reserved_for == wait.process and reservation_left_ms(lock, now_ms) <= 0 then
            -- The process was slow, not dead.
            withdraw_reservation(lock)
            reindex(lock, wait.process)
        end
        local first = first_waiter(lock, now_ms)
        lock.is_first = not first or sequence and first.sequence >= sequence
        if is_fair == '1' and not lock.is_first then
            what, left_ms = WAITED_FOR, lock.reserved_for and math.max(reservation_left_ms(lock, now_ms), 1)
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

-- Enqueue the waiting claim, or keep it queued.
if wait and (first_block or may_grant == '0') then
    if is_new then
        sequence = now_us
        for number, lock in ipairs(locks) do
            local length = lock.last and lengths(lock) or 0
            if length >= tonumber(wait.waiters_max) then
                return { attempt, TOO_MANY_WAITERS, number, length }
            end
            -- After a loss, earlier waiters return to their places. A clock that was set back may be behind these; the
            -- counter is not.
            local counter = redis.call('GET', lock.fence) or 0
            sequence = math.max(sequence, (tonumber(lock.last) or 0) + 1, math.abs(counter))
        end
    end
    local sequence_text = string.format('%.0f', sequence)
    local until_ms = tonumber(wait.until_ms) or now_ms + wait.wait_ms
    local position, length, was_lost = '', 0, 0
    for _, lock in ipairs(locks) do
        local line = process_queue_key(lock, wait.process)
        local is_elsewhere = lock.ticket and lock.ticket.process ~= wait.process
        if is_elsewhere then
            leave_elsewhere(lock, lock.ticket.process, lock.claim)
        end
        local asked_us = wait.asked_earliest_us
        if lock.ticket and not is_elsewhere and is_outdated(lock.ticket, tonumber(asked_us), now_us) then
            -- A later request of this process waits, too.
            asked_us = string.format('%.0f', lock.ticket.asked_us)
        end
        redis.call('SET', ticket_key(lock, lock.claim), string.format('%s %s %s %s %s %s %s',
            sequence_text, limit == '' and '-' or limit, permits, count, wait.process, asked_us, owner), 'PX', wait.keep_ms)
        if redis.call('ZADD', line, sequence_text, lock.claim) == 1 and wait.sequence ~= '' and not is_elsewhere then
            was_lost = 1
        end
        reindex(lock, wait.process)
        -- Last, because only an existing key can expire.
        is_alive(lock)
        if not lock.last or tonumber(lock.last) < sequence then
            to_hash(lock)
            lock.last = sequence_text
            redis.call('HSET', lock.key, 'w', sequence_text)
        end
        extend_ttl(lock.key, TOMBSTONE_MS)
        if is_new then
            publish_event(channel, now_us, 'queued', lock, nil, owner)
        end
        if wait.wants_position == '1' then
            local all, before = lengths(lock, sequence)
            if position == '' or before + 1 > position then
                position, length = before + 1, all
            end
        end
        if lock.admits and lock.is_first and first_block then
            -- It waits for another lock meanwhile; keep this one for it.
            keep_for(lock, wait.process, wait.liveness_ms - OUTAGE_MS, now_ms)
        elseif may_grant ~= '0' then
            reserve(lock, now_ms)
        end
    end
    return { attempt, WAITING, sequence_text, until_ms, recheck_in_ms or '', position, length, was_lost }
end

if first_block then
    local answer = { attempt, BLOCKED, now_ms }
    for number, lock in ipairs(locks) do
        if lock.is_blocking then
            if lock.admits then
                reserve(lock, now_ms)
            end
            answer[#answer + 1] = describe_conflict(lock, number, lock.admits, now_ms)
        end
    end
    return answer
end
if may_grant == '0' then
    return { attempt, RECOVERING }
end
