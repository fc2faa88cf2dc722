-- Grants locks to a claim, all or none, or returns why not; enqueues a claim that waits.
-- KEYS: for each lock: lock_key, fence, ended, ticket
-- ARGV: kept_ms, not_after, for each lock: record_head, last_fence_seen, at the end: queue_request, may_grant, limit, permits, is_fair, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, metadata, channel, takes_over, is_repeat, total, enters_queue
-- Returns: attempt, code, then by code: 1 granted: now_ms and for each lock fence, acquired_ms, until_ms, ms that an
--   expired lease was held before or ''; 2 re-entered, 3 replayed: now_ms, ms that a lock stays taken or closed without
--   further operations, and for each lock its options and the lease; 4 blocked: now_ms and the conflicts; 5 waiting:
--   sequence, until_ms, ms until the next expiry in the way or '', position or '', queue length, whether the place had
--   been lost; 6 ended: number of the lock, mark; 7 recovering; 8 a fencing counter regressed; 9 a fencing counter is exhausted; 10 the attempt was
--   withdrawn; 11 the claim has other parameters, 12 it holds shared: number; 13 another limit: number, limit; 14 too
--   many waiters: number, how many; 15 the wait has expired; 16 it came too late, and nothing was done: now_us; 17 the
--   client has retried elsewhere since; 18 nothing is in the way of a waiting claim that is to be granted later: as 5;
--   19 other claims that are to be granted later: sequence of its ticket or '', now_ms and the conflicts; 20 it could
--   be replayed: 1 if another attempt has received it, else 0; 22 its grant is beyond a quota: ms until it is final;
--   23 very many holders had expired: some were removed, and the request has to be repeated.
--   The fast path packs its answer, because a table costs Redis as much as a command: 1 granted: the record, which
--   begins so; 3 replayed, 4 blocked by one holder: now_ms, its record
-- include: clock
local kept_ms, not_after = ARGV[1], ARGV[2]

-- The request arrived too late, or the clock was set forward and leases have ended early.
if now_text > not_after then
    return { string.sub(ARGV[3], 1, 8), TOO_LATE, now_text }
end

