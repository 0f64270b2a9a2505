#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The fuzzer of the ioctl interfaces, for a minute, on a kernel as Debian ships it.
. "$(dirname "$0")/tap.sh"

kernel=stock-7
mkdir -p build/log
check 'the fuzzer builds' make all vm-tests
# Another seed each time: it is in the output.
program '' selftests/vm/fuzz -v -k $kernel -L build/log/$kernel-fuzz
done_testing
