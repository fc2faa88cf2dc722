-- Compares what a process knows about the data with the data themselves; begins a new epoch where leases may be lost.
-- KEYS: node, longest_ttl, grace
-- ARGV: request, run_id, is_durable, promoted_from, known_epoch, known_revision, is_lost, was_away, used_ttl_ms, known_ttl_ms, settle_ms, empty_start_ms, events, recovery, wake, unset_us, node_id, replid, primaries, others, only_tag
-- Returns: request, now_us, epoch, whether it begins now, revision or 0 if it was not stored, longest TTL in ms, ms that new
--   grants still wait, subscribers of the channel of events, subscribers of the caller's own channel, 1 or 0: whether the
--   user may count them, 1 if the clock was set back since the last check of the data, else 0
-- include: clock
local node, longest_ttl, grace = KEYS[1], KEYS[2], KEYS[3]
local request, run_id, is_durable, promoted_from, known_epoch, known_revision, is_lost, was_away, used_ttl_ms, known_ttl_ms,
    settle_ms, empty_start_ms, events, recovery, wake, unset_us, node_id, replid, primaries, others, only_tag =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10],
    ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15], ARGV[16], ARGV[17], ARGV[18], ARGV[19], ARGV[20], ARGV[21]

-- The node is a hash without expiry: epoch, when this history of the data began (µs); run_id, the last Redis process
-- seen; promoted_from, whose replica that was, if any; durable, whether every acknowledged write was on disk then and
-- there was no replica; revision, the number of checks of the data; and looked_ms, the time of the last one. In a
-- cluster, where each partition has such a history, also node_id and replid, the node and the replication id of the
-- primary that had the slot.
-- The fencing counter of a bucket that was never used in an epoch is the negated epoch. So a counter that is missing,
-- or that names another epoch, shows a loss to every script that grants.
-- If a process returns that could not reach Redis, and none has checked for AWAY_MS, all were cut off: Redis may have
-- forgotten the waiters, and grants nothing for POLL_AGAIN_MS, so that they can poll. Else only that process was cut off.

-- No token is as large as such a clock: nothing is granted by it, and an epoch that began by it would use up all tokens.
if now_us > CLOCK_MAX_US then
    return redis.error_reply(CLOCK_TOO_LATE .. ' no token is as large as the time of the clock')
end

local data = call('HMGET', node, 'epoch', 'run_id', 'durable', 'revision', 'promoted_from', 'looked_ms', 'node_id', 'replid')
local epoch, longest_ms = data[1], tonumber(call('GET', longest_ttl) or 0)
local subscribers = redis.pcall('PUBSUB', 'NUMSUB', events, recovery, wake)
local may_count = 1
if subscribers.err then
    -- Without the right to count them, assume one each.
    may_count, subscribers = 0, { events, 1, recovery, 1, wake, 1 }
end
if node_id ~= '' then
    -- A node counts only the subscribers of its own; the process has counted those of all nodes.
    subscribers = { events, subscribers[2], recovery, tonumber(others), wake, 1 }
end
local used_ms, known_ms, settle = tonumber(used_ttl_ms), tonumber(known_ttl_ms), tonumber(settle_ms)
local is_known, is_same = known_epoch ~= '', known_epoch == epoch

-- include: recovery_steps
local begins, wait_ms = detect_loss()
-- HDEL first: it is allowed when memory is full, and a script that has written may keep writing.
redis.pcall('HDEL', node, '')
if begins then begin_epoch() end
if begins or data[2] ~= run_id or data[3] ~= is_durable or data[5] ~= promoted_from then
    call('HSET', node, 'run_id', run_id, 'durable', is_durable, 'promoted_from', promoted_from)
end
if node_id ~= '' and (data[7] ~= node_id or data[8] ~= replid) then
    call('HSET', node, 'node_id', node_id, 'replid', replid)
end
local revision = store_check(math.max(tonumber(known_revision), tonumber(data[4] or 0)) + 1)
local is_stored = revision > 0
local went_back = (tonumber(data[6]) or 0) > now_ms + CLOCK_STEP_MIN_MS and 1 or 0
if is_stored and was_away == '1' and now_ms - (tonumber(data[6]) or 0) >= AWAY_MS then
    wait_ms = math.max(wait_ms, POLL_AGAIN_MS)
end

local left_ms, had_left_ms = extend_grace(wait_ms)
-- A difference by rounding need not be announced.
if begins or wait_ms > had_left_ms + 2 then
    -- The message may reach the caller much later in a cluster; it has checked the data already.
    redis.pcall('PUBLISH', recovery, node_id ~= '' and 'verify ' .. wake or 'verify')
end
if begins then
    used_ms = math.max(used_ms, known_ms, longest_ms)
end
if is_stored and used_ms > 0 and used_ms >= longest_ms then
    redis.call('SET', longest_ttl, used_ms, 'PX', used_ms + TTL_IN_USE_MS)
    longest_ms = used_ms
end
return { request, now_us, epoch, begins and 1 or 0, revision, longest_ms, left_ms, subscribers[2], subscribers[6], may_count, went_back }
