/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the tests with the emulated device share: its commands as plain
 * functions, moving memory there and back by asking again where a page was
 * busy, and a fixture with two devices and a context.
 *
 * Every such test needs hetmem_emu.ko with two devices: that it is not there
 * is a failure.
 */
#ifndef HETMEM_EMU_TEST_H
#define HETMEM_EMU_TEST_H

#include "hetmem_mem.h"

#include <linux/hetmem_emu.h>

/* How often a page that was busy is asked for again. */
#define MOVE_TRIES	50

struct emu {
	int fd;
	uint32_t loc;		/* HETMEM_LOC(HETMEM_DEVICE, id) */
	size_t capacity;	/* bytes */
};

HELPER int emu_info(int fd, struct hetmem_emu_cmd_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return hm_ioctl(fd, HETMEM_EMU_IOC_INFO, info);
}

HELPER int emu_open(struct emu *e, int nr)
{
	struct hetmem_emu_cmd_info info;
	char path[32];
	int ret;

	snprintf(path, sizeof(path), "/dev/hetmem_emu%d", nr);
	do {
		e->fd = open(path, O_RDWR | O_CLOEXEC);
	} while (e->fd < 0 && errno == EINTR);
	if (e->fd < 0)
		return -errno;
	ret = emu_info(e->fd, &info);
	e->loc = HETMEM_LOC(HETMEM_DEVICE, info.id);
	e->capacity = info.capacity * page_size();
	return ret;
}

/* One ACCESS; @cmd may be NULL for who needs no more than the errno. */
HELPER int emu_access(const struct emu *e, uint32_t op, uint32_t flags,
		      const void *addr, size_t length, const void *data,
		      uint64_t value, struct hetmem_emu_cmd_access *cmd)
{
	struct hetmem_emu_cmd_access own;
	int ret;

	if (!cmd)
		cmd = &own;
	*cmd = (struct hetmem_emu_cmd_access){
		.size = sizeof(*cmd),
		.flags = flags,
		.op = op,
		.addr = (uintptr_t)addr,
		.length = length,
		.data = (uintptr_t)data,
		.value = value,
	};
	ret = hm_ioctl(e->fd, HETMEM_EMU_IOC_ACCESS, cmd);
	if (!ret && cmd->done != length) {
		fprintf(stderr, "# ACCESS: %llu of %zu bytes done\n",
			cmd->done, length);
		return -EBADMSG;
	}
	return ret;
}

HELPER int emu_read(const struct emu *e, uint32_t flags, const void *addr,
		    size_t length, void *data)
{
	return emu_access(e, HETMEM_EMU_READ, flags, addr, length, data, 0,
			  NULL);
}

HELPER int emu_write(const struct emu *e, uint32_t flags, void *addr,
		     size_t length, const void *data)
{
	return emu_access(e, HETMEM_EMU_WRITE, flags, addr, length, data, 0,
			  NULL);
}

HELPER int emu_evict(const struct emu *e, uint64_t pages, uint64_t *evicted)
{
	struct hetmem_emu_cmd_evict cmd = {
		.size = sizeof(cmd),
		.nr_pages = pages,
	};
	int ret = hm_ioctl(e->fd, HETMEM_EMU_IOC_EVICT, &cmd);

	if (evicted)
		*evicted = cmd.evicted;
	return ret;
}

/* What the device reads at [p, p + size) is the pattern from @offset on. */
HELPER bool emu_sees_at(const struct emu *e, uint32_t flags, const void *p,
			size_t size, uint64_t seed, size_t offset)
{
	void *buf = malloc(size);
	bool ok = buf && !emu_read(e, flags, p, size, buf) &&
		  mismatch_at(buf, size, seed, offset) < 0;

	free(buf);
	return ok;
}

HELPER bool emu_sees(const struct emu *e, uint32_t flags, const void *p,
		     size_t size, uint64_t seed)
{
	return emu_sees_at(e, flags, p, size, seed, 0);
}

/* The device writes the pattern. */
HELPER int emu_fill(const struct emu *e, uint32_t flags, void *p, size_t size,
		    uint64_t seed)
{
	void *buf = malloc(size);
	int ret = -ENOMEM;

	if (buf) {
		fill(buf, size, seed);
		ret = emu_write(e, flags, p, size, buf);
	}
	free(buf);
	return ret;
}

