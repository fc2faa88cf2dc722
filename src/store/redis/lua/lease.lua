-- Included by scripts once their fast path is out of the question: a lock's record, who holds it, and what is told to
-- those who watch.
--
-- A lock is a hash. Held by one claim alone it is that claim's record: h claim digest, r attempt that nobody was told of
-- yet, f fencing token, a acquired (ms), u end of the lease (ms), t TTL (ms), n hold count if not 1, o owner, m metadata,
-- i min_hold (ms), x latest end (ms), d lock_delay (ms), y present once its expiry was told. A lease that a stream holds or has
-- held has j, the attempts that held it in turn: first that of the grant, last those of the streams that took it over. One
-- that was changed by requests that had to be sent again has z, the last of those: an earlier try of theirs that arrives now
-- changes nothing.
-- Held by several it has s, their common limit (0 for none), and k, the permits taken; each has a record of its own (with
-- the same fields, and s and k of its own) and an entry in the set of holders: digest and permits, scored by the end.
-- What min_hold or lock_delay keep taken after an end is an entry without a record. In place of the digest it has 8 zero
-- bytes and the fencing token (8) of the lease that ended: the same claim may hold again meanwhile. Beside them are e, how
-- many such entries there are, and l, the longest time (ms) for which an entry was ever made. A closed lock has c, the moment
-- (ms) from which it may be granted, and l, for how long it was closed. What a waited-for lock has beside is told in queue.lua.
-- Times are moments of Redis's clock, which may be set back. What was acquired later than now, or ends later than its own
-- length from now, was written before the clock went back, and is made to end its own length from now: no lock stays closed
-- for longer than its settings say, and no lease that is alive is cut short. All processes are told, because that end comes
-- early if the clock is set right again.
-- The record of a lease without hold count, metadata, min_hold, max_hold and lock_delay is written in a compact form first,
-- which takes the least time and memory: a string, packed from the attempt (8 bytes, 0 when it is nobody's affair any
-- more), '1', the claim (16), the owner, the TTL in ms (4), the fencing token, which such a grant takes from the clock (8),
-- and the end (6). The fast paths know that form, and what only looks at a lock; what changes the record makes a hash of it.
-- A mark of an ended claim is a string: one of those below, v<reason> evicted, or c<attempts>: not ended, but these
-- attempts, at most WITHDRAWN_MAX, were withdrawn, and are refused should their requests arrive late. As long as nobody but
-- the attempt that made the grant was told of a lease that ran out, its mark goes on with the attempt (8), the fencing
-- token (8), the permits (4) and the withdrawn attempts: the withdrawal of that attempt makes the claim one that never held.
-- A record outlives its lease by REMEMBERED_MS, so that the claim can be told that it expired.
--
-- The keys that a script is not given share the slot of the lock that it is given.

-- How many expired holders one script clears away.
local REAPED_MAX = 500

-- Of how many holders one answer tells, and with how many bytes of owners and metadata: over all of its locks together.
local LISTED_MAX, LISTED_BYTES_MAX = 100, 65536
-- Among how many entries of a lock it looks for holders to tell of.
local LOOKED_AT_MAX = 1000
-- Of how many holders of each lock the answer tells, and how many bytes it has left.
local listed_of_lock_max, listed_bytes_left = LISTED_MAX, LISTED_BYTES_MAX

-- How many withdrawn attempts of one claim are remembered, the latest, how many that held a lease in turn, and how many
-- requests that were sent again. A client that hangs up again and again must not make a key grow.
local WITHDRAWN_MAX, TURNS_MAX, REPEATED_MAX = 32, 32, 32

-- The attempt of a lease that nobody may roll back any more.
local NOBODY = '\0\0\0\0\0\0\0\0'

-- Redis keeps small whole numbers once for all keys, so that these marks take no memory of their own.
local RELEASED, EXPIRED, LOST = '1', '2', '3'

