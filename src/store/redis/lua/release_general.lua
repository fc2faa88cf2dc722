-- Continues release.lua where its fast path ends.
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
