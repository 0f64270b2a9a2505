// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The kernel module's events and hints: contexts beside the library's own,
 * their ring, and the commands about hints. With kmod.c the only file that
 * issues the ioctls of /dev/hetmem.
 *
 * Errors are returned without a text: who calls knows what was asked of whom.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/device_open.h"
#include "platform/kmod.h"
#include "platform/kmod_hint.h"

/* The node itself may have another name, or none that we can see. */
#define SELF_FD		"/proc/self/fd/%d"

/* A waiting thread finds out after so long that its descriptors were closed. */
#define LOOK_MS		2000

static int command(int fd, unsigned long nr, void *arg)
{
	return ioctl(fd, nr, arg) ? -errno : 0;
}

int hm_kmod_context(const struct hm_kmod *kmod)
{
	char path[sizeof(SELF_FD) + 12];

	if (kmod->fd < 0)
		return -EOPNOTSUPP;
	/* Whatever the device node was called, this is it. */
	snprintf(path, sizeof(path), SELF_FD, kmod->fd);
	return hm_device_open(path);
}

int hm_ring_open(struct hm_ring *ring, int fd, unsigned int nr_entries,
		 uint64_t events)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd),
		.nr_entries = nr_entries,
		.events = events,
	};
	int err = command(fd, HETMEM_IOC_RING, &cmd);

	memset(ring, 0, sizeof(*ring));
	if (err)
		return err;
	ring->header = mmap(NULL, cmd.map_size, PROT_READ | PROT_WRITE,
			    MAP_SHARED, fd, 0);
	if (ring->header == MAP_FAILED) {
		ring->header = NULL;
		return -errno;
	}
	ring->size = cmd.map_size;
	if (ring->header->version != HETMEM_RING_VERSION) {
		hm_ring_close(ring);
		return -EPROTO;
	}
	return 0;
}

void hm_ring_close(struct hm_ring *ring)
{
	if (ring->header)
		munmap(ring->header, ring->size);
	memset(ring, 0, sizeof(*ring));
}

bool hm_ring_next(struct hm_ring *ring, struct hetmem_event *event)
{
	struct hetmem_ring_header *h = ring->header;
	uint64_t slot = ring->tail & (h->nr_entries - 1);

	/* Acquire: the entry was written before the head that covers it. */
	if (__atomic_load_n(&h->head, __ATOMIC_ACQUIRE) == ring->tail)
		return false;
	memcpy(event, (char *)h + h->data_offset + slot * h->entry_size,
	       sizeof(*event));
	/* Release: it is read before the kernel may write there again. */
	__atomic_store_n(&ring->tail, ring->tail + 1, __ATOMIC_RELAXED);
	__atomic_store_n(&h->tail, ring->tail, __ATOMIC_RELEASE);
	return true;
}

uint64_t hm_ring_dropped(const struct hm_ring *ring)
{
	uint64_t dropped = 0;
	int type;

	for (type = 0; type < HETMEM_EVENT_NR; type++)
		dropped += __atomic_load_n(&ring->header->dropped[type], __ATOMIC_RELAXED);
	return dropped;
}

/* Another thread may be reading. */
static bool is_empty(const struct hm_ring *ring)
{
	return __atomic_load_n(&ring->header->head, __ATOMIC_ACQUIRE) ==
	       __atomic_load_n(&ring->tail, __ATOMIC_RELAXED);
}

bool hm_ring_lost(const struct hm_ring *ring, const struct pollfd *fd)
{
	struct hetmem_cmd_info info = { .size = sizeof(info) };

	if (fd->revents & ~POLLIN)
		return true;
	/* The module never reports an empty ring as readable, /dev/null always is. */
	return fd->revents && is_empty(ring) && command(fd->fd, HETMEM_IOC_INFO, &info);
}

bool hm_ring_wait(const struct hm_ring *ring, struct pollfd *fds, unsigned int nr,
		  const bool *stop, int ms)
{
	unsigned int i;
	int err;

	if (__atomic_load_n(stop, __ATOMIC_ACQUIRE))
		return false;
	for (i = 0; i < nr; i++)
		fds[i].revents = 0;
	/* If a descriptor is closed, poll(2) does not return, and nobody can wake us. */
	err = poll(fds, nr, ms < 0 || ms > LOOK_MS ? LOOK_MS : ms) < 0 ? errno : 0;
	if (__atomic_load_n(stop, __ATOMIC_ACQUIRE) || (err && err != EINTR))
		return false;
	return err || (!fds[1].revents && !hm_ring_lost(ring, &fds[0]));
}

int hm_kmod_allow(int fd, uint32_t allowed)
{
	struct hetmem_cmd_allow cmd = {
		.size = sizeof(cmd),
		.allowed = allowed,
	};

	return command(fd, HETMEM_IOC_ALLOW, &cmd);
}

int hm_kmod_bind(int fd, uint32_t location, uint32_t flags,
		 const unsigned char uuid[16])
{
	struct hetmem_cmd_bind_device cmd = {
		.size = sizeof(cmd),
		.flags = flags,
		.location = location,
	};

	if (uuid)
		memcpy(cmd.uuid, uuid, sizeof(cmd.uuid));
	return command(fd, HETMEM_IOC_BIND_DEVICE, &cmd);
}

int hm_kmod_hint(int fd, uintptr_t start, uintptr_t end, uint32_t location,
		 const unsigned char uuid[16], unsigned int timeout_ms,
		 struct hm_answer *answer)
{
	struct hetmem_cmd_hint cmd = {
		.size = sizeof(cmd),
		.start = start,
		.end = end,
		.location = location,
		.timeout_ms = timeout_ms,
	};
	int err;

