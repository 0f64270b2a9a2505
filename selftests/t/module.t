#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# How the modules are built and installed: the compiler, kernels that will not do, signing,
# DKMS, make check-headers. `selftests/headers` and `selftests/compilers` do the same on
# many real kernels and take hours.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh

# A machine with no compiler but those of $tmp/bin, on which nothing else can be found.
mkdir -p "$tmp/tools" "$tmp/bin"
for tool in sh sed grep tr seq cat env; do
	ln -s "$(command -v $tool)" "$tmp/tools/$tool"
done
printf '#!/bin/sh\necho "${MACHINE:-x86_64}"\n' >"$tmp/tools/uname"
chmod +x "$tmp/tools/uname"

# compiler NAME gcc|clang A B C: a compiler of version A.B.C.
compiler()
{
	if [ "$2" = clang ]; then
		echo "#!/bin/sh
			echo 1 4 2 1 $3 $4 $5"
	else
		echo "#!/bin/sh
			echo __clang__ $3 $4 $5 __clang_major__"
	fi >"$tmp/bin/$1"
	chmod +x "$tmp/bin/$1"
}

# headers DIR RELEASE LINE...: a configured kernel as far as it is looked at before
# anything is compiled.
headers()
{
	mkdir -p "$1/include/generated" "$1/include/config"
	echo "#define UTS_RELEASE \"$2\"" >"$1/include/generated/utsrelease.h"
	: >"$1/include/generated/autoconf.h"
	printf '%s\n' CONFIG_HMM_MIRROR=y "${@:3}" >"$1/include/config/auto.conf"
}

