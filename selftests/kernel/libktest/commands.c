// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/commands.h"

int hm_open_flags(int flags)
{
	int fd;

	do {
		fd = open(DEV_HETMEM, O_RDWR | flags);
	} while (fd < 0 && errno == EINTR);
	return fd < 0 ? -errno : fd;
}

int hm_open(void)
{
	return hm_open_flags(O_CLOEXEC);
}

int hm_ioctl(int fd, unsigned long nr, void *cmd)
{
	return ioctl(fd, nr, cmd) < 0 ? -errno : 0;
}

int hm_info(int fd, struct hetmem_cmd_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return hm_ioctl(fd, HETMEM_IOC_INFO, info);
}

int hm_track(int fd, const void *p, size_t size)
{
	struct hetmem_cmd_track cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
	};

	return hm_ioctl(fd, HETMEM_IOC_TRACK, &cmd);
}

int hm_untrack(int fd, const void *p, size_t size)
{
	struct hetmem_cmd_untrack cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
	};

	return hm_ioctl(fd, HETMEM_IOC_UNTRACK, &cmd);
}

int hm_stats(int fd, const void *p, struct hetmem_cmd_stats *st)
{
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	st->start = (uintptr_t)p;
	return hm_ioctl(fd, HETMEM_IOC_STATS, st);
}

int hm_stats_context(int fd, struct hetmem_cmd_stats *st)
{
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	st->flags = HETMEM_STATS_CONTEXT;
	return hm_ioctl(fd, HETMEM_IOC_STATS, st);
}

long hm_notified(int fd, const void *p, enum hetmem_change type)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.changes[type];
}

long hm_dirty(int fd, const void *p)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.dirty_blocks;
}

int hm_residency(int fd, struct hetmem_cmd_residency *cmd)
{
	cmd->size = sizeof(*cmd);
	return hm_ioctl(fd, HETMEM_IOC_RESIDENCY, cmd);
}

int hm_migrate(int fd, const void *p, size_t size, uint32_t loc,
	       struct hetmem_cmd_migrate *cmd)
{
	uint64_t pages;
	int ret;

	memset(cmd, 0, sizeof(*cmd));
	cmd->size = sizeof(*cmd);
	cmd->start = (uintptr_t)p;
	cmd->end = (uintptr_t)p + size;
	cmd->location = loc;
	ret = hm_ioctl(fd, HETMEM_IOC_MIGRATE, cmd);
	if (ret)
		return ret;
	pages = (cmd->walk_end - cmd->start) / page_size();
	if (cmd->walk_end != cmd->end ||
	    cmd->moved + cmd->already + cmd->not_moved != pages ||
	    !cmd->not_moved != !cmd->why ||
	    (cmd->not_moved && (cmd->why_addr < cmd->start ||
				cmd->why_addr >= cmd->end))) {
		fprintf(stderr,
			"# MIGRATE [%llx, %llx) to %llx: %llu moved, %llu already, %llu not, why %x at %llx\n",
			cmd->start, cmd->end, cmd->walk_end, cmd->moved,
			cmd->already, cmd->not_moved, cmd->why, cmd->why_addr);
		return -EBADMSG;
	}
	return 0;
}

long move_to(int fd, const void *p, size_t size, uint32_t loc,
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
		/* time: the pace of looks */
		usleep(1000);
	}
	if (total) {
		*total = cmd;
		total->moved = moved;
		total->already = already;
	}
	return cmd.moved + cmd.already;
}

long to_host(int fd, const void *p, size_t size)
{
	return move_to(fd, p, size, ANY_HOST, NULL);
}

int hm_pin(int fd, const void *p, size_t size, unsigned int timeout_ms,
	   struct hetmem_cmd_migrate *cmd)
{
	*cmd = (struct hetmem_cmd_migrate){
		.size = sizeof(*cmd),
		.flags = HETMEM_MIGRATE_PIN,
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.location = ANY_HOST,
		.timeout_ms = timeout_ms,
	};
	return hm_ioctl(fd, HETMEM_IOC_MIGRATE, cmd);
}

int hm_unpin(int fd, const void *p, size_t size, uint64_t *unpinned)
{
	struct hetmem_cmd_unpin cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_UNPIN, &cmd);

	if (unpinned)
		*unpinned = cmd.unpinned;
	return ret;
}

