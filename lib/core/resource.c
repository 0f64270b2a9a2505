// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Resources as programs see them: arguments are checked here, once for all
 * kinds, and the top of the stack does the rest.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/move.h"
#include "core/parked.h"
#include "core/shrink.h"
#include "core/snapshot.h"

/* Callbacks that threads are in: all, and the calling thread's, the last first. */
static unsigned int nr_callbacks;
static __thread struct hm_callback *callbacks;

void hm_callback_enter(struct hm_callback *callback, const void *whose)
{
	*callback = (struct hm_callback){ .whose = whose, .outer = callbacks };
	callbacks = callback;
	__atomic_add_fetch(&nr_callbacks, 1, __ATOMIC_RELAXED);
}

void hm_callback_leave(struct hm_callback *callback)
{
	callbacks = callback->outer;
	__atomic_sub_fetch(&nr_callbacks, 1, __ATOMIC_RELAXED);
}

/* Who watches blocks counts as a callback: the cached path asks once for both. */
static const struct hm_block_ops *block_ops;

void hm_watch_blocks(const struct hm_block_ops *ops, int by)
{
	__atomic_store_n(&block_ops, ops, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_callbacks, by, __ATOMIC_RELAXED);
}

/* They count as callbacks, too. */
static const struct hm_replica_ops *replica_ops;

void hm_watch_replicas(const struct hm_replica_ops *ops, int by)
{
	if (ops)
		__atomic_store_n(&replica_ops, ops, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_callbacks, by, __ATOMIC_RELAXED);
}

/* Is the calling thread in a callback of a provider that @res is made of? */
__attribute__((noinline))
static bool is_reentry(struct hetmem_resource *res)
{
	const struct hm_callback *callback;

	for (callback = callbacks; callback; callback = callback->outer) {
		struct hetmem_access access = { .size = sizeof(access) };
		struct hm_ctl_access arg = {
			.access = &access, .whose = callback->whose,
		};

		if (!res->ops->ctl(res, HM_CTL_ACCESS, &arg) && arg.found)
			return true;
	}
	return false;
}

/* Some thread is in a callback: all that the cached path pays for them. */
static inline bool any_callback(void)
{
	return hm_unlikely(__atomic_load_n(&nr_callbacks, __ATOMIC_RELAXED));
}

/* NULL: no block has replicas. */
static inline const struct hm_replica_ops *replicas(void)
{
	return any_callback() ? __atomic_load_n(&replica_ops, __ATOMIC_RELAXED) : NULL;
}

/* 0, or -EDEADLK. */
static int check_entry(struct hetmem_resource *res, const char *what)
{
	if (!any_callback() || !is_reentry(res))
		return 0;
	return hm_error(-EDEADLK, "%s: called by a callback of this resource's own provider",
			what);
}

static bool bad_align(size_t align)
{
	return align & (align - 1);
}

static inline int alloc(struct hetmem_resource *res, size_t size, size_t align,
			hetmem_stream stream, void **ptr)
{
	if (align < HETMEM_ALIGNMENT)
		align = HETMEM_ALIGNMENT;
	/* A pointer that differs from others; what is behind it is ours. */
	return res->ops->alloc(res, size + !size, align, stream, ptr);
}

/* These are apart, so that the cached path saves no registers. */

__attribute__((noinline))
static int alloc_beside_callback(struct hetmem_resource *res, size_t size,
				 size_t align, hetmem_stream stream,
				 void **ptr)
{
	int err = check_entry(res, "alloc");

	return err ? err : alloc(res, size, align, stream, ptr);
}

__attribute__((noinline))
static int free_of_size(struct hetmem_resource *res, void *ptr, size_t size,
			hetmem_stream stream)
{
	size_t asked = size;
	int err = res->ops->free(res, ptr, &asked, stream);

	return err == -EINVAL ? hm_alias_free(res, ptr, size, stream) : err;
}

