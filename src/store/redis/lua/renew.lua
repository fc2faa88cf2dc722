-- Extends leases, all or none; never creates one. May change an exclusive lease to shared.
-- KEYS: for each lock: lock_key
-- ARGV: not_after, for each lock: caller, at the end: ttl_ms, mode, limit, permits, channel, rollback_right, is_repeat, is_check
-- Returns: request, code, then by code: 1 extended: now_ms, and for each lock ms that were left, ms that the lock stays
--   taken or closed without further operations, its options: ms or nil each for min_hold, max_hold and lock_delay, and 1 or
--   nil for whether it is a stream's, the lease, the attempt that may roll it back or NO_ATTEMPT; 0 not the holder: number
--   of the lock and mark of each that is not held; 11 the claim has other parameters, 12 it holds shared: number; 16 it
--   came too late, and nothing was done: now_us; 21 the caller only asked whether it could renew them, and it could.
--   The fast path packs its answer: 1 extended: now_ms, ms that were left, the record
-- include: clock
local not_after = ARGV[1]

-- The client has got an unknown outcome, and may have retried since.
if now_us > not_after + 0 then
    return { string.sub(ARGV[2], 1, 8), TOO_LATE, now_us }
end

-- Fast path: the claim holds the lock exclusively and keeps it so, no claim waits, and no process wants events. A
-- caller is the request and the claim; record.lua describes the record, and its end.
if #KEYS == 1 and #ARGV <= 3 then
    local lock_key, caller = KEYS[1], ARGV[2]
    -- MGET returns nil for a hash, where GET would fail.
    local record = call('MGET', lock_key)[1]
    if record and string.sub(record, 10, 25) == string.sub(caller, 9, 24) and string.sub(record, 9, 9) == PLAIN then
        local until_ms = struct.unpack('>I6', record, #record - 5)
        if until_ms > now_ms then
            -- From now on no attempt may roll the grant back.
            local ttl_ms, rest = ARGV[3], string.sub(record, 9, -7)
            if ttl_ms then
                rest = string.sub(record, 9, 25) .. struct.pack('>I6', ttl_ms) .. string.sub(record, 32, -7)
            else
                ttl_ms = struct.unpack('>I6', record, 26)
            end
            local kept_ms = ttl_ms + TOMBSTONE_MS
            record = NO_ATTEMPT .. rest .. struct.pack('>I6', now_ms + ttl_ms)
            -- PEXPIRE is allowed when memory is full, and a script that has written may keep writing.
            if redis.pcall('SET', lock_key, record, 'PX', kept_ms).err then
                call('PEXPIRE', lock_key, kept_ms)
                call('SET', lock_key, record, 'PX', kept_ms)
            end
            return string.sub(caller, 1, 8) .. EXTENDED_TEXT .. struct.pack('>I6I6', now_ms, until_ms - now_ms) .. record
        end
    end
end

-- include: record
-- The options that most renewals lack.
local function caller(number, from, to)
    return string.sub(ARGV[1 + number], from, to)
end
local request = caller(1, 1, 8)
local ttl_ms, mode, limit, permits, channel, rollback_right, is_repeat, is_check = unpack(ARGV, #KEYS + 2)
ttl_ms, mode, channel, rollback_right, is_repeat = ttl_ms or '', mode or '', channel or '', rollback_right or '', is_repeat == '1'

-- Extends a lease. From now on no attempt may roll the grant back, or the same as before (r); with y, an undecided lease is
-- left as it is.
local function extend(lease)
    if rollback_right == 'y' and is_undecided(lease) then return end
    lease.ttl_ms = tonumber(ttl_ms) or lease.ttl_ms
    lease.until_ms = math.min(now_ms + lease.ttl_ms, lease.options.ceiling_ms or math.huge)
    if rollback_right ~= 'r' then
        lease.attempt = NO_ATTEMPT
    end
end

-- Fast path: the claim holds the lock exclusively and keeps it so, no process wants events, and no request was
-- repeated.
local record = #KEYS == 1 and mode == '' and channel == '' and not is_repeat and not is_check and call('MGET', unpack(KEYS))[1]
if record and string.sub(record, 10, 25) == caller(1, 9, 24) then
    local lease = unpack_lease(KEYS[1], record)
    local left_ms = lease.until_ms - now_ms
    -- A lease acquired later than now, or ending later than its TTL from now, is from before the clock was set back.
    if left_ms > 0 and left_ms <= lease.ttl_ms and lease.acquired_ms <= now_ms and not lease.options.repeated then
        extend(lease)
        rewrite_lease(lease, keep_ms(lease))
        return { request, EXTENDED, now_ms, left_ms, closed_until(lease) - now_ms, hold_options(lease), lease_fields(lease), lease.attempt }
    end
end

-- include: primary reservation
local locks, lost = {}, { request, NOT_HELD }
for number, lock_key in ipairs(KEYS) do
    local lock = read(lock_key)
    locks[number] = lock
    lock.claim = caller(number, 9, 24)
    local how
    lock.held, how = lease_of(lock, lock.claim)
    if not lock.held then
        lost[#lost + 1] = number
        lost[#lost + 1] = why_not(how, ended_key(lock, lock.claim))
    end
end
if lost[3] then require_primary(locks[1]); return lost end
for number, lock in ipairs(locks) do
    local is_alone = lock.held == lock.lease
    if mode == 'x' and not is_alone then
        return { request, HOLDS_SHARED, number }
    elseif mode == 's' and not is_alone then
        local options = lock.held.options
        if options.limit ~= limit or options.permits ~= permits then
            return { request, CLAIM_MISMATCH, number }
        end
    end
end
if is_check then return { request, RENEWABLE } end

-- Turns an exclusive lease into a shared one. The queue stays with the lock.
local function downgrade(lock, lease)
    local options = lease.options
    options.last, options.reserved_for, options.reservation_until_ms, options.reservation_ms = nil, nil, nil, nil
    delete_lease(lock)
    share(lock, lease, limit, permits)
    reserve(lock)
end

local function renew(lock, lease)
    local is_alone = lease == lock.lease
    extend(lease)
    if is_repeat then
        note_repeat(lease, request)
    end
    if is_alone and mode == 's' then
        downgrade(lock, lease)
    else
        rewrite_lease(lease, keep_ms(lease))
    end
    if not is_alone then
        redis.call('ZADD', holders_key(lock), lease.until_ms, lease.claim .. lease.options.permits)
        note_longest(lock, lease.until_ms - now_ms)
        extend_ttl(holders_key(lock), keep_ms(lease))
        extend_ttl(lock.key, keep_ms(lease))
    end
    publish_event(channel, 'renewed', lock, lease)
end

local answer = { request, EXTENDED, now_ms }
for _, lock in ipairs(locks) do
    local lease = lock.held
    local left_ms = lease.until_ms - now_ms
    if not is_done(lease, request) then
        renew(lock, lease)
    end
    answer[#answer + 1] = left_ms
    answer[#answer + 1] = closed_until(lease) - now_ms
    answer[#answer + 1] = hold_options(lease)
    answer[#answer + 1], answer[#answer + 2] = lease_fields(lease), lease.attempt
end
return answer
