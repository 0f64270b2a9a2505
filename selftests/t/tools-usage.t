#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem: help, and one line and exit status 2 for whatever it cannot do.

. "$(dirname "$0")/tools-lib.sh"

wrong 'no command' "type 'hetmem --help'"
wrong 'unknown command' "unknown command 'frob'.*type 'hetmem --help'" frob
wrong 'unknown option' "unknown option '--frob'.*type 'hetmem --help'" --frob
wrong 'empty command' "unknown command ''" ''
wrong 'control characters are escaped' 'x1b\[31m.*x0a' $'\e[31m\nfrob'
wrong '--version takes nothing' "'--version' takes no argument" --version x

for sub in doctor run map status top record report prefetch pullback advise sleep wake reclaim set keep list tune demo bench spec replay completion; do
	wrong "$sub: unknown option" "hetmem $sub: .*--frob.*'hetmem $sub --help'" \
		$sub --frob
	wrong "$sub: unknown letter" "hetmem $sub: .*-x.*'hetmem $sub --help'" $sub -x
	run $sub --help
	[ "$status" -eq 0 ] && grep -q "^Usage: hetmem $sub" "$tmp/out" &&
		[ ! -s "$tmp/err" ] && [ "$(wc -l <"$tmp/out")" -le 24 ] &&
		[ "$(wc -L <"$tmp/out")" -le 80 ]
	judge "$sub --help fits a screen"
done
run --help
[ "$status" -eq 0 ] && [ "$(wc -l <"$tmp/out")" -le 24 ] &&
	[ "$(wc -L <"$tmp/out")" -le 80 ] && grep -q '^ *demo ' "$tmp/out"
judge '--help fits a screen and names the commands'
run --version
[ "$status" -eq 0 ] && grep -Eq '^hetmem [0-9]+\.[0-9]' "$tmp/out"
judge '--version'

for sub in run top record prefetch pullback advise sleep wake reclaim set tune demo spec; do
	wrong "$sub --json: names those that have it" "$sub has no '--json': doctor, map, status, report, list, replay and bench" $sub --json
done
wrong '--json before the command' "'--json' comes after the command: doctor, map," --json
for sub in doctor map status report list replay 'bench alloc' 'bench kernel'; do
	# shellcheck disable=SC2086
	wrong "$sub --json=x" "'--json' takes no value" $sub --json=x
done

wrong 'doctor: an argument' "'x' is not an option" doctor x
wrong 'doctor: not a directory' "not a directory" doctor --sysroot "$tmp/none"
wrong 'doctor: option without its value' 'needs a value' doctor --sysroot

wrong 'map: nothing' 'PID or --self' map
wrong 'map: two' "'2' is too many" map 1 2
wrong 'map: both' '--self and a PID' map --self 1
for pid in abc 0 1x '' 99999999999999999999 4294967297 0x10 +1; do
	wrong "map: '$pid' is no PID" 'is not a PID' map "$pid"
done
wrong 'map: negative PID' "unknown option '-1'" map -1
refused 'map: PID that is gone' 'there is no process 2147483647' map 2147483647
for range in x 1000 1000- -1000 2000-1000 1000-1000 1000-2000x \
	     fffffffffffffffff-ffffffffffffffffff ' 1000-2000'; do
	wrong "map: range '$range'" 'is not a range' map --self "--range=$range"
done
for width in 0 19 1001 x 80x -80; do
	wrong "map: width '$width'" 'is not a width' map --self "--width=$width"
done
wrong 'map: colour' 'not auto, always or never' map --self --color=maybe
wrong 'map: option without its value' "'--width' needs a value" map --width
refused 'map: nothing in the range' 'nothing is mapped from' \
	map $$ --range 1000-2000

wrong 'spec: two' "'host' is too many" spec host host
wrong 'spec: a list without an end' '^hetmem spec: character 9, at the end: .* is missing' spec 'pool(vmm'
wrong 'spec: points at the character' 'character 11, at "mx=1)": pool has no' spec 'pool(host,mx=1)'
wrong 'spec: --list stands alone' 'stands alone' spec --list host
wrong 'spec: driver' 'not cuda or soft' spec --driver frob host
HETMEM_RESOURCE=frob wrong 'spec: says where it is from' 'HETMEM_RESOURCE: character 1,' spec
HETMEM_RESOURCE=frob wrong 'replay: says that, too' 'HETMEM_RESOURCE: spec: character 1,' replay x
wrong 'replay: nothing' 'which trace' replay
wrong 'replay: spec' "character 1, .*no resource 'frob'" replay --spec frob x
wrong 'replay: driver' 'not cuda or soft' replay --driver frob x
wrong 'replay: order' 'not recorded or concurrent' replay --order frob x
for work in frob lag lag= lag=0 lag=1x lag=-1 lag=99999999999 busy busy= busy=0 busy=1x busy=-1 busy=99999999999; do
	wrong "replay: work '$work'" 'not idle, lag=US or busy=US' replay "--work=$work" x
