-- Included by scripts first: the clock of Redis, read once, because two readings within a script may differ.
--
-- Functions use redis.call instead of `call`: a function that is defined after many others pays more for a local
-- variable from before them than for two look-ups.

local call = redis.call
local time = call('TIME')
-- As text, built from Redis' own digits: converting a number loses digits or is slow.
local now_text = time[1] .. (#time[2] == 6 and time[2] or string.sub('00000' .. time[2], -6))
local now_us = now_text + 0
local now_ms = (now_us - now_us % 1000) / 1000
