#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem spec, replay and bench over the soft driver: what they print and that it is
# right. Ratios are judged where one stream makes them exact; times never.
. "$(dirname "$0")/tools-lib.sh"

traces=selftests/traces
export HETMEM_DRIVER=soft

keys='trace spec driver events ns_per_event ns_p99 first_pass_ms first_pass_min_ms
	first_pass_max_ms second_pass_ms second_pass_min_ms second_pass_max_ms
	peer_first_pass_ms peer_second_pass_ms driver_calls system_calls host_wait_ms
	peak_requested peak_reserved ratio failures'

run replay --json $traces/table.csv.gz $traces/resnet.csv.gz
ask 'replay --json: an object a run' '@rows == 2 && $rows[1]{trace} eq "resnet"'
for key in $keys; do
	ask "it has $key" "!grep { !exists \$_->{$key} } @rows"
done
ask 'every step is there' '$row->{events} == 13754 && $rows[1]{events} == 66011'
ask 'nothing fails' '!grep { $_->{failures} } @rows'
ask 'device-pool by default' '!grep { $_->{spec} ne "device-pool" } @rows'
ask 'at most 1.03 times what is requested' '!grep { !($_->{ratio} >= 1 && $_->{ratio} <= 1.03) } @rows'
ask 'the calls are named' '$row->{driver_calls}{cuStreamGetId} >= 13754 && $row->{driver_calls}{cuMemCreate} > 0'
ask 'the spread of the passes' '!grep { my $r = $_; grep { !($r->{"${_}_min_ms"} > 0 && $r->{"${_}_min_ms"} <= $r->{"${_}_ms"} &&
	$r->{"${_}_ms"} <= $r->{"${_}_max_ms"}) } qw(first_pass second_pass device_first device_second) } @rows'
ask 'the soft driver: no peer, and why' '!grep { my $r = $_; $r->{peer_why} !~ /imitation/ || $r->{times_why} !~ /no time is a GPU/ ||
	grep { /^peer_.*ms$/ && defined $r->{$_} } keys %$r } @rows'
ask 'what of the time is the driver'"'"'s' \
	'!grep { !($_->{driver_ms}{cuMemMap} > 0 && $_->{driver_ms}{cuMemSetAccess} > 0) } @rows'

# What the recordings of several threads have, that they are there for.
has()
{
	zcat "$traces/$1.csv.gz" | awk -F, '
		{ threads[$1]; streams[$6]; rows[$3]++ }
		$3 == "allocate" { by[$4] = $1; on[$4] = $6 }
		$3 == "free" { other += by[$4] != $1; across += on[$4] != $6 }
		END { print length(threads) - 1, length(streams) - 1, other, across,
			rows["record"], rows["wait"], rows["record_stream"], rows["retire"] }'
}
read -r threads streams other across record wait _ < <(has pipeline)
also 'pipeline: threads, streams, frees by others and across streams, edges' test "$threads" -ge 4 -a \
	"$streams" -ge 4 -a "$other" -gt 4000 -a "$across" -gt 4000 -a "$record" -gt 1000 -a "$wait" -gt 1000
read -r threads streams other across record wait used retired < <(has workers)
also 'workers: those, uses on other streams, and retired streams' test "$threads" -ge 4 -a \
	"$streams" -ge 4 -a "$other" -gt 1000 -a "$across" -gt 500 -a "$used" -gt 1000 -a "$retired" -ge 4

read -r threads streams other across record wait used retired < <(has training)
also 'training: one thread, five streams, orders between them' test "$threads" -eq 1 -a "$streams" -eq 5 -a \
	"$across" -gt 500 -a "$record" -gt 1000 -a "$wait" -gt 1000 -a "$used" -gt 1000