__attribute__((noinline))
static int free_beside_callback(struct hetmem_resource *res, void *ptr,
				size_t size, hetmem_stream stream)
{
	const struct hm_replica_ops *copies = replicas();
	const struct hm_block_ops *ops;
	struct hm_ctl_owns owns = { .ptr = ptr, .first = true };
	struct hm_replicated *block = NULL;
	int err = check_entry(res, "free");

	if (!err && copies)
		err = copies->free_begins(res, ptr, stream, &block);
	if (err)
		return err;
	ops = __atomic_load_n(&block_ops, __ATOMIC_RELAXED);
	if (ops && !res->ops->ctl(res, HM_CTL_OWNS, &owns) && owns.base == ptr)
		ops->freed(res->hm, (uintptr_t)ptr, owns.size);
	err = free_of_size(res, ptr, size, stream);
	if (block)
		copies->free_ends(res, block, err);
	return err;
}

int hetmem_alloc(struct hetmem_resource *res, size_t size, size_t align,
		 hetmem_stream stream, void **ptr)
{
	if (hm_unlikely(!res || !ptr || bad_align(align) ||
			stream == HETMEM_STREAM_UNKNOWN))
		return hm_error(-EINVAL, "alloc: %s", !res ? "res is NULL" :
				!ptr ? "ptr is NULL" : bad_align(align) ?
				"align is not a power of two" :
				"memory is for a stream that is known");
	if (any_callback())
		return alloc_beside_callback(res, size, align, stream, ptr);
	return alloc(res, size, align, stream, ptr);
}

int hetmem_free(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream)
{
	if (hm_unlikely(!res))
		return hm_error(-EINVAL, "free: res is NULL");
	if (!ptr)
		return 0;
	if (any_callback())
		return free_beside_callback(res, ptr, size, stream);
	return hm_likely(res->ops->put) ? res->ops->put(res, ptr, size, stream) :
		free_of_size(res, ptr, size, stream);
}

int hm_resource_ctl(struct hetmem_resource *res, const char *what,
		    enum hm_ctl op, void *arg)
{
	const unsigned int errors = hm_errors();
	int err;

	if (!res)
		return hm_error(-EINVAL, "%s: res is NULL", what);
	err = check_entry(res, what);
	if (err)
		return err;
	err = res->ops->ctl(res, op, arg);
	if (err == -EOPNOTSUPP && hm_errors() == errors)
		hm_error(err, "%s: %s cannot", what, res->ops->name);
	return err;
}

int hm_alloc_placed(struct hetmem_resource *self, struct hm_ctl_alloc *arg)
{
	if (arg->reserve || arg->private_pool || arg->tag)
		return -EOPNOTSUPP;
	return self->ops->alloc(self, arg->size, arg->align, arg->stream,
				&arg->ptr);
}

int hm_ctl_upstream(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct hetmem_resource *up = self->upstream;

	return up ? up->ops->ctl(up, op, arg) : -EOPNOTSUPP;
}

int hetmem_record_stream(struct hetmem_resource *res, void *ptr,
			 hetmem_stream stream)
{
	struct hm_ctl_stream arg = { .ptr = ptr, .stream = stream };

	if (!ptr || stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "record_stream: %s", ptr ?
				"the stream is not known" : "ptr is NULL");
	return hm_resource_ctl(res, "record_stream", HM_CTL_RECORD, &arg);
}

int hetmem_stream_retire(struct hetmem_resource *res, hetmem_stream stream)
{
	struct hm_ctl_stream arg = { .stream = stream };

	return hm_resource_ctl(res, "stream_retire", HM_CTL_RETIRE, &arg);
}

int hetmem_poll(struct hetmem_resource *res)
{
	if (res && replicas())
		replicas()->poll(res);
	return hm_resource_ctl(res, "poll", HM_CTL_POLL, NULL);
}

int hetmem_trim(struct hetmem_resource *res, size_t keep, size_t *freed)
{
	int err;

	if (res && replicas())
		replicas()->poll(res);
	err = hm_resource_ctl(res, "trim", HM_CTL_TRIM, &keep);
	if (!err && freed)
		*freed = keep;
	return err;
}

/* 0, or -EBUSY: a refresh reads the block from offset @from on. */
static int check_replicas(struct hetmem_resource *res, const void *ptr, size_t from,
			  const char *what)
{
	const struct hm_replica_ops *ops = res ? replicas() : NULL;

	return ops && ops->reach(res, ptr, from) ?
		hm_error(-EBUSY, "%s: free the replicas of %p before", what, ptr) : 0;
}

