-- Extends leases, all or none; never creates one. May change an exclusive lease to shared.
-- KEYS: for each lock: lock_key
-- ARGV: not_after, for each lock: caller, at the end: ttl_ms, mode, limit, permits, channel, withdrawable, is_repeat
-- Returns: request, code, then by code: 1 extended: now_ms, and for each lock ms that were left, ms that the lock stays
--   taken or closed without further operations, the lease; 0 not the holder: number of the lock and mark of each that
--   is not held; 11 the claim has other parameters, 12 it holds shared: number; 16 it came too late, and nothing was
--   done: now_us.
--   The fast path packs its answer: 1 extended: now_ms, ms that were left, the compact record
local not_after = ARGV[1]

-- The client has got an unknown outcome, and may have retried since.
if now_us > not_after + 0 then
    return { string.sub(ARGV[2], 1, 8), TOO_LATE, now_us }
end

-- Fast path: the claim holds the lock exclusively and keeps it so, no claim waits, and no process wants events. A
-- caller is the request and the claim; lease.lua describes the compact record.
if #KEYS == 1 and #ARGV <= 3 then
    local lock_key, caller = KEYS[1], ARGV[2]
    local record = call('MGET', lock_key)[1]
    if record and string.sub(record, 10, 25) == string.sub(caller, 9, 24) then
        local had_ttl_ms, granted_us, until_ms = struct.unpack('>I4I8I6', record, #record - 17)
        if until_ms > now_ms then
            local ttl_ms = ARGV[3] or had_ttl_ms
            local kept_ms = ttl_ms + TOMBSTONE_MS
            -- From now on no attempt may roll the grant back.
            record = NO_ATTEMPT .. string.sub(record, 9, -19) .. struct.pack('>I4I8I6', ttl_ms, granted_us, now_ms + ttl_ms)
            -- PEXPIRE is allowed when memory is full, and a script that has written may keep writing.
            if redis.pcall('SET', lock_key, record, 'PX', kept_ms).err then
                call('PEXPIRE', lock_key, kept_ms)
                call('SET', lock_key, record, 'PX', kept_ms)
            end
            return string.sub(caller, 1, 8) .. EXTENDED_TEXT .. struct.pack('>I6I6', now_ms, until_ms - now_ms) .. record
        end
    end
end
