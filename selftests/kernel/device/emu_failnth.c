// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Fault injection: the first allocation (or copy from or to the user) of a
 * command fails, then the second, and so on until none is left to fail.
 * Whatever fails, the command says so by an errno that it documents, or does
 * without; contents stay as they are and nothing is left. ktest asks kmemleak
 * when all is over.
 *
 * First what moves memory: opening, MIGRATE, and the emulated device's own.
 * Then the commands that look, keep account and ask.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <pthread.h>

#define FAIL_NTH	"/proc/thread-self/fail-nth"
#define DEBUGFS		"/sys/kernel/debug/"

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
	self->runs = malloc(HETMEM_REST_MIN * sizeof(*self->runs));
	ASSERT_NE(NULL, self->runs);
}

FIXTURE_TEARDOWN(nth)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, SEED));
	munmap(self->p, self->size);
	free(self->runs);
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

static int close_it(nth_data *d, int ret)
{
	long before = d->fd < 0 ? 1 : 2;

	/* What failed has not been opened. */
	if (read_long(STATS "contexts") != before)
		return -EBADMSG;
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	return 0;
}

static int call_open(nth_data *d)
{
	d->fd = open(DEV_HETMEM, O_RDWR | O_CLOEXEC);
	return d->fd < 0 ? -errno : 0;
}

TEST_F(nth, open)
{
	static const int errors[] = { EINTR, ENFILE, 0 };

	EXPECT_EACH(call_open, close_it, errors);
	EXPECT_GT(self->failed, 0);
}

static int close_device(nth_data *d, int ret)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	return 0;
}

static int call_open_device(nth_data *d)
{
	d->fd = open("/dev/hetmem_emu0", O_RDWR | O_CLOEXEC);
	return d->fd < 0 ? -errno : 0;
}

TEST_F(nth, open_device)
{
	static const int errors[] = { EINTR, ENFILE, 0 };

	EXPECT_EACH(call_open_device, close_device, errors);
	EXPECT_GT(self->failed, 0);
}

static int call_migrate(nth_data *d, uint32_t location, uint32_t flags)
{
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.flags = flags,
		.start = (uintptr_t)d->p,
		.end = (uintptr_t)d->p + d->size,
		.location = location,
		.timeout_ms = flags & HETMEM_MIGRATE_PIN ? 1 : 0,
		.rest = (uintptr_t)d->runs,
		.nr_rest = HETMEM_REST_MIN,
		.rest_size = sizeof(struct hetmem_run),
	};
	int ret = hm_ioctl(d->rig.fd, HETMEM_IOC_MIGRATE, &cmd);

	if (!ret && (cmd.walk_end != cmd.end ||
		     cmd.moved + cmd.already + cmd.not_moved !=
		     d->size / page_size()))
		return -EBADMSG;
	return ret;
}

/* Half of it in each of two commands. The first error is the answer. */
static int call_vector(nth_data *d)
{
	struct hetmem_cmd_migrate moves[2];
	int32_t results[2] = { 0 };
	struct hetmem_cmd_migrate_vector cmd = {
		.size = sizeof(cmd),
		.commands = (uintptr_t)moves,
		.results = (uintptr_t)results,
		.command_size = sizeof(moves[0]),
		.nr = 2,
	};
	int ret, i;

	for (i = 0; i < 2; i++)
		moves[i] = (struct hetmem_cmd_migrate){
			.start = (uintptr_t)d->p + i * d->size / 2,
			.end = (uintptr_t)d->p + (i + 1) * d->size / 2,
			.location = d->rig.dev[0].loc,
		};
	ret = hm_ioctl(d->rig.fd, HETMEM_IOC_MIGRATE_VECTOR, &cmd);
	if (!ret && cmd.done != 2)
		return -EBADMSG;
	return ret ? ret : results[0] ? results[0] : results[1];
}

static int call_to_device(nth_data *d)
{
	return call_migrate(d, d->rig.dev[0].loc, 0);
}

static int call_to_host(nth_data *d)
{
	return call_migrate(d, ANY_HOST, 0);
}

static int call_to_node(nth_data *d)
{
	return call_migrate(d, HETMEM_LOC(HETMEM_HOST, 0), 0);
}

