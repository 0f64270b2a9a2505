#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The source: licences, style, static checkers.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh
. selftests/t/layers.sh

# With git the tracked files and the new ones, without it (a tarball) all but build/.
if git rev-parse --git-dir >/dev/null 2>&1; then
	git ls-files --cached --others --exclude-standard
else
	find . -type f ! -path './build/*' | sed 's|^\./||'
fi | while read -r file; do
	[ ! -f "$file" ] || echo "$file"
done | sort -u >"$tmp/files"

spdx()
{
	local file line want

	while read -r file; do
		case $file in
		# Pictures are of captures.md, which has the licence.
		COPYING|*.gz|Documentation/plots/*.png) continue ;;
		kernel/*|Kbuild|include/linux/*|selftests/upstream/*.patch) want='GPL-2.0' ;;
		include/uapi/*) want='GPL-2.0 WITH Linux-syscall-note' ;;
		*) want='LGPL-2.1-or-later OR MIT' ;;
		esac
		line=$(head -n 2 "$file" | grep -o 'SPDX-License-Identifier: .*' |
			sed 's/^[^:]*: //; s/ *\*\/$//; s/",$//; s/ *-->$//; s/[[:space:]]*$//')
		[ "$line" = "$want" ] || echo "$file: '$line', not '$want'"
	done <"$tmp/files"
}
empty 'every file names its licence' spdx
empty 'no version number decides what is compiled' sh -c \
	'grep -rnE "(LINUX_VERSION_CODE|KERNEL_VERSION|RHEL_RELEASE)" kernel include lib tools'
# The library runs on Grace, too: what one processor has stands in a header, with an #if.
empty "no file of the library is one processor's" sh -c \
	'grep -rnE "__builtin_(ia32|arm)_|immintrin|_mm_pause" lib tools --include="*.c"'
# A unit is one file, complete. The public interfaces are one header each, and most of it is
# what documents them.
longer() { grep -E "$2" "$tmp/files" | grep -v '^include/uapi/' | xargs wc -l | awk -v most="$1" '$2 != "total" && $1 > most'; }
empty 'no file is longer than 1500 lines' longer 1500 '\.(c|h|t)$'
empty 'no private header of the library is longer than 250 lines' longer 250 '^lib/.*\.h$'
# The calls that most programs need stand first: on the first screen, and as declarations.
twelve='open close last_error resource_create resource_destroy alloc free record_stream stream_retire resource_stats prefetch residency'
also 'the first screen of hetmem.h is the twelve calls' test "$(head -24 include/hetmem.h |
	sed -nE 's/^ \*\thetmem_([a-z_]+)\(.*/\1/p' | xargs)" = "$twelve"
also 'their declarations are the first' test "$(sed -nE 's/^[a-z][a-z_ ]*[ *]hetmem_([a-z_]+)\(.*/\1/p' include/hetmem.h |
	head -12 | xargs)" = "$twelve"