done
for size in 0 x -1 8GX ''; do
	wrong "replay: --spill '$size'" "--spill: '$size' is not" replay "--spill=$size" x
	wrong "replay: --movable '$size'" "--movable: '$size' is not" replay --spill 1G "--movable=$size" x
done
for max in 0 0% 101% x% -1% 8GX ''; do
	wrong "replay: --max '$max'" "--max: '$max' is not" replay --spill 1G "--max=$max" x
done
wrong 'replay: --max alone' '--max goes with --spill' replay --max 50% x
wrong 'replay: --movable alone' '--movable goes with --spill' replay --spec 'pool(vmm,spill=1G)' --movable 4M x
wrong 'replay: --spill in threads' '--spill needs one thread' replay --spill 1G --order concurrent x
wrong 'replay: --moves of nothing' '--moves: .*spill=' replay --moves x
wrong 'replay: --moves in threads' '--moves: .*concurrent' replay --moves --order concurrent --spec 'pool(vmm,spill=1G)' x
wrong 'replay: spill=0' 'spill' replay --spec 'pool(vmm,spill=0)' x
refused 'replay: no such file' 'No such file' replay "$tmp/none"
echo Thread,Time >"$tmp/bad.csv"
refused 'replay: no trace' 'line 1: not the header' replay "$tmp/bad.csv"
printf 'Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,x,0\n' >"$tmp/bad.csv"
refused 'replay: a bad row' 'line 2: Size is not' replay "$tmp/bad.csv"

for sub in prefetch pullback; do
	wrong "$sub: nobody" 'which process\? Give a PID' $sub
	wrong "$sub: two" "one PID at a time, '2' is too many" $sub 1 2
	wrong "$sub: two, one by an option" "one PID at a time, '2' is too many" $sub --pid 1 2
	for pid in abc 0 -1 1x '' 99999999999999999999 4294967297 0x10; do
		wrong "$sub: '$pid' is no PID" 'is not a PID' $sub -- "$pid"
		wrong "$sub: --pid '$pid' is no PID" 'is not a PID' $sub --pid "$pid"
	done
	for range in x 1000 1000- 2000-1000 1000-1000; do
		wrong "$sub: range '$range'" 'is not a range' \
			$sub 1 --range "$range"
	done
	for timeout in 0 601 x 1s ''; do
		wrong "$sub: timeout '$timeout'" 'is not a time' \
			$sub 1 --timeout "$timeout"
	done
	options=()
	[ $sub = prefetch ] || options=(--node 0)
	refused "$sub: a process that cannot be asked" \
		'there is no /dev/hetmem|has no /dev/hetmem|not permitted' $sub "${options[@]}" 1
done
sleep infinity &
run pullback $!
[ "$status" -eq 0 ] &&
	grep -qE '^process [0-9]+, read page by page: [0-9]+ of [0-9]+ pages \(.*\) came back' "$tmp/out"
judge 'pullback: a process that cannot be asked is read'
run pullback --range 1000-7ffffffff000 --range 2000-3000 $!
[ "$status" -eq 0 ]
judge 'pullback: of the whole address space, only its mappings are read'
refused 'pullback: nothing is mapped there' 'has no memory that could move' pullback --range 1000-2000 $!
kill $!
wait $! 2>/dev/null
refused 'pullback: a process that is not there' 'there is no process|has no /dev/hetmem|ended' pullback $!
uuid=8f6aef44-1a5d-1978-3d98-5cc4d0fa0446
for location in x device device: device:x device:65535 host: host:-1 gpu:0 '' GPU- $uuid \
		"GPU-${uuid%?}" "GPU-${uuid}0" "GPU-${uuid//-/}" "GPU-${uuid/8f/ 8}" \
		"GPU-${uuid/8f/-8}" "GPU-${uuid/8f/0x}" "GPU-${uuid/44-1a/4-41a}"; do
	wrong "prefetch: location '$location'" 'is not device:N' \
		prefetch --pid 1 --to "$location"
done
for node in x -1 65535 ''; do
	wrong "pullback: node '$node'" 'is not a node' pullback --pid 1 --node "$node"
done
wrong 'prefetch: an option of pullback' "unknown option '--node'" prefetch --node 1
wrong 'pullback: an option of prefetch' "unknown option '--to'" pullback --to host

