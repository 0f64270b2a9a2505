#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The RPM packages: rpmbuild builds them, and nothing is installed. What is in them, what they
# depend on, and modules built from the source package in akmod-hetmem, as akmods does it.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh
need rpmbuild:rpm cpio:cpio "/usr/lib/$(uname -m)-linux-gnu/libelf.so.1:libelf1" \
	/usr/include/numa.h:libnuma-dev /usr/include/json-c/json.h:libjson-c-dev \
	/usr/include/sha2.h:libmd-dev /usr/include/zlib.h:zlib1g-dev \
	/usr/include/curses.h:libncurses-dev

version=$(sed -n 's/^VERSION[[:space:]]*= //p' Makefile)
soname=$(sed -n 's/^SOVERSION = //p' Makefile)
lib=$(rpm --eval '%{_libdir}')
# The packages that are built with here are Debian's, which rpm does not know.
check 'make rpm' make rpm RPMFLAGS=--nodeps
rpm_of() { find build/rpm/RPMS -name "$1-$version-*.rpm"; }
for package in libhetmem libhetmem-devel hetmem-tools hetmem-kmod-common akmod-hetmem; do
	also "$package" test -s "$(rpm_of "$package")"
done
files() { rpm -qpl "$(rpm_of "$1")" | grep -v -e /usr/share/licenses/ -e /usr/lib/.build-id; }
check 'the library alone' diff <(files libhetmem | sort) \
	<(printf '%s\n' "$lib/libhetmem.so.$soname" "$lib/libhetmem.so.$version" | sort)
files hetmem-tools >"$tmp/tools"
for file in /usr/bin/hetmem "$lib/libhetmem-soft.so" /usr/lib/systemd/system/hetmem-tune.service; do
	also "the command: $file" grep -qx "$file" "$tmp/tools"
done
also 'the headers need this library' sh -c "rpm -qpR '$(rpm_of libhetmem-devel)' | grep -q '^libhetmem.* = $version'"
also 'so does the command' sh -c "rpm -qpR '$(rpm_of hetmem-tools)' | grep -q '^libhetmem.* = $version'"
also 'the rule of udev and the list for boot' diff <(files hetmem-kmod-common | sort) \
	<(printf '%s\n' /usr/lib/modules-load.d/hetmem.conf /usr/lib/udev/rules.d/60-hetmem.rules)
also 'akmod needs akmods' sh -c "rpm -qpR '$(rpm_of akmod-hetmem)' | grep -qx akmods"

# Every installed file is in a package: rpmbuild refuses others.
mkdir "$tmp/akmod"
check 'akmod has a source package' sh -c "rpm2cpio '$(rpm_of akmod-hetmem)' | (cd '$tmp/akmod' && cpio -idm)"
kernel=$(selftests/vm/kernel stock-6.1)
release=$(cat "$kernel/release")
check "which builds the modules for $release" env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u MAKEOVERRIDES \
	rpmbuild --rebuild --nodeps --define "_topdir $tmp/kmod" --define "kernels $release" \
	--define "kdir $(readlink -f "$kernel/kdir")" "$tmp/akmod/usr/src/akmods/hetmem-kmod.latest"
kmod=$(find "$tmp/kmod/RPMS" -name "kmod-hetmem-$release-*.rpm")
also 'one package' test -s "$kmod"
mkdir "$tmp/modules"
check 'with both modules' sh -c "rpm2cpio '$kmod' | (cd '$tmp/modules' && cpio -idm)"
modules=$tmp/modules/lib/modules/$release/extra/hetmem
also 'hetmem.ko and hetmem_emu.ko' test -s "$modules/hetmem.ko" -a -s "$modules/hetmem_emu.ko"
check 'hetmem.ko of the package loads' selftests/vm/run -k stock-6.1 -B "$modules" -- \
	sh -c 'grep "^hetmem " /proc/modules && ls -l /dev/hetmem'
also 'and makes the device' grep -q '^crw-rw-rw-.*/dev/hetmem' "$tmp/out"
# A kernel of Fedora's has a name that can be depended on.
sed "s/@VERSION@/$version/" tools/rpm/hetmem-kmod.spec >"$tmp/hetmem-kmod.spec"
check 'a kernel of Fedora is depended on' rpmspec -q --requires \
	--define 'kernels 6.11.4-301.fc41.x86_64' "$tmp/hetmem-kmod.spec"
also 'by its name' grep -qx 'kernel-uname-r = 6.11.4-301.fc41.x86_64' "$tmp/out"
done_testing