-- Fast path for most claims: a new claim without options, except perhaps to wait, on a lock of which nothing is known
-- or that has one holder. It runs before anything that it does not need is defined. record.lua describes the record,
-- which begins with the record head. A queue request ends with the end of the wait, once that is known.
local was_queued = ARGV[5] and string.sub(ARGV[5], -1) ~= ' '
if #ARGV <= 5 and not was_queued then
    local lock_key, fence, record_head = KEYS[1], KEYS[2], ARGV[3]
    local known = call('EXISTS', lock_key, KEYS[3], KEYS[4])
    if known == 0 then
        local record = record_head .. struct.pack('>I7I6', now_us, now_ms + kept_ms - TOMBSTONE_MS)
        -- The first write: when memory is full, it fails before anything is done.
        call('SET', lock_key, record, 'PX', kept_ms)
        local counter, last_seen = call('GETSET', fence, now_text), ARGV[4]
        -- The short cut of next_fence in fence.lua: here, to define a function would cost as much as a quarter of a
        -- command.
        local is_behind = counter and #counter == 16 and counter < now_text and counter >= last_seen and counter >= '1'
        local is_unused = counter == last_seen and #counter == 17 and string.sub(counter, 1, 1) == '-' and string.sub(counter, 2) < now_text
        if #now_text == 16 and (is_behind or is_unused) then
            return record
        end
        -- The counter is ahead of the clock, or data were lost. Undo the writes; the code below decides.
        call('DEL', lock_key)
        if counter then
            call('SET', fence, counter)
        else
            call('DEL', fence)
        end
    elseif known == 1 then
        -- MGET returns nil for a hash.
        local record, lasts_ms, until_ms = call('MGET', lock_key)[1], 0, 0
        if record and string.sub(record, 9, 9) == PLAIN then
            lasts_ms, until_ms = struct.unpack('>I6', record, 26), struct.unpack('>I6', record, #record - 5)
        end
        -- A lease that ends later than its TTL from now was written before the clock was set back.
        if until_ms > now_ms and until_ms - now_ms <= lasts_ms then
            local is_mine = string.sub(record, 10, 25) == string.sub(record_head, 10, 25)
            if not is_mine and not ARGV[5] then
                return string.sub(record_head, 1, 8) .. BLOCKED_TEXT .. struct.pack('>I6', now_ms) .. record
            elseif is_mine and string.sub(record, 1, 8) == NO_ATTEMPT then
                -- No attempt may roll the lease back, and this one receives what a renewal has kept.
                return string.sub(record_head, 1, 8) .. REPLAYED_TEXT .. struct.pack('>I6', now_ms) .. record
            end
        end
    end
end

-- include: fence
-- Fast path of a claim without options at the head of the queue of a free lock, usually one reserved for it. queue.lua
-- describes the keys of a queue.
local _, _, record_head, last_fence_seen, queue_request = unpack(ARGV)
local process, liveness_ms, sequence, waits_until_ms
if #ARGV == 5 and was_queued then
    process, liveness_ms, sequence, waits_until_ms = string.match(queue_request, '^(%x+) %d+ (%d+) %d+ %d+ %d %d %d %d+ %d+ (%d+) (%d+)$')
end
if sequence and tonumber(waits_until_ms) >= now_ms then
    local lock_key, fence, ended, ticket = unpack(KEYS)
    local claim, owner = string.sub(record_head, 10, 25), string.sub(record_head, 32)
    -- MGET returns nil for a hash, and a free lock with waiters is a hash.
    local known = call('MGET', lock_key, ended, ticket, fence)
    -- Between the process and the owner, the ticket has the time of the request.
    local begins = sequence .. ' - 1 1 ' .. process .. ' '
    local has_same_ticket = known[3] and string.sub(known[3], 1, #begins) == begins
        and string.match(known[3], '^%d+ (.*)$', #begins + 1) == owner
    if has_same_ticket and next_fence(known[4], last_fence_seen) == now_text and not known[1] and not known[2] then
        local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
        local queue, process_queue = slot .. 'q:' .. name, slot .. 'w:' .. process .. ':' .. name
        local state = call('HMGET', lock_key, 'w', 's', 'c')
        local is_free = state[1] and not (state[2] or state[3])
        local head = is_free and call('ZRANGE', queue, 0, 0, 'WITHSCORES') or {}
        local first = head[1] == process and call('ZRANGE', process_queue, 0, 1, 'WITHSCORES') or {}
        if first[1] == claim and first[2] == head[2] then
            -- DEL first: it is allowed when memory is full, and a script that has written may keep writing. Were it refused,
            -- a later waiter might be granted the lock.
            call('DEL', ticket)
            call('SET', fence, now_text)
            call('ZREM', process_queue, claim)
            if first[3] then
                call('ZADD', queue, first[4], process)
                -- The process polls, so its set of waiters stays alive.
                call('PEXPIRE', process_queue, liveness_ms)
            else
                call('ZREM', queue, process)
            end
            local numbers = struct.pack('>I7I6', now_us, now_ms + kept_ms - TOMBSTONE_MS)
            local granted = record_head .. numbers
            local record = granted
            -- Redis is slow at converting numbers to text.
            local queue_ms = tonumber(liveness_ms) > TOMBSTONE_MS and liveness_ms or TOMBSTONE_MS_TEXT
            if call('PEXPIRE', queue, queue_ms) == 1 then
                -- Others wait.
                record = string.sub(record_head, 1, 8) .. WITH_OPTIONS .. string.sub(record_head, 10, 31)
                    .. cmsgpack.pack(owner, { last = state[1] }) .. numbers
            end
            call('SET', lock_key, record, 'PX', kept_ms)
            return granted
        end
    end
end

-- include: record acquire_options reservation acquire_held acquire_conflicts acquire_wait acquire_grant
