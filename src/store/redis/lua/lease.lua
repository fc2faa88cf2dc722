-- Included before every script: the store's clock, and how a lock's record is read and told.
--
-- A lock is a hash: h claim digest, r attempt that nobody was told of yet, f fencing token, a acquired (ms), u end of
-- the lease (ms), t TTL (ms), n hold count if not 1, o owner, m metadata, i min_hold (ms), x latest end (ms),
-- d lock_delay (ms). A closed lock has c, the moment (ms) from which it may be granted, and no h.
-- A mark of an ended claim is a string: r released, l lost to another claim, v<reason> evicted, or c<attempts>: not
-- ended, but these attempts were withdrawn before they arrived.
-- A record outlives its lease by REMEMBERED_MS, so that the claim can be told that it expired.

local REMEMBERED_MS = 60000

-- The time, read once: within a script two readings may differ while key expiry stands still.
local function now()
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    return now_us, math.floor(now_us / 1000)
end

-- The lease in a lock's record, appended to an answer.
local function tell_lease(answer, lock, now_ms)
    local record = redis.call('HMGET', lock, 'f', 'a', 'u', 't', 'n', 'o', 'm')
    answer[#answer + 1] = now_ms
    for field = 1, 7 do
        answer[#answer + 1] = record[field] or ''
    end
    return answer
end

-- From when on a lock may be granted whose lease ran out: lock_delay counts from the end, min_hold from the grant.
local function closed_until(acquired_ms, until_ms, min_hold_ms, lock_delay_ms)
    return math.max(until_ms + (tonumber(lock_delay_ms) or 0), acquired_ms + (tonumber(min_hold_ms) or 0))
end

-- How long a record is kept that describes a lease.
local function keep_ms(now_ms, acquired_ms, until_ms, min_hold_ms)
    return math.max(until_ms + REMEMBERED_MS, acquired_ms + (tonumber(min_hold_ms) or 0)) - now_ms
end

-- Leaves behind, once a record is deleted, that the lock may not be granted for a while.
local function close(lock, until_ms, now_ms)
    if until_ms > now_ms then
        redis.call('HSET', lock, 'c', until_ms)
        redis.call('PEXPIRE', lock, until_ms - now_ms)
    end
end

-- Why a claim that does not hold the lock does not: e expired, or its mark, or u unknown.
local function why_not(lock, ended, claim)
    if redis.call('HGET', lock, 'h') == claim then
        return 'e'
    end
    local mark = redis.call('GET', ended)
    if mark and string.sub(mark, 1, 1) ~= 'c' then
        return mark
    end
    return 'u'
end
