#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem record, hetmem report: processes that are busy, begin other programs and end; files
# that are cut off, damaged and hostile. Without a module: vm/record.sh has one.
. "$(dirname "$0")/tools-lib.sh"

export HETMEM_DRIVER=soft NO_COLOR=1 LANG=C
unset COLUMNS

cat >"$tmp/busy.c" <<'EOS'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* busy FIFO: 16 MiB that stay, and 16 MiB that come and go with each line of the FIFO. */
int main(int argc, char **argv)
{
	const size_t size = 16 << 20;
	char *p = mmap(NULL, 2 * size + (2 << 20), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), line[64];
	FILE *f = argc > 1 ? fopen(argv[1], "r") : stdin;
	int there = 0;

	if (p == MAP_FAILED || !f)
		return 1;
	p = (char *)(((unsigned long)p + (2 << 20) - 1) & -(2UL << 20));
	memset(p, 1, size);
	printf("%lx ready\n", (unsigned long)p);
	fflush(stdout);
	while (fgets(line, sizeof(line), f)) {
		if (!strcmp(line, "exec\n"))
			execl("/bin/sleep", "sleep", "infinity", NULL);
		there = !there;
		if (there)
			memset(p + size, 1, size);
		else
			madvise(p + size, size, MADV_DONTNEED);
		puts(there ? "there" : "gone");
		fflush(stdout);
	}
	return 3;
}
EOS
check 'a busy program' gcc -O1 -Wall -o "$tmp/busy" "$tmp/busy.c"

# Frames of a recording.
awk '/^```python$/ { on = 1; next } /^```$/ { on = 0 } on' Documentation/record.md >"$tmp/read.py"
cells() { python3 "$tmp/read.py" "$1"; }
# grown FILE SIZE: the recording has more than that.
grown() { [ "$(stat -c %s "$1" 2>/dev/null || echo 0)" -gt "$2" ]; }
size() { stat -c %s "$1"; }

# begin: a busy process, $pid, and its first address, $at.
begin()
{
	rm -f "$tmp/fifo"
	mkfifo "$tmp/fifo"
	: >"$tmp/busy.log"
	"$tmp/busy" "$tmp/fifo" >"$tmp/busy.log" &
	pid=$!
	children+=("$pid")
	exec 7>"$tmp/fifo"
	wait_for grep -q ready "$tmp/busy.log"
	at=$(sed -n 's/ ready//p' "$tmp/busy.log")
}
# starts ARGS...: the recorder, $recorder; it has written samples when this returns.
starts()
{
	rm -f "$tmp/rec"
	"$hetmem" record -o "$tmp/rec" --interval 5 "$@" >"$tmp/rec.out" 2>"$tmp/rec.err" </dev/null &
	recorder=$!
	children+=("$recorder")
	wait_for grown "$tmp/rec" 400
}
# sees PATTERN: a cell of the recording.
sees() { cells "$tmp/rec" | grep -q "$1"; }

begin
starts "$pid"
where=$((0x$at))
wait_for sees " $where $((where + (16 << 20))) 4096 "
judge 'the memory that is there is in the recording'
echo >&7
wait_for grep -q there "$tmp/busy.log"
wait_for sees " $where $((where + (32 << 20))) 8192 "
judge 'so is what came'
last=$(size "$tmp/rec")
echo >&7
wait_for grown "$tmp/rec" $((last + 200))
kill -9 $recorder
wait $recorder 2>/dev/null
run report "$tmp/rec"
[ "$status" -eq 0 ] && grep -q 'the recording has no end' "$tmp/out" && [ ! -s "$tmp/err" ] &&
	grep -Eq "^process $pid \(busy\)" "$tmp/out"
judge 'a recorder that was killed leaves all that it wrote'
[ "$(stat -c %a "$tmp/rec")" = 600 ]
judge 'the file is for its owner alone'

starts "$pid"
kill -TERM $recorder
wait $recorder
status=$?
[ $status -eq 0 ] && [ ! -s "$tmp/rec.err" ] && kill -0 "$pid"
judge 'SIGTERM ends the recording, not the process'
run report --json "$tmp/rec"
ask 'and the file says so' '$all->{complete} && $all->{ended} eq "stopped by a signal" &&
	$all->{pid} == '"$pid"' && $all->{name} eq "busy" && $all->{source} eq "pagemap" &&
	$all->{looks} >= 1 && $all->{execs} == 0 && !defined $all->{note}'
ask 'where memory was' 'grep { $_->{location} =~ /^host/ && $_->{most_bytes} >= 16 << 20 } @{$all->{locations}}'
ask 'a map of rows as long as each other' '@{$all->{map}{rows}} > 1 &&
	!grep { length($_->{cells}) != length($all->{map}{rows}[0]{cells}) } @{$all->{map}{rows}}'
ask 'what never left' '$all->{findings}{stayed_on_host}{bytes} >= 16 << 20 &&
	$all->{findings}{stayed_on_host}{largest}[0]{bytes} >= 15 << 20 &&
	$all->{findings}{stayed_on_host}{advice} && !$all->{findings}{bounced}{blocks}'
ask 'what hinders' 'grep { $_->{why} eq "file" && $_->{advice} } @{$all->{findings}{hindered}}'

