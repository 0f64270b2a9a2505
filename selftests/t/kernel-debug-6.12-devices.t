#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module with the emulated device, and with test_hmm's, on a kernel that checks itself:
# KASAN, lockdep, DEBUG_VM, kmemleak.
kernel=debug-6.12 part=devices limit=300 whole=3600
. "$(dirname "$0")/kernel.sh"
done_testing
