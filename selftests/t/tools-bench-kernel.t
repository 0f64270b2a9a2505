#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem bench kernel where everything is loaded that it measures: its JSON, and what the
# module promises to do just so often, counted. No figure that is a time is judged.
. "$(dirname "$0")/tools-lib.sh"

kernel=stock-7
modules=build/modules/tools-bench-kernel
mkdir -p $modules build/log

check 'the modules build' selftests/vm/build-modules $kernel $modules
check 'test_hmm is there' selftests/vm/test-hmm $kernel $modules/foreign
selftests/vm/run -k $kernel -B $modules -p 'hetmem_emu=capacity_mb=128 huge=1' \
	-l $modules/foreign/test_hmm.ko -t 300 -m 2048 -L build/log/tools-bench-kernel \
	-f "$hetmem:/bin/hetmem" -- hetmem bench kernel --json --size 32 \
	>"$tmp/out" 2>"$tmp/err" </dev/null
status=$?
[ $status -eq 0 ]
judge 'bench kernel --json'
cp "$tmp/out" "$tmp/json"
check 'and its kernel has nothing to say' sh -c \
	'! grep -E "BUG:|WARNING:|Oops|circular locking|refcount" build/log/tools-bench-kernel'

# ask NAME CODE: perl says whether CODE, of $all and of %row by name, is true.
ask()
{
	perl -MJSON::PP -e '
		our ($all, %row);
		local $/;
		open(my $in, "<", $ARGV[0]) or die;
		$all = decode_json(<$in>);
		%row = map { $_->{name} => $_ } @{$all->{rows}};
		my $good = eval $ARGV[1];
		print $@ || JSON::PP->new->pretty->encode($all) unless $good;
		exit !$good' "$tmp/json" "$2" >"$tmp/out" 2>"$tmp/err"
	status=$?
	[ $status -eq 0 ]
	judge "$1"
}

# counts ROW NUMBER: ours and the peer's are this number.
counts() { echo "\$row{'$1'}{ours} == $2 && \$row{'$1'}{peer} == $2"; }

ask 'it is JSON, of this benchmark' \
	'$all->{bench} eq "kernel" && $all->{unit} =~ /^(ns|instructions)$/'
ask 'everything was measured' '@{$all->{not_measured}} == 0'
for row in residency.4k residency.thp residency.thp.decodes track.callbacks \
	   track.munmap.page track.munmap.2m track.munmap.all device.4k.to-device \
	   device.4k.to-host device.4k.faults device.setups.to-device \
	   device.setups.to-host device.thp.to-device device.thp.to-host \
	   events.latency hint.round-trip; do
	ask "$row: a figure, its peer and their ratio" \
		"!grep { !(\$row{'$row'}{\$_} > 0) } qw(ours peer ratio)"
done
ask 'a goal says whether it is met' \
	'!grep { exists $_->{goal} != exists $_->{met} } @{$all->{rows}}'

# What is counted is exact on any machine.
ask 'one decode for each huge page' "$(counts residency.thp.decodes 16)"
ask 'one callback for each notification, with 100,000 ranges' \
	"$(counts track.callbacks 100)"
ask 'an eighth of the migrate_vma_setup() calls, to the device' \
	'$row{"device.setups.to-device"}{met}'
ask 'and to the host' '$row{"device.setups.to-host"}{met}'
done_testing
