// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pins of hetmem_pin_comm(): an array of ranges, the newest last. Searched from the end, since
 * the last one that was pinned is the first to be unpinned, or pinned again.
 */
#include <stdlib.h>

#include "pool/pins.h"
#include "pool/source.h"

int hm_pool_pin(struct pool *p, const struct hm_ctl_stream *arg, bool on)
{
	if (!p->source->pin || !(p->provider->caps & HM_PROVIDER_DEVICE))
		return hm_error(-EOPNOTSUPP, "pin_comm: %s is no memory of a device: a transport registers it as it is",
				p->provider->ops->name);
	return p->source->pin(p, arg->ptr, on);
}

struct block *hm_pin_block(struct pool *p, const char *what, const void *ptr, int *err)
{
	struct block *b = hm_pool_find_around(p, (uintptr_t)ptr);

	*err = 0;
	if (!b)
		*err = hm_error(-EINVAL, "%s: %p is in no live block", what, ptr);
	else if (p->asleep)
		*err = hm_pool_asleep();
	return *err ? NULL : b;
}

int hm_pins_reserve(struct pool *p)
{
	const unsigned int room = p->room_pins ? 2 * p->room_pins : 16;
	struct hm_pin *more;

	if (p->nr_pins < p->room_pins)
		return 0;
	if (p->nr_pins == HM_MOST_PINS)
		return hm_error(-ENOSPC, "pin_comm: %u ranges are pinned: hetmem_unpin_comm()",
				HM_MOST_PINS);
	more = realloc(p->pins, room * sizeof(*more));
	if (!more)
		return hm_error(-ENOMEM, "pin_comm: no host memory");
	p->pins = more;
	p->room_pins = room;
	return 0;
}

bool hm_pins_add(struct pool *p, const struct block *b)
{
	unsigned int i = p->nr_pins;

	while (i--) {
		if (p->pins[i].addr == b->addr && p->pins[i].bytes == block_bytes(b)) {
			p->pins[i].count++;
			return false;
		}
	}
	p->pins[p->nr_pins++] = (struct hm_pin){ b->addr, block_bytes(b), 1 };
	return true;
}

static struct hm_pin *last_of(const struct pool *p, const struct block *b)
{
	unsigned int i = p->nr_pins;

	while (i--)
		if (p->pins[i].addr == b->addr)
			return &p->pins[i];
	return NULL;
}

bool hm_pins_has(const struct pool *p, const struct block *b)
{
	return last_of(p, b);
}

int hm_pins_remove(struct pool *p, const struct block *b, struct hm_pin *gone)
{
	struct hm_pin *pin = last_of(p, b);

	if (!pin)
		return hm_error(-EINVAL, "unpin_comm: %p is not pinned",
				(void *)(uintptr_t)b->addr);
	pin->count--;
	*gone = *pin;
	if (!pin->count)
		*pin = p->pins[--p->nr_pins];
	return 0;
}
