#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The kernel's own semantic checks (scripts/coccinelle) on the modules.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh

# The scripts' reports are in Python, which spatch opens by the name that -dev has.
need spatch:coccinelle "/usr/lib/$(uname -m)-linux-gnu/libpython3.11.so:libpython3.11-dev"
scripts=$(kept_source 6.12 bookworm)/scripts/coccinelle

# coccicheck DIR [SCRIPT]: what each script that reports, and needs no compiler for OCaml,
# says.
coccicheck()
{
	export dir=$1
	find "$scripts" -name "${2:-*.cocci}" -print0 | sort -z |
		xargs -0 grep -lZ '^virtual report' | xargs -0 grep -LZ 'script:ocaml' |
		xargs -0 -P "$(nproc)" -n 1 bash -c '
			options=$(sed -n "s|^// *Options: *||p" "$1" | head -n 1)
			out=$(spatch -D report --very-quiet --no-show-diff --cocci-file "$1" \
				$options --dir "$dir" -I include -I include/uapi 2>&1) ||
				echo "${1##*/}: exit status $?"
			# What the script itself is blamed for.
			grep -v "^warning: line [0-9]*: should .* be a metavariable" <<<"$out" |
				grep . || :' coccicheck
}

also 'there are scripts' test "$(find "$scripts" -name '*.cocci' | wc -l)" -gt 50
empty 'coccicheck has nothing to say of kernel/' coccicheck kernel

# It would say something.
mkdir "$tmp/wrong"
cat >"$tmp/wrong/wrong.c" <<'END'
void wrong(struct wrong *p)
{
	kfree(p);
	use(p->member);
}
END
coccicheck "$tmp/wrong" kfree.cocci >"$tmp/said"
also 'and finds a use after free' grep -q 'wrong.c:4.*reference preceded by free' "$tmp/said"
done_testing
