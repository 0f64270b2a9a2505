#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem status: processes that publish, and hostile ones; text, JSON and the format of
# Prometheus. Without a module: vm/live.sh has one.
. "$(dirname "$0")/tools-lib.sh"

export HETMEM_DRIVER=soft

cat >"$tmp/publisher.c" <<'EOS'
#include <hetmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int add(struct hetmem_resource *pool, const char *tag, size_t bytes)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = HETMEM_STREAM_HOST, .tag = tag,
	};
	void *p;

	return hetmem_alloc_with(pool, &params, &p);
}

/* Of two tags one sleeps with its contents. */
static int sleeps(struct hetmem_resource *pool)
{
	return add(pool, "weights", 6 << 20) || add(pool, "cache", 10 << 20) ||
		hetmem_sleep(pool, "weights", HETMEM_SLEEP_KEEP) ||
		hetmem_sleep(pool, "cache", HETMEM_SLEEP_DISCARD);
}

/*
 * publisher NAME SPEC...: 3 MiB of each, then a pair for each line of stdin. The first pool of
 * one that is called sleeper has tags.
 */
int main(int argc, char **argv)
{
	struct hetmem_resource *pools[64];
	struct hetmem *hm;
	char line[16];
	void *p;
	int i;

	prctl(PR_SET_NAME, argv[1]);
	if (hetmem_open(&hm, NULL))
		return 1;
	for (i = 2; i < argc; i++)
		if (hetmem_resource_create(hm, argv[i], &pools[i]) ||
		    hetmem_alloc(pools[i], 3 << 20, 0, HETMEM_STREAM_HOST, &p)) {
			fprintf(stderr, "%s\n", hetmem_last_error());
			return 1;
		}
	if (!strcmp(argv[1], "sleeper") && sleeps(pools[2]))
		return 1;
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		if (hetmem_alloc(pools[2], 4 << 20, 0, HETMEM_STREAM_HOST, &p) ||
		    hetmem_free(pools[2], p, 0, HETMEM_STREAM_HOST))
			return 1;
	pause();
	return 0;
}
EOS
check 'a program that publishes' gcc -O1 -Iinclude -Iinclude/uapi -o "$tmp/publisher" "$tmp/publisher.c" \
	-Lbuild -lhetmem -Wl,-rpath,"$PWD/build"

# start NAME COMMAND...: until it says so; $pid.
start()
{
	local log=$tmp/log.$1

	shift
	: >"$log"
	"$@" >"$log" 2>"$log.err" </dev/null &
	pid=$!
	children+=("$pid")
	wait_for grep -q ready "$log"
}

start good "$tmp/publisher" 'good one' 'pool(device,max=64M,tag=model)' 'pool(host)'
good=$pid
run status --interval 0
[ $status -eq 0 ] && grep -Eq "^ *$good .* good one " "$tmp/out" &&
	grep -Eq "^ *$good +1 device:0 +model +3 MiB .* 64 MiB +1 " "$tmp/out" &&
	grep -Eq "^ *$good +2 host +- +3 MiB " "$tmp/out"
judge 'a process and its pools'
grep -q 'hetmem.ko is not loaded' "$tmp/out" || [ -e /sys/class/misc/hetmem ]
judge 'it says that there is no module'
run status "$good" --interval 0
[ $status -eq 0 ] && grep -q 'good one' "$tmp/out"
judge 'one by its PID'
start sleeper "$tmp/publisher" sleeper 'pool(vmm,handle=2M)'
sleeper=$pid
run status "$sleeper" --interval 0
[ $status -eq 0 ] && grep -Eq "^ *PID .* PARKED *$" "$tmp/out" &&
	grep -Eq "^ *$sleeper +1 vmm:0 +- +3 MiB +4 MiB .* 0 B *$" "$tmp/out" &&
	grep -Eq "^ *$sleeper +2 vmm:0 +weights +6 MiB +0 B .* 6 MiB *$" "$tmp/out" &&
	grep -Eq "^ *$sleeper +3 vmm:0 +cache +10 MiB +0 B .* 0 B *$" "$tmp/out"
judge 'what sleeps, by its tag'
run status --json --interval 0 "$sleeper"
ask 'JSON: what sleeps' '$all->{processes}[0]{pools}[1]{tag} eq "weights" &&
	$all->{processes}[0]{pools}[1]{parked_bytes} == 6 << 20 &&
	$all->{processes}[0]{pools}[2]{parked_bytes} == 0'
kill "$sleeper"

