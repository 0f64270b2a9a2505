// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a process left on the device when it went: its child still has the
 * pages, and nobody else is told where they were.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

/* Enough of them that one gets what the kernel had for the one that went. */
#define OTHERS	56

struct word {
	char *p;		/* of who goes */
	size_t size;
	int ready, tracked, evicted, failed;
	uint64_t told;
};

static struct word *word;

/* Goes; its child stays until there has been an eviction. */
static void go(const struct emu *dev, size_t size)
{
	int fd = hm_open();
	char *p = map_filled(size, 7);
	pid_t pid;

	CHILD_CHECK(fd >= 0 && p);
	CHILD_CHECK(to_device(fd, dev, p, size) == (long)(size / page_size()));
	word->p = p;
	word->size = size;
	pid = fork();
	CHILD_CHECK(pid >= 0);
	if (pid)
		_exit(0);
	close(fd);
	word_add(&word->ready);
	word_wait(&word->evicted, 1);
	if (mismatch(p, size, 7) >= 0)
		word_add(&word->failed);
	word_add(&word->ready);
	_exit(0);
}

/* Has nothing on the device, so that nothing of its own can leave it. */
static void be_another(void)
{
	struct hetmem_cmd_stats st;
	int fd = hm_open();

	if (fd < 0 || hm_track(fd, word->p, word->size))
		word_add(&word->failed);
	word_add(&word->tracked);
	word_wait(&word->evicted, 1);
	if (hm_stats(fd, word->p, &st))
		word_add(&word->failed);
	__atomic_fetch_add(&word->told, st.to_host, __ATOMIC_SEQ_CST);
	_exit(0);
}

FIXTURE(gone)
{
	struct rig rig;
};

FIXTURE_SETUP(gone)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	word = mmap(NULL, sizeof(*word), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, word);
}

FIXTURE_TEARDOWN(gone)
{
	munmap(word, sizeof(*word));
	EXPECT_EQ(0, rig_exit(&self->rig));
}

TEST_F(gone, nobody_else_is_told)
{
	const long pages = self->rig.size / page_size();
	uint64_t evicted = 0;
	pid_t pid[OTHERS];
	int i;

	pid[0] = fork();
	ASSERT_GE(pid[0], 0);
	if (!pid[0])
		go(&self->rig.dev[0], self->rig.size);
	ASSERT_EQ(0, child_status(pid[0]));
	word_wait(&word->ready, 1);
	/* time: an idle CPU keeps what it used last for a while, and nothing shows it */
	usleep(200000);

	for (i = 0; i < OTHERS; i++) {
		pid[i] = fork();
		ASSERT_GE(pid[i], 0);
		if (!pid[i])
			be_another();
	}
	word_wait(&word->tracked, OTHERS);
	EXPECT_EQ(0, emu_evict(&self->rig.dev[0], pages, &evicted));
	EXPECT_LT(0, (long)evicted);
	word_add(&word->evicted);
	for (i = 0; i < OTHERS; i++)
		EXPECT_EQ(0, child_status(pid[i]));
	word_wait(&word->ready, 2);
	EXPECT_EQ(0, word->told);
	EXPECT_EQ(0, word_read(&word->failed));
}

TEST_HARNESS_MAIN
