// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Contexts that are opened and closed, take roles and give them up, ask, answer
 * and are listed, all at once: every hint ends in one of the ways that are
 * documented, and nothing is left behind.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <pthread.h>

#define SIZE	(4 * page_size())
#define LISTED	64

struct race {
	volatile bool stop;
	char *p;
	int fd;			/* to ask by */
	long answered, ended;	/* hints */
	long bad;		/* answers that are not documented */
};

static bool documented(int ret)
{
	switch (ret) {
	case 0:
	case -ENXIO:
	case -EAGAIN:
	case -ETIMEDOUT:
	case -EOWNERDEAD:
		return true;
	default:
		fprintf(stderr, "# HINT: %d\n", ret);
		return false;
	}
}

/* Takes the role, answers some, and goes with the others unanswered. */
static void *execute(void *arg)
{
	struct race *race = arg;
	struct hetmem_event e;
	struct ring r;
	int n, fd;

	while (!race->stop) {
		fd = executor_open(&r, FOREIGN(5), 16);
		if (fd < 0 && fd != -EBUSY)
			race->bad++;
		for (n = 0; fd >= 0 && n < 8 && ring_wait(&r, &e, 2); n++) {
			if (e.type != HETMEM_EVENT_HINT || n % 3 == 2)
				continue;
			if (!hm_complete(fd, e.data, 0, 4))
				__atomic_add_fetch(&race->answered, 1,
						   __ATOMIC_RELAXED);
		}
		/* One time gives the role up first. */
		if (fd >= 0 && n & 1)
			hm_bind(fd, FOREIGN(5), 0, uuid_of(FOREIGN(5)));
		if (r.h && r.h != MAP_FAILED)
			ring_close(&r);
		close(r.fd);
	}
	return NULL;
}

static void *ask(void *arg)
{
	struct race *race = arg;
	struct hetmem_cmd_hint cmd;
	int ret;

	while (!race->stop) {
		ret = hm_hint(race->fd, race->p, SIZE, FOREIGN(5), 3, &cmd);
		if (!documented(ret) || (!ret && (cmd.result || cmd.moved != 4)))
			__atomic_add_fetch(&race->bad, 1, __ATOMIC_RELAXED);
		if (!ret)
			__atomic_add_fetch(&race->ended, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Asks through contexts that come and go, and names the device by its UUID. */
static void *ask_and_close(void *arg)
{
	struct race *race = arg;
	int i, ret;

	while (!race->stop) {
		int fd = hm_open();

		if (fd < 0) {
			race->bad++;
			break;
		}
		for (i = 0; i < 4; i++) {
			ret = hm_hint_uuid(fd, race->p, SIZE, FOREIGN(i),
					   uuid_of(FOREIGN(5)), 1 + i, NULL);
			if (!documented(ret))
				__atomic_add_fetch(&race->bad, 1,
						   __ATOMIC_RELAXED);
		}
		close(fd);
	}
	return NULL;
}

static void *list(void *arg)
{
	struct hetmem_list_entry entries[LISTED];
	struct race *race = arg;
	int i, nr;

	while (!race->stop) {
		nr = hm_list(race->fd, entries, LISTED);
		for (i = 0; i < nr && i < LISTED; i++)
			if (!entries[i].pid || entries[i].nr_hints > 64)
				race->bad++;
		if (nr < 1)
			race->bad++;
	}
	return NULL;
}

TEST(all_at_once)
{
	void *(*const work[])(void *) = {
		execute, execute, ask, ask, ask_and_close, list,
	};
	long before = nr_contexts();
	struct race race = { .fd = hm_open() };
	pthread_t threads[ARRAY_SIZE(work)];
	unsigned int i;

	ASSERT_LE(0, race.fd);
	race.p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		      MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, race.p);
	for (i = 0; i < ARRAY_SIZE(work); i++)
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, work[i], &race));
	EXPECT_TRUE(EVENTUALLY(race.bad || race.ended >= test_rounds(100)));
	race.stop = true;
	for (i = 0; i < ARRAY_SIZE(work); i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQ(0, race.bad);
	EXPECT_LT(0, race.ended);
	EXPECT_LE(race.ended, race.answered);
	close(race.fd);
	EXPECT_TRUE(EVENTUALLY(nr_contexts() == before));
}

TEST_HARNESS_MAIN
