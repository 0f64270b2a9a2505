#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem run: programs of Debian, and random calls in more ways than in tools-run.t.
. "$(dirname "$0")/run.sh"

need xz:xz-utils sqlite3:sqlite3 redis-server:redis-server redis-benchmark:redis-tools \
	/usr/lib/python3/dist-packages/numpy:python3-numpy valgrind:valgrind

skips=allowed
program 'random, 64K' with --min 64K $programs/random
program 'random, interleaved' with --policy interleave $programs/random
for spec in system 'pool(host)' 'stats(pool(system))'; do
	program "random, $spec" with --spec "$spec" $programs/random
done
jemalloc=$(ls /usr/lib/*/libjemalloc.so.2)
LD_PRELOAD=$jemalloc program 'random, jemalloc' with $programs/random

# Real programs: the same output, and blocks.
perl -e 'srand(7); printf("%09d\n", rand(1e9)) for 1 .. 1500000' >"$tmp/numbers"
sort -n "$tmp/numbers" >"$tmp/sorted"
check 'sort' sh -c "'$hetmem' run --report '$report' sort -n --parallel=2 -S 100M '$tmp/numbers' | cmp - '$tmp/sorted'"
also 'has blocks' test "$(blocks sort)" -gt 0
check 'xz -T2' sh -c "'$hetmem' run --report '$report' xz -T2 -1 -c '$tmp/numbers' >'$tmp/numbers.xz' && xz -dc '$tmp/numbers.xz' | cmp - '$tmp/numbers'"
also 'has blocks' test "$(blocks xz)" -gt 2
check 'xz -d' sh -c "'$hetmem' run --report '$report' xz -T2 -dc '$tmp/numbers.xz' | cmp - '$tmp/numbers'"
check 'python3 with numpy' with /usr/bin/python3 -c '
import numpy
a = numpy.arange(1 << 22)
b = numpy.random.default_rng(1).permutation(a)
assert (numpy.sort(b) == a).all() and b[b.argsort()].sum() == a.sum()
c = numpy.zeros(1 << 22)
assert not c.any()
assert numpy.resize(b, 1 << 23)[1 << 22] == b[0]'
also 'has blocks' test "$(blocks python3)" -gt 3
check 'python3, processes' with --min 1M /usr/bin/python3 -c '
import multiprocessing
def work(n): return sum(bytearray(bytes([n]) * (4 << 20))[:: 1 << 12])
with multiprocessing.Pool(2) as pool: assert pool.map(work, range(8)) == [n * 1024 for n in range(8)]'
query='pragma cache_size=-200000; create table t(a, b);
with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000)
insert into t select x, (x * 7919) % 100003 from c; create index i on t(b);
select count(*), sum(a), max(b) from t; select sum(b) from (select b from t order by b desc limit 1000);'
check 'sqlite3' diff <("$hetmem" run --report "$report" sqlite3 :memory: "$query") <(sqlite3 :memory: "$query")
also 'has blocks' test "$(blocks sqlite3)" -gt 0
check 'gcc' sh -c "echo '#include <stdio.h>' >'$tmp/hello.c'; echo 'int main(void) { return !puts(\"hello\"); }' >>'$tmp/hello.c';
	'$hetmem' run --min 64K --report '$report' gcc -O2 -g -o '$tmp/hello' '$tmp/hello.c' && '$tmp/hello' | grep -qx hello"
also 'and what it starts' grep -q command=cc1 "$report"
# What small allocations cost, in instructions.
instructions() { valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 >/dev/null | sed -n 's/.*Collected : //p'; }
small=${query//100000/5000}
plain=$(instructions sqlite3 :memory: "$small")
preloaded=$(LD_PRELOAD=$top/build/libhetmem-preload.so instructions sqlite3 :memory: "$small")
also "no more than 1% more instructions ($plain, $preloaded)" test "${plain:-0}" -gt 10000000 \
	-a "${preloaded:-0}" -gt 10000000 -a "$((${preloaded:-0} * 100))" -lt "$((${plain:-0} * 101))"
mkdir "$tmp/redis"
check 'redis under its own benchmark' with selftests/run/redis "$tmp/redis"
also 'has blocks' test "$(blocks redis-server)" -gt 0
done_testing
