#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The module and the emulated device on a kernel as Debian ships it.
kernel=stock-7
. "$(dirname "$0")/kernel.sh"
done_testing
