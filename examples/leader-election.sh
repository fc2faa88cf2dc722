#!/usr/bin/env bash
# Runs a command for as long as this machine is the leader, and stops it when another machine may be.
#
#   leader-election.sh LOCK COMMAND [ARGUMENT...]
#   leader-election.sh scheduler ./schedule.sh
#
# A connection holds the lock: the service renews the lease while the connection is open, and grants the lock to the next waiter
# when it closes. If the machine vanishes without closing it, for example by a power loss, the next waiter is delayed by at most
# TTL_S seconds. When the command ends, so does the leadership, and the script exits with the status of the command. Needs bash
# 4.4, curl and jq.
#
# Settings, from the environment:
#   LEASEHOLD_URL           the URL of the service; default http://127.0.0.1:7625
#   LEASEHOLD_API_KEY_FILE  the file with the API key, if the service needs one; it is read for each connection
#   LEASEHOLD_API_KEY       the key itself, if there is no file
#   TTL_S                   for how many seconds the leadership outlives this machine; default 15
set -uo pipefail
# Job control gives the command its own process group, so that all of it can be stopped.
set -m

if [ $# -lt 2 ]; then
    echo "usage: $0 LOCK COMMAND [ARGUMENT...]" >&2
    exit 64
fi
lock=$1
shift
url=${LEASEHOLD_URL:-http://127.0.0.1:7625}
url=${url%/}/locks/$(jq -rn --arg name "$lock" '$name | @uri')
ttl_s=${TTL_S:-15}
work='' connection='' api_key=''

log() { echo "$0: $lock: $*" >&2; }
member() { jq -r ".$1 // empty" 2>/dev/null; }

# The token is made here. So a retry with it finds the same claim, even if an answer was lost.
new_token() {
    token=$(uuidgen 2>/dev/null || cat /proc/sys/kernel/random/uuid)
}

# Secrets do not go onto the command line, which everybody on the machine can read.
headers() {
    echo "Lock-Token: $token"
    echo "Accept: text/event-stream"
    [ -z "$api_key" ] || echo "Authorization: Bearer $api_key"
}

# Sets $api_key. While its file cannot be read, it stays that of before, because the file may just be replaced.
read_key() {
    local in_file
    if [ -z "${LEASEHOLD_API_KEY_FILE-}" ]; then
        api_key=${LEASEHOLD_API_KEY-}
    elif in_file=$(cat "$LEASEHOLD_API_KEY_FILE") && [ -n "$in_file" ]; then
        api_key=$in_file
    fi
}

# The command inherits the pipe that curl writes to. If this script is killed with -9, curl runs for as long as the command.
start_work() {
    [ -z "$work" ] || return 0
    LEASEHOLD_FENCING_TOKEN=$1 "${command[@]}" &
    work=$!
}

# Stops the command within a second; a third of the TTL is reserved for that.
stop_work() {
    [ -n "$work" ] || return 0
    kill -TERM -- "-$work"
    for _ in {1..10}; do
        kill -0 -- "-$work" || break
        sleep 0.1
    done
    kill -KILL -- "-$work"
    wait "$work"
    work=''
} 2>/dev/null

disconnect() {
    [ -z "$connection" ] || kill "$connection" 2>/dev/null
    connection=''
}

# Stops the work before it releases the lock: the next leader must not overlap with it.
trap 'stop_work; disconnect' EXIT
trap 'exit 143' TERM INT HUP

# Whether the command has ended by itself.
has_ended() { [ -n "$work" ] && ! kill -0 "$work" 2>/dev/null; }

# Runs one connection until it ends or cannot be trusted. Sets $event to the last event, and $problem to a refusal.
campaign() {
    local line part='' silent_s=0
    event='' problem=''
    read_key
    exec {stream}< <(exec curl -sSN -X POST -H @<(headers) --connect-timeout 3 \
        -d "ttl=${ttl_s}s" --data-urlencode "owner=$(uname -n)" "$url")
    connection=$!
    # The service sends an event for each renewal, every third of the TTL, and comments otherwise. After two thirds of the TTL
    # without either, the connection counts as dead.
    while ! has_ended && [ $((silent_s * 3)) -lt $((ttl_s * 2)) ]; do
        if IFS= read -r -t 1 -u "$stream" line; then
            line=$part$line part='' silent_s=0
            handle_line "$line" || break
        elif [ $? -gt 128 ]; then
            # Within a second nothing came, or only a part of a line.
            part+=$line silent_s=$((silent_s + 1))
        else
            # The end of the stream; a refusal has no line break.
            handle_line "$part$line"
            break
        fi
    done
    disconnect
    exec {stream}<&-
}

# Handles one line. Fails if no further line matters.
handle_line() {
    case $event:$1 in
    *:"event: "*) event=${1#event: } ;;
    acquired:"data: "*) start_work "$(member fencing_token <<<"${1#data: }")" ;;
    refused:"data: "*) problem=${1#data: } ;;
    :"{"*) problem=$1 ;;
    lost: | refused: | draining:) return 1 ;;
    esac
}

command=("$@")
new_token
while true; do
    campaign
    if has_ended; then
        wait "$work" 2>/dev/null
        exit
    fi
    # A draining process keeps the lease, so there is time to continue at another one. Any other end may have lost the lease.
    [ "$event" != draining ] || continue
    stop_work
    case $(member status <<<"$problem") in
    '' | 408 | 423 | 429 | 5??) ;;
    # The claim has ended, and a token is good for one claim.
    409) new_token ;;
    *)
        log "$problem"
        case $(member status <<<"$problem") in
        401 | 403) exit 78 ;;
        *) exit 64 ;;
        esac
        ;;
    esac
    sleep 1
done
