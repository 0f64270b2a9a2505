// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * BACKGROUND where no device is: the answer is that of MIGRATE, the eventfd tells of each
 * end, bad commands are refused as documented, and close() ends what is in progress.
 */
#include "libktest/harness.h"
#include "libktest/background.h"
#include "libktest/view.h"

#define PAGES	64

FIXTURE(background)
{
	struct job job;
	char *p;
	size_t size;
};

FIXTURE_SETUP(background)
{
	ASSERT_EQ(0, job_open(&self->job));
	self->size = PAGES * page_size();
	self->p = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, self->size, 1);
	job_set(&self->job, self->p, self->size, ANY_HOST);
}

FIXTURE_TEARDOWN(background)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_EQ(0, vm_pin());
	munmap(self->p, self->size);
	job_close(&self->job);
}

TEST_F(background, as_migrate)
{
	struct hetmem_cmd_migrate alone = self->job.move;
	int i;

	/* Half of it is not there. */
	ASSERT_EQ(0, madvise(self->p, self->size / 2, MADV_DONTNEED));
	alone.size = sizeof(alone);
	ASSERT_EQ(0, hm_ioctl(self->job.fd, HETMEM_IOC_MIGRATE, &alone));
	EXPECT_EQ(PAGES / 2, alone.already);
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, job_begin(&self->job));
		EXPECT_EQ(1, job_wait(&self->job));
		memset(&self->job.move, 0xa5, sizeof(self->job.move));
		ASSERT_EQ(0, job_collect(&self->job));
		EXPECT_EQ(0, self->job.cmd.result);
		EXPECT_EQ(0, memcmp(&alone, &self->job.move, sizeof(alone)));
	}
	/* The answer can be had again. */
	ASSERT_EQ(0, job_collect(&self->job));
	EXPECT_EQ(PAGES / 2, self->job.move.already);
	fill(self->p, self->size, 1);
}

TEST_F(background, results)
{
	self->job.move.location = HETMEM_LOC(HETMEM_DEVICE, 0x7ffe);
	ASSERT_EQ(0, job_begin(&self->job));
	EXPECT_EQ(1, job_wait(&self->job));
	ASSERT_EQ(0, job_collect(&self->job));
	EXPECT_EQ(-ENODEV, self->job.cmd.result);
	EXPECT_EQ(self->job.move.start, self->job.move.walk_end);
	self->job.move.location = HETMEM_LOC(HETMEM_FOREIGN, 1);
	ASSERT_EQ(0, job_begin(&self->job));
	EXPECT_EQ(1, job_wait(&self->job));
	ASSERT_EQ(0, job_collect(&self->job));
	EXPECT_EQ(-EOPNOTSUPP, self->job.cmd.result);
}

/* Refused commands leave the eventfd, the last answer and the next command alone. */
TEST_F(background, refused)
{
	const struct hetmem_cmd_migrate good = self->job.move;
	struct hetmem_cmd_migrate *move = &self->job.move;
	const int eventfd = self->job.eventfd, pipe_end = memfd_create("no eventfd", MFD_CLOEXEC);

	EXPECT_EQ(-ENOENT, job_collect(&self->job));
#define EXPECT_REFUSED(error, ...)					\
	do {								\
		*move = good;						\
		__VA_ARGS__;						\
		EXPECT_EQ(error, job_begin(&self->job));		\
	} while (0)
	EXPECT_REFUSED(-EINVAL, move->flags = HETMEM_MIGRATE_PIN; move->timeout_ms = 1000);
	EXPECT_REFUSED(-EINVAL, move->flags = HETMEM_MIGRATE_PIN);
	EXPECT_REFUSED(-EINVAL, move->flags = 1U << 31);
	EXPECT_REFUSED(-EINVAL, move->timeout_ms = 1);
	EXPECT_REFUSED(-EINVAL, move->nr_rest = HETMEM_REST_MIN);
	EXPECT_REFUSED(-EINVAL, move->start += 8);
	EXPECT_REFUSED(-EINVAL, move->end = move->start);
	EXPECT_REFUSED(-ERANGE, move->end = 1UL << 63);
	EXPECT_REFUSED(-EBADF, self->job.eventfd = -1);
	EXPECT_REFUSED(-EBADF, self->job.eventfd = 1 << 20);
	EXPECT_REFUSED(-EINVAL, self->job.eventfd = pipe_end);
	EXPECT_REFUSED(-EINVAL, self->job.eventfd = self->job.fd);
	self->job.eventfd = eventfd;
	self->job.command = KERNEL_ADDR;
	EXPECT_REFUSED(-EFAULT);
	self->job.command = 0;
	EXPECT_REFUSED(-EFAULT);
	self->job.command = (uintptr_t)move;
	self->job.command_size = sizeof(*move) - 8;
	EXPECT_REFUSED(-EINVAL);
	EXPECT_EQ(-EINVAL, job_collect(&self->job));
	self->job.command_size = page_size() + 8;
	EXPECT_REFUSED(-E2BIG);
	EXPECT_EQ(-E2BIG, job_collect(&self->job));
	self->job.command_size = sizeof(*move);
	EXPECT_EQ(-ENOENT, job_collect(&self->job));
	EXPECT_EQ(0, poll_one(eventfd, 0));

	EXPECT_REFUSED(0);
	EXPECT_EQ(1, job_wait(&self->job));
	self->job.command = KERNEL_ADDR;
	EXPECT_EQ(-EFAULT, job_collect(&self->job));
	self->job.command = (uintptr_t)move;
	EXPECT_EQ(0, job_collect(&self->job));
	EXPECT_EQ(PAGES, self->job.move.already);
	close(pipe_end);
}

