-- Acquires locks that stay.
local salt = tostring({}):sub(8)
local number = 0
wrk.method = "POST"
wrk.body = "ttl=1h"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"

function request()
    number = number + 1
    return wrk.format(nil, "/locks/held-" .. salt .. "-" .. number)
end
