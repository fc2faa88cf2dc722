-- Part of recovery.lua: how it decides whether data were lost, and what it writes.

-- Whether the slot has moved here with all data: from another primary, which is one still, and of which this one was no
-- replica.
local function has_moved()
    local former, former_replid = data[7], data[8]
    return former and former ~= node_id and promoted_from ~= former_replid
        and string.find(' ' .. primaries .. ' ', ' ' .. former .. ' ', 1, true)
end

-- Whether a new epoch begins, and how long new grants then wait.
local function detect_loss()
    local begins, wait_ms = not epoch, math.max(settle, longest_ms, known_ms)
    if not epoch and not is_known and longest_ms == 0 then
        -- A new store, as far as this process knows. Connected processes may know more, and get time to report it.
        wait_ms = math.max(tonumber(empty_start_ms), subscribers[4] > 0 and settle or 0)
    elseif epoch and (data[2] ~= run_id or promoted_from ~= '' and promoted_from ~= data[5]) and not has_moved() then
        -- After a restart the data are complete if they were on disk before, are now, and no replica can have taken
        -- over.
        begins = not (data[3] == '1' and is_durable == '1' and promoted_from == '')
    end
    if is_known and not begins then
        -- Data older than what the process has seen were restored.
        begins = tonumber(known_epoch) > tonumber(epoch)
            or is_same and (is_lost == '1' or tonumber(known_revision) > tonumber(data[4] or 0))
    end
    if begins then
        return true, wait_ms
    end
    if is_known and not is_same then
        -- The process missed a loss. What it knows counts from then on, however late it reports.
        return false, known_ms - math.max(0, math.floor((now_us - epoch) / 1000))
    end
    return false, 0
end

local function begin_epoch()
    -- No grant has a fence below the epoch. So the epoch exceeds all that the clock would have shown by now, had it
    -- never been set back.
    local later_than = math.max(tonumber(epoch) or 0, tonumber(known_epoch) or 0, tonumber(unset_us))
    epoch = string.format('%.0f', math.max(now_us, later_than + 1))
    local counters, missing = {}, {}
    for bucket = 1, only_tag == '' and BUCKETS or 1 do
        counters[bucket] = string.format(FENCE_KEY_FORMAT, only_tag == '' and bucket - 1 or only_tag)
    end
    for bucket, last in ipairs(redis.call('MGET', unpack(counters))) do
        -- Even an existing counter may lack the last fences, and the clock may have been set back since.
        if math.abs(last or 0) < tonumber(epoch) then
            missing[#missing + 1] = counters[bucket]
            missing[#missing + 1] = '-' .. epoch
        end
    end
    -- Redis writes several changes as a transaction to its append-only file, as it does for a grant: a Redis that drops
    -- transactions while it loads that file (its default user has no rights) has then lost the epoch along with the
    -- grants.
    redis.call('HSET', node, 'epoch', epoch)
    if missing[1] then
        redis.call('MSET', unpack(missing))
    end
end

-- Makes new grants wait at least that long. Returns how long they wait now, and how long they would have waited.
local function extend_grace(wait_ms)
    -- The value is how long the key was to last: a clock that steps back must not make it last longer.
    local granted_ms = tonumber(redis.call('GET', grace) or 0)
    local left_ms = math.max(0, redis.call('PTTL', grace))
    if left_ms > granted_ms then
        redis.call('PEXPIRE', grace, granted_ms)
        left_ms = granted_ms
    end
    if wait_ms > left_ms then
        redis.call('SET', grace, wait_ms, 'PX', wait_ms)
    end
    return math.max(wait_ms, left_ms), left_ms
end

-- Returns the revision, or 0 while Redis lacks replicas or cannot write to its disk: it can still be read then, and the
-- next check must not miss what was never stored. Any other refusal ends this script.
local function store_check(revision)
    local stored = redis.pcall('HSET', node, 'revision', revision, 'looked_ms', now_ms)
    if type(stored) == 'number' then
        return revision
    elseif string.find(stored.err, 'NOREPLICAS', 1, true) or string.find(stored.err, 'MISCONF', 1, true) then
        return 0
    end
    -- Refused again, in the words that Redis has for it.
    redis.call('HSET', node, 'revision', revision, 'looked_ms', now_ms)
    return revision
end
