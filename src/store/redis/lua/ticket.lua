-- Included after state.lua: the queue of a lock, and the tickets of its waiters.
--
-- The waiters of each process are in a set of that process, ordered by their sequence numbers. The queue is the set of
-- processes, each scored by the sequence number of its first waiter; an outdated score is corrected when it is found. A
-- dead process shows by not claiming its reservation: then it is passed over, with all of its waiters. Its silence
-- alone proves nothing, because the store may have been unavailable itself; silence only lets the set expire in the
-- end.
-- A ticket is what is known of a claim while it waits and for a while after: sequence number, limit (- for an exclusive
-- claim), permits, how many locks the claim has, the process where it waits or waited, the attempts that waited there,
-- owner.
-- The lock itself has w, the last sequence number given, as long as there may be waiters; and while it is reserved for
-- a process, p the process, v the end (ms) of the reservation, and g its length.
-- A reservation that is found expired gets a last call first: if the store or the whole machine stalled, the process
-- could not claim it, and its request may be the next to run.

local RESERVATION_MS, LAST_CALL_MS = 700, 300
-- How much longer the set of a process lives than the process may take to poll: the store may be unavailable that long.
local OUTAGE_MS = 6000
-- How many dead processes and departed waiters one script passes over.
local PASSED_OVER_MAX = 16

-- How many successive attempts a ticket remembers.
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

-- Reads a ticket.
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

-- The attempts to write into a ticket: the current one, then those before it.
local function attempts_with(ticket, attempt)
    local attempts = to_hex(attempt)
    for before in string.gmatch(ticket and ticket.attempts or '', string.rep('%x', 16)) do
        if string.sub(attempts, 1, 16) ~= before and #attempts < 16 * ATTEMPTS_MAX then
            attempts = attempts .. before
        end
    end
    return attempts
end

-- Whether another attempt of the same claim has replaced this one.
local function stood_before(ticket, attempt)
    local attempts = to_hex(attempt)
    for before in string.gmatch(string.sub(ticket.attempts, 17), string.rep('%x', 16)) do
        if before == attempts then
            return true
        end
    end
    return false
end