# Variations: blocks with the same place in time, of other sizes, some of them not there.
vary() { selftests/traces/vary "$@" 2>"$tmp/err"; }
rows() { cut -d, -f 3-4 "$1"; }
# compare A B LEAST MOST: of each allocation that both have, in order; blocks that are in A alone.
compare()
{
	awk -F, -v least="$3" -v most="$4" '
		FNR == 1 { file++ }
		$3 != "allocate" { next }
		file == 1 { sizes[++nr] = $5; times[nr] = $2; next }
		{
			i++
			while (i <= nr && (times[i] != $2 || $5 < sizes[i] * least - 1 || $5 > sizes[i] * most + 1)) {
				i++
				lost++
			}
			bad += i > nr
			seen++
			sum += $5 / sizes[i]
			changed += $5 != sizes[i]
		}
		END { lost += nr - i; print bad + 0, lost + 0, changed + 0, seen, int(1000 * sum / seen) }' "$1" "$2"
}
zcat $traces/table.csv.gz >"$tmp/table.csv"
vary $traces/table.csv.gz >"$tmp/v.csv"
also 'vary: nothing asked, nothing changed' cmp "$tmp/v.csv" "$tmp/table.csv"
vary --seed 3 --sizes 7 $traces/table.csv.gz >"$tmp/v.csv"
vary --seed 3 --sizes 7 "$tmp/table.csv" "$tmp/again.csv.gz"
also 'the same seed, the same bytes, from a plain one and to a gzipped one' sh -c "zcat '$tmp/again.csv.gz' | cmp - '$tmp/v.csv'"
vary --seed 4 --sizes 7 $traces/table.csv.gz >"$tmp/other.csv"
also 'another seed, others' sh -c "! cmp -s '$tmp/v.csv' '$tmp/other.csv'"
also 'rows are as they were' cmp <(rows "$tmp/table.csv") <(rows "$tmp/v.csv")
read -r bad lost changed seen mean < <(compare "$tmp/table.csv" "$tmp/v.csv" 0.93 1.07)
also 'sizes are 7% more or less, and as much on the whole' test "$bad" -eq 0 -a "$lost" -eq 0 -a \
	"$changed" -gt $((seen * 9 / 10)) -a "$mean" -ge 995 -a "$mean" -le 1005
vary --seed 3 --sizes 7 --alike $traces/table.csv.gz >"$tmp/alike.csv"
sizes() { awk -F, '$3 == "allocate" { print $5 }' "$1" | sort -u | wc -l; }
also 'alike: as many sizes, or fewer' test "$(sizes "$tmp/alike.csv")" -le "$(sizes "$tmp/table.csv")" -a \
	"$(sizes "$tmp/alike.csv")" -gt 10
vary --seed 3 --without 10 $traces/table.csv.gz >"$tmp/without.csv"
read -r bad lost changed seen mean < <(compare "$tmp/table.csv" "$tmp/without.csv" 1 1)
also 'a tenth is left out, and no other block changes' test "$bad" -eq 0 -a \
	"$((seen * 100 / (seen + lost)))" -ge 88 -a "$((seen * 100 / (seen + lost)))" -le 92
vary --seed 3 --without 10 --sizes 7 $traces/workers.csv.gz >"$tmp/w.csv"
for file in v.csv alike.csv without.csv w.csv again.csv.gz; do
	run replay --json "$tmp/$file"
	ask "$file can be replayed" '$row->{failures} == 0 && $row->{ratio} >= 1'
	also 'and nothing is left out of it' test ! -s "$tmp/err"
done
vary --number --time 1000 $traces/table.csv.gz >"$tmp/n.csv"
run replay --json "$tmp/n.csv" $traces/table.csv.gz
# Two passes, and one for what is needed.
cp "$tmp/out" "$tmp/all"
run replay --json --memory "$tmp/n.csv" $traces/table.csv.gz
ask '--memory: the same ratios, and nothing that takes time' \
	'@rows == 2 && $row->{ratio} > 1 && $row->{least_ratio} > 1 && !grep { defined $row->{$_} } qw(ns_per_event ns_p99 first_pass_ms second_pass_ms peer_first_pass_ms device_second_ms driver_calls system_calls)'
also 'as without it' cmp <(grep '"ratio"\|peak_' "$tmp/all") <(grep '"ratio"\|peak_' "$tmp/out")
cp "$tmp/all" "$tmp/out"
ask 'numbers for pointers: the same program' '@rows == 2 && $row->{ratio} == $rows[1]{ratio} && $row->{events} == $rows[1]{events}'
for file in /dev/null "$tmp/none.csv" "$tmp"; do
	vary "$file" >"$tmp/out"
	status=$?
	[ "$status" -eq 1 ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ]
	judge "vary: what is no recording: ${file##*/}"
done
vary --sizes 101 $traces/table.csv.gz >"$tmp/out"
status=$?
[ "$status" -eq 2 ] && [ ! -s "$tmp/out" ]
judge 'vary: more than all of it'

# The same, whatever the file looks like.
zcat $traces/table.csv.gz >"$tmp/plain.csv"
awk -F, -v OFS=, 'NR > 1 { $6 = "0x0"; $2 = $2 ",x" } NR == 1 { $2 = $2 ",Other" } { print }' \
	"$tmp/plain.csv" >"$tmp/hex.csv"
