# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# TAP for the tests of this directory. A test sources this file, calls what is below,
# and ends with done_testing; without that there is no plan and prove says so.

set -u -o pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top" || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/hetmem-test.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
count=0

pass() { count=$((count + 1)); echo "ok $count - $*"; }

# fail NAME: diagnostics on stdin, but not from a pipe: the count would stay behind in it.
fail()
{
	count=$((count + 1))
	echo "not ok $count - $*"
	sed 's/^/# /'
}

# also NAME COMMAND...: passes when the command, which looks at something that is already
# there, succeeds.
also()
{
	local name=$1

	shift
	if "$@" >"$tmp/also" 2>&1 </dev/null; then
		pass "$name"
	else
		fail "$name" < <(echo "not so: $*"; cat "$tmp/also" "$tmp/err" 2>/dev/null)
	fi
}

# check NAME COMMAND...: passes when the command succeeds. Leaves $tmp/out, $tmp/err.
check()
{
	local name=$1 rc=0

	shift
	"$@" >"$tmp/out" 2>"$tmp/err" </dev/null || rc=$?
	if [ $rc -eq 0 ]; then
		pass "$name"
	else
		fail "$name" < <(echo "exit $rc: $*"; cat "$tmp/out" "$tmp/err")
	fi
}

# exits STATUS NAME COMMAND...: passes when the command ends with this status.
exits()
{
	local want=$1 name=$2 rc=0

	shift 2
	"$@" >"$tmp/out" 2>"$tmp/err" </dev/null || rc=$?
	if [ $rc -eq "$want" ]; then
		pass "$name"
	else
		fail "$name" < <(echo "exit $rc, not $want: $*"; cat "$tmp/out" "$tmp/err")
	fi
}

# empty NAME COMMAND...: passes when the command finds nothing: what it prints is wrong.
empty()
{
	local name=$1

	shift
	"$@" >"$tmp/out" 2>&1 </dev/null
	if [ -s "$tmp/out" ]; then
		fail "$name" <"$tmp/out"
	else
		pass "$name"
	fi
}

# program NAME COMMAND...: a program that writes TAP; each of its tests becomes one of
# ours, with the lines that follow it if it failed. A skipped test has failed, unless skips=allowed: then the command has judged the
# skips itself. So has a program that stops early or writes no test.
program()
{
	local name=$1 rc=0

	shift
	"$@" >"$tmp/tap" 2>&1 </dev/null || rc=$?
	awk -v count="$count" -v name="$name" -v rc="$rc" -v skips="${skips:-}" '
		function result(good, what) {
			count++
			print (good ? "ok " : "not ok ") count " - " name (name ? ": " : "") what
			explain = good ? 0 : 60
		}
		{ sub(/\r$/, "") }
		/^1\.\.[0-9]+/ { plan = substr($1, 4) + 0; next }
		/^(not )?ok( |$)/ {
			seen++
			good = /^ok/
			failed += !good
			what = $0
			sub(/^(not )?ok *[0-9]* *-? */, "", what)
			if (skips != "allowed" && what ~ /# *[Ss][Kk][Ii][Pp]/)
				good = 0
			gsub(/#/, "", what)
			result(good, what)
			next
		}
		{ last = last "# " $0 "\n" }
		explain-- > 0 { print "# " $0 }
		END {
			what = ""
			if (seen != plan || !seen)
				what = "all its tests ran (" seen + 0 " of " plan + 0 ")"
			else if (rc && !failed)
				what = "its exit status (" rc ")"
			if (what) {
				result(0, what)
				n = split(last, line, "\n")
				for (i = n > 40 ? n - 40 : 1; i < n; i++)
					print line[i]
			}
			print count > "/dev/stderr"
		}' "$tmp/tap" 2>"$tmp/count"
	count=$(cat "$tmp/count")
}

# wait_for COMMAND...: until COMMAND succeeds. Fails after 1,200 looks, two minutes on an idle
# machine: on a busy one looks come late, and the limit with them.
wait_for()
{
	local i

	for ((i = 0; i < 1200; i++)); do
		"$@" && return
		# time: the pace of looks
		sleep 0.1
	done
	return 1
}

# limited SECONDS COMMAND...: ended when one process used this time of a processor. One
# that sleeps is ended too, after ten times this by the clock, half an hour at most: on a
# busy machine a clock says nothing of a program that works.
limited()
{
	local seconds=$1 clock=$(($1 * 10))

	shift
	[ $clock -le 1800 ] || clock=1800
	# time: only a process that sleeps for ever gets so far
	(ulimit -S -t "$seconds" && exec timeout -k 10 $clock "$@")
}

done_testing()
{
	echo "1..$count"
}
