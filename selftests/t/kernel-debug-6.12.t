#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module and the emulated device on a kernel that checks itself: KASAN, lockdep,
# DEBUG_VM, kmemleak.
kernel=debug-6.12 limit=300
. "$(dirname "$0")/kernel.sh"

done_testing
