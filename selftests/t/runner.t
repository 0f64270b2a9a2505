#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The runner of the tests, on stages of its own: what it says of tests that fail, and that a run
# which is ended leaves nothing behind.
. "$(dirname "$0")/tap.sh"

export HETMEM_TEST_STAGES=$tmp/stages HETMEM_TEST_STATE=$tmp/state
unset HETMEM_TEST_LIMIT HETMEM_TEST_JOBS CI SEED

# stages LINE...: the table. A script named NAME.sh is written by test NAME.
stages() { printf '%s\n' "$@" >"$tmp/stages"; }
# script NAME: from stdin.
script()
{
	{ echo '#!/bin/bash'; cat; } >"$tmp/$1.sh"
	chmod +x "$tmp/$1.sh"
}

script good <<'END'
echo 'ok 1 - one'; echo 'ok 2 - two'; echo 1..2
END
script bad <<'END'
echo 'ok 1 - one'; echo 'not ok 2 - two'; echo '# seed 77, see there'; echo 1..2; exit 1
END
script short <<'END'
echo 'ok 1 - one'; echo 'a last word'; echo 1..3
END
script dies <<'END'
echo 'ok 1 - one'; echo 1..1; kill -SEGV $$
END
script none <<'END'
exit 0
END
script skips <<'END'
echo 'ok 1 - one # skip there is no network'; echo 1..1
END
script leaves <<'END'
setsid sleep infinity &
until grep -q sleep /proc/$!/comm; do :; done
echo 'ok 1 - one'; echo 1..1
END
script spins <<'END'
bash -c 'for ((i = 0; i < 1000000; i++)); do :; done'
echo 'ok 1 - one'; echo 1..1
END

# last N: lines of the last run's end.
last() { tail -n "$1" "$tmp/out" | head -n 1; }
said() { grep -q -- "$1" "$tmp/out"; }

stages "good check 5 - tap:$tmp/good.sh"
exits 0 'a test that passes' selftests/run-tests
also 'the last line' test "$(last 1)" = 'Result: PASS'
also 'the line before it' test "$(last 2)" = '3 passed, 0 failed'

stages "mixed check 5 - tap:$tmp/good.sh tap:$tmp/bad.sh tap:$tmp/short.sh tap:$tmp/dies.sh tap:$tmp/none.sh"
exits 1 'tests that fail' selftests/run-tests
also 'the last line says so' test "$(last 1)" = 'Result: FAIL'
also 'the line before it counts them' test "$(last 2)" = '6 passed, 4 failed'
also 'each is named, with the command that repeats it' test \
	"$(grep -c "^FAILED run:.*: make check T=run:" "$tmp/out")" -eq 4
also 'and its seed' said "bad.sh (seed 77): make check T=.*bad.sh SEED=77"
also 'what it wrote' said '    # seed 77, see there'
also 'a test that stops early' said 'ran 1 of 3 tests'
also 'a test that dies' said 'exit status by signal 11'
also 'a test without a plan' said 'ended without a plan'
exits 2 'T=failed' make -s check T=failed
also 'runs those alone' test "$(last 2)" = '4 passed, 4 failed'
script bad <"$tmp/good.sh"
for name in short dies none; do script "$name" <"$tmp/good.sh"; done
exits 0 'until they pass' make -s check T=failed
exits 0 'then there is nothing to do' make -s check T=failed
also 'and it says so' said 'nothing failed'

stages "quiet check 5 - tap:$tmp/skips.sh"
exits 0 'a test that is skipped' selftests/run-tests
also 'is counted at the end' test "$(last 3)" = '1 skipped'
also 'and named' said 'there is no network'
exits 1 'fails in CI' env CI=true selftests/run-tests

stages "quiet check 5 - tap:$tmp/leaves.sh"
exits 0 'a test that leaves a process behind' selftests/run-tests
also 'is named with it' said 'left processes behind, which were ended: sleep'

stages "spins check 1000 - tap:$tmp/spins.sh"
exits 0 'a test that uses a processor' selftests/run-tests
also 'its children count' sh -c "awk '\$1 == \"spins\" && \$2 >= 1 { found = 1 } END { exit !found }' '$tmp/out'"
stages "spins check 0 - tap:$tmp/spins.sh" "more long 1 - tap:$tmp/good.sh tap:$tmp/spins.sh"
exits 0 'check-long' selftests/run-tests -t long
also 'runs nothing of check' test "$(last 2)" = '3 passed, 0 failed'
exits 2 'a test that is not there' selftests/run-tests none-such
also 'what there is' grep -q 'there are:' "$tmp/err"
exits 2 'a folder that has no test' selftests/run-tests -f lib/none-such