starts "$pid"
echo exec >&7
# has_exec FILE: a sample after the frame of another program.
has_exec()
{
	python3 - "$1" <<-'EOS'
	import struct, sys
	data = open(sys.argv[1], 'rb').read()
	at, found = 64, 0
	while at + 16 <= len(data):
	    kind, length = struct.unpack_from('<II', data, at)
	    if found and kind == 2:
	        sys.exit(0)
	    found |= kind == 1 and struct.unpack_from('<I', data, at + 24)[0] == 2
	    at += 16 + length
	sys.exit(1)
	EOS
}
wait_for has_exec "$tmp/rec"
judge 'another program is seen'
kill "$pid"
wait $recorder
status=$?
[ $status -eq 0 ]
judge 'the end of the process ends the recording'
run report --json "$tmp/rec"
ask 'the file says both' '$all->{execs} == 1 && $all->{name} eq "sleep" && $all->{complete} &&
	$all->{ended} eq "the process ended"'
exec 7>&-

# Commands.
exits 7 'the exit status of a command' "$hetmem" record -o "$tmp/c1" -- sh -c 'exit 7'
exits 143 'and of one that a signal ended' "$hetmem" record -o "$tmp/c2" -- sh -c 'kill $$'
# The command ends after the recording has: until then it looks, for two minutes at most.
exits 5 'a command goes on after the recording' "$hetmem" record --for 1 -o "$tmp/c3" sh -c '
	for i in $(seq 1200); do
		"$0" report --json "$1" 2>/dev/null | grep -q "its time was over" && break
		# time: the pace of looks
		sleep 0.1
	done
	exit 5' "$hetmem" "$tmp/c3"
run report --json "$tmp/c3"
ask 'which has the time that was asked for' '$all->{ended} eq "its time was over" && $all->{seconds} >= 1'
exits 0 'input and output are the command'"'"'s' sh -c \
	"[ \"\$(echo hello | '$hetmem' record -o '$tmp/c4' cat)\" = hello ]"
"$hetmem" record -o "$tmp/none" -- /none >"$tmp/out" 2>"$tmp/err"
status=$?
one_line 127 "there is no file '/none'" && [ ! -e "$tmp/none" ]
judge 'no such command: no file either'
"$hetmem" record -o "$tmp/none" -- "$tmp" >"$tmp/out" 2>"$tmp/err"
status=$?
one_line 126 'cannot run' && [ ! -e "$tmp/none" ]
judge 'no command at all'
"$hetmem" record -o "$tmp/c5" -- sh -c 'echo up >'"$tmp"'/up; while :; do sleep 0.1; done' &
recorder=$!
children+=("$recorder")
wait_for test -s "$tmp/up"
kill -TERM $recorder
wait $recorder
status=$?
[ $status -eq 143 ]
judge 'a signal is passed on to the command'

# counts FILE: writes each signal that it gets to FILE, and exits with 9 when FILE.end exists.
cat >"$tmp/counts.py" <<'EOS'
import os, signal, sys, time
got = open(sys.argv[1], 'wb', 0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.write(b'%d ' % number))
open(sys.argv[1] + '.up', 'w').write('up')
while not os.path.exists(sys.argv[1] + '.end'): time.sleep(0.05)
sys.exit(9)
EOS
for number in TERM HUP; do
	"$hetmem" record --for 1 -o "$tmp/late-$number" -- python3 "$tmp/counts.py" "$tmp/got-$number" &
	recorder=$!
	children+=("$recorder")
	wait_for test -s "$tmp/got-$number.up"
	wait_for sh -c "'$hetmem' report --json '$tmp/late-$number' 2>/dev/null | grep -q 'its time was over'"
	kill -"$number" $recorder
	wait_for grep -q "^$(kill -l $number) " "$tmp/got-$number"
	touch "$tmp/got-$number.end"
	wait $recorder
	status=$?
	[ $status -eq 9 ] && [ "$(cat "$tmp/got-$number")" = "$(kill -l $number) " ]
	judge "after --for SIG$number still goes to the command, whose status is the result"
done
# A terminal sends to the whole group, and the command must not get the signal twice. The
# recorder passes on a later SIGTERM after all that it got before.
cat >"$tmp/terminal.py" <<'EOS'
import os, pty, sys, time
pid, fd = pty.fork()
if not pid:
    os.execv(sys.argv[1], sys.argv[1:])
got = sys.argv[-1]
while not os.path.exists(got + '.up'): time.sleep(0.05)
os.write(fd, b'\x03')
while b'2 ' not in open(got, 'rb').read(): time.sleep(0.05)
os.kill(pid, 15)
while b'15 ' not in open(got, 'rb').read(): time.sleep(0.05)
open(sys.argv[-1] + '.end', 'w').close()
try:
    while os.read(fd, 1000):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
EOS
python3 "$tmp/terminal.py" "$hetmem" record -o "$tmp/terminal" -- python3 "$tmp/counts.py" "$tmp/got-pty"
status=$?
[ $status -eq 9 ] && [ "$(cat "$tmp/got-pty")" = '2 15 ' ]
judge 'Ctrl-C reaches the command once'
(trap '' HUP; exec "$hetmem" record --force -o "$tmp/nohup" -- sh -c 'until [ -e "$0" ]; do sleep 0.1; done' "$tmp/nohup.end") &
recorder=$!
children+=("$recorder")
wait_for grown "$tmp/nohup" 64
kill -HUP $recorder
touch "$tmp/nohup.end"
wait $recorder
status=$?
run report --json "$tmp/nohup"
[ $status -eq 0 ] && grep -q 'the process ended' "$tmp/out"
judge 'a signal that nohup had ignored is ignored'

