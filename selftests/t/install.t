#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# make install by a user into a folder of their own: what needs root is left out with a line
# each. Programs are built against the installed tree by pkg-config and by CMake.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh
need cmake:cmake pkg-config:pkg-config setpriv:util-linux

# As a user who has a copy of the tree, built. Root is only needed to become another user.
chmod 755 "$tmp"
user=()
[ "$(id -u)" -ne 0 ] || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
copy=$tmp/copy
home=$tmp/home
mkdir -p "$copy" "$home"
check 'make' make -s
check 'a copy of the tree' sh -c \
	"tar -c --exclude=./build --exclude='./.*' . | tar -x --no-same-owner -C '$copy'"
check 'with what is built' sh -c "tar -c build/config.h build/config.mk build/flags build/hetmem \
	build/libhetmem* build/obj/lib build/obj/tools | tar -x --no-same-owner -C '$copy'"
[ "$(id -u)" -ne 0 ] || chown -R 65534:65534 "$copy" "$home"
as_user() { (cd "$copy" && env HOME="$home" TMPDIR="$home" "${user[@]}" "$@"); }

x=$home/x
find /lib/udev/rules.d /usr/lib/udev/rules.d 2>/dev/null | sort >"$tmp/before"
check 'make install PREFIX=$HOME/x' as_user make install PREFIX="$x"
also 'one line for the udev rule' grep -qx 'left out: /lib/udev/rules.d/60-hetmem.rules, which needs root; .*' "$tmp/out"
also 'one for the unit that restores settings' grep -qx "left out: /lib/systemd/system/hetmem-tune.service, which needs root; type 'hetmem tune --restore' after each boot" "$tmp/out"
also 'one for ldconfig, with what to type' grep -qx "left out: ldconfig, which needs root; type: export LD_LIBRARY_PATH=$x/lib" "$tmp/out"
also 'and no other' test "$(grep -c . "$tmp/out")" -eq 4 -a ! -s "$tmp/err"
find /lib/udev/rules.d /usr/lib/udev/rules.d 2>/dev/null | sort >"$tmp/after"
also 'the system has what it had' diff "$tmp/before" "$tmp/after"
for file in bin/hetmem lib/libhetmem.so.0 lib/libhetmem.a lib/cmake/hetmem/hetmem-config.cmake \
	    include/hetmem.h share/man/man1/hetmem.1 share/zsh/site-functions/_hetmem \
	    share/bash-completion/completions/hetmem share/fish/vendor_completions.d/hetmem.fish; do
	also "$file" test -s "$x/$file"
done
check 'a rule goes where the user may write' as_user make install PREFIX="$home/y" UDEVDIR="$home/y/rules" UNITDIR="$home/y/units"
also 'and a unit, which names the command' grep -qx "ExecStart=$home/y/bin/hetmem tune --restore" "$home/y/units/hetmem-tune.service"
also 'and is not left out' sh -c "[ -s '$home/y/rules/60-hetmem.rules' ] && ! grep -q udev '$tmp/out'"
check 'make uninstall' as_user make uninstall PREFIX="$home/y" UDEVDIR="$home/y/rules" UNITDIR="$home/y/units"
files_in() { [ ! -e "$1" ] || find "$1" ! -type d; }
empty 'leaves nothing' files_in "$home/y"

cat >"$tmp/program.c" <<'END'
#include <hetmem.h>
#include <stdio.h>

int main(void)
{
	struct hetmem_resource *pool;
	struct hetmem *hm;
	void *block;

	if (hetmem_open(&hm, NULL) || hetmem_resource_create(hm, "pool(host)", &pool) ||
	    hetmem_alloc(pool, 4096, 0, HETMEM_STREAM_LEGACY, &block) ||
	    hetmem_free(pool, block, 4096, HETMEM_STREAM_LEGACY)) {
		fprintf(stderr, "%s\n", hetmem_last_error());
		return 1;
	}
	hetmem_resource_destroy(pool);
	hetmem_close(hm);
	return 0;
}
END
pc() { PKG_CONFIG_PATH=$x/lib/pkgconfig pkg-config "$@"; }
check 'pkg-config knows the version' sh -c "[ \"\$(PKG_CONFIG_PATH='$x/lib/pkgconfig' \
	pkg-config --modversion hetmem)\" = \"\$(sed -n 's/^VERSION[[:space:]]*= //p' Makefile)\" ]"
