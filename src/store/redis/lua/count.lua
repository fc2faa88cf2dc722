-- Counts leases for which there is a quota, or stops counting them.
-- KEYS: counted
-- ARGV: request, step, leases_max, lasts_ms, attempt, for each lock: claim
-- Returns: request, 1 if it was done or there is room; 0 and the ms until there is room if not
-- include: clock
-- Of each lease, `counted` has the claim, with the time at which it runs out and the attempt that may roll it back in the
-- score: of the attempt a number from 1 to 1,023, or 0 if none may. The score stays below 2^53. Two attempts at one claim
-- may share a number: then the rollback of one ends the count of the other, until that is renewed.
local counted = KEYS[1]
local request, step, leases_max, lasts_ms, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- The smallest score of a lease that has not run out.
local alive = now_ms * COUNT_ATTEMPTS

-- The number of the attempt that may roll back a lease that is counted, and the least score of its end; none for another
-- one.
local function attempt_of(claim)
    local score = tonumber(redis.call('ZSCORE', counted, claim))
    if score and score >= alive then
        return score % COUNT_ATTEMPTS, score - score % COUNT_ATTEMPTS
    end
end

-- How long until there is room for these leases; none if there is.
local function full_ms()
    local wanted = 0
    for i = 6, #ARGV do
        wanted = wanted + (attempt_of(ARGV[i]) and 0 or 1)
    end
    local excess = redis.call('ZCOUNT', counted, alive, '+inf') + wanted - leases_max
    if wanted == 0 or excess <= 0 then
        return nil
    end
    -- After a quota became smaller, the excess may be large: then the answer is the time of an earlier lease.
    local rank = math.min(excess, REAPED_MAX) - 1
    local last = redis.call('ZRANGEBYSCORE', counted, alive, '+inf', 'WITHSCORES', 'LIMIT', rank, 1)
    local until_ms = last[2] and (last[2] - last[2] % COUNT_ATTEMPTS) / COUNT_ATTEMPTS or now_ms
    return math.max(until_ms - now_ms, 1)
end

if step == COUNT_CHECK or step == COUNT_TAKE then
    local left_ms = full_ms()
    if left_ms then
        return { request, 0, left_ms }
    end
end
-- Adds the entry of a lease. None gets shorter: of two renewals in flight, the longer one may come here first.
local function add(claim, entries)
    local before, until_before = attempt_of(claim)
    local after = tonumber(attempt) or before or 0
    if step == COUNT_EXTEND and not before then
        return
    elseif step == COUNT_TAKE and before and before ~= after then
        -- What two requests have counted none of them undoes.
        after = 0
    end
    entries[#entries + 1] = math.max(until_before or 0, alive + lasts_ms * COUNT_ATTEMPTS) + after
    entries[#entries + 1] = claim
end

if step == COUNT_TAKE or step == COUNT_KEEP or step == COUNT_EXTEND then
    local entries = {}
    for i = 6, #ARGV do
        add(ARGV[i], entries)
    end
    if not entries[1] then
        return { request, 1 }
    end
    -- PEXPIRE first: it is allowed when memory is full, and a script that has written may keep writing.
    local kept_ms = math.max(call('PTTL', counted), lasts_ms)
    call('PEXPIRE', counted, kept_ms)
    call('ZADD', counted, unpack(entries))
    call('PEXPIRE', counted, kept_ms)
    -- A bounded number of them: what stays is not counted either.
    local expired = call('ZRANGEBYSCORE', counted, '-inf', alive - 1, 'LIMIT', 0, REAPED_MAX)
    if expired[1] then
        call('ZREM', counted, unpack(expired))
    end
elseif step == COUNT_UNDO or step == COUNT_END then
    local ended = {}
    for i = 6, #ARGV do
        if step == COUNT_END or attempt_of(ARGV[i]) == tonumber(attempt) then
            ended[#ended + 1] = ARGV[i]
        end
    end
    -- At once, because the key is gone with its last entry: in a slot that moves, another command would fail then.
    if ended[1] then
        call('ZREM', counted, unpack(ended))
    end
end
return { request, 1 }
