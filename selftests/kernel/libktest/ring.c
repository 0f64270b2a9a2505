// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/ring.h"

int ring_make(int fd, uint32_t nr_entries, uint64_t events,
	      size_t *map_size)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd),
		.nr_entries = nr_entries,
		.events = events,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_RING, &cmd);

	if (!ret && map_size)
		*map_size = cmd.map_size;
	return ret;
}

int ring_map(int fd, struct ring *r)
{
	r->h = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	r->fd = fd;
	r->tail = 0;
	return r->h == MAP_FAILED ? -errno : 0;
}

int ring_open(int fd, uint32_t nr_entries, uint64_t events,
	      struct ring *r)
{
	int ret = ring_make(fd, nr_entries, events, &r->size);

	return ret ? ret : ring_map(fd, r);
}

void ring_close(struct ring *r)
{
	munmap(r->h, r->size);
}

const void *uuid_of(uint32_t location)
{
	static _Thread_local uint32_t uuid[4];

	uuid[0] = 0x75756964;
	uuid[1] = location;
	return uuid;
}

int executor_open(struct ring *r, uint32_t location, unsigned int entries)
{
	int fd = hm_open(), ret;

	*r = (struct ring){ .fd = fd };
	if (fd < 0)
		return fd;
	ret = ring_open(fd, entries, EVENT(HINT), r);
	if (!ret)
		ret = hm_bind(fd, location, HETMEM_BIND_EXECUTOR,
			      uuid_of(location));
	return ret ? ret : fd;
}

struct hetmem_event *ring_entry(const struct ring *r, uint64_t n)
{
	return (void *)((char *)r->h + r->h->data_offset +
			(n & (r->h->nr_entries - 1)) * r->h->entry_size);
}

bool ring_next(struct ring *r, struct hetmem_event *e)
{
	if (__atomic_load_n(&r->h->head, __ATOMIC_ACQUIRE) == r->tail)
		return false;
	*e = *ring_entry(r, r->tail);
	__atomic_store_n(&r->h->tail, ++r->tail, __ATOMIC_RELEASE);
	return true;
}

bool ring_wait(struct ring *r, struct hetmem_event *e, int ms)
{
	struct pollfd p = { .fd = r->fd, .events = POLLIN };

	while (!ring_next(r, e)) {
		int n = poll(&p, 1, ms);

		if (!n || (n < 0 && errno != EINTR))
			return false;
	}
	return true;
}

unsigned int ring_count(struct ring *r, uint32_t type,
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

uint64_t ring_sum(struct ring *r, uint32_t type, uint32_t loc)
{
	struct hetmem_event e;
	uint64_t sum = 0;

	while (ring_next(r, &e))
		if (e.type == type && e.location == loc)
			sum += e.count;
	return sum;
}

void ring_drain(struct ring *r)
{
	struct hetmem_event e;

	while (ring_next(r, &e))
		;
}

int invalidate(char *page)
{
	*(volatile char *)page = 1;
	return madvise(page, page_size(), MADV_DONTNEED);
}
