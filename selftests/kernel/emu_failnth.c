// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Fault injection, of what moves memory: opening, MIGRATE, and the emulated
 * device's own. All other commands: emu_failnth_ask.c.
 */
#include "hetmem_failnth.h"

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
	};
	int ret = hm_ioctl(d->rig.fd, HETMEM_IOC_MIGRATE, &cmd);

	if (!ret && (cmd.walk_end != cmd.end ||
		     cmd.moved + cmd.already + cmd.not_moved !=
		     d->size / page_size()))
		return -EBADMSG;
	return ret;
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
	return call_migrate(d, ANY_HOST,
			    HETMEM_MIGRATE_PIN | HETMEM_MIGRATE_POPULATE);
}

static int back_to_host(nth_data *d, int ret)
{
	long n = to_host(d->rig.fd, d->p, d->size);

	return n < 0 ? n : (size_t)n == d->size / page_size() ? 0 : -EBUSY;
}

static int back_to_device(nth_data *d, int ret)
{
	int tries;
	long n;

	/* The pin of a call that succeeded must have run out. */
	for (tries = 0; tries < 1000; tries++) {
		n = to_device(d->rig.fd, &d->rig.dev[0], d->p, d->size);
		if (n < 0 || (size_t)n == d->size / page_size())
			break;
		usleep(1000);
	}
	return n < 0 ? n : (size_t)n == d->size / page_size() ? 0 : -EBUSY;
}

TEST_F(nth, to_device)
{
	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	EXPECT_EACH(call_to_device, back_to_host, look_errors);
	EXPECT_GT(self->failed, 0);
}

TEST_F(nth, to_host)
{
	ASSERT_EQ(0, back_to_device(self, 0));
	EXPECT_EACH(call_to_host, back_to_device, look_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_to_node, back_to_device, look_errors);
}

TEST_F(nth, pin)
{
	ASSERT_EQ(0, back_to_device(self, 0));
	EXPECT_EACH(call_pin, back_to_device, look_errors);
	EXPECT_GT(self->failed, 0);
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
	EXPECT_EACH(call_read, back_to_host, look_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_read_there, back_to_host, look_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_write_there, back_to_host, look_errors);
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
	EXPECT_EACH(call_evict, back_to_device, look_errors);
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

TEST_HARNESS_MAIN