# A process can keep its memory locked for ever. Here the kernel's files of it do not answer.
cat >"$tmp/locked.c" <<'EOS'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for_ever(const char *path)
{
	const char *name = strrchr(path, '/');

	if (name && !strncmp(path, "/proc/", 6) && !access(getenv("LOCKED"), F_OK) &&
	    (!strcmp(name, "/pagemap") || !strcmp(name, "/maps"))) {
		close(creat(getenv("LOCKED_WAITS"), 0600));
		for (;;)
			pause();
	}
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	ssize_t (*next)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
	char link[64], path[64] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof(path) - 1) > 0)
		wait_for_ever(path);
	return next(fd, p, n, at);
}
ssize_t pread64(int fd, void *p, size_t n, off_t at) __attribute__((alias("pread")));

FILE *fopen(const char *path, const char *mode)
{
	FILE *(*next)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");

	wait_for_ever(path);
	return next(path, mode);
}
FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));
EOS
check 'files that do not answer' gcc -shared -fPIC -O1 -Wall -o "$tmp/locked.so" "$tmp/locked.c" -ldl
export LOCKED=$tmp/locked LOCKED_WAITS=$tmp/locked.waits
touch "$LOCKED"
sleep infinity &
locked=$!
children+=("$locked")
status=0
LD_PRELOAD=$tmp/locked.so "$hetmem" record -o "$tmp/l1" $locked >"$tmp/out" 2>"$tmp/err" || status=$?
one_line 1 'keeps its memory locked' && [ ! -e "$tmp/l1" ]
judge 'a process whose memory is locked is refused'
for how in for signal; do
	seconds=1000
	[ $how = signal ] || seconds=2
	rm "$LOCKED"
	LD_PRELOAD=$tmp/locked.so "$hetmem" record --for $seconds -o "$tmp/l-$how" $locked &
	recorder=$!
	children+=("$recorder")
	wait_for grown "$tmp/l-$how" 200
	rm -f "$LOCKED_WAITS"
	touch "$LOCKED"
	wait_for test -e "$LOCKED_WAITS"
	[ $how = for ] || kill -TERM $recorder
	wait $recorder
	status=$?
	run report --json "$tmp/l-$how"
	[ $status -eq 0 ] && grep -q "$([ $how = for ] && echo its time was over || echo signal)" "$tmp/out"
	judge "a recording ends though the memory is locked meanwhile ($how)"
done
LD_PRELOAD=$tmp/locked.so "$hetmem" status --interval 0 $locked >"$tmp/out" 2>"$tmp/err"
status=$?
[ $status -eq 0 ] && grep -q 'not known: its memory is locked' "$tmp/out"
judge 'hetmem status goes on without it'
kill $locked
rm "$LOCKED"

# The file.
"$hetmem" record -o "$tmp/a" -- true
run record -o "$tmp/a" -- true
one_line 2 'exists: --force'
judge 'a file is not replaced'
cp "$tmp/a" "$tmp/b"
run record -o "$tmp/a" --force -- /none
[ $status -eq 127 ] && cmp -s "$tmp/a" "$tmp/b"
judge 'nor by --force, if the command cannot run'
run record --force -o "$tmp/a" 2147483647
one_line 1 'no process' && cmp -s "$tmp/a" "$tmp/b"
judge 'nor if there is no process'
chmod 644 "$tmp/a"
run record -o "$tmp/a" --force -- true
[ $status -eq 0 ] && ! cmp -s "$tmp/a" "$tmp/b" && [ "$(stat -c %a "$tmp/a")" = 600 ]
judge 'else it is, for its owner alone'
echo precious >"$tmp/precious"
ln -s precious "$tmp/link"
ln "$tmp/precious" "$tmp/hard"
mkfifo "$tmp/pipe"
for path in link:'symbolic link' hard:'several names' pipe:'no regular file|No such device' .:'no regular file|directory'; do
	run record --force -o "$tmp/${path%%:*}" $$
	one_line 2 "${path#*:}" && [ "$(cat "$tmp/precious")" = precious ]
	judge "--force does not replace ${path%%:*}"
done
run record -o "$tmp/none/x" $$
one_line 2 'cannot create'
judge 'no directory'
"$hetmem" record -o "$tmp/locked" sleep infinity &
recorder=$!
children+=("$recorder")
wait_for grown "$tmp/locked" 400
run record --force -o "$tmp/locked" -- true
one_line 2 'being recorded to'
judge 'two recorders do not share a file'
kill $recorder
wait $recorder
(ulimit -f 1; exec "$hetmem" record --interval 1 -o "$tmp/small" -- "$tmp/busy" /dev/null) >"$tmp/o" 2>"$tmp/err"
[ "$(size "$tmp/small")" -le 1024 ]
judge 'a limit of the size of files holds'
# time: the pace of changes; at any other there are more samples or fewer
"$hetmem" record --interval 1 --max 64K -o "$tmp/bounded" -- "$tmp/busy" <(for i in $(seq 300); do echo; sleep 0.01; done) >/dev/null 2>"$tmp/err"
[ "$(size "$tmp/bounded")" -le 65536 ]
judge '--max bounds the file'
run report --json "$tmp/bounded"
ask 'which is complete' '$all->{complete}'

