#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem replay and bench with blocks that move, over the soft driver: what they report, and
# that it agrees with itself. Times never.
. "$(dirname "$0")/tools-lib.sh"

traces=selftests/traces
export HETMEM_DRIVER=soft

# steps STEP...: a recording of one stream, each +BLOCK or -BLOCK of 32 MiB.
steps()
{
	local n=0 step

	echo Thread,Time,Action,Pointer,Size,Stream
	for step; do
		case $step in
		+*) echo "1,$((n++)),allocate,0x${step#+}0,33554432,1" ;;
		-*) echo "1,$((n++)),free,0x${step#-}0,33554432,1" ;;
		esac
	done
}

# Four live where three fit; then one that is freed where it is, until nothing is live.
some=$tmp/some.csv
steps +a +b +c +d -d +d -d +d -a -b -c -d >"$some"
steps +a +b -a -b >"$tmp/half.csv"
fits='(spill=1G,max=104M,movable=4M,launcher=single)'
sane='$row->{spill}{bytes_out} == $row->{spill}{bytes_back} + $row->{spill}{freed_spilled}
	&& $row->{spill}{most_spilled} <= $row->{spill}{bytes_out}
	&& $row->{spill}{host_peak} >= $row->{spill}{most_spilled}'

run replay --json --spec 'pool(vmm,max=104M)' "$some"
ask 'without spill= allocations fail' '$row->{failures} == 3 && exists $row->{spill} && !defined $row->{spill}'
run replay --json --moves --spill 1G --max 104M "$some"
cp "$tmp/out" "$tmp/first.json"
ask '--spill is device-pool with parameters' \
	'@rows == 1 && $row->{spec} eq "device-pool(max=104M,spill=1G,movable=4M,launcher=single)"'
ask 'with it none fails' '$row->{failures} == 0 && $row->{spill}{failures} == 0'
ask 'one block at a time is on the host' '$row->{spill}{most_spilled} == 32 << 20 && $row->{spill}{max} == 104 << 20'
ask 'moves and bytes each way' '$row->{spill}{moves_out} > 0 && $row->{spill}{bytes_out} >= 32 << 20'
ask 'what goes out comes back or is freed there' "$sane"
ask 'host memory over what was spilled' \
	'abs($row->{spill}{host_ratio} - $row->{spill}{host_peak} / $row->{spill}{most_spilled}) < 0.001'
ask 'the soft driver has no times' '!defined $row->{spill}{out_ms} && !defined $row->{spill}{back_ms}'
ask 'no more than max= is held' '$row->{peak_reserved} <= 104 << 20 && $row->{peak_requested} == 128 << 20'
ask 'the moves are all there' '@{$row->{spill}{moves}} == $row->{spill}{moves_out} + $row->{spill}{moves_back}
	&& $row->{spill}{moves_left_out} == 0'
ask 'in order of time, the first by the fourth allocation' '$row->{spill}{moves}[0]{event} == 3 &&
	$row->{spill}{moves}[0]{to} eq "host" && !grep { $row->{spill}{moves}[$_]{event} < $row->{spill}{moves}[$_ - 1]{event} }
	1 .. $#{$row->{spill}{moves}}'
