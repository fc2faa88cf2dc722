-- Part of acquire.lua: the grant to a claim without a conflict.

-- Fencing tokens for all locks before anything is written; locks of one bucket share a counter.
local counters = {}
for _, lock in ipairs(locks) do
    local counter, why = counters[lock.fence] or lock.counter, nil
    lock.granted_text, why = next_fence(counter, lock.last_fence_seen)
    if not lock.granted_text then
        return { attempt, why }
    end
    counters[lock.fence] = lock.granted_text
end
-- The first writes: when memory is full, they fail before anything is done.
for fence, granted_text in pairs(counters) do
    call('SET', fence, granted_text)
end

local answer = { attempt, GRANTED, now_ms }
for _, lock in ipairs(locks) do
    local held_before_ms = ''
    local expired = lock.lease
    if expired then
        held_before_ms = math.max(expired.until_ms - expired.acquired_ms, 0)
        mark_expired(lock, expired, MARK_LOST)
        publish_expired(channel, lock, expired)
    end
    if lock.ticket then
        call('DEL', ticket_key(lock, lock.claim))
        local remove = wait and wait.process == lock.ticket.process and leave or leave_elsewhere
        remove(lock, lock.ticket.process, lock.claim)
    end
    if lock.last then
        if wait then
            keep_alive(lock)
        end
        if call('EXISTS', queue_key(lock)) == 0 then
            forget_queue(lock)
        end
    end

    local lease = new_lease(lock.key, lock.claim, lock.granted_text)
    if limit == '' then
        lease.options.last = lock.last or nil
        write_lease(lease, keep_ms(lease))
        lock.lease = lease
    else
        if not lock.limit and (expired or lock.open_ms or lock.last) then
            delete_lease(lock)
        end
        share(lock, lease, limit, permits)
    end
    publish_event(channel, 'acquired', lock, lease)
    if limit ~= '' then
        reserve(lock)
    end
    for _, field in ipairs({ lock.granted_text, now_ms, lease.until_ms, held_before_ms }) do
        answer[#answer + 1] = field
    end
end
return answer
