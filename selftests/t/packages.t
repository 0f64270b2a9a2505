#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The Debian packages: what is in them, what they depend on, lintian, programs built against
# them, DKMS, and that nothing is left when they are removed. `make check-long` installs them
# with apt in a Debian of their own.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh
need dh:debhelper dh_dkms:dh-dkms dh_python3:dh-python dpkg-buildpackage:dpkg-dev lintian:lintian dkms:dkms \
	cmake:cmake pkg-config:pkg-config fakeroot:fakeroot \
	/usr/include/numa.h:libnuma-dev /usr/include/json-c/json.h:libjson-c-dev \
	/usr/include/sha2.h:libmd-dev /usr/include/zlib.h:zlib1g-dev \
	/usr/include/curses.h:libncurses-dev

version=$(sed -n 's/^VERSION[[:space:]]*= //p' Makefile)
soname=$(sed -n 's/^SOVERSION = //p' Makefile)
lib=usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)
arch=$(dpkg --print-architecture)
check 'make deb' make deb
deb() { echo "build/deb/$1_${version}_$([ "$1" = hetmem-dkms ] && echo all || echo "$arch").deb"; }
names="libhetmem$soname libhetmem-dev hetmem-tools hetmem-dkms python3-hetmem"
for package in $names; do
	also "$package" test -s "$(deb "$package")"
	also 'its version' test "$(dpkg-deb -f "$(deb "$package")" Version)" = "$version"
done
check 'lintian' lintian --allow-root --fail-on error,warning build/deb/*.changes
cp "$tmp/out" "$tmp/lintian"
empty 'has nothing to say' grep -E '^[EW]:' "$tmp/lintian"

# files PACKAGE: without the folders, and without what every package has.
files() { dpkg-deb --fsys-tarfile "$(deb "$1")" | tar -t | sed 's|^\./||' | grep -v -e '/$' -e '^$' -e ^usr/share/doc/ -e ^usr/share/lintian/ | sort; }
list() { printf '%s\n' "$@" | sort; }
check 'the library alone' diff <(files "libhetmem$soname") \
	<(list "$lib/libhetmem.so.$soname" "$lib/libhetmem.so.$version")
check 'make man' make man
mapfile -t tool_pages < <(cd build/man && printf 'usr/share/man/man%s.gz\n' *.[17] | sed -E 's|man(hetmem.*)\.([17])\.gz|man\2/\1.\2.gz|')
check 'the command, its man pages and its completion' diff <(files hetmem-tools) \
	<(list usr/bin/hetmem lib/systemd/system/hetmem-tune.service "$lib/libhetmem-soft.so" "$lib"/hetmem/libhetmem-{cuda,preload}.so \
		"${tool_pages[@]}" \
		usr/share/bash-completion/completions/hetmem \
		usr/share/fish/vendor_completions.d/hetmem.fish usr/share/zsh/vendor-completions/_hetmem)
files libhetmem-dev >"$tmp/dev"
for file in usr/include/hetmem.h usr/include/hetmem/pool.h usr/include/linux/hetmem.h \
	    usr/share/man/man3/hetmem_{alloc,free}.3.gz usr/share/man/man4/hetmem.4.gz \
	    "$lib/libhetmem.so" "$lib/libhetmem.a" "$lib/pkgconfig/hetmem.pc" \
	    "$lib/cmake/hetmem/hetmem-config.cmake"; do
	also "to develop: $file" grep -qx "$file" "$tmp/dev"
done
check 'the Python package, but not the library and the command' diff \
	<(files python3-hetmem | sed 's|^usr/lib/python3/dist-packages/||' | grep -v '^hetmem/torch_full/') \
	<({ (cd tools/python && printf '%s\n' *_autoload.py hetmem/*.py hetmem/py.typed); list hetmem/lib/libhetmem-{cupy,torch}.so \
		"hetmem-$version.dist-info/"{METADATA,entry_points.txt}; } | sort)
also 'with what full mode compiles' sh -c "dpkg-deb -c '$(deb python3-hetmem)' | grep -q 'hetmem/torch_full/torch_full\.cc'"
files hetmem-dkms >"$tmp/dkms"
for file in lib/udev/rules.d/60-hetmem.rules usr/lib/modules-load.d/hetmem.conf \
	    "usr/src/hetmem-$version/dkms.conf"; do
	also "the module: $file" grep -qx "$file" "$tmp/dkms"
done

# All that 'make install' installs is in one package, and nothing else.
check 'make install' make install dkms_install python_install DESTDIR="$tmp/staged" PREFIX=/usr LIBDIR="/$lib" \
	ZSHDIR=/usr/share/zsh/vendor-completions
check 'every file is in one package' diff \
	<(cd "$tmp/staged" && find . ! -type d | sed 's|^\./||; s|\(/man/.*\)|\1.gz|' |
		grep -v '/src/hetmem-.*/COPYING$' | sort) \
	<(for package in $names; do files "$package"; done | sort)

depends() { dpkg-deb -f "$(deb "$1")" Depends | tr ',' '\n' | sed 's/^ *//; s/ (>=.*//; s/t64$//' | sort -u; }
check 'the library depends on libc and libnuma' diff <(depends "libhetmem$soname") <(list libc6 libnuma1)
check 'the headers on the library of the same version' diff <(depends libhetmem-dev) \
	<(list "libhetmem$soname (= $version)" libnuma-dev)
check 'the command on what it is linked with' diff <(depends hetmem-tools) \
	<(list libc6 libjson-c5 libmd0 libncurses6 libnuma1 libtinfo6 zlib1g)
check 'the Python package on the library of the same version' diff <(depends python3-hetmem) \
	<(list "libhetmem$soname (= $version)" libc6 libgcc-s1 libstdc++6 python3 python3:any)
