/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench kernel: how soon an event is with a reader that polls, and how
 * long a hint takes from its asker to the executor and back. Beside them, the
 * same wake-ups by eventfd, which is what waking somebody costs anyway.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"

#define ROUNDS	1000
#define QUICK_ROUNDS	100
#define ENTRIES	256
#define PATIENCE_MS	10000

struct ring {
	int fd;
	struct hetmem_ring_header *header;
	size_t size;
	uint64_t tail;
};

/* Events carry this clock; in instructions where it is made from them. */
static uint64_t monotonic(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

static int rounds(const struct kernel_bench *kb)
{
	return kb->quick ? QUICK_ROUNDS : ROUNDS;
}

static int ring_open(struct ring *ring, uint64_t events)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd),
		.nr_entries = ENTRIES,
		.events = events,
	};
	int ret;

	memset(ring, 0, sizeof(*ring));
	ring->fd = kb_open();
	if (ring->fd < 0)
		return ring->fd;
	ret = kb_ioctl(ring->fd, HETMEM_IOC_RING, &cmd);
	if (!ret) {
		ring->size = cmd.map_size;
		ring->header = mmap(NULL, ring->size, PROT_READ | PROT_WRITE,
				    MAP_SHARED, ring->fd, 0);
		if (ring->header == MAP_FAILED)
			ret = -errno;
	}
	if (ret)
		close(ring->fd);
	return ret;
}

static void ring_close(struct ring *ring)
{
	munmap(ring->header, ring->size);
	close(ring->fd);
}

static bool ring_next(struct ring *ring, struct hetmem_event *event)
{
	struct hetmem_ring_header *header = ring->header;
	const char *entry;

	if (__atomic_load_n(&header->head, __ATOMIC_ACQUIRE) == ring->tail)
		return false;
	entry = (char *)header + header->data_offset +
		(ring->tail & (header->nr_entries - 1)) * header->entry_size;
	memcpy(event, entry, sizeof(*event));
	__atomic_store_n(&header->tail, ++ring->tail, __ATOMIC_RELEASE);
	return true;
}

