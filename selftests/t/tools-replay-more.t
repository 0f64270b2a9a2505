#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem replay over the soft driver, with work on many streams: what tools-replay.t leaves out.
. "$(dirname "$0")/tools-lib.sh"

traces=selftests/traces
export HETMEM_DRIVER=soft

for order in recorded concurrent; do
	HETMEM_SOFT_CHECK=1 run replay --json --order $order --work busy=10 $traces/workers.csv.gz
	ask "workers: streams that work, in check mode, $order" '$row->{failures} == 0 && $row->{device_second_ms} > 0'
done
ask 'what threads need is not known' '!defined $row->{peak_needed} && !defined $row->{least_ratio}'
done_testing
