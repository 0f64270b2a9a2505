#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem run: programs that know nothing of it, on this machine, without the module.
# tools-run-more.t has programs of Debian, and random calls in more ways.
. "$(dirname "$0")/run.sh"

need setpriv:util-linux

# What is wrong.
wrong 'no command' 'which command' run
wrong 'only options' 'which command' run --min 1M --
for size in 0 1 63K 2T x '' -1 1MX 99999999999999999999; do
	wrong "--min '$size'" "is not a size from 64K to 1T" run "--min=$size" true
done
for policy in '' x local= local=0 prefer bind prefer= bind= 'prefer=x' 'bind=0-' 'bind=,' 'bind=1-0' \
	      'bind=0,' 'interleave=' 'prefer=0-1' bind=9999 bind=99999999999999999999; do
	wrong "--policy '$policy'" "'$policy'.*(is not local|no list of nodes|one node only|may not use)" \
		run --policy "$policy" true
done
wrong '--policy of a node that is not there' "may not use node 1000, only 0" run --policy bind=1000 true
# A container's seccomp profile refuses policies to programs without CAP_SYS_NICE.
cat >"$tmp/refuse.c" <<'EOS'
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_mempolicy, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 126;
	execvp(argv[1], argv + 1);
	return 127;
}
EOS
check 'a program that refuses policies' gcc -o "$tmp/refuse" "$tmp/refuse.c"
for policy in local interleave interleave=0 bind=0 prefer=0; do
	exits 2 "--policy $policy where policies are refused" "$tmp/refuse" "$hetmem" run --policy $policy true
	also 'one line' test "$(grep -c '' "$tmp/err")" -eq 1
	also 'with what to do' grep -q "'$policy' is refused here: get_mempolicy: .*leave '--policy' out" "$tmp/err"
done
check 'without it the program runs' "$tmp/refuse" "$hetmem" run --min 1M true
wrong '--spec and --policy' "'--policy' does not apply: system\(node=N\)" run --spec system --policy local true
wrong '--spec that is wrong' 'character 1' run --spec 'nothing()' true
wrong '--spec that is empty' 'is empty' run --spec '' true
HETMEM_DRIVER=soft wrong '--spec of memory that the CPU cannot use' "CPU cannot use.*take system" run --spec device-pool true
[ -e /dev/hetmem ] || wrong '--agent without the module' "hetmem.*leave '--agent' out" run --agent true
wrong '--report of a directory' "cannot append to '/': .*--report" run --report / true
wrong '--report in a directory that is not there' 'cannot append' run --report /none/x true
wrong '--report with a newline' 'has a newline' run --report "$tmp/a"$'\n'b true
wrong '--spec too long' 'longer than [0-9]+ characters' run --spec "stats(system)$(printf '%9000s' '')" true
wrong 'a static program' 'is linked statically' run /bin/busybox true
printf '\x7fELF\x01\x01\x01%200s' '' >"$tmp/small"
chmod +x "$tmp/small"
wrong 'a 32-bit program' 'is a 32-bit program' run "$tmp/small"
run "$tmp/none"
run run "$tmp/none"
one_line 127 "there is no file '.*none'; give the path"
judge 'no such command'
run run nosuchcommand -x
one_line 127 "there is no command 'nosuchcommand' in PATH; give its path"
judge 'no such command in PATH'
run run ''
one_line 127 'there is no command'
judge 'an empty command'
run run "$tmp"
one_line 126 "cannot run '.*': Permission denied"
judge 'a directory'
run run /etc/passwd
one_line 126 "cannot run '/etc/passwd': Permission denied"
judge 'a file that nobody may execute'
# Files that are cut: looked at, and refused by the kernel, since nobody may execute them.
good=0
for file in /bin/true build/hetmem build/libhetmem-preload.so; do
	for length in 0 20 64 100 700 5000 9000 20000; do
		head -c $length $file >"$tmp/cut"
		run run "$tmp/cut"
		one_line 126 'Permission denied' || one_line 2 'is linked statically' || good=1
	done
done
[ $good -eq 0 ]
judge 'program files that are cut'

