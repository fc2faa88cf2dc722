-- Takes a lock away from its holders, a bounded number at a time.
-- KEYS: lock_key, answer_key
-- ARGV: request, not_after, reason, cursor, evictions, channel, listed_max
-- Returns: request, now_ms, the cursor of the next step or 0 if this was the last, for how long `lock_delay` keeps the
--   lock closed if its holder had it alone, the evicted claims one after the other, then the leases that it lists, at
--   most listed_max; or request and now_us alone if it came too late, and nothing was done
-- include: clock reservation
local lock_key, answer_key = KEYS[1], KEYS[2]
local request, not_after, reason, cursor, evictions, channel, listed_max =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local lock
local next_cursor, closed_for_ms, claims, listed = '0', 0, {}, {}

local function report(lease)
    claims[#claims + 1] = lease.claim
    if #listed < tonumber(listed_max) and listed_bytes_left >= 0 then
        add_listed(listed, lease)
    end
    publish_event(channel, 'evicted', lock, lease)
end

local function mark_evicted(lease)
    redis.call('SET', ended_key(lock, lease.claim), MARK_EVICTED .. reason, 'PX', TOMBSTONE_MS)
end

-- In these, DEL is first: it is allowed when memory is full, and a script that has written may keep writing.
local function evict_exclusive()
    local lease = lock.lease
    closed_for_ms = lease.options.lock_delay_ms or 0
    report(lease)
    delete_lease(lock)
    mark_evicted(lease)
    start_cooldown(lock, now_ms + closed_for_ms)
end

local function evict_sharer(member)
    local lease = read_holder(lock, string.sub(member, 1, 16))
    -- A cool-down entry has no record.
    if lease and lease.until_ms > now_ms then
        report(lease)
        redis.call('DEL', lease.key)
        mark_evicted(lease)
        return_permits(lock, member, now_ms + (lease.options.lock_delay_ms or 0), lease.fence)
    elseif lease then
        expire_holder(lock, member, lease, channel)
    end
end

-- Evicts some holders of a shared lock. Returns the cursor of the next step.
local function evict_sharers()
    -- A scan returns every entry that is present from its first step to its last, whatever is deleted or changes its
    -- rank meanwhile; a range by rank would not. It may return an entry twice.
    local found = redis.call('ZSCAN', holders_key(lock), cursor, 'COUNT', ENDED_AT_ONCE)
    for i = 1, #found[2], 2 do
        evict_sharer(found[2][i])
    end
    end_sharing_if_empty(lock)
    return found[1]
end

-- A request may be repeated because its first answer was lost, and the first try may arrive after the answer to the
-- second. Only one of them evicts; the others return its answer. One that arrives after the client's deadline does
-- nothing.
local before = call('GET', answer_key)
if before then
    return cmsgpack.unpack(before)
end
if now_us > tonumber(not_after) then
    return { request, now_us }
end

lock = read(lock_key)
-- A claim that was granted the lock exclusively between two steps did not hold when the eviction began.
if cursor == '0' and lock.lease and lock.lease.until_ms > now_ms then
    evict_exclusive()
elseif lock.limit then
    next_cursor = evict_sharers()
end
if #claims > 0 then
    -- Streams that held the lock learn it at once. Without the right to channels, they learn it at their next renewals.
    local _, name = split_key(lock)
    redis.pcall('PUBLISH', evictions, name)
end
reserve(lock)
local answer = { request, now_ms, next_cursor, closed_for_ms, table.concat(claims) }
for _, lease in ipairs(listed) do
    answer[#answer + 1] = lease
end
-- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
call('DEL', answer_key)
call('SET', answer_key, cmsgpack.pack(answer), 'PX', TOMBSTONE_MS)
return answer
