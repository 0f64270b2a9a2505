// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Replicas: copies of a block on other devices, for memory that is read mostly. A replica has a
 * reservation and a handle of its own. The block's memory is pinned as long as it has replicas:
 * see HM_MOVE_PIN. hetmem_free() finds replicas as it finds aliases: see core/alias.h.
 *
 * Copies from one device to another go by a route: one stream, of the device that has the block.
 * A refresh gives each route its copy, and orders the caller's stream after all of them. A freed
 * replica waits in a list until its last copy and its last use are complete.
 *
 * hm->lock protects all lists. The driver is never called with it: a call that works on the
 * replicas of a block takes the block, and another call of the same block is refused meanwhile.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/move.h"
#include "driver/check.h"
#include "place/place.h"
#include "provider/vmm.h"

/**
 * struct route - from one device to another, until hetmem_close()
 * @memory: of @to; device @from can write it if it reaches it
 * @stream: of @from
 */
struct route {
	struct route *next;
	int from, to;
	struct hm_provider *memory;
	CUstream stream;
};

/**
 * struct replica - @alias.size bytes of the block
 * @next: of its block
 * @pin: of the block's memory
 * @base, @bytes: the reservation, 0: none; @has_handle, @mapped: what else there is
 * @copied: after the last copy; @freed: after the last use, NULL: that is complete
 */
struct replica {
	struct hm_alias alias;
	struct replica *next;
	struct hm_replicated *block;
	const struct route *route;
	struct hm_alias *pin;
	uintptr_t base;
	size_t bytes;
	uint64_t handle;
	bool has_handle, mapped;
	CUevent copied, freed;
};

/**
 * struct hm_replicated - a block with replicas
 * @replicas: live ones; @ended: freed ones
 * @nr: both, and those that hm_replicas_poll() looks at
 * @taken: a call works on the live ones; @gone: the block is freed, or about to be
 */
struct hm_replicated {
	struct hm_replicated *next;
	struct hetmem_resource *res;
	const void *ptr;
	struct replica *replicas, *ended;
	unsigned int nr;
	bool taken, gone;
};

/* @blocks: a list, as are @routes. Nothing is taken from @routes before the end. */
struct hm_replicas {
	struct hm_replicated *blocks;
	struct route *routes;
};

static void destroy_event(struct hetmem *hm, CUevent event)
{
	if (event)
		(void)hm_retry_once(hm->driver.cuEventDestroy(event));
}

/* @event: after all work on @stream; NULL for the host, whose work is complete. */
static int mark(struct hetmem *hm, const char *what, int device, hetmem_stream stream,
		CUevent *event)
{
	const struct hm_driver *d = &hm->driver;
	struct hm_context saved;
	CUcontext ctx, before;
	CUresult res;
	int err;

	*event = NULL;
	if (stream == HETMEM_STREAM_HOST)
		return 0;
	err = hm_context_default(hm, device, &saved);
	if (err)
		return err;
	hm_context_relax(hm, &saved);
	err = hm_capture_ask(hm, stream);
	if (err > 0)
		err = hm_error(-EBUSY, "%s: the stream is being captured", what);
	if (err)
		goto leave;
	res = d->cuStreamGetCtx ? d->cuStreamGetCtx(stream, &ctx) : d->cuCtxGetCurrent(&ctx);
	if (!res)
		res = hm_current_enter(d, ctx, &before);
	if (res) {
		err = hm_error(-EINVAL, "%s: stream %p is none: %s", what, stream,
			       hm_cuda_name(d, res));
		goto leave;
	}
	res = d->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
	if (res) {
		*event = NULL;
		err = hm_driver_error(d, "cuEventCreate", res);
	} else {
		res = d->cuEventRecord(*event, stream);
		err = res ? hm_driver_error(d, "cuEventRecord", res) : 0;
	}
	hm_current_leave(d, ctx, before);
leave:
	hm_context_leave(hm, &saved);
	if (err) {
		destroy_event(hm, *event);
		*event = NULL;
	}
	return err;
}

/* Routes. */

static struct route *find_route(struct hetmem *hm, int from, int to)
{
	struct route *r;

	for (r = hm->replicas->routes; r && (r->from != from || r->to != to); r = r->next)
		;
	return r;
}

