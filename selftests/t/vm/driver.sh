# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# The guide for drivers: its blocks are a module, which builds, loads beside the emulated device
# and leaves again. The device of example.h has no memory, so its operations move nothing.
prepare_driver()
{
	local page=Documentation/device-driver.md

	# The tree, and beside the interface what the guide has and what it leaves to the driver.
	mkdir "$tmp/tree"
	tar -c Kbuild Makefile kernel include | tar -x -C "$tmp/tree"
	{
		echo '/* SPDX-License-Identifier: GPL-2.0 */'
		sed -n '/^```c$/,/^```$/{/^```/d; p}' $page
	} >"$tmp/tree/include/linux/example_driver.c"
	printf '%s\n' 'obj-m += example.o' 'example-y := include/linux/example_driver.o' >>"$tmp/tree/Kbuild"
	cat >"$tmp/tree/include/linux/example.h" <<'EOS'
/* SPDX-License-Identifier: GPL-2.0 */
#include <linux/atomic.h>
#include <linux/memremap.h>

struct example {
	struct dev_pagemap pgmap;
	u64 bytes;
	atomic_t calls;
};

void example_arrived(struct mm_struct *mm, unsigned long addr, unsigned long nr_pages, bool on_device);
u64 example_limit(const struct example *device);

static struct example the_device = { .pgmap.owner = &the_device, .bytes = 64 << 20 };

static inline struct example *example_device(void)
{
	return &the_device;
}

static inline struct example *example_create(void)
{
	return &the_device;
}

static inline void example_destroy(struct example *device)
{
	pr_info("example: %d calls, limit %llu\n", atomic_read(&device->calls), example_limit(device));
}

static inline int example_move_in(struct example *device, struct vm_area_struct *vma,
				  unsigned long start, unsigned long end)
{
	atomic_inc(&device->calls);
	return 0;
}

static inline int example_move_out(struct example *device, struct vm_area_struct *vma,
				   unsigned long start, unsigned long end, int nid)
{
	atomic_inc(&device->calls);
	return 0;
}

static inline long example_evict(struct example *device, unsigned long nr_pages)
{
	return 0;
}

static inline u64 example_used(struct example *device)
{
	return 0;
}
EOS
	# These are the modules of the other parts, too: a build less.
	mkdir -p build/modules/tools-vm
	check 'the blocks of the guide are a module' \
		selftests/vm/build-modules "$kernel" build/modules/tools-vm "$tmp/tree"
	[ ! -s build/modules/tools-vm/example.ko ] || modules=build/modules/tools-vm
	also 'without a warning' sh -c "! grep -i 'warning: .*example' '$tmp/out' '$tmp/err'"

	# Asks for 8 MiB of its memory on device 1.
	cat >"$tmp/move.c" <<'EOS'
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/hetmem.h>

int main(void)
{
	const size_t size = 8 << 20;
	int fd = open("/dev/hetmem", O_RDWR | O_CLOEXEC);
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.start = (__u64)(unsigned long)p,
		.end = (__u64)(unsigned long)p + size,
		.location = HETMEM_LOC(HETMEM_DEVICE, 1),
	};

	memset(p, 1, size);
	if (ioctl(fd, HETMEM_IOC_MIGRATE, &cmd)) {
		printf("MIGRATE: %s\n", strerror(errno));
		return 1;
	}
	printf("moved %llu, not %llu, busy %d\n", (unsigned long long)cmd.moved,
	       (unsigned long long)cmd.not_moved, !!(cmd.why & HETMEM_WHY_BUSY));
	return 0;
}
EOS
	check 'a program that asks for it' gcc -O1 -Wall -Wextra -Werror -Iinclude/uapi -o "$tmp/move" "$tmp/move.c"

	cat >"$tmp/driver.sh" <<'EOS'
reload capacity_mb=48
insmod /lib/modules/example.ko
try name cat /sys/class/misc/hetmem/devices/1/name
try limit sh -c 'echo 1048576 >/sys/class/misc/hetmem/devices/1/limit'
try limited cat /sys/class/misc/hetmem/devices/1/limit
try move move
try leaves rmmod example
try none move
try gone cat /sys/class/misc/hetmem/devices/1/name
try emulated hetmem demo --device 0 --file /input
try log dmesg
EOS
	need_input
	files+=(-f build/modules/tools-vm/example.ko:/lib/modules/example.ko -f "$tmp/move:/bin/move")
}

judge_driver()
{
	gives name 0 'sysfs has its name' '^example$'
	gives limited 0 'its limit can be set' '^1048576$'
	gives move 0 'a move asks the driver, and tells what stayed' '^moved 0, not 2048, busy 1$'
	gives none 1 'it leaves, and nothing can move there' '^MIGRATE: No such device'
	gives gone 1 'its directory is gone' 'No such file'
	gives emulated 0 'the other device works' '^All contents verified'
	gives log 0 'its operations were called' 'example: [1-9][0-9]* calls, limit 67108864'
}
