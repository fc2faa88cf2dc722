-- Ends a claim on each of its locks, or lowers its hold count; a waiting claim leaves the queues.
-- KEYS: for each lock: lock_key, ended
-- ARGV: for each lock: caller with process and database, at the end: hold_count, channel, not_after, rollback_right, is_repeat
-- Returns: request, now_ms, and for each lock a code and more: 1 freed: ms that it was held, 1 if a stream held it or
--   has held it, else 0, and the fencing token of the lease; 2 stepped back: ms that the lock stays taken or closed
--   without further operations, the lease; 3 left the queue; 0 not the holder: mark; or request and now_us alone if a
--   step back came too late, and nothing was done.
--   The fast path packs its answer: code 1, or 4 if the lock is reserved for the calling process, which gets no other
--   notification; ms that it was held; the fencing token as the record has it
-- include: clock

-- Fast path: the claim holds the lock exclusively and by no stream, no process wants events, and nothing closes the
-- lock. A caller is the request (8 bytes), the claim (16) and here the process (16) and the number of the database;
-- record.lua describes the record, and its end.
local record = #KEYS == 2 and #ARGV == 1 and call('MGET', KEYS[1])[1]
local fence, until_ms = 0, 0
if record and string.sub(record, 10, 25) == string.sub(ARGV[1], 9, 24) then
    fence, until_ms = struct.unpack('>I7I6', record, #record - 12)
end
if until_ms > now_ms then
    local lock_key, caller = KEYS[1], ARGV[1]
    local acquired_ms, options = (fence - fence % 1000) / 1000, nil
    if string.sub(record, 9, 9) == WITH_OPTIONS then
        local _, packed = cmsgpack.unpack(string.sub(record, 32, -14))
        options, acquired_ms = packed, packed.acquired_ms or acquired_ms
    end
    -- The clock may have been set back since the grant.
    local held = now_ms > acquired_ms and struct.pack('>I6', now_ms - acquired_ms) or NO_TIME
    held = held .. string.sub(record, -13, -7)
    if not options then
        -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
        call('DEL', lock_key)
        call('SET', KEYS[2], MARK_RELEASED, 'PX', TOMBSTONE_MS_TEXT)
        return string.sub(caller, 1, 8) .. FREED_TEXT .. held
    end
    local is_released = now_ms >= acquired_ms and not (options.min_hold_ms or options.is_of_stream)
    local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
    local last, process = options.last, nil
    if is_released and last then
        -- queue.lua describes the queue. The lock is reserved for the head waiter, as long as nothing in the queue
        -- needs repair.
        local head = call('ZRANGE', slot .. 'q:' .. name, 0, 0, 'WITHSCORES')
        process = head[1]
        local first = process and call('ZRANGE', slot .. 'w:' .. process .. ':' .. name, 0, 0, 'WITHSCORES') or {}
        -- With a key that never exists, because the slot may be moving: see lease.lua.
        local ticket = first[1] and first[2] == head[2] and redis.pcall('MGET', slot .. 't:' .. first[1], slot .. 'x')[1]
        is_released = ticket and string.match(ticket, '^%d+ %S+ %d+ %d+ (%x+) ') == process
    end
    if is_released then
        call('DEL', lock_key)
        call('SET', KEYS[2], MARK_RELEASED, 'PX', TOMBSTONE_MS_TEXT)
        if process then
            call('HSET', lock_key, 'w', last, 'p', process, 'v', now_ms + RESERVATION_MS, 'g', RESERVATION_MS_TEXT)
            call('PEXPIRE', lock_key, TOMBSTONE_MS_TEXT)
        end
        if process == string.sub(caller, 25, 40) then
            return string.sub(caller, 1, 8) .. FREED_FOR_CALLER_TEXT .. held
        elseif process then
            -- Without the right to the channel, the lock is released all the same.
            redis.pcall('PUBLISH', WAKE_CHANNEL .. process, name)
        end
        return string.sub(caller, 1, 8) .. FREED_TEXT .. held
    end
end

-- include: primary reservation
local function caller(number, from, to)
    return string.sub(ARGV[number], from, to)
end
local request = caller(1, 1, 8)
local hold_count, channel, not_after, rollback_right, is_repeat = unpack(ARGV, #KEYS / 2 + 1)
hold_count, channel = hold_count or '', channel or ''
-- The client has got an unknown outcome, and may have re-entered since.
if not_after and now_us > tonumber(not_after) then
    return { request, now_us }
end

local function free(lock, ended)
    local lease = lock.held
    local options = lease.options
    local is_of_stream = options.is_of_stream and 1 or 0
    -- Both count from the grant, which lies in the future if the clock was set back since.
    local held_ms = math.max(now_ms - lease.acquired_ms, 0)
    local open_ms = now_ms + (options.min_hold_ms or 0) - held_ms
    publish_event(channel, 'released', lock, lease)
    end_lease(lock, lease, open_ms)
    redis.call('SET', ended, MARK_RELEASED, 'PX', TOMBSTONE_MS)
    if is_of_stream == 1 then
        -- The stream learns it at once. Without the right to channels, it learns it at its next renewal.
        local _, name = split_key(lock)
        redis.pcall('PUBLISH', RELEASES_CHANNEL .. caller(1, 41, -1), lease.claim .. name)
    end
    reserve(lock)
    return { FREED, held_ms, is_of_stream, lease.fence }
end

local function step_back(lock)
    local lease = lock.held
    local options = lease.options
    local was_done = is_done(lease, request)
    -- As in renew.lua.
    if rollback_right == '' or rollback_right == 'y' and not is_undecided(lease) then
        lease.attempt = NO_ATTEMPT
    end
    local depth = tonumber(hold_count)
    if not was_done and depth < (options.hold_count or 1) then
        options.hold_count = depth > 1 and depth or nil
    end
    if is_repeat and not was_done then
        note_repeat(lease, request)
    end
    rewrite_lease(lease)
    return { STEPPED_BACK, closed_until(lease) - now_ms, lease_fields(lease) }
end

local function leave_queue(lock, ended, ticket)
    redis.call('DEL', ticket_key(lock, lock.claim))
    redis.call('SET', ended, MARK_RELEASED, 'PX', TOMBSTONE_MS)
    leave_elsewhere(lock, ticket.process, lock.claim)
    reserve(lock)
    return { LEFT_QUEUE }
end

local answer, has_written = { request, now_ms }, false
for number = 1, #KEYS / 2 do
    local lock, ended = read(KEYS[number * 2 - 1]), KEYS[number * 2]
    lock.claim = caller(number, 9, 24)
    local how
    lock.held, how = lease_of(lock, lock.claim)
    local came_to
    if lock.held then
        came_to = hold_count == '' and free(lock, ended) or step_back(lock)
    else
        local mark = why_not(how, ended)
        local ticket = mark == MARK_UNKNOWN and ticket_of(lock, lock.claim)
        came_to = ticket and leave_queue(lock, ended, ticket) or { NOT_HELD, mark }
    end
    answer[#answer + 1] = came_to
    has_written = has_written or came_to[1] ~= NOT_HELD
end
if not has_written then require_primary({ key = KEYS[1] }) end
return answer
