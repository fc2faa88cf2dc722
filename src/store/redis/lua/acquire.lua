-- Grants locks to a claim, all or none, or says why not; a claim that waits comes to stand in their queues.
-- KEYS: for each lock: lock, fence, ended, ticket
-- ARGV: attempt, may_grant, stand, limit, permits, is_fair, ttl_ms, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, owner, metadata, channel, for each lock: claim, last_fence_seen
-- Returns: attempt, code, then by code: 1 granted: now_ms and for each lock fence, acquired_ms, until_ms, ms that an
--   expired lease was held before or ''; 2 re-entered, 3 replayed: now_ms and the leases; 4 blocked: now_ms and the
--   blockades; 5 waiting: sequence, until_ms, ms until something runs out or '', position or '', queue length, whether the
--   place had been lost; 6 ended:
--   number of the lock, mark; 7 recovering; 8 a fencing counter went back; 9 a fencing counter is used up; 10 the attempt
--   was withdrawn; 11 claimed otherwise before, 12 held by several: number; 13 another limit: number, limit; 14 too many
--   waiters: number, how many; 15 overdue
local attempt, may_grant, stand, limit, permits, is_fair, ttl_ms, hold_count, max_hold_ms, min_hold_ms, lock_delay_ms, owner, metadata, channel =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14]

local FENCE_MAX = 9007199254740991

local now_us, now_ms = now()

-- The record of a new lease, when it ends, and how long the record is kept.
local function new_lease(claim, granted_text)
    local until_ms = now_ms + tonumber(ttl_ms)
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
    return fields, until_ms, keep_ms(now_ms, now_ms, until_ms, min_hold_ms)
end

-- The short way, which most claims go: nothing is known of lock or claim, so nobody holds it, waits for it, or keeps it closed.
-- It comes before everything that it does not need is even defined.
if #KEYS == 4 and limit == '' and channel == '' and may_grant == '1' then
    local lock, fence, ended, ticket, claim, last_fence_seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[15], ARGV[16]
    if redis.call('EXISTS', lock, ended, ticket) == 0 then
        local last = tonumber(redis.call('GET', fence) or 0)
        local granted = math.max(last + 1, now_us)
        if last >= tonumber(last_fence_seen) and granted <= FENCE_MAX then
            -- A number becomes text by an explicit format: every other way loses the last digits. This is also the first
            -- write: when memory is full it fails before anything is done.
            local granted_text = string.format('%.0f', granted)
            redis.call('SET', fence, granted_text)
            local fields, until_ms, kept_ms = new_lease(claim, granted_text)
            redis.call('HSET', lock, unpack(fields))
            redis.call('PEXPIRE', lock, kept_ms)
            return { attempt, 1, now_ms, granted_text, now_ms, until_ms, '' }
        end
    end
end