static void free_route(struct hetmem *hm, struct route *r, bool forget)
{
	if (r->stream && !forget)
		hm->driver.cuStreamDestroy(r->stream);
	if (r->memory)
		r->memory->ops->destroy(r->memory);
	free(r);
}

/* Without access for @r->from the driver still copies, by a way of its own. */
static int open_route(struct hetmem *hm, struct route *r)
{
	const struct hm_vmm_options options = { .peers = 1ULL << r->from };
	struct hm_context saved;
	CUresult res;
	int err;

	err = hm_vmm_provider(hm, r->to, &options, &r->memory);
	if (err == -EOPNOTSUPP)
		err = hm_vmm_provider(hm, r->to, NULL, &r->memory);
	if (!err)
		err = hm_context_enter(hm, r->from, &saved);
	if (err)
		return err;
	hm_context_relax(hm, &saved);
	res = hm->driver.cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING);
	hm_context_leave(hm, &saved);
	if (res) {
		r->stream = NULL;
		return hm_driver_error(&hm->driver, "cuStreamCreate", res);
	}
	/* What a shrink took out of a block is copied with the rest. */
	hm_check_parks(hm, r->stream, true);
	return 0;
}

static int get_route(struct hetmem *hm, int from, int to, const struct route **out)
{
	struct route *r, *other;
	int err;

	pthread_mutex_lock(&hm->lock);
	*out = find_route(hm, from, to);
	pthread_mutex_unlock(&hm->lock);
	if (*out)
		return 0;
	r = calloc(1, sizeof(*r));
	if (!r)
		return hm_error(-ENOMEM, "no host memory");
	r->from = from;
	r->to = to;
	err = open_route(hm, r);
	if (err) {
		free_route(hm, r, false);
		return err;
	}
	pthread_mutex_lock(&hm->lock);
	other = find_route(hm, from, to);
	if (!other) {
		r->next = hm->replicas->routes;
		hm->replicas->routes = r;
	}
	pthread_mutex_unlock(&hm->lock);
	if (other)
		free_route(hm, r, false);
	*out = other ? other : r;
	return 0;
}

/* The memory of a replica. */

/* Undoes as much of make_memory() as the driver lets it. Returns whether nothing is left. */
static bool free_memory(struct hetmem *hm, struct replica *r)
{
	struct hm_provider *m = r->route ? r->route->memory : NULL;

	if (r->mapped && m->ops->unmap(m, r->base, r->bytes))
		return false;
	r->mapped = false;
	if (r->base && m->ops->unreserve(m, r->base, r->bytes))
		return false;
	r->base = 0;
	if (r->has_handle && m->ops->release(m, r->handle))
		return false;
	r->has_handle = false;
	destroy_event(hm, r->copied);
	destroy_event(hm, r->freed);
	r->copied = r->freed = NULL;
	if (r->pin && r->pin->free(r->pin, HETMEM_STREAM_HOST))
		return false;
	r->pin = NULL;
	return true;
}

static int make_memory(struct hetmem *hm, struct replica *r)
{
	struct hm_provider *m = r->route->memory;
	struct hm_context saved;
	CUresult res;
	int err;

	r->bytes = (r->alias.size + m->granularity - 1) / m->granularity * m->granularity;
	err = m->ops->reserve(m, r->bytes, m->granularity, &r->base);
	if (err) {
		r->base = 0;
		return err;
	}
	err = m->ops->create(m, r->bytes, false, &r->handle);
	r->has_handle = !err;
	if (!err)
		err = m->ops->map(m, r->base, r->bytes, r->handle);
	r->mapped = r->has_handle && (!err || err == -EUCLEAN);
	if (!err)
		err = hm_context_enter(hm, r->route->from, &saved);
	if (err)
		return err == -EUCLEAN ? -EIO : err;
	hm_context_relax(hm, &saved);
	res = hm->driver.cuEventCreate(&r->copied, CU_EVENT_DISABLE_TIMING);
	hm_context_leave(hm, &saved);
	if (!res)
		return 0;
	r->copied = NULL;
	return hm_driver_error(&hm->driver, "cuEventCreate", res);
}

static bool is_complete(struct hetmem *hm, const struct replica *r)
{
	const struct hm_driver *d = &hm->driver;

	return (!r->copied || !d->cuEventQuery(r->copied)) &&
	       (!r->freed || !d->cuEventQuery(r->freed));
}

