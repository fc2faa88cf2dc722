#!/bin/sh
# Runs a command on one of the machines that start this script at about the same time, for example from cron.
#
#   run-once.sh LOCK MIN_HOLD COMMAND [ARGUMENT...]
#   run-once.sh nightly-report 5m ./report.sh
#
# MIN_HOLD is how much the clocks of the machines may differ. The lock stays taken for so long, even if the command ends
# sooner, so that a machine whose clock is late does not run the command again. If another machine was first, the script runs
# nothing, prints nothing and exits with 0. Needs curl and jq; the settings are in claim.sh.
set -u
. "${0%/*}/claim.sh"

if [ $# -lt 3 ]; then
    echo "usage: $0 LOCK MIN_HOLD COMMAND [ARGUMENT...]" >&2
    exit 64
fi
name=$1 min_hold=$2
shift 2

acquire "$name" "min_hold=$min_hold" || exit $(($? == 75 ? 0 : $?))
run_with_lock "$@"
