#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The programs that try arguments, and those that take longest, on a kernel that has no DEVICE_PRIVATE.
kernel=stock-6.1 tables=only
. "$(dirname "$0")/kernel.sh"

done_testing
