-- Undoes what an attempt was granted, or keeps it from being granted should its request arrive late.
-- KEYS: for each lock: lock, ended
-- ARGV: attempt, channel, for each lock: claim
-- Returns: attempt, how many grants were undone
local attempt, channel = ARGV[1], ARGV[2]

local now_us, now_ms = now()
local undone = 0
for number = 1, #KEYS / 2 do
    local it, ended, claim = read(KEYS[number * 2 - 1], now_ms), KEYS[number * 2], ARGV[2 + number]
    -- A lease that ran out before anybody was told of it is undone like any other: it closes nothing.
    local record = it.limit and holder_key(it, claim)
    if it.holder == claim then
        spread(it)
        record = it.key
    end
    if record and redis.call('HGET', record, 'r') == attempt then
        undone = undone + 1
        tell(channel, now_us, 'released', it, record)
        if record == it.key then
            vacate(it)
        else
            local permits = redis.call('HGET', record, 'k')
            redis.call('DEL', record)
            give_back(it, claim .. permits, 0, now_ms)
            close_if_left(it)
        end
        offer(it, now_ms)
    end
    -- One attempt may ask many times: an ask that is late must not be granted what another one was.
    local mark = redis.call('GET', ended) or 'c'
    if string.sub(mark, 1, 1) == 'c' and not string.find(mark, attempt, 2, true) then
        redis.call('SET', ended, mark .. attempt, 'PX', REMEMBERED_MS)
    end
end
return { attempt, undone }