run status --json --interval 0 "$good"
ask 'JSON' '@{$all->{processes}} == 1 && $all->{processes}[0]{name} eq "good one" &&
	$all->{processes}[0]{pid} == '"$good"' && $all->{processes}[0]{memory_complete} &&
	$all->{processes}[0]{memory_source} eq "pagemap" &&
	!defined $all->{processes}[0]{moves_source}'
ask 'JSON: pools' '@{$all->{processes}[0]{pools}} == 2 &&
	$all->{processes}[0]{pools}[0]{requested_bytes} == 3 << 20 &&
	$all->{processes}[0]{pools}[0]{limit_bytes} == 64 << 20 &&
	!defined $all->{processes}[0]{pools}[1]{limit_bytes} &&
	$all->{processes}[0]{pools}[1]{device} == -1 &&
	$all->{processes}[0]{pools}[0]{live_blocks} == 1'

# What the text exposition format allows, and no more.
cat >"$tmp/format.py" <<'EOS'
import re, sys
text = sys.stdin.read()
name = r'[a-zA-Z_:][a-zA-Z0-9_:]*'
label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
assert text.endswith('\n')
seen, typed, current, lines = set(), {}, None, set()
for line in text.splitlines():
    m = re.fullmatch(r'# HELP (%s) (.+)' % name, line)
    if m:
        assert m[1] not in seen, m[1]
        seen.add(m[1])
        current = m[1]
        continue
    m = re.fullmatch(r'# TYPE (%s) (counter|gauge)' % name, line)
    if m:
        assert m[1] == current, line
        typed[m[1]] = m[2]
        assert (m[2] == 'counter') == m[1].endswith('_total'), line
        continue
    m = re.fullmatch(r'(%s)(\{(?:%s(?:,%s)*)?\})? (-?[0-9.e+]+)' % (name, label, label), line)
    assert m and m[1] == current and current in typed, line
    key = m[1] + (m[2] or '')
    assert key not in lines, key
    lines.add(key)
    float(m[3])
    for want in sys.argv[1:]:
        if want and line == want:
            sys.argv.remove(want)
assert len(sys.argv) == 1, sys.argv[1:]
EOS

# exposes NAME LINE...
exposes()
{
	local name=$1

	shift
	run status --prometheus
	[ $status -eq 0 ] && python3 "$tmp/format.py" "$@" <"$tmp/out" 2>"$tmp/err"
	judge "$name"
}

# The dashboard asks for metrics and labels that exist, for rates of counters alone, and shows
# each figure of a pool.
cat >"$tmp/dashboard.py" <<'EOS'
import json, re, sys

source = open('tools/live/prometheus.c').read()
kinds = {}
for name, kind in re.findall(r'(?:begin|print_total|POOLS|TRACKED)\("(\w+)",\s*"(\w+)"', source):
    kinds['hetmem_' + name] = kind
for name in re.findall(r'(?:DEVICES|GPUS)\("(\w+)"', source):
    kinds['hetmem_' + name] = 'gauge'
assert len(kinds) > 30, kinds
labels = set(re.findall(r'[{,](\w+)=\\"', source)) | set(re.findall(r'print_label\("(\w+)"', source))
dashboard = json.load(open(sys.argv[1]))
assert len({panel['id'] for panel in dashboard['panels']}) == len(dashboard['panels']) > 8
used = set()
for panel in dashboard['panels']:
    for target in panel['targets']:
        names = re.findall(r'hetmem_\w+', target['expr'])
        assert names, target
        for name in names:
            assert name in kinds, name
            rate = re.search(r'(rate|increase)\(' + name + r'\{', target['expr'])
            assert bool(rate) == (kinds[name] == 'counter'), target
        used.update(names)
        for label in re.findall(r'\{\{(\w+)\}\}', target['legendFormat']):
            assert label in labels, label
for variable in dashboard['templating']['list']:
    for name in re.findall(r'hetmem_\w+', str(variable['query'])):
        assert name in kinds, name
left = {name for name in kinds if re.match('hetmem_(pool|gpu|process_gpu)_', name)} - used
assert not left, left
EOS
check 'the dashboard for Grafana asks for what exists' python3 "$tmp/dashboard.py" tools/live/grafana.json
sed 's/hetmem_pool_live_blocks/hetmem_pool_life_blocks/' tools/live/grafana.json >"$tmp/wrong.json"
check 'and a wrong name is seen' sh -c "! python3 '$tmp/dashboard.py' '$tmp/wrong.json'"

