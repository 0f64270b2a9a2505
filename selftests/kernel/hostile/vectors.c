// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * MIGRATE_VECTOR in the hands of a user who means harm: bad commands of every kind between
 * good ones, memory and arrays that other threads unmap and change meanwhile, a context of
 * another process, and SIGKILL in the middle. Pages go to devices where hetmem_emu.ko is
 * loaded, and to the host elsewhere.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>

#define PAGES		256
#define SEED		41
#define NR_MOST		HETMEM_VECTOR_MAX
#define STATS		"/sys/class/misc/hetmem/stats/"

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	return *state >> 33;
}

/**
 * struct attack - one process that attacks
 * @fd: its context
 * @loc: where pages go
 * @area: PAGES pages that threads unmap, protect and fill
 * @witness: as many that stay mapped and keep their contents
 * @moves, @results: NR_MOST entries each, which threads change and unmap
 * @rounds: vectors of each caller, 0: until it is killed
 * @stop: the callers are done
 * @unexpected: the first answer that nothing documents
 */
struct attack {
	int fd;
	uint32_t loc[2];
	char *area, *witness;
	struct hetmem_cmd_migrate *moves;
	int32_t *results;
	int rounds;
	int stop;
	int unexpected;
};

static size_t moves_size(void)
{
	const size_t page = page_size();

	return (NR_MOST * sizeof(struct hetmem_cmd_migrate) + page - 1) / page * page;
}