int hetmem_grow(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream)
{
	struct hm_ctl_grow arg = {
		.ptr = ptr, .size = size, .stream = stream,
	};
	const struct hm_block_ops *ops;
	int err;

	if (!ptr || !size)
		return hm_error(-EINVAL, "grow: %s", ptr ? "size is 0" :
				"ptr is NULL");
	err = check_replicas(res, ptr, size, "grow");
	if (!err)
		err = hm_resource_ctl(res, "grow", HM_CTL_GROW, &arg);
	ops = __atomic_load_n(&block_ops, __ATOMIC_RELAXED);
	if (err || !ops || !any_callback() || !arg.was)
		return err;
	if (size < arg.was)
		ops->freed(res->hm, (uintptr_t)ptr + size, arg.was - size);
	else
		ops->grown(res->hm, (uintptr_t)ptr, arg.was, (uintptr_t)ptr, size);
	return 0;
}

int hetmem_shrink(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		  hetmem_stream stream)
{
	struct hm_ctl_owns block = { .ptr = ptr, .first = true };
	struct hm_ctl_shrink arg = {
		.ptr = ptr, .offset = offset, .length = length, .stream = stream,
	};
	int err;

	if (!ptr)
		return hm_error(-EINVAL, "shrink: ptr is NULL");
	err = hm_resource_ctl(res, "shrink", HM_CTL_OWNS, &block);
	if (err && err != -ENOENT)
		return err;
	if (err || block.base != ptr)
		return hm_error(-EINVAL, "shrink: %p is not the beginning of a live block", ptr);
	if (length > block.size || offset > block.size - length)
		return hm_error(-EINVAL, "shrink: %p has %zu bytes", ptr, block.asked);
	if (!length || offset >= block.asked)
		return 0;
	err = check_replicas(res, ptr, offset, "shrink");
	if (err)
		return err;
	if (offset + length < block.asked)
		return hm_resource_ctl(res, "shrink", HM_CTL_SHRINK, &arg);
	return offset ? hetmem_grow(res, ptr, offset, stream) :
		hm_error(-EINVAL, "shrink: that is all of the block: free it");
}

static int change_units(struct hetmem_resource *res, const char *name,
			struct hm_ctl_shrink *arg)
{
	if (!arg->ptr || arg->offset > SIZE_MAX - arg->length)
		return hm_error(-EINVAL, "%s: %s", name, arg->ptr ?
				"offset and length overflow" : "ptr is NULL");
	return arg->length ? hm_resource_ctl(res, name, HM_CTL_SHRINK, arg) : 0;
}

int hetmem_commit(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		  hetmem_stream stream)
{
	return hetmem_commit_with(res, ptr, offset, length, 0, stream);
}

int hetmem_commit_with(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		       unsigned int flags, hetmem_stream stream)
{
	struct hm_ctl_shrink arg = {
		.what = HM_PART_COMMIT, .ptr = ptr, .offset = offset, .length = length,
		.stream = stream, .flags = flags,
	};

	if (flags & ~HETMEM_COMMIT_WAIT)
		return hm_error(-EINVAL, "commit: unknown flags %#x", flags);
	return change_units(res, "commit", &arg);
}

int hetmem_decommit(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		    hetmem_stream stream)
{
	struct hm_ctl_shrink arg = {
		.what = HM_PART_DECOMMIT, .ptr = ptr, .offset = offset, .length = length,
		.stream = stream,
	};

	return change_units(res, "decommit", &arg);
}

ssize_t hetmem_committed(struct hetmem_resource *res, const void *ptr,
			 struct hetmem_extent *extents, size_t nr)
{
	struct hm_ctl_shrink arg = {
		.what = HM_PART_COMMITTED, .ptr = (void *)ptr, .extents = extents, .nr = nr,
		.stream = HETMEM_STREAM_HOST,
	};
	int err;

	if (!ptr || (nr && !extents))
		return hm_error(-EINVAL, "committed: %s is NULL", ptr ? "extents" : "ptr");
	err = hm_resource_ctl(res, "committed", HM_CTL_SHRINK, &arg);
	return err ? err : (ssize_t)arg.nr;
}

ssize_t hetmem_segments(struct hetmem_resource *res, const void *ptr,
			size_t size, struct hetmem_segment *segments,
			size_t nr)
{
	struct hm_ctl_segments arg = {
		.ptr = ptr, .size = size, .segments = segments, .nr = nr,
	};
	int err;

	if (!ptr || !size || (nr && !segments))
		return hm_error(-EINVAL, "segments: %s", !ptr ? "ptr is NULL" :
				!size ? "size is 0" : "segments is NULL");
	err = hm_resource_ctl(res, "segments", HM_CTL_SEGMENTS, &arg);
	return err ? err : (ssize_t)arg.nr;
}

