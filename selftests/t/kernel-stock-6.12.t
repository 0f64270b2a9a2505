#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module on a kernel that has no DEVICE_PRIVATE. kernel-stock-6.12-tables.t has the rest.
kernel=stock-6.12 tables=no
. "$(dirname "$0")/kernel.sh"

done_testing
