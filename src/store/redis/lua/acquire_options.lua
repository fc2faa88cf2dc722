-- Part of acquire.lua: the options of a claim, and a fast path for a claim with options.
local queue_request, may_grant, limit, permits, is_fair, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, metadata, channel, takes_over, is_repeat, total =
    unpack(ARGV, 3 + #KEYS / 2)
queue_request = queue_request or ''
if not may_grant then
    -- A claim without options.
    may_grant, limit, permits, is_fair, hold_count = '1', '', '1', '1', '1'
    max_hold_ms, min_hold_ms, lock_delay_ms, metadata, channel, takes_over = '', '', '', '', '', '0'
end

-- Whether the claim is granted later, if at all, because it has locks in other partitions of a cluster, too; and how many
-- it has in all.
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
local attempt, owner, ttl_ms = record_head(1, 1, 8), record_head(1, 26, -1), kept_ms - TOMBSTONE_MS

-- The record of a new lease, its end, and how long the record is kept.
local function new_lease(claim, granted_text)
    local until_ms = now_ms + ttl_ms
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
    if takes_over == '1' then
        -- A late repeat of the grant must not pass for a takeover.
        set('j', attempt)
        set('b', '1')
    end
    if is_repeat then set('z', attempt) end
    return fields, until_ms, keep_ms(now_ms, until_ms, min_hold_ms)
end

-- Fast path for a claim whose record cannot be compact: nothing is known of the lock or the claim.
if #KEYS == 4 and limit == '' and channel == '' and may_grant == '1' then
    local lock_key, fence, ended, ticket = unpack(KEYS)
    local _, _, _, last_fence_seen = unpack(ARGV)
    if call('EXISTS', lock_key, ended, ticket) == 0 then
        local granted_text = next_fence(call('GET', fence), last_fence_seen)
        if granted_text then
            -- The first write: when memory is full, it fails before anything is done.
            call('SET', fence, granted_text)
            local fields, until_ms, kept_ms = new_lease(claim_on(1), granted_text)
            call('HSET', lock_key, unpack(fields))
            call('PEXPIRE', lock_key, kept_ms)
            return { attempt, GRANTED, now_ms, granted_text, now_ms, until_ms, '' }
        end
    end
end