run replay --json "$tmp/plain.csv" "$tmp/hex.csv" $traces/table.csv.gz
ask 'plain, hexadecimal and with more columns: the same' \
	'@rows == 3 && !grep { $_->{ratio} != $row->{ratio} || $_->{peak_requested} != $row->{peak_requested} } @rows'

# A recording on standard input.
for file in "$tmp/plain.csv" $traces/table.csv.gz; do
	"$hetmem" replay --json --memory - <"$file" >"$tmp/out" 2>"$tmp/err"
	status=$?
	ask "standard input: ${file##*/}" '@rows == 1 && $row->{trace} eq "stdin" && $row->{events} == 13754'
done
run replay --memory -
one_line 1 'standard input: .*allocates nothing'
judge 'nothing on standard input'
head -c 5000 $traces/table.csv.gz | "$hetmem" replay - >"$tmp/out" 2>"$tmp/err"
status=$?
one_line 1 'standard input: line [0-9]+: .*cut off'
judge 'standard input that is cut off'
# A recording that is replayed is not replaced.
zcat $traces/table.csv.gz >"$tmp/kept.csv"
cp "$tmp/kept.csv" "$tmp/was.csv"
ln -s kept.csv "$tmp/link.csv"
for option in plot curve html; do
	wrong "--$option over the recording" "link.csv' is the recording; name another file with --$option" \
		replay --memory --$option "$tmp/link.csv" "$tmp/kept.csv"
done
wrong 'a spec that logs to the recording' 'would log to the recording; give --spec' \
	replay --memory --spec "stats(log(pool(vmm),file=$tmp/kept.csv))" "$tmp/link.csv"
HETMEM_RESOURCE="log(device-pool,file=$tmp/link.csv)" wrong 'HETMEM_RESOURCE likewise' \
	'would log to the recording; .*unset HETMEM_RESOURCE' replay --memory "$tmp/kept.csv"
also 'it is as it was' cmp "$tmp/kept.csv" "$tmp/was.csv"
wrong 'standard input twice' 'standard input can be read once' replay - -

# A run in which nothing was had is a failure.
for order in recorded concurrent; do
	run replay --memory --order $order --spec 'pool(vmm,max=1)' --spec device-pool "$tmp/plain.csv"
	[ "$status" -eq 1 ] && grep -q '^plain *device-pool ' "$tmp/out" && [ "$(wc -l <"$tmp/err")" -eq 1 ] &&
		grep -q 'plain, pool(vmm,max=1): every allocation failed: .*at most 1 bytes' "$tmp/err"
	judge "every allocation failed: exit 1, and why, $order"
done

# Files that are none, or not all of one.
header=Thread,Time,Action,Pointer,Size,Stream
trace() { printf '%s\n' "$header" "$@" >"$tmp/some.csv"; }
for part in 5000 20000; do
	head -c $part $traces/table.csv.gz >"$tmp/part.csv.gz"
	refused "the first $part bytes of a gzipped one" 'line [0-9]+: .*cut off' replay "$tmp/part.csv.gz"
done
zcat $traces/table.csv.gz | head -2000 | gzip >"$tmp/whole.csv.gz"
head -c -9 "$tmp/whole.csv.gz" >"$tmp/part.csv.gz"
refused 'one that lacks its checksum alone' 'cut off' replay "$tmp/part.csv.gz"
refused 'a directory' 'Is a directory' replay "$tmp"
refused 'no such file' 'No such file' replay "$tmp/none.csv"
: >"$tmp/some.csv"
refused 'an empty file' 'allocates nothing' replay "$tmp/some.csv"
echo 'a,b,c' >"$tmp/some.csv"
refused 'other columns' 'line 1: not the header' replay "$tmp/some.csv"
for size in -5 +5 -18446744073709551615 99999999999999999999 18446744073709551615 5x ''; do
	trace "1,2,allocate,0x10,$size,0"
	refused "a size of '$size'" 'line 2: Size is not a number' replay "$tmp/some.csv"
