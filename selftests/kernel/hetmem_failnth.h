/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Fault injection: the first allocation (or copy from or to the user) of a
 * command fails, then the second, and so on until none is left to fail.
 * Whatever fails, the command says so by an errno that it documents, or does
 * without; contents stay as they are and nothing is left. ktest asks kmemleak
 * when all is over.
 */
#ifndef HETMEM_FAILNTH_H
#define HETMEM_FAILNTH_H

#include "hetmem_emu_test.h"
#include "hetmem_ring.h"

#include <sys/eventfd.h>

#define FAIL_NTH	"/proc/thread-self/fail-nth"
#define DEBUGFS		"/sys/kernel/debug/"
#define STATS		"/sys/class/misc/hetmem/stats/"

/* More than any command has. */
#define NTH_MAX		2000

FIXTURE(nth)
{
	struct rig rig;
	int fail;		/* the file that says which */
	char *p;
	size_t size;
	int fd;			/* what the call opened */
	void *map;		/* or mapped */
	struct ring ring;
	int eventfd;
	struct hetmem_run *runs;
	uint64_t id;		/* of a hint that waits for its answer */
	unsigned int failed;	/* calls that said so */
	unsigned int nth;
};

#define SEED	77

static bool injection_possible(void)
{
	return !access(FAIL_NTH, W_OK) &&
	       !write_text(DEBUGFS "failslab/ignore-gfp-wait", "N") &&
	       !write_text(DEBUGFS "fail_page_alloc/ignore-gfp-wait", "N") &&
	       !write_text(DEBUGFS "fail_page_alloc/ignore-gfp-highmem", "N") &&
	       !write_text(DEBUGFS "fail_page_alloc/min-order", "0");
}

FIXTURE_SETUP(nth)
{
	if (!injection_possible())
		SKIP(return, "kernel lacks fault injection");
	/* Thousands of failures that are wanted need no line each. */
	write_text(DEBUGFS "failslab/verbose", "0");
	write_text(DEBUGFS "fail_page_alloc/verbose", "0");
	write_text(DEBUGFS "fail_usercopy/verbose", "0");
	ASSERT_EQ(0, rig_init(&self->rig));
	self->fail = open(FAIL_NTH, O_RDWR | O_CLOEXEC);
	ASSERT_GE(self->fail, 0);
	self->size = 16 * page_size();
	self->p = map_filled(self->size, SEED);
	ASSERT_NE(NULL, self->p);
	self->fd = -1;
	self->eventfd = eventfd(0, EFD_CLOEXEC);
	ASSERT_GE(self->eventfd, 0);
	self->runs = malloc(HETMEM_REST_MIN * sizeof(*self->runs));
	ASSERT_NE(NULL, self->runs);
}

FIXTURE_TEARDOWN(nth)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, SEED));
	munmap(self->p, self->size);
	free(self->runs);
	close(self->eventfd);
	close(self->fail);
	EXPECT_EQ(0, rig_exit(&self->rig));
	EXPECT_EQ(0, read_long(STATS "contexts"));
	EXPECT_EQ(0, read_long(STATS "ranges"));
}

typedef FIXTURE_DATA(nth) nth_data;

/* The next @nth possible failure of this thread is one. */
static int arm(nth_data *d, unsigned int nth)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%u", nth);

	return pwrite(d->fail, text, len, 0) == len ? 0 : -errno;
}

/* Return: whether it has failed since. */
static bool disarm(nth_data *d)
{
	char text[16] = "";
	/* Copying the answer is itself what can fail. */
	ssize_t n = pread(d->fail, text, sizeof(text) - 1, 0);
	bool failed = n > 0 && atoi(text) == 0;

	arm(d, 0);
	return failed;
}

static bool may_return(int ret, const int *errors)
{
	if (!ret || ret == -ENOMEM || ret == -EFAULT)
		return true;
	for (; *errors; errors++)
		if (ret == -*errors)
			return true;
	return false;
}

static const int no_errors[] = { 0 };

/* Of what looks at pages. */
static const int look_errors[] = { EBUSY, 0 };

/*
 * @call with each possible failure in turn, @undo after each; the one in
 * which nothing failed must succeed. Return: a fault's text, or NULL.
 */
static const char *each_nth(nth_data *d, const char *name,
			    int (*call)(nth_data *d),
			    int (*undo)(nth_data *d, int ret),
			    const int *errors)
{
	static char text[128];
	bool failed = true;
	int ret, err;

	d->failed = 0;
	for (d->nth = 1; failed && d->nth < NTH_MAX; d->nth++) {
		if (arm(d, d->nth))
			return "cannot arm";
		ret = call(d);
		failed = disarm(d);
		d->failed += !!ret;
		if (!may_return(ret, failed ? errors : no_errors) ||
		    (ret && !failed)) {
			snprintf(text, sizeof(text), "failure %u%s: %d",
				 d->nth, failed ? "" : " (none)", ret);
			return text;
		}
		err = undo ? undo(d, ret) : 0;
		if (!err && mismatch(d->p, d->size, SEED) >= 0)
			err = -EBADMSG;
		if (err) {
			snprintf(text, sizeof(text),
				 "failure %u: %d, and then %d", d->nth, ret,
				 err);
			return text;
		}
	}
	printf("# %s: %u possible failures, of which %u were told\n", name,
	       d->nth - 2, d->failed);
	if (failed)
		return "there is no end";
	return NULL;
}

#define EXPECT_EACH(call, undo, errors)					\
	do {								\
		const char *text_ = each_nth(self, #call, call, undo,	\
					     errors);			\
									\
		EXPECT_EQ(NULL, text_)					\
			TH_LOG("%s", text_);				\
	} while (0)

#endif /* HETMEM_FAILNTH_H */