int hetmem_resource_stats(struct hetmem_resource *res,
			  struct hetmem_resource_stats *stats)
{
	struct hetmem_resource_stats all = { .size = sizeof(all) };
	size_t size = stats ? stats->size : 0;
	int err;

	if (size < sizeof(all) && size != offsetof(struct hetmem_resource_stats, parked_file) &&
	    size != offsetof(struct hetmem_resource_stats, pressures) &&
	    size != offsetof(struct hetmem_resource_stats, addresses) &&
	    size != offsetof(struct hetmem_resource_stats, replicas))
		return hm_error(-EINVAL, "resource_stats: stats->size is %zu, set it to sizeof(struct hetmem_resource_stats)",
				size);
	err = hm_resource_ctl(res, "resource_stats", HM_CTL_STATS, &all);
	if (!err && replicas())
		all.replicas = replicas()->bytes(res);
	memcpy(stats, &all, size < sizeof(all) ? size : sizeof(all));
	stats->size = size;
	return err;
}

int hetmem_resource_access(struct hetmem_resource *res,
			   struct hetmem_access *access)
{
	struct hetmem_access found = { .size = sizeof(found) };
	struct hm_ctl_access arg = { .access = &found };
	size_t size = access ? access->size : 0;
	int err;

	if (size < offsetof(struct hetmem_access, unit))
		return hm_error(-EINVAL, "resource_access: access->size is %zu, set it to sizeof(struct hetmem_access)",
				size);
	err = hm_resource_ctl(res, "resource_access", HM_CTL_ACCESS, &arg);
	found.size = size;
	if (!err)
		memcpy(access, &found, size < sizeof(found) ? size : sizeof(found));
	return err;
}

static int counters(struct hetmem_resource *res, const char *what,
		    struct hm_ctl_counters *arg)
{
	struct hetmem_counters *out = arg->counters;
	size_t size = out ? out->size : 0;

	if (out && size < sizeof(*out))
		return hm_error(-EINVAL, "%s: counters->size is %zu, set it to sizeof(struct hetmem_counters)",
				what, size);
	return hm_resource_ctl(res, what, HM_CTL_COUNTERS, arg);
}

int hetmem_counters(struct hetmem_resource *res,
		    struct hetmem_counters *out)
{
	struct hm_ctl_counters arg = { .counters = out };

	if (!out)
		return hm_error(-EINVAL, "counters: counters is NULL");
	return counters(res, "counters", &arg);
}

int hetmem_counters_push(struct hetmem_resource *res)
{
	struct hm_ctl_counters arg = { .push = true };

	return counters(res, "counters_push", &arg);
}

int hetmem_counters_pop(struct hetmem_resource *res,
			struct hetmem_counters *out)
{
	struct hm_ctl_counters arg = { .counters = out, .pop = true };

	return counters(res, "counters_pop", &arg);
}

int hetmem_on_failure(struct hetmem_resource *res, hetmem_failure_fn fn,
		      void *data)
{
	struct hm_ctl_callback arg = { .fn = fn, .data = data };

	return hm_resource_ctl(res, "on_failure", HM_CTL_ON_FAILURE, &arg);
}

int hetmem_log_edge(struct hetmem_resource *res, enum hetmem_edge edge,
		    const void *event, hetmem_stream stream)
{
	struct hm_ctl_edge arg = {
		.edge = edge, .event = event, .stream = stream,
	};

	if ((unsigned int)edge > HETMEM_EDGE_SYNC)
		return hm_error(-EINVAL, "log_edge: no such edge");
	return hm_resource_ctl(res, "log_edge", HM_CTL_EDGE, &arg);
}

ssize_t hetmem_history(struct hetmem_resource *res,
		       struct hetmem_history_event *events, size_t nr)
{
	struct hm_ctl_history arg = { .events = events, .nr = nr };
	int err;

	if (nr && !events)
		return hm_error(-EINVAL, "history: events is NULL");
	err = hm_resource_ctl(res, "history", HM_CTL_HISTORY, &arg);
	return err ? err : (ssize_t)arg.nr;
}

