/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench kernel: moving memory to a device and back, by hetmem's
 * emulated device and by the kernel's own test driver, test_hmm, where it is
 * loaded.
 *
 * test_hmm's way to the device reads all data back for its caller to compare;
 * its READ does nothing else, so what that costs is measured and taken off.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"

#define PASSES	5
#define GIB	(1UL << 30)

/* test_hmm's interface is in no header that is installed. */
struct test_hmm_cmd {
	uint64_t addr;
	uint64_t ptr;
	uint64_t npages;
	uint64_t cpages;
	uint64_t faults;
};

#define TEST_HMM_READ		_IOWR('H', 0x00, struct test_hmm_cmd)
#define TEST_HMM_TO_DEVICE	_IOWR('H', 0x02, struct test_hmm_cmd)
#define TEST_HMM_TO_HOST	_IOWR('H', 0x03, struct test_hmm_cmd)

/* Ticks a pass, and calls of migrate_vma_setup(). */
struct move {
	double ticks;
	double setups;
};

struct moves {
	struct move to_device;
	struct move to_host;
	double faults;		/* ticks, brought back by the CPU's faults */
};

struct mover {
	struct kernel_bench *kb;
	size_t size;
	uint32_t location;	/* of ours */
	int test_hmm;
	int eventfd;		/* of moves in the background */
	char *copy;		/* what test_hmm reads goes there */
	double reading;		/* ticks that its reading takes, at best */
};

/* Each call of migrate_vma_setup() sends one. */
static int notified(struct mover *m, uint64_t *nr)
{
	return kb_notified_type(m->kb->fd, HETMEM_CHANGE_MIGRATE, nr);
}

static int migrate(struct mover *m, char *p, uint32_t location)
{
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + m->size,
		.location = location,
	};
	int ret = kb_ioctl(m->kb->fd, HETMEM_IOC_MIGRATE, &cmd);

	/* A page that is busy for a moment stays behind. */
	if (!ret && cmd.not_moved > 16)
		ret = -ENODATA;
	return ret;
}

static int ours_to_device(struct mover *m, char *p)
{
	return migrate(m, p, m->location);
}

static int ours_to_host(struct mover *m, char *p)
{
	return migrate(m, p, HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY));
}

/* A worker moves the pages; the caller sleeps until it has. */
static int background_to_device(struct mover *m, char *p)
{
	struct hetmem_cmd_migrate move = {
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + m->size,
		.location = m->location,
	};
	struct hetmem_cmd_background cmd = {
		.size = sizeof(cmd),
		.command = (uintptr_t)&move,
		.command_size = sizeof(move),
		.eventfd = m->eventfd,
	};
	uint64_t nr;
	int ret = kb_ioctl(m->kb->fd, HETMEM_IOC_BACKGROUND, &cmd);

	if (ret)
		return ret;
	if (read(m->eventfd, &nr, sizeof(nr)) != sizeof(nr))
		return -EIO;
	cmd.flags = HETMEM_BACKGROUND_COLLECT;
	ret = kb_ioctl(m->kb->fd, HETMEM_IOC_BACKGROUND, &cmd);
	if (!ret)
		ret = cmd.result;
	return !ret && move.not_moved > 16 ? -ENODATA : ret;
}

static int test_hmm_call(struct mover *m, char *p, unsigned long nr)
{
	struct test_hmm_cmd cmd = {
		.addr = (uintptr_t)p,
		.ptr = (uintptr_t)m->copy,
		.npages = m->size / m->kb->page,
	};

	return kb_ioctl(m->test_hmm, nr, &cmd);
}

static int theirs_to_device(struct mover *m, char *p)
{
	uint64_t begin, ticks;
	int ret = test_hmm_call(m, p, TEST_HMM_TO_DEVICE);

	begin = bench_ticks();
	if (!ret)
		ret = test_hmm_call(m, p, TEST_HMM_READ);
	ticks = bench_ticks() - begin;
	if (!m->reading || ticks < m->reading)
		m->reading = ticks;
	return ret;
}