/* Blocks. */

/* A forked child has no replicas, nor has a resource that was destroyed and kept its struct. */
static bool has_replicas(const struct hetmem_resource *res)
{
	return res->hm && res->hm->generation == hm_generation();
}

/* With hm->lock. */
static struct hm_replicated *find_block(const struct hetmem_resource *res, const void *ptr)
{
	struct hm_replicated *b = res->hm->replicas ? res->hm->replicas->blocks : NULL;

	for (; b; b = b->next)
		if (b->res == res && b->ptr == ptr && !b->gone)
			break;
	return b;
}

/* *@block is the caller's until give(); NULL: @ptr has no replicas. -EBUSY. */
static int take(const struct hetmem_resource *res, const void *ptr, const char *what,
		struct hm_replicated **block)
{
	bool taken = false;

	pthread_mutex_lock(&res->hm->lock);
	*block = find_block(res, ptr);
	if (*block) {
		taken = (*block)->taken;
		(*block)->taken = true;
	}
	pthread_mutex_unlock(&res->hm->lock);
	return taken ? hm_error(-EBUSY, "%s: another thread works on replicas of %p", what, ptr) : 0;
}

static void give(struct hetmem *hm, struct hm_replicated *b)
{
	pthread_mutex_lock(&hm->lock);
	b->taken = false;
	pthread_mutex_unlock(&hm->lock);
}

/* With hm->lock: forgets blocks without replicas, and puts them on *@list. */
static void sweep(struct hetmem *hm, struct hm_replicated **list)
{
	struct hm_replicated **link = &hm->replicas->blocks, *b;

	while ((b = *link)) {
		if (b->nr || b->taken) {
			link = &b->next;
			continue;
		}
		*link = b->next;
		b->next = *list;
		*list = b;
	}
}

static void free_blocks(struct hm_replicated *list)
{
	struct hm_replicated *b;

	while ((b = list)) {
		list = b->next;
		free(b);
		hm_watch_replicas(NULL, -1);
	}
}

/* Frees replicas that ended and whose last copy and use are complete. */
static void poll_replicas(struct hetmem_resource *res)
{
	struct hetmem *hm = res->hm;
	struct hm_replicated *b, *swept = NULL;
	struct replica *list = NULL, *kept = NULL, *r;

	if (!has_replicas(res))
		return;
	pthread_mutex_lock(&hm->lock);
	for (b = hm->replicas ? hm->replicas->blocks : NULL; b; b = b->next)
		while (b->res == res && (r = b->ended)) {
			b->ended = r->next;
			r->next = list;
			list = r;
		}
	pthread_mutex_unlock(&hm->lock);
	while ((r = list)) {
		list = r->next;
		r->next = kept;
		kept = r;
		if (!is_complete(hm, r) || !free_memory(hm, r))
			continue;
		kept = r->next;
		hm_alias_remove(&r->alias);
		pthread_mutex_lock(&hm->lock);
		r->block->nr--;
		pthread_mutex_unlock(&hm->lock);
		free(r);
	}
	pthread_mutex_lock(&hm->lock);
	while ((r = kept)) {
		kept = r->next;
		r->next = r->block->ended;
		r->block->ended = r;
	}
	if (hm->replicas)
		sweep(hm, &swept);
	pthread_mutex_unlock(&hm->lock);
	free_blocks(swept);
}

/* Ends @r of a block that the caller took: then polling frees it. */
static void end_replica(struct hetmem *hm, struct replica *r)
{
	struct replica **link;

	pthread_mutex_lock(&hm->lock);
	for (link = &r->block->replicas; *link && *link != r; link = &(*link)->next)
		;
	if (*link)
		*link = r->next;
	r->next = r->block->ended;
	r->block->ended = r;
	pthread_mutex_unlock(&hm->lock);
}

static int free_replica(struct hm_alias *alias, hetmem_stream stream)
{
	struct replica *r = hm_container(alias, struct replica, alias);
	struct hm_replicated *b = r->block;
	struct hetmem *hm = alias->res->hm;
	bool taken;
	int err;

	if (stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "free: give the stream of the last use of a replica");
	pthread_mutex_lock(&hm->lock);
	taken = b->taken;
	b->taken = true;
	pthread_mutex_unlock(&hm->lock);
	if (taken)
		return hm_error(-EBUSY, "free: another thread works on replicas of %p", b->ptr);
	err = mark(hm, "free", r->route->from, stream, &r->freed);
	if (!err)
		end_replica(hm, r);
	give(hm, b);
	poll_replicas(alias->res);
	return err;
}

