# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# hetmem prefetch and hetmem pullback against a process that carries out hints: the
# example of Documentation/hints.md, compiled as printed.
prepare_hint()
{
	local name command

	# example N: the Nth block of C in the guide.
	example()
	{
		awk -v want="$1" '/^```c$/ { n++; on = n == want; next } /^```$/ { on = 0 } on' \
			Documentation/hints.md
	}

	mkdir "$tmp/hint"
	example 1 >"$tmp/hint/executor.c"
	example 2 >"$tmp/hint/asker.c"
	check 'make install' make install DESTDIR="$tmp/root" PREFIX=/usr
	local -x CPATH=$tmp/root/usr/include LIBRARY_PATH=$tmp/root/usr/lib
	for name in executor asker; do
		command=$(sed -n "s/^    \(gcc -o $name .*\)/\1/p" Documentation/hints.md)
		check "the guide's $name compiles as printed, without a warning" \
			sh -c "cd '$tmp/hint' && ${command:-false} -Wall -Wextra -Werror"
	done
	cat >"$tmp/hint/away.c" <<'EOS'
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/hetmem_emu.h>

#define SIZE	(2 << 20)

/* Writes a pattern by the device, so that the pages are there, until it is signalled. */
int main(void)
{
	unsigned char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hetmem_emu_cmd_access cmd = {
		.size = sizeof(cmd), .flags = HETMEM_EMU_MIGRATE, .op = HETMEM_EMU_FILL,
		.addr = (uintptr_t)p, .length = SIZE, .value = 0x0707070707070707,
	};
	int fd = open("/dev/hetmem_emu0", O_RDWR), sig, i;
	sigset_t set;

	memset(p, 1, SIZE);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (ioctl(fd, HETMEM_EMU_IOC_ACCESS, &cmd))
		return 2;
	printf("%lx-%lx\n", (long)p, (long)p + SIZE);
	fflush(stdout);
	sigwait(&set, &sig);
	for (i = 0; i < SIZE; i++)
		if (p[i] != 7)
			return 1;
	return 0;
}
EOS
	check 'a program with memory on a device, without hetmem' \
		gcc -Iinclude/uapi -o "$tmp/hint/away" "$tmp/hint/away.c"
	files+=(-f "$tmp/hint/away:/hint/away" -f "$tmp/hint/executor:/hint/executor" -f "$tmp/hint/asker:/hint/asker"
		-f build/libhetmem.so:/lib/x86_64-linux-gnu/libhetmem.so.0)

	cat >"$tmp/hint.sh" <<'EOS'
reload devices=2 capacity_mb=32
PATH=/hint:$PATH
places() { hetmem map --json --range $range $pid |
	sed -n 's/.*"device 0".*/on the device/p; s/.*"device 1".*/on the other/p' | sort -u; }

begin executor
read range </tmp/out
try prefetch hetmem prefetch --pid $pid --range $range
try there places
try again hetmem prefetch --pid $pid --range $range --to device:0
try other hetmem prefetch --pid $pid --range $range --to device:1
try pullback hetmem pullback --pid $pid
try back places
try all hetmem prefetch --pid $pid
try there-again places
try to-node hetmem pullback --pid $pid --node 1 --range $range
try on-node hetmem map --range $range $pid
try no-node hetmem pullback --pid $pid --node 7 --range $range
try no-device hetmem prefetch --pid $pid --to device:9
try foreign hetmem prefetch --pid $pid --to foreign:3
try uuid hetmem prefetch --pid $pid --to GPU-8F6AEF44-1a5d-1978-3d98-5cc4d0fa0446
try asker asker $pid ${range%-*} 0x1000
try stranger su user -c "hetmem prefetch --pid $pid"
kill -STOP $pid
try stopped hetmem prefetch --pid $pid --range $range --timeout 1
# The process is stopped, so that the hint waits until it dies.
{ until hetmem list --json | grep -q '"hints_waiting": *[1-9]'; do sleep 0.1; done; kill -KILL $pid; } &
try dies hetmem prefetch --pid $pid --range $range
try gone hetmem prefetch --pid $pid

sleep infinity &
try without hetmem prefetch --pid $!
try unasked hetmem pullback --pid $!
# Memory on a device, of a process that never opened /dev/hetmem.
begin away
read range </tmp/out
try read hetmem pullback --pid $pid
try read-again hetmem pullback $pid --range $range
try read-node hetmem pullback --pid $pid --node 0
try read-stranger su user -c "hetmem pullback $pid"
kill -USR1 $pid
wait $pid
try read-contents test $? = 0
try read-gone hetmem pullback $pid
# A process that has a context, and no executor.
sh -c 'exec 9<>/dev/hetmem; echo >/tmp/open; sleep infinity 9>&- & wait' &
pid=$!
while [ ! -s /tmp/open ]; do sleep 0.1; done
try no-executor hetmem pullback --pid $pid
try bench hetmem bench pullback --size 2 --json
try bench-none hetmem bench pullback --device 9
try end true
EOS
}