# chooses NAME WANT [VARIABLE=VALUE...]: kernel/compiler prints WANT, lines as words. Leaves
# what it said in $tmp/err.
chooses()
{
	local name=$1 want=$2

	shift 2
	PATH=$tmp/bin:$tmp/tools kernel/compiler "$tmp/kernel" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
	also "$name" test "$status:$(tr '\n' ' ' <"$tmp/out")" = "0:$want "
}
silently() { empty 'without a word' cat "$tmp/err"; }
warns() { also "warns, in one line: $1" one_line "make module: warning: .*$1"; }
one_line() { [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q "^$1" "$tmp/err"; }
# refuses NAME PATTERN COMMAND...
refuses()
{
	exits 2 "$1" "${@:3}"
	also "in one line: $2" one_line "make module: .*$2"
}
without() { PATH=$tmp/bin:$tmp/tools kernel/compiler "$tmp/kernel" "$@"; }
only() { find "$tmp/bin" -type f -delete; }

gcc40='CONFIG_CC_IS_GCC=y CONFIG_GCC_VERSION=400100 CONFIG_CLANG_VERSION=0 CONFIG_X86_64=y'
# shellcheck disable=SC2086
headers "$tmp/kernel" 6.12.1 $gcc40 \
	'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-40 (Debian 40.1.0-1) 40.1.0"'
compiler x86_64-linux-gnu-gcc-40 gcc 40 1 0
compiler gcc-40 gcc 40 1 0
compiler gcc gcc 39 2 0
chooses 'the compiler that the configuration names' CC=x86_64-linux-gnu-gcc-40
silently
rm "$tmp/bin/x86_64-linux-gnu-gcc-40"
chooses 'another name of the same version' CC=gcc-40
silently
rm "$tmp/bin/gcc-40"
compiler gcc gcc 40 1 0
chooses 'gcc, if it is that version' CC=gcc
silently
compiler gcc gcc 40 2 0
chooses 'another minor version' CC=gcc
warns 'built by gcc 40.1.0, and gcc is gcc 40.2.0$'
compiler gcc gcc 43 1 0
compiler gcc-42 gcc 42 1 0
compiler gcc-41 gcc 41 1 0
compiler gcc-39 gcc 39 1 0
chooses 'the next higher major version' CC=gcc-41
warns 'gcc-41 is gcc 41.1.0: apt-get install gcc-40'
rm "$tmp"/bin/gcc-4[12]
chooses 'gcc, if it is a higher one' CC=gcc
warns 'gcc is gcc 43.1.0: apt-get install gcc-40'
echo CONFIG_GCC_PLUGINS=y >>"$tmp/kernel/include/config/auto.conf"
refuses 'a higher version, of a kernel with plugins' \
	'6.12.1 was built by gcc 40.1.0, which is not installed: apt-get install gcc-40$' without
compiler gcc gcc 39 1 0
refuses 'a lower version' 'which is not installed: apt-get install gcc-40$' without

# The name may also be without quotes.
# shellcheck disable=SC2086
headers "$tmp/kernel" 6.8.0-60-generic $gcc40 \
	'CONFIG_CC_VERSION_TEXT=x86_64-linux-gnu-gcc-40 (Ubuntu 40.1.0-1ubuntu1) 40.1.0'
compiler x86_64-linux-gnu-gcc-40 gcc 40 1 0
chooses 'a name without quotes' CC=x86_64-linux-gnu-gcc-40
only
headers "$tmp/kernel" 6.8.0-60-generic CONFIG_CC_IS_GCC=y CONFIG_GCC_VERSION=120300 \
	'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"'
compiler gcc gcc 11 4 0
refuses 'Ubuntu 22.04 with its newer kernel and its own gcc' \
	'6.8.0-60-generic was built by gcc 12.3.0, .*: apt-get install gcc-12$' without
only
refuses 'no compiler at all' 'apt-get install gcc-12$' without

# What is given is used.
# shellcheck disable=SC2086
headers "$tmp/kernel" 6.12.1 $gcc40 'CONFIG_CC_VERSION_TEXT="gcc-40 (GCC) 40.1.0"'
compiler gcc-40 gcc 40 1 0
compiler mine gcc 39 1 0
chooses 'CC=' CC=mine CC=mine
warns 'mine is gcc 39.1.0'
chooses 'CC= with words' 'CC=env A=b gcc-40' 'CC=env A=b gcc-40'
silently
chooses 'ARCH=, CROSS_COMPILE=, LD=' 'CC=mine LD=myld ARCH=x86 CROSS_COMPILE=m-' \
	CC=mine LD=myld ARCH=x86 CROSS_COMPILE=m-
refuses 'CC= that does not run' 'CC=none does not run' without CC=none
refuses 'other variables' 'HOSTCC=gcc' without HOSTCC=gcc

# Clang, which calls itself gcc 4.2.1 as well.
only
clang50='CONFIG_CC_IS_CLANG=y CONFIG_GCC_VERSION=0 CONFIG_CLANG_VERSION=500102'
# shellcheck disable=SC2086
headers "$tmp/kernel" 6.12.1 $clang50 CONFIG_LD_IS_LLD=y CONFIG_X86_64=y \
	'CONFIG_CC_VERSION_TEXT="Debian clang version 50.1.2"'
compiler gcc gcc 50 1 2
compiler gcc-50 gcc 50 1 2
refuses 'gcc for a kernel built by clang' \
	'built by clang 50.1.2, which is not installed: apt-get install clang-50 lld-50 llvm-50$' without
compiler clang clang 50 1 2
refuses 'clang without its linker' 'apt-get install clang-50 lld-50 llvm-50$' without
llvm() { for tool in ld.lld llvm-nm llvm-objcopy; do compiler "$tool$1" clang 1 1 1; done; }
llvm ''
chooses 'clang' LLVM=1
silently
compiler clang clang 49 1 2
compiler clang-50 clang 50 1 2
llvm -50
chooses 'clang under another name' LLVM=-50
silently
chooses 'the same where DKMS says LLVM=1' LLVM=-50 LLVM=1
chooses 'what DKMS of Debian 12 says' 'CC=clang LD=ld.lld' CC=clang LD=ld.lld
warns 'clang is clang 49.1.2: apt-get install clang-50 lld-50 llvm-50'
chooses 'CC= and LLVM=' 'CC=clang-50 LLVM=1' CC=clang-50 LLVM=1
silently
chooses 'LLVM= with a version' LLVM=-50 LLVM=-50
silently
# shellcheck disable=SC2086
headers "$tmp/kernel" 6.12.1 $clang50 CONFIG_X86_64=y 'CONFIG_CC_VERSION_TEXT="clang version 50.1.2"'
chooses 'clang with the linker of GNU' CC=clang-50

# Another machine's kernel.
only
# shellcheck disable=SC2086
headers "$tmp/kernel" 6.12.1 ${gcc40%CONFIG_X86_64=y} CONFIG_ARM64=y \
	'CONFIG_CC_VERSION_TEXT="gcc-40 (Debian 40.1.0-1) 40.1.0"'
compiler gcc-40 gcc 40 1 0
refuses 'no cross compiler' 'apt-get install gcc-40-aarch64-linux-gnu$' without
compiler aarch64-linux-gnu-gcc-40 gcc 40 1 0
chooses 'a cross compiler' 'CC=aarch64-linux-gnu-gcc-40 ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu-'
silently
MACHINE=aarch64 chooses 'none where it is the own kind' CC=gcc-40

# What make passes on. This kernel's build writes down what it is told, and fails.
headers "$tmp/record" 6.12.1 CONFIG_GCC_VERSION=0
: >"$tmp/record/Module.symvers"
cat >"$tmp/record/Makefile" <<-'EOF'
	$(file >said,CC=$(CC) LD=$(LD) LLVM=$(LLVM) ARCH=$(ARCH) KERNELRELEASE=$(KERNELRELEASE))
	%:
		@false
EOF
said()
{
	exits 2 "$1" env "${@:3}" KDIR="$tmp/record" MODULE_OUT="$tmp/out.d" module
	also "$2" test "$(cat "$tmp/record/said")" = "$2"
}
said 'CC on the command line' 'CC=gcc LD=ld LLVM= ARCH= KERNELRELEASE=' make CC=gcc
said 'CC in the environment' 'CC=cc LD=ld LLVM= ARCH= KERNELRELEASE=' CC=gcc make
said 'what DKMS says' 'CC=gcc LD=ld.bfd LLVM= ARCH= KERNELRELEASE=' \
	CC=false make -j2 KERNELRELEASE=6.12.1 CC=gcc LD=ld.bfd

# Kernels that will not do.
old()
{
	headers "$tmp/old" "$1" CONFIG_GCC_VERSION=0
	kernel/build-module "$tmp/old" "$tmp/build"
}
for release in 4.19.0-27-amd64 5.4.0-216-generic 5.9.16; do
	refuses "Linux $release" "Linux $release is too old: hetmem needs Linux 5.10 or later$" \
		old $release
done
for release in 5.10.0-46-amd64 5.14.0-503.11.1.el9_5.x86_64 6.0.19 6.1.0-56-amd64 6.12.117 7.3-amd64 10.0.1; do
	exits 2 "Linux $release is looked at" old $release
	also 'and is not too old' sh -c "! grep -q 'too old' '$tmp/err'"
done
headers "$tmp/old" 6.12.1 CONFIG_GCC_VERSION=0
sed -i /HMM_MIRROR/d "$tmp/old/include/config/auto.conf"
refuses 'a kernel without HMM_MIRROR' 'without CONFIG_HMM_MIRROR' kernel/build-module "$tmp/old" "$tmp/build"

# A question that nothing needs the answer of can go, and none is forgotten.
asked() { printf '%s\n' kernel/probe/*.c | sed 's|.*/||; s|\.c$||' | grep -v '^control_' | tr '[:lower:]' '[:upper:]'; }
used() { grep -ohE 'HETMEM_HAVE_[A-Z0-9_]+' kernel/*.[ch] kernel/emu/*.[ch] | sed 's/HETMEM_HAVE_//' | grep -v '^$' | sort -u; }
check 'every probe is used, and every answer is asked for' diff <(asked | sort) <(used)

# A real kernel, with a key to sign modules with as its build would have left it.
kernel=$(selftests/vm/kernel stock-6.12)
release=$(cat "$kernel/release")
mkdir -p "$tmp/kdir/certs" "$tmp/kdir/output"
find "$(realpath "$kernel/kdir")" -mindepth 1 -maxdepth 1 -exec ln -s {} "$tmp/kdir/" \;
need openssl:openssl xz:xz-utils
check 'a key' openssl req -new -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hetmem-test \
	-outform DER -out "$tmp/kdir/certs/signing_key.x509" -keyout "$tmp/key.pem"
cp "$tmp/key.pem" "$tmp/kdir/output/signing_key.pem"

installed=$tmp/root/lib/modules/$release/updates/hetmem
mkdir -p "$installed"
touch -d '1 hour ago' "$installed/hetmem.ko" "$installed/hetmem.ko.gz"
check 'make modules_install' make modules_install KDIR="$tmp/kdir" DESTDIR="$tmp/root" \
	MODULE_OUT="$tmp/module"
also 'only these modules are there' test "$(find "$installed" -type f | wc -l)" -eq 2
also 'says that they are signed' test "$(grep -c '^  INSTALL .*hetmem.*(signed)$' "$tmp/out")" -eq 2
# These wait, uninterruptibly, until no invalidation of the whole address space runs.
nm "$tmp/module/hetmem.ko" >"$tmp/symbols"
also 'hetmem.ko looks at pages' grep -q ' U hmm_range_fault$' "$tmp/symbols"
empty 'and has no interval notifiers, which wait for all of an address space' \
	grep -E ' mmu_interval_(notifier_insert|notifier_insert_locked|notifier_remove|read_begin)$' "$tmp/symbols"
for module in hetmem hetmem_emu; do
	file=$(echo "$installed/$module".ko*)
	also "$module.ko is signed" is_signed "$file"
	also 'with that key' eval "module_end '$file' | grep -qa hetmem-test"
done
also 'the kernel names the module at boot' grep -qx hetmem "$tmp/root/usr/lib/modules-load.d/hetmem.conf"
rm "$tmp/kdir/output/signing_key.pem"
check 'make modules_install without the key' make modules_install KDIR="$tmp/kdir" \
	DESTDIR="$tmp/root" MODULE_OUT="$tmp/module"
also 'says that they are not signed' test "$(grep -c '^  INSTALL .*hetmem.*(not signed)$' "$tmp/out")" -eq 2
check 'make modules_uninstall' make modules_uninstall DESTDIR="$tmp/root"
empty 'leaves nothing' find "$tmp/root" -type f

# DKMS, Debian's own, over directories of this test.
need patch:patch
mkdir -p "$tmp/dkms/"{deb,tree,install,tmp}
dkms=$(cd "$tmp/dkms/deb" && apt-get -qq -o APT::Sandbox::User=root download dkms >&2 && echo "$PWD"/dkms_*.deb)
check 'the package dkms' dpkg -x "$dkms" "$tmp/dkms/root"
check 'make dkms_install' make dkms_install DESTDIR="$tmp/root"
version=$(sed -n 's/^VERSION	= //p' Makefile)
also 'dkms.conf has the version' grep -qx "PACKAGE_VERSION=\"$version\"" "$tmp/root/usr/src/hetmem-$version/dkms.conf"
also 'the kernel names the module at boot' test -s "$tmp/root/usr/lib/modules-load.d/hetmem.conf"
cat >"$tmp/dkms/framework.conf" <<EOF
source_tree=$tmp/root/usr/src
dkms_tree=$tmp/dkms/tree
install_tree=$tmp/dkms/install
tmp_location=$tmp/dkms/tmp
sign_file=$tmp/kdir/scripts/sign-file
mok_signing_key=$tmp/dkms/mok.key
mok_certificate=$tmp/dkms/mok.pub
EOF
sed "s|/etc/dkms/framework|$tmp/dkms/framework|" "$tmp/dkms/root/usr/sbin/dkms" >"$tmp/dkms/dkms"
dkms() { bash "$tmp/dkms/dkms" "$1" -m hetmem -v "$version" "${@:2}"; }
check 'dkms add' dkms add
check 'dkms build' dkms build -k "$release" --kernelsourcedir "$tmp/kdir"
for module in hetmem hetmem_emu; do
	built=$(find "$tmp/dkms/tree/hetmem/$version/$release" -name "$module.ko*")
	also "$module.ko is built and signed" is_signed "$built"
done
check 'dkms remove' dkms remove --all
excluded() { [[ ! $1 =~ $(sed -n 's/^BUILD_EXCLUSIVE_KERNEL="\(.*\)"$/\1/p' kernel/dkms.conf) ]]; }
for release in 5.10.0-46-amd64 5.14.0-503.el9 6.0.19 6.1.0-56-amd64 6.12.117 6.9.1 7.3-amd64 10.0.1; do
	also "dkms would build for Linux $release" eval "! excluded $release"
done
for release in 3.10.0 4.19.0-27-amd64 5.4.0-216-generic 5.9.16; do
	also "but not for Linux $release" excluded $release
done

# Several kernels at once.
exits 2 'make check-headers' make -s check-headers "$tmp/none" "$tmp/kdir" "$tmp/old"
also 'a line each' test "$(wc -l <"$tmp/out")" -eq 3
also 'that it built' grep -qE '^ok    6\.12\.[^ ]+ +[0-9]+ s$' "$tmp/out"
also 'that these are no headers' grep -qE "^FAIL  $tmp/none .*no configured kernel tree" "$tmp/out"
also 'that this is too little' grep -qE '^FAIL  6.12.1 .*without CONFIG_HMM_MIRROR' "$tmp/out"
cp -a Makefile Kbuild kernel include "$tmp/dkms/tmp/"
echo 'static int never;' >>"$tmp/dkms/tmp/kernel/main.c"
exits 2 'with a warning' make -s -C "$tmp/dkms/tmp" check-headers "$tmp/kdir"
also 'which is shown' grep -qE '^FAIL .*never.*unused' "$tmp/out"
exits 2 'make check-headers without any' make -s check-headers
also 'what to type' grep -q 'make check-headers DIR' "$tmp/err"

# The modules are built beside the source, not in it.
touch "$tmp/before"
check 'make module' make module KDIR="$(selftests/vm/kernel stock-6.12)/kdir" MODULE_OUT="$tmp/module"
empty 'make module leaves the source tree alone' find Kbuild kernel include -newer "$tmp/before"
done_testing
