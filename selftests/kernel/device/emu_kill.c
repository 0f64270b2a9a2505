// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * SIGKILL in the middle of everything that takes long, again and again. The
 * victim works on memory that it shares with its parent, by inheritance and
 * by MAP_SHARED: afterwards the parent finds the contents as they were, no
 * context, range, device page or pin is left, and every page can be moved.
 *
 * HETMEM_KILLS=N in the environment: N kills of each operation.
 */
#include "libktest/harness.h"
#include "libktest/background.h"
#include "libktest/emu.h"
#include "libktest/ring.h"

#include <pthread.h>

#define STATS		"/sys/class/misc/hetmem/stats/"
#define SEED		31
#define SPARSE_SIZE	(32UL << 30)

struct victim {
	int fd;
	struct emu dev;
	char *private, *shared, *sparse;
	size_t size;
	struct ring ring;
	int ready;		/* pipe: the operation is about to begin */
};

typedef void (*operation)(struct victim *v);

/* One of these runs until the victim is killed. */

static void migrate_loop(struct victim *v, uint32_t location, uint32_t flags)
{
	struct hetmem_cmd_migrate cmd;

	for (;;) {
		cmd = (struct hetmem_cmd_migrate){
			.size = sizeof(cmd),
			.flags = flags,
			.start = (uintptr_t)v->private,
			.end = (uintptr_t)v->private + v->size,
			.location = v->dev.loc,
			.timeout_ms = 0,
		};
		if (!flags)
			hm_ioctl(v->fd, HETMEM_IOC_MIGRATE, &cmd);
		cmd.location = location;
		cmd.flags = flags;
		cmd.timeout_ms = flags & HETMEM_MIGRATE_PIN ? 60000 : 0;
		hm_ioctl(v->fd, HETMEM_IOC_MIGRATE, &cmd);
		/* In both directions, whatever is asked for here. */
		cmd.location = ANY_HOST;
		cmd.flags = 0;
		cmd.timeout_ms = 0;
		if (!flags)
			hm_ioctl(v->fd, HETMEM_IOC_MIGRATE, &cmd);
	}
}

static void op_to_device(struct victim *v)
{
	migrate_loop(v, v->dev.loc, 0);
}

/* The pages one by one, there and back in the same vector. */
static void op_vector(struct victim *v)
{
	const size_t pages = v->size / page_size();
	struct hetmem_cmd_migrate moves[HETMEM_VECTOR_MAX];
	int32_t results[HETMEM_VECTOR_MAX];
	struct hetmem_cmd_migrate_vector cmd;
	size_t i;

	for (;;) {
		for (i = 0; i < HETMEM_VECTOR_MAX; i++)
			moves[i] = (struct hetmem_cmd_migrate){
				.start = (uintptr_t)v->private + i / 2 % pages * page_size(),
				.end = (uintptr_t)v->private + (i / 2 % pages + 1) * page_size(),
				.location = i % 2 ? ANY_HOST : v->dev.loc,
			};
		cmd = (struct hetmem_cmd_migrate_vector){
			.size = sizeof(cmd),
			.commands = (uintptr_t)moves,
			.results = (uintptr_t)results,
			.command_size = sizeof(moves[0]),
			.nr = HETMEM_VECTOR_MAX,
		};
		hm_ioctl(v->fd, HETMEM_IOC_MIGRATE_VECTOR, &cmd);
	}
}

/* A worker moves the pages: it ends with the victim. */
static void op_background(struct victim *v)
{
	struct job job = { .fd = v->fd, .eventfd = eventfd(0, EFD_CLOEXEC) };
	unsigned int i;

	for (i = 0; ; i++) {
		job_set(&job, v->private, v->size, i % 2 ? ANY_HOST : v->dev.loc);
		job_begin(&job);
		job_wait(&job);
	}
}

static void op_to_host(struct victim *v)
{
	migrate_loop(v, HETMEM_LOC(HETMEM_HOST, 0), 0);
}

static void op_pin(struct victim *v)
{
	migrate_loop(v, ANY_HOST, HETMEM_MIGRATE_PIN);
}

static void op_residency(struct victim *v)
{
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)v->sparse,
		.end = (uintptr_t)v->sparse + SPARSE_SIZE,
	};

	for (;;)
		hm_residency(v->fd, &cmd);
}

