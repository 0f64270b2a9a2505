// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The kernel module: with kmod_hint.c the only file that issues the ioctls of
 * /dev/hetmem.
 *
 * Commands that work in pieces are gone on with here, so that the rest of
 * the library sees one call with one answer. Locations are the module's
 * own; who knows the driver's devices translates.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/device_open.h"
#include "platform/kmod.h"
#include "platform/platform.h"

#define DEFAULT_PATH	"/dev/hetmem"

static int command(const struct hm_kmod *kmod, unsigned long nr, void *arg)
{
	if (kmod->fd < 0)
		return -EOPNOTSUPP;
	return ioctl(kmod->fd, nr, arg) ? -errno : 0;
}

bool hm_kmod_there(const struct hm_kmod *kmod)
{
	return kmod->fd >= 0;
}

/* *@devices (to be freed) and *@nr as there are now. */
static int ask_devices(const struct hm_kmod *kmod,
		       struct hetmem_device_info **devices,
		       unsigned int *nr)
{
	struct hetmem_cmd_info info;
	struct hetmem_device_info *list = NULL, *grown;
	unsigned int room = 0;
	int err;

	/* Devices may come between asking how many and asking for all. */
	for (;;) {
		info = (struct hetmem_cmd_info) {
			.size = sizeof(info),
			.devices = (uintptr_t)list,
			.device_size = sizeof(*list),
			.nr_devices = room,
		};
		err = command(kmod, HETMEM_IOC_INFO, &info);
		if (err) {
			free(list);
			return hm_error(err, "INFO: %s", strerror(-err));
		}
		if (info.nr_devices <= room)
			break;
		room = info.nr_devices;
		grown = reallocarray(list, room, sizeof(*list));
		if (!grown) {
			free(list);
			return hm_error(-ENOMEM, "no memory for %u devices",
					room);
		}
		list = grown;
		memset(list, 0, room * sizeof(*list));
	}
	*devices = list;
	*nr = info.nr_devices;
	return 0;
}

int hm_kmod_device_memory(const struct hm_kmod *kmod, unsigned int id,
			  uint64_t *capacity, uint64_t *used)
{
	struct hetmem_device_info *list;
	unsigned int nr, i;
	int err;

	err = ask_devices(kmod, &list, &nr);
	if (err)
		return err;
	err = -ENODEV;
	for (i = 0; i < nr; i++) {
		if (list[i].id != id)
			continue;
		*capacity = list[i].capacity;
		*used = list[i].used;
		err = 0;
	}
	free(list);
	return err ? hm_error(err, "INFO: device %u is gone", id) : 0;
}

/* Advises only what this machine can do: a kernel without modules has no /proc/modules. */
static const char *what_to_do(int err)
{
	switch (err) {
	case ENOENT:
	case ENXIO:
	case ENODEV:
		return access("/proc/modules", F_OK) ?
			"hetmem.ko is not loaded, and this kernel loads no modules" :
			"load hetmem.ko: 'hetmem doctor' has the command";
	case EACCES:
	case EPERM:
		return "become root, or have root make its mode 0666";
	case ENOTTY:
	case ENOTSUP:
		return "this is not the device node of hetmem.ko";
	case EINTR:
	case EAGAIN:
		return "the freezer or a debugger interrupted each try: try again";
	default:
		return "see the kernel log";
	}
}

int hm_kmod_open(struct hm_kmod *kmod, const char *path, char *reason,
		 size_t len)
{
	int err;

	memset(kmod, 0, sizeof(*kmod));
	kmod->fd = -1;
	if (!path)
		path = DEFAULT_PATH;
	if (!*path) {
		snprintf(reason, len, "not looked for: opened without the module");
		return -ENOENT;
	}
	kmod->fd = hm_device_open(path);
	if (kmod->fd < 0) {
		err = -kmod->fd;
		kmod->fd = -1;
		snprintf(reason, len, "%s: %s: %s", path, strerror(err),
			 what_to_do(err));
		return -err;
	}

	kmod->info.size = sizeof(kmod->info);
	err = command(kmod, HETMEM_IOC_INFO, &kmod->info);
	if (!err && kmod->info.version != HETMEM_VERSION) {
		snprintf(reason, len,
			 "%s speaks version %u, this library %u: load the module of this version",
			 path, kmod->info.version, HETMEM_VERSION);
		hm_kmod_close(kmod);
		return -EPROTO;
	}
	if (!err)
		err = ask_devices(kmod, &kmod->devices, &kmod->nr_devices);
	if (err) {
		snprintf(reason, len, "%s: INFO: %s: %s", path, strerror(-err),
			 what_to_do(-err));
		hm_kmod_close(kmod);
		return err;
	}
	snprintf(reason, len, "%s, version %u, %u device%s", path,
		 kmod->info.version, kmod->nr_devices,
		 kmod->nr_devices == 1 ? "" : "s");
	return 0;
}

