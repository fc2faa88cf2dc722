-- Continues acquire_options.lua where its fast path ends.
local locks, count = {}, #KEYS / 4
share_answer_room(count)
local wait
if queue_request ~= '' then
    wait = {}
    wait.process, wait.keep_ms, wait.liveness_ms, wait.wait_ms, wait.waiters_max, wait.wants_position, wait.is_head, wait.takes_over, wait.sequence, wait.until_ms =
        string.match(queue_request, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d) (%d) (%d) (%d*) (%d*)$')
end

-- The process asks, so its waiters go on standing there.
local function is_alive(lock)
    redis.call('PEXPIRE', process_queue_key(lock, wait.process), wait.liveness_ms)
    redis.call('PEXPIRE', queue_key(lock), math.max(TOMBSTONE_MS, tonumber(wait.liveness_ms)))
end

-- An answer after which the claim waits no more, wherever it stood.
local function for_good(...)
    for number = 1, wait and count or 0 do
        local lock = locks[number] or read(KEYS[number * 4 - 3], now_ms)
        if lock.last and leave(lock, wait.process, claim_on(number)) then
            reserve(lock, now_ms)
        end
    end
    return { attempt, ... }
end

-- First come the answers that depend on what the claim is already.
local held, was_acknowledged = 0, true
for number = 1, count do
    local lock = read(KEYS[number * 4 - 3], now_ms)
    lock.passes_over = may_grant == '1'
    lock.fence, lock.ended = KEYS[number * 4 - 2], KEYS[number * 4 - 1]
    lock.claim, lock.last_fence_seen = claim_on(number), ARGV[2 + number * 2]
    locks[number] = lock
    local how
    if lock.holder == lock.claim or lock.limit then
        lock.record, how = record_of(lock, lock.claim, now_ms)
    end
    if how == EXPIRED and not lock.record then
        return for_good(6, number, how)
    end
    local may_undo
    if lock.record then
        may_undo, lock.turns, lock.repeated, lock.min_hold_ms, lock.lock_delay_ms =
            unpack(redis.call('HMGET', lock.record, 'r', 'j', 'z', 'i', 'd'))
    end
    if may_undo == attempt and string.sub(lock.turns or attempt, 1, 8) == attempt then
        -- The first answer to this very attempt was lost on its way: it is still the answer.
        held, was_acknowledged = held + 1, false
    else
        local mark = redis.call('GET', lock.ended)
        local has_ended = how_ended(mark)
        if has_ended then
            return for_good(6, number, has_ended)
        elseif mark and string.find(mark, attempt, 2, true) then
            return { attempt, 10 }
        end
        held = held + (lock.record and 1 or 0)
    end
end

-- The attempt is told of a lease: from now on it may roll the lease back if it takes over, else nobody may. A late repeat
-- of an attempt that has had its turn changes nothing.
local function pass_rollback_right(lock)
    local turns = lock.turns
    if turns and string.find(turns, attempt, 1, true) then
        return
    end
    local before = redis.call('HGET', lock.record, 'r')
    -- HDEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    redis.call('HDEL', lock.record, 'r')
    if takes_over == '1' then
        turns = (turns or before or NOBODY) .. attempt
        if #turns > 8 * TURNS_MAX then
            turns = string.sub(turns, 1, 8) .. string.sub(turns, 17)
        end
        redis.call('HSET', lock.record, 'r', attempt, 'j', turns)
    end
end

