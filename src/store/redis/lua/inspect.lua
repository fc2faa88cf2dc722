-- Tells what a lock is doing and who waits for it.
-- KEYS: lock
-- ARGV: request, channel
-- Returns: request, now_ms, what it is doing, how many wait, then of the first: sequence, limit, permits, owner
local lock = KEYS[1]
local request, channel = ARGV[1], ARGV[2]

local now_us, now_ms = now()
local it = read(lock, now_ms)
if it.limit then
    reap(it, now_us, now_ms, channel)
elseif channel ~= '' and it.holder and it.until_ms <= now_ms then
    -- Somebody watches: what has run out since the last look is told now.
    spread(it)
    if redis.call('HSETNX', it.key, 'y', '') == 1 then
        tell(channel, now_us, 'expired', it, it.key)
    end
end
local answer = { request, now_ms, state(it, now_ms), 0 }
if it.last then
    answer[4] = lengths(it)
    for _, process in ipairs(redis.call('ZRANGE', queue_key(it), 0, -1)) do
        local first = redis.call('ZRANGE', line_key(it, process), 0, 0)
        local ticket = first[1] and ticket_of(it, first[1])
        if ticket then
            return { request, now_ms, answer[3], answer[4], string.format('%.0f', ticket.sequence), ticket.limit, ticket.permits, ticket.owner }
        end
    end
end
return answer
