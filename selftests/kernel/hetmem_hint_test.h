/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the tests of hints, pins, thrash and sharing have in common: a reader
 * of the event ring, the commands about devices, hints and attributes, files
 * below /sys/class/misc/hetmem, and handing descriptors from one process to
 * another.
 */
#ifndef HETMEM_HINT_TEST_H
#define HETMEM_HINT_TEST_H

#include "hetmem_fd.h"
#include "hetmem_mem.h"

#include <poll.h>
#include <sys/socket.h>

#define SYSFS		"/sys/class/misc/hetmem/"
#define GPU(n)		HETMEM_LOC(HETMEM_FOREIGN, n)
#define EVENT(type)	(1ULL << HETMEM_EVENT_##type)

/* A value that only a test that fails waits for. */
#define FOREVER_MS	60000

struct ring {
	int fd;			/* of the context */
	struct hetmem_ring_header *header;
	size_t size;
};

HELPER int ring_make(struct ring *r, int fd, unsigned int entries,
		     uint64_t events)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd),
		.nr_entries = entries,
		.eventfd = -1,
		.events = events,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_RING, &cmd);

	*r = (struct ring){ .fd = fd };
	if (ret)
		return ret;
	r->size = cmd.map_size;
	r->header = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED,
			 fd, 0);
	return r->header == MAP_FAILED ? -errno : 0;
}

/* The next event, if there is one. */
HELPER bool ring_next(struct ring *r, struct hetmem_event *e)
{
	uint64_t tail = r->header->tail;

	if (tail == __atomic_load_n(&r->header->head, __ATOMIC_ACQUIRE))
		return false;
	memcpy(e, (char *)r->header + r->header->data_offset +
	       (tail & (r->header->nr_entries - 1)) * r->header->entry_size,
	       sizeof(*e));
	__atomic_store_n(&r->header->tail, tail + 1, __ATOMIC_RELEASE);
	return true;
}

/* The next event, waiting for it; false: none came in @ms. */
HELPER bool ring_wait(struct ring *r, struct hetmem_event *e, int ms)
{
	struct pollfd p = { .fd = r->fd, .events = POLLIN };

	while (!ring_next(r, e)) {
		int n = poll(&p, 1, ms);

		if (!n || (n < 0 && errno != EINTR))
			return false;
	}
	return true;
}

/* How many events of @type are waiting; they and all others are read. */
HELPER unsigned int ring_count(struct ring *r, uint32_t type,
			       struct hetmem_event *last)
{
	struct hetmem_event e;
	unsigned int n = 0;

	while (ring_next(r, &e)) {
		if (e.type != type)
			continue;
		n++;
		if (last)
			*last = e;
	}
	return n;
}

HELPER int hm_bind(int fd, uint32_t location, uint32_t flags, void *uuid)
{
	struct hetmem_cmd_bind_device cmd = {
		.size = sizeof(cmd),
		.flags = flags,
		.location = location,
	};
	int ret;

	if (uuid && !(flags & HETMEM_BIND_GET))
		memcpy(cmd.uuid, uuid, sizeof(cmd.uuid));
	ret = hm_ioctl(fd, HETMEM_IOC_BIND_DEVICE, &cmd);
	if (!ret && uuid && (flags & HETMEM_BIND_GET))
		memcpy(uuid, cmd.uuid, sizeof(cmd.uuid));
	return ret;
}

HELPER int hm_hint(int fd, const void *p, size_t size, uint32_t location,
		   unsigned int timeout_ms, int reply_fd,
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
		.reply_fd = reply_fd,
	};
	return hm_ioctl(fd, HETMEM_IOC_HINT, cmd);
}

HELPER int hm_complete(int fd, uint64_t id, int result, uint64_t moved)
{
	struct hetmem_cmd_complete cmd = {
		.size = sizeof(cmd),
		.id = id,
		.moved = moved,
		.result = result,
	};

	return hm_ioctl(fd, HETMEM_IOC_COMPLETE, &cmd);
}

/* MIGRATE with PIN, and further @flags. */
HELPER int hm_pin(int fd, const void *p, size_t size, unsigned int timeout_ms,
		  uint32_t flags, struct hetmem_cmd_migrate *cmd)
{
	*cmd = (struct hetmem_cmd_migrate){
		.size = sizeof(*cmd),
		.flags = HETMEM_MIGRATE_PIN | flags,
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.location = ANY_HOST,
		.timeout_ms = timeout_ms,
	};
	return hm_ioctl(fd, HETMEM_IOC_MIGRATE, cmd);
}

/* Pages of this process that are pinned, by whoever, as the kernel shows it. */
HELPER long vm_pin(void)
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

/* Pages of [p, p + size) that RESIDENCY says are pinned, or an errno. */
HELPER long pages_pinned(int fd, const void *p, size_t size)
{
	struct view v;
	long ret = view_take(fd, p, size, &v);
	size_t i;

	for (i = 0; ret >= 0 && i < v.nr_runs; i++) {
		if (v.runs[i].why & HETMEM_WHY_PINNED_BY_US)
			ret += (v.runs[i].end - v.runs[i].start) / page_size();
	}
	view_free(&v);
	return ret;
}

HELPER int hm_set_attr(int fd, const void *p, uint32_t attr, uint64_t value)
{
	struct hetmem_cmd_attr cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.attr = attr,
		.value = value,
	};

	return hm_ioctl(fd, HETMEM_IOC_SET_ATTR, &cmd);
}

HELPER long hm_get_attr(int fd, const void *p, uint32_t attr)
{
	struct hetmem_cmd_attr cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.attr = attr,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_GET_ATTR, &cmd);

	return ret ? ret : (long)cmd.value;
}

/* Contexts that the caller is shown, at most @room of them in @entries. */
HELPER int hm_list(int fd, struct hetmem_list_entry *entries,
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

HELPER long sysfs_read(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), SYSFS "%s", name);
	return read_long(path);
}

/* 0 or what write(2) says. */
HELPER int sysfs_write(const char *name, const char *text)
{
	char path[256];
	int fd, ret = 0;

	snprintf(path, sizeof(path), SYSFS "%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		ret = -errno;
	close(fd);
	return ret;
}

HELPER int sysfs_set(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return sysfs_write(name, text);
}

/* What closes or ends a little later than the call that asked for it. */
#define EVENTUALLY(cond)						\
	({								\
		int tries_ = 0;						\
									\
		while (!(cond) && ++tries_ < 1000)			\
			usleep(5000);					\
		(cond);							\
	})

/* Contexts that there are, whoever's. */
HELPER long nr_contexts(void)
{
	return sysfs_read("stats/contexts");
}

/* A context with a ring of all events that is executor for @location. */
HELPER int executor_open(struct ring *r, uint32_t location,
			 unsigned int entries)
{
	int fd = hm_open(), ret;

	*r = (struct ring){ .fd = fd };
	if (fd < 0)
		return fd;
	ret = ring_make(r, fd, entries, EVENT(HINT) | EVENT(COMPLETED));
	if (!ret)
		ret = hm_bind(fd, location, HETMEM_BIND_EXECUTOR, NULL);
	return ret ? ret : fd;
}

#endif /* HETMEM_HINT_TEST_H */