bool hm_has_more(const void *params, size_t known, size_t size)
{
	const unsigned char *p = params;
	size_t i;

	for (i = known; i < size; i++)
		if (p[i])
			return true;
	return false;
}

/* Programs that were built before @tag have a smaller struct. */
#define PARAMS_WITHOUT_TAG	offsetof(struct hetmem_alloc_params, tag)

static const char *tag_of(const struct hetmem_alloc_params *params)
{
	return params->size < sizeof(*params) ? NULL : params->tag;
}

static int check_tag(const char *tag)
{
	if (!tag)
		return 0;
	if (!*tag)
		return hm_error(-EINVAL, "alloc_with: the tag is empty: give NULL for no tag");
	return strnlen(tag, HM_TAG_LEN) < HM_TAG_LEN ? 0 :
		hm_error(-EINVAL, "alloc_with: the tag has more than %d bytes", HM_TAG_LEN - 1);
}

static int check_params(const struct hetmem_alloc_params *params, void **ptr)
{
	if (!ptr || !params)
		return hm_error(-EINVAL, "alloc_with: %s is NULL",
				ptr ? "params" : "ptr");
	if (params->size < sizeof(*params) && params->size != PARAMS_WITHOUT_TAG)
		return hm_error(-EINVAL, "alloc_with: params->size is %zu, set it to sizeof(struct hetmem_alloc_params)",
				params->size);
	if (hm_has_more(params, sizeof(*params), params->size))
		return hm_error(-E2BIG, "alloc_with: params has members that this library does not know");
	if (params->flags & ~(HETMEM_ALLOC_MOVABLE | HETMEM_ALLOC_KEEP | HETMEM_ALLOC_WHOLE |
			       HETMEM_ALLOC_SCRATCH | HETMEM_ALLOC_SPARSE | HETMEM_ALLOC_RING))
		return hm_error(-EINVAL, "alloc_with: flags %#x are not HETMEM_ALLOC_*",
				params->flags);
	if (params->flags & HETMEM_ALLOC_WHOLE && !params->private_pool)
		return hm_error(-EINVAL, "alloc_with: only a private pool has whole blocks: set private_pool, too");
	if (params->flags & HETMEM_ALLOC_MOVABLE && params->flags & HETMEM_ALLOC_KEEP)
		return hm_error(-EINVAL, "alloc_with: a block is movable or kept");
	if (params->flags & HETMEM_ALLOC_MOVABLE && params->private_pool)
		return hm_error(-EINVAL, "alloc_with: a private pool's blocks do not move");
	if (params->flags & (HETMEM_ALLOC_SPARSE | HETMEM_ALLOC_RING) &&
	    (params->reserve || params->private_pool || !params->bytes || tag_of(params) ||
	     params->flags & (params->flags - 1)))
		return hm_error(-EINVAL, "alloc_with: %s has bytes, and no reserve, private_pool, tag or other flags",
				params->flags & HETMEM_ALLOC_RING ? "a ring" : "a sparse block");
	if (params->flags & HETMEM_ALLOC_RING && params->bytes > PTRDIFF_MAX / 2)
		return hm_error(-ENOMEM, "alloc_with: more than there can be");
	if (params->placement > HETMEM_PLACEMENT_STREAMING)
		return hm_error(-EINVAL, "alloc_with: there is no placement %u",
				params->placement);
	if (bad_align(params->align))
		return hm_error(-EINVAL, "alloc_with: align is not a power of two");
	if (params->stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "alloc_with: memory is for a stream that is known");
	if (params->reserve && params->reserve < params->bytes)
		return hm_error(-EINVAL, "alloc_with: reserve is less than bytes");
	if (params->reserve && params->private_pool)
		return hm_error(-EINVAL, "alloc_with: a private pool's blocks do not grow");
	return check_tag(tag_of(params));
}