/*
 * Move what can be moved to @loc. A page that is busy at the moment is no
 * failure of anybody's, so they are asked for again. @total, if not NULL:
 * moved is the sum, already what was there the first time, the rest is the
 * last call's. Return: pages that are there now, or a negative errno.
 */
HELPER long move_to(int fd, const void *p, size_t size, uint32_t loc,
		    struct hetmem_cmd_migrate *total)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t moved = 0, already = 0;
	int i, ret;

	for (i = 0; i < MOVE_TRIES; i++) {
		ret = hm_migrate(fd, p, size, loc, &cmd);
		if (ret)
			return ret;
		moved += cmd.moved;
		if (!i)
			already = cmd.already;
		if (!cmd.not_moved || !(cmd.why & HETMEM_WHY_BUSY))
			break;
		usleep(1000);
	}
	if (total) {
		*total = cmd;
		total->moved = moved;
		total->already = already;
	}
	return cmd.moved + cmd.already;
}

/*
 * Once, over memory that others move at the same time: that it kept changing
 * is a documented answer, and what was done until then is checked as ever.
 */
HELPER int migrate_contended(int fd, const void *p, size_t size, uint32_t loc,
			     struct hetmem_cmd_migrate *cmd)
{
	int ret = hm_migrate(fd, p, size, loc, cmd);

	if (ret != -EBUSY)
		return ret;
	return cmd->walk_end >= cmd->start && cmd->walk_end < cmd->end &&
	       cmd->moved + cmd->already + cmd->not_moved ==
	       (cmd->walk_end - cmd->start) / page_size() ? 0 : -EBADMSG;
}

HELPER long to_device(int fd, const struct emu *e, const void *p, size_t size)
{
	return move_to(fd, p, size, e->loc, NULL);
}

HELPER long to_host(int fd, const void *p, size_t size)
{
	return move_to(fd, p, size, ANY_HOST, NULL);
}

/* Kinds whose pages a device can have. */
HELPER bool mem_moves(enum mem_kind kind)
{
	switch (kind) {
	case MEM_ANON:
	case MEM_FILE_COW:
	case MEM_THP:
	case MEM_MLOCKED:
		return true;
	default:
		return false;
	}
}

/*
 * A CPU fault brings a page's neighbours back with it, within a window of
 * addresses. Return: the end of the one that the page before @p is in.
 */
HELPER char *fault_window_end(const char *p)
{
	long pages = read_long("/sys/module/hetmem_emu/parameters/fault_around");
	size_t window = (pages > 0 ? pages : 1) * page_size();

	return (char *)(((uintptr_t)p + window - 1) & ~(window - 1));
}

/* Anonymous memory without huge pages, filled with the pattern. */
HELPER char *map_filled(size_t size, uint64_t seed)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_NOHUGEPAGE);
	fill(p, size, seed);
	return p;
}

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

HELPER int rig_init(struct rig *r)
{
	struct hetmem_emu_cmd_info info;
	int i, ret;

	r->fd = hm_open();
	if (r->fd < 0)
		return r->fd;
	for (i = 0; i < 2; i++) {
		ret = emu_open(&r->dev[i], i);
		if (ret) {
			fprintf(stderr,
				"# no /dev/hetmem_emu%d: load hetmem_emu with devices=2\n",
				i);
			return ret;
		}
		ret = emu_info(r->dev[i].fd, &info);
		if (ret)
			return ret;
		r->failures[i] = info.cpu_fault_failures;
	}
	r->size = test_size();
	if (r->size > r->dev[0].capacity / 4)
		r->size = r->dev[0].capacity / 4;
	return 0;
}

/* Nobody holds a page of the devices when a test is over. */
HELPER int rig_exit(struct rig *r)
{
	struct hetmem_emu_cmd_info info;
	int i, tries, ret = 0;

	for (i = 0; i < 2; i++) {
		/* The last reference may go a little later than the mapping. */
		for (tries = 0; tries < 200; tries++) {
			if (emu_info(r->dev[i].fd, &info) || !info.used)
				break;
			usleep(5000);
		}
		if (info.used) {
			fprintf(stderr, "# device %d: %llu pages still used\n",
				i, info.used);
			ret = -EBUSY;
		}
		if (info.cpu_fault_failures != r->failures[i]) {
			fprintf(stderr, "# device %d: %llu CPU faults failed\n",
				i, info.cpu_fault_failures - r->failures[i]);
			ret = -EIO;
		}
		close(r->dev[i].fd);
	}
	close(r->fd);
	return ret;
}

#endif /* HETMEM_EMU_TEST_H */
