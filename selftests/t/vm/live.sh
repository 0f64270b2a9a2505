# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# hetmem status where the module is: a process whose memory moves to the emulated device and
# back by hints.
prepare_live()
{
	need_executor

	cat >"$tmp/live.sh" <<'EOS'
reload devices=2 capacity_mb=32
begin executor
read range </tmp/out
echo "PID $pid"
try none hetmem status --interval 0
hetmem prefetch --pid $pid --range $range >/dev/null
try there hetmem status --json --interval 0 $pid
try ranges-there hetmem list $pid
hetmem pullback --pid $pid --range $range >/dev/null
try back hetmem status --prometheus
# What moves while two looks are taken.
(for i in 1 2 3 4 5 6 7 8 9; do
	hetmem prefetch --pid $pid --range $range; hetmem pullback --pid $pid --range $range
done) >/dev/null 2>&1 &
try rate hetmem status --interval 2
wait $!
try list hetmem list
try ranges hetmem list $pid
try ranges-json hetmem list --json $pid
try list-gone hetmem list 999999
try list-without hetmem list 1
try advise hetmem advise $pid $range device:1
try advised hetmem map --range $range $pid
try advise-all hetmem advise $pid all host
try advise-none hetmem advise $pid $range device:9
try set hetmem tune thrash/count=20 devices/1/limit=16M
try shown hetmem tune
try save hetmem tune --save --file /tmp/conf
hetmem tune thrash/count=8 devices/1/limit=32M
try restore hetmem tune --restore --file /tmp/conf
try restored cat /sys/class/misc/hetmem/thrash/count /sys/class/misc/hetmem/devices/1/limit
try user-sets su user -c "hetmem tune thrash/count=21 caps/max_hints=3"
try unchanged cat /sys/class/misc/hetmem/thrash/count /sys/class/misc/hetmem/caps/max_hints
try user-list su user -c "hetmem list"
try user-ranges su user -c "hetmem list $pid"
# A user's own process, which allows looks or does not.
kill $pid
wait $pid
for publish in 1 0; do
	su user -c "HETMEM_PUBLISH=$publish executor" >/tmp/own &
	while [ ! -s /tmp/own ]; do sleep 0.1; done
	try own-$publish su user -c "hetmem list $(pidof executor)"
	kill $(pidof executor)
	wait $!
	rm /tmp/own
done
try stranger su user -c "hetmem status --interval 0"
try end true
EOS
}

judge_live()
{
	pid=$(tr -d '\r' <"$tmp/all" | sed -n 's/^PID //p')
	gives none 0 'a process that the module knows' '^module: .*, pinned 0 B' '^device 0 \(.*\): .* of 32 MiB used' \
		"^ *$pid .* executor .* 0 +0 module +0 +0 +0 B .*host"
	part there
	ask 'after it moved' '$all->{module}{to_device_bytes} >= 8 << 20 &&
		$all->{processes}[0]{to_device_bytes} >= 8 << 20 &&
		$all->{processes}[0]{memory_source} eq "module" &&
		$all->{processes}[0]{moves_source} eq "module" &&
		grep { $_->{location} eq "device 0" && $_->{bytes} >= 8 << 20 } @{$all->{processes}[0]{memory}}'
	gives back 0 'and back' '^hetmem_module_loaded 1$' '^hetmem_device_capacity_bytes\{device="0",name="[^"]*"\} 33554432$' \
		"^hetmem_process_moved_bytes_total\{pid=\"$pid\",.*direction=\"to_host\"\} [1-9]" \
		'^hetmem_hints_total [1-9]'
	gives rate 0 'what moves in a second, by the module' "^ *$pid .* executor .*[1-9].* .iB .*[1-9].*module"
	gives stranger 0 'another user sees the module, not the process' '^module: ' '^no process uses hetmem'
	gives list 0 'list: who has the module open' "^ *$pid .* executor +1 +0 B +0 -$"
	gives ranges-there 0 'list: what is on the device' '^[0-9a-f]+-[0-9a-f]+ +8 MiB +8 MiB +8 MiB '
	gives own-1 0 "list: a user's own process" '^[0-9a-f]+-[0-9a-f]+ +8 MiB +0 B '
	gives own-0 1 'list: which may forbid it' 'not permitted to look at process'
	gives ranges 0 'list: the range of the program' '^[0-9a-f]+-[0-9a-f]+ +8 MiB .* [0-9]+ +[0-9]+$'
	part ranges-json
	ask 'list: as JSON' '@rows == 1 && $row->{to_device_bytes} >= 8 << 20 && $row->{start} =~ /^0x/'
	gives list-gone 1 'list: no such process' 'there is no process 999999'
	gives list-without 1 'list: a process without it' 'does not have /dev/hetmem open'
	gives advise 0 'advise: the device uses it' 'moved to device 1'
	gives advised 0 'so it is there' '^device 1 '
	gives advise-all 0 'advise: the CPU uses all' 'moved to host'
	gives advise-none 1 'advise: no such device' 'carries out no hints for this location'
	gives shown 0 'tune: sets and shows' '^thrash/count +20 ' '^devices/1/limit +16777216 +0 +33554432 '
	gives restored 0 'tune: restores' '^20$' '^16777216$'
	gives user-sets 1 'tune: needs root' 'not permitted to set thrash/count; become root'
	gives unchanged 0 'and changes nothing' '^20$' '^64$'
	gives user-list 0 'list: a user has nothing open' 'no process has the module open'
	gives user-ranges 1 'list: nor sees what others track' "not permitted to look at process $pid; type 'sudo hetmem list $pid'"
}
