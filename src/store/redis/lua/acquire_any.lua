-- Continues acquire_wishes.lua where its short way ends.
local locks, count = {}, #KEYS / 4
share_told(count)
local wait
if stand ~= '' then
    wait = {}
    wait.process, wait.keep_ms, wait.line_ms, wait.wait_ms, wait.waiters_max, wait.tells, wait.is_head, wait.takes_over, wait.sequence, wait.until_ms =
        string.match(stand, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d) (%d) (%d) (%d*) (%d*)$')
end

-- The process asks, so its waiters go on standing there.
local function is_alive(it)
    redis.call('PEXPIRE', line_key(it, wait.process), wait.line_ms)
    redis.call('PEXPIRE', queue_key(it), math.max(REMEMBERED_MS, tonumber(wait.line_ms)))
end

-- An answer after which the claim waits no more, wherever it stood.
local function for_good(...)
    for number = 1, wait and count or 0 do
        local it = locks[number] or read(KEYS[number * 4 - 3], now_ms)
        if it.last and leave(it, wait.process, claim_on(number)) then
            offer(it, now_ms)
        end
    end
    return { attempt, ... }
end

-- First come the answers that depend on what the claim is already.
local held, was_told = 0, true
for number = 1, count do
    local it = read(KEYS[number * 4 - 3], now_ms)
    it.passes_over = may_grant == '1'
    it.fence, it.ended = KEYS[number * 4 - 2], KEYS[number * 4 - 1]
    it.claim, it.last_fence_seen = claim_on(number), ARGV[2 + number * 2]
    locks[number] = it
    local how
    if it.holder == it.claim or it.limit then
        it.record, how = record_of(it, it.claim, now_ms)
    end
    if how == EXPIRED and not it.record then
        return for_good(6, number, how)
    end
    local may_undo
    if it.record then
        may_undo, it.turns, it.repeated, it.min_hold_ms, it.lock_delay_ms =
            unpack(redis.call('HMGET', it.record, 'r', 'j', 'z', 'i', 'd'))
    end
    if may_undo == attempt and string.sub(it.turns or attempt, 1, 8) == attempt then
        -- The first answer to this very attempt was lost on its way: it is still the answer.
        held, was_told = held + 1, false
    else
        local mark = redis.call('GET', it.ended)
        local has_ended = how_ended(mark)
        if has_ended then
            return for_good(6, number, has_ended)
        elseif mark and string.find(mark, attempt, 2, true) then
            return { attempt, 10 }
        end
        held = held + (it.record and 1 or 0)
    end
end

-- The attempt is told of a lease: from now on it may roll the lease back if it takes over, else nobody may. A late repeat
-- of an attempt that has had its turn changes nothing.
local function pass_rollback_right(it)
    local turns = it.turns
    if turns and string.find(turns, attempt, 1, true) then
        return
    end
    local before = redis.call('HGET', it.record, 'r')
    -- HDEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    redis.call('HDEL', it.record, 'r')
    if takes_over == '1' then
        turns = (turns or before or NOBODY) .. attempt
        if #turns > 8 * TURNS_MAX then
            turns = string.sub(turns, 1, 8) .. string.sub(turns, 17)
        end
        redis.call('HSET', it.record, 'r', attempt, 'j', turns)
    end
end

