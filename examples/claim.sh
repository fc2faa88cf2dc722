# shellcheck shell=sh
# A claim on a lock, taken, kept and given back with curl and jq. The other examples read this file; copy it along with them.
#
# Settings, from the environment:
#   LEASEHOLD_URL      where the service is; http://127.0.0.1:7625
#   LEASEHOLD_API_KEY  its key, if it wants one
#   TTL_S              how many seconds the lock outlives this machine; 30
#
# The token is made here and not by the service: a request whose answer was lost, or was "503, I do not know", is sent again with
# the same token, and comes to the same claim.

: "${LEASEHOLD_URL:=http://127.0.0.1:7625}" "${TTL_S:=30}"
# Renewed every third of the TTL, a lease survives a failure or two, and there is a third left to stop in.
renew_s=$(((TTL_S + 2) / 3))

new_token() {
    token=$(uuidgen 2>/dev/null || cat /proc/sys/kernel/random/uuid)
}

# Secrets go to curl through its standard input, because everybody on the machine may read its command line.
headers() {
    echo "Lock-Token: $token"
    [ -z "${LEASEHOLD_API_KEY-}" ] || echo "Authorization: Bearer $LEASEHOLD_API_KEY"
}

# request MAX_S METHOD [FIELD=VALUE...]: sends a request to $path; sets $status, 000 if there was no answer, and $body.
request() {
    max_s=$1 method=$2
    shift 2
    for field; do
        set -- "$@" --data-urlencode "$field"
        shift
    done
    answer=$(headers | curl -sS -X "$method" -H @- --connect-timeout 3 --max-time "$max_s" -w '\n%{http_code}' \
        "$@" "$LEASEHOLD_URL$path")
    status=$(printf '%s\n' "$answer" | tail -n 1)
    body=$(printf '%s\n' "$answer" | sed '$d')
}

# The member of the answer with this name, or nothing.
member() {
    printf '%s' "$body" | jq -r ".$1 // empty" 2>/dev/null
}

complain() {
    echo "$0: $lock: ${status}: $(member detail)" >&2
}

# take LOCK [FIELD=VALUE...]: takes the lock and sets $fencing_token. Fails with 1 if somebody else has it, with 2 if the
# service refuses, or cannot be asked. With wait=50s it waits in line for as long as that takes.
take() {
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
        # The place in the line is kept for whoever comes back with the token.
        "423 wait_timeout") failures=0 ;;
        423*) return 1 ;;
        # An answer was lost, and the lease ran out before the next one. That claim is over.
        "409 claim_ended") new_token ;;
        000* | 408* | 429* | 5*)
            failures=$((failures + 1))
            sleep 1
            ;;
        *) break ;;
        esac
    done
    complain
    return 2
}

# Renews the lease. Tries again for as long as another third of the TTL, so that one is left.
renew() {
    left_s=$renew_s
    while request 2 PUT; [ "$status" != 200 ]; do
        [ "$status" != 412 ] && [ "$left_s" -gt 0 ] || return 1
        left_s=$((left_s - 3))
        sleep 1
    done
}

# keep JOB: renews the lease until the job has ended. If the lease is lost, or may be, the job is stopped: somebody else may be
# working already.
keep() {
    trap 'kill "$pause" 2>/dev/null; exit' TERM
    while :; do
        # A sleep that is waited for does not delay the trap.
        sleep "$renew_s" &
        pause=$!
        wait "$pause"
        kill -0 "$1" 2>/dev/null || return
        renew || break
    done
    complain
    kill "$1"
    sleep "$renew_s"
    kill -9 "$1" 2>/dev/null
}

# Gives the lock back. A release that was done already is answered like the first.
give_back() {
    for _ in 1 2 3 4 5; do
        request 5 DELETE
        case $status in
        000 | 408 | 429 | 5*) sleep 1 ;;
        *) return ;;
        esac
    done
}

# holding COMMAND [ARGUMENT...]: runs the command, gives the lock back and returns the command's status. The command finds the
# fencing token in LEASEHOLD_FENCING_TOKEN, to be sent along with everything that it writes. A command that starts others has to
# stop them when it gets a SIGTERM.
holding() {
    exec 3<&0
    LEASEHOLD_FENCING_TOKEN=$fencing_token "$@" <&3 3<&- &
    job=$!
    keep "$job" 3<&- &
    keeper=$!
    trap 'kill "$job"' INT TERM HUP
    # A signal ends the wait and not the job.
    while :; do
        wait "$job"
        result=$?
        kill -0 "$job" 2>/dev/null || break
    done
    kill "$keeper"
    give_back
    return "$result"
}
