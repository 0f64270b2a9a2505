# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# The tests of hetmem run share this.
. "$(dirname "${BASH_SOURCE[0]}")/tools-lib.sh"
. selftests/vm/lib.sh

check 'the programs build' make all run-tests

# shellcheck disable=SC2034
programs=build/selftests/run
report=$tmp/report
export -n HETMEM_RUN HETMEM_PRELOAD LD_PRELOAD
# blocks COMMAND: most blocks that a process of this name made.
blocks() { sed -n "s/^pid=[0-9]* command=$1 blocks=\([0-9]*\) .*/\1/p" "$report" | sort -n | tail -n 1; }
# of NAME COMMAND: its value in COMMAND's last line.
of() { sed -n "s/^pid=[0-9]* command=$2 .*\b$1=\([0-9]*\).*/\1/p" "$report" | tail -n 1; }
with() { "$hetmem" run --report "$report" "$@"; }
