#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The virtual machine itself: the clock of its limits, its test runner, the guest's own clock,
# and how a run ends whose guest does not, or that is ended. And the limit of programs on the host.
. "$(dirname "$0")/tap.sh"
. selftests/vm/clock.sh
. selftests/vm/lib.sh

kernel=stock-7

# thread NAME RAN WAITED: what the kernel says of a thread, in milliseconds.
thread()
{
	mkdir -p "$tmp/proc/task/$1"
	echo "$(($2 * 1000000)) $(($3 * 1000000)) 17" >"$tmp/proc/task/$1/schedstat"
}

# begin: a machine of two processors and a third thread, seen for the first time.
begin()
{
	rm -rf "$tmp/proc"
	thread 1 100 50
	thread 2 200 70
	thread 3 5 5
	clock_start
	clock_tick "$tmp/proc" 5000000
}

# counts MS NAME: one second later the clock has moved by that.
counts()
{
	clock_tick "$tmp/proc" 6000000
	also "$2" test "$clock_us" -eq "$(($1 * 1000))"
}

begin
also 'the clock begins at 0' test "$clock_us" -eq 0
counts 1000 'a guest that sleeps: the time of day'
begin
thread 1 1100 50
thread 2 1200 70
counts 1000 'a guest that has its processors: the time of day'
begin
thread 1 400 750
counts 300 'a processor that waited: without that'
begin
thread 1 400 350
thread 2 300 570
counts 200 'two processors that waited: without either'
begin
thread 1 300 850
thread 2 400 870
counts 50 'processors that always wait: a quarter of what the busiest had'
begin
thread 1 10100 50
thread 2 10200 70
counts 1000 'never more than the time of day'
begin
thread 4 900 100
counts 900 'a thread that is new'
begin
rm -r "$tmp/proc/task/2"
thread 1 200 450
counts 600 'a thread that is gone'

# A kernel that does not count how long threads wait.
begin
for task in 1 2 3; do thread $task 0 0; done
echo "1 (qemu) x) S 1 1 1 0 -1 0 0 0 0 0 100 50 0 0" >"$tmp/proc/stat"
clock_start
clock_tick "$tmp/proc" 5000000
echo "1 (qemu) x) S 1 1 1 0 -1 0 0 0 0 0 130 60 0 0" >"$tmp/proc/stat"
counts 400 'no time of waiting is known: what was used'
clock_tick "$tmp/proc" 7000000
also 'and if nothing was, a quarter' test "$clock_us" -eq 650000
rm -r "$tmp/proc"
clock_tick "$tmp/proc" 8000000
also 'a machine that has ended' test "$clock_us" -ge 650000

check 'a program within its limit' limited 60 true
exits 3 'its status' limited 60 sh -c 'exit 3'
exits 152 'a program that spins' limited 1 sh -c 'while :; do :; done'
exits 124 'a program that sleeps' limited 1 sleep infinity

# The runner of tests, on tests that do not end, and more.
check 'ktest can fail' selftests/vm/run -k $kernel -f selftests/vm/guest/ktest-check -- \
	ktest-check

# A run whose guest does not end, asleep or at work, and what the kernel did then.
exits 124 'a command that does not end' selftests/vm/run -k $kernel -t 2 -- sleep infinity
also 'and where its kernel is then' grep -q 'NMI backtrace for cpu' "$tmp/err"
exits 124 'a command that spins' selftests/vm/run -k $kernel -t 2 -- \
	sh -c 'while :; do :; done & while :; do :; done'

# A kernel that changes its own code while all its CPUs run.
check 'a kernel may change its code' selftests/vm/run -k $kernel -M -t 300 -- sh -ec '
	for i in $(seq 150); do
		echo 1 >/sys/kernel/tracing/events/hetmem/enable
		echo 0 >/sys/kernel/tracing/events/hetmem/enable
	done'