# The trace of a recording, at its end.
run record -o "$tmp/t1" --chrome "$tmp/t1.json" --interval 5 -- "$tmp/busy" <(echo; echo)
[ $status -eq 3 ] && [ ! -s "$tmp/err" ] && [ "$(stat -c %a "$tmp/t1.json")" = 600 ]
judge 'a trace beside the recording; the exit status is that of the command'
run report --chrome "$tmp/t2.json" "$tmp/t1"
also 'it is that of report' cmp "$tmp/t1.json" "$tmp/t2.json"
cp "$tmp/t1" "$tmp/b"
run record -o "$tmp/t3" --chrome "$tmp/t1.json" -- true
one_line 2 "t1.json' exists: --force replaces it; name another file with --chrome" && [ ! -e "$tmp/t3" ] &&
	cmp -s "$tmp/t1.json" "$tmp/t2.json"
judge 'it replaces no file, and then nothing is recorded'
run record --force -o "$tmp/t1" --chrome "$tmp/t1" -- true
one_line 2 'being recorded to; name another file with --chrome' && cmp -s "$tmp/t1" "$tmp/b"
judge 'the recording and its trace are two files'
run record -o "$tmp/t3" --chrome "$tmp/link" --force -- true
one_line 2 'symbolic link' && [ ! -e "$tmp/t3" ] && [ "$(cat "$tmp/precious")" = precious ]
judge 'a symbolic link is not followed'
run record --force -o "$tmp/t1" --chrome "$tmp/t1.json" -- /none
[ $status -eq 127 ] && cmp -s "$tmp/t1.json" "$tmp/t2.json"
judge 'an old trace stays if the command cannot run'
run record --force -o "$tmp/t1" --chrome "$tmp/t1.json" --interval 5 -- "$tmp/busy" <(echo)
[ $status -eq 3 ] && ! cmp -s "$tmp/t1.json" "$tmp/t2.json"
judge 'else --force replaces it'
run record --for 1 -o "$tmp/t4" --chrome /dev/full --force -- true
one_line 2 'is no regular file; name another file with --chrome'
judge 'a device is no place for a trace'

# A process that could not be looked at has not ended.
few()
{
	local nr

	for nr in 4 5 6 7 8 9 10; do
		few_files "$nr" "$hetmem" record --force --for 1 -o "$tmp/few" $$ >"$tmp/out" 2>"$tmp/err" </dev/null
		status=$?
		if [ $status -eq 0 ]; then
			run report --json "$tmp/few"
			grep -q "its time was over" "$tmp/out" || return 1
		else
			one_line 1 'process|signal' || return 1
		fi
	done
}
few
judge 'with few descriptors it records, or fails'
few 3</dev/null 4</dev/null
judge 'whatever the caller has open'

# Other users.
if [ "$(id -u)" -eq 0 ] && command -v runuser >/dev/null; then
	mkdir -m 777 "$tmp/open"
	runuser -u nobody -- "$hetmem" record -o "$tmp/open/x" $$ >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	one_line 1 'not permitted.*sudo hetmem record' && [ ! -e "$tmp/open/x" ]
	judge "another user's process is not recorded"
	runuser -u nobody -- "$hetmem" record -o "$tmp/open/y" -- true </dev/null
	run record --force -o "$tmp/open/y" -- true
	one_line 2 'belongs to another user|cannot create'
	judge "nor is another user's file replaced"
	runuser -u nobody -- "$hetmem" report "$tmp/c1" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	one_line 2 'Permission denied'
	judge 'a recording is for its owner'
fi
refused 'a kernel thread or a zombie' 'has no memory|no process' record -o "$tmp/z" 2147483646
[ ! -e "$tmp/z" ]
judge 'leaves no file'

# What is typed.
wrong 'nothing to record' 'which process' record
wrong 'two PIDs' "'2' is too many" record 1 2
wrong 'PID 0' "'0' is not a PID" record 0
wrong 'a file that is none' 'give -o FILE' record -o - 1
wrong 'an empty name' 'give -o FILE' record -o '' 1
wrong '-o without a value' 'needs a value' record -o
wrong 'a trace that is no file' 'give --chrome FILE' record --chrome - 1
for what in '--interval 0' '--interval x' '--interval 3600001' '--for 0' '--for -1' '--max 1' '--max 2G' '--max x'; do
	# shellcheck disable=SC2086
	wrong "record $what" 'is not a (time|size)' record $what 1
