#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# libhetmem-cuda.so and its programs with AddressSanitizer and UBSan.
export HETMEM_TEST_SAN=address,undefined
. "$(dirname "$0")/cuda.sh"
device_tests
program 'sleep' selftests/t/tools-sleep.t
done_testing
