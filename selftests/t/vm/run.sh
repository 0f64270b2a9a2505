# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# hetmem run with the module and the emulated device: the device reads what a stock program got
# from malloc(), the module tracks it, and with --agent hints move it.
prepare_run()
{
	local programs=build/selftests/run

	check 'the programs build' make all run-tests
	files+=(-f build/libhetmem.so:/bin/libhetmem.so.0 -f build/libhetmem-preload.so
		-f "$programs/device" -f "$programs/calls" -f "$programs/forks" -f "$programs/random")

	cat >"$tmp/run.sh" <<'EOS'
reload capacity_mb=64
# begin COMMAND...: in the background, with a pipe to its stdin; $pid, and $range that it prints.
begin()
{
	rm -f /tmp/in /tmp/out
	mkfifo /tmp/in
	"$@" </tmp/in >/tmp/out 2>/tmp/log &
	pid=$!
	exec 8>/tmp/in
	while [ ! -s /tmp/out ]; do sleep 0.1; done
	read range </tmp/out
}
finish() { exec 8>&-; wait $pid; tail -n 1 /tmp/out; cat /tmp/log; }
places() { hetmem map --json --range $range $pid |
	sed -n 's/.*"device 0".*/on the device/p; s/.*"host node 0".*/on the host/p' | sort -u; }
contexts() { grep -h '^hetmem-ranges' /proc/$pid/fdinfo/* | sort; ls -l /proc/$pid/fd | grep /dev/hetmem$ | sed 's/.* \([0-9]*\) -> .*/descriptor \1/'; }
huge=/sys/kernel/mm/transparent_hugepage/enabled
before=$(sed 's/.*\[\(.*\)\].*/\1/' $huge)
echo madvise >$huge

try without device
try device hetmem run --report /tmp/report device
try report cat /tmp/report
try spec hetmem run --spec system --report /tmp/report device
try calls hetmem run calls blocks
try forks hetmem run --report /tmp/report2 forks
try forks-report cat /tmp/report2
try random hetmem run --report /tmp/report3 random 3 12000
try random-report cat /tmp/report3
try nodes hetmem run --policy bind=1 random 4 4000
try user su user -c 'hetmem run random 5 4000'

begin hetmem run device wait
try tracked contexts
try no-executor hetmem prefetch --pid $pid
try children sh -c 'hetmem run sh -c "ls -l /proc/self/fd" | grep -c hetmem'
try finished finish
begin hetmem run --policy bind=1 device wait
try on-node hetmem map --range $range $pid
try done-node finish

begin hetmem run --agent device wait
try prefetch hetmem prefetch --pid $pid --range $range
try there places
try pullback hetmem pullback --pid $pid --range $range
try back places
try again hetmem prefetch --pid $pid --range $range
try done-agent finish
echo "$before" >$huge
EOS
}

judge_run()
{
	# tap NAME: the program's tests; skips are none.
	tap() { part "$1"; program "$1" cat "$tmp/out"; }
	tap without
	tap device
	gives report 0 'the module tracks it' 'command=device blocks=[1-9][0-9]* .*tracked=[1-9]' 'moved=[1-9]'
	tap spec
	tap calls
	tap forks
	gives forks-report 0 'tracked in the processes' 'command=forks .*tracked=[1-9]'
	tap random
	gives random-report 0 'tracked' 'command=random .*tracked=[1-9][0-9][0-9]'
	tap nodes
	tap user
	gives tracked 0 'a context with ranges' '^hetmem-ranges:.*[1-9]' '^descriptor [7-9][0-9][0-9]$'
	[ "$(grep -c descriptor "$tmp/out")" -eq 1 ]
	judge 'one descriptor, with a high number'
	gives no-executor 1 'without --agent nobody carries out hints' 'hetmem prefetch: '
	gives children 1 'no descriptor in what it starts' '^0$'
	gives finished 0 'the contents' '^right$'
	gives on-node 0 '--policy bind=1' '^host node 1 +[0-9]+ +6 MiB'
	gives done-node 0 'the contents' '^right$'
	gives prefetch 0 '--agent: a hint to the device' 'moved to device 0'
	gives there 0 'it is there' '^on the device$'
	gives pullback 0 'and back' 'moved to host'
	gives back 0 'it is back' '^on the host$'
	gives again 0 'there again' 'moved to device 0'
	gives done-agent 0 'the contents' '^right$'
}