# shellcheck disable=SC2046
check 'a program by pkg-config' gcc -Wall -Werror $(pc --cflags hetmem) -o "$tmp/program" \
	"$tmp/program.c" $(pc --libs hetmem)
check 'runs' env LD_LIBRARY_PATH="$x/lib" HETMEM_DRIVER=soft "$tmp/program"
check 'the command finds the soft driver in ../lib' env -u LD_LIBRARY_PATH \
	"$x/bin/hetmem" spec --create --driver soft device-pool
# shellcheck disable=SC2046
check 'a static one by pkg-config' gcc $(pc --cflags hetmem) -o "$tmp/static" "$tmp/program.c" \
	"$x/lib/libhetmem.a" $(pc --static --libs-only-l hetmem | sed 's/-lhetmem//')
check 'runs without the library' env LD_LIBRARY_PATH="$x/lib" HETMEM_DRIVER=soft "$tmp/static"

mkdir "$tmp/cmake"
cp "$tmp/program.c" "$tmp/cmake/"
cat >"$tmp/cmake/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(program C)
find_package(hetmem ${WANT} REQUIRED)
find_package(hetmem ${WANT} REQUIRED)
add_executable(program program.c)
target_link_libraries(program hetmem::hetmem)
add_executable(static program.c)
target_link_libraries(static hetmem::static)
END
# configure PREFIX ARGUMENT...
configure()
{
	local prefix=$1

	shift
	rm -rf "$tmp/cmake/build"
	cmake -S "$tmp/cmake" -B "$tmp/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" "$@"
}
check 'CMake finds it' configure "$x"
check 'and builds programs' cmake --build "$tmp/cmake/build"
check 'the shared one runs where it was built' env HETMEM_DRIVER=soft "$tmp/cmake/build/program"
also 'and needs the library by its soname' sh -c \
	"readelf -d '$tmp/cmake/build/program' | grep -q 'NEEDED.*libhetmem\.so\.[0-9]*\]'"
check 'the static one runs' env LD_LIBRARY_PATH="$x/lib" HETMEM_DRIVER=soft "$tmp/cmake/build/static"
empty 'and does not need it' sh -c "readelf -d '$tmp/cmake/build/static' | grep 'NEEDED.*libhetmem'"
check 'CMake: the same minor version' configure "$x" -DWANT=0.1
exits 1 'CMake: another one' configure "$x" -DWANT=0.2
also 'is named' grep -q 'version: 0\.1' "$tmp/err"
exits 1 'CMake: a version that is newer' configure "$x" -DWANT=0.1.99
mv "$x" "$home/moved"
check 'CMake: a tree that was moved' configure "$home/moved"
check 'builds programs' cmake --build "$tmp/cmake/build"
check 'which run' env HETMEM_DRIVER=soft "$tmp/cmake/build/program"
mv "$home/moved/lib/libhetmem.so.0" "$tmp/"
exits 1 'CMake: a library that is gone' configure "$home/moved"
# CMake wraps its lines.
also 'is named' sh -c "tr -s '[:space:]' ' ' <'$tmp/err' | grep -q 'libhetmem.so.0 is missing'"
mv "$tmp/libhetmem.so.0" "$home/moved/lib/"
mv "$home/moved" "$x"

check 'make uninstall' as_user make uninstall PREFIX="$x"
empty 'leaves nothing' files_in "$x"
also 'no folder of its own' test ! -e "$x/include/hetmem" -a ! -e "$x/lib/cmake/hetmem"
done_testing
