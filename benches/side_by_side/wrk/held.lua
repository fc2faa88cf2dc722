-- Acquires, renews or releases locks whose names and tokens are the same in every run with the same salt. The argument is
-- the method, the salt of eight hexadecimal digits, and how many locks there are; renewals begin again after the last.
-- Lock 1 is never acquired: wrk makes the first request of a run only to look at it.
local method, salt, count
local number = 0

function init(args)
    method, salt, count = string.match(args[1], "^(%u+) (%x+) (%d+)$")
    count = tonumber(count)
end

function request()
    number = number + 1
    if number > count then
        assert(method == "PUT", "there are no more locks")
        number = 2
    end
    local path = "/locks/held-" .. salt .. "-" .. number
    local headers = { ["Lock-Token"] = string.format("%s-0000-4000-8000-%012x", salt, number) }
    if method == "POST" then
        headers["Content-Type"] = "application/json"
        return wrk.format(method, path, headers, '{"ttl":"60s"}')
    end
    return wrk.format(method, path, headers)
end