-- The lease in a compact record, in the order of `lease_in`; then whose it is. Nothing if there is no compact record.
local function compact_lease(lock_key)
    -- MGET takes a hash for nothing, where GET would fail.
    local record = redis.call('MGET', lock_key)[1]
    if not record then
        return nil
    end
    local ttl_ms, granted_us, until_ms = struct.unpack('>I4I8I6', record, #record - 17)
    local owner = string.sub(record, 26, -19)
    local lease = { string.format('%.0f', granted_us), math.floor(granted_us / 1000), until_ms, ttl_ms, false, owner, false, false, false }
    return lease, string.sub(record, 10, 25), string.sub(record, 1, 8)
end

-- A lock as it is stored.
local function read_stored(lock_key)
    local lease, claim, attempt = compact_lease(lock_key)
    if lease then
        return {
            key = lock_key, compact = lease, attempt = attempt, holder = claim,
            acquired_ms = lease[2], until_ms = lease[3], ttl_ms = lease[4],
        }
    end
    local record = redis.call('HMGET', lock_key, 'h', 'u', 'a', 't', 'c', 'i', 'd', 's', 'k', 'l', 'w', 'p', 'v', 'g')
    return {
        key = lock_key, holder = record[1], until_ms = tonumber(record[2]), acquired_ms = tonumber(record[3]),
        ttl_ms = tonumber(record[4]), open_ms = tonumber(record[5]), min_hold_ms = record[6], lock_delay_ms = record[7],
        limit = record[8], taken = tonumber(record[9]), longest_ms = tonumber(record[10]),
        last = record[11], reserved_for = record[12], reservation_until_ms = tonumber(record[13]), reservation_ms = tonumber(record[14]),
    }
end

-- Makes a hash of a compact record, before anything in it changes or the lock has more to tell.
local function to_hash(lock)
    local lease = lock.compact
    if not lease then
        return
    end
    local kept_ms = redis.call('PTTL', lock.key)
    -- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    redis.call('DEL', lock.key)
    redis.call('HSET', lock.key, 'h', lock.holder, 'f', lease[1], 'a', lease[2], 'u', lease[3], 't', lease[4])
    if lock.attempt ~= NOBODY then
        redis.call('HSET', lock.key, 'r', lock.attempt)
    end
    if lease[6] ~= '' then
        redis.call('HSET', lock.key, 'o', lease[6])
    end
    redis.call('PEXPIRE', lock.key, kept_ms)
    lock.compact = nil
end

-- Tells all processes, once, that the clock was set back, so that each of them notices should it be set right: what is put
-- right here would end early then.
local is_step_told = false
local function tell_of_step(now_ms)
    if not is_step_told then
        is_step_told = true
        -- Without the right to the channel they learn of it when they look at the store the next time.
        redis.pcall('PUBLISH', 'lh:1:clock', now_ms)
    end
end

-- Moves the times of a lease back that was written before the clock was set back: it was acquired by now, ends its TTL from
-- now at the latest, or `lasts_max_ms`, and holds no longer than its max_hold. Returns when it ends and whether that has
-- changed; nothing if there is no such record.
local function shift_lease(record, lasts_max_ms, now_ms)
    local times = redis.call('HMGET', record, 'u', 'a', 't', 'x')
    if not times[1] then
        return nil
    end
    local until_ms, acquired_ms, ceiling_ms = tonumber(times[1]), tonumber(times[2]), tonumber(times[4])
    local behind_ms = math.max(until_ms - now_ms - math.min(tonumber(times[3]), lasts_max_ms), 0)
    if behind_ms == 0 and acquired_ms <= now_ms then
        return until_ms, false
    end
    local shifted_ms = math.min(acquired_ms - behind_ms, now_ms)
    -- PEXPIRE goes first: it is allowed when memory is full, and once a script has written it may go on writing.
    redis.call('PEXPIRE', record, redis.call('PTTL', record))
    until_ms = until_ms - behind_ms
    if ceiling_ms then
        ceiling_ms = ceiling_ms - acquired_ms + shifted_ms
        until_ms = math.min(until_ms, ceiling_ms)
        redis.call('HSET', record, 'x', ceiling_ms)
    end
    redis.call('HSET', record, 'u', until_ms, 'a', shifted_ms)
    tell_of_step(now_ms)
    return until_ms, true
end

-- A lock as it is, now that the clock may have been set back since it was stored.
local function read(lock_key, now_ms)
    local lock = read_stored(lock_key)
    -- A compact record keeps when it was granted, for its fencing token, however late it is renewed.
    if lock.holder and (lock.until_ms - now_ms > lock.ttl_ms or not lock.compact and lock.acquired_ms > now_ms) then
        to_hash(lock)
        shift_lease(lock_key, math.huge, now_ms)
        lock = read_stored(lock_key)
    end
    if lock.open_ms and lock.open_ms - now_ms > (lock.longest_ms or 0) then
        lock.open_ms = now_ms + (lock.longest_ms or 0)
        redis.call('PEXPIRE', lock_key, redis.call('PTTL', lock_key))
        redis.call('HSET', lock_key, 'c', lock.open_ms)
        tell_of_step(now_ms)
    end
    return lock
end

-- What comes before and after the kind in the keys of a lock: its slot and its name.
local function split_key(lock)
    if not lock.slot then
        lock.slot, lock.name = string.match(lock.key, '^(lh:1:{%d+}:)l:(.*)$')
    end
    return lock.slot, lock.name
end

local function holders_key(lock)
    local slot, name = split_key(lock)
    return slot .. 's:' .. name
end

local function holder_key(lock, claim)
    return split_key(lock) .. 'h:' .. claim
end

local function ended_key(lock, claim)
    return split_key(lock) .. 'e:' .. claim
end

-- Lets a key live at least so long.
local function extend_ttl(key, keep_ms)
    if redis.call('PTTL', key) < keep_ms then
        redis.call('PEXPIRE', key, keep_ms)
    end
end

-- Tells those who watch, if there are any. Where there is no record, whose doing it is has to be said.
local listed = 0
local function publish_event(channel, now_us, kind, lock, record, owner)
    if channel == '' then
        return
    end
    listed = listed + 1
    local _, name = split_key(lock)
    local lease = record and redis.call('HMGET', record, 'f', 'u', 'o') or {}
    -- A user without the right to the channel does what it does all the same.
    redis.pcall('PUBLISH', channel, string.format('%.0f.%d %s %s %s %s %s',
        now_us, listed, kind, name, lease[1] or '-', lease[2] or '-', lease[3] or owner or ''))
end

-- Whether a request that was sent again has changed a lease before, by what its record says of such requests.
local function is_done(repeated, request)
    return repeated and string.find(repeated, request, 1, true)
end

-- Takes note of a request that was sent again, in a record that it has changed.
local function note_repeat(record, repeated, request)
    redis.call('HSET', record, 'z', string.sub((repeated or '') .. request, -8 * REPEATED_MAX))
end

-- Clears away the record of a lock and what nobody but its holder needs.
local function delete_lease(lock)
    redis.call('DEL', lock.key)
    lock.holder, lock.limit, lock.open_ms, lock.longest_ms, lock.reserved_for = nil, nil, nil, nil, nil
    if lock.last then
        redis.call('HSET', lock.key, 'w', lock.last)
        redis.call('PEXPIRE', lock.key, TOMBSTONE_MS)
    end
end

-- Leaves behind, once a record is cleared away, that the lock may not be granted for a while.
local function start_cooldown(lock, open_ms, now_ms)
    if open_ms > now_ms then
        lock.open_ms, lock.longest_ms = open_ms, open_ms - now_ms
        redis.call('HSET', lock.key, 'c', open_ms, 'l', lock.longest_ms)
        extend_ttl(lock.key, lock.longest_ms)
    end
end

-- Takes note of how long an entry among the holders may last.
local function note_longest(lock, lasts_ms)
    if lasts_ms > (lock.longest_ms or 0) then
        lock.longest_ms = lasts_ms
        redis.call('HSET', lock.key, 'l', lasts_ms)
    end
end

-- Whether an entry among the holders is only kept taken. Most are not, so that they must not even become shorter texts.
local function is_kept(member)
    return string.byte(member) == 0 and string.sub(member, 1, 8) == NOBODY
end

-- Gives back what one of several holders took: now, or from `open_ms` on, by the fencing token of the lease that ended.
local function return_permits(lock, member, open_ms, now_ms, fence)
    local holders = holders_key(lock)
    redis.call('ZREM', holders, member)
    if is_kept(member) then
        redis.call('HINCRBY', lock.key, 'e', -1)
    end
    if open_ms > now_ms then
        note_longest(lock, open_ms - now_ms)
        -- Not the claim: its next lease must not take the place of what this one keeps taken.
        local kept = struct.pack('>I8I8', 0, tonumber(fence))
        redis.call('ZADD', holders, open_ms, kept .. string.sub(member, 17))
        redis.call('HINCRBY', lock.key, 'e', 1)
        extend_ttl(holders, open_ms - now_ms)
        extend_ttl(lock.key, open_ms - now_ms)
        return
    end
    lock.taken = redis.call('HINCRBY', lock.key, 'k', -tonumber(string.sub(member, 17)))
end

-- Forgets that the lock is shared once nobody has a part in it.
local function end_sharing_if_empty(lock)
    if redis.call('EXISTS', holders_key(lock)) == 0 then
        redis.call('HDEL', lock.key, 's', 'k', 'l', 'e')
        lock.limit, lock.taken, lock.longest_ms = nil, nil, nil
    end
end

-- Makes a claim one of several holders; its record is the caller's affair.
local function share(lock, claim, limit, permits, until_ms, kept_ms, now_ms)
    local holders = holders_key(lock)
    if lock.limit then
        lock.taken = redis.call('HINCRBY', lock.key, 'k', permits)
    else
        redis.call('DEL', holders)
        redis.call('HSET', lock.key, 's', limit, 'k', permits)
        lock.limit, lock.taken = limit, tonumber(permits)
    end
    redis.call('ZADD', holders, until_ms, claim .. permits)
    note_longest(lock, until_ms - now_ms)
    extend_ttl(holders, kept_ms)
    extend_ttl(lock.key, kept_ms)
end

-- Puts right the lease of one of several holders. Returns when it ends; nothing if the claim has none.
local function shift_holder(lock, claim, now_ms)
    local record = holder_key(lock, claim)
    local until_ms, is_shifted = shift_lease(record, lock.longest_ms or math.huge, now_ms)
    if is_shifted then
        redis.call('ZADD', holders_key(lock), until_ms, claim .. redis.call('HGET', record, 'k'))
    end
    return until_ms
end

-- Puts right an entry among the holders, with its lease if it has one.
local function shift_entry(lock, member, end_ms, now_ms)
    local end_max_ms = now_ms + lock.longest_ms
    if not shift_holder(lock, string.sub(member, 1, 16), now_ms) and end_ms > end_max_ms then
        -- ZREM goes first: it is allowed when memory is full, and once a script has written it may go on writing.
        redis.call('ZREM', holders_key(lock), member)
        redis.call('ZADD', holders_key(lock), end_max_ms, member)
        tell_of_step(now_ms)
    end
end

-- Puts right what shows among the holders that it was written before the clock was set back.
local function shift_holders(lock, now_ms)
    if not lock.longest_ms then
        return
    end
    local behind = '(' .. now_ms + lock.longest_ms
    local ahead = redis.call('ZRANGEBYSCORE', holders_key(lock), behind, '+inf', 'WITHSCORES', 'LIMIT', 0, REAPED_MAX)
    for index = 1, #ahead, 2 do
        shift_entry(lock, ahead[index], tonumber(ahead[index + 1]), now_ms)
    end
end

-- Marks a claim whose lease ran out. `attempt` made the grant, as long as nobody else was told of it.
local function mark_run_out(lock, claim, how, attempt, fence, permits, keep_ms)
    local ended = ended_key(lock, claim)
    local mark = how
    if attempt then
        local before = redis.call('GET', ended) or ''
        local withdrawn = string.sub(before, 1, 1) == 'c' and string.sub(before, 2) or ''
        local lease = struct.pack('>I8I4', tonumber(fence), tonumber(permits))
        mark = how .. attempt .. lease .. withdrawn
    end
    redis.call('SET', ended, mark, 'PX', keep_ms)
end

-- The attempt that made a grant, as long as nobody else was told of it.
local function unacknowledged_attempt(attempt, turns)
    return attempt and attempt ~= NOBODY and string.sub(turns or attempt, 1, 8) == attempt and attempt
end

-- Clears away one of several holders, whose lease ran out.
local function expire_holder(lock, member, now_us, now_ms, channel)
    local claim = string.sub(member, 1, 16)
    local record = holder_key(lock, claim)
    local lease = redis.call('HMGET', record, 'u', 'a', 'i', 'd', 'f', 'r', 'j')
    local open_ms = 0
    if lease[1] then
        local until_ms = tonumber(lease[1])
        publish_event(channel, now_us, 'expired', lock, record)
        -- DEL goes first: it is allowed when memory is full, and once a script has written it may go on writing.
        redis.call('DEL', record)
        if until_ms + TOMBSTONE_MS > now_ms then
            mark_run_out(lock, claim, EXPIRED, unacknowledged_attempt(lease[6], lease[7]), lease[5],
                string.sub(member, 17), until_ms + TOMBSTONE_MS - now_ms)
        end
        open_ms = closed_until(tonumber(lease[2]), until_ms, lease[3], lease[4])
    end
    return_permits(lock, member, open_ms, now_ms, lease[5])
end

-- Clears away holders whose leases ran out.
local function expire_holders(lock, now_us, now_ms, channel)
    shift_holders(lock, now_ms)
    local over = redis.call('ZRANGEBYSCORE', holders_key(lock), '-inf', now_ms, 'LIMIT', 0, REAPED_MAX)
    for _, member in ipairs(over) do
        expire_holder(lock, member, now_us, now_ms, channel)
    end
    end_sharing_if_empty(lock)
end

-- The record of a claim's lease if the claim holds, or how it came not to: EXPIRED, or n it has none.
local function record_of(lock, claim, now_ms)
    if lock.holder == claim then
        if lock.until_ms <= now_ms then
            return false, EXPIRED
        end
        to_hash(lock)
        return lock.key
    end
    if lock.limit then
        local until_ms = shift_holder(lock, claim, now_ms)
        if until_ms then
            return until_ms > now_ms and holder_key(lock, claim), EXPIRED
        end
    end
    return false, 'n'
end

-- How a claim ended by its mark, or nothing if it has not.
local function how_ended(mark)
    local kind = mark and string.sub(mark, 1, 1)
    if kind == 'v' then
        return mark
    end
    return kind ~= 'c' and kind
end

-- Why a claim does not hold the lock: it expired, or its mark, or u unknown.
local function why_not(how, ended)
    if how == EXPIRED then
        return how
    end
    return how_ended(redis.call('GET', ended)) or 'u'
end

-- For how long nobody holds the lock and it stays closed all the same; 0 or less if it is open.
local function closed_ms(lock, now_ms)
    if lock.holder then
        return closed_until(lock.acquired_ms, lock.until_ms, lock.min_hold_ms, lock.lock_delay_ms) - now_ms
    end
    return (lock.open_ms or 0) - now_ms
end

-- The answer is about so many locks, and tells as much of each.
local function share_answer_room(locks)
    listed_of_lock_max = math.max(math.floor(LISTED_MAX / locks), 1)
end

-- Adds a lease to those that the answer tells of. The first one that has no room ends that for all that follow, so that
-- nothing more is read in vain.
local function add_listed(leases, lease)
    listed_bytes_left = listed_bytes_left - #(lease[6] or '') - #(lease[7] or '')
    if listed_bytes_left >= 0 then
        leases[#leases + 1] = lease
    end
end

-- How many share a lock. What is only kept taken is among the holders, and stays there until somebody asks for the lock.
local function sharers(lock, now_ms)
    local holders = holders_key(lock)
    local all = redis.call('ZCOUNT', holders, '(' .. now_ms, '+inf')
    local kept = tonumber(redis.call('HGET', lock.key, 'e') or 0)
    if kept > 0 then
        for _, member in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, REAPED_MAX)) do
            kept = kept - (is_kept(member) and 1 or 0)
        end
    end
    return all - kept
