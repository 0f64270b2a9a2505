#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module on the oldest kernel that it is built for, which has no DEVICE_PRIVATE.
kernel=stock-5.10
. "$(dirname "$0")/kernel.sh"

done_testing