labels="pid=\"$good\",uid=\"$(id -u)\",name=\"good one\""
exposes 'the format of Prometheus' \
	"hetmem_pool_requested_bytes{$labels,pool=\"1\",device=\"0\",provider=\"device\",tag=\"model\"} 3145728" \
	"hetmem_pool_limit_bytes{$labels,pool=\"1\",device=\"0\",provider=\"device\",tag=\"model\"} 67108864"

# A name that would break lines, labels and terminals.
start evil "$tmp/publisher" $'e"\\\n\033[2J\xff' 'pool(host)'
exposes 'a name with quotes, backslashes and control characters'
grep -Fq 'name="e\"\\\\x0a\\x1b[2J\\xff"' "$tmp/out"
judge 'is escaped twice there'
run status --interval 0
[ $status -eq 0 ] && grep -Fq 'e"\\x0a\x1b[2J\xff' "$tmp/out" && ! LC_ALL=C grep -q '[^[:print:]]' "$tmp/out"
judge 'and once on a terminal'
run status --json --interval 0
ask 'and in JSON' 'grep { $_->{name} eq "e\"\\\\x0a\\x1b[2J\\xff" } @{$all->{processes}}'

start off env HETMEM_PUBLISH=0 "$tmp/publisher" silent 'pool(host)'
silent=$pid
run status --interval 0
[ $status -eq 0 ] && ! grep -q silent "$tmp/out"
judge 'HETMEM_PUBLISH=0 publishes nothing'
run status --interval 0 "$silent"
[ $status -eq 0 ] && grep -Eq "silent .*host " "$tmp/out"
judge 'where its memory is can be asked all the same'

# Publishers that lie. Each is a name, a size, seals, and contents.
cat >"$tmp/liar.py" <<'EOS'
import fcntl, os, signal, struct, sys, time
how = sys.argv[1]
SIZE, NAME = 16384, 'hetmem-statistics'
head = struct.pack('<IIII', 0x74736d68, 1, os.getpid(), 7) + bytes(240)
pool = struct.pack('<QiI', 1, 0, 0) + b'A' * 32 + b'\x1b[31m"\\' + b'B' * 25 + b'\xff' * 176
page = head + pool * 63
if how == 'fifo':
    os.mkfifo('/memfd:' + NAME)
    fd = os.open('/memfd:' + NAME, os.O_RDWR)
    os.unlink('/memfd:' + NAME)
elif how == 'file':
    fd = os.open('/memfd:' + NAME, os.O_RDWR | os.O_CREAT)
    os.write(fd, page)
    os.unlink('/memfd:' + NAME)
else:
    if how == 'stranger':
        os.seteuid(65534)
    fd = os.memfd_create(NAME, os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if how == 'huge' else 0))
    size = {'short': 100, 'long': SIZE + 1, 'empty': 0, 'enormous': 1 << 50, 'huge': 2 << 20}
    os.ftruncate(fd, size.get(how, SIZE))
    if how in ('garbage', 'random'):
        os.pwrite(fd, os.urandom(SIZE), 0)
    elif how == 'version':
        os.pwrite(fd, head[:4] + b'\x09' + head[5:] + pool * 63, 0)
    elif how == 'other':
        os.pwrite(fd, page[:8] + struct.pack('<I', 1) + page[12:], 0)
    elif how in ('unsealed', 'half', 'stranger', 'liar', 'deep', 'jumps', 'hides'):
        os.pwrite(fd, page, 0)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    if how == 'half':
        seals = fcntl.F_SEAL_SHRINK
    if how != 'unsealed':
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
if how == 'stranger':
    os.seteuid(0)
if how == 'deep':
    for high in range(3, 700):
        os.dup2(0, high) if high != fd else None
    os.dup2(fd, 800)
    os.dup2(0, fd)
if how == 'hides':
    os.setuid(65534)
print('ready', flush=True)
if how == 'jumps':
    while True:
        for value in (b'\0' * 176, b'\xff' * 176):
            for i in range(63):
                os.pwrite(fd, value, 256 + 256 * i + 80)
            time.sleep(0.01)  # time: between two states that a look can catch
if how == 'truncates':
    os.close(fd)
    while True:
        fd = os.memfd_create(NAME, os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, SIZE)
        os.pwrite(fd, page, 0)
        os.ftruncate(fd, 0)
        os.close(fd)
signal.pause()
EOS