done
wrong 'no recording' 'which recording' report
wrong 'two recordings' "is too many" report a b
wrong 'no colour' 'not auto, always or never' report --color=x a
wrong 'no file' 'cannot read.*hetmem record' report "$tmp/none"
wrong 'a directory' 'no regular file' report "$tmp"
wrong 'a device' 'no regular file' report /dev/zero
wrong 'a FIFO' 'no regular file' report "$tmp/pipe"
: >"$tmp/empty"
wrong 'an empty file' 'too short' report "$tmp/empty"
head -c 100000 /dev/urandom >"$tmp/garbage"
wrong 'garbage' 'is not a recording' report "$tmp/garbage"
truncate -s 100G "$tmp/huge"
wrong 'a huge file' 'is not a recording' report "$tmp/huge"
head -c 64 "$tmp/c3" >"$tmp/header"
wrong 'only a header' 'no sample' report "$tmp/header"
cp "$tmp/c3" "$tmp/sparse"
truncate -s 100G "$tmp/sparse"
run report "$tmp/sparse"
[ $status -eq 0 ] && grep -q 'note: the file is damaged at byte' "$tmp/out"
judge 'a recording with 100 GiB of nothing behind it'

# The report.
run report "$tmp/c3"
[ $status -eq 0 ] && [ "$(wc -L <"$tmp/out")" -le 100 ] && ! LC_ALL=C grep -q '[^[:print:]]' "$tmp/out" &&
	grep -q '^1\. ' "$tmp/out" && grep -q '^2\. ' "$tmp/out" && grep -q '^3\. ' "$tmp/out"
judge 'a report of 100 columns, without colours'
run report --color=always "$tmp/c3"
[ $status -eq 0 ] && grep -q $'\033\[32m#' "$tmp/out"
judge 'with colours where they are asked for'
run report --svg "$tmp/x.svg" "$tmp/c3"
[ $status -eq 0 ] && python3 -c 'import sys, xml.dom.minidom as m
assert len(m.parse(sys.argv[1]).getElementsByTagName("rect")) > 3' "$tmp/x.svg"
judge 'SVG'
run report --svg "$tmp/none/x.svg" "$tmp/c3"
[ $status -eq 1 ] && grep -q 'cannot write' "$tmp/err" && [ ! -s "$tmp/out" ]
judge 'SVG that cannot be written'
cp "$tmp/c3" "$tmp/itself"
ln -s itself "$tmp/link-to-itself"
for svg in itself link-to-itself; do
	wrong "SVG over the recording ($svg)" 'is the recording; name another file' report --svg "$tmp/$svg" "$tmp/itself"
	also 'the recording is as it was' cmp "$tmp/c3" "$tmp/itself"
done
(ulimit -f 0 && exec "$hetmem" report --svg "$tmp/limited.svg" "$tmp/c3") 2>&1 >/dev/null </dev/null | cat >"$tmp/err"
status=${PIPESTATUS[0]}
: >"$tmp/out"
one_line 1 "cannot write '.*/limited.svg': File too large"
judge 'SVG beyond the limit of the size of files'
run report --svg /dev/full "$tmp/c3"
[ $status -eq 1 ] && grep -q 'cannot write' "$tmp/err"
judge 'a disk that is full'
"$hetmem" report "$tmp/c3" >/dev/full 2>"$tmp/err"
status=$?
: >"$tmp/out"
one_line 1 'cannot write to standard output'
judge 'the same of standard output'
("$hetmem" report "$tmp/c3"; echo $? >"$tmp/status") 2>"$tmp/err" | head -c 1 >/dev/null
[ ! -s "$tmp/err" ] || grep -q 'standard output' "$tmp/err"
judge 'a closed pipe'

# Recordings by hand: what cannot be had here, and what a liar would write.
cat >"$tmp/make.py" <<'EOS'
import os, random, struct, sys, zlib
PAGE, BLOCK, BASE = 4096, 2 << 20, 0x7f0000000000
HOST, NODE1, DEVICE = 0x20000, 0x20001, 0x30000
class File:
    def __init__(self, path, page=PAGE, pid=4711):
        self.f = open(path, 'wb')
        head = struct.pack('<8sIIIIQQI16x', b'HETMEMRC', 1, 64, page, pid, 1700000000 * 10**9, 64 << 20, 100)
        self.f.write(head + struct.pack('<I', zlib.crc32(head)))
        self.n = 0
    def frame(self, kind, payload):
        head = struct.pack('<III', kind, len(payload), self.n)
        self.f.write(head + struct.pack('<I', zlib.crc32(head + payload)) + payload)
        self.n += 1
    def process(self, time, name, what=1):
        self.frame(1, struct.pack('<QII64s', time, what, 0, name))
    def sample(self, time, cells, start=0, end=1 << 63, moved=None, flags=0, source=1, nr=None):
        flags |= 2 if moved else 0
        self.frame(2, struct.pack('<QQQQQQQIIII', time, 1000, start, end, *(moved or (0, 0)), 0,
                   source, flags, len(cells) if nr is None else nr, 0) +
                   b''.join(struct.pack('<QQQII', *c) for c in cells))
    def event(self, time, what, start, end, location, why=0, nr=0, left=0):
        self.frame(3, struct.pack('<QIiQQIIQQ', time, what, 0, start, end, location, why, nr, left))
    def end(self, time, reason=1, skipped=0, dropped=0):
        self.frame(4, struct.pack('<QIIQQ', time, reason, 0, skipped, dropped))
def cell(n, location, blocks=1, pages=512, why=0):
    return (BASE + n * BLOCK, BASE + (n + blocks) * BLOCK, pages * blocks, location, why)