void hm_kmod_close(struct hm_kmod *kmod)
{
	if (kmod->fd >= 0)
		close(kmod->fd);
	kmod->fd = -1;
	free(kmod->devices);
	kmod->devices = NULL;
	kmod->nr_devices = 0;
}

int hm_kmod_track(const struct hm_kmod *kmod, uintptr_t start, uintptr_t end)
{
	struct hetmem_cmd_track cmd = {
		.size = sizeof(cmd),
		.start = start,
		.end = end,
	};
	int err = command(kmod, HETMEM_IOC_TRACK, &cmd);

	if (err)
		return hm_error(err, "TRACK of [%#lx, %#lx): %s",
				(long)start, (long)end, strerror(-err));
	return 0;
}

int hm_kmod_untrack(const struct hm_kmod *kmod, uintptr_t start,
		    uintptr_t end)
{
	struct hetmem_cmd_untrack cmd = {
		.size = sizeof(cmd),
		.start = start,
		.end = end,
	};
	int err = command(kmod, HETMEM_IOC_UNTRACK, &cmd);

	if (err)
		return hm_error(err, "UNTRACK of [%#lx, %#lx): %s",
				(long)start, (long)end, strerror(-err));
	return 0;
}

ssize_t hm_kmod_residency(const struct hm_kmod *kmod, uintptr_t start,
			  uintptr_t end, struct hetmem_run *runs, size_t nr,
			  uintptr_t *next)
{
	size_t filled = 0, i, first;
	int err = 0;

	*next = start;
	while (start < end && filled < nr && !err) {
		size_t room = nr - filled;
		struct hetmem_cmd_residency cmd = {
			.size = sizeof(cmd),
			.start = start,
			.end = end,
			.runs = (uintptr_t)(runs + filled),
			.nr_runs = room > UINT32_MAX ? UINT32_MAX : room,
			.run_size = sizeof(*runs),
		};

		err = command(kmod, HETMEM_IOC_RESIDENCY, &cmd);
		if (err && err != -EINTR)
			break;
		/* New runs lie behind the old ones: merge them in place. */
		first = filled;
		for (i = 0; i < cmd.filled_runs; i++) {
			struct hetmem_run run = runs[first + i];

			hm_run_add(runs, nr, &filled, &run);
		}
		if (!err && (cmd.walk_end <= start || cmd.walk_end > end))
			err = -EIO;
		else if (cmd.walk_end > start)
			start = cmd.walk_end;
		*next = start;
	}
	/* What is known is worth more than the error, which comes again. */
	if (err && start < end && !filled)
		return hm_error(err, "RESIDENCY at %#lx: %s", (long)start,
				strerror(-err));
	return filled;
}

/* Two steps' worth: the kernel stops when fewer than one step's are left. */
#define REST_ROOM	(2 * HETMEM_REST_MIN)

/* Adds what one MIGRATE did to the whole. */
static void add_moved(struct hetmem_moved *moved,
		      const struct hetmem_cmd_migrate *cmd)
{
	moved->moved += cmd->moved;
	moved->already += cmd->already;
	if (cmd->not_moved && !moved->not_moved) {
		moved->why = cmd->why;
		moved->why_addr = cmd->why_addr;
	}
	moved->not_moved += cmd->not_moved;
}

/*
 * Does what the kernel leaves to userspace: pages of the host that are on
 * another node than the one asked for. Afterwards @cmd is as if the kernel had
 * moved them.
 */
static void finish_rest(const struct hm_kmod *kmod,
			struct hetmem_cmd_migrate *cmd,
			const struct hetmem_run *rest)
{
	const int node = HETMEM_LOC_INDEX(cmd->location);
	struct hetmem_moved ours = { .size = sizeof(ours) };
	struct hetmem_cmd_migrate again;
	uint32_t i;

	for (i = 0; i < cmd->filled_rest; i++)
		hm_numa_move(rest[i].start, rest[i].end,
			     sysconf(_SC_PAGESIZE), node, &ours);
	cmd->moved += ours.moved;
	cmd->already += ours.already;
	cmd->not_moved -= ours.moved + ours.already;
	if (!cmd->not_moved || !(cmd->why & HETMEM_WHY_OTHER_NODE))
		return;
	/* The first that was left has gone, maybe: which is the first now? */
	again = (struct hetmem_cmd_migrate){
		.size = sizeof(again),
		.start = cmd->why_addr,
		.end = cmd->walk_end,
		.location = cmd->location,
	};
	if (command(kmod, HETMEM_IOC_MIGRATE, &again) || !again.not_moved)
		return;
	cmd->why = again.why;
	cmd->why_addr = again.why_addr;
	/* Of what move_pages(2) has tried, it knows better why. */
	if (cmd->why & HETMEM_WHY_OTHER_NODE && ours.not_moved)
		cmd->why = (cmd->why & ~HETMEM_WHY_OTHER_NODE) | ours.why;
}

