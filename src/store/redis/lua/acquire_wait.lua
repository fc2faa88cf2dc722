-- Part of acquire.lua: enqueues a claim that waits, or keeps it queued, and answers a claim that is refused.

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
