-- Lets leases last longer, all or none; never creates one. May let a lease that holds alone step down to shared.
-- KEYS: for each lock: lock, ended
-- ARGV: request, ttl_ms, mode, limit, permits, channel, withdrawable, for each lock: claim
-- Returns: request, code, then by code: 1 extended: now_ms, and for each lock ms that were left, the lease; 0 not the
--   holder: number of the lock and mark of each that is not held; 11 claimed otherwise, 12 held by several: number
local request, ttl_ms, mode, limit, permits, channel, withdrawable =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local now_us, now_ms = now()

-- Lets the lease in a record last longer. Whoever may withdraw the grant is nobody, as before (r), or an attempt. PEXPIRE and HDEL go first: they are allowed when memory is full, and once a
-- script has written it may go on writing.
local function extend(record, acquired_ms, lasts_ms, ceiling_ms, min_hold_ms)
    local until_ms = math.min(now_ms + tonumber(lasts_ms), tonumber(ceiling_ms) or math.huge)
    local kept_ms = keep_ms(now_ms, tonumber(acquired_ms), until_ms, min_hold_ms)
    redis.call('PEXPIRE', record, kept_ms)
    if withdrawable == '' then
        redis.call('HDEL', record, 'r')
    elseif withdrawable ~= 'r' then
        redis.call('HSET', record, 'r', withdrawable)
    end
    redis.call('HSET', record, 'u', until_ms, 't', lasts_ms)
    return until_ms, kept_ms
end

-- The short way: the lock is held by this claim alone and will be, and nobody watches.
if #KEYS == 2 and mode == '' and channel == '' then
    local lock, claim = KEYS[1], ARGV[8]
    local record = redis.call('HMGET', lock, 'h', 'u', 'a', 't', 'x', 'i')
    local left_ms = record[1] == claim and tonumber(record[2]) - now_ms or 0
    if left_ms > 0 then
        extend(lock, record[3], ttl_ms == '' and record[4] or ttl_ms, record[5], record[6])
        return { request, 1, now_ms, left_ms, lease_in(lock) }
    end
end