static int call_pin(nth_data *d)
{
	return call_migrate(d, ANY_HOST, HETMEM_MIGRATE_PIN);
}

static int back_to_host(nth_data *d, int ret)
{
	long n = to_host(d->rig.fd, d->p, d->size);

	return n < 0 ? n : (size_t)n == d->size / page_size() ? 0 : -EBUSY;
}

static int back_to_device(nth_data *d, int ret)
{
	long n;

	/* The pin of a call that succeeded must have run out. */
	if (!EVENTUALLY((n = to_device(d->rig.fd, &d->rig.dev[0], d->p,
				       d->size)) < 0 || n == NR(d->size)))
		return -EBUSY;
	return n < 0 ? n : 0;
}

TEST_F(nth, to_device)
{
	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	EXPECT_EACH(call_to_device, back_to_host, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_vector, back_to_host, no_errors);
	EXPECT_GT(self->failed, 0);
}

TEST_F(nth, to_host)
{
	ASSERT_EQ(0, back_to_device(self, 0));
	EXPECT_EACH(call_to_host, back_to_device, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_to_node, back_to_device, no_errors);
}

TEST_F(nth, pin)
{
	ASSERT_EQ(0, back_to_device(self, 0));
	EXPECT_EACH(call_pin, back_to_device, no_errors);
	EXPECT_GT(self->failed, 0);
}

static int call_unpin(nth_data *d)
{
	return hm_unpin(d->rig.fd, d->p, d->size, NULL);
}

/* Nothing is held, or all of it still, and then it can be unpinned. */
static int pin_again(nth_data *d, int ret)
{
	const long pinned = vm_pin();
	struct hetmem_cmd_migrate cmd;

	if (pinned && (!ret || pinned != NR(d->size)))
		return -EBADMSG;
	return hm_pin(d->rig.fd, d->p, d->size, FOREVER_MS, &cmd);
}

TEST_F(nth, unpin)
{
	ASSERT_EQ(0, vm_pin());
	ASSERT_EQ(0, pin_again(self, 0));
	EXPECT_EACH(call_unpin, pin_again, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EQ(0, hm_unpin(self->rig.fd, self->p, self->size, NULL));
}

static int call_access(nth_data *d, uint32_t op, uint32_t flags)
{
	char *buf = (char *)d->runs;
	struct hetmem_emu_cmd_access cmd = {
		.size = sizeof(cmd),
		.flags = flags,
		.op = op,
		.addr = (uintptr_t)d->p,
		.length = 2 * page_size(),
		.data = (uintptr_t)buf,
	};
	int ret = hm_ioctl(d->rig.dev[0].fd, HETMEM_EMU_IOC_ACCESS, &cmd);

	return !ret && cmd.done != cmd.length ? -EBADMSG : ret;
}

static int call_read(nth_data *d)
{
	return call_access(d, HETMEM_EMU_READ, 0);
}

static int call_read_there(nth_data *d)
{
	return call_access(d, HETMEM_EMU_READ, HETMEM_EMU_MIGRATE);
}

static int call_write_there(nth_data *d)
{
	fill(d->runs, 2 * page_size(), SEED);
	return call_access(d, HETMEM_EMU_WRITE, HETMEM_EMU_MIGRATE);
}

TEST_F(nth, access)
{
	EXPECT_EACH(call_read, back_to_host, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_read_there, back_to_host, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_write_there, back_to_host, no_errors);
	EXPECT_GT(self->failed, 0);
}

static int call_emu_info(nth_data *d)
{
	struct hetmem_emu_cmd_info info;

	return emu_info(d->rig.dev[0].fd, &info);
}

static int call_evict(nth_data *d)
{
	return emu_evict(&d->rig.dev[0], d->size / page_size(), NULL);
}

TEST_F(nth, evict)
{
	ASSERT_EQ(0, back_to_device(self, 0));
	EXPECT_EACH(call_evict, back_to_device, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_emu_info, NULL, no_errors);
	EXPECT_GT(self->failed, 0);
}

/* The CPU's fault, as the kernel's own access of another process's memory. */
static int call_fault(nth_data *d)
{
	struct iovec to = { d->runs, page_size() };
	struct iovec from = { d->p, page_size() };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) < 0 ? -errno : 0;
}