int hetmem_alloc_with(struct hetmem_resource *res,
		      const struct hetmem_alloc_params *params, void **ptr)
{
	int err = check_params(params, ptr);
	struct hm_ctl_alloc arg;

	if (err)
		return err;
	if (!params->reserve && !params->private_pool && !params->placement && !params->flags &&
	    !tag_of(params))
		return hetmem_alloc(res, params->bytes, params->align,
				    params->stream, ptr);
	arg = (struct hm_ctl_alloc){
		.size = params->bytes ? params->bytes : 1,
		.align = params->align < HETMEM_ALIGNMENT ? HETMEM_ALIGNMENT :
			params->align,
		.reserve = params->reserve,
		.private_pool = params->private_pool,
		.placement = params->placement,
		.flags = params->flags,
		.priority = params->priority,
		.tag = tag_of(params),
		.stream = params->stream,
	};
	/* Its addresses cost nothing: commits count. */
	if (params->flags & HETMEM_ALLOC_SPARSE) {
		arg.reserve = params->bytes;
		arg.size = 0;
	}
	if (params->flags & HETMEM_ALLOC_RING)
		arg.reserve = 2 * params->bytes;
	err = hm_resource_ctl(res, "alloc_with", HM_CTL_ALLOC_WITH, &arg);
	if (!err)
		*ptr = arg.ptr;
	return err;
}

static int private(struct hetmem_resource *res, const char *what,
		   enum hm_ctl op, uint64_t id, hetmem_stream stream)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	if (!id)
		return hm_error(-EINVAL, "%s: id is 0", what);
	return hm_resource_ctl(res, what, op, &arg);
}

int hetmem_private_retain(struct hetmem_resource *res, uint64_t id)
{
	return private(res, "private_retain", HM_CTL_PRIVATE_RETAIN, id,
		       HETMEM_STREAM_HOST);
}

int hetmem_private_release(struct hetmem_resource *res, uint64_t id,
			   hetmem_stream stream)
{
	return private(res, "private_release", HM_CTL_PRIVATE_RELEASE, id,
		       stream);
}

int hetmem_private_trim(struct hetmem_resource *res, uint64_t id, size_t *freed)
{
	struct hm_ctl_private_trim arg = { .id = id };
	int err;

	if (!id)
		return hm_error(-EINVAL, "private_trim: id is 0");
	err = hm_resource_ctl(res, "private_trim", HM_CTL_PRIVATE_TRIM, &arg);
	if (!err && freed)
		*freed = arg.freed;
	return err;
}

int hetmem_pin_comm(struct hetmem_resource *res, void *ptr)
{
	struct hm_ctl_stream arg = { .ptr = ptr };

	if (!ptr)
		return hm_error(-EINVAL, "pin_comm: ptr is NULL");
	return hm_resource_ctl(res, "pin_comm", HM_CTL_PIN_COMM, &arg);
}

int hetmem_unpin_comm(struct hetmem_resource *res, void *ptr)
{
	struct hm_ctl_stream arg = { .ptr = ptr };

	if (!ptr)
		return hm_error(-EINVAL, "unpin_comm: ptr is NULL");
	return hm_resource_ctl(res, "unpin_comm", HM_CTL_UNPIN_COMM, &arg);
}

int hetmem_sleep(struct hetmem_resource *res, const char *tag, unsigned int flags)
{
	static uint32_t calls;
	struct hm_ctl_sleep arg = {
		.tag = tag, .keep = flags & HETMEM_SLEEP_KEEP,
		.call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) | 1U << 31,
	};
	int err;

	if (flags & ~HETMEM_SLEEP_KEEP)
		return hm_error(-EINVAL, "sleep: flags %#x are not HETMEM_SLEEP_*", flags);
	err = hm_resource_ctl(res, "sleep", HM_CTL_SLEEP, &arg);
	return err == -EOPNOTSUPP && arg.refused ? hm_error(err, "sleep: %s", arg.refused) : err;
}

int hetmem_wake(struct hetmem_resource *res, const char *tag)
{
	struct hm_ctl_sleep arg = { .tag = tag };

	return hm_resource_ctl(res, "wake", HM_CTL_WAKE, &arg);
}

/*
 * The pause after the failed attempt @attempt, which took @cost. An attempt holds memory
 * while it runs, so the pause is at least as long. Random, so that two waiting callers do
 * not keep taking the memory from each other.
 */
static uint64_t wake_pause(unsigned int attempt, uint64_t cost)
{
	uint64_t pause = 1000000ULL << (attempt < 5 ? attempt : 5);

	pause = pause < cost ? cost : pause;
	return pause + (hm_now() * 0x9e3779b97f4a7c15ULL >> 24) % pause;
}

