#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem map: the picture and its totals, of itself and of other processes.
. "$(dirname "$0")/tools-lib.sh"

page=$(getconf PAGESIZE)

# pages FILE WORD: what the table by location says for locations that begin so.
pages()
{
	awk -v want="$2" '/^LOCATION/ { on = 1; next }
		!NF { on = 0 }
		on && index($0, want) == 1 { sum += $(NF - 2) }
		END { print sum + 0 }' "$1"
}

run map --self --color=never
cp "$tmp/out" "$tmp/self"
[ "$status" -eq 0 ]
judge 'map --self'
check 'it draws host memory and absent memory' grep -Eq '#+\.+' "$tmp/self"
check 'it has a legend' grep -q 'One character: .*\. absent' "$tmp/self"
grep -q '^not readable' "$tmp/self" && grep -q '^file' "$tmp/self" &&
	grep -q '^shared memory' "$tmp/self"
judge 'it says why'
! LC_ALL=C grep -q '[^[:print:][:space:]]' "$tmp/self"
judge 'piped: nothing but ASCII'

# The sizes in the lines of mappings, those that are not rounded, against the total.
awk -v page="$page" -v total="$(pages "$tmp/self" total)" '
	BEGIN { unit["B"] = 1; unit["KiB"] = 1024; unit["MiB"] = 1048576 }
	/^[0-9a-f]+ / { if ($2 !~ /[.]/) sum += $2 * unit[$3]; else rounded += $2 * unit[$3] }
	END { total = total * page - sum - rounded
	      exit !(sum && total <= rounded / 10 && -total <= rounded / 10) }' "$tmp/self"