static void op_track(struct victim *v)
{
	size_t i, pages = v->size / page_size();

	for (;;) {
		for (i = 0; i < 20 * pages; i++)
			hm_track(v->fd, v->sparse + 2 * i * page_size(),
				 page_size());
		for (i = 0; i < 20 * pages; i++)
			hm_untrack(v->fd, v->sparse + 2 * i * page_size(),
				   page_size());
	}
}

static void op_refresh(struct victim *v)
{
	struct hetmem_cmd_refresh cmd;

	/* All of what is tracked anew is dirty. */
	for (;;) {
		hm_track(v->fd, v->sparse, SPARSE_SIZE);
		hm_refresh(v->fd, v->sparse, &cmd);
		hm_untrack(v->fd, v->sparse, SPARSE_SIZE);
	}
}

static void *ask(void *arg)
{
	struct victim *v = arg;

	hm_hint(v->fd, v->private, v->size, ANY_HOST, HETMEM_HINT_TIMEOUT_MAX,
		NULL);
	return NULL;
}

/* Several wait for an answer that never comes. */
static void op_hint(struct victim *v)
{
	pthread_t thread;
	int i;

	hm_bind(v->fd, FOREIGN(1), HETMEM_BIND_EXECUTOR, "a device's uuid");
	for (i = 0; i < 7; i++)
		pthread_create(&thread, NULL, ask, v);
	ask(v);
}

static void op_ring(struct victim *v)
{
	hm_track(v->fd, v->private, v->size);
	for (;;) {
		struct hetmem_event e;

		/* Half of the time there is something to read. */
		invalidate(v->sparse);
		invalidate(v->private);
		poll_one(v->fd, 1);
		ring_next(&v->ring, &e);
	}
}

static void op_access(struct victim *v)
{
	void *buf = malloc(v->size);

	if (!buf)
		_exit(1);
	fill(buf, v->size, SEED);
	for (;;) {
		emu_write(&v->dev, HETMEM_EMU_MIGRATE, v->private, v->size,
			  buf);
		mismatch(v->private, v->size, SEED);
	}
}

static int set_limit(const struct emu *e, size_t limit)
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "/sys/class/misc/hetmem/devices/%u/limit",
		 HETMEM_LOC_INDEX(e->loc));
	snprintf(text, sizeof(text), "%zu", limit);
	return write_text(path, text);
}

static void op_evict(struct victim *v)
{
	for (;;) {
		to_device(v->fd, &v->dev, v->private, v->size);
		emu_evict(&v->dev, v->size / page_size(), NULL);
	}
}

/* The administrator's own: taking the limit away evicts what is there. */
static void op_limit(struct victim *v)
{
	for (;;) {
		to_device(v->fd, &v->dev, v->private, v->size);
		set_limit(&v->dev, 0);
		set_limit(&v->dev, v->dev.capacity);
	}
}

static void op_open(struct victim *v)
{
	for (;;) {
		int fd = hm_open();
		size_t size;

		ring_make(fd, 1024, ALL_EVENTS, &size);
		hm_track(fd, v->private, v->size);
		close(fd);
	}
}

FIXTURE(kill)
{
	struct rig rig;
	struct victim v;
	size_t size;
	uint64_t random;
};

FIXTURE_VARIANT(kill)
{
	operation op;
};

FIXTURE_VARIANT_ADD(kill, to_device) { .op = op_to_device };
FIXTURE_VARIANT_ADD(kill, to_host) { .op = op_to_host };
FIXTURE_VARIANT_ADD(kill, pin) { .op = op_pin };
FIXTURE_VARIANT_ADD(kill, vector) { .op = op_vector };
FIXTURE_VARIANT_ADD(kill, background) { .op = op_background };
FIXTURE_VARIANT_ADD(kill, residency) { .op = op_residency };
FIXTURE_VARIANT_ADD(kill, track) { .op = op_track };
FIXTURE_VARIANT_ADD(kill, refresh) { .op = op_refresh };
FIXTURE_VARIANT_ADD(kill, hint) { .op = op_hint };
FIXTURE_VARIANT_ADD(kill, ring) { .op = op_ring };
FIXTURE_VARIANT_ADD(kill, access) { .op = op_access };
FIXTURE_VARIANT_ADD(kill, evict) { .op = op_evict };
FIXTURE_VARIANT_ADD(kill, limit) { .op = op_limit };
FIXTURE_VARIANT_ADD(kill, open) { .op = op_open };

