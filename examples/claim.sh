# shellcheck shell=sh
# Acquires, renews and releases a lock with curl and jq. The other examples source this file; copy it along with them.
#
# Settings, from the environment:
#   LEASEHOLD_URL           the URL of the service; default http://127.0.0.1:7625
#   LEASEHOLD_API_KEY_FILE  the file with the API key, if the service needs one; it is read for each request
#   LEASEHOLD_API_KEY       the key itself, if there is no file
#   TTL_S                   for how many seconds the lock outlives this machine; default 30
#
# The token is made here and not by the service. So a request whose answer was lost, or was 503 with an unknown outcome, can
# be repeated with the same token, and finds the same claim.

: "${LEASEHOLD_URL:=http://127.0.0.1:7625}" "${TTL_S:=30}"
LEASEHOLD_URL=${LEASEHOLD_URL%/} api_key=''
# A lease that is renewed every third of the TTL survives a failure or two, and leaves a third in which to stop.
renew_s=$(((TTL_S + 2) / 3))

new_token() {
    token=$(uuidgen 2>/dev/null || cat /proc/sys/kernel/random/uuid)
}

# Passes secrets to curl by standard input, because everybody on the machine can read its command line.
headers() {
    echo "Lock-Token: $token"
    [ -z "$api_key" ] || echo "Authorization: Bearer $api_key"
}

# Sets $api_key. While its file cannot be read, it stays that of before, because the file may just be replaced.
read_key() {
    if [ -z "${LEASEHOLD_API_KEY_FILE-}" ]; then
        api_key=${LEASEHOLD_API_KEY-}
    elif in_file=$(cat "$LEASEHOLD_API_KEY_FILE") && [ -n "$in_file" ]; then
        api_key=$in_file
    fi
}

# request MAX_S METHOD [FIELD=VALUE...]: sends a request to $path; sets $body, and $status, which is 000 without an answer.
request() {
    max_s=$1 method=$2
    shift 2
    read_key
    for field; do
        set -- "$@" --data-urlencode "$field"
        shift
    done
    answer=$(headers | curl -sS -X "$method" -H @- --connect-timeout 3 --max-time "$max_s" -w '\n%{http_code}' \
        "$@" "$LEASEHOLD_URL$path")
    status=$(printf '%s\n' "$answer" | tail -n 1)
    body=$(printf '%s\n' "$answer" | sed '$d')
}

# Prints the member of the answer with this name, or nothing.
member() {
    printf '%s' "$body" | jq -r ".$1 // empty" 2>/dev/null
}

report() {
    echo "$0: $lock: ${status}: $(member detail)" >&2
}

# acquire LOCK [FIELD=VALUE...]: acquires the lock and sets $fencing_token. Returns 75 if another client holds it, 69 if the
# service cannot be reached, 78 if it refuses the key and 64 if it refuses the request. With wait=50s it stays in the queue
# until it has the lock.
acquire() {
    lock=$1 path=/locks/$(jq -rn --arg name "$1" '$name | @uri') failures=0
    shift
    new_token
    while [ "$failures" -lt 30 ]; do
        request 65 POST "ttl=${TTL_S}s" "owner=$(uname -n)" "$@"
        case "$status $(member code)" in
        200* | 201*)
            fencing_token=$(member fencing_token)
            return 0
            ;;
        # The service keeps the place in the queue, and finds it by the token.
        "423 wait_timeout") failures=0 ;;
        423*) return 75 ;;
        # An answer was lost, and the lease expired before the retry. That claim has ended.
        "409 claim_ended") new_token ;;
        000* | 408* | 429* | 5*)
            failures=$((failures + 1))
            sleep 1
            ;;
        401* | 403*)
            report
            return 78
            ;;
        *)
            report
            return 64
            ;;
        esac
    done
    report
    return 69
}

# Renews the lease. Retries for another third of the TTL, so that one third is left.
renew() {
    left_s=$renew_s
    while request 2 PUT; [ "$status" != 200 ]; do
        [ "$status" != 412 ] && [ "$left_s" -gt 0 ] || return 1
        left_s=$((left_s - 3))
        sleep 1
    done
}

# keep_renewed JOB: renews the lease until the job has ended. Stops the job if the lease is or may be lost, because another
# client may be working already.
keep_renewed() {
    trap 'kill "$pause" 2>/dev/null; exit' TERM
    while :; do
        # A sleep in the background does not delay the trap.
        sleep "$renew_s" &
        pause=$!
        wait "$pause"
        kill -0 "$1" 2>/dev/null || return
        renew || break
    done
    report
    kill "$1"
    sleep "$renew_s"
    kill -9 "$1" 2>/dev/null
}

# Releases the lock. A repeated release is answered like the first.
release() {
    for _ in 1 2 3 4 5; do
        request 5 DELETE
        case $status in
        000 | 408 | 429 | 5*) sleep 1 ;;
        *) return ;;
        esac
    done
}

# run_with_lock COMMAND [ARGUMENT...]: runs the command, releases the lock and returns the command's status. The command finds
# the fencing token in LEASEHOLD_FENCING_TOKEN, and should send it with everything that it writes. A command that starts others
# has to stop them when it gets a SIGTERM.
run_with_lock() {
    exec 3<&0
    LEASEHOLD_FENCING_TOKEN=$fencing_token "$@" <&3 3<&- &
    job=$!
    keep_renewed "$job" 3<&- &
    keeper=$!
    trap 'kill "$job"' INT TERM HUP
    # A signal ends the wait but not the job.
    while :; do
        wait "$job"
        result=$?
        kill -0 "$job" 2>/dev/null || break
    done
    kill "$keeper"
    release
    return "$result"
}
