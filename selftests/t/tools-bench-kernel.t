#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem bench kernel where everything is loaded that it measures: its JSON, and what the
# module promises to do just so often, counted. No figure that is a time is judged.
. "$(dirname "$0")/tools-lib.sh"

kernel=stock-7
modules=build/modules/tools-bench-kernel
mkdir -p $modules build/log

check 'the modules build' selftests/vm/build-modules $kernel $modules
check 'test_hmm is there' selftests/vm/test-hmm $kernel $modules/foreign
selftests/vm/run -k $kernel -B $modules -p 'hetmem_emu=capacity_mb=128 huge=1' \
	-l $modules/foreign/test_hmm.ko -t 300 -m 2048 -L build/log/tools-bench-kernel \
	-e HETMEM_DRIVER=soft -f build/libhetmem-soft.so:/lib/x86_64-linux-gnu/libhetmem-soft.so \
	-f "$hetmem:/bin/hetmem" -- hetmem bench kernel --json --quick --size 16 \
	>"$tmp/out" 2>"$tmp/err" </dev/null
status=$?
[ $status -eq 0 ]
judge 'bench kernel --json'
cp "$tmp/out" "$tmp/json"
check 'and its kernel has nothing to say' sh -c \
	'! grep -E "BUG:|WARNING:|Oops|circular locking|refcount" build/log/tools-bench-kernel'

# ask NAME CODE: perl says whether CODE, of $all and of %row by name, is true.
ask()
{
	perl -MJSON::PP -e '
		our ($all, %row);
		local $/;
		open(my $in, "<", $ARGV[0]) or die;
		$all = decode_json(<$in>);
		%row = map { $_->{name} => $_ } @{$all->{rows}};
		my $good = eval $ARGV[1];
		print $@ || JSON::PP->new->pretty->encode($all) unless $good;
		exit !$good' "$tmp/json" "$2" >"$tmp/out" 2>"$tmp/err"
	status=$?
	[ $status -eq 0 ]
	judge "$1"
}

# counts ROW NUMBER: ours and the peer's are this number.
counts() { echo "\$row{'$1'}{ours} == $2 && \$row{'$1'}{peer} == $2"; }

ask 'it is JSON, of this benchmark' \
	'$all->{bench} eq "kernel" && $all->{unit} =~ /^(ns|instructions)$/'
# A busy machine can take as long for the overhead that is taken off: such figures are null.
ask 'everything was measured, as far as the machine let it' \
	'!grep { $_->{why} !~ /overhead/ } @{$all->{not_measured}}'
for row in residency.4k residency.thp residency.thp.decodes track.madvise track.callbacks \
	   track.munmap.page track.munmap.2m track.munmap.all device.4k.to-device \
	   busy.look busy.known device.4k.to-host device.4k.faults device.setups.to-device \
	   device.setups.to-host device.thp.to-device device.thp.to-host \
	   events.latency hint.round-trip; do
	ask "$row: a figure, its peer and their ratio" \
		"!grep { !exists \$row{'$row'}{\$_} || (\$row{'$row'}{\$_} // 1) <= 0 }
			qw(ours peer ratio)"
done
ask 'a goal says whether it is met' \
	'!grep { exists $_->{goal} != exists $_->{met} } @{$all->{rows}}'

# What is counted is exact on any machine.
ask 'one decode for each huge page' "$(counts residency.thp.decodes 8)"
ask 'one callback for each notification, with 100,000 ranges' \
	"$(counts track.callbacks 100)"
ask 'all pages are known, however busy the process is elsewhere' "$(counts busy.known 512)"
ask 'an eighth of the migrate_vma_setup() calls, to the device' \
	'$row{"device.setups.to-device"}{met}'
ask 'and to the host' '$row{"device.setups.to-host"}{met}'

# What the machine is too busy to measure is not measured, whatever the goal: without the
# machine, by rows of which the overhead that is taken off is less, as much, and more.
cat >"$tmp/report.c" <<'END'
#include "bench.h"

int main(int argc, char **argv)
{
	static const char *const names[] = { "less", "as-much", "more" };
	struct bench_report *report = bench_report_new("test", argc > 1);
	int i;

	for (i = 0; i < 3; i++) {
		struct bench_row row = {
			.name = names[i], .what = names[i], .unit = "ns", .ours = 1,
			.peer = bench_without(4, 2 + 2 * i), .peer_name = "peer",
			.goal = BENCH_GOAL_LESS, .limit = 1,
		};

		bench_report_add(report, &row);
	}
	return bench_report_end(report);
}
END
check 'a report of such rows' gcc -Itools -Itools/bench -o "$tmp/report" "$tmp/report.c" \
	build/obj/tools/{bench/report,table,util}.o
"$tmp/report" json >"$tmp/json"
ask 'with less, the goal is met' \
	'$row{less}{met} && $row{less}{peer} == 2 && $row{less}{ratio} == 0.5'
for row in as-much more; do
	ask "with $row, nothing is said of it" \
		"exists \$row{'$row'}{met} && !grep { defined \$row{'$row'}{\$_} } qw(peer ratio met)"
done
ask 'and that is said' \
	'join(",", map { $_->{name} } @{$all->{not_measured}}) eq "as-much,more"'
check 'the table says it too' sh -c \
	'"$1" >"$2" && [ "$(grep -c "< 1 not measured" "$2")" -eq 2 ] &&
	[ "$(grep -c "< 1 met" "$2")" -eq 1 ]' - "$tmp/report" "$tmp/table"
done_testing
