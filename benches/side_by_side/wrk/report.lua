-- Included in every script: the figures as one line of JSON.
function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format('\nRESULT {"requests":%d,"us":%d,"p50_us":%d,"p99_us":%d,"refused":%d,"broken":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
