#!/bin/sh
# Runs a command while at most LIMIT of its kind run on all machines together, and waits for its turn.
#
#   semaphore.sh LOCK LIMIT COMMAND [ARGUMENT...]
#   semaphore.sh gpu 4 ./train.sh
#
# All who hold the lock must name the same LIMIT. Needs curl and jq; the settings are in claim.sh.
set -u
. "${0%/*}/claim.sh"

if [ $# -lt 3 ]; then
    echo "usage: $0 LOCK LIMIT COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$1 limit=$2
shift 2

take "$name" mode=shared "limit=$limit" wait=50s || exit 75
holding "$@"
