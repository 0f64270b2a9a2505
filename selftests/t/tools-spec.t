#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# What is said of specs: by `hetmem spec --help`, by `hetmem spec --list`, which is made of
# what the parser knows, and by Documentation/spec.md. They must agree.
. "$(dirname "$0")/tools-lib.sh"

page=Documentation/spec.md
export HETMEM_DRIVER=soft
unset HETMEM_RESOURCE

run spec --help
cp "$tmp/out" "$tmp/help"
run spec --list
# A kind, or a kind and a parameter, a line.
awk 'NR > 1 && /^[a-z]/ { kind = $1; print kind; next } NR > 1 { print kind, $1 }' "$tmp/out" >"$tmp/kinds"
also 'there are kinds' test "$(grep -vc ' ' "$tmp/kinds")" -ge 19
also 'and parameters' test "$(grep -c ' ' "$tmp/kinds")" -ge 50

# A row of a table for each kind; the pool has a paragraph, and what takes what a pool
# takes says so.
said_of()
{
	case $1 in
	pool) sed -n '/^`pool(PROVIDER)`/,/^$/p' $page ;;
	device-pool|unified|classes) sed -n '/^`pool(PROVIDER)`/,/^$/p; /They take `device=`/p' $page
		grep "^| \`$1" $page ;;
	*) grep "^| \`$1[\`(]" $page ;;
	esac
}
undocumented()
{
	local kind param

	while read -r kind param; do
		[ -n "$(said_of "$kind")" ] || echo "$kind"
		# Every provider of a device has its ordinal.
		[ -z "$param" ] || [ "$param" = device ] ||
			grep -qE "(\b|[,(])$param=" <<<"$(said_of "$kind")" || echo "$kind: $param="
	done <"$tmp/kinds"
}
empty 'every kind and parameter is documented' undocumented
also 'device= too' grep -q 'device=' $page
unknown()
{
	grep -oE '^\| `[a-z-]+[`(]' $page | tr -d '|`( ' | while read -r kind; do
		grep -qx "$kind" "$tmp/kinds" || echo "$kind"
	done
}
empty 'and none that is not there' unknown
helped()
{
	grep -v ' ' "$tmp/kinds" | while read -r kind; do
		grep -qE "^  (providers|pool|adaptors|defaults|  ) .*\b$kind\b" "$tmp/help" || echo "$kind"
	done
}
empty 'every kind is in the help' helped

# The grammar, but for how characters are quoted.
grammar() { sed -nE 's/^ +(spec|arg) += /\1 = /p' "$1" | tr '"' "'"; }
also 'one grammar' diff <(grammar $page) <(grammar "$tmp/help")
also 'which is there' test "$(grammar $page | wc -l)" -eq 2

# What the page shows is what happens.
spec=$(sed -n "s/^    \$ hetmem spec '\(.*\)'$/\1/p" $page)
run spec "$spec"
shown=$(sed -n '/^    \$ hetmem spec/{n;s/^ *//;s/, \.\.\.$//;p}' $page)
[ "$status" -eq 2 ] && [ -n "$shown" ] && grep -qF -- "$shown" "$tmp/err"
judge 'the error of the page'
mapfile -t shown < <(sed -nE "s/^  hetmem spec '(.*)'$/\1/p" "$tmp/help")
for spec in "${shown[@]}"; do
	run spec "$spec"
	[ "$status" -eq 0 ]
	judge "the help's $spec"
done
HETMEM_RESOURCE='limit(pool(host),max=1G)' run spec
[ "$status" -eq 0 ] && grep -q '^limit' "$tmp/out"
judge 'HETMEM_RESOURCE'
run spec
[ "$status" -eq 0 ] && grep -q '^device-pool' "$tmp/out"
judge 'device-pool, if it is not set'

# Each spec of the pages' sentences is one, but for those that are no pools' providers; N is
# a number, and vmm() stands in a pool.
examples()
{
	grep -ohE '`[a-z-]+\([^`]*\)`' Documentation/{spec,pool,replay,ucx,pytorch}.md |
		tr -d '`' | grep -vE '\.\.\.|PROVIDER|=[,)]|\(R\)' |
		sed 's/=N/=0/; s/^vmm.*/pool(&)/' | sort -u
}
not_to_be() { examples | grep -E '^pool\((pool|stats)\('; }
wrong()
{
	examples | grep -vxF "$(not_to_be)" | while read -r spec; do
		build/hetmem spec "$spec" >/dev/null 2>"$tmp/why" || { echo "$spec"; cat "$tmp/why"; }
	done
	not_to_be | while read -r spec; do
		! build/hetmem spec "$spec" >/dev/null 2>&1 || echo "$spec is not refused"
	done
}
empty 'the examples of the pages are specs' wrong
also 'of which there are some' test "$(examples | wc -l)" -ge 8 -a "$(not_to_be | wc -l)" -eq 2
done_testing