done
trace '1,2,allocate,0x10,5,7f'
refused 'a stream in letters' 'line 2: Stream is not a number' replay "$tmp/some.csv"
trace '1,2,allocate,-16,5,0'
refused 'a pointer below 0' 'line 2: Pointer is not a number' replay "$tmp/some.csv"
trace '1,2,allocate,0x10,9223372036854775807,0' '1,2,allocate,0x20,1,0'
refused 'more than can be live' 'line 3: more is live than' replay "$tmp/some.csv"
trace "1,2,allocate,0x10,5,0,$(printf '%5000s' x)"
refused 'a line without an end' 'line 2: the line is too long' replay "$tmp/some.csv"
trace '1,2,frobnicate,0x10,5,0'
refused 'an action that is none' 'line 2: unknown action' replay "$tmp/some.csv"
trace '1,2,allocate,0x10,5'
refused 'a short row' 'line 2: a column is missing' replay "$tmp/some.csv"
trace '1,2,allocate,0x10,5,0' '1,3,allocate,0x10,6,0' '1,4,free,0x10,6,0' '1,5,free,0x10,6,0' '1,6,free,0x20,1,0'
run replay --json "$tmp/some.csv"
ask 'frees that are not in the file, and too many of them' '$row->{events} == 4 && $row->{peak_requested} == 6 && $row->{failures} == 0'
run replay "$tmp/some.csv"
also 'are told' sh -c "grep -q '2 rows are of blocks that are not live' '$tmp/err' &&
	grep -q '1 blocks are allocated while they are live' '$tmp/err'"

trace '1,2,allocate,0x10,5,1' '1,3,record,0x0,0,1' '2,4,wait,0x0,0,2' '2,4,wait,0x7,0,2' \
	'1,5,sync,0x0,0,1' '1,6,free,0x10,5,1'
for order in recorded concurrent; do
	run replay --json --order $order "$tmp/some.csv"
	ask "an event whose name is 0, $order" \
		'$row->{events} == 5 && $row->{driver_calls}{cuEventRecord} == 1 && $row->{driver_calls}{cuStreamWaitEvent} == 1'
done
trace '1,2,allocate,0x10,5,1'
mv "$tmp/some.csv" "$tmp/"$'\xff"\\.csv'
run replay --json --spec $'pool(device,tag="\xff")' "$tmp/"$'\xff"\\.csv'
ask 'any name of a file, in JSON' '$row->{trace} eq q(\xff"\\) && $row->{spec} eq q(pool(device,tag="\xff"))'

run replay --json --spec device-pool --spec 'stats(pool(device))' --spec async $traces/table.csv.gz
ask 'specs side by side' '@rows == 3 && $rows[1]{spec} eq "stats(pool(device))" && $rows[2]{driver_calls}{cuMemFreeAsync} > 0'
ask 'none below what is requested' '!grep { $_->{ratio} < 1 } @rows[0, 1]'
ask 'the soft async has no ratio and no time, and says why' '$rows[2]{ratio_why} =~ /imitation/ && $rows[2]{peak_requested} &&
	!grep { defined $rows[2]{$_} } qw(ratio peak_reserved least_ratio first_pass_ms device_second_ms ns_per_event)'
run replay --json --spec 'limit(device-pool,max=1G)' $traces/table.csv.gz
ask 'failures are counted, with the text of one' '$row->{failures} > 0 && $row->{failures_why} =~ /^limit: /'
also 'some are no failure of the replay' test "$("$hetmem" replay --memory --spec 'limit(device-pool,max=1G)' $traces/table.csv.gz >/dev/null 2>&1; echo $?)" -eq 0
ask 'and what failed was not had' '$row->{peak_requested} <= 1 << 30 && $row->{ratio} >= 1'

