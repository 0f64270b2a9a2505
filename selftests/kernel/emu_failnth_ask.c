// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Fault injection, of the commands that look, keep account and ask: each of
 * their possible failures in turn.
 */
#include "hetmem_failnth.h"

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

static int call_attr(nth_data *d)
{
	uint64_t value = 1;
	int ret = hm_attr(d->rig.fd, true, d->p, HETMEM_ATTR_NO_THRASH, &value);

	return ret ? ret : hm_attr(d->rig.fd, false, d->p,
				   HETMEM_ATTR_NO_THRASH, &value);
}

static int call_bind(nth_data *d)
{
	struct hetmem_cmd_bind_device cmd = {
		.size = sizeof(cmd),
		.location = HETMEM_LOC(HETMEM_FOREIGN, 1),
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
		.totals = (uintptr_t)totals,
		.nr_totals = ARRAY_SIZE(totals),
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
	EXPECT_EACH(call_attr, NULL, no_errors);
	EXPECT_EACH(call_bind, NULL, no_errors);
	EXPECT_EACH(call_residency, NULL, look_errors);
	EXPECT_GT(self->failed, 0);
	EXPECT_EACH(call_refresh, NULL, look_errors);
	EXPECT_GT(self->failed, 0);
}

/* A refused TRACK has tracked nothing. */
static int untrack_it(nth_data *d, int ret)
{
	if (read_long(STATS "ranges") != !ret)
		return -EBADMSG;
	return ret ? 0 : hm_untrack(d->rig.fd, d->p, d->size);
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

/* A refused UNTRACK has left the range. */
static int track_again(nth_data *d, int ret)
{
	if (read_long(STATS "ranges") != !!ret)
		return -EBADMSG;
	return ret ? 0 : hm_track(d->rig.fd, d->p, d->size);
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
		.eventfd = d->eventfd,
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
			       -1, &self->ring.size));
	EXPECT_EACH(call_mmap, unmap_it, no_errors);
	EXPECT_GT(self->failed, 0);
}

static int call_hint(nth_data *d)
{
	struct hetmem_cmd_hint cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)d->p,
		.end = (uintptr_t)d->p + d->size,
		.location = ANY_HOST,
		.timeout_ms = HETMEM_HINT_TIMEOUT_MAX,
		.reply_fd = d->rig.fd,
	};

	return hm_ioctl(d->rig.fd, HETMEM_IOC_HINT, &cmd);
}

/* Those that were asked are answered: no more than 16 can be under way. */
static int complete_it(nth_data *d, int ret)
{
	struct hetmem_cmd_complete cmd = { .size = sizeof(cmd) };
	struct hetmem_event e;

	while (ring_next(&d->ring, &e)) {
		cmd.id = e.data;
		if (e.type == HETMEM_EVENT_HINT) {
			ret = hm_ioctl(d->rig.fd, HETMEM_IOC_COMPLETE, &cmd);
			if (ret)
				return ret;
		}
	}
	return 0;
}

/* Nobody answers in time; and that is how it ends if nothing fails. */
static int call_hint_wait(nth_data *d)
{
	struct hetmem_cmd_hint cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)d->p,
		.end = (uintptr_t)d->p + d->size,
		.location = ANY_HOST,
		.timeout_ms = 1,
		.reply_fd = -1,
	};
	int ret = hm_ioctl(d->rig.fd, HETMEM_IOC_HINT, &cmd);

	return ret == -ETIMEDOUT ? 0 : ret;
}

static int call_complete(nth_data *d)
{
	struct hetmem_cmd_complete cmd = {
		.size = sizeof(cmd), .id = d->id,
	};

	return hm_ioctl(d->rig.fd, HETMEM_IOC_COMPLETE, &cmd);
}

/* An answer that failed was none: the next one is for the same hint. */
static int ask_again(nth_data *d, int ret)
{
	struct hetmem_event e;

	if (ret)
		return 0;
	ret = call_hint(d);
	while (!ret && ring_next(&d->ring, &e)) {
		if (e.type == HETMEM_EVENT_HINT)
			d->id = e.data;
	}
	return ret;
}

TEST_F(nth, hint)
{
	struct hetmem_cmd_bind_device bind = {
		.size = sizeof(bind),
		.flags = HETMEM_BIND_EXECUTOR,
		.location = HETMEM_LOC(HETMEM_FOREIGN, 1),
	};

	ASSERT_EQ(0, ring_open(self->rig.fd, HETMEM_RING_MIN * 16,
			       EVENT_BIT(HINT) | EVENT_BIT(COMPLETED),
			       &self->ring));
	ASSERT_EQ(0, hm_ioctl(self->rig.fd, HETMEM_IOC_BIND_DEVICE, &bind));
	EXPECT_EACH(call_hint, complete_it, no_errors);
	EXPECT_GT(self->failed, 0);
	ring_drain(&self->ring);
	EXPECT_EACH(call_hint_wait, NULL, no_errors);
	EXPECT_GT(self->failed, 0);
	ring_drain(&self->ring);
	ASSERT_EQ(0, ask_again(self, 0));
	EXPECT_EACH(call_complete, ask_again, no_errors);
	EXPECT_GT(self->failed, 0);
	ring_close(&self->ring);
}

TEST_HARNESS_MAIN