long vm_pin(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kb = -1;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "VmPin: %ld", &kb) == 1)
			break;
	}
	if (f)
		fclose(f);
	return kb < 0 ? -1 : kb * (long)KiB / (long)page_size();
}

long pins_held(void)
{
	long held = 0, n;
	char name[64];
	FILE *f;

	/* Each processor has counted some that are not in the sum yet. */
	if (write_text("/proc/sys/vm/stat_refresh", "1"))
		return -EPERM;
	f = fopen("/proc/vmstat", "r");
	if (!f)
		return -errno;
	while (fscanf(f, "%63s %ld", name, &n) == 2) {
		if (!strcmp(name, "nr_foll_pin_acquired"))
			held += n;
		else if (!strcmp(name, "nr_foll_pin_released"))
			held -= n;
	}
	fclose(f);
	return held;
}

int hm_refresh(int fd, const void *p, struct hetmem_cmd_refresh *cmd)
{
	/* What comes back is the kernel's, not this. */
	memset(cmd, 0xa5, sizeof(*cmd));
	cmd->size = sizeof(*cmd);
	cmd->flags = 0;
	cmd->start = (uintptr_t)p;
	return hm_ioctl(fd, HETMEM_IOC_REFRESH, cmd);
}

int hm_refresh_all(int fd, const void *p, struct hetmem_cmd_refresh *cmd)
{
	long end = had_ms() + PATIENCE_MS;
	uint64_t walked = 0;
	int ret;

	do {
		ret = hm_refresh(fd, p, cmd);
		if (ret)
			return ret;
		walked += cmd->walked_blocks;
		if (!cmd->dirty_blocks)
			break;
		ret = -EAGAIN;
		/* time: the pace of looks */
		usleep(10000);
	} while (had_ms() < end);
	cmd->walked_blocks = walked;
	return ret;
}

int hm_allow(int fd, uint32_t allowed)
{
	struct hetmem_cmd_allow cmd = {
		.size = sizeof(cmd),
		.allowed = allowed,
	};

	return hm_ioctl(fd, HETMEM_IOC_ALLOW, &cmd);
}

int hm_bind(int fd, uint32_t location, uint32_t flags, const void *uuid)
{
	struct hetmem_cmd_bind_device cmd = {
		.size = sizeof(cmd),
		.flags = flags,
		.location = location,
	};

	if (uuid)
		memcpy(cmd.uuid, uuid, sizeof(cmd.uuid));
	return hm_ioctl(fd, HETMEM_IOC_BIND_DEVICE, &cmd);
}

int hm_hint_uuid(int fd, const void *p, size_t size, uint32_t location,
		 const void *uuid, unsigned int timeout_ms,
		 struct hetmem_cmd_hint *cmd)
{
	struct hetmem_cmd_hint own;

	if (!cmd)
		cmd = &own;
	*cmd = (struct hetmem_cmd_hint){
		.size = sizeof(*cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.location = location,
		.timeout_ms = timeout_ms,
	};
	if (uuid)
		memcpy(cmd->uuid, uuid, sizeof(cmd->uuid));
	return hm_ioctl(fd, HETMEM_IOC_HINT, cmd);
}

int hm_hint(int fd, const void *p, size_t size, uint32_t location,
	    unsigned int timeout_ms, struct hetmem_cmd_hint *cmd)
{
	return hm_hint_uuid(fd, p, size, location, NULL, timeout_ms, cmd);
}

int hm_complete(int fd, uint64_t id, int result, uint64_t moved)
{
	struct hetmem_cmd_complete cmd = {
		.size = sizeof(cmd),
		.id = id,
		.moved = moved,
		.result = result,
	};

	return hm_ioctl(fd, HETMEM_IOC_COMPLETE, &cmd);
}

int hm_list(int fd, struct hetmem_list_entry *entries,
	    unsigned int room)
{
	struct hetmem_cmd_list cmd = {
		.size = sizeof(cmd),
		.entries = (uintptr_t)entries,
		.entry_size = sizeof(*entries),
		.nr = room,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_LIST, &cmd);

	return ret ? ret : (int)cmd.nr;
}