# The library itself.
mkdir "$tmp/alone"
cp "$hetmem" "$tmp/alone/hetmem"
"$tmp/alone/hetmem" run true >"$tmp/out" 2>"$tmp/err"
status=$?
one_line 2 'no libhetmem-preload.so near .*HETMEM_PRELOAD'
judge 'no library'
HETMEM_PRELOAD=$tmp/none wrong 'a library that is not there' 'HETMEM_PRELOAD' run true
check 'a library that is named' env HETMEM_PRELOAD="$top/build/libhetmem-preload.so" "$tmp/alone/hetmem" run true
mkdir "$tmp/a b"
cp "$hetmem" build/libhetmem-preload.so "$tmp/a b"
"$tmp/a b/hetmem" run true >"$tmp/out" 2>"$tmp/err"
status=$?
one_line 2 'the loader cannot read the path'
judge 'a blank in the path'
for place in lib lib64 lib/any-multiarch; do
	mkdir -p "$tmp/root/bin" "$tmp/root/$place/hetmem"
	cp "$hetmem" "$tmp/root/bin"
	cp build/libhetmem-preload.so "$tmp/root/$place/hetmem"
	cp build/libhetmem.so "$tmp/root/$place/libhetmem.so.0"
	check "found in $place" "$tmp/root/bin/hetmem" run --spec system --report "$report" true
	rm -r "$tmp/root"
done
empty 'needs libc only' sh -c \
	'readelf -d build/libhetmem-preload.so | grep NEEDED | grep -v -e "\[libc\.so" -e "\[ld-linux"'
empty 'has no thread-local storage' sh -c 'readelf -lW build/libhetmem-preload.so | grep -w TLS'
check 'exports what its map names' diff <(nm -D --defined-only build/libhetmem-preload.so | awk '{ print $3 }' | sort) \
	<(sed -n 's/^\t\t\([a-z0-9_]*\);$/\1/p' lib/preload/libhetmem-preload.map | sort)
for settings in x min=1 min= min=99999999999999999999 policy=99 nodes=0-x nodes=2-1 frob=1 spec=host; do
	LD_PRELOAD="$top/build/libhetmem-preload.so" HETMEM_RUN="$settings" /bin/true 2>"$tmp/err"
	status=$?
	: >"$tmp/out"
	one_line 0 'this process runs without it: wrong in HETMEM_RUN'
	judge "HETMEM_RUN='$settings'"
done

# Statuses, arguments, environment.
for want in 0 1 2 7 126 255; do
	exits $want "exit $want" "$hetmem" run sh -c "exit $want"
done
"$hetmem" run sh -c 'kill -TERM $$' 2>/dev/null
[ $? -eq 143 ]
judge 'a signal'
check 'options of the command are its own' diff <("$hetmem" run printf '%s ' --min x -- --help) \
	<(printf '%s ' --min x -- --help)
check '-- ends the options' "$hetmem" run -- test 1 -eq 1
LD_PRELOAD=$top/build/selftests/run/early.so "$hetmem" run sh -c 'echo "$LD_PRELOAD"' >"$tmp/out"
also 'LD_PRELOAD: ours comes first, the other remains' \
	grep -qx "$top/build/libhetmem-preload.so:$top/build/selftests/run/early.so" "$tmp/out"
"$hetmem" run "$hetmem" run sh -c 'echo "$LD_PRELOAD"' >"$tmp/out"
also 'twice is once' grep -qx "$top/build/libhetmem-preload.so" "$tmp/out"
"$hetmem" run yes 2>/dev/null | head -n 1 >"$tmp/out"
also 'a pipe that is closed' grep -qx y "$tmp/out"
"$hetmem" run sh -c 'ls -l /proc/self/fd | wc -l' >"$tmp/fds"
sh -c 'ls -l /proc/self/fd | wc -l' >"$tmp/plain"
also 'no descriptor more' cmp "$tmp/fds" "$tmp/plain"
check 'stdio closed' sh -c "'$hetmem' run true <&- >&- 2>&-"

# The functions: without it they do what is expected of them, and with it the same.
skips=allowed
program 'calls, without' $programs/calls
program 'forks, without' $programs/forks
program 'random, without' $programs/random
program 'calls' with $programs/calls blocks
also 'were seen' test "$(blocks calls)" -gt 100 -a "$(of moved calls)" -gt 0 -a "$(of cached calls)" -gt 100
program 'forks' with $programs/forks
program 'random' with $programs/random
also 'random: many blocks' test "$(blocks random)" -gt 1000
program 'random, mmap' with --mmap $programs/random
for spec in system 'pool(host)' 'stats(pool(system))'; do
	BY_SPEC=yes program "calls, $spec" with --spec "$spec" $programs/calls blocks
	also 'of the resource' test "$(of resource calls)" -gt 100