	if (uuid)
		memcpy(cmd.uuid, uuid, sizeof(cmd.uuid));
	err = command(fd, HETMEM_IOC_HINT, &cmd);
	answer->result = cmd.result;
	answer->moved = cmd.moved;
	return err;
}

int hm_kmod_complete(int fd, uint64_t id, int result, uint64_t moved)
{
	struct hetmem_cmd_complete cmd = {
		.size = sizeof(cmd),
		.id = id,
		.moved = moved,
		.result = result,
	};

	return command(fd, HETMEM_IOC_COMPLETE, &cmd);
}

int hm_kmod_pin(int fd, uintptr_t start, uintptr_t end, unsigned int ms,
		struct hm_pinned *pinned)
{
	int err;

	*pinned = (struct hm_pinned){ 0 };
	while (start < end) {
		struct hetmem_cmd_migrate cmd = {
			.size = sizeof(cmd),
			.flags = HETMEM_MIGRATE_PIN,
			.start = start,
			.end = end,
			.location = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
			.timeout_ms = ms < HETMEM_PIN_TIMEOUT_MAX ? ms : HETMEM_PIN_TIMEOUT_MAX,
		};

		err = command(fd, HETMEM_IOC_MIGRATE, &cmd);
		pinned->pages += cmd.pinned;
		pinned->moved += cmd.moved;
		if (err)
			return err;
		if (cmd.walk_end <= start || cmd.walk_end > end)
			return -EIO;
		start = cmd.walk_end;
	}
	return 0;
}

int hm_kmod_unpin(int fd, uintptr_t start, uintptr_t end)
{
	struct hetmem_cmd_unpin cmd = {
		.size = sizeof(cmd),
		.start = start,
		.end = end,
	};

	return command(fd, HETMEM_IOC_UNPIN, &cmd);
}

int64_t hm_kmod_list(int fd, struct hetmem_list_entry *entries, size_t nr)
{
	struct hetmem_cmd_list cmd = {
		.size = sizeof(cmd),
		.entries = (uintptr_t)entries,
		.entry_size = sizeof(*entries),
		.nr = nr > UINT32_MAX ? UINT32_MAX : nr,
	};
	int err = command(fd, HETMEM_IOC_LIST, &cmd);

	return err ? err : (int64_t)cmd.nr;
}

static int range_stats(int fd, uintptr_t at, uint32_t flags, struct hetmem_cmd_stats *stats)
{
	*stats = (struct hetmem_cmd_stats){
		.size = sizeof(*stats), .flags = flags, .start = at,
	};
	return command(fd, HETMEM_IOC_STATS, stats);
}

int hm_kmod_next_range(int fd, uintptr_t at, struct hetmem_cmd_stats *stats)
{
	const int err = range_stats(fd, at, HETMEM_STATS_NEXT, stats);

	return !err && stats->end <= at ? -EIO : err;
}

void hm_kmod_refresh(int fd, struct hetmem_cmd_stats *stats, uint64_t pause, uint64_t end)
{
	const uint64_t now = hm_now();
	struct hetmem_cmd_stats after;
	int passes = 0;

	/* In a time namespace as_of can be later than now. */
	if (!stats->dirty_blocks || (now >= stats->as_of && now - stats->as_of < pause))
		return;
	/* The first pass can begin where somebody else's look ended. */
	while (passes < 2 && hm_now() < end) {
		struct hetmem_cmd_refresh cmd = { .size = sizeof(cmd), .start = stats->start };

		if (command(fd, HETMEM_IOC_REFRESH, &cmd) || !cmd.dirty_blocks)
			break;
		passes += cmd.walked_blocks < HETMEM_REFRESH_BLOCKS;
	}
	if (!range_stats(fd, stats->start, 0, &after))
		*stats = after;
}

void hm_kmod_refresh_all(int fd, uint64_t end)
{
	struct hetmem_cmd_stats stats;
	uintptr_t at = 0;

	while (hm_now() < end && !hm_kmod_next_range(fd, at, &stats)) {
		at = stats.end;
		hm_kmod_refresh(fd, &stats, HM_REFRESH_PAUSE, end);
	}
}

int64_t hm_kmod_pages_at(int fd, uintptr_t start, uintptr_t end,
			 uint32_t location)
{
	const bool any = HETMEM_LOC_KIND(location) == HETMEM_HOST &&
			 HETMEM_LOC_INDEX(location) == HETMEM_NODE_ANY;
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
	uint64_t pages = 0;
	unsigned int i;
	int err;

	while (start < end) {
		struct hetmem_cmd_residency cmd = {
			.size = sizeof(cmd),
			.start = start,
			.end = end,
			.totals = (uintptr_t)totals,
			.nr_totals = HETMEM_MAX_TOTALS,
			.total_size = sizeof(*totals),
		};

		err = command(fd, HETMEM_IOC_RESIDENCY, &cmd);
		if (err && cmd.walk_end <= start)
			return err;
		for (i = 0; i < cmd.filled_totals; i++)
			if (totals[i].location == location ||
			    (any && HETMEM_LOC_KIND(totals[i].location) ==
			     HETMEM_HOST))
				pages += totals[i].pages;
		if (cmd.walk_end <= start || cmd.walk_end > end)
			return -EIO;
		start = cmd.walk_end;
	}
	return pages;
}