static int wait_for(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	int ret;

	do {
		ret = poll(&poll_fd, 1, PATIENCE_MS);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : ret ? 0 : -ETIMEDOUT;
}

static int eventfd_take(int fd)
{
	uint64_t value;
	int ret = wait_for(fd);

	if (!ret && read(fd, &value, sizeof(value)) != sizeof(value))
		ret = -errno;
	return ret;
}

static int eventfd_give(int fd)
{
	uint64_t one = 1;

	return write(fd, &one, sizeof(one)) == sizeof(one) ? 0 : -errno;
}

/* A reader that polls: the ring, or an eventfd beside it. */
struct reader {
	struct ring ring;
	int wake;		/* the eventfd */
	int seen;		/* tells the other side to go on */
	bool by_eventfd;
	uint64_t sent;		/* when, for the eventfd */
	uint64_t times[ROUNDS];
	int rounds;
	int ret;
};

static void *read_events(void *arg)
{
	struct reader *reader = arg;
	struct hetmem_event event;
	int i;

	for (i = 0; i < reader->rounds && !reader->ret; i++) {
		if (reader->by_eventfd) {
			reader->ret = wait_for(reader->wake);
			reader->times[i] = monotonic() -
				__atomic_load_n(&reader->sent,
						__ATOMIC_ACQUIRE);
			if (!reader->ret)
				reader->ret = eventfd_take(reader->wake);
		} else {
			reader->ret = wait_for(reader->ring.fd);
			if (!reader->ret && !ring_next(&reader->ring, &event))
				reader->ret = -ENODATA;
			reader->times[i] = monotonic() - event.time;
		}
		if (!reader->ret)
			reader->ret = eventfd_give(reader->seen);
	}
	return NULL;
}

static int make_events(struct reader *reader, char *p)
{
	int i, ret = 0;

	for (i = 0; i < reader->rounds && !ret; i++) {
		if (reader->by_eventfd) {
			__atomic_store_n(&reader->sent, monotonic(),
					 __ATOMIC_RELEASE);
			ret = eventfd_give(reader->wake);
		} else {
			*(volatile char *)p = 1;
			if (madvise(p, 4096, MADV_DONTNEED))
				ret = -errno;
		}
		if (!ret)
			ret = eventfd_take(reader->seen);
	}
	return ret;
}

static int run_reader(struct reader *reader, char *p, bool by_eventfd)
{
	pthread_t thread;
	int ret;

	reader->by_eventfd = by_eventfd;
	reader->ret = 0;
	ret = -pthread_create(&thread, NULL, read_events, reader);
	if (ret)
		return ret;
	ret = make_events(reader, p);
	pthread_join(thread, NULL);
	return ret ? ret : reader->ret;
}

static void add(struct kernel_bench *kb, const char *const names[2],
		double ours, double peer)
{
	struct bench_row row = {
		.name = names[0],
		.what = names[1],
		.unit = bench_unit(),
		.ours = ours,
		.peer = peer,
		.peer_name = "eventfd",
	};

	bench_report_add(kb->report, &row);
}

static int events(struct kernel_bench *kb, struct reader *reader, char *p)
{
	static const char *const names[2][2] = {
		{ "events.latency", "notifier to a polling reader, median" },
		{ "events.latency.p99", "notifier to a polling reader, p99" },
	};
	double ours[2];
	int ret;

	ret = run_reader(reader, p, false);
	if (ret)
		return ret;
	ours[0] = kb_median(reader->times, reader->rounds);
	ours[1] = kb_p99(reader->times, reader->rounds);
	ret = run_reader(reader, p, true);
	if (ret)
		return ret;
	add(kb, names[0], ours[0], kb_median(reader->times, reader->rounds));
	add(kb, names[1], ours[1], kb_p99(reader->times, reader->rounds));
	return 0;
}

static void bench_events(struct kernel_bench *kb)
{
	struct reader *reader = xcalloc(1, sizeof(*reader));
	char *p = kb_map(HUGE_SIZE, false);
	int ret;

	reader->rounds = rounds(kb);
	reader->wake = eventfd(0, EFD_CLOEXEC);
	reader->seen = eventfd(0, EFD_CLOEXEC);
	ret = p && reader->wake >= 0 && reader->seen >= 0 ?
		ring_open(&reader->ring, 1U << HETMEM_EVENT_INVALIDATED) :
		-ENOMEM;
	if (!ret) {
		ret = kb_track(reader->ring.fd, (uintptr_t)p,
			       (uintptr_t)p + HUGE_SIZE);
		if (!ret)
			ret = events(kb, reader, p);
		ring_close(&reader->ring);
	}
	if (ret)
		bench_report_skip(kb->report, "events.latency", "%s",
				  strerror(-ret));
	if (reader->wake >= 0)
		close(reader->wake);
	if (reader->seen >= 0)
		close(reader->seen);
	kb_unmap(p, HUGE_SIZE);
	free(reader);
}

/* Shared by the asker, a child, and the executor. */
struct hints {
	struct ring ring;
	int there;
	int back;
	int rounds;
	int ret;
	uint64_t ours[ROUNDS];
	uint64_t peer[ROUNDS];
};

static int ask(struct hints *hints)
{
	struct hetmem_cmd_hint cmd = {
		.size = sizeof(cmd),
		.end = HUGE_SIZE,
		.location = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
		.timeout_ms = PATIENCE_MS,
	};

	return kb_ioctl(hints->ring.fd, HETMEM_IOC_HINT, &cmd);
}

static void be_asker(struct hints *hints)
{
	uint64_t begin;
	int i;

	for (i = 0; i < hints->rounds && !hints->ret; i++) {
		begin = bench_ticks();
		hints->ret = ask(hints);
		hints->ours[i] = bench_ticks() - begin;
	}
	for (i = 0; i < hints->rounds && !hints->ret; i++) {
		begin = bench_ticks();
		hints->ret = eventfd_give(hints->there);
		if (!hints->ret)
			hints->ret = eventfd_take(hints->back);
		hints->peer[i] = bench_ticks() - begin;
	}
}

static int be_executor(struct hints *hints)
{
	struct hetmem_event event;
	int i, ret = 0;

	for (i = 0; i < hints->rounds && !ret; i++) {
		struct hetmem_cmd_complete cmd = { .size = sizeof(cmd) };

		ret = wait_for(hints->ring.fd);
		if (!ret && !ring_next(&hints->ring, &event))
			ret = -ENODATA;
		cmd.id = event.data;
		if (!ret)
			ret = kb_ioctl(hints->ring.fd, HETMEM_IOC_COMPLETE,
				       &cmd);
	}
	for (i = 0; i < hints->rounds && !ret; i++) {
		ret = eventfd_take(hints->there);
		if (!ret)
			ret = eventfd_give(hints->back);
	}
	return ret;
}

/* Makes the ring's context the executor, and open to hints from the child. */
static int allow(struct hints *hints)
{
	struct hetmem_cmd_bind_device bind = {
		.size = sizeof(bind),
		.flags = HETMEM_BIND_EXECUTOR,
		.location = HETMEM_LOC(HETMEM_FOREIGN, 0),
		.uuid = { 1 },
	};
	struct hetmem_cmd_allow allow = {
		.size = sizeof(allow),
		.allowed = HETMEM_ALLOW_HINTS,
	};
	int ret = kb_ioctl(hints->ring.fd, HETMEM_IOC_BIND_DEVICE, &bind);

	return ret ? ret : kb_ioctl(hints->ring.fd, HETMEM_IOC_ALLOW, &allow);
}

static int exchange(struct hints *hints)
{
	int ret = allow(hints), status;
	pid_t child;

	if (ret)
		return ret;
	fflush(stdout);
	child = fork();
	if (child < 0)
		return -errno;
	if (!child) {
		be_asker(hints);
		_exit(0);
	}
	ret = be_executor(hints);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return ret ? ret : hints->ret;
}

static void bench_hints(struct kernel_bench *kb)
{
	static const char *const names[2][2] = {
		{ "hint.round-trip", "a hint and its answer, median" },
		{ "hint.round-trip.p99", "a hint and its answer, p99" },
	};
	struct hints *hints;
	int ret;

	hints = mmap(NULL, sizeof(*hints), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (hints == MAP_FAILED) {
		bench_report_skip(kb->report, names[0][0], "%s",
				  strerror(errno));
		return;
	}
	hints->rounds = rounds(kb);
	hints->there = eventfd(0, EFD_CLOEXEC);
	hints->back = eventfd(0, EFD_CLOEXEC);
	ret = hints->there >= 0 && hints->back >= 0 ?
		ring_open(&hints->ring, 1U << HETMEM_EVENT_HINT) : -EMFILE;
	if (!ret) {
		ret = exchange(hints);
		ring_close(&hints->ring);
	}
	if (hints->there >= 0)
		close(hints->there);
	if (hints->back >= 0)
		close(hints->back);
	if (ret) {
		bench_report_skip(kb->report, names[0][0], "%s",
				  strerror(-ret));
	} else {
		add(kb, names[0], kb_median(hints->ours, hints->rounds),
		    kb_median(hints->peer, hints->rounds));
		add(kb, names[1], kb_p99(hints->ours, hints->rounds),
		    kb_p99(hints->peer, hints->rounds));
	}
	munmap(hints, sizeof(*hints));
}

void bench_kernel_events(struct kernel_bench *kb)
{
	bench_events(kb);
	bench_hints(kb);
}
