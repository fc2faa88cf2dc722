-- Announces a TTL to all processes before a lease with it is reported.
-- KEYS: node, longest_ttl
-- ARGV: request, epoch, ttl_ms, channel
-- Returns: request, 1 if it is known now; 0 if the data are of another epoch than the lease
local node, longest_ttl = KEYS[1], KEYS[2]
local request, epoch, ttl_ms, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HGET', node, 'epoch') ~= epoch then
    return { request, 0 }
end
if tonumber(ttl_ms) > tonumber(redis.call('GET', longest_ttl) or 0) then
    -- PEXPIRE first: it is allowed when memory is full, and a script that has written may keep writing.
    redis.call('PEXPIRE', longest_ttl, TTL_IN_USE_MS)
    -- For as long as the TTL counts as in use, see recovery.lua.
    redis.call('SET', longest_ttl, ttl_ms, 'PX', ttl_ms + TTL_IN_USE_MS)
end
if channel ~= '' then
    -- Without the right to channels, the other processes learn it at their next check of the store.
    redis.pcall('PUBLISH', channel, 'ttl ' .. epoch .. ' ' .. ttl_ms)
end
return { request, 1 }
