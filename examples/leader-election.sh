#!/usr/bin/env bash
# Runs a command for as long as this machine is the leader, and stops it when another may be.
#
#   leader-election.sh LOCK COMMAND [ARGUMENT...]
#   leader-election.sh scheduler ./schedule.sh
#
# The lock is held by a connection: the service renews the lease while it is open, and gives the lock to the next in line when it
# closes. What vanishes without closing it, such as a machine without power, costs TTL_S seconds at the most. When the command
# ends, so does the leadership, and its status is the status of this script. Needs bash 4.4, curl and jq.
#
# Settings, from the environment:
#   LEASEHOLD_URL      where the service is; http://127.0.0.1:7625
#   LEASEHOLD_API_KEY  its key, if it wants one
#   TTL_S              how many seconds the leadership outlives this machine; 15
set -uo pipefail
# The command is a process group of its own, so that all of it can be stopped.
set -m

if [ $# -lt 2 ]; then
    echo "usage: $0 LOCK COMMAND [ARGUMENT...]" >&2
    exit 64
fi
lock=$1
shift
url=${LEASEHOLD_URL:-http://127.0.0.1:7625}/locks/$(jq -rn --arg name "$lock" '$name | @uri')
ttl_s=${TTL_S:-15}
work='' connection=''

say() { echo "$0: $lock: $*" >&2; }
member() { jq -r ".$1 // empty" 2>/dev/null; }

# The token is ours from the start: whatever becomes of an answer, asking again with it comes to the same claim.
new_token() {
    token=$(uuidgen 2>/dev/null || cat /proc/sys/kernel/random/uuid)
}

# Secrets do not go onto the command line, which everybody on the machine may read.
headers() {
    echo "Lock-Token: $token"
    echo "Accept: text/event-stream"
    [ -z "${LEASEHOLD_API_KEY-}" ] || echo "Authorization: Bearer $LEASEHOLD_API_KEY"
}

# The command inherits the pipe that curl writes to. Should this script be killed with -9, curl goes on for as long as the command.
start_work() {
    [ -z "$work" ] || return 0
    LEASEHOLD_FENCING_TOKEN=$1 "${command[@]}" &
    work=$!
}

# Stops the command within a second: a third of the TTL is there for it.
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

# First the work, then the lock: the next leader must not meet it.
trap 'stop_work; disconnect' EXIT
trap 'exit 143' TERM INT HUP

# Whether the command has ended by itself.
has_ended() { [ -n "$work" ] && ! kill -0 "$work" 2>/dev/null; }

# One connection, until it ends or cannot be trusted. $event is what was told last, $problem why the service refused.
campaign() {
    local line part='' silent_s=0
    event='' problem=''
    exec {stream}< <(exec curl -sSN -X POST -H @<(headers) --connect-timeout 3 \
        -d "ttl=${ttl_s}s" --data-urlencode "owner=$(uname -n)" "$url")
    connection=$!
    # A leader hears of each renewal, every third of the TTL, and others get a comment. After two thirds in silence nobody is there.
    while ! has_ended && [ $((silent_s * 3)) -lt $((ttl_s * 2)) ]; do
        if IFS= read -r -t 1 -u "$stream" line; then
            line=$part$line part='' silent_s=0
            hear "$line" || break
        elif [ $? -gt 128 ]; then
            # Nothing came for a second, or half a line.
            part+=$line silent_s=$((silent_s + 1))
        else
            # The end; a refusal has no line break.
            hear "$part$line"
            break
        fi
    done
    disconnect
    exec {stream}<&-
}

# Takes in one line. Fails if it is the last that is of interest.
hear() {
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
    # A process that stops keeps the lease for us: there is time to go on elsewhere. Everything else may have cost it.
    [ "$event" != draining ] || continue
    stop_work
    case $(member status <<<"$problem") in
    '' | 408 | 423 | 429 | 5??) ;;
    # The token was good for one leadership.
    409) new_token ;;
    *)
        say "$problem"
        exit 75
        ;;
    esac
    sleep 1
done
