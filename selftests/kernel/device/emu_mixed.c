// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * All commands at once, from many threads of one process, on one small piece of memory that
 * others unmap, fork, fault and evict: no command fails, no byte is lost, and nothing is
 * left. For kernels that check locks and memory, which are slow: it is short.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/load.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

/* What one thread does, and with what. */
struct mixed {
	pthread_t thread;
	int (*work)(struct mixed *m, unsigned int i);
	struct rig *rig;
	struct ring *ring;
	int hm;
	char *p;		/* contents stay */
	size_t size;
	char *wild;		/* as large, comes and goes */
	int rounds;
	int ret;
};

/* Part @i of the memory, in turn: whole, halves, and less. */
static char *part(const struct mixed *m, unsigned int i, size_t *size)
{
	char *p = i & 1 ? m->p : m->wild;
	const size_t parts = 1 << i / 2 % 4;

	*size = m->size / parts;
	return p + i / 8 % parts * *size;
}

static int move(struct mixed *m, unsigned int i)
{
	struct hetmem_cmd_migrate cmd;
	size_t size;
	char *p = part(m, i, &size);

	return hm_migrate(m->hm, p, size, i % 3 == 2 ? ANY_HOST :
			  m->rig->dev[i % 3].loc, &cmd);
}

static int see(struct mixed *m, unsigned int i)
{
	struct view v;
	size_t size;
	char *p = part(m, i, &size);
	int ret = view_take(m->hm, p, size, &v);

	view_free(&v);
	return ret;
}

static int refresh(struct mixed *m, unsigned int i)
{
	struct hetmem_cmd_refresh cmd;
	struct hetmem_cmd_stats st;
	size_t size;
	char *p = part(m, i, &size);
	int ret = hm_track(m->hm, p, size);

	if (ret && ret != -EEXIST)
		return ret;
	ret = hm_refresh(m->hm, p, &cmd);
	if (ret && ret != -ENOENT)
		return ret;
	ret = hm_stats(m->hm, p, &st);
	if (ret && ret != -ENOENT)
		return ret;
	ret = i % 4 == 3 ? hm_untrack(m->hm, p, size) : 0;
	return ret == -ENOENT ? 0 : ret;
}

static int pin(struct mixed *m, unsigned int i)
{
	struct hetmem_cmd_migrate cmd;
	size_t size;
	char *p = part(m, i, &size);
	int ret = hm_pin(m->hm, p, size, 1 + i % 7, &cmd);

	if (!ret && cmd.pinned > size / page_size())
		ret = -EBADMSG;
	return ret || i % 3 ? ret : hm_unpin(m->hm, p, size, NULL);
}

static int open_and_close(struct mixed *m, unsigned int i)
{
	struct mixed own = *m;
	int ret;

	own.hm = hm_open();
	if (own.hm < 0)
		return own.hm;
	ret = refresh(&own, i);
	if (!ret)
		ret = pin(&own, i);
	close(own.hm);
	return ret;
}

static int unmap(struct mixed *m, unsigned int i)
{
	char *p = m->wild + i % 4 * m->size / 4;

	if (i % 3 == 0)
		return madvise(p, m->size / 4, MADV_DONTNEED) ? -errno : 0;
	if (i % 3 == 1)
		return mprotect(p, m->size / 4, i % 2 ? PROT_READ :
				PROT_READ | PROT_WRITE) ? -errno : 0;
	if (mmap(p, m->size / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p)
		return -errno;
	fill(p, m->size / 8, i);
	return 0;
}

static int fork_and_read(struct mixed *m, unsigned int i)
{
	pid_t pid = fork();

	if (!pid)
		_exit(mismatch(m->p, m->size, 1) >= 0);
	return pid < 0 ? -errno : child_status(pid);
}

static int read_it(struct mixed *m, unsigned int i)
{
	return mismatch(m->p, m->size, 1) >= 0 ? -EILSEQ : 0;
}

static int evict(struct mixed *m, unsigned int i)
{
	return emu_evict(&m->rig->dev[i & 1], 64, NULL);
}

static int read_events(struct mixed *m, unsigned int i)
{
	ring_drain(m->ring);
	return 0;
}

static void *mixed_main(void *arg)
{
	struct mixed *m = arg;
	int i;

	for (i = 0; i < m->rounds && !m->ret; i++)
		m->ret = m->work(m, i);
	return NULL;
}

FIXTURE(mixed)
{
	struct rig rig;
	struct ring ring;
	long held;
};

FIXTURE_SETUP(mixed)
{
	self->held = pins_held();
	ASSERT_EQ(0, rig_init(&self->rig));
	ASSERT_EQ(0, ring_open(self->rig.fd, 64, ALL_EVENTS, &self->ring));
}

FIXTURE_TEARDOWN(mixed)
{
	ring_close(&self->ring);
	EXPECT_EQ(0, rig_exit(&self->rig));
	EXPECT_EQ(0, vm_pin());
	EXPECT_EQ(self->held, pins_held());
	EXPECT_EQ(0, read_long(STATS "contexts"));
	EXPECT_EQ(0, read_long(STATS "ranges"));
	EXPECT_EQ(0, read_long(STATS "bytes"));
}

TEST_F(mixed, everything)
{
	static int (*const works[])(struct mixed *m, unsigned int i) = {
		move, move, see, refresh, pin, open_and_close, unmap,
		fork_and_read, read_it, evict, read_events,
	};
	struct mixed m[ARRAY_SIZE(works)];
	const size_t size = self->rig.size / 2;
	char *p = map_filled(2 * size, 1);
	struct load load;
	size_t i;

	ASSERT_NE(NULL, p);
	fill(p + size, size, 2);
	ASSERT_EQ(0, load_start(&load, false));
	for (i = 0; i < ARRAY_SIZE(works); i++) {
		m[i] = (struct mixed){
			.work = works[i], .rig = &self->rig, .ring = &self->ring,
			.hm = self->rig.fd, .p = p, .wild = p + size,
			.size = size, .rounds = test_rounds(160),
		};
		ASSERT_EQ(0, pthread_create(&m[i].thread, NULL, mixed_main, &m[i]));
	}
	for (i = 0; i < ARRAY_SIZE(works); i++) {
		pthread_join(m[i].thread, NULL);
		EXPECT_EQ(0, m[i].ret) {
			TH_LOG("thread %zu", i);
		}
	}
	EXPECT_TRUE(load_stop(&load));
	EXPECT_EQ(-1, mismatch(p, size, 1));
	munmap(p, 2 * size);
}

TEST_HARNESS_MAIN
