#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem sleep and hetmem wake.
. "$(dirname "$0")/cuda.sh"

# The subcommand of hetmem.
doze='sleep'

# What is wrong.
for sub in sleep wake; do
	wrong "$sub: nothing" 'which process' $sub
	wrong "$sub: two" "'2' is too many" $sub 1 2
	for pid in abc 0 1x '' 99999999999999999999 +1; do
		wrong "$sub: '$pid' is no PID" 'is not a PID' $sub "$pid"
	done
	refused "$sub: PID that is gone" 'there is no process 2147483647' $sub 2147483647
	LD_LIBRARY_PATH='' refused "$sub: no driver" 'libcuda.so.1 not found' $sub $$
	FAKE_VERSION=12040 refused "$sub: an old driver" 'of CUDA 12.4: .*driver 570' $sub $$
	HETMEM_DRIVER=soft refused "$sub: a process without CUDA" "process $$ .*does not use CUDA" $sub $$
	refused "$sub: another driver's" "process $$ .*does not use CUDA" $sub $$
done
for seconds in 0 601 x '' -1; do
	wrong "sleep: timeout '$seconds'" 'is not a time from 1 to 600' sleep --timeout "$seconds" $$
done
wrong 'wake: an option of sleep' "unknown option '--timeout'" wake --timeout 1
if [ "$(id -u)" -eq 0 ]; then
	sh -c 'exec sleep infinity' &
	children+=($!)
	setpriv --reuid 65534 --clear-groups "$(readlink -f "$hetmem")" "$doze" $! >"$tmp/out" 2>"$tmp/err"
	status=$?
	one_line 1 "is another user's; become root"
	judge "sleep: another user's process"
fi

# begin [SPEC]: starts the program, with the spec or without hetmem. $pid, and file descriptors 5
# (to it) and 6 (from it).
begin()
{
	mkfifo "$tmp/to" "$tmp/from" 2>/dev/null
	(
		unset HETMEM_DRIVER
		export HETMEM_SOFT_SLEEP=1
		[ -n "${1:-}" ] || exec "$programs/sleeper"
		device "$1" "$programs/sleeper"
	) <"$tmp/to" >"$tmp/from" 2>"$tmp/sleeper" &
	child=$!
	children+=("$child")
	exec 5>"$tmp/to" 6<"$tmp/from"
	read -r pid <&6
}

finish()
{
	echo quit >&5
	wait "$child"
	local ended=$?
	exec 5>&- 6<&-
	[ $ended -eq 0 ]
	judge "$1: the program ends as it does"
}

# answers NAME COMMAND ANSWER
answers()
{
	local answer
	echo "$2" >&5
	read -r answer <&6
	[ "$answer" = "$3" ] || { echo "$answer" >"$tmp/out"; false; }
	judge "$1"
}

