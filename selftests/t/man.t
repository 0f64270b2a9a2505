#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The manual pages: mandoc and groff read them without a warning, and what they list is what
# there is: commands, options, functions, errors, kinds of resources, variables. Their examples
# run.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh
need mandoc:mandoc man:man-db groff:groff-base gcc:gcc

hetmem=$top/build/hetmem
pages=build/man
check 'make' make -s
rm -rf $pages build/html
check 'make man' make man
check 'make html' make html
also 'a page of HTML for each page' diff <(cd $pages && printf '%s\n' *.[1-8]) \
	<(cd build/html && printf '%s\n' *.html | sed 's/\.html$//')
dead_links()
{
	local from to

	grep -oE 'class="Xr" href="[^"]*"' build/html/*.html | tr -d '"' | sed 's/:.*href=/ /' | sort -u |
	while read -r from to; do
		case $to in
		hetmem*) [ -e "build/html/$to" ] || echo "$from: $to" ;;
		esac
	done
}
also 'with links' grep -q 'class="Xr" href="hetmem_alloc.3.html"' build/html/hetmem.3.html
empty 'none is dead' dead_links

# Written by hand or not: each page once, without links.
files=("$pages"/*.[1-8])
real=()
for file in "${files[@]}"; do
	[ -h "$file" ] || real+=("$file")
done
also 'there are pages' test ${#real[@]} -ge 35
lint()
{
	# What other packages have is not installed everywhere.
	mandoc -T lint -W style "${real[@]}" 2>/dev/null | grep -v 'referenced manual not found: Xr'
}
empty 'mandoc -T lint' lint
warnings()
{
	local page

	for page in "${real[@]}"; do
		MANROFFSEQ='' LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null | sed "s|^|$page: |"
		groff -ww -mandoc -Tutf8 -Z "$page" 2>&1 >/dev/null | sed "s|^|$page: |"
	done
}
empty 'man and groff have no warning' warnings
shown()
{
	local page

	for page in "${files[@]}"; do
		LC_ALL=C MANPAGER=cat man -l "$page" 2>&1 | grep -q '^NAME' || echo "$page"
	done
}
empty 'man -l shows each' shown
# A page that a warning of each kind would come from.
cp $pages/hetmem.1 "$tmp/bad.1"
printf '.Bogus x\n.It y\n' >>"$tmp/bad.1"
also 'a mistake would be seen' sh -c "mandoc -T lint -W style '$tmp/bad.1' | grep -q 'unknown macro'"
also 'by groff, too' sh -c "groff -ww -mandoc -Tutf8 -Z '$tmp/bad.1' 2>&1 >/dev/null | grep -q Bogus"

references()
{
	grep -hoE '^\.(It )?Xr hetmem[a-z_-]* [1-8]|Ns Xr hetmem[a-z_-]* [1-8]' "${real[@]}" |
		sed 's/.*Xr //' | sort -u | while read -r name section; do
			[ -e "$pages/$name.$section" ] || echo "$name($section)"
		done
}
empty 'each page that another names is there' references
titles()
{
	local page name

	for page in "${real[@]}"; do
		name=${page##*/}
		grep -qx "\.Dt ${name^^}" <(sed -n 's/^\(\.Dt .*\) \([1-8]\)$/\1.\2/p' "$page") || echo "$page"
	done
}
empty 'each has the title of its file' titles

# Section 1: commands and options.
commands() { "$hetmem" --help | sed -n 's/^  \([a-z]*\)  *\(.*\)$/\1 \2/p'; }
listed() { awk '/^\.It Xr hetmem-/ { name = $3; sub("hetmem-", "", name); getline; print name, $0 }' $pages/hetmem.1; }
also 'there are commands' test "$(commands | wc -l)" -ge 10
check 'hetmem(1) lists them, with their help' diff <(commands) <(listed)
described() { sed -n "s/^\.Nd //p" "$pages/hetmem-$1.1"; }
about()
{
	commands | while read -r name help; do
		[ "$(described "$name")" = "$help" ] || echo "hetmem-$name(1): '$(described "$name")', not '$help'"
	done
}
empty 'each has a page about the same' about
other_pages()
{
	(cd $pages && printf '%s\n' hetmem-*.1) | sed 's/^hetmem-\(.*\)\.1$/\1/' |
		while read -r name; do commands | grep -q "^$name " || echo "$name"; done
}
empty 'and no other has' other_pages

