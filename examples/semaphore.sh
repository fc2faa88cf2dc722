#!/bin/sh
# Waits for one of LIMIT permits, then runs a command: at most LIMIT run at once on all machines together.
#
#   semaphore.sh LOCK LIMIT COMMAND [ARGUMENT...]
#   semaphore.sh gpu 4 ./train.sh
#
# All holders of the lock must give the same LIMIT. Needs curl and jq; the settings are in claim.sh.
set -u
. "${0%/*}/claim.sh"

if [ $# -lt 3 ]; then
    echo "usage: $0 LOCK LIMIT COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$1 limit=$2
shift 2

acquire "$name" mode=shared "limit=$limit" wait=50s || exit
run_with_lock "$@"