int hetmem_wake_within(struct hetmem_resource *res, const char *tag, unsigned int wait_ms)
{
	const uint64_t deadline = hm_now() + wait_ms * 1000000ULL;
	uint64_t began, ended, pause;
	unsigned int attempt;
	int err;

	for (attempt = 0;; attempt++) {
		began = hm_now();
		err = hetmem_wake(res, tag);
		/* After a pause that ends at the deadline comes one last attempt. */
		if (err != -ENOMEM || began >= deadline)
			return err;
		ended = hm_now();
		pause = wake_pause(attempt, ended - began);
		if (ended >= deadline)
			pause = 0;
		else if (pause > deadline - ended)
			pause = deadline - ended;
		nanosleep(&(struct timespec){ pause / 1000000000, pause % 1000000000 }, NULL);
	}
}

int hetmem_parked_read(struct hetmem_resource *res, const void *ptr, void *to, size_t size)
{
	struct hm_ctl_owns owns = { .ptr = ptr };
	struct hm_ctl_parked arg = { .ptr = ptr, .size = size, .to = to };
	size_t left;
	int err;

	if (!ptr || (!to && size))
		return hm_error(-EINVAL, "parked_read: %s is NULL", ptr ? "to" : "ptr");
	err = hm_resource_ctl(res, "parked_read", HM_CTL_OWNS, &owns);
	if (err)
		return err == -ENOENT ? hm_error(-EINVAL, "parked_read: %p is in no live block",
						 ptr) : err;
	left = (char *)owns.base + owns.asked - (const char *)ptr;
	if (left > owns.asked || size > left)
		return hm_error(-EINVAL, "parked_read: %zu bytes from %p on end beyond the block of %zu bytes at %p",
				size, ptr, owns.asked, owns.base);
	return hm_resource_ctl(res, "parked_read", HM_CTL_PARKED_READ, &arg);
}

static int move(struct hetmem_resource *res, const char *what, enum hm_move how, void *ptr,
		bool begin)
{
	struct hm_ctl_move arg = { .ptr = ptr, .move = how, .begin = begin };

	int err;

	if (!ptr)
		return hm_error(-EINVAL, "%s: ptr is NULL", what);
	err = hm_resource_ctl(res, what, HM_CTL_MOVE, &arg);
	return err == -EOPNOTSUPP && arg.refused ? hm_error(err, "%s: %s", what, arg.refused) : err;
}

int hetmem_alias(struct hetmem_resource *res, void *ptr, size_t size, unsigned int flags,
		 void **other)
{
	struct hm_ctl_move arg = {
		.ptr = ptr, .move = HM_MOVE_ALIAS, .size = size, .flags = flags,
	};
	const char *kind;
	int err;

	if (!ptr || !other || !size)
		return hm_error(-EINVAL, "alias: %s", !size ? "size is 0" :
				ptr ? "other is NULL" : "ptr is NULL");
	if (flags & ~HETMEM_ALIAS_READ)
		return hm_error(-EINVAL, "alias: flags %#x are not HETMEM_ALIAS_*", flags);
	kind = hm_alias_kind(ptr);
	if (kind)
		return hm_error(-EINVAL, "alias: %p is in %s: give the address of its block", ptr,
				kind);
	err = hm_resource_ctl(res, "alias", HM_CTL_MOVE, &arg);
	if (err)
		return err;
	arg.alias->res = res;
	arg.alias->kind = "an alias";
	*other = (void *)arg.alias->addr;
	hm_alias_add(arg.alias);
	return 0;
}

int hetmem_spill(struct hetmem_resource *res, void *ptr)
{
	return move(res, "spill", HM_MOVE_SPILL, ptr, false);
}

int hetmem_fetch(struct hetmem_resource *res, void *ptr)
{
	return move(res, "fetch", HM_MOVE_FETCH, ptr, false);
}

int hetmem_spill_async(struct hetmem_resource *res, void *ptr)
{
	return move(res, "spill_async", HM_MOVE_SPILL, ptr, true);
}

int hetmem_fetch_async(struct hetmem_resource *res, void *ptr)
{
	return move(res, "fetch_async", HM_MOVE_FETCH, ptr, true);
}

int hetmem_host_access(struct hetmem_resource *res, void *ptr)
{
	return move(res, "host_access", HM_MOVE_HOST_ACCESS, ptr, false);
}