# options COMMAND: of the table: "name VALUE" or "name -", and the words of a value.
"$hetmem" completion zsh >"$tmp/zsh"
options()
{
	awk -v want="	'$1')" '$0 == want { on = 1; next } on && /^\t\x27/ { exit } on' "$tmp/zsh" |
		sed -nE "s/^\t\t\t'\*--([a-z-]+)(=:([^:]*):(.*))?'.*/\1 \3\4/p" |
		sed -E 's/ (SPEC)?\([^)]*\)$/&/' | awk '{ print $1, (NF > 1 ? "VALUE" : "-") }' | sort -u
}
# in_list PAGE: those that it explains. in_synopsis PAGE [BENCHMARK]: those of its first lines.
marked() { sed -nE 's/^.*Fl -([a-z-]+)(( Ns = Ns| Ns)? Ar .*)?$/\1 \2/p' | awk '{ print $1, (NF > 1 ? "VALUE" : "-") }' | sort -u; }
in_list() { grep '^\.It Fl -' "$1" | sed 's/ , [a-z]$//' | marked; }
in_synopsis()
{
	sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/p' "$1" | awk -v bench="${2-}" '
		/^\.Nm/ { on = bench == "" }
		/^\.Cm/ && bench != "" { for (i = 2; i <= NF; i++) if ($i == bench) on = 1 }
		on' | grep -E '^\.(Op )?Fl -[a-z]|Fl -self' | marked
}
for name in $(commands | sed 's/ .*//'); do
	page=$pages/hetmem-$name.1
	[ "$name" != bench ] || continue
	check "hetmem-$name(1) explains the options of the command" diff <(options "$name") <(in_list "$page")
	check 'its synopsis has them' diff <(options "$name") <(in_synopsis "$page")
