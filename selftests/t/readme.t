#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The examples of README.md: compiled as printed, against what `make install` installs.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh

need pkg-config:pkg-config

# Each block of C becomes a file; the first is the pool, the second the example of placement.
awk -v to="$tmp" '
	/^```c$/ { on = ++nr; next }
	/^```$/ { on = 0 }
	on { print >(to (nr == 1 ? "/pool.c" : nr == 2 ? "/example.c" : "/more.c")) }' README.md
pool_command=$(sed -n 's/^    \(gcc .*pool\.c.*\)/\1/p' README.md)
pool_run=$(sed -n 's/^    \(HETMEM_RESOURCE=.*\)/\1/p' README.md)
command=$(sed -n 's/^    \(gcc .*example\.c.*\)/\1/p' README.md)
body=$(sed -n '/^{/,/^}/p' "$tmp/example.c" | grep -c '[^[:space:]{}]')

check 'README.md has an example' grep -q 'main(' "$tmp/example.c"
check 'of ten lines' test "$body" -ge 8 -a "$body" -le 12
also 'and says how to compile it' test -n "$command"
check 'make install' make install DESTDIR="$tmp/root" PREFIX=/usr
export CPATH=$tmp/root/usr/include LIBRARY_PATH=$tmp/root/usr/lib
export LD_LIBRARY_PATH=$tmp/root/usr/lib
# The compile lines ask pkg-config, which answers for the root that was installed.
export PKG_CONFIG_PATH=$tmp/root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp/root
check 'the example compiles as printed, without a warning' \
	sh -c "cd '$tmp' && $command -Wall -Wextra -Werror"
also 'and how to run it without a GPU' grep -q '^    HETMEM_DRIVER=soft \./example' README.md
check 'it runs' env HETMEM_DRIVER=soft "$tmp/example"
also 'and prints why no page moved, in words' grep -Eq \
	'^moved by: (none: the soft driver has no device pages without hetmem.ko.*|module)$' "$tmp/out"
for machine in none managed cdmm integrated; do
	check "on a machine that is $machine" env HETMEM_DRIVER=soft HETMEM_SOFT_MACHINE=$machine "$tmp/example"
	also 'and why' grep -Eq '^moved by: ([a-z]+: [A-Za-z].{20,}|module)$' "$tmp/out"
done
check 'where memory moves' env HETMEM_DRIVER=soft HETMEM_SOFT_MACHINE=hmm "$tmp/example"
also 'there is nothing to explain' grep -Eq '^moved by: (driver|module)$' "$tmp/out"
export HETMEM_DRIVER=soft
check 'there is one of the allocator' grep -q hetmem_resource_create "$tmp/pool.c"
also 'and no other' test ! -e "$tmp/more.c"
check 'it compiles as printed, without a warning' \
	sh -c "cd '$tmp' && $pool_command -Wall -Wextra -Werror"
check 'it runs' "$tmp/pool"
also 'and says what it had' grep -qE '^10485760 bytes at most, [0-9]+ held$' "$tmp/out"
check 'with the resource that the environment names, as printed' sh -c "cd '$tmp' && $pool_run"
also 'which writes what it was asked for' test "$(grep -cE ',(allocate|free),0x[0-9a-f]+,10485760,0$' "$tmp/trace.csv")" -eq 2
check 'which can be replayed' build/hetmem replay "$tmp/trace.csv"
# The program of kernel-interface.md. Where the modules are, example and emu_example of
# selftests/kernel/abi run it.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' Documentation/kernel-interface.md >"$tmp/runtime.c"
check 'kernel-interface.md has an example' grep -q 'HETMEM_IOC_' "$tmp/runtime.c"
check 'it compiles as printed, without a warning' \
	gcc -Wall -Wextra -Werror -o "$tmp/runtime" "$tmp/runtime.c"
# The programs of models.md, one a fenced block.
awk -v to="$tmp/model" '/^```c$/ { on = ++nr; next } /^```$/ { on = 0 } on { print >(to on ".c") }' \
	Documentation/models.md
check 'models.md has two programs' test -e "$tmp/model2.c" -a ! -e "$tmp/model3.c"
for n in 1 2; do
	check "program $n compiles as printed, without a warning" gcc -Wall -Wextra -Werror \
		-I"$tmp/root/usr/include" -o "$tmp/model$n" "$tmp/model$n.c" \
		"$tmp/root/usr/lib/libhetmem.a" -lnuma
	check 'it runs' env HETMEM_DRIVER=soft "$tmp/model$n"
