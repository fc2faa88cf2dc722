-- Ends a claim on each of its locks, or lowers its hold count; a waiting claim leaves the queues.
-- KEYS: for each lock: lock_key, ended
-- ARGV: for each lock: caller with process and database, at the end: hold_count, channel, not_after, is_repeat
-- Returns: request, now_ms, and for each lock a code and more: 1 freed: ms that it was held, and 1 if a stream held it
--   or has held it, else 0; 2 stepped back: ms that the lock stays taken or closed without further operations, the
--   lease; 3 left the queue; 0 not the holder: mark; or request and now_us alone if a step back came too late, and
--   nothing was done.
--   The fast path packs its answer: code 1, or 4 if the lock is reserved for the calling process, which gets no other
--   notification; ms that it was held

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
            -- ticket.lua describes the queue. The lock is reserved for the head waiter, as long as nothing in the queue
            -- needs repair.
            local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
            local head = call('ZRANGE', slot .. 'q:' .. name, 0, 0, 'WITHSCORES')
            local process = head[1]
            local first = process and call('ZRANGE', slot .. 'w:' .. process .. ':' .. name, 0, 0, 'WITHSCORES') or {}
            local ticket = first[1] and first[2] == head[2] and call('GET', slot .. 't:' .. first[1])
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