run replay --json $traces/detect.csv.gz
ask 'detect' '$row->{events} == 132169 && $row->{failures} == 0 && $row->{ratio} >= 1'
also 'of which nothing is left out' test ! -s "$tmp/err"
# A replay of it takes a minute, nearly all of it the peer's.
read -r events wrong live < <(zcat $traces/serve.csv.gz | awk -F, '
	NR == 1 { next }
	{ wrong += ($3 == "allocate") == ($4 in live) }
	$3 == "allocate" { live[$4]; n++ }
	$3 == "free" { delete live[$4]; n-- }
	END { print NR - 1, wrong + 0, n }')
also 'serve: each free is of a live block' test "$events" -eq 1333010 -a "$wrong" -eq 0 -a "$live" -eq 0
for trace in pipeline workers training; do
	run replay --json $traces/$trace.csv.gz
	ask "$trace: several streams, in one thread" '$row->{failures} == 0 && $row->{ratio} >= 1 && $row->{driver_calls}{cuEventRecord} > 1000'
	HETMEM_SOFT_CHECK=1 run replay --json --order concurrent $traces/$trace.csv.gz
	[ "$status" -eq 0 ]
	judge "$trace: in its threads, in the recorded order where there is one"
	run replay --json --order concurrent $traces/$trace.csv.gz
	ask "$trace: in its threads" '$row->{failures} == 0 && $row->{second_pass_ms} > 0 && !defined $row->{ns_p99}'
done
run replay --json --work lag=500 $traces/table.csv.gz
ask 'streams that lag' '$row->{failures} == 0 && $row->{driver_calls}{cuLaunchHostFunc} > 0'
# The CPU gets what a stream that lags has freed, when that is done with it.
trace '1,2,allocate,0x10,25165824,1' '1,3,free,0x10,25165824,1' \
	'1,4,allocate,0x20,20971520,18446744073709551615' '1,5,free,0x20,20971520,18446744073709551615'
run replay --json --work lag=100000 --spec 'pool(vmm,max=32M)' "$tmp/some.csv"
ask 'is waited for' '$row->{failures} == 0 && $row->{host_wait_ms} > 20'
run replay --json --spec 'pool(vmm,max=32M)' "$tmp/some.csv"
ask 'and not without a lag' '$row->{failures} == 0 && $row->{host_wait_ms} < 20'

# Streams that work. Time is only ever asserted as a lower bound: work takes what it takes.
trace '1,2,allocate,0x10,25165824,1' '1,3,free,0x10,25165824,1' '1,4,allocate,0x20,25165824,2' \
	'1,5,free,0x20,25165824,2' '1,6,allocate,0x30,25165824,1' '1,7,free,0x30,25165824,1'
run replay --json --work busy=300000 "$tmp/some.csv"
ask 'work of two on one stream, of one on another' \
	'$row->{failures} == 0 && !grep { !($row->{$_} >= 600) } qw(device_first_ms device_second_ms)'
ask 'needed: all three; least: a stream has its own again' \
	'$row->{peak_needed} == 3 * 25165824 && $row->{peak_least} == 2 * 25165824 && $row->{peak_requested} == 25165824'
ask 'and what was reserved over them' \
	'abs($row->{least_ratio} - 1.5 * $row->{needed_ratio}) < 0.001 && $row->{needed_ratio} > 0'
run replay --json "$tmp/some.csv"
ask 'idle streams need what is requested' \
	'$row->{peak_needed} == $row->{peak_requested} && $row->{peak_least} == $row->{peak_requested} && $row->{device_second_ms} >= $row->{second_pass_ms}'
# The one that is recorded is done last, and then so is the block.
trace '1,2,allocate,0x10,4194304,1' '1,3,allocate,0x20,1000,2' '1,4,record_stream,0x10,0,2' \
	'1,5,free,0x10,4194304,1' '1,6,allocate,0x30,4194304,1'
run replay --json --work busy=300000 "$tmp/some.csv"
ask 'a block that another stream uses is not had again' \
	'$row->{peak_least} == 2 * 4194304 + 1000 && $row->{peak_needed} == $row->{peak_least}'
run replay --json --work lag=1000 $traces/gnn.csv.gz
ask 'streams that lag need more, a perfect allocator hardly' \
	'$row->{peak_needed} > 1.5 * $row->{peak_requested} && $row->{peak_least} >= $row->{peak_requested} && $row->{peak_least} < $row->{peak_needed}'

HETMEM_SOFT_CHECK=1 run replay --json $traces/gnn.csv.gz
ask 'in check mode: nothing is given out too early' '$row->{failures} == 0'

run replay --curve "$tmp/curve.svg" --spec 'pool(vmm,handle=2M)' --spec 'pool(vmm,handle=32M)' \
	$traces/table.csv.gz $traces/gnn.csv.gz
[ "$status" -eq 0 ] && grep -q '^</svg>$' "$tmp/curve.svg" &&
	[ "$(grep -c '<circle' "$tmp/curve.svg")" -eq 4 ] && [ "$(grep -c '<polyline' "$tmp/curve.svg")" -eq 2 ]
judge 'a curve'
run replay --plot "$tmp/plot.svg" $traces/table.csv.gz
[ "$status" -eq 0 ] && grep -q '^<svg ' "$tmp/plot.svg" && grep -q '^</svg>$' "$tmp/plot.svg" &&
	[ "$(grep -c '<polyline' "$tmp/plot.svg")" -eq 2 ] && [ "$(grep -c '<rect' "$tmp/plot.svg")" -gt 20 ] &&
	[ "$(wc -c <"$tmp/plot.svg")" -lt 1000000 ]
judge 'a picture'
grep -q '^table  *device-pool  *13754 .* [0-9.]*\.\.[0-9.]* ' "$tmp/out" && ! grep -qw 'PEER' "$tmp/out"
judge 'and a table, with the range of the passes and without a peer'
head -2 "$tmp/out" | tr '\n' ' ' | grep -q "^the soft driver plays .*no time is a GPU's.*cuMemAllocAsync is left out"
judge 'which says first that no GPU was measured'

run replay --plot "$tmp/plot.svg" --curve "$tmp/curve.svg" --spec 'pool(device,tag="<&>")' \
	--spec 'pool(device,tag="<&&>")' $traces/table.csv.gz
[ "$status" -eq 0 ] && ! grep -E '<&|&[^lga]|&&' "$tmp/plot.svg" "$tmp/curve.svg" >"$tmp/out"
judge 'text of a spec is no markup'
refused 'a picture that cannot be written: before anything is measured' 'svg: No such file' \
	replay --plot "$tmp/none/plot.svg" $traces/table.csv.gz
run replay --curve /dev/full $traces/table.csv.gz
[ "$status" -eq 1 ] && grep -q '^table  *device-pool ' "$tmp/out" && grep -q 'No space' "$tmp/err"
judge 'a picture that is cut off is a failure, and the figures are there'

# A log can be replayed.
check 'a program to record' make build/selftests/lib/adaptor/record
HETMEM_SOFT_MEMORY=2G limited 60 build/selftests/lib/adaptor/record workers \
	"log(device-pool,file=$tmp/own.csv,full=on)" >"$tmp/out" 2>"$tmp/err"
run replay --json "$tmp/own.csv"
ask 'what was just recorded' '$row->{events} > 10000 && $row->{failures} == 0'

run bench alloc --json
for key in what spec threads ns_pair peer peer_ns_pair driver_calls system_calls; do
	ask "bench: it has $key" "@rows && !grep { !exists \$_->{$key} } @rows"
done
ask 'bench alloc' '@rows == 2 && !grep { !($_->{ns_pair} > 0) } @rows'
soft='!(grep { $_->{peer} && (defined $_->{peer_ns_pair} || $_->{peer_why} !~ /imitation/) || $_->{times_why} !~ /no time is a GPU/ } @rows)'
ask 'bench alloc: no peer of the soft driver, and why' "$soft && \$row->{peer}"
ask 'one call of the driver for each' 'join(",", keys %{$row->{driver_calls}}) eq "cuStreamGetId" && $row->{driver_calls}{cuStreamGetId} == 2'
ask 'none where streams are retired' '!%{$rows[1]{driver_calls}}'
ask 'and no system call' '!grep { !defined $_->{system_calls} || $_->{system_calls} } @rows'
run bench threads --json --threads 2 --spec device-pool
ask 'bench threads' '@rows == 4 && $rows[1]{threads} == 2 && !grep { !($_->{ns_pair} > 0) } @rows'
ask 'of all threads: what they call' '!grep { $_->{spec} && !($_->{driver_calls}{cuStreamGetId} >= 1.9) } @rows'
ask 'of one thread: system calls' '!grep { !defined $_->{system_calls} && $_->{what} eq "own streams" } @rows'
run bench streams --json --spec device-pool
ask 'bench streams' '@rows == 5 && !grep { !($_->{ns_pair} > 0) } @rows'
ask 'no time of the device where nothing runs there' '!grep { exists $_->{device_ns_pair} } @rows'
run bench alloc --json --work busy=500 --spec device-pool
ask 'bench alloc, with work: a pair takes as long on its stream' \
	'@rows == 1 && $row->{device_ns_pair} >= 500000 && !defined $row->{peer_device_ns_pair}'
run bench streams --json --work busy=500 --spec device-pool
ask 'bench streams, with work' '@rows == 5 && !grep { !($_->{device_ns_pair} > 0) } @rows'
run bench vmm --json --spec device-pool
ask 'what growing calls' '!grep { !($_->{driver_calls}{cuMemCreate} > 0 && $_->{driver_calls}{cuMemMap} > 0) } @rows'
ask 'bench vmm' '@rows && !grep { !($_->{ns_pair} > 0) } @rows'
ask 'bench vmm: no peer' "$soft"
run bench sparse --json
ask 'bench sparse: five ways, the driver alone, tasks and many blocks, of two units' \
	'@rows == 16 && !grep { !($_->{ns_pair} > 0) } @rows[0 .. 13]'
vmm='grep { /^cuMem/ } keys %{$_->{driver_calls}}'
ask 'no call for memory where a unit is parked' "!grep { $vmm } @rows[0, 1, 6, 7]"
ask 'one handle for new memory, none for what is parked elsewhere' \
	'!grep { $_->{driver_calls}{cuMemCreate} != 1 } @rows[2, 8] and !grep { $_->{driver_calls}{cuMemCreate} || $_->{driver_calls}{cuMemMap} != 1 } @rows[3, 4, 9, 10]'
ask 'at most 4 KiB a block without memory' \
	'!grep { !($_->{metadata_blocks} == 10000 && $_->{metadata_bytes} > 48e4 && $_->{metadata_bytes} <= 4096e4) } @rows[14, 15]'
ask 'bench sparse: no peer' "$soft"
# What cannot be measured is no row.
for bench in alloc streams 'threads --threads 1' cached vmm pinned metadata 'worst --size small'; do
	# shellcheck disable=SC2086
	run bench $bench --spec 'limit(device-pool,max=1)'
	case $bench in
	worst*) why='(limit: .*be beyond 1|alloc_with: limit cannot.*)$' ;;
	vmm) why='(alloc_with: limit cannot|limit: .*be beyond 1)$' ;;
	cached|metadata) why='limit: .*be beyond 1$' ;;
	*) why='an allocation failed$' ;;
	esac
	[ "$status" -eq 1 ] && ! grep -q 'limit(' "$tmp/out" && grep -q 'limit(' "$tmp/err" &&
		! grep 'limit(' "$tmp/err" | grep -vEq "$why"
	judge "bench $bench: a resource without memory"
