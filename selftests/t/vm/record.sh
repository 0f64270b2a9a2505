# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# hetmem record where the module is: memory goes to the emulated device and back by hints. The
# recording has it, and the module's events if the recorder is root.
prepare_record()
{
	need_executor

	cat >"$tmp/record.sh" <<'EOS'
reload devices=2 capacity_mb=32
# bytes FILE SIZE: until it has more.
bytes() { while [ "$(wc -c <$1 2>/dev/null || echo 0)" -le $2 ]; do sleep 0.1; done; }
# looks: until the recorder has looked twice, once from its beginning.
looks() { for look in 1 2; do bytes /tmp/rec $(wc -c </tmp/rec); done; }
export COLUMNS=100

begin executor
read range </tmp/out
echo "PID $pid"
# A machine with many CPUs has more tracepoints than a process may have files, by default.
(ulimit -S -n 12; exec hetmem record --interval 20 -o /tmp/rec $pid) &
recorder=$!
bytes /tmp/rec 400
for i in 1 2 3 4; do
	hetmem prefetch --pid $pid --range $range; looks
	hetmem pullback --pid $pid --range $range; looks
done >/tmp/hints
kill -INT $recorder; kill -TERM $recorder
wait $recorder
try hints cat /tmp/hints
try report hetmem report /tmp/rec
try report-json hetmem report --json /tmp/rec
advice=$(hetmem report --json /tmp/rec | sed -n "s/.*'\(hetmem advise [^']*\)'.*/\1/p" | head -n 1)
echo "ADVICE $advice"
try advice $advice
# Nothing is left of it: what a killed recorder opened is closed.
hetmem record --interval 20 -o /tmp/killed $pid &
recorder=$!
bytes /tmp/killed 400
kill -9 $recorder
wait $recorder
try killed hetmem report --json /tmp/killed
try enabled cat /sys/kernel/tracing/events/hetmem/enable
try stranger su user -c "hetmem record -o /tmp/stranger $pid"
cat >/tmp/own.sh <<'EOO'
HETMEM_DRIVER=soft hetmem record -o /tmp/own --for 1 executor &
until hetmem report --json /tmp/own 2>/dev/null | grep -q 'its time was over'; do sleep 0.1; done
kill $(grep -ls "^PPid:.$!\$" /proc/[0-9]*/status | xargs grep -l '^Name:.executor$' | cut -d/ -f3)
wait
EOO
try own su user -c 'sh /tmp/own.sh'
try own-report su user -c "hetmem report --json /tmp/own"
try unload sh -c 'kill -9 $(pidof executor); until rmmod hetmem_emu hetmem 2>/dev/null; do sleep 0.1; done; echo unloaded'
try end true
EOS
}

judge_record()
{
	sum='sub sum { my $s = 0; $s += $_ for @{$_[0]}; $s } my $t = $all->{timeline};'
	# A page that somebody holds at that time is not moved: the hints say how many were.
	moved() { sed -n '/^BEGIN hints/,/^END/s/^process [0-9]*: \([0-9]*\) pages .* moved to '"$1"'.*/\1/p' "$tmp/all" |
		awk '{ s += $1 } END { print s + 0 }'; }
	to_device=$(moved device) to_host=$(moved host)
	echo "# moved by the hints: $to_device pages to the device, $to_host to the host"
	part report-json
	ask 'each move, as the module counts' "$sum"' $t->{source} eq "module" && $all->{source} eq "module" &&
		'"$to_device >= 4096 && $to_host >= 4096"' && sum($t->{to_device_bytes}) == '"$to_device"' * 4096 &&
		sum($t->{to_host_bytes}) == '"$to_host"' * 4096'
	ask 'the module'"'"'s events' "$sum"' sum($t->{migrate}) >= 8 && sum($t->{hints}) >= 8 && sum($t->{hints_ended}) >= 8'
	ask 'memory was on the device' 'grep { $_->{location} eq "device 0" && $_->{most_bytes} >= 8 << 20 &&
		$_->{average_bytes} > 0 && $_->{mark} eq "A" } @{$all->{locations}}'
	ask 'its blocks bounced' '$all->{findings}{bounced}{blocks} >= 3 &&
		$all->{findings}{bounced}{most}[0]{moves} >= 6 && $all->{findings}{bounced}{most}[0]{moves} <= 8 && $all->{findings}{bounced}{advice} =~ /hetmem advise/'
	ask 'the map has both' '(grep { $_->{cells} =~ /#.*A.*#.*A/ } @{$all->{map}{rows}})'
	gives report 0 'as text' '^to device +[1-9 ]*9' '^to host +[1-9 ]*9' '^1\. Blocks that bounced: [1-9]' 'A device 0'
	gives advice 0 'the advice can be typed' 'moved to host'
	part killed
	ask 'a recorder that was killed' '!$all->{complete} && $all->{looks} >= 1'
	gives enabled 0 'left no event enabled' '^0$'
	gives stranger 1 'another user may not record it' 'not permitted'
	part own-report
	ask 'a user records its own, without events' '$all->{looks} >= 1 && $all->{pid} > 0'
	gives unload 0 'and the modules can be unloaded' '^unloaded$'
}