/* What hetmem_free() and others ask. */

static void put_back(struct hetmem *hm, struct hm_replicated *b)
{
	struct replica *r;

	for (r = b->replicas; r; r = r->next) {
		destroy_event(hm, r->freed);
		r->freed = NULL;
		hm_alias_add(&r->alias);
	}
	pthread_mutex_lock(&hm->lock);
	b->gone = b->taken = false;
	pthread_mutex_unlock(&hm->lock);
}

static int free_begins(struct hetmem_resource *res, const void *ptr, hetmem_stream stream,
		       struct hm_replicated **block)
{
	struct replica *r;
	int err;

	*block = NULL;
	if (!has_replicas(res))
		return 0;
	err = take(res, ptr, "free", block);
	if (err || !*block)
		return err;
	if (!(*block)->replicas) {
		give(res->hm, *block);
		*block = NULL;
		return 0;
	}
	if (stream == HETMEM_STREAM_UNKNOWN)
		err = hm_error(-EINVAL, "free: the block has replicas: give the stream of their last use");
	pthread_mutex_lock(&res->hm->lock);
	(*block)->gone = true;
	pthread_mutex_unlock(&res->hm->lock);
	for (r = (*block)->replicas; r; r = r->next)
		hm_alias_remove(&r->alias);
	for (r = (*block)->replicas; r && !err; r = r->next)
		err = mark(res->hm, "free", r->route->from, stream, &r->freed);
	if (err) {
		put_back(res->hm, *block);
		*block = NULL;
	}
	return err;
}

static void free_ends(struct hetmem_resource *res, struct hm_replicated *block, int err)
{
	if (err) {
		put_back(res->hm, block);
		return;
	}
	while (block->replicas)
		end_replica(res->hm, block->replicas);
	give(res->hm, block);
	poll_replicas(res);
}

static bool reach(struct hetmem_resource *res, const void *ptr, size_t from)
{
	const struct hm_replicated *b;
	const struct replica *r = NULL;

	if (!has_replicas(res))
		return false;
	pthread_mutex_lock(&res->hm->lock);
	b = find_block(res, ptr);
	if (b)
		for (r = b->replicas; r && r->alias.size <= from; r = r->next)
			;
	pthread_mutex_unlock(&res->hm->lock);
	return r;
}

static uint64_t bytes_of(const struct replica *r)
{
	uint64_t bytes = 0;

	for (; r; r = r->next)
		bytes += r->bytes;
	return bytes;
}

static uint64_t replica_bytes(struct hetmem_resource *res)
{
	const struct hm_replicated *b;
	uint64_t bytes = 0;

	if (!has_replicas(res))
		return 0;
	pthread_mutex_lock(&res->hm->lock);
	for (b = res->hm->replicas ? res->hm->replicas->blocks : NULL; b; b = b->next)
		if (b->res == res)
			bytes += bytes_of(b->replicas) + bytes_of(b->ended);
	pthread_mutex_unlock(&res->hm->lock);
	return bytes;
}

static void synchronize(struct hetmem *hm, int device)
{
	struct hm_context saved;

	if (hm_context_enter(hm, device, &saved))
		return;
	hm->driver.cuCtxSynchronize();
	hm_context_leave(hm, &saved);
}

/* Waits for all work on the replicas of @list. What the driver refuses to free twice is lost. */
static void finish(struct hetmem *hm, struct replica *list, bool forget)
{
	struct replica *r;

	while ((r = list)) {
		list = r->next;
		hm_alias_remove(&r->alias);
		if (!forget && r->route) {
			synchronize(hm, r->route->to);
			synchronize(hm, r->route->from);
		}
		if (!forget && !free_memory(hm, r))
			free_memory(hm, r);
		free(r);
	}
}

