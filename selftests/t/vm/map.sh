# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# The command where memory moves: with both modules, on a device that is smaller than
# the demonstration's file.
prepare_map()
{
	need_input

	# The guide's recipe for tracefs, as printed: what comes before the demonstration that it
	# looks at, and what comes behind.
	sed -n '/^## With tracefs/,/^## With perf/s/^    # //p' Documentation/tracing.md >"$tmp/recipe"
	check 'the recipe looks at the demonstration' grep -q '^hetmem demo' "$tmp/recipe"
	sed '/^hetmem demo/,$d' "$tmp/recipe" >"$tmp/before.sh"
	sed '/^cd /p; 1,/^hetmem demo/d' "$tmp/recipe" >"$tmp/behind.sh"
	files+=(-f "$tmp/before.sh:/before.sh" -f "$tmp/behind.sh:/behind.sh")

	cat >"$tmp/map.sh" <<'EOS'
reload capacity_mb=48
# in_background FILE COMMAND...: until it has written FILE.
in_background()
{
	file=$1
	shift
	"$@" >/dev/null 2>&1 &
	while [ ! -s "$file" ]; do sleep 0.1; done
}

try doctor hetmem doctor --verbose
try self hetmem map --self
echo 'exec 9<>/dev/hetmem; sleep infinity & echo $! >/tmp/child; wait' >/tmp/holder
in_background /tmp/child sh /tmp/holder
holder=$!
try context hetmem map $holder
try inherited hetmem map $(cat /tmp/child)
try stranger su user -c "hetmem map $holder"
in_background /tmp/own su user -c 'exec 9<>/dev/hetmem; echo $$ >/tmp/own; sleep infinity & wait'
try own su user -c "hetmem map $(cat /tmp/own)"

try no-device hetmem demo --device 7
try no-file hetmem demo --file /none
try no-regular-file hetmem demo --file /dev
try short hetmem demo --file /bin/hetmem
try fails env HETMEM_SOFT_FAIL=cuMemsetD8Async:1 hetmem demo --file /input
sh -e /before.sh
try demo hetmem demo --file /input
try trace sh /behind.sh

# Somebody else changes a byte while the device reads, slowly.
HETMEM_SOFT_DELAY=cuMemcpyAsync:300ms hetmem demo --file /input >/tmp/out 2>&1 &
demo=$!
while ! grep -q 'device: reads' /tmp/out; do sleep 0.1; done
while read -r range _; do
	start=$((0x${range%-*})) end=$((0x${range#*-}))
	[ $((end - start)) -eq $((64 << 20)) ] && break
done </proc/$demo/maps
printf x | dd of=/proc/$demo/mem bs=4096 seek=$(((end >> 12) - 1)) conv=notrunc 2>/dev/null
wait $demo
status=$?
try corrupted sh -c "cat /tmp/out; exit $status"
EOS
}

judge_map()
{
	gives doctor 0 'doctor: nothing is missing' '^ok +hetmem.ko' '^ok +/dev/hetmem +usable' \
		'^ok +memory moves'
	gives self 0 'map --self: a part is on the device' '^process .* from the kernel module' \
		' A{32}' '^device 0 +[0-9]+ +2 MiB'
	gives context 0 'map of a process through its context' 'from the kernel module' 'busybox|/bin/'
	gives inherited 0 'not through a context that belongs to its parent' 'from pagemap'
	gives stranger 1 'map of a process of somebody else' 'not permitted to look at process'
	gives own 0 'as a user, of an own process, from pagemap' 'from pagemap'

	gives no-device 2 'demo: a device that is not there' 'there is no device 7, only 1'
	gives no-file 2 'demo: a file that is not there' "cannot read '/none'.*--file"
	gives no-regular-file 2 'demo: a directory' 'is not a file'
	gives short 2 'demo: a file that is too short' 'needs 64 MiB'
	for name in no-device no-file no-regular-file short; do
		part $name
		[ "$(wc -l <"$tmp/out")" -eq 1 ]
		judge "demo: $name: one line"
	done
	gives fails 1 'demo: a driver that fails' 'overwrites .*: cuMemsetD8Async: CUDA_ERROR_UNKNOWN'
	gives demo 0 'demo: a file larger than the device' '^All contents verified' \
		'device 0: 12288 pages \(48 MiB\)' 'oversubscribed' 'evicted' '24576 pages right'
	gives trace 0 'the recipe for tracefs shows it' \
		' hetmem_track: opener=[0-9]+ range=0x[0-9a-f]+-0x[0-9a-f]+ .*result=0$' \
		' hetmem_migrate_begin: opener=[0-9]+ range=.* location=0x30000 nr=0 result=0$' \
		' hetmem_migrate_end: .* moved=[1-9][0-9]* already=[0-9]+ not_moved=0 why=0x0 result=0$' \
		'^\{ change: +4 \} hitcount: +[1-9]'
	gives corrupted 1 'demo: wrong contents are found' 'the device read something else'
}
