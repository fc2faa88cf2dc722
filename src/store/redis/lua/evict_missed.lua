-- Evicts claims that other nodes of a quorum have evicted before, and refuses them from now on.
-- KEYS: lock_key
-- ARGV: request, not_after, reason, evictions, channel, evicted_ms_ago, closed_for_ms, claims
-- Returns: request, now_ms, how many were evicted; or request and now_us alone if it came too late, and nothing was done
-- include: clock reservation
local lock_key = KEYS[1]
local request, not_after, reason, evictions, channel, evicted_ms_ago, closed_for_ms, claims =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]

if now_us > tonumber(not_after) then
    return { request, now_us }
end

local lock, evicted = read(lock_key), 0
local open_ms = now_ms + tonumber(closed_for_ms) - tonumber(evicted_ms_ago)

-- The lease of a claim, which may have expired.
local function lease_here(claim)
    if lock.lease and lock.lease.claim == claim then
        return lock.lease
    end
    return lock.limit and read_holder(lock, claim)
end

for first = 1, #claims, 16 do
    local claim = string.sub(claims, first, first + 15)
    local lease = lease_here(claim)
    if lease then
        evicted = evicted + 1
        if lease.until_ms > now_ms then
            publish_event(channel, 'evicted', lock, lease)
        else
            publish_expired(channel, lock, lease)
        end
        local delay_ms = lease.options.lock_delay_ms or 0
        end_lease(lock, lease, now_ms + delay_ms - tonumber(evicted_ms_ago))
    end
    -- A grant of the claim may arrive later.
    call('SET', ended_key(lock, claim), MARK_EVICTED .. reason, 'PX', TOMBSTONE_MS)
end
-- The others keep the lock closed, and may be too few for that without this node. So what has expired must not open it
-- earlier.
local expired = lock.lease
if lock.limit then
    expire_holders(lock, channel)
elseif expired and expired.until_ms <= now_ms and closed_until(expired) < open_ms then
    mark_expired(lock, expired, MARK_EXPIRED)
    publish_expired(channel, lock, expired)
    delete_lease(lock)
end
if not lock.lease and not lock.limit and open_ms > (lock.open_ms or 0) then
    start_cooldown(lock, open_ms)
end
if evicted > 0 then
    local _, name = split_key(lock)
    redis.pcall('PUBLISH', evictions, name)
end
reserve(lock)
return { request, now_ms, evicted }
