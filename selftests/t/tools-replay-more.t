#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem replay and bench over the soft driver: what takes longest of tools-replay.t and tools-spill.t.
. "$(dirname "$0")/tools-lib.sh"

traces=selftests/traces
export HETMEM_DRIVER=soft

for order in recorded concurrent; do
	HETMEM_SOFT_CHECK=1 run replay --json --order $order --work busy=10 $traces/workers.csv.gz
	ask "workers: streams that work, in check mode, $order" '$row->{failures} == 0 && $row->{device_second_ms} > 0'
done
ask 'what threads need is not known' '!defined $row->{peak_needed} && !defined $row->{least_ratio}'

soft='!(grep { $_->{peer} && (defined $_->{peer_ns_pair} || $_->{peer_why} !~ /imitation/) || $_->{times_why} !~ /no time is a GPU/ } @rows)'
run bench pinned --json --spec pinned
ask 'bench pinned' '@rows == 1 && $row->{ns_pair} > 0 && $row->{driver_calls}{cuMemHostRegister} == 1'
ask 'bench pinned: no peer' "$soft"
run bench pinned --spec pinned
head -1 "$tmp/out" | grep -q "^the soft driver plays .*no time is a GPU's" && ! grep -Eqw 'PEER|RATIO' "$tmp/out"
judge 'bench pinned, as a table: the first line says so, and there is no ratio'

# The cached path: what it calls is counted by a process that traces this one. A thread
# remembers as many streams as there are here, wherever their handles lie.
run bench cached --json
ask 'bench cached' '@rows == 12 && !grep { !($_->{ns_pair} > 0) } @rows'
ask 'no system call: on one stream, on several, freed on another, on the CPU' \
	'!grep { !defined $_->{system_calls} || $_->{system_calls} } @rows'
ask 'of the driver the id of a stream, once each' \
	'!grep { join(",", %{$_->{driver_calls}}) ne "cuStreamGetId,2" } @rows[0 .. 2, 8 .. 10]'
ask 'none on the CPU, none where streams are retired' '!grep { %{$_->{driver_calls}} } @rows[3 .. 7, 11]'
run bench cached --json --spec host
ask 'what does call the kernel is seen to' '@rows == 4 && !grep { !($_->{system_calls} >= 40000) } @rows'
run bench cached --json --spec 'log(device-pool,file=/dev/null)'
ask 'now and then, too' '@rows == 4 && !grep { !($_->{system_calls} > 0 && $_->{system_calls} < 1000) } @rows'

# Blocks that move.
sane='$row->{spill}{bytes_out} == $row->{spill}{bytes_back} + $row->{spill}{freed_spilled}
	&& $row->{spill}{most_spilled} <= $row->{spill}{bytes_out}
	&& $row->{spill}{host_peak} >= $row->{spill}{most_spilled}'
HETMEM_SOFT_CHECK=1 run replay --json --memory --spill 2G --max 90% $traces/table.csv.gz
ask 'a recording in 90% of its peak' "\$row->{spill}{failures} == 0 && \$row->{spill}{moves_out} > 0 && $sane"
done_testing
