#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The programs that try arguments, on a kernel that checks itself.
kernel=debug-6.12 part=plain tables=only limit=300 whole=3600
. "$(dirname "$0")/kernel.sh"

done_testing