static int theirs_to_host(struct mover *m, char *p)
{
	return test_hmm_call(m, p, TEST_HMM_TO_HOST);
}

static int faults_to_host(struct mover *m, char *p)
{
	size_t at;

	for (at = 0; at < m->size; at += m->kb->page)
		*(volatile char *)(p + at);
	return 0;
}

/* The best of the passes is kept in @best. */
static int timed(struct mover *m, char *p, int (*fn)(struct mover *m, char *p),
		 struct move *best)
{
	uint64_t before, after, begin, ticks;
	int ret = notified(m, &before);

	begin = bench_ticks();
	if (!ret)
		ret = fn(m, p);
	ticks = bench_ticks() - begin;
	if (!ret)
		ret = notified(m, &after);
	if (!ret && (!best->ticks || ticks < best->ticks)) {
		best->ticks = ticks;
		best->setups = after - before;
	}
	return ret;
}

static bool intact(struct mover *m, const char *p)
{
	size_t at;

	for (at = 0; at < m->size; at += 4096)
		if (*(const uint64_t *)(p + at) != at + 1)
			return false;
	return true;
}

static int measure(struct mover *m, bool huge,
		   int (*to_device)(struct mover *m, char *p),
		   int (*to_host)(struct mover *m, char *p),
		   struct moves *moves)
{
	struct move in = { 0 }, out = { 0 }, faults = { 0 };
	int passes = m->kb->quick ? 1 : PASSES;
	int pass, ret = 0;

	memset(moves, 0, sizeof(*moves));
	m->reading = 0;
	for (pass = 0; pass < passes && !ret; pass++) {
		char *p = kb_map(m->size, huge);

		if (!p)
			return -ENOMEM;
		ret = timed(m, p, to_device, &in);
		if (!ret)
			ret = timed(m, p, to_host, &out);
		if (!ret)
			ret = to_device(m, p);
		if (!ret)
			ret = timed(m, p, faults_to_host, &faults);
		if (!ret && !intact(m, p))
			ret = -EILSEQ;
		kb_unmap(p, m->size);
	}
	/* The call's own reading, and the one that timed it. */
	in.ticks = bench_without(in.ticks, 2 * m->reading);
	moves->to_device = in;
	moves->to_host = out;
	moves->faults = faults.ticks;
	return ret;
}

static char *per_page_unit(void)
{
	static char unit[32];

	snprintf(unit, sizeof(unit), "%s/4K page", bench_unit());
	return unit;
}

static void add(struct mover *m, const char *name, const char *what,
		const char *unit, double ours, const double *peer, double per,
		enum bench_goal goal, double limit)
{
	struct bench_row row = {
		.name = name,
		.what = what,
		.unit = unit,
		.ours = ours / per,
		.goal = peer ? goal : BENCH_GOAL_NONE,
		.limit = limit,
	};

	if (peer) {
		row.peer = *peer / per;
		row.peer_name = "test_hmm";
	}
	bench_report_add(m->kb->report, &row);
}

struct names {
	const char *to_device[2];	/* name, what */
	const char *to_host[2];
	const char *faults[2];
	const char *setups_in[2];
	const char *setups_out[2];
};

static void rows(struct mover *m, const struct names *names,
		 const struct moves *ours, const struct moves *peer)
{
	double pages = m->size / m->kb->page;
	double gibs = m->size / (double)GIB;

	add(m, names->to_device[0], names->to_device[1], per_page_unit(),
	    ours->to_device.ticks, peer ? &peer->to_device.ticks : NULL, pages,
	    BENCH_GOAL_LESS, 1);
	add(m, names->to_host[0], names->to_host[1], per_page_unit(),
	    ours->to_host.ticks, peer ? &peer->to_host.ticks : NULL, pages,
	    BENCH_GOAL_LESS, 1);
	add(m, names->faults[0], names->faults[1], per_page_unit(),
	    ours->faults, peer ? &peer->faults : NULL, pages,
	    BENCH_GOAL_NONE, 0);
	if (!names->setups_in[0])
		return;
	add(m, names->setups_in[0], names->setups_in[1], "calls/GiB",
	    ours->to_device.setups, peer ? &peer->to_device.setups : NULL,
	    gibs, BENCH_GOAL_AT_MOST, 0.125);
	add(m, names->setups_out[0], names->setups_out[1], "calls/GiB",
	    ours->to_host.setups, peer ? &peer->to_host.setups : NULL, gibs,
	    BENCH_GOAL_AT_MOST, 0.125);
}

