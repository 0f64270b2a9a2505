/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The reader's side of the event ring, REFRESH and attributes, as plain
 * functions for tests.
 */
#ifndef HETMEM_RING_H
#define HETMEM_RING_H

#include "hetmem_test.h"

#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#define EVENT_BIT(type)	(1ULL << HETMEM_EVENT_##type)
#define ALL_EVENTS	((1ULL << HETMEM_EVENT_NR) - 1)

struct ring {
	struct hetmem_ring_header *h;
	size_t size;
	uint64_t tail;
};

HELPER int ring_make(int fd, uint32_t nr_entries, uint64_t events, int eventfd,
		     size_t *map_size)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd),
		.nr_entries = nr_entries,
		.eventfd = eventfd,
		.events = events,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_RING, &cmd);

	if (!ret && map_size)
		*map_size = cmd.map_size;
	return ret;
}

HELPER int ring_map(int fd, struct ring *r)
{
	r->h = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	r->tail = 0;
	return r->h == MAP_FAILED ? -errno : 0;
}

HELPER int ring_open(int fd, uint32_t nr_entries, uint64_t events,
		     struct ring *r)
{
	int ret = ring_make(fd, nr_entries, events, -1, &r->size);

	return ret ? ret : ring_map(fd, r);
}

HELPER void ring_close(struct ring *r)
{
	munmap(r->h, r->size);
}

HELPER struct hetmem_event *ring_entry(const struct ring *r, uint64_t n)
{
	return (void *)((char *)r->h + r->h->data_offset +
			(n & (r->h->nr_entries - 1)) * r->h->entry_size);
}

/* The next event, as the header describes reading. False: there is none. */
HELPER bool ring_next(struct ring *r, struct hetmem_event *e)
{
	if (__atomic_load_n(&r->h->head, __ATOMIC_ACQUIRE) == r->tail)
		return false;
	*e = *ring_entry(r, r->tail);
	__atomic_store_n(&r->h->tail, ++r->tail, __ATOMIC_RELEASE);
	return true;
}

/* The next event of a type, others are thrown away. */
HELPER bool ring_next_of(struct ring *r, uint32_t type, struct hetmem_event *e)
{
	while (ring_next(r, e))
		if (e->type == type)
			return true;
	return false;
}

/* Everything that waits is read; sum of the counts of @type's events. */
HELPER uint64_t ring_sum(struct ring *r, uint32_t type, uint32_t loc)
{
	struct hetmem_event e;
	uint64_t sum = 0;

	while (ring_next(r, &e))
		if (e.type == type && e.location == loc)
			sum += e.count;
	return sum;
}

HELPER void ring_drain(struct ring *r)
{
	struct hetmem_event e;

	while (ring_next(r, &e))
		;
}

HELPER uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

HELPER int poll_one(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int ret = poll(&p, 1, timeout_ms);

	return ret < 0 ? -errno : ret ? p.revents : 0;
}

/* One notification of a page that is there: CLEAR. */
HELPER int invalidate(char *page)
{
	*(volatile char *)page = 1;
	return madvise(page, page_size(), MADV_DONTNEED);
}

HELPER int hm_refresh(int fd, const void *p, struct hetmem_cmd_refresh *cmd)
{
	/* What comes back is the kernel's, not this. */
	memset(cmd, 0xa5, sizeof(*cmd));
	cmd->size = sizeof(*cmd);
	cmd->flags = 0;
	cmd->start = (uintptr_t)p;
	return hm_ioctl(fd, HETMEM_IOC_REFRESH, cmd);
}

/*
 * REFRESH until nothing is dirty: pages may be on their way. @cmd is the last
 * one's answer, but walked_blocks the sum.
 */
HELPER int hm_refresh_all(int fd, const void *p, struct hetmem_cmd_refresh *cmd)
{
	uint64_t walked = 0;
	int i, ret = -EAGAIN;

	for (i = 0; i < 500; i++) {
		ret = hm_refresh(fd, p, cmd);
		if (ret && ret != -EBUSY)
			return ret;
		walked += cmd->walked_blocks;
		if (!ret && !cmd->dirty_blocks)
			break;
		ret = -EAGAIN;
		usleep(10000);
	}
	cmd->walked_blocks = walked;
	return ret;
}

/* Dirty blocks of the range as STATS says, or a negative errno. */
HELPER long hm_dirty(int fd, const void *p)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.dirty_blocks;
}

HELPER int hm_attr(int fd, bool set, const void *p, uint32_t attr,
		   uint64_t *value)
{
	struct hetmem_cmd_attr cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.attr = attr,
		.value = *value,
	};
	int ret = hm_ioctl(fd, set ? HETMEM_IOC_SET_ATTR : HETMEM_IOC_GET_ATTR,
			   &cmd);

	if (!set)
		*value = cmd.value;
	return ret;
}

HELPER int hm_set_attr(int fd, const void *p, uint32_t attr, uint64_t value)
{
	return hm_attr(fd, true, p, attr, &value);
}

/* The value, or a negative errno. */
HELPER long hm_get_attr(int fd, const void *p, uint32_t attr)
{
	uint64_t value = 0x5a5a5a5a;
	int ret = hm_attr(fd, false, p, attr, &value);

	return ret ? ret : (long)value;
}

#endif /* HETMEM_RING_H */