liars='short long empty enormous garbage random version other unsealed half truncates'
python3 -c 'import os; os.close(os.memfd_create("x", os.MFD_HUGETLB))' 2>/dev/null && liars="$liars huge"
[ "$(id -u)" -ne 0 ] || [ ! -w / ] || liars="$liars fifo file stranger"
for how in $liars; do
	start "$how" python3 "$tmp/liar.py" "$how"
	run status --interval 0
	[ $status -eq 0 ] && grep -q 'good one' "$tmp/out" && ! grep -Eq "^ *$pid " "$tmp/out"
	judge "a publisher that is $how is not believed"
	kill "$pid"
done

start liar python3 "$tmp/liar.py" liar
run status --interval 0
[ $status -eq 0 ] && [ "$(grep -Ec "^ *$pid +1 A" "$tmp/out")" -eq 1 ] &&
	! LC_ALL=C grep -q '[^[:print:]]' "$tmp/out"
judge 'the figures of a liar are its own, printable, and each pool comes once'
exposes 'and break no format'
run status --json --interval 0
ask 'nor JSON' '@{$all->{processes}} >= 3'
kill "$pid"

start deep python3 "$tmp/liar.py" deep
run status --interval 0
[ $status -eq 0 ] && grep -Eq "^ *$pid +1 A" "$tmp/out"
judge 'a file behind hundreds of descriptors is found'
run status --json --interval 0 "$pid" "$pid"
ask 'a PID that is given twice counts once' '@{$all->{processes}} == 1 &&
	$all->{processes}[0]{pools_unlisted} == 7'
kill "$pid"

# Of two looks one can see 0 and the other 2^64 - 1.
start jumps python3 "$tmp/liar.py" jumps
bad=0
for i in {1..20}; do
	run status --json --interval 0 "$pid"
	[ $status -eq 0 ] && ! grep -q '_per_second": *-' "$tmp/out" || bad=1
done
[ $bad -eq 0 ]
judge 'no rate of figures that jump is negative'
kill "$pid"

cat >"$tmp/twice.py" <<'EOS'
import fcntl, os, signal, struct
fd = os.memfd_create('hetmem-statistics', os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 16384)
os.pwrite(fd, struct.pack('<IIII', 0x74736d68, 1, os.getpid(), 0) + bytes(240) +
          struct.pack('<Q', 1) + bytes(248), 0)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 7)
os.dup(fd)
print('ready', flush=True)
signal.pause()
EOS
start twice python3 "$tmp/twice.py"
run status --json --interval 0 "$pid"
if grep -q '^ino:' /proc/self/fdinfo/0; then
	ask 'a file behind two descriptors counts once' '@{$all->{processes}[0]{pools}} == 1'
fi
kill "$pid"

# A child that was forked past the handlers has the file of its parent.
cat >"$tmp/clone.py" <<'EOS'
import ctypes, fcntl, os, signal, struct
fd = os.memfd_create('hetmem-statistics', os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 16384)
os.pwrite(fd, struct.pack('<IIII', 0x74736d68, 1, os.getpid(), 0) + bytes(240), 0)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 7)
if os.fork() == 0:
    print('child', os.getpid(), 'ready', flush=True)
signal.pause()
EOS
start clone python3 "$tmp/clone.py"
child=$(sed -n 's/child \([0-9]*\).*/\1/p' "$tmp/log.clone")
children+=("$child")
run status --interval 0
[ $status -eq 0 ] && ! grep -Eq "^ *$child " "$tmp/out"
judge "a file of the parent's is not taken for the child's"

if [ "$(id -u)" -eq 0 ]; then
	start hides python3 "$tmp/liar.py" hides
	exposes 'a process that is not dumpable'
	grep -q "{pid=\"$pid\",uid=\"65534\"" "$tmp/out" && ! grep -q "{pid=\"$pid\",uid=\"0\"" "$tmp/out"
	judge 'is its own user'"'"'s, not root'"'"'s'
	kill "$pid"
	if unshare -m true 2>/dev/null; then
		unshare -m sh -c 'umount -l /proc && exec "$0" status' "$hetmem" >"$tmp/out" 2>"$tmp/err"
		status=$?
		one_line 1 "not mounted; type 'mount -t proc"
		judge 'without /proc it fails'
	fi
fi
# The descriptors of the listing, and none for what is in it.
left_out()
{
	few_files 4 "$hetmem" status --interval 0 </dev/null >"$tmp/out" 2>"$tmp/err"
	status=$?
	[ $status -eq 0 ] && grep -Eq '^[0-9]+ processes were left out' "$tmp/out"
}
left_out
judge 'without descriptors it says that processes were left out'
left_out 3</dev/null 4</dev/null
judge 'whatever the caller has open'

