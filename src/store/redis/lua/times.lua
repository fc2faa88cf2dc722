-- Included by scripts where their first fast path ends: the times of a lease, and the lease as answers carry it.
-- lease.lua describes records.

-- How long the record of a lease is kept.
local function keep_ms(acquired_ms, until_ms, min_hold_ms)
    return math.max(until_ms + TOMBSTONE_MS, acquired_ms + (tonumber(min_hold_ms) or 0)) - now_ms
end

-- When a lock whose lease expired may be granted again: lock_delay counts from the end, min_hold from the grant.
local function closed_until(acquired_ms, until_ms, min_hold_ms, lock_delay_ms)
    return math.max(until_ms + (tonumber(lock_delay_ms) or 0), acquired_ms + (tonumber(min_hold_ms) or 0))
end

-- The lease in a record, in the form of every answer.
local function lease_in(record)
    return redis.call('HMGET', record, 'f', 'a', 'u', 't', 'n', 'o', 'm', 's', 'k')
end