done
run bench driver --json --threads 2
ask 'bench driver' '@rows > 10 && !grep { !($_->{ns_pair} > 0) } @rows'

# Memory of both: all that can be measured is, and contents were looked at.
run bench unified --json --size 8
[ "$status" -eq 0 ] && ! [ -s "$tmp/err" ]
judge 'bench unified'
ask 'it has a row for each way' '@rows == 16 && !grep { !($_->{ours} > 0 && $_->{peer_name}) } @rows'
ask 'and no figure of a peer, and why' '$all->{times_why} =~ /no time is a GPU/ && !grep { defined $_->{peer} || exists $_->{ratio} || $_->{peer_why} !~ /imitation/ } @rows'
ask 'and no goal of a GPU' '!grep { exists $_->{goal} } @rows'
ask 'registered memory moves nowhere' '@{$all->{not_measured}} == 1 && $all->{not_measured}[0]{why} =~ /where it is$/'
run bench unified --size 8
head -1 "$tmp/out" | grep -q "^the soft driver plays .*no time is a GPU's" && ! grep -Eqw 'PEER|RATIO' "$tmp/out" &&
	[ -z "$(sort "$tmp/out" | cut -c 1-60 | uniq -d)" ]
judge 'as a table: without peers, each row once'
run bench unified --size 1
[ "$status" -eq 2 ] && grep -q "'1' is not a size" "$tmp/err"
judge 'bench unified: a size that is none'
run bench alloc --size 8
[ "$status" -eq 2 ] && grep -q 'alloc: no --size here' "$tmp/err"
judge 'bench alloc has no size'