judge_hint()
{
	gives prefetch 0 'prefetch' '^process [0-9]+: 2048 pages \(8 MiB\) moved to device 0, in 8 MiB of addresses in 1 range$'
	gives there 0 'the memory is there' '^on the device$'
	gives again 0 'again: nothing to do' ': 0 pages \(0 B\) moved to device 0'
	gives other 0 'prefetch to another device' ': 2048 pages .* moved to device 1'
	gives pullback 0 'pullback of everything' ': [0-9]+ pages \(.* MiB\) moved to host, .* ranges$'
	part back
	[ "$status" = 0 ] && [ ! -s "$tmp/out" ]
	judge 'nothing of it is on a device any more'
	gives all 0 'prefetch of everything' ': [0-9]+ pages \([0-9.]+ MiB\) moved to device 0, .* ranges'
	gives there-again 0 'the memory is there' '^on the device$'
	gives to-node 0 'pullback to a node' ': 2048 pages .* moved to host node 1,'
	gives on-node 0 'the memory is there' 'host node 1 +2048'
	gives asker 0 "the guide's asker" '^1 pages moved$'

	# failing PART PATTERN NAME: one line.
	failing()
	{
		gives "$1" 1 "$3" "$2"
		[ "$(wc -l <"$tmp/out")" -eq 1 ]
		judge "$3: one line"
	}

	failing no-node 'the process answers: Invalid argument' 'a node that is not there'
	failing no-device 'carries out no hints for this location' 'a device that is not there'
	failing foreign 'carries out no hints for this location' 'a GPU of another driver'
	failing uuid 'carries out no hints for this location' 'a GPU by its UUID'
	failing stranger 'not permitted to take a file of process [0-9]+' 'another user'
	failing stopped 'no answer in time' 'a process that does not answer'
	failing dies 'it ended' 'a process that dies meanwhile'
	failing gone 'there is no process' 'a process that has gone'
	failing without 'has no /dev/hetmem open: it must carry out hints' 'a process without hetmem'
	gives unasked 0 'pullback of a process without hetmem' \
		'^process [0-9]+, read page by page: 0 of 0 pages \(0 B\) came back'
	gives read 0 'pullback by reading' \
		': 512 of 512 pages \(2 MiB\) came back, about 0 from swap and 512 from devices$'
	gives read-again 0 'again: nothing is away' ': 0 of 0 pages'
	failing read-node 'has no /dev/hetmem open: it must carry out hints' 'a node needs an executor'
	failing read-stranger 'not permitted' 'another user may not read it'
	gives read-contents 0 'the contents are right'
	failing read-gone 'there is no process' 'the process is gone'
	failing no-executor 'carries out no hints' 'a process without an executor'

	gives bench 0 'hetmem bench pullback' '"unit": "ns"' '"name": "all.faults"' \
		'"name": "none.populate"' '"name": "huge", "why": "the device has them as pages of 4 KiB'
	[ "$(grep -c '"ratio"' "$tmp/out")" -eq 8 ] && [ "$(grep -c '"why"' "$tmp/out")" -eq 1 ]
	judge 'hetmem bench pullback: all that can be measured is'
	gives bench-none 2 'hetmem bench pullback: a device that is not there' 'no device 9, only 2'
}