/*
 * Has the large folios split that the kernel does not migrate because they are
 * mapped by pages, and asks for those again. That advice also makes memory the
 * first to be swapped out, so only what is about to leave gets it.
 */
static void split_rest(const struct hm_kmod *kmod,
		       struct hetmem_cmd_migrate *cmd,
		       const struct hetmem_run *rest)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	struct hetmem_cmd_migrate again = {
		.size = sizeof(again),
		.start = rest[0].start,
		.end = rest[cmd->filled_rest - 1].end,
		.location = cmd->location,
	};
	uint64_t before = 0;
	uint32_t i;

	for (i = 0; i < cmd->filled_rest; i++) {
		uintptr_t addr = rest[i].start;

		before += (rest[i].end - addr) / page;
		for (; addr < rest[i].end; addr += page)
			(void)madvise((void *)addr, page, MADV_COLD);
	}
	if (command(kmod, HETMEM_IOC_MIGRATE, &again) ||
	    again.walk_end != again.end)
		return;
	before = again.moved < before ? again.moved : before;
	cmd->moved += before;
	cmd->not_moved -= before;
	if (cmd->not_moved && cmd->why_addr >= again.start &&
	    cmd->why_addr < again.end && again.not_moved) {
		cmd->why = again.why;
		cmd->why_addr = again.why_addr;
	}
}

/* What goes with a failure has its counters in place all the same. */
static bool is_partial(int err)
{
	return err == -ENOMEM || err == -EINTR || err == -ENODEV;
}

int hm_kmod_migrate(const struct hm_kmod *kmod, uintptr_t start,
		    uintptr_t end, uint32_t location, uint32_t flags,
		    struct hetmem_moved *moved)
{
	const bool on_host = HETMEM_LOC_KIND(location) == HETMEM_HOST;
	const bool has_rest = !on_host ||
			      (HETMEM_LOC_INDEX(location) != HETMEM_NODE_ANY &&
			       hm_numa_nodes() > 1);
	struct hetmem_run rest[REST_ROOM];
	int err;

	while (start < end) {
		struct hetmem_cmd_migrate cmd = {
			.size = sizeof(cmd),
			.flags = flags,
			.start = start,
			.end = end,
			.location = location,
			.rest = has_rest ? (uintptr_t)rest : 0,
			.rest_size = sizeof(*rest),
			.nr_rest = has_rest ? REST_ROOM : 0,
		};

		err = command(kmod, HETMEM_IOC_MIGRATE, &cmd);
		if (!err || is_partial(err)) {
			if (cmd.filled_rest && on_host)
				finish_rest(kmod, &cmd, rest);
			else if (cmd.filled_rest)
				split_rest(kmod, &cmd, rest);
			add_moved(moved, &cmd);
		}
		if (!err && (cmd.walk_end <= start || cmd.walk_end > end))
			err = -EIO;
		if (err)
			return hm_error(err, "MIGRATE at %#lx: %s",
					(long)start, strerror(-err));
		start = cmd.walk_end;
	}
	return 0;
}

int hm_kmod_migrate_vector(const struct hm_kmod *kmod, struct hetmem_cmd_migrate *cmds,
			   int32_t *results, size_t nr)
{
	size_t at, i;
	int err = 0;

	for (at = 0; at < nr; at += HETMEM_VECTOR_MAX) {
		const size_t left = nr - at;
		struct hetmem_cmd_migrate_vector cmd = {
			.size = sizeof(cmd),
			.commands = (uintptr_t)(cmds + at),
			.results = (uintptr_t)(results + at),
			.command_size = sizeof(*cmds),
			.nr = left < HETMEM_VECTOR_MAX ? left : HETMEM_VECTOR_MAX,
		};

		if (!err)
			err = command(kmod, HETMEM_IOC_MIGRATE_VECTOR, &cmd);
		for (i = cmd.done; err && i < cmd.nr; i++)
			results[at + i] = err;
	}
	return err;
}

int hm_kmod_stats(const struct hm_kmod *kmod, const void *addr,
		  struct hetmem_cmd_stats *stats)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE);
	int err;

	memset(stats, 0, sizeof(*stats));
	stats->size = sizeof(*stats);
	stats->start = (uintptr_t)addr & ~(page - 1);
	stats->flags = addr ? 0 : HETMEM_STATS_CONTEXT;
	err = command(kmod, HETMEM_IOC_STATS, stats);
	if (err)
		return hm_error(err, "STATS at %#lx: %s", (long)addr,
				strerror(-err));
	return 0;
}
