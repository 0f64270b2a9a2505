#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem tune on a tree that looks like the module's, and what list and advise say without a
# module. vm/live.sh has the module itself.
. "$(dirname "$0")/tools-lib.sh"

root=$tmp/root
sysfs=$root/sys/class/misc/hetmem
# make_tree: the settings as they are at first.
make_tree()
{
	rm -rf "$root"
	mkdir -p "$sysfs"/{caps,thrash,devices/0,devices/12} "$root/etc"
	echo 65536 >"$sysfs/caps/user_kb"
	echo 262144 >"$sysfs/caps/total_kb"
	echo 253952 >"$sysfs/caps/pinned_kb"
	echo 64 >"$sysfs/caps/max_hints"
	echo 8 >"$sysfs/thrash/count"
	echo 1000 >"$sysfs/thrash/window_ms"
	for id in 0 12; do
		echo 33554432 | tee "$sysfs/devices/$id/capacity" >"$sysfs/devices/$id/limit"
	done
}
tune() { run tune --sysroot "$root" "$@"; }
# has FILE VALUE...
has() { local file=$1; shift; [ "$(cat "$sysfs/$file")" = "$*" ]; }

make_tree
tune
[ $status -eq 0 ] && grep -Eq '^caps/max_hints +64 +1 +1024 ' "$tmp/out" &&
	grep -Eq '^devices/12/limit +33554432 +0 +33554432 ' "$tmp/out" && [ "$(wc -l <"$tmp/out")" -eq 9 ]
judge 'shows all'
tune thrash/count
[ $status -eq 0 ] && [ "$(cat "$tmp/out")" = 8 ]
judge 'shows one, for scripts'
tune thrash/count=20 caps/user_kb=1G devices/0/limit=16M
[ $status -eq 0 ] && [ ! -s "$tmp/out" ] && has thrash/count 20 && has caps/user_kb 1073741824 &&
	has devices/0/limit 16777216
judge 'sets several'

wrong 'too few' "'1' is not a value of thrash/count: give 2 to 1000000" tune --sysroot "$root" thrash/count=1
wrong 'too many' "give 1 to 1024" tune --sysroot "$root" caps/max_hints=1025
wrong 'more than the device has' "give 0 to 33554432" tune --sysroot "$root" devices/0/limit=33M
for bad in '' x -1 1.5 1KX 1K.5 1X 0x10 99999999999999999999 99999999T ' 3'; do
	wrong "'$bad' is no value" 'is not a value of thrash/count' tune --sysroot "$root" "thrash/count=$bad"
done
wrong 'no such setting' "there is no setting 'frob'" tune --sysroot "$root" frob=1
wrong 'a file that is no setting' "there is no setting 'stats/contexts'" tune --sysroot "$root" stats/contexts
wrong 'a way out of the tree' "there is no setting '../../x'" tune --sysroot "$root" ../../x=1
wrong 'two without values' 'has no value' tune --sysroot "$root" thrash/count thrash/window_ms
wrong 'save and restore' 'do not go together' tune --save --restore
wrong 'save and set' 'set first, then save' tune --save thrash/count=3
wrong 'a file for nothing' 'is for --save and --restore' tune --file x
wrong 'a file without a name' 'needs a name' tune --save --file ''
wrong 'an unknown option' "unknown option '--frob'" tune --frob
tune thrash/count=30 caps/max_hints=0
has thrash/count 20
judge 'nothing is set if one value is wrong'

tune --save
[ $status -eq 0 ] && grep -qx 'thrash/count=20' "$root/etc/hetmem.conf" &&
	grep -qx 'devices/0/limit=16777216' "$root/etc/hetmem.conf" &&
	! grep -q devices/12 "$root/etc/hetmem.conf" && [ "$(stat -c %a "$root/etc/hetmem.conf")" = 644 ]
judge 'saves; a limit that is none is left out'
cp "$root/etc/hetmem.conf" "$tmp/saved"
make_tree
cp "$tmp/saved" "$root/etc/hetmem.conf"
tune --restore
[ $status -eq 0 ] && has thrash/count 20 && has devices/0/limit 16777216 && has devices/12/limit 33554432
judge 'restores'
cp "$root/etc/hetmem.conf" "$tmp/all"
printf 'devices/3/limit=16M\nthrash/count=21\n' >"$root/etc/hetmem.conf"
tune --restore
[ $status -eq 0 ] && has thrash/count 21 &&
	grep -q 'line 1: left out: there is no such device: devices/3/limit=16M' "$tmp/err"
judge 'the limit of a device that is not there is left out, the rest is set'
for line in devices/3/limit devices/x/limit=1M devices/3/limits=1M devices/0/limit=33M; do
	printf 'thrash/count=22\n%s\n' "$line" >"$root/etc/hetmem.conf"
	tune --restore
	[ $status -eq 1 ] && has thrash/count 21
	judge "nothing is set of a file with $line"
done
cp "$tmp/all" "$root/etc/hetmem.conf"
echo 9 >"$sysfs/thrash/count"
ln "$root/etc/hetmem.conf" "$tmp/second-name"
tune --save
[ $status -eq 0 ] && grep -qx 'thrash/count=9' "$root/etc/hetmem.conf" &&
	grep -qx 'thrash/count=20' "$tmp/second-name" && [ "$(ls "$root/etc")" = hetmem.conf ]