# A guest's clock that deviates from the host's is noticed before and after the command. The
# guest is run again once, and what it wrote is not left in a file.
wrong='the guest has a wrong clock'
khz=$(tsc_khz)
if [ "$khz" -gt 0 ]; then
	# The answer of another host, in a cache of this one.
	mkdir -p "$tmp/cache/hetmem"
	ln -s "$CACHE"/* "$tmp/cache/hetmem/"
	rm "$tmp/cache/hetmem/vm"
	cp -r "$CACHE/vm" "$tmp/cache/hetmem/"
	file=$tmp/cache/hetmem/vm/$(basename "$(tsc_file)")
	echo $((khz / 4)) >"$file"
	exits 0 'a guest with a wrong clock is run again' env XDG_CACHE_HOME="$tmp/cache" HETMEM_VM_ACCEL=tcg \
		selftests/vm/run -k $kernel -- sh -c 'echo once; cat /proc/cmdline'
	also 'which is said' test "$(grep -c "$wrong.*seen at its boot" "$tmp/err") $(grep -c 'once more' "$tmp/err")" = '1 1'
	also 'its command ran once' test "$(grep -c '^once' "$tmp/out")" -eq 1
	also 'the clock was measured again' sh -c "grep -q 'tsc_early_khz=$(cat "$file") tsc=reliable' '$tmp/out'"
	also 'with another result' test $((($(cat "$file") - khz) * 100)) -le "$khz" -a $(((khz - $(cat "$file")) * 100)) -le "$khz"

	exits 123 'a clock that stays wrong has a status of its own' \
		env HETMEM_VM_ACCEL=tcg HETMEM_VM_TSC_KHZ=$((khz * 2)) selftests/vm/run -k $kernel -- echo never
	also 'after it was tried twice' test "$(grep -c "$wrong.*seen at its boot" "$tmp/err")" -eq 2
	also 'and the command did not run' test ! -s "$tmp/out"
fi
exits 123 'a clock that goes wrong later' env HETMEM_VM_ACCEL=tcg HETMEM_VM_TSC_KHZ=0 \
	selftests/vm/run -k $kernel -L "$tmp/console" -- sh -c '
	echo "clock is $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" | tee /dev/kmsg
	adjtimex -t 11000 >/dev/null
	# time: the clock itself is under test
	until [ "$(cut -d. -f1 /proc/uptime)" -ge 15 ]; do sleep 1; done'
also 'is noticed twice' test "$(grep -c "$wrong.*seen at its end" "$tmp/err")" -eq 2
also 'and what was written is gone' test ! -s "$tmp/out"
also 'without a counter to trust the guest uses another clock' grep -Eq 'clock is (hpet|acpi_pm)' "$tmp/console"
# time: the clock itself is under test
selftests/vm/run -k $kernel -- sh -c 'adjtimex -t 11000 >/dev/null; echo passed on; sleep 5' 2>"$tmp/err" |
	cat >"$tmp/out"
also 'output that was passed on is not written twice' test "${PIPESTATUS[0]} $(cat "$tmp/out")" = '123 passed on'
check 'under -i the counter counts instructions' selftests/vm/run -k $kernel -i -- cat /proc/cmdline
also 'and no frequency is given' sh -c "! grep -q tsc '$tmp/out'"

# once_more NAME COMMAND...: ends with 125, after it was tried three times.
once_more()
{
	local name=$1 rc=0

	shift
	"$@" >"$tmp/out" 2>"$tmp/err" </dev/null || rc=$?
	also "$name" test "$rc $(grep -c 'once more' "$tmp/err")" = '125 2'
}

# A kernel that ends before anything of ours runs is booted again, and not for ever.
once_more 'a kernel that does not come up' \
	selftests/vm/run -k $kernel -a rdinit=/none -a init=/none -- true
once_more 'a kernel that hangs as it boots' \
	selftests/vm/run -k $kernel -b 6 -a rdinit=/bin/sleep -a -- -a 1000 -- true
also 'and what is said of it' grep -q 'no first process after 6 s' "$tmp/err"

# eventually COMMAND...: until it succeeds. Only a test that fails takes ten minutes.
eventually()
{
	local end=$((SECONDS + 600))

	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		# time: a look every so often, no limit
		sleep 0.2
	done
}

# A run that is ended leaves nothing. All its processes have this directory in their environment.
mine=$tmp/mine
mkdir "$mine"
processes() { grep -lszF "TMPDIR=$mine" /proc/[0-9]*/environ; }
machine() { pgrep -f "qemu-system.*$mine/"; }
left() { processes | sed 's|environ$|cmdline|' | xargs -r tail -vc +1 | tr '\0' ' '; ls "$mine"; }
nothing_left() { [ -z "$(left)" ]; }

# ended NAME STATUS COMMAND...: starts it, ends it by `end`, which knows $pid, when the machine runs.
ended()
{
	local name=$1 want=$2 rc=0 pid

	shift 2
	TMPDIR=$mine "$@" >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	eventually machine >/dev/null
	end
	wait "$pid" 2>/dev/null || rc=$?
	also "$name: its status" test "$rc" -eq "$want"
	eventually nothing_left
	empty "$name: nothing is left" left
}
# A command that is started in the background ignores SIGINT.
forever=(env --default-signal=INT selftests/vm/run -k "$kernel" -- sleep infinity)
end() { kill -9 "$pid"; }
ended 'kill -9' 137 "${forever[@]}"
# shellcheck disable=SC2016
ended 'kill -9 of its parent' 137 bash -c '"$@"; :' - "${forever[@]}"
end() { kill "$pid"; }
ended 'kill' 130 "${forever[@]}"
# As a terminal does for ^C: the whole group.
end() { kill -INT -- "-$pid"; }
ended '^C' 130 setsid "${forever[@]}"

# So does one that makes something for the cache, and the next run makes it anew.
private=$tmp/private/hetmem
mkdir -p "$private"
ln -s "$CACHE/kernel" "$private/"
begun() { [ -s "$(echo "$private"/modules/*.new/log)" ]; }
XDG_CACHE_HOME=$tmp/private selftests/vm/build-modules $kernel >/dev/null 2>&1 &
also 'a build begins' eventually begun
kill -9 $!
wait $! 2>/dev/null
check 'killed, it holds its lock no longer' flock -w 600 "$private/lock/modules-$kernel" true
check 'the next one builds' env XDG_CACHE_HOME="$tmp/private" selftests/vm/build-modules $kernel
also 'all of it' test -s "$(cat "$tmp/out")/hetmem.ko" -a -s "$(cat "$tmp/out")/hetmem_emu.ko"
empty 'nothing is half made' find "$private/modules" -name '*.new'
done_testing
