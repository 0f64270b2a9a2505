/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The emulated device: its commands as plain functions, and two devices with a
 * context. Every such test needs hetmem_emu.ko with two devices: that it is
 * not there is a failure.
 */
#ifndef LIBKTEST_EMU_H
#define LIBKTEST_EMU_H

#include "libktest/commands.h"

#include <linux/hetmem_emu.h>

struct emu {
	int fd;
	uint32_t loc;		/* HETMEM_LOC(HETMEM_DEVICE, id) */
	size_t capacity;	/* bytes */
};

int emu_open(struct emu *e, int nr);
/* The locations of both devices, which each load of the module numbers anew. */
int emu_locations(uint32_t loc[2]);
int emu_info(int fd, struct hetmem_emu_cmd_info *info);

/* Whether nobody has a page of the device, soon; @info is how it is then. */
bool emu_empties(const struct emu *e, struct hetmem_emu_cmd_info *info);

/* One ACCESS; @cmd may be NULL for who needs no more than the errno. */
int emu_access(const struct emu *e, uint32_t op, uint32_t flags,
	       const void *addr, size_t length, const void *data,
	       uint64_t value, struct hetmem_emu_cmd_access *cmd);
int emu_read(const struct emu *e, uint32_t flags, const void *addr,
	     size_t length, void *data);
int emu_write(const struct emu *e, uint32_t flags, void *addr, size_t length,
	      const void *data);
int emu_evict(const struct emu *e, uint64_t pages, uint64_t *evicted);

/* What the device reads at [p, p + size) is the pattern from @offset on. */
bool emu_sees_at(const struct emu *e, uint32_t flags, const void *p,
		 size_t size, uint64_t seed, size_t offset);
bool emu_sees(const struct emu *e, uint32_t flags, const void *p, size_t size,
	      uint64_t seed);

/* The device writes the pattern. */
int emu_fill(const struct emu *e, uint32_t flags, void *p, size_t size,
	     uint64_t seed);

/* As move_to(). */
long to_device(int fd, const struct emu *e, const void *p, size_t size);

/*
 * A CPU fault brings a page's neighbours back with it, within a window of
 * addresses. Return: the end of the one that the page before @p is in.
 */
char *fault_window_end(const char *p);

/*
 * The whole set, for a fixture's self. Devices share their memory between
 * tests, so each begins with empty ones.
 */
struct rig {
	int fd;
	struct emu dev[2];
	size_t size;		/* a quarter of a device at most */
	uint64_t failures[2];	/* of CPU faults, which other tests made */
};

int rig_init(struct rig *r);

/* Nobody holds a page of the devices when a test is over. */
int rig_exit(struct rig *r);

#endif