empty 'every public header compiles alone, as C and as C++' sh -c '
	for h in include/hetmem.h include/hetmem/*.h; do
		for x in c c++; do
			gcc -x $x -fsyntax-only -Wall -Wextra -Werror -Iinclude -Iinclude/uapi "$h" 2>&1
		done
	done'
empty 'every exported function is declared once' sh -c '
	grep -oE "\<hetmem_[a-z0-9_]+;" lib/libhetmem.map | tr -d ";" | sort -u | while read -r name; do
		[ "$(cat include/hetmem.h include/hetmem/*.h | grep -cE "^([a-z].*[ *])?$name\(")" -eq 1 ] || echo "$name"
	done'
empty 'the top level is what it was' sh -c \
	"cut -d/ -f1 '$tmp/files' | sort -u | grep -vxE '\..*|COPYING|Documentation|Kbuild|Makefile|README.md|include|kernel|lib|selftests|tools'"
empty 'no line ends in blanks' sh -c \
	"grep -vE 'COPYING|\.(gz|png|patch)$' '$tmp/files' | xargs grep -nE '[[:blank:]]+$'"

# A test waits for a state, never for time: for what there is and how to mark what is about time,
# see Documentation/testing.md. The runner's limits are its own.
sleeping()
{
	xargs awk '
		FNR == 1 { before = "" }
		/(^|[^A-Za-z0-9_])(usleep|nanosleep|clock_nanosleep|u?alarm|setitimer|timer_settime|pthread_cond_timedwait|sem_timedwait|sleep_for|sleep_until|time\.sleep)\(/ ||
		(/(^|[^A-Za-z0-9_.>"])sleep\([^)]/ && !/def sleep\(/) ||
		/(^|[[:space:];&|({"\047`])(sleep|timeout)[[:space:]]+(-[a-z]|"?[$]|[0-9.])/ ||
		/[(, ]timeout=/ {
			if ($0 !~ /(\/\*|#|\/\/) *time: ./ && before !~ /(\/\*|#|\/\/) *time: ./ &&
			    $0 !~ /(while|until) .*(do|:) (sleep|time\.sleep\()/)
				print FILENAME ":" FNR ": " $0
		}
		{ before = $0 }'
}
tests_with_waits() { grep '^selftests/' "$tmp/files" | grep -vE '\.gz$|\.md$|^selftests/(mutants/list|t/source\.t|run-tests|runner/.*)$'; }
unmarked() { tests_with_waits | sleeping; }
empty 'no test waits for time without telling why' unmarked
cat >"$tmp/sleeps" <<'END'
	usleep(20000);
	sleep(1);
	for (;;) nanosleep(&nap, NULL);
alarm(900);
sleep 3
(sleep 0.5; kill $pid) &
exec timeout -k 5 "$3" x
    time.sleep(1)
    run(command, timeout=300)
	/* time:*/ usleep(1);
END
cat >"$tmp/waits" <<'END'
	/* time: the epoch */
	usleep(20000);
	is(hetmem_sleep(pool, NULL, 0), 0, "sleep");
while [ ! -s /tmp/out ]; do sleep 0.1; done
sleep 0.1 # time: the pace of looks
sleep infinity &
while not os.path.exists(path): time.sleep(0.05)
pool.sleep("kv")
END
also 'each kind of them is found' test "$(echo "$tmp/sleeps" | sleeping | wc -l)" -eq 10
empty 'and nothing else is' sleeping <<<"$tmp/waits"

empty 'every test can be run' find selftests/t -name '*.t' ! -perm -111
xargs grep -lE '^#!/bin/(ba)?sh|^# shellcheck shell=' <"$tmp/files" >"$tmp/scripts"
check 'shellcheck' sh -c "xargs shellcheck -x -P SCRIPTDIR -e SC1091,SC2016 <'$tmp/scripts'"

# How commits are described: a subject a line, and what the script answers.
judged()
{
	local want subject body got

	while IFS='|' read -r want subject body; do
		got=$(printf '%s\n\n%s\n' "$subject" "$body" | selftests/commits - | grep -oE "$want" | head -n 1)
		[ "$got" = "${want#^$}" ] || echo "$subject: '$got', not '$want'"
	done <<-'END'
	^$|lib: pool: tables grow by halves|A rehash of all blocks took 40 ms.
	^$|kernel/emu: pages are freed|They leaked before.
	^$|Revert "lib: pool: tables grow by halves"|This reverts commit 1234567.
	^$|Documentation: spec: units and rounding|Users asked for both.
	use at most 72|lib: pool: a subject that goes on for so long that no list of commits can show it|Why it is so.
	name the area|tables grow by halves|A rehash took 40 ms.
	name one area|lib, tools: sizes|Why it is so.
	name one area|lib and tools: sizes|Why it is so.
	instead of joining|lib: sizes; tools: sizes|Why it is so.
	full stop|lib: sizes.|Why it is so.
	tell why|lib: sizes|
	tell why|lib: sizes|Signed-off-by: Somebody <somebody@example.org>
	END
}
empty 'the rules for messages of commits' judged
exits 2 'commits that are not there' selftests/commits no..such
need clang-format:clang-format
check 'clang-format takes .clang-format' sh -c "clang-format --style=file --dump-config kernel/main.c >'$tmp/format'"
also 'and changes little' sh -c "
	wc -l kernel/*.c lib/*/*.c >'$tmp/total'
	for file in kernel/*.c lib/*/*.c; do clang-format \$file | diff \$file - | grep '^<'; done | wc -l |
	awk -v all=\$(awk 'END { print \$1 }' '$tmp/total') '{ exit \$1 * 8 > all }'"

