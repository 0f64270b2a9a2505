# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# Every test that needs the modules, in one boot of one kernel of the virtual machine: $kernel.
# What may be skipped there is listed in skip/$kernel. Where that takes long $part is one of
# two halves, which can run beside each other: plain, what needs hetmem.ko alone, or devices.
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
. selftests/t/guest.sh

# tables=no leaves out the programs that only try arguments, tables=only runs nothing else.
part=${part:-} tables=${tables:-}
label=${kernel:?}${part:+-$part}${tables:+-tables-$tables}
modules=build/modules/$label
mkdir -p "$modules" build/log

# The kernel's own build may take minutes: its words are worth seeing.
check "$kernel is there" selftests/vm/kernel "$kernel"
dir=$(tail -n 1 "$tmp/out")
emulated=
! grep -q '^CONFIG_DEVICE_PRIVATE=y' "$dir/config" || emulated=yes
# Small devices are full sooner.
parameters=(${emulated:+-p 'hetmem_emu=devices=2 capacity_mb=8'})

check 'the modules build' env WERROR=1 selftests/vm/build-modules "$kernel" "$modules"
empty 'without a warning' grep -i 'warning:' "$tmp/err"
check 'the programs build' make all vm-tests

# A driver with device memory that knows nothing of hetmem: two devices with private
# memory, two with coherent memory, 256 MiB of what the machine has for that, and two with
# a pgmap for each 2 MiB.
foreign=()
if [ -n "$emulated" ]; then
	check 'test_hmm is there' selftests/vm/test-hmm "$kernel" "$modules/foreign"
	foreign=(-R 512 -l "$modules/foreign/test_hmm.ko"
		-p "test_hmm=spm_addr_dev0=$((2048 << 20)) spm_addr_dev1=$((2304 << 20))"
		-l "$modules/foreign/test_hmm_2m.ko")
fi

# programs DIRECTORY: those that this kernel can run, as options for run and as paths
# in the guest.
programs()
{
	local source name

	files=() names=()
	for source in $(find "$1" -name '*.c' ! -path '*/libktest/*' ! -path '*/fuzz/*' | sort); do
		name=$(basename "$source" .c)
		case $part:$name in
		plain:emu_*|plain:hmm_*|plain:vm_*) continue ;;
		devices:emu_*|devices:hmm_*|devices:vm_*) ;;
		devices:*) continue ;;
		esac
		case $name in
		emu_*|hmm_*|vm_emu_*) [ -n "$emulated" ] || continue ;;
		vm_*) ;;
		*) [ "$1" != selftests/lib ] || continue ;;
		esac
		case $tables in
		no) ! is_table "$name" || continue ;;
		only) is_table "$name" || continue ;;
		esac
		files+=(-f "build/${source%.c}")
		names+=("/bin/$name")
	done
}

# is_table NAME: a program that only tries arguments, one row of a table after the other.
is_table()
{
	case $1 in
	arrays|commands|permission_table) return 0 ;;
	*) return 1 ;;
	esac
}

# The library's programs come first: those of selftests/kernel/device load the modules again, and
# the devices have other numbers after that. ktest judges the skips.
programs selftests/lib
libraries=${#names[@]}
[ "$libraries" -eq 0 ] || add_part library ktest -p -t 300 -S /vm/skip "${names[@]}"
options=("${files[@]}")

programs selftests/kernel
add_part programs ktest -t "${limit:-120}" -S /vm/skip "${names[@]}"
options+=("${files[@]}")

if [ "$tables" != only ]; then
	# The command with the kernel's help, as root and as a user.
	add_part command sh -ec '
		hetmem map --self
		sleep infinity &
		hetmem map $!
		su user -c "hetmem map --self"
		hetmem doctor'

	# Without DEVICE_PRIVATE the emulated device refuses, and says why in one line.
	[ -n "$emulated" ] || add_part refusal sh -c \
		'insmod /lib/modules/hetmem_emu.ko; echo "status $?"; dmesg | grep "hetmem_emu"'
fi

boot -k "$kernel" -B "$modules" "${parameters[@]}" "${foreign[@]}" \
	-t "${whole:-1800}" -m 2048 -n -d "$modules:/lib/modules" \
	-L "$top/build/log/$label" -f selftests/t/skip/"$kernel":/vm/skip \
	-f build/libhetmem-soft.so:/lib/x86_64-linux-gnu/libhetmem-soft.so -f build/hetmem \
	-f Documentation/ABI/testing/sysfs-class-misc-hetmem:/vm/abi "${options[@]}"

skips=allowed program '' part_output programs
# Where the time went, of that which the machine had.
sed -n 's|^# /bin/\(.*\): \([0-9.]*\) s$|# \2 s \1|p' "$tmp/tap" | sort -rnk 2 | head -n 8
[ "$libraries" -eq 0 ] || skips=allowed program '' part_output library
if [ "$tables" != only ]; then
	check 'hetmem map, hetmem doctor' part_output command
	no_complaint command
fi
if [ -z "$emulated" ] && [ "$tables" != only ]; then
	part_output refusal >"$tmp/refusal" 2>&1
	also 'hetmem_emu.ko refuses' grep -q '^status [^0]' "$tmp/refusal"
	also 'with EOPNOTSUPP' grep -q 'Operation not supported' "$tmp/refusal"
	# busybox tries two system calls, so what is said once is there twice.
	sed -n 's/^\[[^]]*\] hetmem_emu: //p' "$tmp/refusal" | sort -u >"$tmp/lines"
	also 'and one line of log' test "$(wc -l <"$tmp/lines")" -eq 1
	also 'which says why' grep -q CONFIG_DEVICE_PRIVATE "$tmp/lines"
	no_complaint refusal
fi
