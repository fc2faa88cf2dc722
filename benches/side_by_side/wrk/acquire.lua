-- Acquires locks of fresh names. The table's address is different in each run, so names are too. An argument is the key.
local salt = tostring({}):sub(8)
local number = 0
wrk.method = "POST"
wrk.body = '{"ttl":"10s"}'
wrk.headers["Content-Type"] = "application/json"

function init(args)
    if args[1] and args[1] ~= "" then
        wrk.headers["Authorization"] = "Bearer " .. args[1]
    end
end

function request()
    number = number + 1
    return wrk.format(nil, "/locks/orders-" .. salt .. "-" .. number)
end