# The folders of the library have one direction, and that can be seen to be broken.
empty 'no folder of lib/ includes one above it' sh -c '. selftests/t/layers.sh; includes | upward'
also 'there is something to see' test "$(includes | wc -l)" -gt 100
mkdir -p "$tmp/lib/core" "$tmp/lib/soft"
mkdir -p "$tmp/lib/preload"
echo '#include "pool/pool.h"' | tee "$tmp/lib/core/x.c" "$tmp/lib/soft/x.h" "$tmp/lib/preload/x.c" "$tmp/lib/open.c" >/dev/null
also 'three of four would be found' test "$(includes "$tmp/lib" | upward | wc -l)" -eq 3
empty 'every file of lib/ is in a folder that is known' sh -c \
	". selftests/t/layers.sh; grep '^lib/.*\.[ch]\$' '$tmp/files' | sed -E 's,^lib/([a-z]+).*,\\1,' | sort -u | grep -vwE \"\$(echo \$layers soft preload | tr ' ' '|')\""

# checkpatch.pl comes from the kernel's sources, as the test harness does.
checkpatch=$(kept_source 6.12 bookworm)/scripts
check 'checkpatch.pl is there' test -s "$checkpatch/checkpatch.pl"
# Not asked of a tree that is not the kernel's: MAINTAINERS, Kconfig help, and headers
# that lie elsewhere.
ignored=FILE_PATH_CHANGES,PREFER_KERNEL_TYPES
check 'checkpatch --strict' sh -c "perl '$checkpatch/checkpatch.pl' --no-tree --strict \
	--terse --no-summary --file --ignore $ignored \
	\$(grep -E '^(kernel|include/linux|include/uapi)/.*\.[ch]$' '$tmp/files' |
	   grep -vE '^kernel/(probe/|trace\.h$)')"
# Tracepoints are laid out as everywhere in the kernel, not as its other code.
check 'checkpatch --strict of trace.h' perl "$checkpatch/checkpatch.pl" --no-tree --strict \
	--terse --no-summary --file --ignore "$ignored,PARENTHESIS_ALIGNMENT,OPEN_ENDED_LINE" \
	kernel/trace.h

