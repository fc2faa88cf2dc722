-- Takes a lock away from its holders, a bounded number at a time: those with one of the claims, or a token until `last`.
-- KEYS: lock_key, answer_key
-- ARGV: request, not_after, reason, cursor, evictions, channel, listed_max, last, claims
-- Returns: request, now_ms, the cursor of the next step or 0 if this was the last, how many were evicted, then the
--   leases that it lists, at most listed_max; or request and now_us alone if it came too late, and nothing was done
-- include: clock reservation
local lock_key, answer_key = KEYS[1], KEYS[2]
local request, not_after, reason, cursor, evictions, channel, listed_max, last, claims =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

local lock
local last_fence = tonumber(last)
local answer, listed, evicted = { request, now_ms, '0', 0 }, {}, 0

local is_claim = {}
for first = 1, #claims, 16 do
    is_claim[string.sub(claims, first, first + 15)] = true
end

local function is_meant(lease)
    return lease.until_ms > now_ms and (is_claim[lease.claim] or tonumber(lease.fence) <= last_fence)
end

-- Until when `lock_delay` keeps the lock closed. The majority counts it from the eviction; a node that missed that would
-- refuse the next holder for longer.
local function closed_until_ms(lease)
    local delay_ms = claims == '' and lease.options.lock_delay_ms or 0
    return now_ms + delay_ms
end

local function evict_exclusive()
    local lease = lock.lease
    evicted = 1
    add_listed(listed, lease)
    publish_event(channel, 'evicted', lock, lease)
    -- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
    delete_lease(lock)
    redis.call('SET', ended_key(lock, lease.claim), MARK_EVICTED .. reason, 'PX', TOMBSTONE_MS)
    start_cooldown(lock, closed_until_ms(lease))
end

local function evict_sharer(member)
    local lease = read_holder(lock, string.sub(member, 1, 16))
    -- A cool-down entry has no record.
    if lease and is_meant(lease) then
        evicted = evicted + 1
        if #listed < tonumber(listed_max) and listed_bytes_left >= 0 then
            add_listed(listed, lease)
        end
        publish_event(channel, 'evicted', lock, lease)
        redis.call('DEL', lease.key)
        redis.call('SET', ended_key(lock, lease.claim), MARK_EVICTED .. reason, 'PX', TOMBSTONE_MS)
        return_permits(lock, member, closed_until_ms(lease), lease.fence)
    elseif lease and lease.until_ms <= now_ms then
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
if cursor == '0' and lock.lease and is_meant(lock.lease) then
    evict_exclusive()
elseif lock.limit then
    answer[3] = evict_sharers()
end
if evicted > 0 then
    -- Streams that held the lock learn it at once. Without the right to channels, they learn it at their next renewals.
    local _, name = split_key(lock)
    redis.pcall('PUBLISH', evictions, name)
end
reserve(lock)
answer[4] = evicted
for _, lease in ipairs(listed) do
    answer[#answer + 1] = lease
end
-- DEL first: it is allowed when memory is full, and a script that has written may keep writing.
call('DEL', answer_key)
call('SET', answer_key, cmsgpack.pack(answer), 'PX', TOMBSTONE_MS)
-- The grants of claims that do not hold the lock may arrive later.
for claim in pairs(is_claim) do
    call('SET', ended_key(lock, claim), MARK_EVICTED .. reason, 'PX', TOMBSTONE_MS)
end
return answer
