-- Takes a waiting claim out of the waiters of a process and keeps its place for a while.
-- KEYS: for each lock: lock
-- ARGV: request, process, keep_ms, limit, permits, for each lock: claim
-- Returns: request, now_ms, position or '' if it did not stand there, queue length, the blockades
local request, process, keep_ms, limit, permits = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local _, now_ms = now()
share_told(#KEYS)
local position, length = '', 0
local answer = { request, now_ms, position, length }
for number = 1, #KEYS do
    local it, claim = read(KEYS[number], now_ms), ARGV[5 + number]
    local sequence = redis.call('ZSCORE', line_key(it, process), claim)
    if sequence then
        local all, before = lengths(it, tonumber(sequence))
        if position == '' or before + 1 > position then
            position, length = before + 1, all
        end
        leave(it, process, claim)
        redis.call('PEXPIRE', ticket_key(it, claim), keep_ms)
        offer(it, now_ms)
    else
        -- The first waiter of the process may have cleared it away already, as left behind.
        local ticket = ticket_of(it, claim)
        if ticket and ticket.process == process then
            redis.call('PEXPIRE', ticket_key(it, claim), keep_ms)
        end
    end
    local what = obstacle(it, limit, tonumber(permits), now_ms)
    if what or it.last then
        answer[#answer + 1] = blockade(it, number, not what, now_ms)
    end
end
answer[3], answer[4] = position, length
return answer
