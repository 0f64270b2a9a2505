// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Parts: host memory for blocks that are spilled, in handles, since only such can be mapped
 * at the address of a block. The driver takes 200 ms to make a GiB, so parts are kept for the
 * next time: as many as were most in use, and a tenth. All with pool->lock, which a part
 * that is made or given back releases.
 */
#include <stdlib.h>

#include "vmm/spill.h"

/* Parts of min_host=, where handle= is not given. */
#define PART_BYTES	((uint64_t)64 << 20)
/* Parts that are kept, of what was most in use at once. */
#define KEEP_SHARE	10
#define MAX_PARTS	(1U << 20)

static int no_memory(void)
{
	return hm_error(-ENOMEM, "spill: no host memory");
}

static struct host_size *size_of_parts(struct hm_spill *sp, uint32_t pages)
{
	struct host_size *more;
	unsigned int i;

	for (i = 0; i < sp->nr_sizes; i++)
		if (sp->sizes[i].pages == pages)
			return &sp->sizes[i];
	more = realloc(sp->sizes, (i + 1) * sizeof(*more));
	if (!more)
		return NULL;
	sp->sizes = more;
	sp->nr_sizes++;
	sp->sizes[i] = (struct host_size){ .pages = pages };
	return &sp->sizes[i];
}

/* The part is not in use any more, and was or is being counted. */
static void part_release(struct pool *p, uint32_t id)
{
	struct hm_spill *sp = spill_of(p);
	struct host_part *part = part_at(sp, id);
	/* The entry of its size is there since the part was made. */
	struct host_size *size = size_of_parts(sp, part->pages);

	part->next = size->first;
	size->first = id;
}

void hm_part_put(struct pool *p, uint32_t id)
{
	struct hm_spill *sp = spill_of(p);

	sp->spilled -= bytes_of(p, part_at(sp, id)->pages);
	part_release(p, id);
	hm_pool_show(p);
}

/* Undoes what there is of @part. After an error the rest is left. Without the lock. */
static int part_unmake(struct pool *p, struct host_part *part)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	const uint64_t bytes = bytes_of(p, part->pages);
	int err = 0;

	if (part->staged)
		err = hm_retry_once(ops->unmap(p->provider, part->addr + bytes, bytes));
	if (err)
		return err;
	part->staged = false;
	if (part->mapped)
		err = hm_retry_once(ops->unmap(p->provider, part->addr, bytes));
	if (err)
		return err;
	part->mapped = false;
	if (part->addr)
		err = hm_retry_once(ops->unreserve(p->provider, part->addr, 2 * bytes));
	if (err)
		return err;
	part->addr = 0;
	return hm_retry_once(ops->release(p->provider, part->handle));
}

/* Without the lock. After an error of the map part_unmake() is left to do: *@made. */
static int part_make(struct pool *p, struct host_part *part, bool *made)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	const uint64_t bytes = bytes_of(p, part->pages);
	uintptr_t addr;
	int err;

	err = ops->create_host(p->provider, bytes, &part->handle);
	*made = !err;
	if (!err)
		err = ops->reserve(p->provider, 2 * bytes, bytes_of(p, 1), &addr);
	if (err)
		return err;
	part->addr = addr;
	err = ops->map(p->provider, addr, bytes, part->handle);
	part->mapped = !err || err == -EUCLEAN;
	return err == -EUCLEAN ? -EIO : err;
}

/* The part @id is of no more use, and what is left of it is @part. With the lock. */
static void part_forget(struct pool *p, uint32_t id, const struct host_part *part, bool gone)
{
	struct hm_spill *sp = spill_of(p);

	*part_at(sp, id) = *part;
	if (!gone) {
		part_at(sp, id)->next = sp->broken;
		sp->broken = id;
		return;
	}
	sp->host_bytes -= bytes_of(p, part->pages);
	part_at(sp, id)->pages = 0;
	hm_table_put(&sp->hosts, id);
}

/* Takes the first part of @size out of its list, which is not empty. */
static uint32_t size_take(const struct hm_spill *sp, struct host_size *size)
{
	const uint32_t id = size->first;

	size->first = part_at(sp, id)->next;
	return id;
}

/*
 * Takes a part that is not in use out of its list: the largest of those that have @most
 * bytes at most. 0: none.
 */
static uint32_t part_spare(struct pool *p, uint64_t most)
{
	struct hm_spill *sp = spill_of(p);
	struct host_size *best = NULL;
	unsigned int i;

	for (i = 0; i < sp->nr_sizes; i++)
		if (sp->sizes[i].first && bytes_of(p, sp->sizes[i].pages) <= most &&
		    (!best || sp->sizes[i].pages > best->pages))
			best = &sp->sizes[i];
	return best ? size_take(sp, best) : 0;
}

/* Gives the part @id back, which is in no list. Releases the lock. */
static bool part_give_back(struct pool *p, uint32_t id)
{
	struct host_part part = *part_at(spill_of(p), id);
	int err;

	p->calls += 3;
	pthread_mutex_unlock(&p->lock);
	err = part_unmake(p, &part);
	pthread_mutex_lock(&p->lock);
	part_forget(p, id, &part, !err);
	return !err;
}