TEST_F(nth, fault)
{
	struct hetmem_emu_cmd_info info;

	ASSERT_EQ(0, back_to_device(self, 0));
	EXPECT_EACH(call_fault, back_to_device, no_errors);
	EXPECT_GT(self->failed, 0);
	/* Those were wanted. */
	EXPECT_EQ(0, emu_info(self->rig.dev[0].fd, &info));
	self->rig.failures[0] = info.cpu_fault_failures;
}

static int call_info(nth_data *d)
{
	struct hetmem_device_info devices[4];
	struct hetmem_cmd_info cmd = {
		.size = sizeof(cmd),
		.devices = (uintptr_t)devices,
		.device_size = sizeof(devices[0]),
		.nr_devices = ARRAY_SIZE(devices),
	};

	return hm_ioctl(d->rig.fd, HETMEM_IOC_INFO, &cmd);
}

static int call_list(nth_data *d)
{
	struct hetmem_list_entry entries[4];
	struct hetmem_cmd_list cmd = {
		.size = sizeof(cmd),
		.entries = (uintptr_t)entries,
		.entry_size = sizeof(entries[0]),
		.nr = ARRAY_SIZE(entries),
	};

	return hm_ioctl(d->rig.fd, HETMEM_IOC_LIST, &cmd);
}

static int call_stats(nth_data *d)
{
	struct hetmem_cmd_stats cmd;

	return hm_stats(d->rig.fd, d->p, &cmd);
}

static int call_refresh(nth_data *d)
{
	struct hetmem_cmd_refresh cmd;

	return hm_refresh(d->rig.fd, d->p, &cmd);
}

static int call_allow(nth_data *d)
{
	return hm_allow(d->rig.fd, HETMEM_SHAREABLE);
}

static int call_bind(nth_data *d)
{
	struct hetmem_cmd_bind_device cmd = {
		.size = sizeof(cmd),
		.location = HETMEM_LOC(HETMEM_FOREIGN, 1),
		.uuid = "a device's uuid",
	};

	return hm_ioctl(d->rig.fd, HETMEM_IOC_BIND_DEVICE, &cmd);
}

static int call_residency(nth_data *d)
{
	struct hetmem_total totals[8];
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)d->p,
		.end = (uintptr_t)d->p + d->size,
		.runs = (uintptr_t)d->runs,
		.nr_runs = HETMEM_REST_MIN,
		.run_size = sizeof(struct hetmem_run),
		.totals = (uintptr_t)totals,
		.nr_totals = ARRAY_SIZE(totals),
		.total_size = sizeof(struct hetmem_total),
	};

	return hm_residency(d->rig.fd, &cmd);
}

/* Commands that look and leave everything as it is. */
TEST_F(nth, queries)
{
	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	ASSERT_LT(0, to_device(self->rig.fd, &self->rig.dev[0], self->p,
			       self->size / 2));
	EXPECT_EACH(call_info, NULL, no_errors);
	EXPECT_EACH(call_list, NULL, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_stats, NULL, no_errors);
	EXPECT_EACH(call_allow, NULL, no_errors);
	EXPECT_EACH(call_bind, NULL, no_errors);
	EXPECT_EACH(call_residency, NULL, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_refresh, NULL, no_errors);
	EXPECT_GT(self->failed, 0);
}

/*
 * A refused TRACK has tracked nothing. Except where the answer could not be
 * written.
 */
static int untrack_it(nth_data *d, int ret)
{
	const long ranges = read_long(STATS "ranges");

	if (ret != -EFAULT && ranges != !ret)
		return -EBADMSG;
	return ranges ? hm_untrack(d->rig.fd, d->p, d->size) : 0;
}

static int call_track(nth_data *d)
{
	return hm_track(d->rig.fd, d->p, d->size);
}

TEST_F(nth, track)
{
	EXPECT_EACH(call_track, untrack_it, no_errors);
	EXPECT_GT(self->failed, 0);
}

/* A refused UNTRACK has left the range, with the same exception. */
static int track_again(nth_data *d, int ret)
{
	const long ranges = read_long(STATS "ranges");

	if (ret != -EFAULT && ranges != !!ret)
		return -EBADMSG;
	return ranges ? 0 : hm_track(d->rig.fd, d->p, d->size);
}