/* Ends all replicas of @res; NULL: of all resources. */
static void end_all(struct hetmem *hm, const struct hetmem_resource *res)
{
	struct hm_replicated **link, *b, *list = NULL, *each;
	const bool forget = hm->generation != hm_generation();

	pthread_mutex_lock(&hm->lock);
	link = hm->replicas ? &hm->replicas->blocks : &list;
	while ((b = *link)) {
		if (res && b->res != res) {
			link = &b->next;
			continue;
		}
		*link = b->next;
		b->next = list;
		list = b;
	}
	pthread_mutex_unlock(&hm->lock);
	for (each = list; each; each = each->next) {
		finish(hm, each->replicas, forget);
		finish(hm, each->ended, forget);
	}
	free_blocks(list);
}

static void resource_ends(struct hetmem_resource *res)
{
	end_all(res->hm, res);
}

void hm_replicas_close(struct hetmem *hm)
{
	struct route *r;

	if (!hm->replicas)
		return;
	end_all(hm, NULL);
	while ((r = hm->replicas->routes)) {
		hm->replicas->routes = r->next;
		free_route(hm, r, hm->generation != hm_generation());
	}
	free(hm->replicas);
	hm->replicas = NULL;
}

static const struct hm_replica_ops replica_ops = {
	.free_begins = free_begins,
	.free_ends = free_ends,
	.reach = reach,
	.bytes = replica_bytes,
	.poll = poll_replicas,
	.end = resource_ends,
};

/* The calls. */

static int check(struct hetmem_resource *res, const void *ptr, const char *what)
{
	const char *kind;
	int err;

	if (!res || !ptr)
		return hm_error(-EINVAL, "%s: %s is NULL", what, res ? "ptr" : "res");
	if (!res->hm)
		return hm_error(-EINVAL, "%s: the resource was destroyed before", what);
	err = hm_check_owner(res->hm);
	if (err)
		return err;
	kind = hm_alias_kind(ptr);
	return kind ? hm_error(-EINVAL, "%s: %p is in %s: give the address of its block", what, ptr,
			       kind) : 0;
}

/* As take(), and makes what is not there. */
static int take_new(struct hetmem_resource *res, const void *ptr, struct hm_replicated **block)
{
	struct hm_replicas *all = calloc(1, sizeof(*all));
	struct hm_replicated *made = calloc(1, sizeof(*made));
	struct hetmem *hm = res->hm;
	int err = 0;

	if (!all || !made) {
		err = hm_error(-ENOMEM, "replicate: no host memory");
		goto out;
	}
	*made = (struct hm_replicated){ .res = res, .ptr = ptr, .taken = true };
	pthread_mutex_lock(&hm->lock);
	if (!hm->replicas) {
		hm->replicas = all;
		all = NULL;
	}
	*block = find_block(res, ptr);
	if (!*block) {
		*block = made;
		made->next = hm->replicas->blocks;
		hm->replicas->blocks = made;
	} else if ((*block)->taken) {
		err = -EBUSY;
	}
	(*block)->taken = true;
	pthread_mutex_unlock(&hm->lock);
	if (err)
		hm_error(err, "replicate: another thread works on replicas of %p", ptr);
	if (*block == made) {
		hm_watch_replicas(&replica_ops, 1);
		made = NULL;
	}
out:
	free(all);
	free(made);
	return err;
}

/* A replica of @b on @device, which ends where this fails. */
static int make_replica(struct hm_replicated *b, int device, struct replica *r)
{
	struct hm_ctl_move pin = {
		.ptr = (void *)b->ptr, .move = HM_MOVE_PIN, .device = device,
	};
	const struct replica *other;
	char why[256];
	int err;

	err = hm_resource_ctl(b->res, "replicate", HM_CTL_MOVE, &pin);
	if (err)
		return err;
	r->pin = pin.alias;
	r->alias.size = pin.size;
	for (other = b->replicas; other; other = other->next)
		if (other->route->to == device)
			return hm_error(-EEXIST, "replicate: %p has a replica on device %d", b->ptr,
					device);
	err = get_route(b->res->hm, pin.device, device, &r->route);
	if (!err)
		err = make_memory(b->res->hm, r);
	if (!err)
		return 0;
	snprintf(why, sizeof(why), "%s", hetmem_last_error());
	return hm_error(err, "replicate: %zu bytes on device %d: %s", r->alias.size, device, why);
}