if held == count then
    for number, lock in ipairs(locks) do
        lock.lease = lease_in(lock.record)
        local has_limit, has_permits = lock.lease[8] or '', lock.lease[9] or '1'
        if was_acknowledged and (has_limit ~= limit or has_permits ~= permits) then
            return { attempt, has_limit ~= '' and limit == '' and 12 or 11, number }
        end
        local has_had_turn = lock.turns and string.find(lock.turns, attempt, 1, true)
        local is_of_streams = takes_over == '1' or lock.turns
        if was_acknowledged and is_of_streams and wait and wait.takes_over == '0' and not has_had_turn then
            return { attempt, 17 }
        end
    end
    local answer = { attempt, was_acknowledged and 3 or 1, now_ms }
    answer[4] = was_acknowledged and 0 or nil
    for _, lock in ipairs(locks) do
        if not was_acknowledged then
            for _, field in ipairs({ lock.lease[1], lock.lease[2], lock.lease[3], '' }) do
                answer[#answer + 1] = field
            end
        else
            pass_rollback_right(lock)
            local was_done = is_done(lock.repeated, attempt)
            if not was_done and tonumber(hold_count) > tonumber(lock.lease[5] or 1) then
                redis.call('HSET', lock.record, 'n', hold_count)
                answer[2], lock.lease[5] = 2, hold_count
            end
            if is_repeat and not was_done then
                note_repeat(lock.record, lock.repeated, attempt)
            end
            local open_ms = closed_until(lock.lease[2], lock.lease[3], lock.min_hold_ms, lock.lock_delay_ms)
            answer[4] = math.max(answer[4], open_ms - now_ms)
            answer[#answer + 1] = lock.lease
        end
    end
    return answer
end

-- The tickets of the claim: it stands, or stood, in the queues of all of its locks or of none.
local sequence = wait and tonumber(wait.sequence)
local is_new, tickets = not sequence, 0
for number, lock in ipairs(locks) do
    if held > 0 and not lock.record then
        return { attempt, 11, number }
    end
    lock.ticket = ticket_of(lock, lock.claim)
    if lock.ticket then
        if lock.ticket.limit ~= limit or lock.ticket.permits ~= tonumber(permits) or lock.ticket.count ~= count then
            return { attempt, 11, number }
        end
        -- A try that was late: its client has asked elsewhere since, and waits there.
        if wait and wait.sequence == '' and stood_before(lock.ticket, attempt) then
            return { attempt, 17 }
        end
        sequence, is_new, tickets = sequence or lock.ticket.sequence, false, tickets + 1
    end
end
for number, lock in ipairs(locks) do
    if tickets > 0 and not lock.ticket and not (wait and wait.sequence ~= '') then
        return { attempt, 11, number }
    end
end
local first_block, recheck_in_ms = nil, nil
if wait and wait.until_ms ~= '' and now_ms > tonumber(wait.until_ms) then
    -- It must not be granted any more, but it may stand there: the clock may have been set forward.
    return { attempt, 15 }
end
if wait and wait.sequence ~= '' then
    -- The client has asked elsewhere since, and waits there: this request must not take the place back.
    for _, lock in ipairs(locks) do
        local process = lock.ticket and lock.ticket.process
        if process and process ~= wait.process and redis.call('ZSCORE', process_queue_key(lock, process), lock.claim) then
            return { attempt, 17 }
        end
    end
    -- Nobody waits at this process before this claim, so whoever stands there was left behind by a request that is over.
    if wait.is_head == '1' and count == 1 and locks[1].last then
        local lock = locks[1]
        if redis.call('ZREMRANGEBYSCORE', process_queue_key(lock, wait.process), '-inf', '(' .. wait.sequence) > 0 then
            reindex(lock, wait.process)
        end
    end
end
for number, lock in ipairs(locks) do
    if lock.limit then
        expire_holders(lock, now_us, now_ms, channel)
    end
    local what, left_ms = conflict(lock, limit, tonumber(permits), now_ms)
    if what == 'l' then
        return for_good(13, number, lock.limit)
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
            what, left_ms = 'w', lock.reserved_for and math.max(reservation_left_ms(lock, now_ms), 1)
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

-- A claim that waits comes to stand, or goes on standing.
if wait and (first_block or may_grant == '0') then
    if is_new then
        sequence = now_us
        for number, lock in ipairs(locks) do
            local length = lock.last and lengths(lock) or 0
            if length >= tonumber(wait.waiters_max) then
                return { attempt, 14, number, length }
            end
            -- After a loss those who waited come back to their places. A clock that was set back may be behind these; the
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
            leave(lock, lock.ticket.process, lock.claim)
        end
        local attempts = attempts_with(lock.ticket, attempt)
        redis.call('SET', ticket_key(lock, lock.claim), string.format('%s %s %s %s %s %s %s',
            sequence_text, limit == '' and '-' or limit, permits, count, wait.process, attempts, owner), 'PX', wait.keep_ms)
        if redis.call('ZADD', line, sequence_text, lock.claim) == 1 and wait.sequence ~= '' and not is_elsewhere then
            was_lost = 1
        end
        reindex(lock, wait.process)
        -- Last, because only what exists can expire.
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
            -- It waits for another lock meanwhile; this one is kept for it.
            keep_for(lock, wait.process, wait.liveness_ms - OUTAGE_MS, now_ms)
        elseif may_grant ~= '0' then
            reserve(lock, now_ms)
        end
    end
    return { attempt, 5, sequence_text, until_ms, recheck_in_ms or '', position, length, was_lost }
end

if first_block then
    local answer = { attempt, 4, now_ms }
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
    return { attempt, 7 }
end

-- Fencing tokens for all locks before anything is written; locks of one bucket share a counter.
local counters = {}
for _, lock in ipairs(locks) do
    local last = counters[lock.fence] or redis.call('GET', lock.fence)
    if not counters[lock.fence] and is_lost(last, lock.last_fence_seen) then
        return { attempt, 8 }
    end
    lock.granted = math.max(math.abs(last) + 1, now_us)
    if lock.granted > FENCE_MAX then
        return { attempt, 9 }
    end
    counters[lock.fence] = lock.granted
end
-- A number becomes text by an explicit format: every other way loses the last digits. These are also the first writes:
-- when memory is full they fail before anything is done.
for fence, granted in pairs(counters) do
    redis.call('SET', fence, string.format('%.0f', granted))
end

local answer = { attempt, 1, now_ms }
for _, lock in ipairs(locks) do
    local granted_text = string.format('%.0f', lock.granted)
    local held_before_ms = ''
    if lock.holder then
        held_before_ms = math.max(lock.until_ms - lock.acquired_ms, 0)
        local remembered_ms = lock.until_ms + TOMBSTONE_MS - now_ms
        if remembered_ms > 0 then
            local before = lock.compact and { lock.attempt, false, lock.compact[1] } or redis.call('HMGET', lock.key, 'r', 'j', 'f')
            mark_run_out(lock, lock.holder, LOST, unacknowledged_attempt(before[1], before[2]), before[3], 0, remembered_ms)
        end
        if channel ~= '' then
            to_hash(lock)
        end
        if channel ~= '' and redis.call('HEXISTS', lock.key, 'y') == 0 then
            publish_event(channel, now_us, 'expired', lock, lock.key)
        end
    end
    if lock.ticket then
        redis.call('DEL', ticket_key(lock, lock.claim))
        leave(lock, lock.ticket.process, lock.claim)
    end
    if lock.last then
        if wait then
            is_alive(lock)
        end
        if redis.call('EXISTS', queue_key(lock)) == 0 then
            redis.call('HDEL', lock.key, 'w', 'p', 'v', 'g')
            lock.last = nil
        end
    end
    if (lock.holder or lock.open_ms or lock.last) and not lock.limit then
        delete_lease(lock)
    end

    local fields, until_ms, kept_ms = new_lease(lock.claim, granted_text)
    local record = lock.key
    if limit ~= '' then
        for _, field in ipairs({ 's', limit, 'k', permits }) do
            fields[#fields + 1] = field
        end
        record = holder_key(lock, lock.claim)
        share(lock, lock.claim, limit, permits, until_ms, kept_ms, now_ms)
    end
    redis.call('HSET', record, unpack(fields))
    redis.call('PEXPIRE', record, kept_ms)
    publish_event(channel, now_us, 'acquired', lock, record)
    if limit ~= '' then
        reserve(lock, now_ms)
    end
    for _, field in ipairs({ granted_text, now_ms, until_ms, held_before_ms }) do
        answer[#answer + 1] = field
    end
end
return answer
