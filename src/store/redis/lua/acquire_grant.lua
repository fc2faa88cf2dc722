-- Part of acquire.lua: the grant to a claim without a conflict.

-- Fencing tokens for all locks before anything is written; locks of one bucket share a counter.
local counters = {}
for _, lock in ipairs(locks) do
    local counter, why = counters[lock.fence] or call('GET', lock.fence), nil
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
    if lock.holder then
        held_before_ms = math.max(lock.until_ms - lock.acquired_ms, 0)
        local remembered_ms = lock.until_ms + TOMBSTONE_MS - now_ms
        if remembered_ms > 0 then
            local before = lock.compact and { lock.attempt, false, lock.compact[1] } or call('HMGET', lock.key, 'r', 'j', 'f')
            mark_expired(lock, lock.holder, MARK_LOST, unacknowledged_attempt(before[1], before[2]), before[3], 0, remembered_ms)
        end
        if channel ~= '' then
            to_hash(lock)
            if call('HEXISTS', lock.key, 'y') == 0 then
                publish_event(channel, 'expired', lock, lock.key)
            end
        end
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
            call('HDEL', lock.key, 'w', 'p', 'v', 'g')
            lock.last = nil
        end
    end
    if (lock.holder or lock.open_ms or lock.last) and not lock.limit then
        delete_lease(lock)
    end

    local fields, until_ms, kept_ms = new_lease(lock.claim, lock.granted_text)
    local record = lock.key
    if limit ~= '' then
        for _, field in ipairs({ 's', limit, 'k', permits }) do
            fields[#fields + 1] = field
        end
        record = holder_key(lock, lock.claim)
        share(lock, lock.claim, limit, permits, until_ms, kept_ms)
    end
    call('HSET', record, unpack(fields))
    call('PEXPIRE', record, kept_ms)
    publish_event(channel, 'acquired', lock, record)
    if limit ~= '' then
        reserve(lock)
    end
    for _, field in ipairs({ lock.granted_text, now_ms, until_ms, held_before_ms }) do
        answer[#answer + 1] = field
    end
end
return answer