for device in x -1 '' 1x 9999999999999999999999; do
	wrong "demo: device '$device'" 'is not the number of a device' \
		demo "--device=$device"
done
wrong 'demo: an argument' "'x' is not an option" demo x

wrong 'bench: nothing' 'which benchmark' bench
wrong 'bench: a benchmark that is not there' "no benchmark 'frob'" bench frob
wrong 'bench alloc: driver' 'not cuda or soft' bench alloc --driver frob
wrong 'bench alloc: spec' "character 1, .*no resource 'frob'" bench alloc --spec host --spec frob
wrong 'bench cached: no work' 'cached: no --work here' bench cached --work busy=5
for work in frob busy busy= busy=0 busy=1x lag=5; do
	wrong "bench alloc: work '$work'" 'not idle or busy=US' bench alloc --work "$work"
done
wrong 'bench worst: nobody' "no program 'frob'" bench worst holes frob
for size in frob '' smallest; do
	wrong "bench worst: size '$size'" 'not full or small' bench worst --size "$size"
done
for limit in 0 -1 x '' 1x; do
	wrong "bench worst: limit '$limit'" 'not a number of seconds' bench worst "--limit=$limit"
done
wrong 'bench worst: an option without a value' 'not full or small' bench worst --size
wrong 'bench worst: unknown option' '--frob' bench worst --frob
run bench worst --help
[ "$status" -eq 0 ] && grep -q '^Usage: hetmem bench worst' "$tmp/out" && [ "$(wc -l <"$tmp/out")" -le 25 ]
judge 'bench worst --help fits a screen'
wrong 'bench transport: unknown option' '--frob' bench transport --frob
wrong 'bench transport: a word' "'frob' is not an option" bench transport frob
wrong 'bench transport: spec' "no resource 'frob'" bench transport --spec frob
wrong 'bench transport: no work' 'transport: no --work here' bench transport --work busy=5
for size in 0 1 x '' -4 65537 5X; do
	wrong "bench transport: size '$size'" 'is not a size' bench transport "--size=$size"
done
run bench transport --help
[ "$status" -eq 0 ] && grep -q '^Usage: hetmem bench transport' "$tmp/out" && [ "$(wc -L <"$tmp/out")" -le 80 ]
judge 'bench transport --help fits a screen'
# A libucp that is none: first in the path of the loader.
mkdir "$tmp/none" && : >"$tmp/none/libucp.so.0"
LD_LIBRARY_PATH=$tmp/none refused 'bench transport: no UCX' 'UCX is needed: .*libucp' bench transport
wrong 'bench kernel: unknown option' '--frob' bench kernel --frob
wrong 'bench kernel: unknown part' "no part 'frob'" bench kernel frob
for size in 0 1 x '' -4 4097 1M 4.5X 5G; do
	wrong "bench kernel: size '$size'" 'is not a size' bench kernel "--size=$size"
done
wrong 'bench agent: unknown option' '--frob' bench agent --frob
wrong 'bench agent: a word' "'frob' is not an option" bench agent frob
wrong 'bench agent: rounds' "not a number of rounds" bench agent --rounds=9
run bench kernel --help
[ "$status" -eq 0 ] && grep -q '^Usage: hetmem bench kernel' "$tmp/out" &&
	[ "$(wc -L <"$tmp/out")" -le 80 ]
judge 'bench kernel --help fits a screen'
if [ ! -e /dev/hetmem ]; then
	refused 'bench kernel: no module' 'cannot open /dev/hetmem.*doctor' bench kernel
fi

for size in 0 1 x '' 4097 1MiB 5GB; do
	wrong "bench pullback: size '$size'" 'is not a size' bench pullback "--size=$size"
done
wrong 'bench pullback: device' 'is not the number of a device' bench pullback --device x
wrong 'bench pullback: an argument' "'x' is not an option" bench pullback x
run bench pullback --help
[ "$status" -eq 0 ] && grep -q '^Usage: hetmem bench pullback' "$tmp/out" &&
	[ "$(wc -L <"$tmp/out")" -le 80 ]
judge 'bench pullback --help fits a screen'

# Where memory cannot move, here or with a device that is not there.
if ! "$hetmem" doctor --require moves >"$tmp/out" 2>&1; then
	wrong 'demo: a machine where memory cannot move' 'memory cannot move.*make demo' demo
fi
HETMEM_DRIVER=frob wrong 'demo: unknown driver' 'frob.*hetmem doctor' demo

"$hetmem" --help >/dev/full 2>"$tmp/err"
status=$?
[ $status -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ]
judge 'output that cannot be written is a failure'
done_testing