int hetmem_replicate(struct hetmem_resource *res, void *ptr, int device, void **replica)
{
	struct hm_replicated *b = NULL;
	struct replica *r;
	int err = check(res, ptr, "replicate");

	if (!err && !replica)
		err = hm_error(-EINVAL, "replicate: replica is NULL");
	if (!err && (device < 0 || device >= res->hm->nr_devices))
		err = hm_no_device(res->hm, "replicate", device);
	if (err)
		return err;
	poll_replicas(res);
	r = calloc(1, sizeof(*r));
	if (!r)
		return hm_error(-ENOMEM, "replicate: no host memory");
	err = take_new(res, ptr, &b);
	if (err) {
		free(r);
		return err;
	}
	r->block = b;
	r->alias.res = res;
	r->alias.kind = "a replica";
	r->alias.free = free_replica;
	err = make_replica(b, device, r);
	r->alias.addr = r->base;
	pthread_mutex_lock(&res->hm->lock);
	b->nr++;
	r->next = err ? b->ended : b->replicas;
	*(err ? &b->ended : &b->replicas) = r;
	pthread_mutex_unlock(&res->hm->lock);
	if (!err) {
		*replica = (void *)r->base;
		hm_alias_add(&r->alias);
	}
	give(res->hm, b);
	if (err)
		poll_replicas(res);
	return err;
}

/* Gives the stream of @r a copy, which begins after @ready. After an error there is none. */
static int begin_copy(struct hetmem *hm, const struct replica *r, CUevent ready)
{
	const struct hm_driver *d = &hm->driver;
	const CUstream s = r->route->stream;
	CUresult res;

	res = d->cuStreamWaitEvent(s, ready, 0);
	if (res)
		return hm_driver_error(d, "cuStreamWaitEvent", res);
	res = d->cuMemcpyAsync(r->alias.addr, (uintptr_t)r->block->ptr, r->alias.size, s);
	if (res)
		return hm_driver_error(d, "cuMemcpyAsync", res);
	res = hm_retry_once(d->cuEventRecord(r->copied, s));
	if (!res)
		return 0;
	/* Nothing can be ordered after it: the host waits. */
	d->cuStreamSynchronize(s);
	return hm_driver_error(d, "cuEventRecord", res);
}

/* Orders @stream after the copy of @r. If the driver refuses that, the host waits. */
static int join_copy(struct hetmem *hm, const struct replica *r, hetmem_stream stream)
{
	const struct hm_driver *d = &hm->driver;
	CUresult res = hm_retry_once(d->cuStreamWaitEvent(stream, r->copied, 0));

	if (!res)
		return 0;
	d->cuStreamSynchronize(r->route->stream);
	return hm_driver_error(d, "cuStreamWaitEvent", res);
}

/* The copies begin before @stream waits for the first one. */
static int copy_to_all(struct hetmem *hm, const struct hm_replicated *b, int from,
		       hetmem_stream stream, CUevent ready)
{
	const struct replica *r, *end;
	struct hm_context mine, saved;
	int err, failed;

	err = hm_context_default(hm, from, &mine);
	if (err)
		return err;
	hm_context_relax(hm, &mine);
	err = hm_context_enter(hm, from, &saved);
	if (!err) {
		for (end = b->replicas; end && !err; end = err ? end : end->next)
			err = begin_copy(hm, end, ready);
		hm_context_leave(hm, &saved);
		for (r = b->replicas; r != end; r = r->next) {
			failed = join_copy(hm, r, stream);
			err = err ? err : failed;
		}
	}
	hm_context_leave(hm, &mine);
	return err;
}

int hetmem_refresh(struct hetmem_resource *res, void *ptr, hetmem_stream stream)
{
	struct hm_replicated *b;
	CUevent ready;
	int err = check(res, ptr, "refresh"), from;

	if (!err && (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN))
		err = hm_error(-EINVAL, "refresh: give a stream of a device: the host does not wait");
	if (err)
		return err;
	poll_replicas(res);
	err = take(res, ptr, "refresh", &b);
	if (err)
		return err;
	if (!b)
		return hm_error(-EINVAL, "refresh: %p is no block with replicas", ptr);
	if (!b->replicas) {
		err = hm_error(-EINVAL, "refresh: the replicas of %p are freed", ptr);
		goto give;
	}
	from = b->replicas->route->from;
	err = mark(res->hm, "refresh", from, stream, &ready);
	if (err)
		goto give;
	err = copy_to_all(res->hm, b, from, stream, ready);
	destroy_event(res->hm, ready);
give:
	give(res->hm, b);
	return err;
}
