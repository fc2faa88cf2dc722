-- Locks fresh names in etcd, all under one lease, which is the script's argument. Sixteen letters and digits are valid
-- base64, which is how the gateway wants a name.
local salt = tonumber(tostring({}):sub(-6), 16) % 1000000
local number, lease = 0, nil
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

function init(args)
    lease = args[1]
end

function request()
    number = number + 1
    local name = string.format("%06d%010d", salt, number)
    return wrk.format(nil, "/v3/lock/lock", nil, '{"name":"' .. name .. '","lease":"' .. lease .. '"}')
end
