// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The provider of vmm(stripe=): memory of several devices in turn. It has one vmm provider for
 * each device, and every one of these maps for all devices. A handle of it is a row of their
 * handles, of one unit each, mapped one after the other. The dealing goes on from handle to
 * handle, so that the devices hold the same number of units, more or less one.
 *
 * A page of it is a power of two of units, at least one for each device. So with a power of
 * two of devices each page has one order of devices.
 *
 * A row is unmapped by one call of the driver: either all of it is, or nothing. Where a row was
 * mapped in part and was not unmapped, vmm_stripe.halves has it. Where a row was released in
 * part, vmm_stripe.stuck has it: the next release and the end try again.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "provider/vmm.h"

/* 1 GiB, as for the unit of a pool. */
#define UNIT_MOST	((size_t)1 << 30)

/**
 * struct row - a handle
 * @next: in the list of stuck ones; @next_half: in that of halves
 * @half, @half_bytes: where it is mapped in part, and how much
 * @first: index of the provider of its first unit
 * @nr: units that have memory, from the first on; @units: handles
 */
struct row {
	struct row *next, *next_half;
	uintptr_t half;
	size_t half_bytes;
	unsigned int first;
	size_t nr;
	uint64_t units[];
};

/**
 * struct stripe
 * @nr: providers, @of, in the order of their devices
 * @lock: of all that follows; no other lock is taken under it
 * @next: whose turn it is
 */
struct stripe {
	struct hm_provider p;
	size_t unit;
	unsigned int nr;
	struct hm_provider *of[HM_MAX_DEVICES];
	pthread_mutex_t lock;
	unsigned int next;
	struct row *stuck, *halves;
};

static struct stripe *to_stripe(struct hm_provider *p)
{
	return (struct stripe *)p;
}

static struct row *to_row(uint64_t handle)
{
	return (struct row *)(uintptr_t)handle;
}

static struct hm_provider *provider_of(const struct stripe *s, const struct row *r, size_t i)
{
	return s->of[(r->first + i) % s->nr];
}

/* Releases the units of @r from the last one on, down to @left. */
static int release_units(const struct stripe *s, struct row *r, size_t left)
{
	int err = 0;

	while (!err && r->nr > left) {
		struct hm_provider *p = provider_of(s, r, r->nr - 1);

		err = hm_retry_once(p->ops->release(p, r->units[r->nr - 1]));
		r->nr -= !err;
	}
	return err;
}

/* With the lock. */
static void retry_stuck(struct stripe *s)
{
	struct row **link = &s->stuck, *r;

	while ((r = *link)) {
		if (release_units(s, r, 0)) {
			link = &r->next;
			continue;
		}
		*link = r->next;
		free(r);
	}
}

/* With the lock. The addresses of @r are no concern any more. */
static void forget_half(struct stripe *s, struct row *r)
{
	struct row **link;

	for (link = &s->halves; *link && *link != r; link = &(*link)->next_half)
		;
	if (*link)
		*link = r->next_half;
	r->half = 0;
}

/* A row that is used no more. It is freed, or listed until the driver has released it. */
static void end_row(struct stripe *s, struct row *r)
{
	pthread_mutex_lock(&s->lock);
	forget_half(s, r);
	r->next = s->stuck;
	s->stuck = r;
	retry_stuck(s);
	pthread_mutex_unlock(&s->lock);
}

static int stripe_create(struct hm_provider *self, size_t size, bool rdma, uint64_t *handle)
{
	struct stripe *s = to_stripe(self);
	const size_t nr = size / s->unit;
	struct row *r = calloc(1, sizeof(*r) + nr * sizeof(r->units[0]));
	int err = 0;

	if (!r)
		return hm_error(-ENOMEM, "vmm: no host memory");
	pthread_mutex_lock(&s->lock);
	r->first = s->next;
	pthread_mutex_unlock(&s->lock);
	while (!err && r->nr < nr) {
		struct hm_provider *p = provider_of(s, r, r->nr);

		err = p->ops->create(p, s->unit, rdma, &r->units[r->nr]);
		r->nr += !err;
	}
	if (err) {
		end_row(s, r);
		return err;
	}
	pthread_mutex_lock(&s->lock);
	s->next = (r->first + nr) % s->nr;
	pthread_mutex_unlock(&s->lock);
	*handle = (uintptr_t)r;
	return 0;
}

/* If the driver keeps the last unit, nothing has changed. */
static int stripe_release(struct hm_provider *self, uint64_t handle)
{
	struct stripe *s = to_stripe(self);
	struct row *r = to_row(handle);
	int err = release_units(s, r, r->nr - 1);

	if (!err)
		end_row(s, r);
	return err;
}

/* Unmaps the first @bytes of @r at @addr, or notes that they are mapped. -EUCLEAN: it does. */
static int undo(struct stripe *s, struct row *r, uintptr_t addr, size_t bytes)
{
	if (!bytes || !hm_retry_once(s->of[0]->ops->unmap(s->of[0], addr, bytes)))
		return 0;
	pthread_mutex_lock(&s->lock);
	r->half = addr;
	r->half_bytes = bytes;
	r->next_half = s->halves;
	s->halves = r;
	pthread_mutex_unlock(&s->lock);
	return -EUCLEAN;
}