done
also 'with check mode' env HETMEM_DRIVER=soft HETMEM_SOFT_CHECK=1 "$tmp/model2"
# The program of vmm.md, of three processes.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' Documentation/vmm.md >"$tmp/ranks.c"
check 'the program of vmm.md compiles as printed, without a warning' sh -c \
	"cd '$tmp' && $(grep '^gcc ' Documentation/vmm.md) -Wall -Wextra -Werror"
check 'three processes share a range' env HETMEM_SOFT_CHECK=1 "$tmp/ranks"
also 'and print what the page says' grep -qxF "$(grep '^three processes' Documentation/vmm.md)" "$tmp/out"
cat >"$tmp/pc.c" <<'EOF'
#include <hetmem.h>
int main(void) { struct hetmem *hm; return hetmem_open(&hm, 0); }
EOF
check 'its pkg-config file names an installed library' sh -c "
	sed -n 's/^Libs: //p' '$tmp/root/usr/lib/pkgconfig/hetmem.pc' |
	grep -q -- '-lhetmem'"
check 'the static library is enough' gcc -o "$tmp/pc" "$tmp/pc.c" \
	"$tmp/root/usr/lib/libhetmem.a" -lnuma

# captures.md: each command that selftests/captures runs, and options that there are.
captured() { sed -n 's/^## //p' Documentation/captures.md; }
check 'captures.md has the commands of selftests/captures' diff <(captured) \
	<(sed -n "/<<'END'$/,/^END$/p" selftests/captures | grep hetmem)
also 'there are some' test "$(captured | wc -l)" -ge 5
captured_options()
{
	captured | sed 's/^HETMEM_[A-Z]*=[a-z]* //' | while read -r _ name rest; do
		build/hetmem "$name" --help >"$tmp/sub" 2>&1 || echo "$name"
		grep -oE -- ' --[a-z-]+' <<<" ${rest%%\'*}" | while read -r option; do
			grep -qE -- "$option\b" "$tmp/sub" || echo "$name $option"
		done
	done
}
empty 'and no other options than there are' captured_options
also 'no capture is empty' awk '/^```text/ { n = 0; on = 1; next } /^```/ { if (on && n < 2) exit 1; on = 0 } on { n++ }' \
	Documentation/captures.md

# Figures of the GPU are those of performance.md: each as it stands there, in the rows of the tables.
figures()
{
	awk -F'|' '/^## / { of = $0 == "## What you gain" ? 4 : $0 ~ /^## Why this/ ? 6 : 0 }
		of && NF > of && /^\|/ { for (i = 3; i <= of; i++) print $i }' README.md | grep -oE '[0-9]+\.?[0-9]*'
	sed -nE 's/^[1-5]\. //p' README.md | grep -oE '[0-9]+\.[0-9]{2,}|[0-9]+\.[0-9] ms'  | tr -d ' ms'
}
also 'README.md has figures of a GPU' test "$(figures | wc -l)" -ge 25
empty 'each is one of performance.md' sh -c "sed -nE '/^## The allocator/,\$p' Documentation/performance.md |
	grep -oE '[0-9]+\.?[0-9]*' | sort -u >'$tmp/known'
	echo '$(figures | tr '\n' ' ')' | tr ' ' '\n' | grep . | grep -vxFf '$tmp/known'"
also 'it can be read in one sitting' test "$(wc -l <README.md)" -le 190
empty 'and names what users ask for' sh -c '
	for word in RMM "expandable segments" aarch64 WSL AMD containers "Never run" Stability Reports; do
		grep -q "$word" README.md || echo "$word"
	done'
# What README.md and Documentation/ name must be there.
linked()
{
	local page path

	for page in README.md Documentation/README.md kernel/README.md lib/README.md tools/README.md; do
		grep -ohE '\]\([A-Za-z0-9_./-]+\)' "$page" | tr -d '()]' | while read -r path; do
			[ -e "$(dirname "$page")/$path" ] || echo "$page: $path"
		done
	done
}
empty 'every path in README.md exists' linked
# The pages of the source folders name files of their folder, or a path from the top.
named()
{
	local folder path

	for folder in kernel lib tools; do
		grep -oE '`[a-z_*/.-]+[/.][a-z_*/.-]*`' $folder/README.md | tr -d '`' | while read -r path; do
			compgen -G "$folder/$path" >/dev/null || compgen -G "$path" >/dev/null || echo "$folder/README.md: $path"
		done
	done
}
empty 'so does every file that the pages of kernel/, lib/ and tools/ name' named
also 'they name some' test "$(cat kernel/README.md lib/README.md tools/README.md | grep -o '\.[ch]`' | wc -l)" -gt 20
unnamed() { for folder in lib/*/ tools/*/; do grep -q "\`$(basename "$folder")/\`" "${folder%%/*}/README.md" || echo "$folder"; done; }
empty 'and they name every folder' unnamed
done_testing
