#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# As kernel-stock-7.t, with CPUs that run in parallel: races show that turns of CPUs hide.
kernel=stock-7 parallel=yes tables=no whole=3600
. "$(dirname "$0")/kernel.sh"
done_testing
