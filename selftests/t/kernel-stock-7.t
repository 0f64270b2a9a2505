#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module and the emulated device on a kernel as Debian ships it.
kernel=stock-7
. "$(dirname "$0")/kernel.sh"

# Another seed each time: it is in the output.
program '' selftests/vm/fuzz -v -k "$kernel" -B "$modules" -L "build/log/$kernel-fuzz"

# The whole way, in the virtual machine even where it could run on this one.
check 'make demo' selftests/demo --vm
done_testing