check 'the module on dkms' diff <(depends hetmem-dkms) <(list dkms make)
dpkg-deb -e "$(deb "libhetmem$soname")" "$tmp/control"
check 'every symbol is in the symbols file' diff \
	<(sed -n 's/^ \(hetmem_[a-z0-9_]*@.*\) .*/\1/p' "$tmp/control/symbols" | sort) \
	<(nm -D --defined-only build/libhetmem.so | awk '$2 != "A" { print $3 }' | sed 's/@@/@/' | sort)
also 'there are some' test "$(grep -c '^ hetmem_' "$tmp/control/symbols")" -gt 50

# Installed by dpkg, all but hetmem-dkms, whose script would run DKMS of this machine.
root=$tmp/root
mkdir -p "$root/var/lib/dpkg/"{info,updates,triggers}
touch "$root/var/lib/dpkg/"{status,available}
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(fakeroot)
in_root()
{
	"${as_root[@]}" dpkg --root="$root" --log=/dev/null \
		--force-depends,not-root,script-chrootless "$@"
}
check 'dpkg installs them' in_root -i "$(deb "libhetmem$soname")" "$(deb libhetmem-dev)" "$(deb hetmem-tools)"
also 'all three' test "$(grep -c '^Status: install ok installed' "$root/var/lib/dpkg/status")" -eq 3
# Its script would compile for this machine's Python.
dpkg-deb -x "$(deb python3-hetmem)" "$tmp/python"
system_python()
{
	env -u HETMEM_LIBRARY PYTHONPATH="$tmp/python/usr/lib/python3/dist-packages" LD_LIBRARY_PATH="$root/$lib" \
		PATH="$root/usr/bin:$PATH" HETMEM_DRIVER=soft PYTHONDONTWRITEBYTECODE=1 "$@"
}
check 'Python imports the package' system_python /usr/bin/python3 -c "
import ctypes, hetmem, importlib.metadata
from hetmem import _library
assert hetmem.__file__.startswith('$tmp/python'), hetmem.__file__
assert importlib.metadata.version('hetmem') == '$version'
hetmem.resource('pool(host)').alloc(4096).free()
for name in ('torch', 'cupy'): ctypes.CDLL(_library.part(f'libhetmem-{name}.so'))
maps = open('/proc/self/maps').read()
assert '$root/$lib/libhetmem.so.$version' in maps and '/build/' not in maps, maps"
check 'python3 -m hetmem is the command of hetmem-tools' system_python /usr/bin/python3 -m hetmem --version
also 'with its version' grep -q "^hetmem $version " "$tmp/out"
check 'the command runs' env LD_LIBRARY_PATH="$root/$lib" HETMEM_DRIVER=soft \
	"$root/usr/bin/hetmem" spec --create device-pool
check 'its man page can be read' sh -c "gzip -dc '$root/usr/share/man/man1/hetmem.1.gz' | grep -q '^.Nm hetmem'"

cat >"$tmp/program.c" <<'END'
#include <hetmem.h>
int main(void)
{
	struct hetmem *hm;

	return hetmem_open(&hm, NULL) || hetmem_device_count(hm) < 1;
}
END
pc() { PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$root/$lib/pkgconfig pkg-config "$@"; }
# shellcheck disable=SC2046
check 'pkg-config: a program' gcc -Wall -Werror $(pc --cflags hetmem) -o "$tmp/program" \
	"$tmp/program.c" $(PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 pc --libs hetmem)
check 'runs' env LD_LIBRARY_PATH="$root/$lib" HETMEM_DRIVER=soft "$tmp/program"
mkdir "$tmp/cmake"
cp "$tmp/program.c" "$tmp/cmake/"
printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(program C)' \
	"find_package(hetmem $version REQUIRED)" 'add_executable(program program.c)' \
	'target_link_libraries(program hetmem::hetmem)' >"$tmp/cmake/CMakeLists.txt"
check 'CMake: a program' sh -c "cmake -S '$tmp/cmake' -B '$tmp/cmake/build' -DCMAKE_PREFIX_PATH='$root/usr' \
	-DCMAKE_LIBRARY_ARCHITECTURE='${lib##*/}' && cmake --build '$tmp/cmake/build'"
check 'runs' env HETMEM_DRIVER=soft "$tmp/cmake/build/program"

check 'dpkg removes them' in_root --purge libhetmem-dev hetmem-tools "libhetmem$soname"
empty 'and nothing is left' find "$root" -mindepth 1 ! -path "$root/var" ! -path "$root/var/lib" ! -path "$root/var/lib/dpkg*"

# DKMS builds what the package has, and the modules load.
dpkg-deb -x "$(deb hetmem-dkms)" "$tmp/module"
kernel=$(selftests/vm/kernel stock-6.12)
release=$(cat "$kernel/release")
mkdir "$tmp/dkms-tree"
check "dkms build for $release" dkms build -m hetmem -v "$version" -k "$release" \
	--kernelsourcedir "$(readlink -f "$kernel/kdir")" --dkmstree "$tmp/dkms-tree" \
	--sourcetree "$tmp/module/usr/src"
modules=$(dirname "$(find "$tmp/dkms-tree" -name 'hetmem.ko*' | head -n 1)")
xz -dq "$modules"/*.xz 2>/dev/null
also 'both modules' test -s "$modules/hetmem.ko" -a -s "$modules/hetmem_emu.ko"
check 'hetmem.ko of the package loads' selftests/vm/run -k stock-6.12 -B "$modules" -- \
	sh -c 'grep "^hetmem " /proc/modules && ls -l /dev/hetmem'
also 'and makes the device' grep -q '^crw-rw-rw-.*/dev/hetmem' "$tmp/out"
done_testing
