#!/bin/sh
# Waits for its turn, then runs a command as one of many readers or as the only writer.
#
#   read-write-lock.sh read|write LOCK COMMAND [ARGUMENT...]
#   read-write-lock.sh read  catalogue ./export.sh
#   read-write-lock.sh write catalogue ./import.sh
#
# Readers and writers share one queue. A reader that comes after a waiting writer waits behind it, so neither side starves.
# Needs curl and jq; the settings are in claim.sh.
set -u
. "${0%/*}/claim.sh"

case ${1-} in
read) mode=shared ;;
write) mode=exclusive ;;
*) mode='' ;;
esac
if [ -z "$mode" ] || [ $# -lt 3 ]; then
    echo "usage: $0 read|write LOCK COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$2
shift 2

acquire "$name" "mode=$mode" wait=50s || exit
run_with_lock "$@"