int hetmem_priority(struct hetmem_resource *res, void *ptr, int priority)
{
	struct hm_ctl_move arg = {
		.ptr = ptr, .move = HM_MOVE_PRIORITY, .priority = priority,
	};

	if (!ptr)
		return hm_error(-EINVAL, "priority: ptr is NULL");
	return hm_resource_ctl(res, "priority", HM_CTL_MOVE, &arg);
}

static int observe(struct hetmem_resource *res, const char *what, hetmem_remap_fn fn, void *arg,
		   bool add)
{
	struct hm_ctl_observe observe = { .fn = fn, .arg = arg, .add = add };

	if (!fn)
		return hm_error(-EINVAL, "%s: fn is NULL", what);
	return hm_resource_ctl(res, what, HM_CTL_OBSERVE, &observe);
}

int hetmem_on_remap(struct hetmem_resource *res, hetmem_remap_fn fn, void *arg)
{
	return observe(res, "on_remap", fn, arg, true);
}

int hetmem_off_remap(struct hetmem_resource *res, hetmem_remap_fn fn, void *arg)
{
	return observe(res, "off_remap", fn, arg, false);
}

int hetmem_capture_begin(struct hetmem_resource *res, hetmem_stream stream,
			 uint64_t id)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	return hm_resource_ctl(res, "capture_begin", HM_CTL_CAPTURE_BEGIN, &arg);
}

int hetmem_capture_end(struct hetmem_resource *res, hetmem_stream stream,
		       uint64_t id)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	return hm_resource_ctl(res, "capture_end", HM_CTL_CAPTURE_END, &arg);
}

int hetmem_capture_release(struct hetmem_resource *res, hetmem_stream stream,
			   uint64_t id)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	return hm_resource_ctl(res, "capture_release",
			       HM_CTL_CAPTURE_RELEASE, &arg);
}

ssize_t hetmem_export(struct hetmem_resource *res, void *ptr, int *fds,
		      struct hetmem_segment *segments, size_t nr)
{
	struct hm_ctl_export arg = {
		.ptr = ptr, .fds = fds, .segments = segments, .nr = nr,
	};
	int err;

	if (!ptr || (nr && (!fds || !segments)))
		return hm_error(-EINVAL, "export: %s is NULL", !ptr ? "ptr" :
				!fds ? "fds" : "segments");
	err = hm_resource_ctl(res, "export", HM_CTL_EXPORT, &arg);
	return err ? err : (ssize_t)arg.nr;
}

/*
 * What a resource is after destroy, where a use of it then is to be an error: in
 * check mode, and where a guard is in the stack. Elsewhere its struct is gone.
 */
static int gone(const char *what)
{
	return hm_error(-EINVAL, "%s: the resource was destroyed before", what);
}

static int gone_alloc(struct hetmem_resource *self, size_t size, size_t align,
		      hetmem_stream stream, void **ptr)
{
	(void)self;
	(void)size;
	(void)align;
	(void)stream;
	(void)ptr;
	return gone("alloc");
}

static int gone_free(struct hetmem_resource *self, void *ptr, size_t *size,
		     hetmem_stream stream)
{
	(void)self;
	(void)ptr;
	(void)size;
	(void)stream;
	return gone("free");
}

static int gone_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	(void)self;
	(void)op;
	(void)arg;
	return gone("resource");
}

static const struct hm_resource_ops gone_ops = {
	.name = "destroyed",
	.alloc = gone_alloc,
	.free = gone_free,
	.ctl = gone_ctl,
};

void hm_resource_free(struct hetmem_resource *self)
{
	if (self->keep)
		*self = (struct hetmem_resource){ .ops = &gone_ops };
	else
		free(self);
}

void hm_resource_put(struct hetmem_resource *top)
{
	struct hetmem_resource *up;

	for (; top; top = up) {
		up = top->upstream;
		top->ops->destroy(top);
	}
}

ssize_t hetmem_resource_destroy(struct hetmem_resource *res)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	ssize_t live = 0;
	int err;

	if (!res)
		return 0;
	if (res->ops == &gone_ops)
		return gone("resource_destroy");
	err = check_entry(res, "resource_destroy");
	if (err)
		return err;
	if (replicas())
		replicas()->end(res);
	if (!res->ops->ctl(res, HM_CTL_STATS, &stats))
		live = stats.live;
	hm_resource_put(res);
	return live;
}
