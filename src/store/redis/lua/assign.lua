-- Gives the leases of a claim the fencing tokens that a quorum has decided, all or none, and raises the counters to them.
-- KEYS: for each lock: lock_key, fence
-- ARGV: request, channel, with_permits, must_be_new, for each lock: claim, attempt, proposed, decided, gives_options, at the end: owner, metadata, max_hold_ms, min_hold_ms, lock_delay_ms, takes_over
-- Returns: request, code, then by code: 1 they have them: for each lock, with permits, who takes some and how many, one
--   after the other; 0 the claim does not hold all of its locks by the leases with these tokens, or another attempt has
--   received one after this one, and nothing was done; 2 a token that must be new may be another lease's, and nothing
--   was done: for each lock, the counter
-- include: clock holders
local request, channel, with_permits, must_be_new = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local locks, is_taken, counters = {}, false, { request, TAKEN }
for number = 1, #KEYS / 2 do
    local lock, fence = read(KEYS[number * 2 - 1]), KEYS[number * 2]
    local claim, attempt, proposed, decided, gives_options = unpack(ARGV, number * 5, number * 5 + 4)
    proposed, decided = tonumber(proposed), tonumber(decided)
    local counter = call('GET', fence)
    lock.held, lock.fence, lock.decided, lock.gives_options = lease_of(lock, claim), fence, decided, gives_options == '1'
    -- Without the counter, data were lost: the next acquire finds that out.
    if not counter or not lock.held or lock.held.fence ~= proposed and lock.held.fence ~= decided then
        return { request, NOT_HELD }
    end
    local last_attempt = lock.held.attempt
    local has_passed = attempt ~= '' and last_attempt ~= attempt and last_attempt ~= NO_ATTEMPT
    if has_passed or decided < lock.held.fence and last_attempt ~= attempt then
        return { request, NOT_HELD }
    end
    -- The counter of an unused bucket is the negated epoch.
    local last = math.abs(counter)
    is_taken = is_taken or lock.held.fence ~= decided and last >= decided
    locks[number], counters[number + 2] = lock, last
end
if is_taken and must_be_new == '1' then
    return counters
end

-- The first writes: when memory is full, they fail before anything is done.
for _, lock in ipairs(locks) do
    if math.abs(call('GET', lock.fence)) < lock.decided then
        call('SET', lock.fence, string.format('%.0f', lock.decided))
    end
end

-- Who takes permits of a lock: a claim, or a cool-down entry, which is the same on all nodes by its fencing token.
local function permits_taken(lock)
    local users = {}
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', holders_key(lock), '(' .. now_ms, '+inf')) do
        users[#users + 1] = string.sub(member, 1, 16)
        users[#users + 1] = string.sub(member, 17)
    end
    return users
end

-- Gives a lease what the claim asks for, counted from now, because it was granted with something else.
local function give_options(lock, lease)
    local owner, metadata, max_hold_ms, min_hold_ms, lock_delay_ms, takes_over = unpack(ARGV, #KEYS / 2 * 5 + 5)
    local options = lease.options
    lease.owner, options.metadata = owner, metadata ~= '' and metadata or nil
    options.ceiling_ms = max_hold_ms ~= '' and now_ms + max_hold_ms or nil
    options.min_hold_ms = min_hold_ms ~= '' and math.max(now_ms - lease.acquired_ms, 0) + min_hold_ms or nil
    options.lock_delay_ms = tonumber(lock_delay_ms)
    options.is_of_stream = options.is_of_stream or takes_over == '1' or nil
    lease.until_ms = math.min(lease.until_ms, options.ceiling_ms or math.huge)
    rewrite_lease(lease, keep_ms(lease))
    if lock.limit then
        redis.call('ZADD', holders_key(lock), lease.until_ms, lease.claim .. options.permits)
    end
end

local answer = { request, ASSIGNED }
for _, lock in ipairs(locks) do
    local lease = lock.held
    if lease.fence ~= lock.decided then
        lease.fence = lock.decided
        rewrite_lease(lease)
        -- Watchers know the lease by the token that was proposed, which no client ever receives.
        publish_event(channel, 'acquired', lock, lease)
    end
    if lock.gives_options then
        give_options(lock, lease)
    end
    if with_permits == '1' then
        answer[#answer + 1] = permits_taken(lock)
    end
end
return answer