# does NAME PATTERN ARGS...: it succeeds with one line.
does()
{
	local name=$1 pattern=$2

	shift 2
	run "$@"
	[ "$status" -eq 0 ] && [ ! -s "$tmp/err" ] && [ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -Eq -- "$pattern" "$tmp/out"
	judge "$name"
}

export HETMEM_DRIVER=soft
for spec in '' device-pool 'pool(device)' 'limit(device-pool,max=128M)'; do
	name=${spec:-native}
	begin "$spec"
	answers "$name: contents" check whole
	refused "$name: it does not sleep" "process $pid \(sleeper\) does not sleep" wake "$pid"
	does "$name: sleeps" "process $pid \(sleeper\) sleeps: .*'hetmem wake $pid' wakes it" "$doze" "$pid"
	refused "$name: sleeps already" "sleeps already; 'hetmem wake $pid' wakes it" "$doze" "$pid"
	echo alloc >&5
	does "$name: wakes" "process $pid \(sleeper\) is awake" wake "$pid"
	read -r answer <&6
	[ "$answer" = allocated ]
	judge "$name: the call of the program that waited"
	answers "$name: contents after it" check whole
	answers "$name: a capture" begin captures
	does "$name: sleeps while capturing" sleeps "$doze" "$pid"
	does "$name: wakes while capturing" awake wake "$pid"
	answers "$name: the capture goes on" 'end' replayed
	finish "$name"
done

begin
HETMEM_SOFT_FAIL=cuCheckpointProcessCheckpoint:1=CUDA_ERROR_NOT_SUPPORTED \
	refused 'memory that cannot leave' 'cannot sleep: it has managed memory, memory that it shares' "$doze" "$pid"
answers 'the process runs on' check whole
HETMEM_SOFT_FAIL=cuCheckpointProcessCheckpoint:1=CUDA_ERROR_OUT_OF_MEMORY \
	refused 'no memory of the host' 'too little memory of the host' "$doze" "$pid"
answers 'it runs on then, too' check whole
HETMEM_SOFT_FAIL=cuCheckpointProcessLock:1=CUDA_ERROR_NOT_READY \
	refused 'work that does not end' "within 3 s, and runs on; give more with '--timeout'" sleep --timeout 3 "$pid"
HETMEM_SOFT_FAIL=cuCheckpointProcessLock:1=CUDA_ERROR_NOT_PERMITTED \
	refused 'no right' 'become root' "$doze" "$pid"
HETMEM_SOFT_FAIL=cuCheckpointProcessLock:1=CUDA_ERROR_UNKNOWN \
	refused 'another error' 'cannot be locked: CUDA_ERROR_UNKNOWN' "$doze" "$pid"
answers 'it runs on after all of them' check whole
HETMEM_SOFT_FAIL=cuCheckpointProcessCheckpoint:1,cuCheckpointProcessUnlock:1 run "$doze" "$pid"
[ "$status" -eq 1 ]
judge 'a sleep that ends in the middle'
does 'leaves what a wake mends' awake wake "$pid"
answers 'and loses nothing' check whole
HETMEM_SOFT_FAIL=cuCheckpointProcessCheckpoint:1,cuCheckpointProcessUnlock:1 run "$doze" "$pid"
does 'or a second sleep' sleeps "$doze" "$pid"
HETMEM_SOFT_FAIL=cuCheckpointProcessRestore:1=CUDA_ERROR_OUT_OF_MEMORY \
	refused 'no room on the GPU' 'too little memory on the GPU; try again later' wake "$pid"
refused 'it sleeps on' 'sleeps already' "$doze" "$pid"
does 'and wakes later' awake wake "$pid"
answers 'with its contents' check whole
does 'it sleeps' sleeps "$doze" "$pid"
kill -9 "$pid"
wait "$child" 2>/dev/null
refused 'and ends in its sleep' 'there is no process' wake "$pid"

# By the process itself.
refused 'served: a process that serves nothing' "has no memory of 'hetmem run --device'" "$doze" --served $$
wrong 'served: wake has no such option' "unknown option '--served'" wake --served 1
for spec in device-pool 'limit(device-pool,max=128M)' "stats(pool(vmm,handle=2M,park=$tmp))"; do
	begin "$spec"
	refused "served: $spec: does not sleep" 'does not sleep' wake "$pid"
	does "served: $spec: sleeps" "process $pid \(sleeper\) sleeps: 4[0-9]{7} bytes left the GPU, 2097152 bytes that it knows of stay," "$doze" --served "$pid"
	refused "served: $spec: twice" "sleeps already; 'hetmem wake $pid' wakes it" "$doze" --served "$pid"
	refused "served: $spec: and by the driver" 'sleeps already' "$doze" "$pid"
	echo alloc >&5
	does "served: $spec: wakes" "process $pid \(sleeper\) is awake" wake "$pid"
	read -r answer <&6
	[ "$answer" = allocated ]
	judge "served: $spec: the call that waited"
	answers "served: $spec: contents after it" check whole
	does "served: $spec: sleeps by the driver" 'in host memory' "$doze" "$pid"
	does "served: $spec: wakes by the driver" awake wake "$pid"
	answers "served: $spec: a capture" begin captures
	refused "served: $spec: while capturing" 'cannot sleep with --served: a stream is being captured' "$doze" --served "$pid"
	answers "served: $spec: the capture goes on" 'end' replayed
	does "served: $spec: sleeps after it" 'bytes left the GPU' "$doze" --served "$pid"
	does "served: $spec: wakes after it" awake wake "$pid"
	answers "served: $spec: contents at the end" check whole
	finish "served: $spec"
	[ ! -e "/tmp/.hetmem-cuda-$pid" ]
	judge "served: $spec: no socket is left"
done

begin 'pool(device)'
refused 'served: a pool that cannot sleep' 'cannot sleep with --served: device 0: ' "$doze" --served "$pid"
answers 'served: its program runs on' check whole
finish 'served: pool(device)'

begin device-pool
[ "$(stat -c %a "/tmp/.hetmem-cuda-$pid")" = 600 ]
judge 'served: the socket is for its user alone'
answers 'served: work that lasts' work works
refused 'served: work that does not end' 'its GPU work did not end in time' "$doze" --served --timeout 1 "$pid"
answers 'served: the work ends' release released
# The process still waits for the work of the first attempt, for a moment.
until "$hetmem" "$doze" --served "$pid" >"$tmp/out" 2>&1; do grep -q 'in time' "$tmp/out" || break; done
grep -q 'bytes left the GPU' "$tmp/out"
judge 'served: then it sleeps'
does 'served: and wakes' awake wake "$pid"
# What other programs may send. $1: the socket.
cat >"$tmp/hostile.py" <<'END'
import socket, sys
def send(data):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    if data is not None:
        s.send(data)
    return s
for data in (b'x', b'x' * 16, b'x' * 4096, b'hmsk' + bytes(12), bytes(16), b'\xff' * 16, None,
             b'hmsk\1\0\0\0\3\0\0\0' + bytes(4), b'hmsk\1\0\0\0\1\0\0\0\xff\xff\xff\xff'):
    send(data).close()
for _ in range(200):
    send(b'hmsk\1\0\0\0\0\0\0\0\0\0\0\0').close()
END
check 'served: garbage and a flood are sent' timeout 60 python3 "$tmp/hostile.py" "/tmp/.hetmem-cuda-$pid" # time: only a test that fails takes it
if [ "$(id -u)" -eq 0 ]; then
	check 'served: another user cannot ask' setpriv --reuid 65534 --clear-groups perl -MSocket -e \
		'socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0); exit(connect($s, sockaddr_un($ARGV[0])) || !$!{EACCES})' "/tmp/.hetmem-cuda-$pid"
fi
answers 'served: the program runs on' check whole
# A command that is killed, at any moment.
for _ in 1 2 3 4 5 6 7 8; do
	"$hetmem" "$doze" --served "$pid" >/dev/null 2>&1 &
	kill -9 $!
	wait $! 2>/dev/null
	until "$hetmem" "$doze" --served "$pid" >"$tmp/out" 2>&1 || grep -q 'sleeps already' "$tmp/out"; do :; done
	"$hetmem" wake "$pid" >"$tmp/out" 2>&1 || break
done
grep -q 'is awake' "$tmp/out"
judge 'served: commands that are killed in the middle'
answers 'served: lose nothing' check whole
does 'served: it sleeps' 'bytes left the GPU' "$doze" --served "$pid"
echo alloc >&5
kill -TERM "$pid"
wait "$child" 2>/dev/null
[ $? -eq 143 ]
judge 'served: SIGTERM ends it while its call waits'
exec 5>&- 6<&-
refused 'served: it is gone' 'there is no process' wake "$pid"
rm -f "/tmp/.hetmem-cuda-$pid"

# In the middle: the program's work lasts, so that the sleep waits. $asker.
has_threads() { [ "$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l)" -eq "$1" ]; }
begin_middle()
{
	local threads

	begin device-pool
	answers "$1: work that lasts" work works
	threads=$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l)
	"$hetmem" "$doze" --served --timeout 600 "$pid" >"$tmp/out" 2>"$tmp/err" &
	asker=$!
	children+=("$asker")
	# One more waits for the work.
	wait_for has_threads $((threads + 1))
	judge "$1: the sleep waits"
}