if [ "$(id -u)" -eq 0 ] && command -v runuser >/dev/null; then
	runuser -u nobody -- "$hetmem" status --interval 0 >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	[ $status -eq 0 ] && ! grep -q 'good one' "$tmp/out" &&
		grep -q "sudo hetmem status" "$tmp/out"
	judge "another user sees nothing of it, and is told"
	runuser -u nobody -- "$hetmem" status --interval 0 "$good" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	[ $status -eq 1 ] && grep -q 'not known: not permitted' "$tmp/out" &&
		grep -q "^hetmem status: not permitted to look at process $good" "$tmp/err"
	judge 'nor where its memory is, and that is an error'
	runuser -u nobody -- "$hetmem" status --json --interval 0 "$good" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=1
	ask 'in JSON null is what is not known' '!defined $all->{processes}[0]{pools} &&
		!defined $all->{processes}[0]{tracked}'
fi

# Device memory of all processes, by a stand-in for NVML.
export STAND_IN_NVML=$tmp/nvml.txt
# stand_in NAME OPTION...
stand_in()
{
	local name=$1

	shift
	mkdir -p "$tmp/$name"
	check "a stand-in for NVML ($name)" gcc -shared -fPIC -O1 -Wall -Wextra "$@" \
		-o "$tmp/$name/libnvidia-ml.so.1" selftests/t/nvml.c
}
stand_in nvml
stand_in old-nvml -DOLD
stand_in too-old-nvml -DTOO_OLD
# nvml LIBRARY ARGS...: runs hetmem with it.
nvml()
{
	local library=$1

	shift
	LD_LIBRARY_PATH=$tmp/$library "$hetmem" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
}
sleep infinity &
plain=$!
children+=("$plain")
name=$(cat "/proc/$plain/comm")
cat >"$STAND_IN_NVML" <<END
gpu 85899345920 3221225472 NVIDIA H100 80GB HBM3
gpu 8589934592 1073741824 e"\\$(printf '\033')[2J
gpu lost
use compute 0 $good 1073741824
use graphics 0 $good 2147483648
use mps 1 $good 104857600
use compute 0 $plain 536870912 1
use compute 0 $plain 1073741824 2
use compute 1 $plain -1
use compute 1 4194305 1048576
END
nvml nvml status --interval 0
[ $status -eq 0 ] && [ ! -s "$tmp/err" ] && grep -q '^GPU 0 (NVIDIA H100 80GB HBM3): 3 GiB of 80 GiB used$' "$tmp/out" &&
	grep -Fq 'GPU 1 (e"\\x1b[2J): 1 GiB of 8 GiB used' "$tmp/out" && grep -q '^GPU 2 (unknown): its memory is not known$' "$tmp/out" &&
	! LC_ALL=C grep -q '[^[:print:]]' "$tmp/out"
judge 'GPUs, also one that is lost'
grep -Eq "^ *$good .* good one .* 0: 2 GiB, 1: 100 MiB$" "$tmp/out" && grep -Eq "^ *$good +1 device:0 model" "$tmp/out"
judge 'device memory of a process with pools: the largest figure of the lists'
grep -Eq "^ *$plain .* $name .* host [0-9.]+ [KM]iB +0: 1.5 GiB, 1: not known$" "$tmp/out"
judge 'and of one without: the sum of the parts of a GPU'
grep -q '^1 processes with device memory are not in this PID namespace$' "$tmp/out" && ! grep -Eq '^ *4194305 ' "$tmp/out"
judge 'a PID that is not here is counted'
nvml nvml status --json --interval 0
ask 'JSON: GPUs' '@{$all->{gpus}} == 3 && $all->{gpus}[0]{used_bytes} == 3 << 30 && $all->{gpus}[0]{name} =~ /H100/ &&
	!defined $all->{gpus}[2]{total_bytes} && !defined $all->{gpus_note} && $all->{elsewhere} == 1'
ask 'JSON: what each process holds' 'my %p = map { $_->{pid} => $_ } @{$all->{processes}};
	$p{'"$good"'}{uses_hetmem} && $p{'"$good"'}{gpu_memory}[0]{bytes} == 2 << 30 && @{$p{'"$good"'}{pools}} == 2 &&
	!$p{'"$plain"'}{uses_hetmem} && $p{'"$plain"'}{memory_source} eq "rss" && !@{$p{'"$plain"'}{pools}} &&
	$p{'"$plain"'}{gpu_memory}[0]{bytes} == 3 << 29 && !defined $p{'"$plain"'}{gpu_memory}[1]{bytes}'
