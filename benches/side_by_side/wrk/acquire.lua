-- Acquires locks of fresh names. The table's address is different in each run, so names are too.
local salt = tostring({}):sub(8)
local number = 0
wrk.method = "POST"
wrk.body = '{"ttl":"10s"}'
wrk.headers["Content-Type"] = "application/json"

function request()
    number = number + 1
    return wrk.format(nil, "/locks/orders-" .. salt .. "-" .. number)
end