done
program 'forks, --spec' with --spec system $programs/forks
HETMEM_DRIVER=soft BY_SPEC=yes program 'calls, unified' with --spec unified $programs/calls blocks
program 'limits, without' $programs/limits
program 'limits' with $programs/limits
program 'limits, 64K' with --min 64K $programs/limits
program 'limits, mmap' with --mmap $programs/limits
program 'limits, --spec' with --min 64K --spec system $programs/limits spec
for blocks in 0 1; do
	(ulimit -f $blocks; "$hetmem" run --report "$tmp/short" sh -c 'exit 5' 2>"$tmp/err")
	[ $? -eq 5 ]
	judge "a limit of the report's size ($blocks) does not end the program"
done
# Little address space: what cannot be a block is the next allocator's, or an error.
check 'little address space' sh -c "ulimit -v 300000; '$hetmem' run sort -n -S 30M --parallel=1 /dev/null"

# Others that are preloaded, before main and after it.
LD_PRELOAD=$top/build/selftests/run/early.so check 'a constructor that allocates, a dlsym() that does' \
	with /bin/true
LD_PRELOAD=$top/build/selftests/run/early.so program 'calls, with that' with $programs/calls blocks
jemalloc=$(ls /usr/lib/*/libjemalloc.so.2)
LD_PRELOAD=$jemalloc program 'calls, jemalloc' with $programs/calls blocks
LD_PRELOAD=$jemalloc:$top/build/libhetmem-preload.so HETMEM_RUN="report=$report" /bin/true
also 'jemalloc first: off, and the report says so' grep -q 'off: another malloc comes first' "$report"

echo 'int main(void) { return 0; }' >"$tmp/main.c"
check 'a program with a sanitizer' gcc -fsanitize=address -o "$tmp/asan" "$tmp/main.c"
wrong 'is refused' "'.*asan' has a sanitizer.*without 'hetmem run'" run "$tmp/asan"
cat >"$tmp/own.c" <<'END'
#include <stddef.h>
static char arena[1 << 20];
static size_t used;
void *malloc(size_t n) { used += (n + 15) & ~15UL; return arena + used - ((n + 15) & ~15UL); }
void free(void *p) { (void)p; }
int main(void) { return !malloc(3); }
END
check 'a program with its own malloc' gcc -fno-builtin -rdynamic -o "$tmp/own" "$tmp/own.c"
wrong 'is refused' "'.*own' has a malloc of its own" run "$tmp/own"
check 'started by another it runs' with sh -c "$tmp/own"
also 'and is off' grep -q 'command=own blocks=0 .*off: another malloc' "$report"
LD_PRELOAD=/none/libasan.so.8 "$hetmem" run true >"$tmp/out" 2>"$tmp/all"
status=$?
# The loader complains of it, too.
grep -v '^ERROR: ld.so' "$tmp/all" >"$tmp/err"
one_line 2 'LD_PRELOAD has a sanitizer'
judge 'a sanitizer that is preloaded'
cat >"$tmp/mark.c" <<'END'
void __tsan_init(void) { }
END
check 'a library with a mark of a sanitizer' gcc -shared -fPIC -o "$tmp/mark.so" "$tmp/mark.c"
LD_PRELOAD=$tmp/mark.so run run true
one_line 2 'ThreadSanitizer is in this program, .*; run the program without'
judge 'the library itself refuses'

# As another user, and in a set-user-ID program, which the loader keeps free of it.
mkdir "$tmp/bin"
cp "$hetmem" build/libhetmem-preload.so build/libhetmem.so $programs/calls "$tmp/bin"
cp /bin/sleep "$tmp/bin/suid"
chmod u+s "$tmp/bin/suid"
: >"$report"
chmod 666 "$report"
as_user() { if [ "$(id -u)" -eq 0 ]; then setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; else "$@"; fi; }
program 'calls, as a user' as_user "$tmp/bin/hetmem" run --report "$report" "$tmp/bin/calls" blocks
also 'has blocks' test "$(blocks calls)" -gt 100
if [ "$(id -u)" -eq 0 ]; then
	check 'a set-user-ID program runs' as_user "$tmp/bin/hetmem" run --report "$report" "$tmp/bin/suid" 0
	also 'without it' test -z "$(blocks suid)"
	chmod u-s "$tmp/bin/suid"
	check 'as does another' as_user "$tmp/bin/hetmem" run --report "$report" "$tmp/bin/suid" 0
	also 'with it' test "$(blocks suid)" = 0
fi

done_testing