done
also 'a command has options' test "$(options replay | wc -l)" -ge 10
benches=$("$hetmem" bench --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
for name in $benches; do
	check "hetmem-bench(1): the options of $name" diff <(options "bench $name") \
		<(in_synopsis $pages/hetmem-bench.1 "$name")
	also 'and a text' grep -qx "\.It Cm $name" $pages/hetmem-bench.1
done
check 'it explains each' diff <(for name in $benches; do options "bench $name"; done | sort -u) \
	<(in_list $pages/hetmem-bench.1)
# The words that an option takes.
words()
{
	local name

	for name in $(commands | sed 's/ .*//'); do
		{
			awk -v want="	'$name')" '$0 == want { on = 1; next } on && /^\t\x27/ { exit } on' "$tmp/zsh"
			[ "$name" != bench ] || grep -A9 "^	'bench " "$tmp/zsh"
		} | grep -v SPEC: | sed -nE "s/.*:value:\(([^)]*)\).*/\1/p" | tr ' ' '\n' | sed 's/=$//' | grep . |
			sort -u | sed "s/^/$name /"
	done
}
unsaid()
{
	local worst

	# The programs of bench worst are in its help.
	worst=$("$hetmem" bench worst --help | sed -n 's/^  \([a-z0-9-]*\)  .*/bench \1/p')
	words | grep -vxF "$worst" | while read -r name word; do
		grep -qwE -- "$word" "$pages/hetmem-$name.1" || echo "hetmem-$name(1): $word"
	done
}
empty 'the words of an option are in its page' unsaid
also 'there are words' test "$(words | wc -l)" -ge 20

# Section 3: functions.
functions() { sed -n 's/^\t*\(hetmem_[a-z0-9_]*\);$/\1/p' lib/libhetmem.map | sort; }
without_page()
{
	functions | while read -r name; do
		page=$pages/$name.3
		[ -e "$page" ] || { echo "$name: no page"; continue; }
		grep -qE "^\.Nm $name( ,)?$" "$page" || echo "$name: not in NAME"
		grep -qx "\.Fo $name" "$page" || echo "$name: no prototype"
		grep -qE "^\.Ss .*\b$name\(\)" "$page" || echo "$name: no text"
	done
}
empty 'each function has a page' without_page
also 'there are functions' test "$(functions | wc -l)" -ge 100
# Each errno of the headers arrives, at the page of its function.
errnos() { grep -ohE '\-E[A-Z0-9]{3,}' "$@" | grep -cvx -- '-EINVAL'; }
made_errnos() { cat "${real[@]}" | grep -E '^\.(It|No)' | grep -oE 'Er E[A-Z0-9]+' | grep -vcx 'Er EINVAL'; }
also 'each errno of the headers is in a page' test "$(made_errnos)" -ge "$(errnos include/hetmem.h include/hetmem/*.h \
	include/uapi/linux/hetmem.h)"
structs()
{
	grep -ohE '^struct hetmem_[a-z_]+ \{' include/hetmem.h include/hetmem/*.h include/uapi/linux/*.h |
		sed 's/ {//' | sort -u
}
without_struct()
{
	structs | while read -r line; do
		grep -qx "$line {" "${real[@]}" || echo "$line"
	done
}
empty 'each struct is in a page' without_struct
constants()
{
	grep -ohE '^#define HETMEM_[A-Z0-9_]+|^	HETMEM_[A-Z0-9_]+' include/hetmem.h include/hetmem/*.h \
		include/uapi/linux/*.h | sed 's/#define //' | grep -vE '_H$' | sort -u
}
cat "${real[@]}" >"$tmp/all"
without_constant() { constants | while read -r name; do grep -qw "$name" "$tmp/all" || echo "$name"; done; }
empty 'each constant, too' without_constant
ioctls() { grep -ohE 'HETMEM_(EMU_)?IOC_[A-Z_]+' include/uapi/linux/*.h | sort -u; }
without_ioctl() { ioctls | while read -r name; do grep -qx "\.Ss $name" $pages/*.4 || echo "$name"; done; }
empty 'section 4 has each command' without_ioctl
also 'there are commands' test "$(ioctls | wc -l)" -ge 17

# Section 7.
kinds() { "$hetmem" spec --list | sed -n 's/^\([a-z-]\{1,\}\) .*/\1/p'; }
parameters() { "$hetmem" spec --list | sed -n 's/^  *\([a-z_]\{1,\}\)  *.*/\1/p' | sort -u; }
mandoc -T ascii $pages/hetmem-spec.7 | col -b >"$tmp/spec"
unknown_to_spec() { { kinds; parameters; } | while read -r word; do grep -qw -- "$word" "$tmp/spec" || echo "$word"; done; }
empty 'hetmem-spec(7) has each kind and parameter' unknown_to_spec
also 'there are some' test "$(kinds | wc -l)" -ge 20 -a "$(parameters | wc -l)" -ge 30
variables()
{
	{
		grep -rhoE '(getenv|environment|variable)[a-z_]*\([^)]*"HETMEM_[A-Z_]+"' lib tools --include='*.c'
		grep -rhoE 'environ\.get\("HETMEM_[A-Z_]+"' tools/python
	} | grep -oE 'HETMEM_[A-Z_]+' | sort -u
}
without_variable()
{
	variables | while read -r name; do
		[ "$name" = HETMEM_RUN ] || grep -qx "\.It Ev $name" $pages/hetmem.[17] || echo "$name"
	done
}
empty 'each variable of the environment is in hetmem(1) or hetmem(7)' without_variable
also 'there are variables' test "$(variables | wc -l)" -ge 10

# Examples: commands, but those of root; the program of hetmem(3).
examples() { sed -n '/^\.Sh EXAMPLES/,/^\.Sh SEE/s/^\.Dl //p' "$1" | sed 's/\\(dq/"/g' | grep -v '^[#$] '; }
mkdir "$tmp/run"
for page in "$pages"/*.1 "$pages/hetmem.7"; do
	while read -r line; do
		status=0
		(cd "$tmp/run" && PATH=$top/build:$PATH LC_ALL=C bash -c "$line") >"$tmp/out" 2>"$tmp/err" </dev/null || status=$?
		most=0
		# What is asked for is missing on most machines.
		[[ $line != *'hetmem doctor --require'* ]] || most=1
		if [ $status -le $most ]; then
			pass "${page##*/}: $line"
		else
			fail "${page##*/}: $line" < <(echo "exit $status"; cat "$tmp/out" "$tmp/err")
		fi
	done < <(examples "$page")
	[ "$page" = $pages/hetmem-demo.1 ] || [ "$page" = $pages/hetmem-replay.1 ] ||
		also "${page##*/} has examples" grep -q '^\.Sh EXAMPLES' "$page"
done
also 'some ran' test "$(for page in "$pages"/*.1 "$pages/hetmem.7"; do examples "$page"; done | wc -l)" -ge 12
# code PAGE: the examples in lines of their own.
code() { sed -n '/^\.Sh EXAMPLES/,/^\.Sh SEE/p' "$1" | sed -n '/^\.Bd/,/^\.Ed/p' | sed '/^\.[BE]d/d; s/\\e/\\/g; s/^\\&//'; }
code $pages/hetmem.3 >"$tmp/example.c"
command=$(examples $pages/hetmem.3 | grep '^gcc ')
check 'make install' make install DESTDIR="$tmp/root" PREFIX=/usr
root=$tmp/root/usr
also 'hetmem(3) tells how to compile its example' test -n "$command"
check 'it compiles as printed' env C_INCLUDE_PATH="$root/include" LIBRARY_PATH="$root/lib" sh -c \
	"cd '$tmp' && ${command/\$(pkg-config --cflags --libs hetmem)/-Wall -Wextra -Werror -lhetmem}"
check 'and runs' env LD_LIBRARY_PATH="$root/lib" HETMEM_DRIVER=soft "$tmp/example"
also 'with a line about what moved' grep -qE '^moved by: .+' "$tmp/out"
cat >"$tmp/program.c" <<'END'
#include <hetmem.h>
int main(void)
{
	struct hetmem_resource *pool;
	struct hetmem *hm;
	void *block;

	return hetmem_open(&hm, NULL) || hetmem_resource_create(hm, NULL, &pool) ||
		hetmem_alloc(pool, 4096, 0, HETMEM_STREAM_LEGACY, &block) ||
		hetmem_free(pool, block, 4096, HETMEM_STREAM_LEGACY) || hetmem_resource_destroy(pool);
}
END
check 'a program to record' gcc -I"$root/include" -o "$tmp/program" "$tmp/program.c" -L"$root/lib" -lhetmem
check 'hetmem-replay(1): its example' env PATH="$top/build:$PATH" LD_LIBRARY_PATH="$root/lib" bash -c "
	set -e; cd '$tmp'; $(code $pages/hetmem-replay.1)"

# make install: all of them, or a line about what is left out.
check 'all pages are installed' diff <(cd $pages && printf '%s\n' *.[1-8]) \
	<(cd "$root/share/man" && find . -name '*.[1-8]' | sed 's|.*/||' | sort)
check 'man finds a function by a link' sh -c "MANPATH='$root/share/man' MANPAGER=cat man hetmem_free |
	tr -s ' \\n' ' ' | grep -q 'allocate and free'"
check 'make uninstall' make uninstall DESTDIR="$tmp/root" PREFIX=/usr
also 'leaves none, and no folder' test ! -e "$root/share/man"
mv $pages "$tmp/made"
check 'without Python' make install DESTDIR="$tmp/bare" PREFIX=/usr PYTHON=/nonexistent
also 'one line for what is left out' test "$(grep -c '^left out: manual pages of section 3, hetmem(4) and hetmem-spec(7)' "$tmp/out")" -eq 1
also 'the others are there' test -s "$tmp/bare/usr/share/man/man1/hetmem.1" -a -s "$tmp/bare/usr/share/man/man7/hetmem.7" \
	-a ! -e "$tmp/bare/usr/share/man/man3"
rm -rf $pages
mv "$tmp/made" $pages
touch $pages/made
exits 2 'make html without mandoc' make html PATH="$tmp/none:/nonexistent" SHELL=/bin/sh

# What must not pass: a function without a page, a name that is gone, a name twice.
mkdir -p "$tmp/tree/lib" "$tmp/tree/Documentation"
cp -R include "$tmp/tree/"
cp lib/libhetmem.map "$tmp/tree/lib/"
cp -R Documentation/man "$tmp/tree/Documentation/"
cp Documentation/spec.md "$tmp/tree/Documentation/"
generate() { python3 -B "$tmp/tree/Documentation/man/generate.py" "$tmp/tree/out" 1; }
groups=$tmp/tree/Documentation/man/groups
# refused NAME PATTERN: generate.py stops with one line.
refused()
{
	exits 1 "$1" generate
	also 'and the line tells' sh -c "[ \$(wc -l <'$tmp/err') -eq 1 ] && grep -q -- '$2' '$tmp/err'"
	cp Documentation/man/groups "$groups"
	cp lib/libhetmem.map "$tmp/tree/lib/"
	cp include/hetmem.h "$tmp/tree/include/"
}
check 'a copy' generate
sed -i 's/hetmem_free //' "$groups"
refused 'a function in no page' 'hetmem_free is in no page'
sed -i 's/hetmem_grow/hetmem_stretch/' "$groups"
refused 'a name that no header has' 'hetmem_'
sed -i 's/\thetmem_walk/\thetmem_walk hetmem_free/' "$groups"
refused 'a name twice' 'hetmem_free is in two pages'
sed -i 's/\tlocal:/\t\thetmem_new;\n\tlocal:/' "$tmp/tree/lib/libhetmem.map"
refused 'a new function' 'hetmem_new is in no page'
sed -i '2,3d' "$tmp/tree/include/hetmem.h"
refused 'a header that begins otherwise' 'hetmem.h'
done_testing
