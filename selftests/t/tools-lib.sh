# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# For tools-*.t: running the command and judging what it says. HETMEM names the command
# under test, build/hetmem if it is not set.
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"

hetmem=${HETMEM:-build/hetmem}
status=
children=()
chmod 755 "$tmp"
trap '[ ${#children[@]} -eq 0 ] || kill "${children[@]}" 2>/dev/null; rm -rf "$tmp"' EXIT

[ -x "$hetmem" ] || { echo "Bail out! there is no $hetmem, type: make"; exit 1; }

# judge NAME: passes if the command before it succeeded; shows the last run if not.
judge()
{
	local good=$?

	if [ $good -eq 0 ]; then
		pass "$1"
	else
		fail "$1" < <({ echo "exit $status"; cat "$tmp/out" "$tmp/err"; } |
			head -60 | cut -c 1-300)
	fi
}

# run ARGS...: runs hetmem; $status, $tmp/out, $tmp/err.
run()
{
	"$hetmem" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
}

# one_line STATUS PATTERN: the last run ended so, wrote nothing to stdout, and to stderr
# one line, printable, which matches the extended expression.
one_line()
{
	[ "$status" -eq "$1" ] && [ ! -s "$tmp/out" ] &&
		[ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -Eq -- "$2" "$tmp/err" &&
		! LC_ALL=C grep -q '[^[:print:]]' "$tmp/err"
}

# wrong NAME PATTERN ARGS...: what was typed is wrong.
wrong()
{
	local name=$1 pattern=$2

	shift 2
	run "$@"
	one_line 2 "$pattern"
	judge "$name"
}

# refused NAME PATTERN ARGS...: what was typed is right, and the answer is no.
refused()
{
	local name=$1 pattern=$2

	shift 2
	run "$@"
	one_line 1 "$pattern"
	judge "$name"
}

# few_files NR COMMAND...: runs COMMAND with a limit of NR open files, in a subshell. Only 0, 1
# and 2 are open, whatever the caller of the test has left open.
few_files()
(
	nr=$1
	shift
	for fd in "/proc/$BASHPID/fd/"*; do
		fd=${fd##*/}
		[ "$fd" -le 2 ] || eval "exec $fd>&-"
	done
	ulimit -n "$nr"
	exec "$@"
)

# ask NAME CODE: perl says whether CODE, of @rows, is true of the last run's JSON.
ask()
{
	cp "$tmp/out" "$tmp/json"
	perl -MJSON::PP -e '
		our (@rows, $row, $all);
		local $/;
		open(my $in, "<", $ARGV[0]) or die;
		$all = decode_json(<$in>);
		@rows = @{ref $all eq "HASH" ? $all->{rows} : $all};
		$row = $rows[0];
		my $good = eval $ARGV[1];
		print $@ || JSON::PP->new->pretty->encode(\@rows) unless $good;
		exit !$good' "$tmp/json" "$2" >"$tmp/out" 2>"$tmp/err"
	status=$?
	[ $status -eq 0 ]
	judge "$1"
	cp "$tmp/json" "$tmp/out"
}

# In a virtual machine a script wraps commands in lines "BEGIN NAME" and "END STATUS"; what
# it printed is in $tmp/all.

# part NAME: what the command printed there; $status.
part()
{
	tr -d '\r' <"$tmp/all" | sed -n "/^BEGIN $1\$/,/^END /p" | sed 1d >"$tmp/out"
	status=$(sed -n 's/^END //p' "$tmp/out")
	status=${status:-none}
	sed -i '/^END /d' "$tmp/out"
	: >"$tmp/err"
}

# gives PART STATUS NAME PATTERN...
gives()
{
	local want=$2 name=$3 pattern good=0

	part "$1"
	shift 3
	[ "$status" = "$want" ] || good=1
	for pattern; do
		grep -Eq -- "$pattern" "$tmp/out" || good=1
	done
	[ $good -eq 0 ]
	judge "$name"
}
