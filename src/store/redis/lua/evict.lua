-- Takes a lock away from those who hold it, a bounded number at a time.
-- KEYS: lock
-- ARGV: request, reason, skip, channel
-- Returns: request, now_ms, how many entries to skip the next time or '' if there is no next time, then the leases
local lock = KEYS[1]
local request, reason, skip, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local EVICTED_MAX = 500

local now_us, now_ms = now()
local it = read(lock)
local answer = { request, now_ms, '' }
if it.holder and it.until_ms > now_ms then
    spread(it)
    answer[4] = lease_in(it.key)
    tell(channel, now_us, 'evicted', it, it.key)
    local claim, delay_ms = it.holder, tonumber(it.lock_delay_ms) or 0
    -- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    vacate(it)
    redis.call('SET', ended_key(it, claim), 'v' .. reason, 'PX', REMEMBERED_MS)
    close(it, now_ms + delay_ms, now_ms)
elseif it.limit then
    skip = tonumber(skip)
    local members = redis.call('ZRANGE', holders_key(it), skip, skip + EVICTED_MAX - 1)
    for _, member in ipairs(members) do
        local claim = string.sub(member, 1, 16)
        local record = holder_key(it, claim)
        local lease = redis.call('HMGET', record, 'u', 'd')
        if not lease[1] then
            skip = skip + 1
        else
            if tonumber(lease[1]) > now_ms then
                answer[#answer + 1] = lease_in(record)
            end
            tell(channel, now_us, tonumber(lease[1]) > now_ms and 'evicted' or 'expired', it, record)
            redis.call('DEL', record)
            local mark = tonumber(lease[1]) > now_ms and 'v' .. reason or EXPIRED
            redis.call('SET', ended_key(it, claim), mark, 'PX', REMEMBERED_MS)
            local open_ms = now_ms + (tonumber(lease[2]) or 0)
            give_back(it, member, open_ms, now_ms)
            -- What keeps its permits for a while comes to stand elsewhere in the order; it is met again and skipped then.
        end
    end
    if #members == EVICTED_MAX then
        answer[3] = skip
    end
    close_if_left(it)
end
offer(it, now_ms)
return answer