/* Gives back one of @most bytes at most. Releases the lock. */
static bool part_drop(struct pool *p, uint64_t most)
{
	uint32_t id = part_spare(p, most);

	return id && part_give_back(p, id);
}

bool hm_parts_shrink(struct pool *p)
{
	struct hm_spill *sp = spill_of(p);
	const uint32_t id = sp->broken;

	if (id) {
		sp->broken = part_at(sp, id)->next;
		return part_give_back(p, id);
	}
	return sp->host_bytes > p->opt.min_host &&
	       part_drop(p, sp->host_bytes - p->opt.min_host);
}

/* Most bytes of parts when @bytes more are in use: the kept ones are a share of those. */
static uint64_t most_host(const struct pool *p, uint64_t bytes)
{
	const struct hm_spill *sp = spill_of(p);
	uint64_t most = sp->spilled + bytes;

	if (most < sp->spilled_peak)
		most = sp->spilled_peak;
	most += most / KEEP_SHARE;
	if (most < p->opt.min_host)
		most = p->opt.min_host;
	return p->opt.spill && most > p->opt.spill ? p->opt.spill : most;
}

static int too_much_host(const struct pool *p, uint64_t bytes)
{
	return hm_error(-ENOMEM, "spill: %llu bytes more than the %llu on the host are more than spill=%llu",
			(unsigned long long)bytes,
			(unsigned long long)spill_of(p)->spilled,
			(unsigned long long)p->opt.spill);
}

/* Whether the host can spare @bytes. Without the lock. */
static int host_room(const struct pool *p, uint64_t bytes)
{
	const uint64_t usable = hm_host_usable(p->res.hm);

	return bytes <= usable ? 0 :
		hm_error(-ENOMEM, "spill: %llu bytes do not fit on the host: at most %llu (what it has left, less its reserve)",
			 (unsigned long long)bytes, (unsigned long long)usable);
}

/* A new part is counted before it is made: other threads see it. */
static int part_add(struct pool *p, uint32_t pages, uint32_t *id)
{
	struct hm_spill *sp = spill_of(p);
	struct host_part part = { .pages = pages };
	bool made, gone;
	int err;

	*id = size_of_parts(sp, pages) ? hm_table_get(&sp->hosts) : 0;
	if (!*id)
		return no_memory();
	sp->host_bytes += bytes_of(p, pages);
	p->calls += 4;
	pthread_mutex_unlock(&p->lock);
	made = false;
	err = host_room(p, bytes_of(p, pages));
	if (!err)
		err = part_make(p, &part, &made);
	gone = err && (!made || !part_unmake(p, &part));
	pthread_mutex_lock(&p->lock);
	if (err) {
		part_forget(p, *id, &part, gone);
		return err;
	}
	*part_at(sp, *id) = part;
	if (sp->host_bytes > sp->host_peak)
		sp->host_peak = sp->host_bytes;
	return 0;
}

/* A part of @pages for use, counted as such. With the lock, which it may release. */
int hm_part_get(struct pool *p, uint32_t pages, uint32_t *id)
{
	struct hm_spill *sp = spill_of(p);
	const uint64_t bytes = bytes_of(p, pages);
	struct host_size *size = size_of_parts(sp, pages);
	int err = 0;

	if (p->opt.spill && sp->spilled + bytes > p->opt.spill)
		return too_much_host(p, bytes);
	if (size && size->first) {
		*id = size_take(sp, size);
	} else {
		/* Of other sizes: they would be kept for nothing. */
		while (sp->host_bytes + bytes > most_host(p, bytes) && part_drop(p, UINT64_MAX))
			;
		err = part_add(p, pages, id);
	}
	if (err)
		return err;
	sp->spilled += bytes;
	if (sp->spilled > sp->spilled_peak)
		sp->spilled_peak = sp->spilled;
	return 0;
}

/* min_host=, in parts of handle= or PART_BYTES. */
static int make_min_host(struct pool *p)
{
	const uint64_t part = p->opt.handle ? p->opt.handle : PART_BYTES;
	const uint32_t pages = part >> vmm_of(p)->shift;
	struct hm_spill *sp = spill_of(p);
	int err = p->opt.min_host ? host_room(p, p->opt.min_host) : 0;
	uint32_t id;

	pthread_mutex_lock(&p->lock);
	while (!err && sp->host_bytes < p->opt.min_host) {
		err = part_add(p, pages ? pages : 1, &id);
		if (!err)
			part_release(p, id);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

int hm_parts_init(struct pool *p)
{
	struct hm_spill *sp = spill_of(p);
	int err = hm_table_init(&sp->hosts, sizeof(struct host_part),
				offsetof(struct host_part, next), MAX_PARTS);

	return err ? err : make_min_host(p);
}

void hm_parts_free(struct pool *p, bool forget)
{
	struct hm_spill *sp = spill_of(p);
	uint32_t id;

	for (id = 1; id < sp->hosts.nr && !forget && sp->hosts.base; id++)
		if (part_at(sp, id)->pages)
			part_unmake(p, part_at(sp, id));
	hm_table_free(&sp->hosts);
	free(sp->sizes);
}