static int map_row(struct stripe *s, uintptr_t addr, struct row *r, bool read)
{
	int err = 0;
	size_t i;

	if (r->half)
		return hm_error(-EIO, "vmm: memory that was mapped in part could not be unmapped");
	for (i = 0; !err && i < r->nr; i++) {
		struct hm_provider *p = provider_of(s, r, i);

		err = (read ? p->ops->map_read : p->ops->map)(p, addr + i * s->unit, s->unit,
							      r->units[i]);
	}
	if (!err)
		return 0;
	return undo(s, r, addr, (err == -EUCLEAN ? i : i - 1) * s->unit) ? -EUCLEAN :
		err == -EUCLEAN ? -EIO : err;
}

static int stripe_map(struct hm_provider *self, uintptr_t addr, size_t size, uint64_t handle)
{
	(void)size;
	return map_row(to_stripe(self), addr, to_row(handle), false);
}

static int stripe_map_read(struct hm_provider *self, uintptr_t addr, size_t size, uint64_t handle)
{
	(void)size;
	return map_row(to_stripe(self), addr, to_row(handle), true);
}

static int stripe_unmap(struct hm_provider *self, uintptr_t addr, size_t size)
{
	struct stripe *s = to_stripe(self);
	struct row *half;
	int err;

	pthread_mutex_lock(&s->lock);
	for (half = s->halves; half && half->half != addr; half = half->next_half)
		;
	err = s->of[0]->ops->unmap(s->of[0], addr, half ? half->half_bytes : size);
	if (half && !err)
		forget_half(s, half);
	pthread_mutex_unlock(&s->lock);
	return err;
}

static int stripe_reserve(struct hm_provider *self, size_t size, size_t align, uintptr_t *addr)
{
	struct hm_provider *p = to_stripe(self)->of[0];

	return p->ops->reserve(p, size, align, addr);
}

static int stripe_unreserve(struct hm_provider *self, uintptr_t addr, size_t size)
{
	struct hm_provider *p = to_stripe(self)->of[0];

	return p->ops->unreserve(p, addr, size);
}

static int stripe_device(struct hm_provider *self, uint64_t handle, size_t offset, size_t *length)
{
	const struct stripe *s = to_stripe(self);

	*length = s->unit - offset % s->unit;
	return provider_of(s, to_row(handle), offset / s->unit)->device;
}

static void stripe_destroy(struct hm_provider *self)
{
	struct stripe *s = to_stripe(self);
	const bool there = !hm_check_owner(self->hm);
	struct row *r;

	if (there)
		retry_stuck(s);
	while ((r = s->stuck)) {
		s->stuck = r->next;
		free(r);
	}
	while (s->nr) {
		s->nr--;
		s->of[s->nr]->ops->destroy(s->of[s->nr]);
	}
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static const struct hm_provider_ops stripe_ops = {
	.name = "vmm(stripe=)",
	.reserve = stripe_reserve,
	.unreserve = stripe_unreserve,
	.create = stripe_create,
	.release = stripe_release,
	.map = stripe_map,
	.map_read = stripe_map_read,
	.unmap = stripe_unmap,
	.device = stripe_device,
	.destroy = stripe_destroy,
};

static int add_device(struct stripe *s, int device, uint64_t access)
{
	const struct hm_vmm_options options = { .peers = access };
	struct hm_provider *p;
	int err = hm_vmm_provider(s->p.hm, device, &options, &p);
	char why[256];

	if (err == -EOPNOTSUPP) {
		snprintf(why, sizeof(why), "%s", hetmem_last_error());
		return hm_error(err, "vmm: stripe=: not all devices can use memory of device %d: %s",
				device, why);
	}
	if (err)
		return err;
	s->of[s->nr++] = p;
	s->p.devices = p->devices;
	if (p->granularity > s->p.granularity)
		s->p.granularity = p->granularity;
	if (s->nr == 1 || p->total < s->p.total)
		s->p.total = p->total;
	return 0;
}

/* 0, or why the unit makes no sense. @s->p.granularity is the largest one of the devices. */
static int set_unit(struct stripe *s, size_t unit)
{
	const size_t least = s->p.granularity;
	size_t units = 1;

	s->unit = unit ? unit : least;
	if (s->unit % least || s->unit > UNIT_MOST)
		return hm_error(-EINVAL, "vmm: unit= is a power of two, %zu to 1G", least);
	while (units < s->nr)
		units *= 2;
	s->p.granularity = units * s->unit;
	s->p.total = s->p.total / s->unit * s->unit * s->nr;
	return 0;
}

int hm_stripe_provider(struct hetmem *hm, int device, const struct hm_stripe_options *options,
		       struct hm_provider **out)
{
	struct stripe *s;
	int err = 0, i;

	if (!(options->devices >> device & 1) || !(options->devices & (options->devices - 1)))
		return hm_error(-EINVAL, "vmm: stripe= has two devices or more, and device= is one of them");
	err = hm_provider_check(hm, device);
	if (err)
		return err;
	s = hm_provider_new(hm, device, &stripe_ops, HM_PROVIDER_MAPPABLE | HM_PROVIDER_DEVICE,
			    sizeof(*s));
	if (!s)
		return -ENOMEM;
	pthread_mutex_init(&s->lock, NULL);
	for (i = 0; !err && i < HM_MAX_DEVICES; i++)
		if (options->devices >> i & 1)
			err = add_device(s, i, options->devices | options->peers);
	if (!err)
		err = set_unit(s, options->unit);
	if (err) {
		stripe_destroy(&s->p);
		return err;
	}
	*out = &s->p;
	return 0;
}
