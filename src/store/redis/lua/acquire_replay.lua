-- Continues acquire_held.lua: the answer to a claim that holds all of its locks.

-- Replays the lease to the attempt: from now on only this attempt may roll it back. A late repeat of an attempt that
-- already had the lease changes nothing.
local function pass_rollback_right(lock)
    local turns = lock.turns
    if turns and string.find(turns, attempt, 1, true) then
        return
    end
    local before = redis.call('HGET', lock.record, 'r')
    -- HDEL first: it is allowed when memory is full, and a script that has written may keep writing.
    redis.call('HDEL', lock.record, 'r')
    turns = before and (turns or before) or (turns or '') .. NO_ATTEMPT
    turns = turns .. attempt
    if #turns > 8 * TURNS_MAX then
        turns = string.sub(turns, 1, 8) .. string.sub(turns, 8 - 8 * TURNS_MAX)
    end
    redis.call('HSET', lock.record, 'r', attempt, 'j', turns)
    if takes_over == '1' then
        redis.call('HSET', lock.record, 'b', '1')
    end
end

if held == count then
    for number, lock in ipairs(locks) do
        lock.lease = lease_in(lock.record)
        local has_limit, has_permits = lock.lease[8] or '', lock.lease[9] or '1'
        if was_acknowledged and (has_limit ~= limit or has_permits ~= permits) then
            return { attempt, has_limit ~= '' and limit == '' and HOLDS_SHARED or CLAIM_MISMATCH, number }
        end
        local has_had_turn = lock.turns and string.find(lock.turns, attempt, 1, true)
        local is_of_streams = takes_over == '1' or lock.is_of_stream
        if was_acknowledged and is_of_streams and wait and wait.takes_over == '0' and not has_had_turn then
            return { attempt, SUPERSEDED }
        end
    end
    local answer = { attempt, was_acknowledged and REPLAYED or GRANTED, now_ms }
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
                call('HSET', lock.record, 'n', hold_count)
                answer[2], lock.lease[5] = REENTERED, hold_count
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
