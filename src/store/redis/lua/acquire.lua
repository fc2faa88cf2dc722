-- Grants a lock to a claim, or says why not.
-- KEYS: lock, fence, ended
-- ARGV: claim, attempt, may_grant, last_fence_seen, ttl_ms, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, owner, metadata
-- Returns: attempt, code, then by code: 1 granted: now_ms, fence, acquired_ms, until_ms, ms that an expired lease was
--   held before or ''; 2 re-entered, 3 replayed, 4 held: the lease; 5 cooling: ms; 6 ended: mark; 7 recovering;
--   8 fencing counter went back; 9 fencing counter used up; 10 attempt was withdrawn
local lock, fence, ended = KEYS[1], KEYS[2], KEYS[3]
local claim, attempt, may_grant, last_fence_seen, ttl_ms, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, owner, metadata =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11]

local FENCE_MAX = 9007199254740991

local now_us, now_ms = now()
local record = redis.call('HMGET', lock, 'h', 'u', 'a', 'c', 'i', 'd')
local holder, until_ms, acquired_ms = record[1], tonumber(record[2]), tonumber(record[3])

if holder == claim and until_ms <= now_ms then
    return { attempt, 6, 'e' }
end
if holder == claim and redis.call('HGET', lock, 'r') == attempt then
    -- The first answer to this very attempt was lost on its way: it is still the answer.
    return { attempt, 1, now_ms, redis.call('HGET', lock, 'f'), acquired_ms, until_ms, '' }
end

local mark = redis.call('GET', ended)
if mark then
    if string.sub(mark, 1, 1) ~= 'c' then
        return { attempt, 6, mark }
    elseif string.find(mark, attempt, 2, true) then
        return { attempt, 10 }
    end
end

if holder == claim then
    -- HDEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    redis.call('HDEL', lock, 'r')
    if tonumber(hold_count) > tonumber(redis.call('HGET', lock, 'n') or 1) then
        redis.call('HSET', lock, 'n', hold_count)
        return tell_lease({ attempt, 2 }, lock, now_ms)
    end
    return tell_lease({ attempt, 3 }, lock, now_ms)
end

local open_ms = tonumber(record[4]) or 0
if holder then
    if until_ms > now_ms then
        return tell_lease({ attempt, 4 }, lock, now_ms)
    end
    open_ms = closed_until(acquired_ms, until_ms, record[5], record[6])
end
if open_ms > now_ms then
    return { attempt, 5, open_ms - now_ms }
end
if may_grant == '0' then
    return { attempt, 7 }
end

local last = tonumber(redis.call('GET', fence) or 0)
if last < tonumber(last_fence_seen) then
    return { attempt, 8 }
end
local granted = math.max(last + 1, now_us)
if granted > FENCE_MAX then
    return { attempt, 9 }
end
-- A number becomes text by an explicit format: every other way loses the last digits. This is also the first write:
-- when memory is full it fails before anything is done.
local granted_text = string.format('%.0f', granted)
redis.call('SET', fence, granted_text)

local held_before_ms = ''
if holder then
    held_before_ms = until_ms - acquired_ms
    local remembered_ms = until_ms + REMEMBERED_MS - now_ms
    if remembered_ms > 0 then
        -- The marks of one lock's claims differ in their last 32 bytes, the digest.
        redis.call('SET', string.sub(ended, 1, -33) .. holder, 'l', 'PX', remembered_ms)
    end
end
if holder or record[4] then
    redis.call('DEL', lock)
end

until_ms = now_ms + tonumber(ttl_ms)
local fields = { 'h', claim, 'r', attempt, 'f', granted_text, 'a', now_ms, 't', ttl_ms }
local function set(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
end
if max_hold_ms ~= '' then
    local ceiling_ms = now_ms + tonumber(max_hold_ms)
    until_ms = math.min(until_ms, ceiling_ms)
    set('x', ceiling_ms)
end
set('u', until_ms)
if hold_count ~= '1' then set('n', hold_count) end
if min_hold_ms ~= '' then set('i', min_hold_ms) end
if lock_delay_ms ~= '' then set('d', lock_delay_ms) end
if owner ~= '' then set('o', owner) end
if metadata ~= '' then set('m', metadata) end
redis.call('HSET', lock, unpack(fields))
redis.call('PEXPIRE', lock, keep_ms(now_ms, now_ms, until_ms, min_hold_ms))
return { attempt, 1, now_ms, granted_text, now_ms, until_ms, held_before_ms }
