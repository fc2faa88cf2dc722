-- Included after lease.lua: the queue of a lock.
--
-- The waiters of each process stand in a set of that process, ordered by their sequence numbers. The queue is the set of
-- processes, each scored by the sequence number of its first waiter; a score may be out of date and is put right when it is
-- met. A dead process is noticed by its not taking what it is offered: then it is passed over, with all of its waiters. Its
-- silence alone proves nothing, because the store may have been away itself; it only ends the set in the end.
-- A ticket is what is known of a waiting claim while it stands and for a while after: sequence number, limit (- for a
-- claim that wants to be alone), permits, on how many locks the claim is, the process where it stands or stood, owner.
-- The lock itself has w, the last sequence number given, as long as somebody may be waiting; and while it is offered to
-- a process, p the process, v the moment (ms) until which it is kept for it, and g for how long it was to be kept then.
-- An offer that is found to be over is kept for a last call first: had the store or the whole machine stood still, the
-- process could not take it, and its request may be the next that is executed.

local OFFER_MS, LAST_CALL_MS = 700, 300
-- How much longer than it takes a process to ask again its set lives: so long may the store be away.
local OUTAGE_MS = 6000
-- How many processes and waiters that are gone one script passes over.
local PASSED_OVER_MAX = 16

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

-- What a ticket says.
local function ticket_of(lock, claim)
    local ticket = redis.call('GET', ticket_key(lock, claim))
    if not ticket then
        return nil
    end
    local sequence, limit, permits, count, process, attempts, owner =
        string.match(ticket, '^(%d+) (%S+) (%d+) (%d+) (%x+) (%x+) (.*)$')
    return {
        sequence = tonumber(sequence), limit = limit == '-' and '' or limit, permits = tonumber(permits),
        count = tonumber(count), process = process, attempts = attempts, owner = owner,
    }
end

-- Of how many requests a ticket knows that they stood there one after the other.
local ATTEMPTS_MAX = 4

local function to_hex(attempt)
    return (string.gsub(attempt, '.', function(byte)
        return string.format('%02x', string.byte(byte))
    end))
end

-- The attempts that a ticket is written with: the one that stands there now, then those before it.
local function attempts_with(ticket, attempt)
    local attempts = to_hex(attempt)
    for before in string.gmatch(ticket and ticket.attempts or '', string.rep('%x', 16)) do
        if string.sub(attempts, 1, 16) ~= before and #attempts < 16 * ATTEMPTS_MAX then
            attempts = attempts .. before
        end
    end
    return attempts
end

-- Whether the attempt stood there before another one of the same claim came.
local function stood_before(ticket, attempt)
    for before in string.gmatch(string.sub(ticket.attempts, 17), string.rep('%x', 16)) do
        if before == to_hex(attempt) then
            return true
        end
    end
    return false
end

-- Puts right where a process stands in the queue.
local function reindex(lock, process)
    local first = redis.call('ZRANGE', process_queue_key(lock, process), 0, 0, 'WITHSCORES')
    if first[1] then
        redis.call('ZADD', queue_key(lock), first[2], process)
    else
        redis.call('ZREM', queue_key(lock), process)
    end
end

local function withdraw_reservation(lock)
    redis.call('HDEL', lock.key, 'p', 'v', 'g')
    lock.reserved_for = nil
end

-- Keeps the lock for a process.
local function keep_for(lock, process, lasts_ms, now_ms)
    lock.reserved_for, lock.reservation_until_ms, lock.reservation_ms = process, now_ms + lasts_ms, lasts_ms
    redis.call('HSET', lock.key, 'p', process, 'v', lock.reservation_until_ms, 'g', lasts_ms)
end

-- For how long the lock is still kept for the process that it is offered to; 0 or less if that is over. What was to be kept
-- for longer was offered before the clock was set back.
local function reservation_left_ms(lock, now_ms)
    local left_ms = lock.reservation_until_ms - now_ms
    local lasts_ms = lock.reservation_ms or OFFER_MS
    if left_ms > lasts_ms then
        keep_for(lock, lock.reserved_for, lasts_ms, now_ms)
        tell_of_step(now_ms)
        return lasts_ms
    end
    return left_ms