# What the administrator finds is documented, and what is documented is there.
abi=Documentation/ABI/testing
sysfs_files()
{
	{
		grep -ohE '\b(SETTING|STATISTIC)\([a-z_]+' kernel/sysfs.c
		grep -ohE '\b(DEVICE_ATTR_(R[OW]|WO)|DEVICE_FILE)\([a-z_]+' kernel/*.c
		grep -ohE '^module_param(_named)?\([a-z_]+' kernel/*.c kernel/emu/*.c
	} | sed 's/.*(//' | grep -v '^_' | sort
}
documented() { sed -n 's|^What:.*/||p' $abi/* | grep -v '^GPU-' | sort; }
empty 'every file in sysfs is documented' diff <(sysfs_files) <(documented)
also 'there are some' test "$(sysfs_files | wc -l)" -gt 20
lines() { cat $abi/* | grep -c "$1"; }
also 'completely' test "$(lines ^What:)" -eq "$(lines '^Date:		November 2026$')" \
	-a "$(lines ^What:)" -eq "$(lines '^Contact:	the hetmem authors$')" \
	-a "$(lines ^What:)" -eq "$(lines ^Description:)"

# Whatever keeps memory where it is has a name for people.
whys() { grep -c '^#define HETMEM_WHY_' include/uapi/linux/hetmem.h; }
why_names()
{
	sed -n '/^char \*hetmem_why_names/,/};/p' lib/core/error.c | grep -o '"[^"]*"' | wc -l
}
also 'every reason has a name' test "$(whys)" -gt 10 -a "$(whys)" -eq "$(why_names)"

# Signals keep a plain open() of the module from coming back.
plain_opens()
{
	grep -nE '\bopen(at)?\(.*("/dev/hetmem"|\bDEVICE\b|\bDEFAULT_PATH\b|\bDEVICE_PATH\b)' "$@"
}
empty 'the library and the command open the module by hm_device_open()' \
	plain_opens -r lib tools --include='*.[ch]'
echo '	fd = open(DEVICE, O_RDWR);' >"$tmp/x.c"
also 'a plain open would be found' plain_opens "$tmp/x.c"

# What is documented as who may do what is what is tested.
tested_rights()
{
	sed -n 's/^\tROW(\(.*\)),$/\1/p' selftests/kernel/abi/permission_table.c | tr -d ' '
}
documented_rights()
{
	sed -nE 's/^\| ([A-Za-z_]+ \| (yes|no) \| .*) \|$/\1/p' Documentation/kernel-interface.md |
		sed 's/ | /,/g'
}
empty 'who may do what is tested as it is documented' diff <(tested_rights) <(documented_rights)
also 'for all commands' test "$(tested_rights | wc -l)" -gt \
	"$(grep -c '^#define HETMEM_IOC_' include/uapi/linux/hetmem.h)"

# The modules' interface has no name that only the kernel and its tests use. The names of the
# header itself count: a size in a struct, the type in _IO().
uapi=include/uapi/linux/hetmem.h
uapi_names()
{
	grep -oE '\b(HETMEM|hetmem)_[A-Za-z_0-9]+\b' "$uapi" | grep -vE '_$|^HETMEM_H$' | sort -u
}
used_outside()
{
	grep -rhoE '\b(HETMEM|hetmem)_[A-Za-z_0-9]+\b' lib tools
	sed -E 's,/\*.*\*/,,; /^\/?[ ]?\*/d' "$uapi" | sed -nE 's/^#define[[:space:]]+[A-Z_0-9]+(\([^)]*\))?[[:space:]]//p; /^	/p' |
		grep -vE '^	HETMEM_[A-Z_]+	*=' | grep -oE '\b(HETMEM|hetmem)_[A-Za-z_0-9]+\b'
}
uapi_unused() { uapi_names | grep -vxF -f <(used_outside | sort -u); }
empty 'every name of the ioctl interface is used by the library or the command' uapi_unused
also 'there are some' test "$(uapi_names | wc -l)" -gt 90
echo 'enum { HETMEM_FROB = 1 };' >"$tmp/uapi.h"
unused_in() { local uapi=$1; uapi_unused; }
also 'one that is not would be found' test "$(unused_in "$tmp/uapi.h")" = HETMEM_FROB

# Tests that are documented as the like of the kernel's own are there.
parity=Documentation/hmm-tests.md
libktest=selftests/kernel/libktest
named_tests()
{
	grep -oE '\b[a-z_]+: [a-z_0-9]+\.[a-z_0-9]+(\.[a-z_0-9]+)?' $parity | sort -u
}
missing_tests()
{
	local program name fixture test variant

	named_tests | while read -r program name; do
		fixture=${name%%.*} test=${name##*.} variant=${name#*.}
		variant=${variant%"$test"} variant=${variant%.}
		set -- "$(find selftests/kernel -name "${program%:}.c")" \
			"$libktest/memory.h"
		if ! grep -qsE "^TEST_F(_TIMEOUT)?\($fixture, $test\b" "$1"; then
			echo "$program $name: no such test"
		elif [ -n "$variant" ] &&
		     ! grep -q "^FIXTURE_VARIANT_ADD($fixture, $variant)" "$1" &&
		     ! { grep -qs "^MEM_KIND_VARIANTS($fixture)" "$1" "$libktest/fixtures.h" &&
			 grep -q "FIXTURE_VARIANT_ADD(fixture, $variant)" "$2"; }; then
			echo "$program $name: no such variant"
		fi
	done
}
empty "every test beside the kernel's own exists" missing_tests
also 'for all of those' test "$(grep -cE '^\| [a-z_]+ \| [a-z_]+: ' $parity)" -eq 39

# Mutants are found in the source by their text.
check 'every mutant is in the source, once' selftests/mutants/run -n
mutants() { grep -cE '^[a-z0-9-]+: ' selftests/mutants/list; }
also 'there are 20 at least' test "$(mutants)" -ge 20
sed 's/^- /- no /' selftests/mutants/list >"$tmp/list"
exits 1 'mutants that are not there are found' selftests/mutants/run -n -l "$tmp/list"
also 'all of them' test "$(grep -c 'is there 0 times' "$tmp/err")" -eq "$(mutants)"

exits 2 'make module without a kernel: exit 2' kernel/build-module "$tmp/none" "$tmp"
also 'and says what to type' grep -q 'apt-get install linux-headers' "$tmp/err"
done_testing
