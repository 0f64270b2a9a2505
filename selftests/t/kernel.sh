# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# Every test that needs the modules, in one boot of one kernel of the virtual machine: $kernel.
# What may be skipped there is listed in skip/$kernel. Where that takes long $part is one of
# two halves, which can run beside each other: plain, what needs hetmem.ko alone, or devices.
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
. selftests/t/guest.sh

# parallel=yes lets the emulated CPUs run in parallel. It leaves out programs that make the
# kernel change its code: see selftests/vm/README.md.
parallel=${parallel:-}

# tables=no leaves out the programs that only try arguments, tables=only runs nothing else.
part=${part:-} tables=${tables:-}
label=${kernel:?}${part:+-$part}${tables:+-tables-$tables}${parallel:+-parallel}
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
		case $parallel:$name in
		yes:trace|yes:emu_limit|yes:emu_thrash|yes:hmm_limit) continue ;;
		esac
		case $part:$name in
		*:hmm_upstream) continue ;;
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

# is_table NAME: a program that only tries arguments, one row of a table after the other; on 6.1
# those that take longest, too.
is_table()
{
	case $kernel:$1 in
	*:arrays|*:commands|*:permission_table) return 0 ;;
	stock-6.1:busy|stock-6.1:hint_restart|stock-6.1:lives|stock-6.1:opens|stock-6.1:pin) return 0 ;;
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

	# Only kernels of our own have a RAM disk to swap to.
	swaps=
	! grep -q '^CONFIG_BLK_DEV_RAM=y' "$dir/config" || swaps=yes
	if [ -n "$swaps" ]; then
		cat >"$tmp/away.c" <<'EOS'
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/hetmem_emu.h>

#define SIZE	(1 << 20)
#define PAGE	4096

static int away(const unsigned char *p)
{
	uint64_t entries[SIZE / PAGE];
	int fd = open("/proc/self/pagemap", O_RDONLY), i, n = 0;

	if (pread(fd, entries, sizeof(entries), (uintptr_t)p / PAGE * 8) != sizeof(entries))
		return -1;
	for (i = 0; i < SIZE / PAGE; i++)
		n += entries[i] >> 62 & 1;
	return n;
}

/* A MiB that is swapped out, and one that the device has written, until it is signalled. */
int main(void)
{
	unsigned char *p = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hetmem_emu_cmd_access cmd = {
		.size = sizeof(cmd), .flags = HETMEM_EMU_MIGRATE, .op = HETMEM_EMU_FILL,
		.addr = (uintptr_t)p + SIZE, .length = SIZE, .value = 0x0707070707070707,
	};
	int fd = open("/dev/hetmem_emu0", O_RDWR), sig, i;
	sigset_t set;

	for (i = 0; i < SIZE; i++)
		p[i] = i / PAGE + i;
	for (i = 0; i < SIZE; i++)
		p[SIZE + i] = 1;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	/* Pages that another CPU has just added stay until its list is emptied. */
	for (i = 0; i < 100 && away(p) < SIZE / PAGE; i++)
		madvise(p, SIZE, MADV_PAGEOUT);
	if (ioctl(fd, HETMEM_EMU_IOC_ACCESS, &cmd))
		return 2;
	printf("away %d swapped %d device\n", away(p), away(p + SIZE));
	fflush(stdout);
	sigwait(&set, &sig);
	for (i = 0; i < SIZE; i++)
		if (p[i] != (unsigned char)(i / PAGE + i) || p[SIZE + i] != 7)
			return 1;
	return 0;
}
EOS
		check 'a program with memory in swap and on a device' \
			gcc -D_GNU_SOURCE -Iinclude/uapi -o "$tmp/away" "$tmp/away.c"
		options+=(-f "$tmp/away")
		add_part swap sh -ec '
			mkswap /dev/ram0
			swapon /dev/ram0
			away >/tmp/away &
			pid=$!
			until [ -s /tmp/away ]; do sleep 0.1; done
			cat /tmp/away
			hetmem pullback $pid
			hetmem pullback $pid
			kill -USR1 $pid
			wait $pid
			swapoff /dev/ram0'
	fi

	# Without DEVICE_PRIVATE the emulated device refuses, and says why in one line.
	[ -n "$emulated" ] || add_part refusal sh -c \
		'insmod /lib/modules/hetmem_emu.ko; echo "status $?"; dmesg | grep "hetmem_emu"'
fi

boot -k "$kernel" ${parallel:+-P} -B "$modules" "${parameters[@]}" "${foreign[@]}" \
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
if [ "$tables" != only ] && [ -n "$swaps" ]; then
	check 'hetmem pullback of pages in swap, whose contents are right' part_output swap
	# The kernel counts swap by CPU, so that its share is off by some dozens of pages.
	also 'all came back, from swap and from the device' awk '
		/^away / { swapped = $2; device = $4 }
		/^process / && !lines++ { back = $7; of = $9; from_swap = $16 }
		END {
			exit !(swapped >= 200 && device == 256 && of == swapped + device && back == of &&
				from_swap >= swapped - 128 && from_swap <= swapped + 128)
		}' "$tmp/out"
	also 'and then nothing was away' grep -q ': 0 of 0 pages (0 B) came back' "$tmp/out"
	no_complaint swap
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
