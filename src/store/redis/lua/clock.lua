-- Included first: the clock of Redis, read once, because two readings within a script may differ.
--
-- Functions use redis.call instead of `call`: a function that is defined after many others pays more for a local
-- variable from before them than for two look-ups.

local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = (now_us - now_us % 1000) / 1000
