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

local function queue_key(it)
    local slot, name = parts(it)
    return slot .. 'q:' .. name
end

local function line_key(it, process)
    local slot, name = parts(it)
    return slot .. 'w:' .. process .. ':' .. name
end

local function ticket_key(it, claim)
    return parts(it) .. 't:' .. claim
end

-- What a ticket says.
local function ticket_of(it, claim)
    local ticket = redis.call('GET', ticket_key(it, claim))
    if not ticket then
        return nil
    end
    local sequence, limit, permits, count, process, owner = string.match(ticket, '^(%d+) (%S+) (%d+) (%d+) (%x+) (.*)$')
    return {
        sequence = tonumber(sequence), limit = limit == '-' and '' or limit, permits = tonumber(permits),
        count = tonumber(count), process = process, owner = owner,
    }
end

-- Puts right where a process stands in the queue.
local function reindex(it, process)
    local first = redis.call('ZRANGE', line_key(it, process), 0, 0, 'WITHSCORES')
    if first[1] then
        redis.call('ZADD', queue_key(it), first[2], process)
    else
        redis.call('ZREM', queue_key(it), process)
    end
end

local function withdraw_offer(it)
    redis.call('HDEL', it.key, 'p', 'v', 'g')
    it.offered = nil
end

-- Keeps the lock for a process.
local function keep_for(it, process, lasts_ms, now_ms)
    it.offered, it.offer_until_ms, it.offer_ms = process, now_ms + lasts_ms, lasts_ms
    redis.call('HSET', it.key, 'p', process, 'v', it.offer_until_ms, 'g', lasts_ms)
end

-- For how long the lock is still kept for the process that it is offered to; 0 or less if that is over. What was to be kept
-- for longer was offered before the clock was set back.
local function offer_left_ms(it, now_ms)
    local left_ms = it.offer_until_ms - now_ms
    local lasts_ms = it.offer_ms or OFFER_MS
    if left_ms > lasts_ms then
        keep_for(it, it.offered, lasts_ms, now_ms)
        tell_of_step(now_ms)
        return lasts_ms
    end
    return left_ms
end

-- Whether the process that the lock is offered to is to be passed over. Only a script whose caller knows that the store was
-- not away of late decides that.
local function is_passed_over(it, now_ms)
    if not it.passes_over or offer_left_ms(it, now_ms) > 0 then
        return false
    end
    if it.offer_ms ~= LAST_CALL_MS then
        keep_for(it, it.offered, LAST_CALL_MS, now_ms)
        return false
    end
    return true
end

-- The first waiter whose process is alive. Passes over processes that are gone or did not take what they were offered,
-- in bounded steps. Without an end of the queue in sight, somebody is still taken to be before everybody: sequence 0.
local function first_waiter(it, now_ms)
    local queue = queue_key(it)
    for _ = 1, PASSED_OVER_MAX do
        local process = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
        if not process[1] then
            redis.call('HDEL', it.key, 'w', 'p', 'v', 'g')
            it.last, it.offered = nil, nil
            return nil
        end
        local line = line_key(it, process[1])
        local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
        if first[2] ~= process[2] then
            reindex(it, process[1])
        elseif it.offered == process[1] and is_passed_over(it, now_ms) then
            redis.call('ZREM', queue, process[1])
            withdraw_offer(it)
        else
            local ticket = ticket_of(it, first[1])
            if ticket and ticket.process == process[1] then
                return { process = process[1], sequence = tonumber(first[2]), limit = ticket.limit, permits = ticket.permits }
            end
            redis.call('ZREM', line, first[1])
            reindex(it, process[1])
        end
    end
    return { sequence = 0 }
end

-- Offers the lock to the first waiter if the lock admits it, once.
local function offer(it, now_ms)
    if not it.last then
        return
    end
    local first = first_waiter(it, now_ms)
    if not first or not first.process then
        return
    end
    -- One with another limit than the holders' is to hear of it, so that it makes room for the next.
    local what = obstacle(it, first.limit, first.permits, now_ms)
    if what and what ~= 'l' then
        -- An earlier offer has come to nothing.
        if it.offered then
            withdraw_offer(it)
        end
        return
    end
    if it.offered == first.process then
        return
    end
    keep_for(it, first.process, OFFER_MS, now_ms)
    local _, name = parts(it)
    -- Without the right to the channel, the waiter finds out when it looks again.
    redis.pcall('PUBLISH', 'lh:1:wake:' .. first.process, name)
end

-- How many wait, and how many of them before a sequence number.
local function lengths(it, sequence)
    local length, before = 0, 0
    for _, process in ipairs(redis.call('ZRANGE', queue_key(it), 0, -1)) do
        local line = line_key(it, process)
        length = length + redis.call('ZCARD', line)
        if sequence then
            before = before + redis.call('ZCOUNT', line, '-inf', string.format('(%.0f', sequence))
        end
    end
    return length, before
end

-- Takes a claim out of the waiters of a process. Says whether it was there. What the process was offered was offered to
-- the first of its waiters.
local function leave(it, process, claim)
    local line = line_key(it, process)
    if it.offered == process and redis.call('ZRANGE', line, 0, 0)[1] == claim then
        withdraw_offer(it)
    end
    if redis.call('ZREM', line, claim) == 0 then
        return false
    end
    reindex(it, process)
    return true
end

-- What is in the way of a claim: the lock by its number, how many wait for it, and what it is doing. If the lock would
-- admit the claim, those who came first are in its way.
local function blockade(it, number, admits, now_ms)
    return { number, it.last and lengths(it) or 0, admits and { 'f' } or state(it, now_ms) }
end

-- A lock as everybody may see it: what it is doing, how many wait, then of the first: sequence, limit, permits, owner.
local function view(it, now_ms)
    if not it.last then
        return { state(it, now_ms), 0 }
    end
    local answer = { state(it, now_ms), (lengths(it)) }
    for _, process in ipairs(redis.call('ZRANGE', queue_key(it), 0, -1)) do
        local first = redis.call('ZRANGE', line_key(it, process), 0, 0)
        local ticket = first[1] and ticket_of(it, first[1])
        if ticket then
            for _, field in ipairs({ string.format('%.0f', ticket.sequence), ticket.limit, ticket.permits, ticket.owner }) do
                answer[#answer + 1] = field
            end
            break
        end
    end
    return answer
end
