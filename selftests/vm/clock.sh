# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# The clock that limits of tests are measured by: the time that a virtual machine had.
#
# On a busy host a virtual machine waits for processors, and its own clocks run on. Since
# its processors wait for each other (each flush of a TLB interrupts the others), it gets
# slower by more than its share. So an interval counts without the times that any of its
# threads waited for a processor of the host. Where that leaves nothing, a quarter of the
# processor time of its busiest thread counts. On an idle host this is the time of day. A
# guest that sleeps and a guest that spins both use up a limit on any host.

# clock_start: begins at 0.
clock_start()
{
	clock_us=0 clock_last='' clock_cpu=0
	unset clock_ran clock_late
	declare -gA clock_ran clock_late
}

# clock_tick DIRECTORY NOW: adds the interval since the last tick. DIRECTORY is /proc/PID,
# NOW the time of day in microseconds. The result is clock_us, in microseconds.
clock_tick()
{
	local dir=$1 now=$2 file ran late elapsed gain cpu stat
	local most=0 waited=0 known='' first=''

	[ -n "$clock_last" ] || first=yes
	elapsed=$((now - ${clock_last:-$now}))
	clock_last=$now
	for file in "$dir"/task/*/schedstat; do
		{ read -r ran late _ <"$file"; } 2>/dev/null || continue
		[ "$ran" = 0 ] || known=yes
		gain=$((ran - ${clock_ran[$file]:-0}))
		[ "$gain" -le "$most" ] || most=$gain
		waited=$((waited + late - ${clock_late[$file]:-0}))
		clock_ran[$file]=$ran clock_late[$file]=$late
	done
	if [ -n "$known" ]; then
		gain=$((elapsed - waited / 1000))
		[ "$gain" -ge $((most / 4000)) ] || gain=$((most / 4000))
	else
		# A kernel that does not count waiting: the processor time that was
		# used, and for a guest that sleeps a quarter of the time of day.
		stat=$(sed 's/.*) //' "$dir/stat" 2>/dev/null) || stat=
		# shellcheck disable=SC2086
		set -- $stat
		cpu=$(((${12:-0} + ${13:-0}) * 10000))
		gain=$((cpu - clock_cpu))
		clock_cpu=$cpu
		[ "$gain" -ge $((elapsed / 4)) ] || gain=$((elapsed / 4))
	fi
	[ "$gain" -le "$elapsed" ] || gain=$elapsed
	[ -n "$first" ] || clock_us=$((clock_us + gain))
}
