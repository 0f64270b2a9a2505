// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/emu.h"

int emu_info(int fd, struct hetmem_emu_cmd_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return hm_ioctl(fd, HETMEM_EMU_IOC_INFO, info);
}

int emu_open(struct emu *e, int nr)
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

int emu_locations(uint32_t loc[2])
{
	struct emu e;
	int i, ret;

	for (i = 0; i < 2; i++) {
		ret = emu_open(&e, i);
		if (ret)
			return ret;
		loc[i] = e.loc;
		close(e.fd);
	}
	return 0;
}

int emu_access(const struct emu *e, uint32_t op, uint32_t flags,
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

int emu_read(const struct emu *e, uint32_t flags, const void *addr,
	     size_t length, void *data)
{
	return emu_access(e, HETMEM_EMU_READ, flags, addr, length, data, 0,
			  NULL);
}

int emu_write(const struct emu *e, uint32_t flags, void *addr,
	      size_t length, const void *data)
{
	return emu_access(e, HETMEM_EMU_WRITE, flags, addr, length, data, 0,
			  NULL);
}

int emu_evict(const struct emu *e, uint64_t pages, uint64_t *evicted)
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

bool emu_sees_at(const struct emu *e, uint32_t flags, const void *p,
		 size_t size, uint64_t seed, size_t offset)
{
	void *buf = calloc(1, size);
	bool ok = buf && !emu_read(e, flags, p, size, buf) &&
		  mismatch_at(buf, size, seed, offset) < 0;

	free(buf);
	return ok;
}

bool emu_sees(const struct emu *e, uint32_t flags, const void *p,
	      size_t size, uint64_t seed)
{
	return emu_sees_at(e, flags, p, size, seed, 0);
}

int emu_fill(const struct emu *e, uint32_t flags, void *p, size_t size,
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

long to_device(int fd, const struct emu *e, const void *p, size_t size)
{
	return move_to(fd, p, size, e->loc, NULL);
}

char *fault_window_end(const char *p)
{
	long pages = read_long("/sys/module/hetmem_emu/parameters/fault_around");
	size_t window = (pages > 0 ? pages : 1) * page_size();

	return (char *)(((uintptr_t)p + window - 1) & ~(window - 1));
}

bool emu_empties(const struct emu *e, struct hetmem_emu_cmd_info *info)
{
	return EVENTUALLY(!emu_info(e->fd, info) && !info->used);
}

int rig_init(struct rig *r)
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

int rig_exit(struct rig *r)
{
	struct hetmem_emu_cmd_info info;
	int i, ret = 0;

	for (i = 0; i < 2; i++) {
		/* The last reference may go a little later than the mapping. */
		if (!emu_empties(&r->dev[i], &info)) {
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
