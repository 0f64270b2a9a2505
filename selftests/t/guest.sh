# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# Several tests in one guest: each is a part, which `part` of selftests/vm/guest runs there. It
# prints lines around the part's output, kills what the part leaves behind, and reads the
# kernel's log. A test sources this file, adds parts, boots once, and judges part by part.
: >"${tmp:?}/parts"

# add_part NAME COMMAND...: the command is run in the guest. Its words are quoted for a shell.
add_part()
{
	printf '%q ' part "$@" >>"$tmp/parts"
	echo >>"$tmp/parts"
}

# boot OPTION...: runs all parts in one guest, with these options of selftests/vm/run. A guest
# whose clock is wrong is no test: that ends this program.
boot()
{
	local rc=0

	selftests/vm/run "$@" -f "$tmp/parts:/vm/parts" -- sh /vm/parts \
		>"$tmp/guest" 2>"$tmp/guest.err" </dev/null || rc=$?
	tr -d '\r' <"$tmp/guest" >"$tmp/guest.out"
	case $rc in
	0) pass 'the guest came to its end' ;;
	*) fail 'the guest came to its end' < <(echo "exit $rc"; tail -n 60 "$tmp/guest.err") ;;
	esac
	[ $rc -ne 123 ] || { done_testing; exit 1; }
}

# part_output NAME: prints what the part printed, as a command that ends with its status. A part
# that did not end is a failure: the end of run's own messages names the test that ran.
part_output()
{
	local rc

	sed -n "/^PART $1\$/,/^PART-END /p" "$tmp/guest.out" | grep -Ev '^(PART|COMPLAINT) |^PART-END '
	rc=$(sed -n "/^PART $1\$/,/^PART-END /s/^PART-END //p" "$tmp/guest.out")
	[ -n "$rc" ] || tail -n 2 "$tmp/guest.err"
	return "${rc:-125}"
}

# no_complaint NAME: the kernel wrote none in this part.
no_complaint()
{
	empty "$1: the kernel has nothing to say" sh -c \
		'sed -n "/^PART $1\$/,/^PART-END /s/^COMPLAINT //p" "$2"' - "$1" "$tmp/guest.out"
}
