#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The example of README.md: compiled as printed, against what `make install` installs.
. "$(dirname "$0")/tap.sh"

# block TEXT: the indented or fenced code block that begins with a line like TEXT.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' README.md >"$tmp/example.c"
command=$(sed -n 's/^    \(gcc .*example\.c.*\)/\1/p' README.md)
body=$(sed -n '/^{/,/^}/p' "$tmp/example.c" | grep -c '[^[:space:]{}]')

check 'README.md has an example' grep -q 'main(' "$tmp/example.c"
check 'of ten lines' test "$body" -ge 8 -a "$body" -le 12
also 'and says how to compile it' test -n "$command"
check 'make install' make install DESTDIR="$tmp/root" PREFIX=/usr
export CPATH=$tmp/root/usr/include LIBRARY_PATH=$tmp/root/usr/lib
export LD_LIBRARY_PATH=$tmp/root/usr/lib
check 'the example compiles as printed, without a warning' \
	sh -c "cd '$tmp' && $command -Wall -Wextra -Werror"
check 'it runs' "$tmp/example"
also 'and prints something' test -s "$tmp/out"
cat >"$tmp/pc.c" <<'EOF'
#include <hetmem.h>
int main(void) { struct hetmem *hm; return hetmem_open(&hm, 0); }
EOF
check 'its pkg-config file names an installed library' sh -c "
	sed -n 's/^Libs: //p' '$tmp/root/usr/lib/pkgconfig/hetmem.pc' |
	grep -q -- '-lhetmem'"
check 'the static library is enough' gcc -o "$tmp/pc" "$tmp/pc.c" \
	"$tmp/root/usr/lib/libhetmem.a" -lnuma

# What README.md and Documentation/ name must be there.
empty 'every path in README.md exists' sh -c '
	grep -ohE "\]\([A-Za-z0-9_./-]+\)" README.md Documentation/README.md |
	tr -d "()]" | while read -r path; do
		[ -e "$path" ] || [ -e "Documentation/$path" ] || echo "$path"
	done'
done_testing