static const struct names small_names = {
	{ "device.4k.to-device", "to the device, 4K pages" },
	{ "device.4k.to-host", "to the host, 4K pages" },
	{ "device.4k.faults", "to the host by CPU faults, 4K pages" },
	{ "device.setups.to-device", "migrate_vma_setup(), to the device" },
	{ "device.setups.to-host", "migrate_vma_setup(), to the host" },
};

static const struct names huge_names = {
	{ "device.thp.to-device", "to the device, huge pages" },
	{ "device.thp.to-host", "to the host, huge pages" },
	{ "device.thp.faults", "to the host by CPU faults, huge pages" },
	{ NULL }, { NULL },
};

static void both(struct mover *m, bool huge, const struct names *names)
{
	struct moves ours, theirs;
	const char *name = names->to_device[0];
	int ret;

	ret = measure(m, huge, ours_to_device, ours_to_host, &ours);
	if (ret) {
		bench_report_skip(m->kb->report, name, "hetmem_emu: %s",
				  strerror(-ret));
		return;
	}
	if (m->test_hmm < 0) {
		bench_report_skip(m->kb->report, name,
				  "test_hmm is not loaded");
		rows(m, names, &ours, NULL);
		return;
	}
	ret = measure(m, huge, theirs_to_device, theirs_to_host, &theirs);
	if (ret)
		bench_report_skip(m->kb->report, name, "test_hmm: %s",
				  strerror(-ret));
	rows(m, names, &ours, ret ? NULL : &theirs);
}

/* The same to the device, by a worker: the difference is the cost of handing it over. */
static void background(struct mover *m)
{
	static const char name[] = "device.4k.background";
	struct moves moves;
	int ret = measure(m, false, background_to_device, ours_to_host, &moves);

	if (ret)
		bench_report_skip(m->kb->report, name, "hetmem_emu: %s", strerror(-ret));
	else
		add(m, name, "to the device by a worker, 4K pages", per_page_unit(),
		    moves.to_device.ticks, NULL, m->size / m->kb->page, BENCH_GOAL_NONE, 0);
}

/* The first device that has room for the memory, or for some of it. */
static bool find_device(struct mover *m)
{
	struct hetmem_device_info devices[8];
	struct hetmem_cmd_info info = {
		.size = sizeof(info),
		.devices = (uintptr_t)devices,
		.device_size = sizeof(devices[0]),
		.nr_devices = ARRAY_SIZE(devices),
	};

	if (kb_ioctl(m->kb->fd, HETMEM_IOC_INFO, &info) || !info.nr_devices)
		return false;
	m->location = HETMEM_LOC(HETMEM_DEVICE, devices[0].id);
	while (m->size > HUGE_SIZE && m->size > devices[0].capacity / 2)
		m->size /= 2;
	m->size &= ~(HUGE_SIZE - 1);
	return true;
}

void bench_kernel_device(struct kernel_bench *kb)
{
	struct mover m = { .kb = kb, .size = kb->size };

	if (!find_device(&m)) {
		bench_report_skip(kb->report, "device",
				  "hetmem_emu is not loaded");
		return;
	}
	m.test_hmm = open("/dev/hmm_dmirror0", O_RDWR | O_CLOEXEC);
	m.copy = xcalloc(m.size, 1);
	memset(m.copy, 1, m.size);
	m.eventfd = eventfd(0, EFD_CLOEXEC);
	both(&m, false, &small_names);
	background(&m);
	both(&m, true, &huge_names);
	free(m.copy);
	close(m.eventfd);
	if (m.test_hmm >= 0)
		close(m.test_hmm);
}
