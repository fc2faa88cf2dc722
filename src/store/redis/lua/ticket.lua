-- Included after state.lua: the queue of a lock, and the tickets of those who stand there.
--
-- The waiters of each process stand in a set of that process, ordered by their sequence numbers. The queue is the set of
-- processes, each scored by the sequence number of its first waiter; a score may be out of date and is put right when it is
-- met. A dead process is noticed by its not taking what it is offered: then it is passed over, with all of its waiters. Its
-- silence alone proves nothing, because the store may have been away itself; it only ends the set in the end.
-- A ticket is what is known of a waiting claim while it stands and for a while after: sequence number, limit (- for a
-- claim that wants to be alone), permits, on how many locks the claim is, the process where it stands or stood, the attempts that stood there, owner.
-- The lock itself has w, the last sequence number given, as long as somebody may be waiting; and while it is offered to
-- a process, p the process, v the moment (ms) until which it is kept for it, and g for how long it was to be kept then.
-- An offer that is found to be over is kept for a last call first: had the store or the whole machine stood still, the
-- process could not take it, and its request may be the next that is executed.

local RESERVATION_MS, LAST_CALL_MS = 700, 300
-- How much longer than it takes a process to ask again its set lives: so long may the store be away.
local OUTAGE_MS = 6000
-- How many processes and waiters that are gone one script passes over.
local PASSED_OVER_MAX = 16

-- Of how many requests a ticket knows that they stood there one after the other.
local ATTEMPTS_MAX = 4

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
    local attempts = to_hex(attempt)
    for before in string.gmatch(string.sub(ticket.attempts, 17), string.rep('%x', 16)) do
        if before == attempts then
            return true
        end
    end
    return false
end
