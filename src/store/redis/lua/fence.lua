-- Included by the script that grants: the fencing token. No other file computes one, except for the short cut below.

-- The next token of a bucket, as text: its counter + 1, or the clock if that is larger. Else nothing, and the code of
-- the answer: the counter shows that data were lost, because it is missing, it regressed, or it is unused in another
-- epoch than the one that the process knows; or there is no larger token. The counter of an unused bucket is the
-- negated epoch.
local function next_fence(counter, last_seen)
    -- The short cut, which acquire.lua repeats: nearly always the counter is behind the clock, or unused. Strings of 16
    -- digits compare like their numbers.
    local is_behind = counter and #counter == 16 and counter < now_text and counter >= last_seen and counter >= '1'
    local is_unused = counter == last_seen and #counter == 17 and string.sub(counter, 1, 1) == '-' and string.sub(counter, 2) < now_text
    if #now_text == 16 and (is_behind or is_unused) then
        return now_text
    end
    if not counter or string.sub(counter, 1, 1) == '-' and counter ~= last_seen or tonumber(counter) < tonumber(last_seen) then
        return nil, COUNTER_REGRESSED
    end
    local granted = math.max(math.abs(counter) + 1, now_us)
    if granted > FENCE_MAX then
        return nil, FENCES_EXHAUSTED
    end
    -- Numbers need an explicit format: any other conversion loses the last digits.
    return string.format('%.0f', granted)
end
