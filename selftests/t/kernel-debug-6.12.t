#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module on a kernel that checks itself: KASAN, lockdep, DEBUG_VM, kmemleak.
# kernel-debug-6.12-tables.t has the programs that only try arguments.
kernel=debug-6.12 part=plain tables=no limit=300 whole=3600
. "$(dirname "$0")/kernel.sh"

# Here because every file is compiled only where there is DEVICE_PRIVATE.
check 'sparse' make module KDIR="$dir/kdir" C=2 WERROR=1 MODULE_OUT="$tmp/module"
cat build/module/"$(cat "$dir/release")"-*/log >"$tmp/log"
empty 'sparse looked at every file' sh -c "for file in kernel/*.c kernel/emu/*.c; do
	grep -q \"CHECK .*/\$file\" '$tmp/log' || echo \"\$file\"; done"
done_testing