static void *map_new(void *at, size_t size)
{
	return mmap(at, size, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
}

/* As nobody, with a context of its own. */
static void attack_init(struct attack *a, const uint32_t loc[2])
{
	memset(a, 0, sizeof(*a));
	memcpy(a->loc, loc, sizeof(a->loc));
	CHILD_CHECK(!become_nobody());
	a->fd = hm_open();
	CHILD_CHECK(a->fd >= 0);
	a->area = map_filled(PAGES * page_size(), SEED);
	a->witness = map_filled(PAGES * page_size(), SEED);
	a->moves = map_new(NULL, moves_size());
	a->results = map_new(NULL, page_size());
	CHILD_CHECK(a->area && a->witness);
	CHILD_CHECK((void *)a->moves != MAP_FAILED && (void *)a->results != MAP_FAILED);
}

/* A command that is right: some pages of either buffer go somewhere, or are held. */
static struct hetmem_cmd_migrate right(const struct attack *a, uint64_t *r)
{
	const char *p = next_random(r) % 2 ? a->area : a->witness;
	const size_t first = next_random(r) % PAGES;
	const size_t nr = 1 + next_random(r) % (PAGES - first);
	struct hetmem_cmd_migrate m = {
		.start = (uintptr_t)p + first * page_size(),
		.end = (uintptr_t)p + (first + nr) * page_size(),
	};
	const unsigned int where = next_random(r) % 8;

	m.location = where < 4 ? a->loc[where % 2] : ANY_HOST;
	if (where == 7) {
		m.flags = HETMEM_MIGRATE_PIN;
		m.timeout_ms = 1 + next_random(r) % 20;
	}
	return m;
}

/* A command that is wrong in one way; its result. */
static int wrong(struct hetmem_cmd_migrate *m, unsigned int way)
{
	m->flags = 0;
	m->timeout_ms = 0;
	switch (way) {
	case 0:
		m->end = m->start;
		return -EINVAL;
	case 1:
		m->start += 1;
		return -EINVAL;
	case 2:
		m->end -= 8;
		return -EINVAL;
	case 3:			/* the other way round */
		m->end = m->start - page_size();
		return -EINVAL;
	case 4:			/* wraps */
		m->start = -page_size();
		m->end = page_size();
		return -EINVAL;
	case 5:
		m->end = -page_size();
		return -ERANGE;
	case 6:
		m->start = KERNEL_ADDR;
		m->end = KERNEL_ADDR + page_size();
		return -ERANGE;
	case 7:
		m->flags = ~HETMEM_MIGRATE_PIN;
		return -EINVAL;
	case 8:			/* PIN on a device */
		m->flags = HETMEM_MIGRATE_PIN;
		m->timeout_ms = 1;
		m->location = HETMEM_LOC(HETMEM_DEVICE, 0);
		return -EINVAL;
	case 9:			/* no time, and a time for nothing */
		m->flags = HETMEM_MIGRATE_PIN;
		m->location = ANY_HOST;
		return -EINVAL;
	case 10:
		m->timeout_ms = 1;
		return -EINVAL;
	case 11:
		m->flags = HETMEM_MIGRATE_PIN;
		m->timeout_ms = ~0U;
		m->location = ANY_HOST;
		return -EINVAL;
	case 12:
		m->location = HETMEM_LOC(HETMEM_DEVICE, 0x7ffe);
		return -ENODEV;
	case 13:
		m->location = FOREIGN(0);
		return -EOPNOTSUPP;
	case 14:
		m->location = HETMEM_LOC(HETMEM_HOST, 0x7ffe);
		return -EOPNOTSUPP;
	case 15:
		m->location = ~0U;
		return -EOPNOTSUPP;
	case 16:
		m->nr_rest = 1;
		m->rest_size = sizeof(struct hetmem_run);
		return -EINVAL;
	case 17:
		m->nr_rest = HETMEM_REST_MIN;
		m->rest_size = 1;
		return -EINVAL;
	case 18:		/* nothing is mapped there, and nothing is wrong */
		m->start = 0;
		m->end = page_size();
		m->location = ANY_HOST;
		return 0;
	default:
		return 0;
	}
}

#define WAYS	20

static int call(const struct attack *a, uint32_t nr, uint32_t *done)
{
	struct hetmem_cmd_migrate_vector cmd = {
		.size = sizeof(cmd),
		.commands = (uintptr_t)a->moves,
		.results = (uintptr_t)a->results,
		.command_size = sizeof(a->moves[0]),
		.nr = nr,
	};
	const int ret = hm_ioctl(a->fd, HETMEM_IOC_MIGRATE_VECTOR, &cmd);

	*done = cmd.done;
	return ret;
}

FIXTURE(vectors)
{
	int fd;
	bool devices;
	struct emu dev[2];
	uint32_t loc[2];
};

/* A context, pins or device pages that nobody has any more. */
static const char *left_over(FIXTURE_DATA(vectors) *self)
{
	struct hetmem_emu_cmd_info info;
	int i;

	if (!EVENTUALLY(read_long(STATS "contexts") == 1))
		return "contexts";
	if (!EVENTUALLY(!pins_held()))
		return "pins";
	for (i = 0; self->devices && i < 2; i++)
		if (!emu_empties(&self->dev[i], &info))
			return "device pages";
	return NULL;
}

FIXTURE_SETUP(vectors)
{
	int i;

	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->devices = !access("/dev/hetmem_emu0", F_OK);
	self->loc[0] = ANY_HOST;
	self->loc[1] = HETMEM_LOC(HETMEM_HOST, 0);
	for (i = 0; self->devices && i < 2; i++) {
		ASSERT_EQ(0, emu_open(&self->dev[i], i));
		self->loc[i] = self->dev[i].loc;
	}
}

FIXTURE_TEARDOWN(vectors)
{
	int i;

	EXPECT_EQ(NULL, left_over(self));
	for (i = 0; self->devices && i < 2; i++)
		close(self->dev[i].fd);
	EXPECT_EQ(0, close(self->fd));
}

/* Each bad command has its own error; the good ones beside it move memory. */
TEST_F(vectors, bad_kinds)
{
	const uint64_t seed = now_ns();
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		uint64_t r = seed, moved = 0;
		int expected[NR_MOST], round;
		struct attack a;
		uint32_t i, nr, done;

		attack_init(&a, self->loc);
		for (round = 0; round < test_rounds(10); round++) {
			nr = round ? 1 + next_random(&r) % NR_MOST : NR_MOST;
			for (i = 0; i < nr; i++) {
				a.moves[i] = right(&a, &r);
				expected[i] = wrong(&a.moves[i], next_random(&r) % WAYS);
				a.results[i] = 99;
			}
			CHILD_CHECK(!call(&a, nr, &done));
			CHILD_CHECK(done == nr);
			for (i = 0; i < nr; i++) {
				const struct hetmem_cmd_migrate *m = &a.moves[i];

				if (a.results[i] != expected[i])
					fprintf(stderr, "# command %u: %d, not %d\n", i, a.results[i],
						expected[i]);
				CHILD_CHECK(a.results[i] == expected[i]);
				CHILD_CHECK(expected[i] || m->walk_end == m->end);
				moved += expected[i] ? 0 : m->moved + (self->devices ? 0 : m->already);
			}
		}
		CHILD_CHECK(moved > 0);
		CHILD_CHECK(mismatch(a.area, PAGES * page_size(), SEED) == -1);
		CHILD_CHECK(mismatch(a.witness, PAGES * page_size(), SEED) == -1);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid)) {
		TH_LOG("seed %llu", (unsigned long long)seed);
	}
}