begin_middle 'served: killed in the middle'
kill -9 "$pid"
wait "$child" 2>/dev/null
wait "$asker"
status=$?
one_line 1 "process $pid \(sleeper\) has ended"
judge 'served: a process that is killed in the middle'
exec 5>&- 6<&-
rm -f "/tmp/.hetmem-cuda-$pid"

begin_middle 'served: a call in the middle'
echo alloc >&5
"$hetmem" "$doze" --served "$pid" >"$tmp/out2" 2>&1
grep -q 'did not answer; look' "$tmp/out2"
judge 'served: a second sleep in the middle'
"$hetmem" wake "$pid" >"$tmp/out2" 2>&1
grep -q 'did not answer; look' "$tmp/out2"
judge 'served: a wake in the middle'
kill "$asker"
wait "$asker" 2>/dev/null
kill -TERM "$pid"
wait "$child" 2>/dev/null
[ $? -eq 143 ]
judge 'served: SIGTERM in the middle ends it'
exec 5>&- 6<&-
rm -f "/tmp/.hetmem-cuda-$pid"

begin device-pool
kill -STOP "$pid"
refused 'served: a process that is stopped' "did not answer; look whether it is stopped" "$doze" --served "$pid"
kill -CONT "$pid"
does 'served: and goes on' 'bytes left the GPU' "$doze" --served "$pid"
finish 'served: it ends in its sleep'
[ -S "/tmp/.hetmem-cuda-$pid" ]
judge 'served: its socket stays until then'
rm -f "/tmp/.hetmem-cuda-$pid"