# What a pool keeps about its blocks, by what the kernel says is resident: at most 64 bytes
# a live block and a thousandth of what is mapped; and not less than a block's descriptor.
within='!grep { !($_->{metadata_bytes} <= 64 * $_->{metadata_blocks} + $_->{metadata_mapped} / 1000) } @rows'
run bench metadata --json
ask 'bench metadata' '@rows == 4 && $row->{metadata_blocks} == 100000 && $rows[2]{metadata_blocks} == 1000000'
ask 'metadata is small' "$within"
ask 'and is there' '!grep { $_->{metadata_bytes} < 48 * $_->{metadata_blocks} } @rows'
run replay --json $traces/{gpt2,resnet,gnn,table}.csv.gz
# At most 1.03, and below what any other allocator needs: PyTorch's with expandable segments
# for ResNet.
ask 'each recording: at most 1.03 times what is requested' '!grep { !($_->{ratio} >= 1 && $_->{ratio} <= 1.03) } @rows'
ask 'and ResNet below 1.019' '$rows[1]{ratio} < 1.019'
ask 'at the peak of each recording, too' "@rows == 4 && $within"
ask 'of its live blocks' '$row->{metadata_blocks} == 748 && !grep { $_->{metadata_mapped} > $_->{peak_reserved} || $_->{metadata_bytes} < 48 * $_->{metadata_blocks} } @rows'
run replay --json --work lag=1000 $traces/{resnet,gnn}.csv.gz
ask 'at most 1.10 where streams lag' '@rows == 2 && !grep { !($_->{ratio} >= 1 && $_->{ratio} <= 1.10) } @rows'
run bench metadata --json --spec host
ask 'what takes more is seen' "!($within)"