S = 10**9
def bounce(path, counted):
    f = File(path)
    f.process(0, b'bouncer')
    for i in range(10):
        where = DEVICE if i % 2 else HOST
        f.sample(i * S, [cell(0, HOST, 4, why=1), cell(4, where), cell(5, DEVICE, 3)],
                 moved=((i + 1) // 2 * 512, i // 2 * 512) if counted else None)
    f.event(3 * S, 1, BASE, BASE + BLOCK, DEVICE, why=1, nr=0, left=512)
    f.event(4 * S, 2, BASE, BASE + BLOCK, DEVICE, nr=8)
    f.end(10 * S)
def hostile(path, how):
    f = File(path)
    f.process(0, b'e"\\\n\x1b[2J</svg>&\xff')
    all = (0, 1 << 63)
    if how == 'wide':
        for i in range(2000):
            f.sample(i, [(0, 1 << 62, 1 << 50, (i % 9 + 2) << 16, 0xffffffff)])
    elif how == 'scattered':
        for i in range(300):
            f.sample(i * S, [((n * 400 + i) << 32, ((n * 400 + i) << 32) + BLOCK, 512, n << 16 | i, i) for n in range(2000)], 0, 1 << 63)
    elif how == 'sames':
        f.sample(0, [cell(0, HOST)])
        for i in range(100000):
            f.sample(i, [], 0, 0, flags=1)
    elif how == 'times':
        f.sample((1 << 64) - 1, [cell(0, HOST)])
        f.sample(0, [cell(0, DEVICE)])
        f.sample((1 << 64) - 1, [cell(0, HOST)], moved=((1 << 64) - 1, (1 << 64) - 1))
        f.sample(5, [cell(0, HOST)], moved=(0, 0))
    elif how == 'execs':
        f.sample(0, [((n << 30), (n << 30) + BLOCK, 512, HOST, 0) for n in range(20000)])
        for i in range(20000):
            f.process(i, b'x' * 63, 2)
    elif how == 'events':
        f.sample(0, [cell(0, HOST)])
        for i in range(50000):
            f.event(i, i % 7, 0, (1 << 64) - 1, i, 0xffffffff, (1 << 64) - 1, (1 << 64) - 1)
    elif how == 'locations':
        f.sample(0, [cell(n, n << 16 | n) for n in range(1000)])
        f.sample(S, [cell(n, 0xffff0000 | n) for n in range(1000)])
    f.end((1 << 64) - 1 if how == 'times' else 10 * S, 99, (1 << 64) - 1, (1 << 64) - 1)
# Frames with good checksums and bad contents: what comes before them is shown.
def wrongs():
    ok = cell(0, HOST)
    big = 1 << 63
    yield lambda f: f.sample(1, [ok], nr=2)
    yield lambda f: f.sample(1, [ok], nr=0)
    yield lambda f: f.sample(1, [ok], nr=0xffffffff)
    yield lambda f: f.sample(1, [ok], start=big, end=0)
    yield lambda f: f.sample(1, [ok], end=1 << 64 - 1 | 4096)
    yield lambda f: f.sample(1, [ok], start=1)
    yield lambda f: f.sample(1, [ok], flags=1)
    yield lambda f: f.sample(1, [cell(1, HOST), cell(0, HOST)])
    yield lambda f: f.sample(1, [cell(0, HOST, 2), cell(1, HOST)])
    yield lambda f: f.sample(1, [cell(0, HOST, pages=513)])
    yield lambda f: f.sample(1, [cell(0, HOST, pages=1 << 63)])
    yield lambda f: f.sample(1, [ok, ok])
    yield lambda f: f.sample(1, [cell(0, HOST, pages=1)] * 17)
    yield lambda f: f.sample(1, [(ok[1], ok[0], 1, HOST, 0)])
    yield lambda f: f.sample(1, [(ok[0] + 1, ok[1], 1, HOST, 0)])
    yield lambda f: f.sample(1, [ok], start=BASE + BLOCK)
    yield lambda f: f.event(1, 1, 2, 1, 0)
    yield lambda f: f.frame(1, struct.pack('<QII64s', 0, 1, 0, b'x' * 64))
    yield lambda f: f.frame(2, bytes(64))
    yield lambda f: f.frame(4, bytes(8))
    yield lambda f: f.frame(9, b'')
    yield lambda f: f.frame(9, bytes(9))
    yield lambda f: f.frame(9, bytes((1 << 20) + 8))
    def sequence(f):
        f.n += 1
        f.end(0)
    yield sequence
if sys.argv[1] == 'bounce':
    bounce(sys.argv[2], False)
elif sys.argv[1] == 'counted':
    bounce(sys.argv[2], True)
elif sys.argv[1] == 'nodes':
    f = File(sys.argv[2])
    for i in range(4):
        f.sample(i * S, [cell(0, NODE1 if i % 2 else HOST)], source=2)
    f.frame(77, b'unknown ')
    f.end(5 * S, 3)
elif sys.argv[1] == 'wrong':
    for i, wrong in enumerate(wrongs()):
        f = File('%s.%d' % (sys.argv[2], i))
        f.process(0, b'victim')
        f.sample(0, [cell(0, HOST)])
        wrong(f)
        f.sample(2, [cell(0, DEVICE)])
elif sys.argv[1] == 'damage':
    data, rng = open(sys.argv[2], 'rb').read(), random.Random(int(sys.argv[4]))
    for i in range(60):
        d = bytearray(data)
        for k in range(rng.choice((1, 1, 8, 100))):
            at = rng.randrange(len(d))
            d[at] = rng.randrange(256)
        if i % 2:
            # Good checksums: what is behind them is looked at.
            struct.pack_into('<I', d, 60, zlib.crc32(d[:60]))
            at, n = 64, 0
            while at + 16 <= len(d):
                length = struct.unpack_from('<I', d, at + 4)[0]
                if at + 16 + length > len(d):
                    break
                struct.pack_into('<I', d, at + 8, n)
                struct.pack_into('<I', d, at + 12, zlib.crc32(d[at:at + 12] + d[at + 16:at + 16 + length]))
                at, n = at + 16 + length, n + 1
        open('%s.%d' % (sys.argv[3], i), 'wb').write(d)
    for i in range(60, 120):
        open('%s.%d' % (sys.argv[3], i), 'wb').write(data[:rng.randrange(len(data))])
else:
    hostile(sys.argv[2], sys.argv[1])
EOS
make() { python3 "$tmp/make.py" "$@" >"$tmp/out" 2>"$tmp/err"; }

make bounce "$tmp/m"
run report --json "$tmp/m"
ask 'a block that bounces' '$all->{findings}{bounced}{blocks} == 1 &&
	$all->{findings}{bounced}{most}[0]{start} eq "0x7f0000800000" &&
	$all->{findings}{bounced}{most}[0]{end} eq "0x7f0000a00000" &&
	$all->{findings}{bounced}{most}[0]{moves} == 9 &&
	$all->{findings}{bounced}{advice} =~ /hetmem advise PID 7f0000800000-7f0000a00000 host/'
ask 'pages that never left' '$all->{findings}{stayed_on_host}{bytes} == 8 << 20 &&
	$all->{findings}{stayed_on_device}{bytes} == 6 << 20 &&
	$all->{findings}{stayed_on_device}{advice} =~ /pullback.*7f0000a00000-7f0001000000/ &&
	$all->{findings}{stayed_on_host}{advice} =~ /prefetch .* --to device:0 --range 7f0000000000-7f0000800000/'
ask 'what hindered' '$all->{findings}{hindered}[0]{why} eq "file" &&
	$all->{findings}{hindered}[0]{unmoved_pages} == 512 && $all->{findings}{hindered}[0]{most_bytes} == 8 << 20'
sum='sub sum { my $s = 0; $s += $_ for @{$_[0]}; $s } my $t = $all->{timeline};'
ask 'moves that are estimated' "$sum"' $t->{source} eq "estimated" && sum($t->{to_device_bytes}) == 10 << 20 &&
	sum($t->{to_host_bytes}) == 8 << 20 && sum($t->{thrash}) == 1 && sum($t->{migrate}) == 1'
ask 'averages' '(grep { $_->{location} eq "device 0" && abs($_->{average_bytes} - (7 << 20)) < 65536 &&
	$_->{most_bytes} == 8 << 20 } @{$all->{locations}})'