end

-- How many share a lock, and those of them that the answer tells of. Of those behind very many that are only kept taken it
-- does not tell.
local function shared_by(lock, now_ms)
    local total, leases = sharers(lock, now_ms), {}
    -- Of most locks the first few are enough. More of them are looked at while those are only kept taken.
    local offset, step = 0, listed_of_lock_max
    while total > 0 and offset < LOOKED_AT_MAX do
        local members = redis.call('ZRANGEBYSCORE', holders_key(lock), '(' .. now_ms, '+inf', 'LIMIT', offset, step)
        for _, member in ipairs(members) do
            if #leases < listed_of_lock_max and listed_bytes_left >= 0 and not is_kept(member) then
                local lease = lease_in(holder_key(lock, string.sub(member, 1, 16)))
                if lease[1] then
                    add_listed(leases, lease)
                else
                    total = total - 1
                end
            end
        end
        if #members < step or #leases >= listed_of_lock_max or listed_bytes_left < 0 then
            break
        end
        offset, step = offset + step, LISTED_MAX
    end
    return total, leases
end

-- What a lock is doing: h with how many hold it and the leases that end first, c with the ms that it stays closed, or f.
local function state(lock, now_ms)
    if lock.holder and lock.until_ms > now_ms then
        local leases = {}
        if listed_bytes_left >= 0 then
            add_listed(leases, lock.compact or lease_in(lock.key))
        end
        return { 'h', 1, leases }
    end
    local left_ms = closed_ms(lock, now_ms)
    if lock.limit then
        local total, leases = shared_by(lock, now_ms)
        if total > 0 then
            return { 'h', total, leases }
        end
        left_ms = (tonumber(redis.call('ZRANGE', holders_key(lock), -1, -1, 'WITHSCORES')[2]) or 0) - now_ms
    end
    return left_ms > 0 and { 'c', left_ms } or { 'f' }
end

-- What keeps a lock from a claim, and for how long at the most if nobody does anything: h holders, c it is closed,
-- l another limit. Nothing if the lock admits it. `limit` is empty for a claim that wants to be alone.
local function conflict(lock, limit, permits, now_ms)
    if lock.holder and lock.until_ms > now_ms then
        return 'h', lock.until_ms - now_ms
    end
    if not lock.limit then
        local left_ms = closed_ms(lock, now_ms)
        return left_ms > 0 and 'c' or nil, left_ms
    end
    if limit ~= '' and limit ~= lock.limit then
        -- What is only kept taken for a while does not insist on its limit.
        local doing = state(lock, now_ms)
        return doing[1] == 'h' and 'l' or 'c', doing[2]
    end
    if limit == '' or limit ~= '0' and lock.taken + permits > tonumber(limit) then
        local first = redis.call('ZRANGE', holders_key(lock), 0, 0, 'WITHSCORES')
        return 'h', math.max((tonumber(first[2]) or now_ms) - now_ms, 1)
    end
    return nil
end