if held == count then
    for number, it in ipairs(locks) do
        it.lease = lease_in(it.record)
        local has_limit, has_permits = it.lease[8] or '', it.lease[9] or '1'
        if was_told and (has_limit ~= limit or has_permits ~= permits) then
            return { attempt, has_limit ~= '' and limit == '' and 12 or 11, number }
        end
        local has_had_turn = it.turns and string.find(it.turns, attempt, 1, true)
        local is_of_streams = takes_over == '1' or it.turns
        if was_told and is_of_streams and wait and wait.takes_over == '0' and not has_had_turn then
            return { attempt, 17 }
        end
    end
    local answer = { attempt, was_told and 3 or 1, now_ms }
    answer[4] = was_told and 0 or nil
    for _, it in ipairs(locks) do
        if not was_told then
            for _, field in ipairs({ it.lease[1], it.lease[2], it.lease[3], '' }) do
                answer[#answer + 1] = field
            end
        else
            pass_rollback_right(it)
            local was_done = is_done(it.repeated, attempt)
            if not was_done and tonumber(hold_count) > tonumber(it.lease[5] or 1) then
                redis.call('HSET', it.record, 'n', hold_count)
                answer[2], it.lease[5] = 2, hold_count
            end
            if is_repeat and not was_done then
                note_repeat(it.record, it.repeated, attempt)
            end
            local open_ms = closed_until(it.lease[2], it.lease[3], it.min_hold_ms, it.lock_delay_ms)
            answer[4] = math.max(answer[4], open_ms - now_ms)
            answer[#answer + 1] = it.lease
        end
    end
    return answer
end

-- The tickets of the claim: it stands, or stood, in the queues of all of its locks or of none.
local sequence = wait and tonumber(wait.sequence)
local is_new, tickets = not sequence, 0
for number, it in ipairs(locks) do
    if held > 0 and not it.record then
        return { attempt, 11, number }
    end
    it.ticket = ticket_of(it, it.claim)
    if it.ticket then
        if it.ticket.limit ~= limit or it.ticket.permits ~= tonumber(permits) or it.ticket.count ~= count then
            return { attempt, 11, number }
        end
        sequence, is_new, tickets = sequence or it.ticket.sequence, false, tickets + 1
    end
end
for number, it in ipairs(locks) do
    if tickets > 0 and not it.ticket and not (wait and wait.sequence ~= '') then
        return { attempt, 11, number }
    end
end
local first_block, look_in_ms = nil, nil
if wait and wait.until_ms ~= '' and now_ms > tonumber(wait.until_ms) then
    -- It must not be granted any more, but it may stand there: the clock may have been set forward.
    return { attempt, 15 }
end
if wait and wait.sequence ~= '' then
    -- The client has asked elsewhere since, and waits there: this request must not take the place back.
    for _, it in ipairs(locks) do
        local process = it.ticket and it.ticket.process
        if process and process ~= wait.process and redis.call('ZSCORE', line_key(it, process), it.claim) then
            return { attempt, 17 }
        end
    end
    -- Nobody waits at this process before this claim, so whoever stands there was left behind by a request that is over.
    if wait.is_head == '1' and count == 1 and locks[1].last then
        local it = locks[1]
        if redis.call('ZREMRANGEBYSCORE', line_key(it, wait.process), '-inf', '(' .. wait.sequence) > 0 then
            reindex(it, wait.process)
        end
    end
end
for number, it in ipairs(locks) do
    if it.limit then
        reap(it, now_us, now_ms, channel)
    end
    local what, left_ms = obstacle(it, limit, tonumber(permits), now_ms)
    if what == 'l' then
        return for_good(13, number, it.limit)
    end
    it.admits, it.is_first = not what, true
    if it.admits and it.last then
        if wait and it.offered == wait.process and offer_left_ms(it, now_ms) <= 0 then
            -- The process was slow, not dead.
            withdraw_offer(it)
            reindex(it, wait.process)
        end
        local first = first_waiter(it, now_ms)
        it.is_first = not first or sequence and first.sequence >= sequence
        if is_fair == '1' and not it.is_first then
            what, left_ms = 'w', it.offered and math.max(offer_left_ms(it, now_ms), 1)
        end
    end
    if what then
        first_block = first_block or number
        it.is_in_the_way = true
        if left_ms then
            look_in_ms = math.min(look_in_ms or left_ms, left_ms)
        end
    end
end

-- A claim that waits comes to stand, or goes on standing.
if wait and (first_block or may_grant == '0') then
    if is_new then
        sequence = now_us
        for number, it in ipairs(locks) do
            local length = it.last and lengths(it) or 0
            if length >= tonumber(wait.waiters_max) then
                return { attempt, 14, number, length }
            end
            -- After a loss those who waited come back to their places. A clock that was set back may be behind these; the
            -- counter is not.
            local counter = redis.call('GET', it.fence) or 0
            sequence = math.max(sequence, (tonumber(it.last) or 0) + 1, math.abs(counter))
        end
    end
    local sequence_text = string.format('%.0f', sequence)
    local until_ms = tonumber(wait.until_ms) or now_ms + wait.wait_ms
    local position, length, was_lost = '', 0, 0
    for _, it in ipairs(locks) do
        local line = line_key(it, wait.process)
        local is_elsewhere = it.ticket and it.ticket.process ~= wait.process
        if is_elsewhere then
            leave(it, it.ticket.process, it.claim)
        end
        redis.call('SET', ticket_key(it, it.claim), string.format('%s %s %s %s %s %s',
            sequence_text, limit == '' and '-' or limit, permits, count, wait.process, owner), 'PX', wait.keep_ms)
        if redis.call('ZADD', line, sequence_text, it.claim) == 1 and wait.sequence ~= '' and not is_elsewhere then
            was_lost = 1
        end
        reindex(it, wait.process)
        -- Last, because only what exists can expire.
        is_alive(it)
        if not it.last or tonumber(it.last) < sequence then
            spread(it)
            it.last = sequence_text
            redis.call('HSET', it.key, 'w', sequence_text)
        end
        live(it.key, REMEMBERED_MS)
        if is_new then
            tell(channel, now_us, 'queued', it, nil, owner)
        end
        if wait.tells == '1' then
            local all, before = lengths(it, sequence)
            if position == '' or before + 1 > position then
                position, length = before + 1, all
            end
        end
        if it.admits and it.is_first and first_block then
            -- It waits for another lock meanwhile; this one is kept for it.
            keep_for(it, wait.process, wait.line_ms - OUTAGE_MS, now_ms)
        elseif may_grant ~= '0' then
            offer(it, now_ms)
        end
    end
    return { attempt, 5, sequence_text, until_ms, look_in_ms or '', position, length, was_lost }
end

if first_block then
    local answer = { attempt, 4, now_ms }
    for number, it in ipairs(locks) do
        if it.is_in_the_way then
            if it.admits then
                offer(it, now_ms)
            end
            answer[#answer + 1] = blockade(it, number, it.admits, now_ms)
        end
    end
    return answer
end
if may_grant == '0' then
    return { attempt, 7 }
end

-- Fencing tokens for all locks before anything is written; locks of one bucket share a counter.
local counters = {}
for _, it in ipairs(locks) do
    local last = counters[it.fence] or redis.call('GET', it.fence)
    if not counters[it.fence] and is_lost(last, it.last_fence_seen) then
        return { attempt, 8 }
    end
    it.granted = math.max(math.abs(last) + 1, now_us)
    if it.granted > FENCE_MAX then
        return { attempt, 9 }
    end
    counters[it.fence] = it.granted
end
-- A number becomes text by an explicit format: every other way loses the last digits. These are also the first writes:
-- when memory is full they fail before anything is done.
for fence, granted in pairs(counters) do
    redis.call('SET', fence, string.format('%.0f', granted))
end

local answer = { attempt, 1, now_ms }
for _, it in ipairs(locks) do
    local granted_text = string.format('%.0f', it.granted)
    local held_before_ms = ''
    if it.holder then
        held_before_ms = math.max(it.until_ms - it.acquired_ms, 0)
        local remembered_ms = it.until_ms + REMEMBERED_MS - now_ms
        if remembered_ms > 0 then
            local before = it.compact and { it.attempt, false, it.compact[1] } or redis.call('HMGET', it.key, 'r', 'j', 'f')
            mark_run_out(it, it.holder, LOST, untold_attempt(before[1], before[2]), before[3], 0, remembered_ms)
        end
        if channel ~= '' then
            spread(it)
        end
        if channel ~= '' and redis.call('HEXISTS', it.key, 'y') == 0 then
            tell(channel, now_us, 'expired', it, it.key)
        end
    end
    if it.ticket then
        redis.call('DEL', ticket_key(it, it.claim))
        leave(it, it.ticket.process, it.claim)
    end
    if it.last then
        if wait then
            is_alive(it)
        end
        if redis.call('EXISTS', queue_key(it)) == 0 then
            redis.call('HDEL', it.key, 'w', 'p', 'v', 'g')
            it.last = nil
        end
    end
    if (it.holder or it.open_ms or it.last) and not it.limit then
        vacate(it)
    end

    local fields, until_ms, kept_ms = new_lease(it.claim, granted_text)
    local record = it.key
    if limit ~= '' then
        for _, field in ipairs({ 's', limit, 'k', permits }) do
            fields[#fields + 1] = field
        end
        record = holder_key(it, it.claim)
        share(it, it.claim, limit, permits, until_ms, kept_ms, now_ms)
    end
    redis.call('HSET', record, unpack(fields))
    redis.call('PEXPIRE', record, kept_ms)
    tell(channel, now_us, 'acquired', it, record)
    if limit ~= '' then
        offer(it, now_ms)
    end
    for _, field in ipairs({ granted_text, now_ms, until_ms, held_before_ms }) do
        answer[#answer + 1] = field
    end
end
return answer