/* A move of memory that takes long, for which the others below do not wait. */
static char *long_memory(size_t *size)
{
	char *p;

	*size = 16 * test_size();
	p = mmap(NULL, *size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* While one is in progress there is no other one, and no answer. */
TEST_F(background, one_at_a_time)
{
	bool busy = false, again = false;
	size_t size;
	char *p = long_memory(&size);
	int ret;

	ASSERT_NE(NULL, p);
	job_set(&self->job, p, size, ANY_HOST);
	EXPECT_TRUE(EVENTUALLY(({
		ret = job_begin(&self->job);
		if (!ret) {
			again |= job_collect(&self->job) == -EAGAIN;
			busy |= job_begin(&self->job) == -EBUSY;
			job_set(&self->job, p, size, ANY_HOST);
		}
		busy && again;
	})));
	/* Whatever was begun ends. */
	EXPECT_TRUE(EVENTUALLY(job_collect(&self->job) == 0));
	EXPECT_LT(0, job_wait(&self->job));
	EXPECT_EQ(size / page_size(), self->job.move.already);
	munmap(p, size);
}

/* 16 jobs of one user, in whichever contexts. */
TEST_F(background, of_one_user)
{
	struct job jobs[24];
	unsigned int most = 0, i, nr;
	bool refused = false;
	size_t size;
	char *p = long_memory(&size);

	ASSERT_NE(NULL, p);
	for (i = 0; i < ARRAY_SIZE(jobs); i++)
		ASSERT_EQ(0, job_open(&jobs[i]));
	EXPECT_TRUE(EVENTUALLY(({
		for (i = nr = 0; i < ARRAY_SIZE(jobs); i++) {
			job_set(&jobs[i], p, size, ANY_HOST);
			if (!job_begin(&jobs[i]))
				nr++;
			else
				refused = true;
		}
		most = nr > most ? nr : most;
		for (i = 0; i < ARRAY_SIZE(jobs); i++)
			EXPECT_TRUE(EVENTUALLY(job_collect(&jobs[i]) != -EAGAIN));
		refused;
	})));
	EXPECT_LE(16, most);
	/* All that have ended make room. */
	for (i = 0; i < ARRAY_SIZE(jobs); i++) {
		job_set(&jobs[i], self->p, self->size, ANY_HOST);
		EXPECT_TRUE(EVENTUALLY(job_begin(&jobs[i]) == 0));
	}
	for (i = 0; i < ARRAY_SIZE(jobs); i++) {
		EXPECT_TRUE(EVENTUALLY(job_collect(&jobs[i]) == 0));
		EXPECT_EQ(PAGES, jobs[i].move.already);
		job_close(&jobs[i]);
	}
	munmap(p, size);
}

/* close() ends it. The eventfd is signalled once, whether it has run or not. */
TEST_F(background, closed)
{
	size_t size;
	char *p = long_memory(&size);
	uint64_t nr;
	int i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < 20; i++) {
		struct job job;

		ASSERT_EQ(0, job_open(&job));
		job_set(&job, p, size, ANY_HOST);
		ASSERT_EQ(0, job_begin(&job));
		ASSERT_EQ(0, close(job.fd));
		EXPECT_EQ(POLLIN, poll_one(job.eventfd, 0));
		EXPECT_EQ(sizeof(nr), read(job.eventfd, &nr, sizeof(nr)));
		EXPECT_EQ(1, nr);
		close(job.eventfd);
	}
	munmap(p, size);
}

/*
 * The process ends, and another one keeps its file: the move ends as well, and the file
 * shows no memory any more.
 */
TEST_F(background, process_gone)
{
	int i;

	for (i = 0; i < 5; i++) {
		struct job *job = &self->job;
		struct hetmem_cmd_residency look = {
			.start = (uintptr_t)self->p,
			.end = (uintptr_t)self->p + self->size,
		};
		struct turns turns;
		int pair[2], fd = -1;
		pid_t pid;

		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		ASSERT_EQ(0, turns_init(&turns));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			size_t size;
			char *p = long_memory(&size);

			turns_in_child(&turns);
			job->fd = hm_open();
			CHILD_CHECK(p && job->fd >= 0 && !send_fd(pair[1], job->fd));
			CHILD_CHECK(turn_wait(turns.to_child[0]));
			job_set(job, p, size, ANY_HOST);
			CHILD_CHECK(!job_begin(job));
			_exit(0);
		}
		turns_in_parent(&turns);
		fd = receive_fd(pair[0]);
		ASSERT_LE(0, fd);
		ASSERT_TRUE(turn_pass(turns.to_child[1]));
		EXPECT_EQ(0, child_status(pid));
		EXPECT_EQ(1, job_wait(job));
		EXPECT_TRUE(EVENTUALLY(hm_residency(fd, &look) == -ESRCH));
		close(fd);
		close(pair[0]);
		close(pair[1]);
		close(turns.to_child[1]);
		close(turns.to_parent[0]);
	}
}

TEST_HARNESS_MAIN