# Each call of the driver fails once. FAIL: CALL:N, and whether sleep (s) or wake (w) fails.
for fail in cuCtxSynchronize:1/s cuMemHostRegister:1/s cuMemcpyAsync:1/s cuMemcpyAsync:9/s cuMemUnmap:1/s cuMemUnmap:9/s cuMemRelease:5/s \
	    cuMemCreate:26/w cuMemCreate:32/w cuMemMap:30/w cuMemSetAccess:30/w cuMemcpyAsync:25/w; do
	HETMEM_SOFT_FAIL=${fail%/*} begin 'pool(vmm,handle=2M)'
	if [ "${fail#*/}" = s ]; then
		refused "served: $fail" 'cannot sleep with --served: ' "$doze" --served "$pid"
		answers "served: $fail: it runs on, whole" check whole
	fi
	does "served: $fail: sleeps" 'bytes left the GPU' "$doze" --served "$pid"
	if [ "${fail#*/}" = w ]; then
		refused "served: $fail" 'cannot wake, and sleeps on: ' wake "$pid"
		refused "served: $fail: it sleeps on" 'sleeps already' "$doze" --served "$pid"
	fi
	does "served: $fail: wakes" 'is awake' wake "$pid"
	answers "served: $fail: contents after it" check whole
	finish "served: $fail"
done

# Calls that it cannot follow.
for row in 'table/the driver.s export table 01020300-' 'context/has called cuCtxCreate_v2' 'range/has called cuMemGetHandleForAddressRange' 'retain/has called cuMemRetainAllocationHandle' 'future/newer than hetmem'; do
	begin device-pool
	echo "${row%%/*}" >&5
	read -r answer <&6
	refused "served: ${row%%/*}" "cannot sleep with --served: it .*${row#*/}" "$doze" --served "$pid"
	answers "served: ${row%%/*}: the program runs on" check whole
	finish "served: ${row%%/*}"
done

done_testing
