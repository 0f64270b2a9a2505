#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem sleep and hetmem wake, on programs whose libcuda.so.1 is that of
# selftests/cuda/libcuda.c, upon the soft driver.
. "$(dirname "$0")/tools-lib.sh"

[ "$(uname -m)" = x86_64 ] || skip_all 'libcuda.c is for x86-64'
check 'the programs build' make all cuda-tests

programs=$top/build/selftests/cuda
export -n HETMEM_CUDA_SPEC HETMEM_CUDA_SET HETMEM_CUDA_REPORT HETMEM_CUDA_PRELOAD LD_PRELOAD HETMEM_SOFT_SLEEP HETMEM_DRIVER
export LD_LIBRARY_PATH=$programs

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

# Starts the program, by the command given. $pid, and file descriptors 5 (to it) and 6 (from it).
begin()
{
	mkfifo "$tmp/to" "$tmp/from" 2>/dev/null
	HETMEM_SOFT_SLEEP=1 "$@" "$programs/sleeper" <"$tmp/to" >"$tmp/from" 2>"$tmp/sleeper" &
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
for way in '' "$hetmem run --device device-pool" "$hetmem run --device pool(device)" "$hetmem run --device limit(device-pool,max=128M)"; do
	name=${way:-native}
	# shellcheck disable=SC2086
	begin env -u HETMEM_DRIVER $way
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

begin env -u HETMEM_DRIVER
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

done_testing