judge 'the total is the size of what is drawn'
sum=$(awk '/^LOCATION/ { on = 1; next }
	!NF { on = 0 }
	on && !/^total/ { sum += $(NF - 2) }
	END { print sum + 0 }' "$tmp/self")
check 'the locations add up to the total' [ "$sum" -eq "$(pages "$tmp/self" total)" ]

run map --self --json
cp "$tmp/out" "$tmp/json"
cat >"$tmp/check.pl" <<'EOP'
use strict;
use JSON::PP;
no warnings 'portable';
my ($file, $page) = @ARGV;
open(my $in, '<', $file) or die;
my $map = decode_json(join('', <$in>));
my ($size, %by, $anonymous) = (0);
die "incomplete" unless $map->{complete} && $map->{page_size} == $page;
for my $vma (@{$map->{vmas}}) {
	my $at = hex($vma->{start});
	for my $run (@{$vma->{runs}}) {
		die "gap at $run->{start}" if hex($run->{start}) != $at;
		die "empty run" if hex($run->{end}) <= $at;
		my $pages = (hex($run->{end}) - $at) / $page;
		$by{$run->{location}} += $pages;
		$anonymous += $pages if $vma->{name} =~ /^anonymous/ &&
			$run->{location} =~ /^host/;
		$at = hex($run->{end});
	}
	die "runs of $vma->{start} end early" if $at != hex($vma->{end});
	$size += hex($vma->{end}) - hex($vma->{start});
}
for my $total (@{$map->{totals}}) {
	die "total of $total->{location}" if $by{$total->{location}} != $total->{pages};
	$size -= $total->{bytes};
}
die "totals are not the size: $size" if $size;
# The first half was written, and every 4th page of the last quarter.
die "written: $anonymous" if $anonymous != (2 * 1048576 + 1048576 / 4) / $page;
EOP
check 'map --self --json: no gaps, totals add up, what was written is there' \
	perl "$tmp/check.pl" "$tmp/json" "$page"

# The process that is looked at has 64 pages, of which it has written the first 16: it
# maps them and lets read() write, as this perl has no modules to do it with.
cat >"$tmp/holder.pl" <<'EOP'
my ($machine, $page) = @ARGV;
my ($mmap, $madvise, $read) = $machine eq 'x86_64' ? (9, 28, 0) : (222, 233, 63);
my $at = syscall($mmap, 0, 64 * $page, 3, 0x22, -1, 0);
die if $at == -1;
syscall($madvise, $at, 64 * $page, 15);	# no huge pages
open(my $zero, '<', '/dev/zero') or die;
syscall($read, fileno($zero), $at, 16 * $page) == 16 * $page or die;
$| = 1;
printf("%x-%x\n", $at, $at + 64 * $page);
sleep while 1;
EOP
perl "$tmp/holder.pl" "$(uname -m)" "$page" >"$tmp/range" &
children+=($!)
pid=$!
wait_for test -s "$tmp/range"
range=$(cat "$tmp/range")
run map "$pid" --range "$range" --width=100
[ "$status" -eq 0 ]
judge 'map of another process'
grep -q "^process $pid.*pagemap.*look like swap" "$tmp/out"
judge 'it says that device pages look like swap'
[ "$(pages "$tmp/out" host)" -eq 16 ] && [ "$(pages "$tmp/out" absent)" -eq 48 ] &&
	[ "$(pages "$tmp/out" total)" -eq 64 ]
judge '16 of 64 pages are on the host, 48 nowhere'
grep -Eq '  #{16}\.{48}$' "$tmp/out"
judge 'it is drawn so'

start=$((0x${range%-*}))
run map "$pid" --range "$(printf '%x-%x' $((start + 1)) $((start + page + 1)))"
[ "$(pages "$tmp/out" total)" -eq 2 ]
judge 'a range is widened to whole pages'
run map "$pid"
[ "$status" -eq 0 ] && grep -q '\[heap\]' "$tmp/out" && grep -q '/perl$' "$tmp/out"
judge 'all of it, with the names of mappings'
! grep -qE '/lib(c|perl)[.-]|\[vdso\]' "$tmp/out" && grep -qE '^[0-9]+ of them are not shown, .*--all' "$tmp/out"
judge 'not its libraries, and it says so'
run map "$pid" --all
[ "$status" -eq 0 ] && grep -qE '/libc[.-]' "$tmp/out" && grep -qF '[vdso]' "$tmp/out" &&
	! grep -q 'not shown' "$tmp/out"
judge '--all shows them'
run map "$pid" --json
cp "$tmp/out" "$tmp/json"
check 'so does JSON' grep -q '/libc[.-]' "$tmp/json"
cat >"$tmp/largest.pl" <<'EOP'
use strict;
use JSON::PP;
no warnings 'portable';
my ($all, $some, $nr) = map { local (@ARGV, $/) = $_; decode_json(<>)->{vmas} } @ARGV[0, 1];
$nr = $ARGV[2];
my $size = sub { hex($_[0]->{end}) - hex($_[0]->{start}) };
my @sizes = sort { $b <=> $a } map { $size->($_) } @$all;
my @kept = sort { $b <=> $a } map { $size->($_) } @$some;
die "@kept" if "@kept" ne "@sizes[0 .. $nr - 1]";
my @starts = map { hex($_->{start}) } @$some;
die "@starts" if "@starts" ne join(' ', sort { $a <=> $b } @starts);
EOP
for nr in 1 5; do
	run map "$pid" --json --largest "$nr"
	cp "$tmp/out" "$tmp/some"
	check "the $nr largest, by address" perl "$tmp/largest.pl" "$tmp/json" "$tmp/some" "$nr"
done
run map "$pid" --largest 99999
[ "$status" -eq 0 ] && grep -q '\[heap\]' "$tmp/out"
judge 'more than there are'
for nr in 0 -1 x ''; do
	wrong "--largest '$nr'" 'is not a number of mappings' map --self "--largest=$nr"
done
run map "$pid" --json
cp "$tmp/out" "$tmp/json"
check 'map PID --json parses' perl -MJSON::PP -e 'local $/; decode_json(<>)' "$tmp/json"

# A file name that would clear the screen and forge a line.
evil="$tmp"/$'evil\e[2J\n"name'
cp "$(command -v sleep)" "$evil"
"$evil" infinity &
children+=($!)
pid2=$!
is_evil() { [[ $(readlink /proc/$pid2/exe) == *evil* ]]; }
wait_for is_evil
run map "$pid2"
[ "$status" -eq 0 ] && grep -q 'evil\\x1b\[2J' "$tmp/out" && ! grep -q $'\e' "$tmp/out"
judge 'names of other processes are escaped'
run map "$pid2" --json
cp "$tmp/out" "$tmp/json"
check 'in JSON too' perl -MJSON::PP -e 'local $/; decode_json(<>)' "$tmp/json"

run map --self --color=always
grep -q $'\e\\[' "$tmp/out"
judge '--color=always colours'
# Through a terminal, as people see it.
TERM=xterm script -qec "'$hetmem' map --self" /dev/null </dev/null >"$tmp/out" 2>"$tmp/err"
grep -q $'\e\\[' "$tmp/out"
judge 'on a terminal it colours'
NO_COLOR=1 TERM=xterm script -qec "'$hetmem' map --self" /dev/null </dev/null \
	>"$tmp/out" 2>"$tmp/err"
grep -q 'One character' "$tmp/out" && ! grep -q $'\e\\[' "$tmp/out"
judge 'NO_COLOR is respected'
run map --self --width=40
awk '/^ [0-9a-f]+  / { rows++; if (length > 40) wide = 1 } END { exit wide || !rows }' "$tmp/out"
judge '--width is respected'

# The parent does not wait: the child stays a zombie.
perl -e '$| = 1; if (my $pid = fork()) { print "$pid\n"; sleep while 1 }' >"$tmp/zombie" &
children+=($!)
is_zombie() { grep -qs '^State:.*Z' "/proc/$(cat "$tmp/zombie")/status"; }
wait_for is_zombie
refused 'a process that has ended' 'has ended' map "$(cat "$tmp/zombie")"

# In a PID namespace of its own no kernel thread is to be seen.
kthread=$(grep -ls '^Kthread:.*1' /proc/[0-9]*/status | head -1)
[ -n "$kthread" ] || kthread=$(grep -ls '^2 (kthreadd)' /proc/2/stat)
if [ -n "$kthread" ]; then
	kthread=${kthread#/proc/}
	refused 'a kernel thread' 'is a kernel thread' map "${kthread%%/*}"
fi

if [ "$(id -u)" -eq 0 ]; then
	cp "$hetmem" "$tmp/hetmem"
	setpriv --reuid 65534 --regid 65534 --clear-groups "$tmp/hetmem" map "$pid" \
		>"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
else
	pid=1
	run map 1
fi
one_line 1 "not permitted.*sudo hetmem map $pid"
judge 'a process of somebody else'
done_testing