end

-- Whether the process that the lock is offered to is to be passed over. Only a script whose caller knows that the store was
-- not away of late decides that.
local function is_passed_over(lock, now_ms)
    if not lock.passes_over or reservation_left_ms(lock, now_ms) > 0 then
        return false
    end
    if lock.reservation_ms ~= LAST_CALL_MS then
        keep_for(lock, lock.reserved_for, LAST_CALL_MS, now_ms)
        return false
    end
    return true
end

-- The first waiter whose process is alive. Passes over processes that are gone or did not take what they were offered,
-- in bounded steps. Without an end of the queue in sight, somebody is still taken to be before everybody: sequence 0.
local function first_waiter(lock, now_ms)
    local queue = queue_key(lock)
    for _ = 1, PASSED_OVER_MAX do
        local process = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
        if not process[1] then
            redis.call('HDEL', lock.key, 'w', 'p', 'v', 'g')
            lock.last, lock.reserved_for = nil, nil
            return nil
        end
        local line = process_queue_key(lock, process[1])
        local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
        if first[2] ~= process[2] then
            reindex(lock, process[1])
        elseif lock.reserved_for == process[1] and is_passed_over(lock, now_ms) then
            redis.call('ZREM', queue, process[1])
            withdraw_reservation(lock)
        else
            local ticket = ticket_of(lock, first[1])
            if ticket and ticket.process == process[1] then
                return { process = process[1], sequence = tonumber(first[2]), limit = ticket.limit, permits = ticket.permits }
            end
            redis.call('ZREM', line, first[1])
            reindex(lock, process[1])
        end
    end
    return { sequence = 0 }
end

-- Offers the lock to the first waiter if the lock admits it, once.
local function reserve(lock, now_ms)
    if not lock.last then
        return
    end
    local first = first_waiter(lock, now_ms)
    if not first or not first.process then
        return
    end
    -- One with another limit than the holders' is to hear of it, so that it makes room for the next.
    local what = conflict(lock, first.limit, first.permits, now_ms)
    if what and what ~= 'l' then
        -- An earlier offer has come to nothing.
        if lock.reserved_for then
            withdraw_reservation(lock)
        end
        return
    end
    if lock.reserved_for == first.process then
        return
    end
    keep_for(lock, first.process, OFFER_MS, now_ms)
    local _, name = split_key(lock)
    -- Without the right to the channel, the waiter finds out when it looks again.
    redis.pcall('PUBLISH', 'lh:1:wake:' .. first.process, name)
end

-- How many wait, and how many of them before a sequence number.
local function lengths(lock, sequence)
    local length, before = 0, 0
    for _, process in ipairs(redis.call('ZRANGE', queue_key(lock), 0, -1)) do
        local line = process_queue_key(lock, process)
        length = length + redis.call('ZCARD', line)
        if sequence then
            before = before + redis.call('ZCOUNT', line, '-inf', string.format('(%.0f', sequence))
        end
    end
    return length, before
end

-- Takes a claim out of the waiters of a process. Says whether it was there. What the process was offered was offered to
-- the first of its waiters.
local function leave(lock, process, claim)
    local line = process_queue_key(lock, process)
    if lock.reserved_for == process and redis.call('ZRANGE', line, 0, 0)[1] == claim then
        withdraw_reservation(lock)
    end
    if redis.call('ZREM', line, claim) == 0 then
        return false
    end
    reindex(lock, process)
    return true
end

-- What is in the way of a claim: the lock by its number, how many wait for it, and what it is doing. If the lock would
-- admit the claim, those who came first are in its way.
local function describe_conflict(lock, number, admits, now_ms)
    return { number, lock.last and lengths(lock) or 0, admits and { 'f' } or state(lock, now_ms) }
end

-- A lock as everybody may see it: what it is doing, how many wait, then of the first: sequence, limit, permits, owner.
local function view(lock, now_ms)
    if not lock.last then
        return { state(lock, now_ms), 0 }
    end
    local answer = { state(lock, now_ms), (lengths(lock)) }
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
