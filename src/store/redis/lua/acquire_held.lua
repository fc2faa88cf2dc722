-- Part of acquire.lua: reads the locks, and answers a claim that has ended, or that holds all of its locks.
local locks, count = {}, #KEYS / 4
share_answer_room(count)
local wait
if queue_request ~= '' then
    wait = {}
    wait.process, wait.keep_ms, wait.liveness_ms, wait.wait_ms, wait.waiters_max, wait.wants_position, wait.is_head, wait.takes_over, wait.asked_earliest_us, wait.asked_latest_us, wait.sequence, wait.until_ms =
        string.match(queue_request, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d) (%d) (%d) (%d+) (%d+) (%d*) (%d*)$')
end

-- Whether the claim has a place on exactly these locks: then it has the same sequence number on all of them.
local function is_queued()
    local sequence
    for number = 1, count do
        local ticket = ticket_of(read(KEYS[number * 4 - 3]), claim_on(number))
        if not ticket or ticket.count ~= total or sequence and sequence ~= ticket.sequence then
            return false
        end
        sequence = ticket.sequence
    end
    return true
end

-- An answer that ends the claim's wait, wherever it is queued. A claim on other locks with the same token waits on.
local function end_wait(...)
    local leaves = wait and (wait.sequence ~= '' or is_queued())
    for number = 1, leaves and count or 0 do
        local lock = locks[number] or read(KEYS[number * 4 - 3])
        if lock.last and leave(lock, wait.process, claim_on(number)) then
            reserve(lock)
        end
    end
    return { attempt, ... }
end

-- How many of the locks the claim holds, and whether another attempt has received all of these leases.
local held, was_acknowledged = 0, true
for number = 1, count do
    local lock = read(KEYS[number * 4 - 3])
    lock.passes_over = may_grant == '1' or may_grant == '3'
    lock.fence, lock.ended = KEYS[number * 4 - 2], KEYS[number * 4 - 1]
    lock.claim, lock.last_fence_seen = claim_on(number), ARGV[2 + number * 2]
    locks[number] = lock
    local how
    lock.held, how = lease_of(lock, lock.claim)
    if how == MARK_EXPIRED then
        return end_wait(ENDED, number, how)
    end
    -- In one command, because a claim may be on many locks.
    local mark
    mark, lock.ticket, lock.counter = unpack(call('MGET', lock.ended, KEYS[number * 4], lock.fence))
    lock.ticket = parse_ticket(lock.ticket)
    local lease = lock.held
    if lease and lease.attempt == attempt and string.sub(lease.options.turns or attempt, 1, 8) == attempt then
        -- The first answer to this same attempt was lost; repeat it.
        held, was_acknowledged = held + 1, false
    else
        local has_ended = how_ended(mark)
        if has_ended then
            return end_wait(ENDED, number, has_ended)
        elseif mark and string.find(mark, attempt, 2, true) then
            return { attempt, WITHDRAWN }
        end
        held = held + (lease and 1 or 0)
    end
end

-- Replays the lease to the attempt: from now on only this attempt may roll it back. A late repeat of an attempt that
-- already had the lease changes nothing.
local function pass_rollback_right(lease)
    local options = lease.options
    local turns = options.turns
    if turns and string.find(turns, attempt, 1, true) then
        return
    end
    if lease.attempt == NO_ATTEMPT then
        turns = (turns or '') .. NO_ATTEMPT
    end
    turns = (turns or lease.attempt) .. attempt
    if #turns > 8 * TURNS_MAX then
        turns = string.sub(turns, 1, 8) .. string.sub(turns, 8 - 8 * TURNS_MAX)
    end
    lease.attempt, options.turns = attempt, turns
    if takes_over == '1' then
        options.is_of_stream = true
    end
end

-- Why the claim does not get the leases that it holds; nothing if it does.
local function replay_refusal()
    for number, lock in ipairs(locks) do
        local options = lock.held.options
        local has_limit, has_permits = options.limit or '', options.permits or '1'
        if was_acknowledged and (has_limit ~= limit or has_permits ~= permits) then
            return { attempt, has_limit ~= '' and limit == '' and HOLDS_SHARED or CLAIM_MISMATCH, number }
        end
        -- The lease would end with the stream of another attempt, or would not end with the stream of this one.
        local is_of_streams = takes_over == '1' or options.is_of_stream
        if is_of_streams and wait and wait.takes_over == '0' and lock.held.attempt ~= attempt then
            return { attempt, SUPERSEDED }
        end
        if is_closed_to(lock.held, attempt) then
            return { attempt, OVER_QUOTA, UNCOUNTED_MS - math.max(now_ms - lock.held.acquired_ms, 0) }
        end
    end
end

-- Replays one lease, which may raise its hold count. Returns whether it has a higher one by this attempt.
local function replay_lease(lease)
    local options = lease.options
    pass_rollback_right(lease)
    -- Or the first answer to this same attempt was lost.
    local is_reentered = options.reentered == attempt
    local was_done = is_done(lease, attempt)
    if not is_reentered and not was_done and tonumber(hold_count) > (options.hold_count or 1) then
        options.hold_count, options.reentered = tonumber(hold_count), attempt
        is_reentered = true
    end
    if is_repeat and not was_done then
        note_repeat(lease, attempt)
    end
    rewrite_lease(lease)
    return is_reentered
end

-- The answer to a grant that was lost, or a replay.
local function replay()
    local answer = { attempt, was_acknowledged and REPLAYED or GRANTED, now_ms }
    answer[4] = was_acknowledged and 0 or nil
    for _, lock in ipairs(locks) do
        local lease = lock.held
        if was_acknowledged then
            if replay_lease(lease) then
                answer[2] = REENTERED
            end
            answer[4] = math.max(answer[4], closed_until(lease) - now_ms)
            answer[#answer + 1], answer[#answer + 2] = hold_options(lease), lease_fields(lease)
        else
            for _, field in ipairs({ lease.fence, lease.acquired_ms, lease.until_ms, '' }) do
                answer[#answer + 1] = field
            end
        end
    end
    return answer
end
if held == count then
    return replay_refusal() or is_asked and { attempt, HOLDS, was_acknowledged and 1 or 0 } or replay()
end