FIXTURE_SETUP(kill)
{
	struct victim *v = &self->v;

	ASSERT_EQ(0, rig_init(&self->rig));
	v->size = self->size = self->rig.size;
	v->private = map_filled(self->size, SEED);
	ASSERT_NE(NULL, v->private);
	v->shared = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, v->shared);
	fill(v->shared, self->size, SEED + 1);
	v->sparse = mmap(NULL, SPARSE_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, v->sparse);
	self->random = now_ns();
}

FIXTURE_TEARDOWN(kill)
{
	munmap(self->v.private, self->size);
	munmap(self->v.shared, self->size);
	munmap(self->v.sparse, SPARSE_SIZE);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

static void victim_main(struct victim *v, operation op)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	v->fd = hm_open();
	CHILD_CHECK(v->fd >= 0);
	CHILD_CHECK(!emu_open(&v->dev, 0));
	CHILD_CHECK(!ring_make(v->fd, 64, ALL_EVENTS, &v->ring.size));
	CHILD_CHECK(!ring_map(v->fd, &v->ring));
	CHILD_CHECK(!hm_track(v->fd, v->shared, v->size));
	CHILD_CHECK(write(v->ready, "x", 1) == 1);
	op(v);
	/* A wait that has ended: only the signal ends it. */
	_exit(1);
}

/* What must be zero; references may go a little later than the process. */
static const char *left_over(const struct rig *rig)
{
	struct hetmem_emu_cmd_info info;

	if (read_long(STATS "contexts") != 1)
		return "contexts";
	if (read_long(STATS "ranges") != 0)
		return "ranges";
	if (pins_held() != 0)
		return "pins";
	if (emu_info(rig->dev[0].fd, &info) || info.used)
		return "device pages";
	return NULL;
}

static const char *kill_one(struct rig *rig, struct victim *v, operation op,
			    unsigned int delay_us)
{
	const char *left;
	int fds[2];
	pid_t pid;
	char c;

	if (pipe2(fds, O_CLOEXEC))
		return "pipe";
	v->ready = fds[1];
	pid = fork();
	if (!pid)
		victim_main(v, op);
	close(fds[1]);
	if (read(fds[0], &c, 1) != 1)
		return "the victim did not begin";
	close(fds[0]);
	/* time: the moment varies, and each is right */
	usleep(delay_us);
	kill(pid, SIGKILL);
	if (child_status(pid) != 128 + SIGKILL)
		return "the victim ended by itself";

	/*
	 * Reading brings back what went to the device for both. A worker of the victim's
	 * moves pages until it sees that the victim has ended, so read again.
	 */
	EVENTUALLY(({
		left = mismatch(v->private, v->size, SEED) >= 0 ?
			"the inherited memory has changed" :
			mismatch(v->shared, v->size, SEED + 1) >= 0 ?
			"the shared memory has changed" : left_over(rig);
		!left;
	}));
	return left;
}

TEST_F(kill, anywhere)
{
	const char *kills = getenv("HETMEM_KILLS"), *wrong;
	int i, n = kills ? atoi(kills) : slow_kernel() ? 2 : 10;

	for (i = 0; i < n; i++) {
		/* Now and then right at the beginning. */
		self->random = self->random * 6364136223846793005ULL + 1;
		wrong = kill_one(&self->rig, &self->v, variant->op,
				 (self->random >> 33) %
				 (slow_kernel() ? 400000 : 30000));
		ASSERT_EQ(NULL, wrong)
			TH_LOG("kill %d: %s", i, wrong);
	}
	ASSERT_EQ(0, set_limit(&self->rig.dev[0], self->rig.dev[0].capacity));
	/* A reference that is never dropped would hold a page here. */
	EXPECT_EQ(self->size / page_size(),
		  to_device(self->rig.fd, &self->rig.dev[0], self->v.private,
			    self->size));
	EXPECT_EQ(-1, mismatch(self->v.private, self->size, SEED));
}

TEST_HARNESS_MAIN