judge 'a new file takes the place of the old one'
mkdir "$root/etc/dir"
refused 'the place is taken' 'Is a directory' tune --sysroot "$root" --save --file /etc/dir
also 'and nothing is left beside it' test "$(find "$root/etc" | wc -l)" -eq 3
rmdir "$root/etc/dir"
cp "$root/etc/hetmem.conf" "$tmp/all"
# kept: the saved file is as it was, and nothing is beside it.
kept() { cmp "$tmp/all" "$root/etc/hetmem.conf" && [ "$(ls "$root/etc")" = hetmem.conf ]; }
# Root would replace a device by a file.
mkfifo "$root/fifo"
ln -s etc/hetmem.conf "$root/link"
for what in fifo link; do
	refused "a $what is not replaced" 'is no regular file; give another' tune --sysroot "$root" --save --file "/$what"
done
also 'both are there' sh -c 'test -p "$1/fifo" && test -L "$1/link"' sh "$root"
(ulimit -f 0 && exec "$hetmem" tune --sysroot "$root" --save) 2>&1 >"$tmp/out" </dev/null | cat >"$tmp/err"
status=${PIPESTATUS[0]}
one_line 1 'File too large'
judge 'a limit of the size of files'
also 'leaves the old file' kept
echo many >"$sysfs/thrash/window_ms"
refused 'a setting that cannot be read is not left out' 'cannot read thrash/window_ms; nothing was saved' \
	tune --sysroot "$root" --save
also 'the old file still has it' kept
echo 1000 >"$sysfs/thrash/window_ms"
if [ "$(id -u)" -eq 0 ] && command -v unshare >/dev/null && unshare -m true 2>/dev/null; then
	unshare -m sh -c 'mount -t tmpfs -o size=4k none "$2" && cp "$3" "$2/hetmem.conf" &&
		"$1" tune --sysroot "$4" --save >"$5/full" 2>&1; echo $? >>"$5/full"
		ls "$2" >>"$5/full"; cmp "$3" "$2/hetmem.conf" && echo kept >>"$5/full"' \
		sh "$hetmem" "$root/etc" "$tmp/all" "$root" "$tmp"
	grep -q 'No space left' "$tmp/full" && grep -qx 1 "$tmp/full" && grep -qx kept "$tmp/full" &&
		[ "$(grep -c '^hetmem\.conf' "$tmp/full")" -eq 1 ]
	judge 'a full disk leaves the old file'
fi
refused 'no such directory' 'No such file' tune --sysroot "$root" --save --file /none/x
refused 'nothing was saved' "hetmem tune --save' first" tune --sysroot "$root" --restore --file /none

# restores CONTENTS NAME PATTERN: is refused, and nothing is set.
restores()
{
	make_tree
	printf '%b' "$1" >"$root/etc/hetmem.conf"
	run tune --sysroot "$root" --restore
	one_line 1 "$3" || one_line 2 "$3"
	judge "restore: $2"
	also "restore: $2: nothing was set" has thrash/count 8
}
restores 'thrash/count=9\nfrob=1\n' 'an unknown line' '/etc/hetmem.conf, line 2: there is no setting'
restores 'thrash/count=9\nthrash/window_ms=0\n' 'a value out of range' 'line 2: .*give 1 to 3600000'
restores 'thrash/count=9\nthrash/window_ms\n' 'no value' 'line 2: .*has no value'
restores 'thrash/count=9\n\0caps' 'a NUL' 'is no text'
restores '\0' 'one NUL' 'is no text'
restores "thrash/count=9\n$(printf 'x%.0s' {1..70000})" 'a huge file' 'too large'
make_tree
printf '# a comment\n\n  thrash/count=9  # why\r\nthrash/window_ms=5' >"$root/etc/hetmem.conf"
tune --restore
[ $status -eq 0 ] && has thrash/count 9 && has thrash/window_ms 5
judge 'comments, blanks and a last line without its end'
rm "$root/etc/hetmem.conf"
mkfifo "$root/etc/hetmem.conf"
# time: only one that waits takes so long
timeout 60 "$hetmem" tune --sysroot "$root" --restore >"$tmp/out" 2>"$tmp/err"
status=$?
[ $status -ne 124 ] && has thrash/count 9
judge 'a FIFO does not make it wait'

# One that the kernel refuses: those before it are put back.
make_tree
ln -sf /proc/sys/kernel/ngroups_max "$sysfs/thrash/window_ms"
refused 'a file that cannot be written' 'not permitted to set thrash/window_ms; become root' \
	tune --sysroot "$root" thrash/count=9 thrash/window_ms=6
also 'what was set before is as it was' has thrash/count 8
rm -rf "$root"
wrong 'two names' "'b' has no value: give NAME=VALUE" tune a=1 b
refused 'no module' "hetmem.ko is not loaded; type 'hetmem doctor'" tune --sysroot "$root"

if [ ! -e /dev/hetmem ]; then
	refused 'list: no module' "/dev/hetmem.*'hetmem status'" list
	refused 'list: of a process, likewise' '/dev/hetmem' list 1
	refused 'advise: no module' 'hetmem doctor' advise $$ all device:0
fi
wrong 'list: no PID' "'x' is not a PID" list x
wrong 'list: two' "'2' is too many" list 1 2
wrong 'list: an unknown option' "unknown option '--frob'" list --frob
wrong 'advise: nothing' 'give PID, RANGE and ADVICE' advise
wrong 'advise: no advice' 'give PID, RANGE and ADVICE' advise 1 all
wrong 'advise: too much' "ADVICE are all: 'x' is too many" advise 1 all host x
wrong 'advise: no PID' "'x' is not a PID" advise x all host
wrong 'advise: no range' "'1-x' is not 'all' or a range" advise 1 1-x host
wrong 'advise: no advice that is known' "'frob' is not device:N" advise 1 all frob
wrong 'advise: no time' 'is not a time' advise --timeout 0 1 all host
done_testing