/* The file is the parent's: nothing is read, moved or written. */
TEST_F(vectors, not_my_context)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct attack a;
		uint64_t r = 1;
		uint32_t done;

		attack_init(&a, self->loc);
		close(a.fd);
		a.fd = self->fd;
		a.moves[0] = right(&a, &r);
		a.results[0] = 99;
		CHILD_CHECK(call(&a, 1, &done) == -EPERM);
		CHILD_CHECK(!a.moves[0].size && !a.moves[0].walk_end && a.results[0] == 99);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* Results that commands can have while their memory and their structs change. */
static bool documented(int result)
{
	switch (result) {
	case 0:
	case -EFAULT:
	case -EINVAL:
	case -E2BIG:
	case -ERANGE:
	case -ENODEV:
	case -EOPNOTSUPP:
	case -ENOMEM:
	case -EDQUOT:
		return true;
	default:
		return false;
	}
}

static void *caller(void *arg)
{
	struct attack *a = arg;
	uint64_t r = now_ns() + (uintptr_t)&r;
	int round;

	for (round = 0; !a->rounds || round < a->rounds; round++) {
		const uint32_t nr = 1 + next_random(&r) % 64;
		uint32_t done;
		int ret = call(a, nr, &done);

		if ((ret && ret != -EFAULT) || (!ret && done != nr) || done > nr)
			__atomic_store_n(&a->unexpected, ret ? ret : -EBADMSG, __ATOMIC_RELAXED);
	}
	__atomic_add_fetch(&a->stop, 1, __ATOMIC_RELAXED);
	return NULL;
}

static bool goes_on(const struct attack *a)
{
	return __atomic_load_n(&a->stop, __ATOMIC_RELAXED) < 2;
}

/* Takes pages of the area away, and gives others. */
static void *unmaps(void *arg)
{
	const size_t page = page_size();
	struct attack *a = arg;
	uint64_t r = now_ns();

	while (goes_on(a)) {
		const size_t first = next_random(&r) % PAGES;
		const size_t size = (1 + next_random(&r) % (PAGES - first)) * page;
		char *p = a->area + first * page;

		switch (next_random(&r) % 5) {
		case 0:
			munmap(p, size);
			break;
		case 1:
			mprotect(p, size, next_random(&r) % 2 ? PROT_NONE : PROT_READ);
			break;
		case 2:
			madvise(p, size, MADV_DONTNEED);
			break;
		default:
			map_new(p, size);
			madvise(p, size, MADV_POPULATE_WRITE);
			break;
		}
	}
	return NULL;
}

