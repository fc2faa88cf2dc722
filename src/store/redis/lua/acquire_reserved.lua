-- Continues acquire.lua where its fast path ends: the fast path of a claim without options at the head of the queue of
-- a free lock, usually one reserved for it. ticket.lua describes the keys of a queue.
local _, _, record_head, last_fence_seen, queue_request = unpack(ARGV)
local process, liveness_ms, sequence, waits_until_ms
if #ARGV == 5 and has_stood then
    process, liveness_ms, sequence, waits_until_ms = string.match(queue_request, '^(%x+) %d+ (%d+) %d+ %d+ %d %d %d %d+ %d+ (%d+) (%d+)$')
end
if sequence and tonumber(waits_until_ms) >= now_ms then
    local lock_key, fence, ended, ticket = unpack(KEYS)
    local claim, owner = string.sub(record_head, 10, 25), string.sub(record_head, 26)
    -- MGET returns nil for a hash, and a lock with waiters is a hash.
    local known = call('MGET', lock_key, ended, ticket, fence)
    -- Between the process and the owner, the ticket has the time of the request.
    local begins = sequence .. ' - 1 1 ' .. process .. ' '
    local stands = known[3] and string.sub(known[3], 1, #begins) == begins
        and string.match(known[3], '^%d+ (.*)$', #begins + 1) == owner
    if stands and next_fence(known[4], last_fence_seen) == now_text and not known[1] and not known[2] then
        local slot, name = string.match(lock_key, LOCK_KEY_PATTERN)
        local queue, process_queue = slot .. 'q:' .. name, slot .. 'w:' .. process .. ':' .. name
        local state = call('HMGET', lock_key, 'w', 'h', 's', 'c')
        local is_free = state[1] and not (state[2] or state[3] or state[4])
        local head = is_free and call('ZRANGE', queue, 0, 0, 'WITHSCORES') or {}
        local first = head[1] == process and call('ZRANGE', process_queue, 0, 1, 'WITHSCORES') or {}
        if first[1] == claim and first[2] == head[2] then
            -- The first write: when memory is full, it fails before anything is done.
            call('SET', fence, now_text)
            call('DEL', lock_key, ticket)
            call('ZREM', process_queue, claim)
            if first[3] then
                call('ZADD', queue, first[4], process)
                -- The process polls, so its set of waiters stays alive.
                call('PEXPIRE', process_queue, liveness_ms)
            else
                call('ZREM', queue, process)
            end
            local ttl_ms = kept_ms - TOMBSTONE_MS
            local record = record_head .. struct.pack('>I4I8I6', ttl_ms, now_us, now_ms + ttl_ms)
            -- Redis is slow at converting numbers to text.
            local queue_ms = tonumber(liveness_ms) > TOMBSTONE_MS and liveness_ms or TOMBSTONE_MS_TEXT
            if call('PEXPIRE', queue, queue_ms) == 0 then
                -- No waiter is left.
                call('SET', lock_key, record, 'PX', kept_ms)
                return record
            end
            call('HSET', lock_key, 'w', state[1], 'h', claim, 'r', string.sub(record_head, 1, 8), 'f', now_text,
                'a', string.sub(now_text, 1, 13), 't', string.format('%d', ttl_ms), 'u', string.format('%d', now_ms + ttl_ms))
            if owner ~= '' then
                call('HSET', lock_key, 'o', owner)
            end
            call('PEXPIRE', lock_key, kept_ms)
            return record
        end
    end
end