# The table of this tree.
listed()
{
	local tier

	for tier in check long nightly; do
		env -u HETMEM_TEST_STAGES selftests/run-tests -s 5 -t $tier -l
	done
}
listed >"$tmp/listed"
empty 'every test is in one tier' sh -c "sort '$tmp/listed' | grep -v '^kernel:' | uniq -d"
scripts() { for file in selftests/t/*.t; do basename "$file" .t; done; }
empty 'every script is in the table' comm -13 <(sort -u "$tmp/listed") <(scripts | sort)
named() { grep -v '^#' selftests/stages | grep -oE '[^ ]+\.t\b' | grep -v '[*?[]' | sed 's/\.t$//'; }
empty 'the table names none that is not there' comm -13 <(scripts | sort) <(named | sort)
also 'it names some' test "$(named | wc -l)" -gt 10
programs() { find selftests/lib selftests/soft -name '*.c' ! -name 'vm_*' ! -name 'gpu_*' | sed 's|selftests/||; s|\.c$||'; }
empty 'every program is, too' comm -13 <(sort -u "$tmp/listed") <(programs | sort)
empty 'and with AddressSanitizer' comm -13 <(sort -u "$tmp/listed") \
	<(programs | grep -vE '/((sparse_)?steps|bounded)$' | sed 's|^|asan/|' | sort)
empty 'and with TSan' comm -13 <(sort -u "$tmp/listed") \
	<(programs | grep -vE '/((sparse_)?steps|bounded|(cuda|nvml)_[^/]*)$' | sed 's|^|tsan/|' | sort)
documented() { sed -nE 's/^\| `([a-z0-9.-]+)` \| (check|long|nightly) \| ([0-9]+) \|.*/\1 \2 \3/p' Documentation/testing.md; }
check 'every stage is documented with its tier and budget' diff <(documented) \
	<(awk '/^[a-z]/ { print $1, $2, $3 }' selftests/stages)
budget() { awk -v tier="$1" '/^[a-z]/ && $2 == tier { sum += $3 } END { print sum }' selftests/stages; }
also 'make check fits into 15 minutes of two processors' test "$(budget check)" -le 1800
also 'make check-long into 50' test "$(budget long)" -le 6000
folder() { env -u HETMEM_TEST_STAGES selftests/run-tests -l -f "$1"; }
also 'a folder: its programs' test "$(folder lib/stream | grep -c '^lib/stream/')" -eq \
	"$(programs | grep -c '^lib/stream/')"
also 'and conformance' test "$(folder lib/stream | grep -c '^lib/conformance')" -ge 1
also 'a folder of the module: one boot' test "$(folder kernel/track | grep -v '^kernel:')" = 'guest:kernel/track'
also 'a folder of the command' test "$(folder tools/record | grep -x tools-record)" = tools-record

# A run in the middle: a guest, a process that has left its session, one that ignores signals,
# and a lock. The guest's archive is made anew, in a cache of this test.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hetmem
mkdir -p "$tmp/cache/hetmem"
ln -s "$cache/kernel" "$cache/apt" "$tmp/cache/hetmem/"
export XDG_CACHE_HOME=$tmp/cache
script guest <<END
echo \$\$ >'$tmp/guest-runs'
exec selftests/vm/run -t 600 -- sleep infinity
END
script deaf <<END
exec 9>'$tmp/held'
flock 9
setsid bash -c 'trap "" TERM INT HUP; while :; do sleep 1; done' &
mktemp -d
touch '$tmp/deaf-runs'
sleep infinity
END
stages "guest check 5 - tap:$tmp/guest.sh tap:$tmp/deaf.sh"

# survivors: processes of the run; this test has another environment.
survivors()
{
	local file

	while read -r file; do
		file=${file%/environ}
		echo "${file#/proc/} $(tr '\0' ' ' <"$file/cmdline" 2>/dev/null)"
	done < <(grep -lzxF "HETMEM_TEST_OF_RUN=$tmp" /proc/[0-9]*/environ 2>/dev/null) 2>/dev/null
}
qemu_runs() { survivors | grep qemu-system >/dev/null; }
in_the_middle() { [ -e "$tmp/deaf-runs" ] && [ -e "$tmp/guest-runs" ] && qemu_runs; }
# within SECONDS COMMAND...
within()
{
	local end=$((SECONDS + $1))

	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return
		sleep 0.2 # time: the pace of looks
	done
}
ran_said() { grep -q -- "$1" "$tmp/run"; }
nobody() { [ -z "$(survivors)" ]; }

# ended HOW COMMAND: runs make in process group $group, and in the middle the command; the
# runner is process $runner.
ended()
{
	local how=$1

	rm -f "$tmp/guest-runs" "$tmp/deaf-runs"
	rm -rf "$tmp/cache/hetmem/vm"
	mkdir -p "$tmp/tmp"
	# Jobs in the background ignore SIGINT, which a terminal's do not.
	TMPDIR=$tmp/tmp HETMEM_TEST_OF_RUN=$tmp env --default-signal=INT,QUIT \
		setsid make -s check >"$tmp/run" 2>&1 </dev/null &
	group=$!
	within 600 in_the_middle || sed "s/^/# /" "$tmp/run"
	also "$how: it is in the middle" in_the_middle
	# shellcheck disable=SC2034
	runner=$(survivors | sed -n 's/^\([0-9]*\) .*runner\/main\.py.*/\1/p' | head -n 1)
	eval "$2"
	within 120 nobody
	empty "$how: no process is left" survivors
	also "$how: no lock" flock -n "$tmp/held" true
	also "$how: no lock of the tree" flock -n "$tmp/state/lock" true
	empty "$how: no temporary file" find "$tmp/tmp" -mindepth 1
	{ wait "$group"; } 2>/dev/null
}

ended 'Ctrl-C' 'kill -INT -- -$group'
also 'it says why' ran_said '^ENDED by SIGINT: '
also 'it fails' ran_said '^Result: FAIL$'
ended 'SIGTERM to make' 'kill $group'
ended 'SIGKILL to make' 'kill -9 $group'
ended 'SIGTERM to the runner' 'kill $runner'
also 'it says why' ran_said '^ENDED by SIGTERM: '
ended 'SIGKILL to the runner' 'kill -9 $runner'
ended 'SIGKILL to all of its group' 'kill -9 -- -$group'

# Half of an archive is no archive.
exits 0 'the cache is as good as before' selftests/vm/run -- true

HETMEM_TEST_LIMIT=20 ended 'the time limit' true
also 'it says why' ran_said '^ENDED by its time limit: .*HETMEM_TEST_LIMIT=SECONDS allows more'
done_testing