ask 'the map' 'my ($r) = grep { $_->{start} eq "0x7f0000800000" } @{$all->{map}{rows}};
	$r->{cells} =~ /^#+%?A+%?#+%?A+%?#+%?A+%?#+%?A+%?#+%?A+$/'
run report "$tmp/m"
grep -Eq '^to device +1? *9' "$tmp/out" && grep -Eq '^thrash' "$tmp/out" && grep -Eq '^MIGRATE' "$tmp/out"
judge 'the timeline as text'
make counted "$tmp/m"
run report --json "$tmp/m"
ask 'moves that the module counted' "$sum"' $t->{source} eq "module" &&
	sum($t->{to_device_bytes}) == 10 << 20 && sum($t->{to_host_bytes}) == 8 << 20'
# chrome.py FILE [EXPRESSION]: a trace is what the format of trace events allows, and EXPRESSION
# holds; counters(NAME) are its values with their times, events(NAME) all of that name.
cat >"$tmp/chrome.py" <<'EOS'
import json, sys
trace = json.load(open(sys.argv[1]))
all = trace['traceEvents']
must = {'M': {'args'}, 'C': {'ts', 'args'}, 'X': {'ts', 'dur', 'tid'}, 'i': {'ts', 's', 'tid'},
        'b': {'ts', 'cat', 'id', 'tid'}, 'e': {'ts', 'cat', 'id', 'tid'}}
for event in all:
    assert {'name', 'ph', 'pid'} | must[event['ph']] <= set(event), event
    assert event.get('ts', 0) >= 0 and event.get('s', 'p') in ('g', 'p', 't'), event
    if event['ph'] == 'C':
        assert event['args'].values() and min(event['args'].values()) >= 0, event
def events(name):
    return [event for event in all if event['name'] == name]
def counters(name):
    return [(event['ts'] / 1e6, event['args']) for event in events(name)]
assert eval(sys.argv[2] if len(sys.argv) > 2 else 'True'), (sys.argv[2], trace)
EOS
# chrome NAME EXPRESSION: of the trace $tmp/m.json.
chrome() { check "$1" python3 "$tmp/chrome.py" "$tmp/m.json" "$2"; }
run report --chrome "$tmp/m.json" "$tmp/m"
[ $status -eq 0 ] && grep -q '^1\. ' "$tmp/out" && [ ! -s "$tmp/err" ]
judge 'a Chrome trace, beside the text'
chrome 'bytes at each location' 'counters("memory")[:3] == [
	(0, {"host node 0": 10 << 20, "device 0": 6 << 20}), (1, {"host node 0": 8 << 20, "device 0": 8 << 20}),
	(2, {"host node 0": 10 << 20, "device 0": 6 << 20})] and len(counters("memory")) == 10'
