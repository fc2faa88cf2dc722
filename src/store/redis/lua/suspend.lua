-- Removes a waiting claim from the waiters of a process and keeps its place for a while.
-- KEYS: for each lock: lock_key
-- ARGV: request, process, keep_ms, limit, permits, lists_conflicts, for each lock: claim
-- Returns: request, now_ms, position or '' if it was not queued, queue length, the conflicts if listed
-- include: clock reservation
local request, process, keep_ms, limit, permits, lists_conflicts = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

share_answer_room(#KEYS)
local position, length = '', 0
local answer = { request, now_ms, position, length }
for number = 1, #KEYS do
    local lock, claim = read(KEYS[number]), ARGV[6 + number]
    local waiting = tonumber(call('ZSCORE', process_queue_key(lock, process), claim))
    local ticket = not waiting and ticket_of(lock, claim)
    local all, before = lengths(lock, waiting or ticket and ticket.sequence)
    local what = conflict(lock, limit, tonumber(permits))
    if lists_conflicts == '1' and (what or before > 0) then
        answer[#answer + 1] = describe_conflict(lock, number, not what)
    end
    if waiting then
        if position == '' or before + 1 > position then
            position, length = before + 1, all
        end
        leave(lock, process, claim)
        call('PEXPIRE', ticket_key(lock, claim), keep_ms)
        reserve(lock)
    elseif ticket and ticket.process == process then
        -- The first waiter of the process has removed it already, as left over.
        call('PEXPIRE', ticket_key(lock, claim), keep_ms)
    end
end
answer[3], answer[4] = position, length
return answer
