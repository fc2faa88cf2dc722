-- Tells the fleet until when leases may be alive and new grants must wait, and learns what the others told.
-- KEYS: horizon, grace, marker
-- ARGV: request, horizon_ms, grace_ms, grace_if_empty_ms, channel
-- Returns: request, now_us, whether the marker was there, ms that the horizon lasted before, ms that horizon and grace last
--   now, how many hear the channel of events. The marker is the fencing counter of one bucket: it never expires, so without it the data were lost.
local horizon, grace, marker = KEYS[1], KEYS[2], KEYS[3]
local request, horizon_ms, grace_ms, grace_if_empty_ms, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Raises how long a key lasts. The first write is refused when memory is full, and the second still raises a key that
-- exists. Of two writes Redis makes a transaction in its append-only file, as it does of a grant: a Redis that drops
-- transactions while it loads that file (its default user has no rights) has then lost the horizon along with the
-- grants, which gives it away.
local function raise(key, wanted_ms)
    local left_ms = math.max(redis.call('PTTL', key), 0)
    if wanted_ms <= left_ms then
        return left_ms, left_ms
    end
    redis.pcall('SET', key, '', 'PX', wanted_ms)
    redis.call('PEXPIRE', key, wanted_ms)
    return left_ms, wanted_ms
end

local now_us = now()
local marked = redis.call('EXISTS', marker)
if marked == 0 then
    -- In one step with the marker: nobody may find the one without the other and take the store for a healthy one.
    redis.pcall('SET', marker, '0')
    grace_ms = math.max(tonumber(grace_ms), tonumber(grace_if_empty_ms))
end
local horizon_before, horizon_after = raise(horizon, tonumber(horizon_ms))
local _, grace_after = raise(grace, tonumber(grace_ms))
local watchers = redis.call('PUBSUB', 'NUMSUB', channel)[2]
return { request, now_us, marked, horizon_before, horizon_after, grace_after, watchers }
