-- Included by every script: the store's clock, and how a lease is told and kept. What a record is, is in lease.lua.
--
-- Scripts with a fast path have read the clock before they come here.

local TOMBSTONE_MS = 60000

-- The time, read once: within a script two readings may differ while key expiry stands still.
local function now()
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    return now_us, math.floor(now_us / 1000)
end

-- How many microseconds have passed since then, unless the clock was set or Redis stops it for scripts.
local function took(began_us)
    return math.max(now() - began_us, 0)
end

-- How long a record is kept that describes a lease.
local function keep_ms(now_ms, acquired_ms, until_ms, min_hold_ms)
    return math.max(until_ms + TOMBSTONE_MS, acquired_ms + (tonumber(min_hold_ms) or 0)) - now_ms
end

-- From when on a lock may be granted whose lease ran out: lock_delay counts from the end, min_hold from the grant.
local function closed_until(acquired_ms, until_ms, min_hold_ms, lock_delay_ms)
    return math.max(until_ms + (tonumber(lock_delay_ms) or 0), acquired_ms + (tonumber(min_hold_ms) or 0))
end

-- The lease in a record, as every answer carries it.
local function lease_in(record)
    return redis.call('HMGET', record, 'f', 'a', 'u', 't', 'n', 'o', 'm', 's', 'k')
end