chrome 'what moved' 'counters("moved")[-1] == (9, {"to device": 10 << 20, "to host": 8 << 20, "other node": 0})'
chrome 'a slice for each look' 'len(events("look at the module")) == 10 and events("look at the module")[3]["dur"] == 1'
chrome 'events of the module' 'events("MIGRATE")[0]["ts"] == 3e6 and events("MIGRATE")[0]["args"] == {
	"start": "0x7f0000000000", "end": "0x7f0000200000", "location": "device 0", "result": 0,
	"moved_pages": 0, "unmoved_pages": 512, "why": "file"} and events("thrash")[0]["args"]["times"] == 8'
chrome 'names and the end' '[e["name"] for e in all if e["ph"] == "i" and e["s"] == "p"] == [
	"recorded: bouncer", "the process ended"] and trace["otherData"]["name"] == "bouncer"'
cat >"$tmp/hints.py" <<'EOS'
import sys
sys.argv[1:1] = ['nodes', '/dev/null']
exec(open(sys.argv.pop()).read())
f = File(sys.argv[-1])
f.process(0, b'first')
f.sample(0, [cell(0, HOST)])
f.event(1 * S, 3, BASE, BASE + BLOCK, DEVICE, nr=7)
f.event(2 * S, 4, BASE, BASE + BLOCK, DEVICE, nr=7)
f.process(3 * S, b'second', 2)
f.sample(3 * S, [cell(0, HOST)], source=2)
EOS
check 'a recording with a hint, another program and no end' python3 "$tmp/hints.py" "$tmp/m" "$tmp/make.py"
run report --chrome "$tmp/m.json" "$tmp/m"
chrome 'a hint has a begin and an end' '[(e["ph"], e["ts"], e["id"]) for e in events("hint")] == [
	("b", 1e6, "0x7"), ("e", 2e6, "0x7")]'
chrome 'another program begins without memory' 'len(events("runs second")) == 1 and [
	list(args.values())[0] for _, args in counters("memory")] == [2 << 20, 0, 2 << 20]'
wrong 'a trace over the recording' 'is the recording; name another file with --chrome' report --chrome "$tmp/m" "$tmp/m"
run report --chrome /dev/full "$tmp/m"
[ $status -eq 1 ] && grep -q "cannot write '/dev/full'" "$tmp/err"
judge 'a trace on a disk that is full'
make nodes "$tmp/m"
run report --json "$tmp/m"
ask 'moves between nodes; unknown frames are skipped' "$sum"' $all->{complete} && sum($t->{other_node_bytes}) == 6 << 20 &&
	$all->{findings}{bounced}{advice} =~ /hetmem run --policy bind/'

for how in wide scattered sames times execs events locations; do
	make $how "$tmp/m"
	(ulimit -v 1000000; limited 60 "$hetmem" report --svg "$tmp/m.svg" --chrome "$tmp/m.json" --html "$tmp/m.html" "$tmp/m") >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	[ $status -eq 0 ] && [ "$(wc -c <"$tmp/out")" -lt 20000 ] && ! LC_ALL=C grep -q '[^[:print:]]' "$tmp/out" &&
		python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$tmp/m.svg"
	judge "a hostile file: $how"
	check 'as a Chrome trace, too' python3 "$tmp/chrome.py" "$tmp/m.json"
	check 'as a page, too' python3 selftests/t/page.py data "$tmp/m.html"
	run report --json "$tmp/m"
	ask "as JSON, too" '$all->{pid} == 4711'
done
make wrong "$tmp/w"
for file in "$tmp"/w.*; do
	run report --json "$file"
	ask "wrong contents, number ${file##*.}: what comes before is shown" '$all->{note} =~ /damaged at byte/ &&
		$all->{looks} == 1 && !$all->{complete} && @{$all->{locations}} == 1'
done

# What a program made, damaged: shown or refused, and never more.
make damage "$tmp/bounded" "$tmp/d" "${SEED:-1}"
bad=
for file in "$tmp"/d.*; do
	(ulimit -v 1000000; limited 60 "$hetmem" report --svg "$tmp/m.svg" --chrome "$tmp/m.json" --html "$tmp/m.html" "$file") >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	[ $status -ne 0 ] || python3 "$tmp/chrome.py" "$tmp/m.json" || bad="$bad ${file##*.}(trace)"
	[ $status -ne 0 ] || python3 selftests/t/page.py data "$tmp/m.html" || bad="$bad ${file##*.}(page)"
	if [ $status -eq 2 ]; then
		one_line 2 'hetmem report: ' || bad="$bad ${file##*.}"
	elif [ $status -ne 0 ] || [ -s "$tmp/err" ]; then
		bad="$bad ${file##*.}"
	fi
done
[ -z "$bad" ] || echo "seed ${SEED:-1}: $bad" >>"$tmp/err"
[ -z "$bad" ]
judge '120 damaged files'

done_testing
