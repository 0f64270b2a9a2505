#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem bench agent where it counts instructions: what the agent saves and costs.
. "$(dirname "$0")/tools-lib.sh"

kernel=stock-7
mkdir -p build/log
check 'the modules build' selftests/vm/build-modules $kernel
selftests/vm/run -k $kernel -i -M -p 'hetmem_emu=capacity_mb=128' -t 500 -m 2048 \
	-L build/log/tools-bench-agent -e HETMEM_DRIVER=soft \
	-f build/libhetmem-soft.so:/lib/x86_64-linux-gnu/libhetmem-soft.so \
	-f "$hetmem:/bin/hetmem" -- hetmem bench agent --json --rounds 300 \
	>"$tmp/out" 2>"$tmp/err" </dev/null
status=$?
[ $status -eq 0 ]
judge 'bench agent --json'
cp "$tmp/out" "$tmp/json"
# Compilers and the place of code move a count by some percent: 5 above the goal are room.
for row in fight stream alone; do
	check "$row: its goal is met, or nearly" perl -MJSON::PP -e '
		local $/;
		open(my $in, "<", $ARGV[0]) or die;
		my $all = decode_json(<$in>);
		print JSON::PP->new->pretty->encode($all);
		exit !($all->{unit} eq "instructions" &&
			grep { $_->{name} eq "agent.$ARGV[1]" && $_->{ratio} <= 1.05 * $_->{limit} }
				@{$all->{rows}})' \
		"$tmp/json" $row
done
run bench agent --help
[ "$status" -eq 0 ] && grep -q '^Usage: hetmem bench agent' "$tmp/out"
judge '--help'
for bad in x 9 -1 ''; do
	run bench agent --rounds "$bad"
	[ "$status" -eq 2 ] && grep -q 'not a number of rounds' "$tmp/err"
	judge "--rounds '$bad'"
done
done_testing
