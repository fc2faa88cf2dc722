-- Ends a claim on each of its locks, or lowers its hold count; a waiting claim leaves the queues.
-- KEYS: for each lock: lock_key, ended
-- ARGV: for each lock: caller with process and database, at the end: hold_count, channel, not_after, is_repeat
-- Returns: request, now_ms, and for each lock a code and more: 1 freed: ms that it was held, and 1 if a stream held it
--   or has held it, else 0; 2 stepped back: ms that the lock stays taken or closed without further operations, the
--   lease; 3 left the queue; 0 not the holder: mark; or request and now_us alone if a step back came too late, and
--   nothing was done.
--   The fast path packs its answer: code 1, or 4 if the lock is reserved for the calling process, which gets no other
--   notification; ms that it was held
-- include: clock

-- Fast path: the claim holds the lock exclusively and by no stream, no process wants events, and nothing closes the
-- lock. A caller is the request (8 bytes), the claim (16) and here the process (16) and the number of the database;
-- lease.lua describes the compact record.
if #KEYS == 2 and #ARGV == 1 then
    local lock_key, caller = KEYS[1], ARGV[1]
    local record = call('MGET', lock_key)[1]
    if record and string.sub(record, 10, 25) == string.sub(caller, 9, 24) then
        local granted_us, until_ms = struct.unpack('>I8I6', record, #record - 13)
        if until_ms > now_ms then
            -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
            call('DEL', lock_key)
            call('SET', KEYS[2], MARK_RELEASED, 'PX', TOMBSTONE_MS_TEXT)
            -- The clock may have been set back since the grant.
            local held_ms = now_ms - (granted_us - granted_us % 1000) / 1000
            return string.sub(caller, 1, 8) .. FREED_TEXT .. struct.pack('>I6', held_ms > 0 and held_ms or 0)
        end
    elseif not record then
        -- MGET returns nil for a hash.
        record = call('HMGET', lock_key, 'h', 'u', 'a', 'i', 'w', 'b')
        local is_held = record[1] == string.sub(caller, 9, 24) and tonumber(record[2]) > now_ms and not record[4]
            and now_ms >= tonumber(record[3]) and not record[6]
        local request, held = string.sub(caller, 1, 8), is_held and struct.pack('>I6', now_ms - record[3])
        local last = record[5]
        if is_held and not last then
            call('DEL', lock_key)
            call('SET', KEYS[2], MARK_RELEASED, 'PX', TOMBSTONE_MS_TEXT)
            return request .. FREED_TEXT .. held
        elseif is_held then
            -- queue.lua describes the queue. The lock is reserved for the head waiter, as long as nothing in the queue
            -- needs repair.
            local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
            local head = call('ZRANGE', slot .. 'q:' .. name, 0, 0, 'WITHSCORES')
            local process = head[1]
            local first = process and call('ZRANGE', slot .. 'w:' .. process .. ':' .. name, 0, 0, 'WITHSCORES') or {}
            -- With a key that never exists, because the slot may be moving: see lease.lua.
            local ticket = first[1] and first[2] == head[2] and redis.pcall('MGET', slot .. 't:' .. first[1], slot .. 'x')[1]
            if ticket and string.match(ticket, '^%d+ %S+ %d+ %d+ (%x+) ') == process then
                call('DEL', lock_key)
                call('SET', KEYS[2], MARK_RELEASED, 'PX', TOMBSTONE_MS_TEXT)
                call('HSET', lock_key, 'w', last, 'p', process, 'v', now_ms + RESERVATION_MS, 'g', RESERVATION_MS_TEXT)
                call('PEXPIRE', lock_key, TOMBSTONE_MS_TEXT)
                if process == string.sub(caller, 25, 40) then
                    return request .. FREED_FOR_CALLER_TEXT .. held
                end
                -- Without the right to the channel, the lock is released all the same.
                redis.pcall('PUBLISH', WAKE_CHANNEL .. process, name)
                return request .. FREED_TEXT .. held
            end
        end
    end
end

-- include: reservation
local function caller(number, from, to)
    return string.sub(ARGV[number], from, to)
end
local request = caller(1, 1, 8)
local hold_count, channel, not_after, is_repeat = unpack(ARGV, #KEYS / 2 + 1)
hold_count, channel = hold_count or '', channel or ''
-- The client has got an unknown outcome, and may have re-entered since.
if not_after and now_us > tonumber(not_after) then
    return { request, now_us }
end

local function free(lock, ended)
    local lease = redis.call('HMGET', lock.record, 'a', 'i', 'k', 'f', 'b')
    local is_of_stream = lease[5] and 1 or 0
    local acquired_ms = tonumber(lease[1])
    -- Both count from the grant, which lies in the future if the clock was set back since.
    local held_ms = math.max(now_ms - acquired_ms, 0)
    local open_ms = now_ms + (tonumber(lease[2]) or 0) - held_ms
    publish_event(channel, 'released', lock, lock.record)
    -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
    if lock.record == lock.key then
        delete_lease(lock)
        start_cooldown(lock, open_ms)
    else
        redis.call('DEL', lock.record)
        return_permits(lock, lock.claim .. lease[3], open_ms, lease[4])
        end_sharing_if_empty(lock)
    end
    redis.call('SET', ended, MARK_RELEASED, 'PX', TOMBSTONE_MS)
    if is_of_stream == 1 then
        -- The stream learns it at once. Without the right to channels, it learns it at its next renewal.
        local _, name = split_key(lock)
        redis.pcall('PUBLISH', RELEASES_CHANNEL .. caller(1, 41, -1), lock.claim .. name)
    end
    reserve(lock)
    return { FREED, held_ms, is_of_stream }
end

local function step_back(lock)
    redis.call('HDEL', lock.record, 'r')
    local record = redis.call('HMGET', lock.record, 'n', 'z', 'a', 'u', 'i', 'd')
    local was_done = is_done(record[2], request)
    if not was_done and tonumber(hold_count) < tonumber(record[1] or 1) then
        redis.call('HSET', lock.record, 'n', hold_count)
    end
    if is_repeat and not was_done then
        note_repeat(lock.record, record[2], request)
    end
    return { STEPPED_BACK, closed_until(record[3], record[4], record[5], record[6]) - now_ms, lease_in(lock.record) }
end

local function leave_queue(lock, ended, ticket)
    redis.call('DEL', ticket_key(lock, lock.claim))
    redis.call('SET', ended, MARK_RELEASED, 'PX', TOMBSTONE_MS)
    leave_elsewhere(lock, ticket.process, lock.claim)
    reserve(lock)
    return { LEFT_QUEUE }
end

local answer = { request, now_ms }
for number = 1, #KEYS / 2 do
    local lock, ended = read(KEYS[number * 2 - 1]), KEYS[number * 2]
    lock.claim = caller(number, 9, 24)
    local how
    lock.record, how = record_of(lock, lock.claim)
    local came_to
    if lock.record then
        came_to = hold_count == '' and free(lock, ended) or step_back(lock)
    else
        local mark = why_not(how, ended)
        local ticket = mark == MARK_UNKNOWN and ticket_of(lock, lock.claim)
        came_to = ticket and leave_queue(lock, ended, ticket) or { NOT_HELD, mark }
    end
    answer[#answer + 1] = came_to
end
return answer
