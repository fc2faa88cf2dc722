-- Included by scripts that are one step of a longer work: how long the step took.

-- How many microseconds have passed since the clock was read, unless it was set or Redis freezes it for scripts.
local function took()
    local later = redis.call('TIME')
    return math.max(later[1] * 1000000 + later[2] - now_us, 0)
end
