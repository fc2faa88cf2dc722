-- Continues acquire_options.lua where its fast path ends: reads the locks, and answers a claim that has ended.
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
        if not ticket or ticket.count ~= count or sequence and sequence ~= ticket.sequence then
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
    lock.passes_over = may_grant == '1'
    lock.fence, lock.ended = KEYS[number * 4 - 2], KEYS[number * 4 - 1]
    lock.claim, lock.last_fence_seen = claim_on(number), ARGV[2 + number * 2]
    locks[number] = lock
    local how
    if lock.holder == lock.claim or lock.limit then
        lock.record, how = record_of(lock, lock.claim)
    end
    if how == MARK_EXPIRED and not lock.record then
        return end_wait(ENDED, number, how)
    end
    local may_undo
    if lock.record then
        may_undo, lock.turns, lock.is_of_stream, lock.repeated, lock.min_hold_ms, lock.lock_delay_ms =
            unpack(call('HMGET', lock.record, 'r', 'j', 'b', 'z', 'i', 'd'))
    end
    if may_undo == attempt and string.sub(lock.turns or attempt, 1, 8) == attempt then
        -- The first answer to this same attempt was lost; repeat it.
        held, was_acknowledged = held + 1, false
    else
        local mark = call('GET', lock.ended)
        local has_ended = how_ended(mark)
        if has_ended then
            return end_wait(ENDED, number, has_ended)
        elseif mark and string.find(mark, attempt, 2, true) then
            return { attempt, WITHDRAWN }
        end
        held = held + (lock.record and 1 or 0)
    end
end