export LD_LIBRARY_PATH=$tmp/nvml
exposes 'the format of Prometheus, with GPUs' \
	"hetmem_process_gpu_bytes{pid=\"$plain\",uid=\"$(id -u)\",name=\"$name\",gpu=\"0\"} 1610612736" \
	'hetmem_gpu_used_bytes{gpu="0",name="NVIDIA H100 80GB HBM3"} 3221225472'
! grep -q "hetmem_process_gpu_bytes{pid=\"$plain\".*gpu=\"1\"" "$tmp/out" &&
	[ "$(sed -n 's/^hetmem_processes //p' "$tmp/out")" -lt "$(grep -c '^hetmem_process_residency_complete{' "$tmp/out")" ]
judge 'without what is not known; one without hetmem does not count as a user'
unset LD_LIBRARY_PATH
nvml nvml status --interval 0 "$plain"
[ $status -eq 0 ] && grep -Eq "^ *$plain .* 0: 1.5 GiB, 1: not known$" "$tmp/out" && ! grep -q 'good one' "$tmp/out"
judge 'one by its PID'
nvml old-nvml status --interval 0
[ $status -eq 0 ] && grep -Eq "^ *$good .* 0: 1 GiB$" "$tmp/out"
judge 'an older NVML has fewer lists'
nvml too-old-nvml status --interval 0
[ $status -eq 0 ] && grep -q '^device memory of processes is not known: libnvidia-ml.so.1 is too old$' "$tmp/out" &&
	grep -q 'good one' "$tmp/out" && ! grep -q 'GPU' "$tmp/out"
judge 'one that lacks calls is not used'
cp "$STAND_IN_NVML" "$tmp/all.txt"
{ cat "$tmp/all.txt"; for i in $(seq 300); do echo "use compute 0 $((5000000 + i)) 1"; done; } >"$STAND_IN_NVML"
nvml nvml status --interval 0
[ $status -eq 0 ] && grep -q '^301 processes with device memory are not in' "$tmp/out" && grep -Eq "^ *$plain .*0: 1.5 GiB" "$tmp/out"
judge 'hundreds of processes'
echo 'init 9' >"$STAND_IN_NVML"
nvml nvml status --json --interval 0
ask 'no driver: null, and the reason' '!defined $all->{gpus} && $all->{gpus_note} eq "nvmlInit: error 9" &&
	!grep { defined $_->{gpu_memory} } @{$all->{processes}}'
{ echo hang; cat "$tmp/all.txt"; } >"$STAND_IN_NVML"
nvml nvml status --interval 0
[ $status -eq 0 ] && grep -q '^device memory of processes is not known: NVML does not answer$' "$tmp/out" && grep -q 'good one' "$tmp/out"
judge 'a driver that hangs does not hold up the rest'
cp "$tmp/all.txt" "$STAND_IN_NVML"

wrong 'both formats' 'do not go together' status --json --prometheus
wrong 'no PID' "'x' is not a PID" status x
wrong 'PID 0' "'0' is not a PID" status 0
wrong 'no time' "'-1' is not a time from 0 to 3600 seconds" status --interval -1
wrong 'rates of counters' 'takes no --interval' status --prometheus --interval 1
wrong 'an unknown option' "unknown option '--frobnicate'" status --frobnicate
# shellcheck disable=SC2046
wrong 'too many PIDs' 'more than 1024 PIDs' status $(seq 1 1025)
refused 'a PID that is not there' 'there is no process 4194305' status 4194305
run status --interval 0 --help
[ $status -eq 0 ] && grep -q '^Usage: hetmem status' "$tmp/out"
judge 'help'
"$hetmem" status --interval 0 >/dev/full 2>"$tmp/err"
status=$?
: >"$tmp/out"
one_line 1 'cannot write to standard output'
judge 'a full disk is an error'
set +o pipefail
for form in --json --prometheus --interval=0; do
	("$hetmem" status $form; echo $? >"$tmp/status") 2>"$tmp/err" | head -c 1 >/dev/null
	[ ! -s "$tmp/err" ] || grep -q 'standard output' "$tmp/err"
	judge "a closed pipe ends it quietly ($form)"
done
LANG=C NO_COLOR=1 TERM=dumb run status --interval 0
[ $status -eq 0 ] && ! grep -q $'\033' "$tmp/out"
judge 'no colours'

done_testing
