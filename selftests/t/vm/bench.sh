# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# hetmem bench kernel where everything is loaded that it measures: its JSON, and what the
# module promises to do just so often, counted. No figure that is a time is judged.
prepare_bench()
{
	check 'test_hmm is there' selftests/vm/test-hmm "$kernel" "$tmp/foreign"
	files+=(-f "$tmp/foreign/test_hmm.ko:/lib/modules/test_hmm.ko")
	cat >"$tmp/bench.sh" <<'EOS'
reload capacity_mb=128 huge=1
insmod /lib/modules/test_hmm.ko
echo BEGIN bench
hetmem bench kernel --json --quick --size 16 2>/tmp/err
echo "END $?"
sed 's/^/# /' /tmp/err
EOS
}

judge_bench()
{
	part bench
	[ "$status" = 0 ]
	judge 'bench kernel --json'
	cp "$tmp/out" "$tmp/json"

	# ask_rows NAME CODE: perl says whether CODE, of $all and of %row by name, is true.
	ask_rows()
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

	ask_rows 'it is JSON, of this benchmark' \
		'$all->{bench} eq "kernel" && $all->{unit} =~ /^(ns|instructions)$/'
	# A busy machine can take as long for the overhead that is taken off: such figures are null.
	ask_rows 'everything was measured, as far as the machine let it' \
		'!grep { $_->{why} !~ /overhead/ } @{$all->{not_measured}}'
	for row in residency.4k residency.sparse residency.thp residency.thp.decodes track.madvise \
		   track.unmap track.fault track.fork track.callbacks \
		   track.munmap.page track.munmap.2m track.munmap.all device.4k.to-device \
		   busy.look busy.known device.4k.to-host device.4k.faults device.setups.to-device \
		   device.setups.to-host device.thp.to-device device.thp.to-host \
		   events.latency hint.round-trip; do
		ask_rows "$row: a figure, its peer and their ratio" \
			"!grep { !exists \$row{'$row'}{\$_} || (\$row{'$row'}{\$_} // 1) <= 0 }
				qw(ours peer ratio)"
	done
	ask_rows 'a goal says whether it is met' \
		'!grep { exists $_->{goal} != exists $_->{met} } @{$all->{rows}}'

	# What is counted is exact on any machine.
	ask_rows 'one decode for each huge page' "$(counts residency.thp.decodes 8)"
	ask_rows 'one callback for each notification, with 100,000 ranges' \
		"$(counts track.callbacks 100)"
	ask_rows 'all pages are known, however busy the process is elsewhere' "$(counts busy.known 512)"
	ask_rows 'an eighth of the migrate_vma_setup() calls, to the device' \
		'$row{"device.setups.to-device"}{met}'
	ask_rows 'and to the host' '$row{"device.setups.to-host"}{met}'

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
		build/obj/tools/{bench/report,table,util}.o \
		build/libhetmem.a -lnuma -lpthread -ldl
	"$tmp/report" json >"$tmp/json"
	ask_rows 'with less, the goal is met' \
		'$row{less}{met} && $row{less}{peer} == 2 && $row{less}{ratio} == 0.5'
	for row in as-much more; do
		ask_rows "with $row, nothing is said of it" \
			"exists \$row{'$row'}{met} && !grep { defined \$row{'$row'}{\$_} } qw(peer ratio met)"
	done
	ask_rows 'and that is said' \
		'join(",", map { $_->{name} } @{$all->{not_measured}}) eq "as-much,more"'
	check 'the table says it too' sh -c \
		'"$1" >"$2" && [ "$(grep -c "< 1 not measured" "$2")" -eq 2 ] &&
		[ "$(grep -c "< 1 met" "$2")" -eq 1 ]' - "$tmp/report" "$tmp/table"
}
