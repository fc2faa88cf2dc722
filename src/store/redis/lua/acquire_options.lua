-- Part of acquire.lua: the options of a claim, and a fast path for a claim with options.
local queue_request, may_grant, limit, permits, is_fair, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, metadata, channel, takes_over, is_repeat, total, enters_queue =
    unpack(ARGV, 3 + #KEYS / 2)
queue_request = queue_request or ''
if not may_grant then
    -- A claim without options.
    may_grant, limit, permits, is_fair, hold_count = '1', '', '1', '1', '1'
    max_hold_ms, min_hold_ms, lock_delay_ms, metadata, channel, takes_over = '', '', '', '', '', '0'
end

-- Whether the claim is granted later, if at all, because it has locks in other partitions of a cluster, too; what its
-- tickets say about all of its locks; and enters_queue: 1 if its place here is a new one, though it has the sequence
-- number of another partition.
local is_asked = may_grant >= '3'
total = tonumber(total) or #KEYS / 4
is_repeat = is_repeat == '1'

-- Attempt and owner are the same for all locks.
local function record_head(number, from, to)
    return string.sub(ARGV[1 + number * 2], from, to)
end
local function claim_on(number)
    return record_head(number, 10, 25)
end
local attempt, owner, ttl_ms = record_head(1, 1, 8), record_head(1, 32, -1), kept_ms - TOMBSTONE_MS

local function new_lease(lock_key, claim, granted_text)
    local until_ms, options = now_ms + ttl_ms, {}
    if max_hold_ms ~= '' then
        options.ceiling_ms = now_ms + tonumber(max_hold_ms)
        until_ms = math.min(until_ms, options.ceiling_ms)
    end
    options.hold_count = hold_count ~= '1' and tonumber(hold_count) or nil
    options.min_hold_ms, options.lock_delay_ms = tonumber(min_hold_ms), tonumber(lock_delay_ms)
    options.metadata = metadata ~= '' and metadata or nil
    if takes_over == '1' then
        -- A late repeat of the grant must not pass for a takeover.
        options.turns, options.is_of_stream = attempt, true
    end
    options.repeated = is_repeat and attempt or nil
    return {
        key = lock_key, attempt = attempt, claim = claim, owner = owner, fence = tonumber(granted_text), acquired_ms = now_ms,
        ttl_ms = ttl_ms, until_ms = until_ms, options = options,
    }
end

-- Fast path for a claim with options: nothing is known of the lock or the claim.
if #KEYS == 4 and limit == '' and channel == '' and may_grant == '1' then
    local lock_key, fence, ended, ticket = unpack(KEYS)
    local _, _, _, last_fence_seen = unpack(ARGV)
    if call('EXISTS', lock_key, ended, ticket) == 0 then
        local granted_text = next_fence(call('GET', fence), last_fence_seen)
        if granted_text then
            -- The first write: when memory is full, it fails before anything is done.
            call('SET', fence, granted_text)
            local lease = new_lease(lock_key, claim_on(1), granted_text)
            write_lease(lease, keep_ms(lease))
            return { attempt, GRANTED, now_ms, granted_text, now_ms, lease.until_ms, '' }
        end
    end
end
