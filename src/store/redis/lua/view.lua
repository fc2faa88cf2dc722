-- Included after queue.lua: the public view of a lock with its queue.

-- A conflict: the number of the lock, its queue length, and its state. If the lock would admit the claim, earlier
-- waiters are in its way.
local function describe_conflict(lock, number, admits)
    return { number, lock.last and lengths(lock) or 0, admits and { FREE } or state(lock) }
end

-- The public view of a lock: its state, its queue length, then of the head waiter: sequence, limit, permits, owner.
local function view(lock)
    if not lock.last then
        return { state(lock), 0 }
    end
    local answer = { state(lock), (lengths(lock)) }
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
