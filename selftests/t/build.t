#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# What is built is what it should be: symbols, libraries, headers, installed files.
. "$(dirname "$0")/tap.sh"
. selftests/t/layers.sh

check 'make' make
check 'make without a warning' make -j"$(nproc)" B=build/werror CFLAGS='-O2 -Werror'
check 'make again does nothing' sh -c 'make | tee /dev/stderr | grep -q "Nothing to be done"'
check 'make help fits a screen' sh -c 'make help | awk "length > 90 { wide = 1 } END { exit wide || NR > 32 }"'

# These two, and the loader, which is a part of libc.
empty 'the library needs libc and libnuma only' sh -c \
	'readelf -d build/libhetmem.so | grep NEEDED | grep -v -e "\[libc\.so" -e "\[ld-linux" -e "\[libnuma\.so"'
empty 'the library exports hetmem_* only' sh -c \
	'nm -D --defined-only build/libhetmem.so | sed "s/@.*//" | awk "\$2 != \"A\" { print \$3 }" | grep -v "^hetmem_"'
declared=$(sed 's/struct//g' include/hetmem.h include/hetmem/*.h | grep -oE '\bhetmem_[a-z_]+\(' | grep -oE '[a-z_]+' | sort -u)
exported=$(nm -D --defined-only build/libhetmem.so | sed 's/@.*//' | awk '$2 != "A" { print $3 }' | sort -u)
check 'the library exports what its headers declare' diff <(echo "$declared") <(echo "$exported")
# glibc keeps 1,664 bytes for all libraries that are loaded late, hetmem's and later ones.
check 'little of what threads have is thread-local storage' sh -c \
	'size=$(readelf -lW build/libhetmem.so | awk "/TLS/ { print \$6 }"); [ $((size)) -gt 0 ] && [ $((size)) -le 160 ]'
check 'symbols have versions' sh -c 'nm -D --defined-only build/libhetmem.so | grep -q "hetmem_open@@"'

# What a framework loads is a program of its own: it opens the library as any does.
symbols build/obj/lib >"$tmp/symbols"
empty 'no folder of lib/ calls one above it' sh -c \
	". selftests/t/layers.sh; grep -v ' framework open hetmem_open$' '$tmp/symbols' | upward"
also 'there is something to see' test "$(wc -l <"$tmp/symbols")" -gt 300

# The soft driver is an object of its own: found as libcuda.so.1 is, never linked in.
empty 'the soft driver needs libc and libnuma only' sh -c \
	'readelf -d build/libhetmem-soft.so | grep NEEDED | grep -v -e "\[libc\.so" -e "\[ld-linux" -e "\[libnuma\.so"'
check 'the soft driver exports what libcuda.so.1 is asked for, and one table' diff \
	<(printf '%s\n' cuDriverGetVersion cuGetProcAddress_v2 hetmem_soft) \
	<(nm -D --defined-only build/libhetmem-soft.so | awk '{ print $3 }' | sort)
empty 'nothing of it is in the library' sh -c 'nm build/libhetmem.so build/libhetmem.a | grep hm_soft_ | grep -v hm_soft_open'
check 'its soname' sh -c 'readelf -d build/libhetmem.so | grep -q "SONAME.*libhetmem\.so\.[0-9]*\]"'

# The public headers, by themselves, in every language and word size that may use them.
for header in linux/hetmem.h linux/hetmem_emu.h hetmem.h hetmem/{adaptor,framework,hint,move,place,pool,snapshot}.h; do
	for lang in 'c -std=c99' 'c -std=gnu11' 'c++ -std=c++11' 'c++ -std=c++17'; do
		echo "#include <$header>" >"$tmp/header.c"
		# shellcheck disable=SC2086
		check "$header compiles as $lang" gcc -x $lang -Wall -Wextra -Werror \
			-Wpedantic -fsyntax-only -Iinclude -Iinclude/uapi "$tmp/header.c"
	done
done

# Every struct of the ioctl interface: its size and the place of each member.
layout()
{
	echo '#include <linux/hetmem.h>'
	echo '#include <linux/hetmem_emu.h>'
	echo 'const unsigned int layout[] = {'
	sed 's/\/\*.*\*\///' include/uapi/linux/hetmem*.h | awk '
		/^struct [a-z_]+ \{/ { s = $2; print "sizeof(struct " s "),"; next }
		/^};/ { s = "" }
		s && /;/ {
			m = $0
			sub(/;.*/, "", m)
			sub(/\[.*/, "", m)
			sub(/.*[ \t]/, "", m)
			print "__builtin_offsetof(struct " s ", " m "),"
		}'
	echo '};'
	# Entries of arrays, and what is mapped: they may grow, and these are their first sizes.
	printf '_Static_assert(sizeof(struct hetmem_%s) == %d, "");\n' device_info 56 pool_info 40 \
		run 32 total 16 event 64 ring_header 520 list_entry 32
}
layout >"$tmp/layout.c"
for bits in 32 64; do
	check "the ioctl interface compiles for $bits bits" gcc -m$bits -std=gnu11 -S \
		-Iinclude/uapi -isystem /usr/include/x86_64-linux-gnu \
		-o "$tmp/layout$bits.s" "$tmp/layout.c"
	grep -E '\.(long|zero)' "$tmp/layout$bits.s" >"$tmp/layout$bits"
done
check 'its structs are the same for 32 and 64 bits' diff "$tmp/layout32" "$tmp/layout64"
check 'all of them were compared' sh -c "[ \$(grep -c ^sizeof '$tmp/layout.c') -eq \$(cat \
	include/uapi/linux/hetmem*.h | grep -c '^struct .* {') ]"

# The driver's ABI is the same in all of CUDA 12.2 to 13: each cuda.h that is installed,
# the toolkits', Python's and what the environment names.
for cuda in /usr/include /usr/local/cuda*/include ${HETMEM_CUDA_INCLUDE:-} \
	    $(python3 -m site 2>/dev/null | sed -n "s|^ *'\(/.*-packages\)',|\1/nvidia/*/include|p"); do
	[ -r "$cuda/cuda.h" ] || continue
	version=$(sed -n 's/^#define CUDA_VERSION *//p' "$cuda/cuda.h")
	check "cuda.h of $version: compared" gcc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Wshadow \
		-Werror -Iinclude -Iinclude/uapi -Ilib -Iselftests/lib -isystem "$cuda" -o "$tmp/cuda-types" \
		selftests/lib/driver/cuda_types.c
	also 'by the compiler, and completely' sh -c "'$tmp/cuda-types' >'$tmp/out' &&
		grep -q 'compared with cuda.h' '$tmp/out'"
done

check 'make install' make install DESTDIR="$tmp/root" PREFIX=/usr
for file in usr/lib/libhetmem.so usr/lib/libhetmem-soft.so usr/lib/hetmem/libhetmem-{cuda,preload}.so usr/lib/libhetmem.a usr/lib/pkgconfig/hetmem.pc \
	    usr/include/hetmem.h usr/include/hetmem/{adaptor,framework,hint,place,pool}.h \
	    usr/include/linux/hetmem.h usr/bin/hetmem \
	    lib/udev/rules.d/60-hetmem.rules; do
	check "/$file is installed" test -s "$tmp/root/$file"
done
check 'the installed command runs' "$tmp/root/usr/bin/hetmem" --help
check 'the installed library finds the installed soft driver' env LD_LIBRARY_PATH="$tmp/root/usr/lib" \
	HETMEM_DRIVER=soft "$tmp/root/usr/bin/hetmem" spec --create device-pool
check 'the installed command finds what it preloads, and the library' \
	"$tmp/root/usr/bin/hetmem" run --spec system true
echo '#include <hetmem.h>
int main(void) { struct hetmem *hm; return hetmem_open(&hm, 0) || hetmem_device_count(hm) != 1; }' >"$tmp/soft.c"
check 'a program is built with it' gcc -I"$tmp/root/usr/include" -o "$tmp/soft" "$tmp/soft.c" \
	-L"$tmp/root/usr/lib" -lhetmem -Wl,-rpath,"$tmp/root/usr/lib"
check 'and finds the soft driver beside the library' env HETMEM_DRIVER=soft "$tmp/soft"
mv "$tmp/root/usr/lib/libhetmem-soft.so" "$tmp/"
exits 1 'a soft driver that is not there' env HETMEM_DRIVER=soft "$tmp/root/usr/bin/hetmem" spec --create device-pool
also 'and says what to do' grep -q 'libhetmem-soft.so cannot be loaded: .*install it beside libhetmem.so' "$tmp/err"
mv "$tmp/libhetmem-soft.so" "$tmp/root/usr/lib/"
check 'make uninstall' make uninstall DESTDIR="$tmp/root" PREFIX=/usr
empty 'make uninstall leaves nothing' find "$tmp/root" ! -type d
check 'make install, elsewhere' make install DESTDIR="$tmp/root" PREFIX=/opt/own
mkdir -p "$tmp/root/opt/own/share/doc"
check 'make uninstall of it' make uninstall DESTDIR="$tmp/root" PREFIX=/opt/own
check 'leaves the folder that others made' diff <(printf '%s\n' own own/share own/share/doc) \
	<(cd "$tmp/root/opt" && find own | sort)

exits 2 'no libnuma: make stops' make B="$tmp/build" CC="$top/selftests/t/gcc-without numa.h"
also 'and says what to type' grep -q 'apt-get install libnuma-dev' "$tmp/err"
check 'no optional library: make goes on' make B="$tmp/build" CFLAGS=-O0 \
	CC="$top/selftests/t/gcc-without json-c/json.h"
also 'and says at its end what is missing' sh -c \
	"tail -n 1 '$tmp/err' | grep -q 'without libjson-c-dev: no --json; type: apt-get'"
check 'each time' sh -c "make B='$tmp/build' CFLAGS=-O0 CC='$top/selftests/t/gcc-without json-c/json.h' 2>&1 |
	grep -c 'without libjson-c-dev' | grep -qx 1"
done_testing
