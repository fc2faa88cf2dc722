-- Removes a waiting claim from the waiters of a process and keeps its place for a while.
-- KEYS: for each lock: lock_key
-- ARGV: request, process, keep_ms, limit, permits, for each lock: claim
-- Returns: request, now_ms, position or '' if it was not queued, queue length, the conflicts
local request, process, keep_ms, limit, permits = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local _, now_ms = now()
share_answer_room(#KEYS)
local position, length = '', 0
local answer = { request, now_ms, position, length }
for number = 1, #KEYS do
    local lock, claim = read(KEYS[number], now_ms), ARGV[5 + number]
    local sequence = redis.call('ZSCORE', process_queue_key(lock, process), claim)
    if sequence then
        local all, before = lengths(lock, tonumber(sequence))
        if position == '' or before + 1 > position then
            position, length = before + 1, all
        end
        leave(lock, process, claim)
        redis.call('PEXPIRE', ticket_key(lock, claim), keep_ms)
        reserve(lock, now_ms)
    else
        -- The first waiter of the process may have removed it already, as left over.
        local ticket = ticket_of(lock, claim)
        if ticket and ticket.process == process then
            redis.call('PEXPIRE', ticket_key(lock, claim), keep_ms)
        end
    end
    local what = conflict(lock, limit, tonumber(permits), now_ms)
    if what or lock.last then
        answer[#answer + 1] = describe_conflict(lock, number, not what, now_ms)
    end
end
answer[3], answer[4] = position, length
return answer