# Programs against the allocator: that they run, and that what is said of them can be.
HETMEM_SOFT_CHECK=1 run bench worst --json --size small
ask 'bench worst: all of them, in check mode' '@rows == 16 && !grep { !$_->{calls} || $_->{stopped} } @rows'
for key in name what spec n calls ns_call ns_slowest ns_held cpu_ns_slowest cpu_ns_held instructions_slowest instructions_held \
	peak_requested peak_reserved ratio goal stopped; do
	ask "bench worst: it has $key" "!grep { !exists \$_->{$key} } @rows"
done
ask 'what is held was requested' '!grep { $_->{peak_reserved} < $_->{peak_requested} || $_->{ratio} < 1 } @rows'
ask 'a mutex is held no longer than its call' '!grep { defined $_->{ns_slowest} && $_->{ns_held} > $_->{ns_slowest} } @rows'
ask 'but it is held' '!grep { defined $_->{ns_slowest} && !$_->{ns_held} } @rows'
ask 'five are about memory' 'join(" ", map { $_->{name} } grep { defined $_->{goal} } @rows) eq "holes turns kv once excess"'
ask 'peaks are true ones' '$rows[14]{name} eq "once" && $rows[14]{peak_requested} == 24 << 20 && $rows[14]{n} == 8'
run bench worst --json --size=small --spec device-pool --spec 'pool(vmm,handle=2M)' holes turns
ask 'some of them, with two specs' 'join(" ", map { $_->{name} } @rows) eq "holes turns holes turns"'
run bench worst --size small once
[ "$status" -eq 0 ] && grep -q '^once .* 1.30 ' "$tmp/out"
judge 'as a table'

run spec 'stats(pool(vmm(device=0),max=90%))'
[ "$status" -eq 0 ] && grep -q '^    vmm ' "$tmp/out" && grep -q 'max=90%' "$tmp/out"
judge 'spec shows the stack'
run spec --create unified
[ "$status" -eq 0 ] && grep -q '^unified is classes(' "$tmp/out" && grep -q '^It can be made' "$tmp/out"
judge 'spec --create makes it'
HETMEM_SOFT_MACHINE=hmm run spec 'unified(over=system,fork=copy,max=1G)'
[ "$status" -eq 0 ] && grep -qx 'Why: over=system; with headroom; fork= has no effect over system.' "$tmp/out"
judge 'spec tells why, and what has no effect'
HETMEM_SOFT_MACHINE=none run spec unified
[ "$status" -eq 0 ] && grep -q '^unified is classes(registered(device=0)) ' "$tmp/out" &&
	grep -q '^Why: device 0 (none): .*registered memory' "$tmp/out"
judge 'spec follows the machine'
HETMEM_SOFT_MACHINE=integrated run spec --explain 'stats(pool(vmm,spill=1G))'
[ "$status" -eq 0 ] && grep -q '^pool(vmm(device=0)): spill= and min_host= are refused: .*one memory' "$tmp/out" &&
	grep -q '^pool(vmm(device=0)): a sleep keeps no contents: .*give park=PATH' "$tmp/out"
judge 'spec --explain tells what the machine refuses'
run spec --explain 'pool(vmm,spill=1G)'
[ "$status" -eq 0 ] && grep -q '^This machine chooses and refuses nothing' "$tmp/out"
judge 'spec --explain on another machine'
run spec --list
[ "$status" -eq 0 ] && [ "$(grep -c '^[a-z]' "$tmp/out")" -ge 19 ]
judge 'spec --list lists the kinds'
run spec --create 'pool(vmm(device=9))'
[ "$status" -eq 1 ] && grep -q '^hetmem spec: no device 9: there are 1' "$tmp/err"
judge 'spec --create: what cannot be made'
done_testing
