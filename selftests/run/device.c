/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A program that uses the emulated device as programs use a GPU with HMM: the device takes the
 * addresses that malloc() returned. It knows nothing of libhetmem or of hetmem.ko.
 *
 * "device": all of it, TAP. "device wait": prints the addresses of a block, and when stdin ends,
 * whether its contents are right.
 */
#include <fcntl.h>
#include <linux/hetmem_emu.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "tap.h"

#define MIB	((size_t)1 << 20)
#define SIZE	(6 * MIB)

static int device;

static bool access_device(uint32_t op, void *p, size_t size, void *data, uint64_t value)
{
	struct hetmem_emu_cmd_access cmd = {
		.size = sizeof(cmd), .flags = HETMEM_EMU_MIGRATE, .op = op,
		.addr = (uintptr_t)p, .length = size, .data = (uintptr_t)data, .value = value,
	};

	return !ioctl(device, HETMEM_EMU_IOC_ACCESS, &cmd) && cmd.done == size;
}

/* Pages that came to the device, since it was loaded. */
static uint64_t came(void)
{
	struct hetmem_emu_cmd_info cmd = { .size = sizeof(cmd) };

	need(!ioctl(device, HETMEM_EMU_IOC_INFO, &cmd), "INFO");
	return cmd.to_device;
}

static void fill(uint64_t *p, uint64_t first)
{
	size_t i;

	for (i = 0; i < SIZE / 8; i++)
		p[i] = first + i;
}

static size_t wrong(const uint64_t *p, size_t size, uint64_t first)
{
	size_t i, nr = 0;

	for (i = 0; i < size / 8; i++)
		nr += p[i] != first + i;
	return nr;
}

static void whole(void)
{
	uint64_t *p = malloc(SIZE), *copy = calloc(1, SIZE), *q, before = came();
	pid_t child;
	int status;

	need(p && copy, "memory");
	fill(p, 1000);
	ok(access_device(HETMEM_EMU_READ, p, SIZE, copy, 0), "the device reads what malloc gave");
	is(wrong(copy, SIZE, 1000), 0, "it reads what the CPU wrote");
	ok(came() > before, "pages moved to it");
	ok(access_device(HETMEM_EMU_ADD, p, SIZE, NULL, 5), "the device writes");

	child = fork();
	if (!child)
		_exit(wrong(p, SIZE, 1005) || !(p = realloc(p, 2 * SIZE)) ||
		      wrong(p, SIZE, 1005));
	ok(waitpid(child, &status, 0) == child && !status, "a forked child has a copy");

	ok(access_device(HETMEM_EMU_ADD, p, SIZE, NULL, 5), "again, on the device");
	q = realloc(p, 5 * SIZE);
	need(q, "realloc");
	ok(access_device(HETMEM_EMU_READ, q, SIZE, copy, 0), "the device reads what has moved");
	is(wrong(copy, SIZE, 1010), 0, "rightly");
	is(wrong(q, SIZE, 1010), 0, "the CPU, too");
	free(q);

	/* From the cache, where there is one: what the device had there is gone. */
	q = calloc(1, SIZE);
	ok(access_device(HETMEM_EMU_READ, q, SIZE, copy, 0) && !copy[0] &&
	   !memcmp(copy, (char *)copy + 1, SIZE - 1), "the device reads zeroes");
	free(q);
	free(copy);
}

static void wait_for_end(void)
{
	uint64_t *p = malloc(SIZE);
	char c;

	need(p, "memory");
	fill(p, 7);
	printf("%lx-%lx\n", (unsigned long)p, (unsigned long)p + SIZE);
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	printf("%s\n", wrong(p, SIZE, 7) ? "wrong" : "right");
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "wait")) {
		wait_for_end();
		return 0;
	}
	device = open("/dev/hetmem_emu0", O_RDWR | O_CLOEXEC);
	need(device >= 0, "/dev/hetmem_emu0");
	whole();
	return tap_end();
}
