-- Acquires and releases in turn. What is released was acquired so many requests ago that its answer has long been there:
-- wrk does not say which connection a request will go to.
local salt = tostring({}):sub(8)
local prefix = string.format("%08x", tonumber(salt:sub(-8), 16) % 2 ^ 32)
local LAG = 4000
local number = 0
local form = "application/x-www-form-urlencoded"

local function path(of)
    return "/locks/pair-" .. salt .. "-" .. of
end

local function token(of)
    return string.format("%s-0000-4000-8000-%012x", prefix, of)
end

function request()
    number = number + 1
    if number % 2 == 1 or number <= LAG then
        return wrk.format("POST", path(number), { ["Lock-Token"] = token(number), ["Content-Type"] = form }, "ttl=60s")
    end
    local of = number - LAG + 1
    return wrk.format("DELETE", path(of), { ["Lock-Token"] = token(of) })
end
