-- Reads the states and the queues of some locks, as many of them as a bounded step can.
-- KEYS: for each lock: lock_key
-- ARGV: request
-- Returns: request, us that it took, now_ms, then the public views of the locks, until they list enough
-- include: clock primary queue
local request = ARGV[1]

local answer = { request, 0, now_ms }
local listed, listed_bytes = 0, 0
for number = 1, #KEYS do
    listed_bytes_left = LISTED_BYTES_MAX
    local lock = read(KEYS[number])
    if number == 1 then
        require_primary(lock)
    end
    local seen = view(lock)
    answer[#answer + 1] = seen
    listed = listed + #(seen[1][3] or {})
    listed_bytes = listed_bytes + LISTED_BYTES_MAX - listed_bytes_left
    if listed >= LISTED_MAX or listed_bytes >= LISTED_BYTES_MAX then
        break
    end
end
answer[2] = took()
return answer