static int call_untrack(nth_data *d)
{
	return hm_untrack(d->rig.fd, d->p, d->size);
}

TEST_F(nth, untrack)
{
	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	EXPECT_EACH(call_untrack, track_again, no_errors);
	EXPECT_GT(self->failed, 0);
}

/* A context has one ring: each time another context. */
static int call_ring(nth_data *d)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd),
		.nr_entries = HETMEM_RING_MIN * 8,
		.events = ALL_EVENTS,
	};

	return hm_ioctl(d->fd, HETMEM_IOC_RING, &cmd);
}

static int new_context(nth_data *d, int ret)
{
	close(d->fd);
	d->fd = hm_open();
	return d->fd < 0 ? d->fd : 0;
}

TEST_F(nth, ring)
{
	ASSERT_EQ(0, new_context(self, 0));
	EXPECT_EACH(call_ring, new_context, no_errors);
	EXPECT_GT(self->failed, 0);
	close(self->fd);
}

static int call_mmap(nth_data *d)
{
	d->map = mmap(NULL, d->ring.size, PROT_READ | PROT_WRITE, MAP_SHARED,
		      d->rig.fd, 0);
	return d->map == MAP_FAILED ? -errno : 0;
}

static int unmap_it(nth_data *d, int ret)
{
	return ret ? 0 : munmap(d->map, d->ring.size);
}

TEST_F(nth, mmap)
{
	ASSERT_EQ(0, ring_make(self->rig.fd, HETMEM_RING_MIN * 64, ALL_EVENTS,
			       &self->ring.size));
	EXPECT_EACH(call_mmap, unmap_it, no_errors);
	EXPECT_GT(self->failed, 0);
}

/* Nobody answers in time; and that is how it ends if nothing fails. */
static int call_hint_wait(nth_data *d)
{
	int ret = hm_hint(d->rig.fd, d->p, d->size, ANY_HOST, 1, NULL);

	return ret == -ETIMEDOUT ? 0 : ret;
}

static int call_complete(nth_data *d)
{
	return hm_complete(d->rig.fd, d->id, 0, 7);
}

struct asker {
	pthread_t thread;
	int fd, ret;
	char *p;
	size_t size;
};

static void *ask(void *arg)
{
	struct asker *a = arg;

	a->ret = hm_hint(a->fd, a->p, a->size, ANY_HOST, FOREVER_MS, NULL);
	return NULL;
}

static struct asker asker;

/* Somebody waits for the answer to a hint. */
static int ask_again(nth_data *d)
{
	struct hetmem_event e;

	asker = (struct asker){
		.fd = d->rig.fd, .p = d->p, .size = d->size,
	};
	if (pthread_create(&asker.thread, NULL, ask, &asker))
		return -EAGAIN;
	if (!ring_wait(&d->ring, &e, PATIENCE_MS) || e.type != HETMEM_EVENT_HINT)
		return -EBADMSG;
	d->id = e.data;
	return 0;
}

/*
 * An answer that failed was none, and the next one is for the same hint. Except
 * where the struct could not be written back.
 */
static int complete_it(nth_data *d, int ret)
{
	if (ret) {
		ret = call_complete(d);
		if (ret && ret != -ENOENT)
			return ret;
	}
	pthread_join(asker.thread, NULL);
	return asker.ret ? asker.ret : ask_again(d);
}

TEST_F(nth, hint)
{
	ASSERT_EQ(0, ring_open(self->rig.fd, HETMEM_RING_MIN * 16,
			       EVENT(HINT), &self->ring));
	ASSERT_EQ(0, hm_bind(self->rig.fd, FOREIGN(1), HETMEM_BIND_EXECUTOR,
			     "a device's uuid"));
	EXPECT_EACH(call_hint_wait, NULL, no_errors);
	EXPECT_GT(self->failed, 0);
	ring_drain(&self->ring);
	ASSERT_EQ(0, ask_again(self));
	EXPECT_EACH(call_complete, complete_it, no_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EQ(0, call_complete(self));
	pthread_join(asker.thread, NULL);
	ring_close(&self->ring);
}

TEST_HARNESS_MAIN