ask 'bytes of the moves are those of both ways' 'my %sum; $sum{$_->{to}} += $_->{bytes} for @{$row->{spill}{moves}};
	$sum{host} == $row->{spill}{bytes_out} && ($sum{device} // 0) == $row->{spill}{bytes_back}'
ask 'a block is as old as the steps since it was allocated' \
	'!grep { !defined $_->{age} || $_->{age} < 1 || $_->{age} > $_->{event} } @{$row->{spill}{moves}}'
run replay --json --moves --memory --spill 1G --max 104M "$some"
for when in first now; do
	[ $when = first ] && file=$tmp/first.json || file=$tmp/out
	perl -MJSON::PP -e 'local $/; my $s = decode_json(<>)->[0]{spill};
		print JSON::PP->new->canonical->pretty->encode($s)' "$file" >"$tmp/$when.spill"
done
also 'the same again, with --memory' cmp "$tmp/first.spill" "$tmp/now.spill"

# The table has what JSON has.
run replay --moves --spec "device-pool$fits" --spec 'pool(vmm)' "$some"
[ "$status" -eq 0 ] && grep -Eq '^some +device-pool\(.* 104 MiB +[0-9]+ +[0-9.]+ .iB +- +[0-9]+ .* 32 MiB +[0-9.]+ .iB +[0-9]+\.[0-9]{4} .* 0$' "$tmp/out" &&
	[ "$(grep -c '^some  *pool(vmm) ' "$tmp/out")" -eq 2 ] && [ "$(grep -c '^some  *device-pool(' "$tmp/out")" -eq 3 ]
judge 'a table of specs that move blocks'
[ "$(grep -cE '^ +[0-9]+  (host|device) +[0-9]+ +[0-9]+$' "$tmp/out")" -eq "$(grep -c '"to"' "$tmp/first.json")" ]
judge 'and a line for each move'
run replay --spec 'pool(vmm)' "$some"
[ "$status" -eq 0 ] && ! grep -q SPILLED "$tmp/out"
judge 'no such table without spill='
run replay --spec "pool(vmm,${fits#(}" "$some"
[ "$status" -eq 0 ] && grep -q SPILLED "$tmp/out" && ! grep -q 'EVENT  TO' "$tmp/out"
judge 'no list without --moves'
run replay --json --spec "pool(vmm,${fits#(}" "$some"
ask 'nor in JSON' '$row->{spill}{moves_out} > 0 && !exists $row->{spill}{moves}'
run replay --json --order concurrent --memory --spec "pool(vmm,${fits#(}" "$some"
ask 'in threads moves are not counted' 'exists $row->{spill} && !defined $row->{spill}'

# A percentage is of each recording's own peak.
run replay --json --memory --spill 4G --max 81.25% --movable 8M "$some" "$tmp/half.csv"
ask '--max 81.25%' '$row->{spec} =~ /^device-pool\(max=104M,spill=4G,movable=8M,/ &&
	$rows[1]{spec} =~ /max=52M,spill=4G,movable=8M,/ && $rows[1]{peak_requested} == 64 << 20'
ask 'also with another spec' '!grep { !defined $_->{spill} } @rows'
run replay --json --memory --spec 'pool(vmm)' --spill 1G "$some"
ask 'after those that are given; without --max the device is the limit' '@rows == 2 && $row->{spec} eq "pool(vmm)" &&
	$rows[1]{spec} eq "device-pool(spill=1G,movable=4M,launcher=single)" && $rows[1]{spill}{moves_out} == 0 &&
	!defined $rows[1]{spill}{max} && !defined $rows[1]{spill}{host_ratio}'
HETMEM_SOFT_MEMORY=104M run replay --json --memory --spill 1G "$some"
ask 'a device that is full' "\$row->{failures} == 0 && \$row->{spill}{moves_out} > 0 && $sane"

# Where not enough can move.
run replay --json --memory --spill 1G --max 104M --movable 64M "$some"
ask 'blocks that do not move: allocations fail' '$row->{failures} == 3 && $row->{spill}{failures} == 3 &&
	$row->{spill}{moves_out} == 0 && $row->{spill}{most_spilled} == 0'
run replay --json --memory --spill 1G --max 16M "$some"
ask 'max= below a block: all of them' '$row->{spill}{failures} == 6 && $row->{spill}{moves_out} == 0'
run replay --json --memory --spill 16M --max 104M "$some"
ask 'spill= is full: host memory stays below it' '$row->{spill}{failures} > 0 && $row->{spill}{host_peak} <= 16 << 20'
refused 'without VMM nothing moves' 'spill|no block moves' replay --memory --spec 'pool(device,spill=1G)' "$some"

# What is reported holds in check mode too, with streams that lag and that work.
for work in idle lag=1000 busy=10; do
	HETMEM_SOFT_CHECK=1 run replay --json --memory --work $work \
		--spec 'pool(vmm,max=104M,spill=1G,movable=4M,launcher=single,wait=100s)' "$some"
	ask "in check mode, $work" "\$row->{spill}{failures} == 0 && \$row->{spill}{moves_out} > 0 && $sane"
done

# Output that nobody takes.
"$hetmem" replay --memory --moves --spill 1G --max 104M "$some" 2>"$tmp/err" | true
status=${PIPESTATUS[0]}
{ [ "$status" -eq 141 ] || [ "$status" -le 1 ]; } && ! grep -Eq 'ERROR|runtime error' "$tmp/err"
judge 'a closed pipe ends it'
"$hetmem" replay --memory --moves --spill 1G --max 104M "$some" >/dev/full 2>"$tmp/err"
status=$?
[ "$status" -eq 1 ] && grep -q 'cannot write to standard output' "$tmp/err"
judge 'a full disk is said'

# The picture.
svg()
{
	perl -e 'my @open; local $/; $_ = <>;
		exit 1 if /&(?!lt;|gt;|amp;)/;
		while (/<(\/?)([a-z]+)((?:\s+[a-zA-Z0-9:-]+="[^"<]*")*)\s*(\/?)>|([<>])/g) {
			exit 1 if $5;
			if ($1) { exit 1 unless @open && pop(@open) eq $2 } elsif (!$4) { push @open, $2 }
		}
		exit(@open ? 1 : 0)' "$1"
}
run replay --memory --spec device-pool --spill 2G --max 90% --plot "$tmp/plot.svg" $traces/table.csv.gz
[ "$status" -eq 0 ] && svg "$tmp/plot.svg"
judge 'the picture is XML'
[ "$(grep -c '<polyline' "$tmp/plot.svg")" -eq 5 ] && [ "$(grep -c 'class="max"' "$tmp/plot.svg")" -eq 1 ] &&
	grep -q 'class="out".* d="M[0-9]' "$tmp/plot.svg" && grep -q '>spilled<' "$tmp/plot.svg" &&
	[ "$(wc -c <"$tmp/plot.svg")" -lt 1000000 ]
judge 'it has the bytes on the host, the limit and the moves, of the one that moves'
echo '<svg><g></svg>' >"$tmp/bad.svg"
! svg "$tmp/bad.svg"
judge 'what is no XML would be seen'

# The benchmark.
run bench spill --json --size 32 --spec 'pool(vmm,handle=2M)'
ask 'bench spill' '@rows == 10 && !@{$all->{not_measured}} && !grep { !($_->{ours} > 0) || defined $_->{peer} || exists $_->{ratio} || !$_->{peer_why} } @rows'
ask 'its rows' 'join(" ", map { $_->{name} =~ s/.*2M--//r } @rows) eq "first spill spill-begun fetch fetch-begun spill-beside-kernel
	fetch-beside-kernel spill-beside-copies fetch-beside-copies prepared" =~ s/\s+/ /gr'
ask 'no goals without a GPU' '!grep { exists $_->{goal} } @rows'
run bench spill --size 32 --spec 'pool(vmm,handle=2M)'
[ "$status" -eq 0 ] && grep -q 'the first spill, min_host=' "$tmp/out" && ! grep -q 'not measured' "$tmp/out" &&
	grep -q '1 blocks of 32 MiB' "$tmp/err"
judge 'as a table'
HETMEM_SOFT_CHECK=1 run bench spill --json --size 16 --spec 'pool(vmm)'
ask 'in check mode' '@rows == 10'
run bench spill --json --size 16 --spec 'pool(vmm,handle=64M)'
ask 'a block in a part of a handle moves, but not by a call that only begins it' '@rows == 1 && $rows[0]{name} =~ /first$/ &&
	$all->{not_measured}[0]{why} =~ /^spill: block .* no handle of its own, so that only/'
run bench spill --spec 'pool(device)'
[ "$status" -eq 1 ] && grep -q '^not measured: pool-device--rest: spill: ' "$tmp/out"
judge 'bench spill: a pool whose blocks do not move'
wrong 'bench spill: too small' 'size must be 4 at least' bench spill --size 2
done_testing
