-- Takes a lock away from those who hold it, a bounded number at a time.
-- KEYS: lock, mark
-- ARGV: request, not_after, reason, cursor, evictions, channel, told_max
-- Returns: request, now_ms, the cursor of the next step or 0 if this was the last, how many were evicted, then the leases
--   of those that it tells of, at most told_max; or the request alone if it came too late, and nothing was done
local lock, mark = KEYS[1], KEYS[2]
local request, not_after, reason, cursor, evictions, channel, told_max =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

-- About so many: a small set comes whole, and a step may find a few more.
local EVICTED_AT_ONCE = 100

-- A request may be sent again because its first answer was lost, and the first try may arrive after the answer to the
-- second. Only one of them evicts; the others get its answer. One that comes after its client was answered does nothing.
local before = redis.call('GET', mark)
if before then
    return cmsgpack.unpack(before)
end
local now_us, now_ms = now()
if now_us > tonumber(not_after) then
    return { request }
end

local it = read(lock, now_ms)
local answer, told, evicted = { request, now_ms, '0', 0 }, {}, 0
-- Whoever came to hold alone between two steps is not one of those who held when the eviction began.
if cursor == '0' and it.holder and it.until_ms > now_ms then
    spread(it)
    evicted = 1
    tell_of(told, lease_in(it.key))
    tell(channel, now_us, 'evicted', it, it.key)
    local claim, delay_ms = it.holder, tonumber(it.lock_delay_ms) or 0
    -- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    vacate(it)
    redis.call('SET', ended_key(it, claim), 'v' .. reason, 'PX', REMEMBERED_MS)
    close(it, now_ms + delay_ms, now_ms)
elseif it.limit then
    -- A scan meets everybody who is there from its first step to its last, whatever is cleared away or comes to stand
    -- elsewhere in the order meanwhile; a rank would not. It may meet somebody twice.
    local found = redis.call('ZSCAN', holders_key(it), cursor, 'COUNT', EVICTED_AT_ONCE)
    answer[3] = found[1]
    for i = 1, #found[2], 2 do
        local member = found[2][i]
        local claim = string.sub(member, 1, 16)
        local record = holder_key(it, claim)
        shift_holder(it, claim, now_ms)
        local until_ms, delay_ms, fence = unpack(redis.call('HMGET', record, 'u', 'd', 'f'))
        -- What only keeps its permits taken has no record.
        if until_ms and tonumber(until_ms) > now_ms then
            evicted = evicted + 1
            if #told < tonumber(told_max) and told_bytes_left >= 0 then
                tell_of(told, lease_in(record))
            end
            tell(channel, now_us, 'evicted', it, record)
            redis.call('DEL', record)
            redis.call('SET', ended_key(it, claim), 'v' .. reason, 'PX', REMEMBERED_MS)
            give_back(it, member, now_ms + (tonumber(delay_ms) or 0), now_ms, fence)
        elseif until_ms then
            expire_holder(it, member, now_us, now_ms, channel)
        end
    end
    close_if_left(it)
end
if evicted > 0 then
    -- Streams that held the lock learn of it at once. Without the right to channels they learn by their next renewals.
    local _, name = parts(it)
    redis.pcall('PUBLISH', evictions, name)
end
offer(it, now_ms)
answer[4] = evicted
for _, lease in ipairs(told) do
    answer[#answer + 1] = lease
end
-- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
redis.call('DEL', mark)
redis.call('SET', mark, cmsgpack.pack(answer), 'PX', REMEMBERED_MS)
return answer