/* Copies by system call what threads may unmap: a page that is gone is no fault. */
static void put(void *to, const void *from, size_t size)
{
	const struct iovec local = { (void *)from, size }, remote = { to, size };

	process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
}

/* Writes good and bad commands, and takes the arrays away. */
static void *changes(void *arg)
{
	const size_t page = page_size();
	struct attack *a = arg;
	uint64_t r = now_ns() + 1;
	int32_t result;
	size_t i;

	while (goes_on(a)) {
		for (i = 0; i < 64; i++) {
			struct hetmem_cmd_migrate m = right(a, &r);

			/* A good one of four is spoilt, and some have results in foreign places. */
			if (next_random(&r) % 4 == 0)
				wrong(&m, next_random(&r) % WAYS);
			if (next_random(&r) % 8 == 0) {
				m.rest = next_random(&r) % 2 ? KERNEL_ADDR : (uintptr_t)a->area;
				m.rest_size = sizeof(struct hetmem_run);
				m.nr_rest = HETMEM_REST_MIN;
			}
			put(&a->moves[i], &m, sizeof(m));
		}
		/* The last words of the kernel are still there, or zeroes. */
		for (i = 0; i < 64; i++) {
			const struct iovec local = { &result, sizeof(result) };
			const struct iovec remote = { &a->results[i], sizeof(result) };

			if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof(result) &&
			    !documented(result))
				__atomic_store_n(&a->unexpected, result, __ATOMIC_RELAXED);
		}
		switch (next_random(&r) % 6) {
		case 0:
			munmap(a->results, page);
			break;
		case 1:
			munmap((char *)a->moves + page, page);
			break;
		case 2:
			mprotect(a->moves, moves_size(), PROT_READ);
			break;
		case 3:
			mprotect(a->results, page, PROT_READ);
			break;
		default:
			map_new(a->results, page);
			map_new(a->moves, moves_size());
			break;
		}
	}
	return NULL;
}

/* Two callers of the same arrays beside the threads that change all of it. */
static void race(struct attack *a)
{
	static void *(*const bodies[])(void *) = { caller, caller, unmaps, changes };
	pthread_t threads[ARRAY_SIZE(bodies)];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bodies); i++)
		CHILD_CHECK(!pthread_create(&threads[i], NULL, bodies[i], a));
	for (i = 0; i < ARRAY_SIZE(bodies); i++)
		pthread_join(threads[i], NULL);
}

TEST_F(vectors, changed_meanwhile)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct attack a;

		attack_init(&a, self->loc);
		a.rounds = test_rounds(2000);
		race(&a);
		if (a.unexpected)
			fprintf(stderr, "# the kernel answered %d\n", a.unexpected);
		CHILD_CHECK(!a.unexpected);
		CHILD_CHECK(mismatch(a.witness, PAGES * page_size(), SEED) == -1);
		CHILD_CHECK(!hm_unpin(a.fd, NULL, 0x7ffffffff000UL, NULL));
		CHILD_CHECK(EVENTUALLY(!vm_pin()));
		/* After all that the same call does what it should. */
		map_new(a.moves, moves_size());
		map_new(a.results, page_size());
		CHILD_CHECK(move_to(a.fd, a.witness, PAGES * page_size(), a.loc[0], NULL) == PAGES);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

TEST_F(vectors, killed)
{
	const int kills = slow_kernel() ? 3 : 12;
	int i;

	for (i = 0; i < kills; i++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			struct attack a;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			attack_init(&a, self->loc);
			turn_pass(t.to_parent[1]);
			race(&a);
			_exit(1);
		}
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(i * (slow_kernel() ? 50000 : 4000));
		EXPECT_EQ(0, kill(pid, SIGKILL));
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		close(t.to_child[1]);
		close(t.to_parent[0]);
		EXPECT_EQ(NULL, left_over(self));
	}
}

TEST_HARNESS_MAIN
