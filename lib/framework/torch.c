// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Frameworks that load an allocator by name: PyTorch
 * (torch.cuda.memory.CUDAPluggableAllocator) and CuPy (CFunctionAllocator).
 *
 * They pass no handle of ours, so there is one library for the process,
 * opened at the first call, and the current resource of each device. It
 * is never closed: frameworks free what their statics hold after main() has
 * returned. Errors have nowhere to go but stderr, a line each.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/hetmem.h"
#include "core/resource.h"
#include "spec/spec.h"

static pthread_mutex_t torch_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hetmem *torch_hm;
static struct hetmem_resource *torch_resources[HM_MAX_DEVICES];

static void complain(const char *what)
{
	fprintf(stderr, "hetmem: %s: %s\n", what, hetmem_last_error());
}

static int open_once(struct hetmem **hm)
{
	int err = 0;

	pthread_mutex_lock(&torch_lock);
	*hm = torch_hm;
	if (!*hm)
		err = hetmem_open(hm, NULL);
	if (!err)
		__atomic_store_n(&torch_hm, *hm, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&torch_lock);
	return err;
}

/*
 * Whether the process is a forked child of the one that opened the library. Such a child
 * has objects of its parent, whose memory it cannot use. It takes no lock for them: a
 * thread of the parent may have held it.
 */
static bool is_forked(void)
{
	const struct hetmem *hm = __atomic_load_n(&torch_hm, __ATOMIC_ACQUIRE);

	return hm && hm_generation() != hm->generation;
}

static int find_resource(int device, struct hetmem_resource **res)
{
	struct hetmem *hm;
	int err;

	if (device < 0 || device >= HM_MAX_DEVICES)
		return hm_error(-ENODEV, "torch: no device %d", device);
	*res = __atomic_load_n(&torch_resources[device], __ATOMIC_ACQUIRE);
	if (*res)
		return 0;
	err = open_once(&hm);
	if (!err)
		err = hetmem_resource_current(hm, device, res);
	if (!err)
		__atomic_store_n(&torch_resources[device], *res, __ATOMIC_RELEASE);
	return err;
}

struct hetmem_resource *hetmem_torch_resource(int device)
{
	struct hetmem_resource *res;

	return find_resource(device, &res) ? NULL : res;
}

int hetmem_torch_set_limit(int device, uint64_t max)
{
	struct hetmem_resource *res;
	int err = find_resource(device, &res);

	/* A max of 0 is no limit. */
	return err ? err : hm_resource_set_within(res, max ? max : 1);
}

/*
 * A null stream is that of the current context. Where there are several
 * devices the one that is meant may not be current.
 */
static int enter(struct hetmem_resource *res, int device,
		 struct hm_context *saved)
{
	*saved = (struct hm_context){ 0 };
	return res->hm->nr_devices == 1 ? 0 :
		hm_context_enter(res->hm, device, saved);
}

/*
 * Pools of PyTorch. A pool is a private pool of the device's resource, whose
 * number has the highest bit: a program that uses the resource too has others.
 * The lock is taken for writing where pools or filters change, for reading while
 * filters are called: then no filter is called after its end.
 */

#define FIRST_ID	(1ULL << 63)

/**
 * struct torch_pool - a pool
 * @id: of the private pool
 * @refs: begins without release; 0: it is given back when no filter is there
 * @dropped: its memory then goes to the driver
 * @over: the resource that it allocates from; NULL: that of the device
 * @flags: HETMEM_ALLOC_* of its blocks
 * @gone, @data: called when it was given back; NULL: nothing is
 */
struct torch_pool {
	struct torch_pool *next;
	int device;
	uint64_t first;
	uint64_t second;
	uint64_t id;
	unsigned int refs;
	bool dropped;
	struct hetmem_resource *over;
	unsigned int flags;
	void (*gone)(void *data);
	void *data;
};

/* Where an allocation comes from. @id 0: from no pool. */
struct torch_choice {
	struct hetmem_resource *over;
	uint64_t id;
	unsigned int flags;
};

/* What hetmem_torch_region() chose for a thread. */
struct torch_region {
	char tag[HM_TAG_LEN];
	unsigned int flags;
};

/* Between begin and end. */
struct torch_filter {
	struct torch_filter *next;
	struct torch_pool *pool;
	hetmem_torch_filter fn;
	void *data;
};

/*
 * A use on a stream that is captured, of a block that is no pool's: recorded when
 * all pools have ended. @freed: the block was freed meanwhile, and is freed then.
 */
struct torch_use {
	struct torch_use *next;
	struct hetmem_resource *res;
	void *ptr;
	hetmem_stream stream;
	bool freed;
};

static pthread_rwlock_t pools_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct torch_pool *pools;
/* The last begun first. */
static struct torch_filter *filters;
static unsigned int nr_filters;
static struct torch_use *uses;
static unsigned int nr_uses;
static uint64_t last_id = FIRST_ID;

static __thread struct torch_region region;
/* Some thread has had a region: the others do not look for theirs. */
static bool any_region;

static struct torch_choice choice_of(const struct torch_pool *pool)
{
	return (struct torch_choice){
		.over = pool->over, .id = pool->id, .flags = pool->flags,
	};
}

/* Sets *@choice for an allocation. Returns 0, or the error of the filter that failed. */
static int pool_for(int device, hetmem_stream stream, struct torch_choice *choice)
{
	const struct torch_filter *f;
	int wants = 0;

	*choice = (struct torch_choice){ 0 };
	if (!__atomic_load_n(&nr_filters, __ATOMIC_ACQUIRE))
		return 0;
	pthread_rwlock_rdlock(&pools_lock);
	for (f = filters; f && !wants; f = f->next) {
		if (f->pool->device != device)
			continue;
		wants = f->fn(f->data, stream);
		if (wants > 0)
			*choice = choice_of(f->pool);
	}
	pthread_rwlock_unlock(&pools_lock);
	return wants < 0 ? wants : 0;
}

/* With the lock, as what follows. One that was released is none. */
static struct torch_pool *find_pool(int device, uint64_t first, uint64_t second)
{
	struct torch_pool *pool;

	for (pool = pools; pool; pool = pool->next)
		if (pool->refs && pool->device == device &&
		    pool->first == first && pool->second == second)
			break;
	return pool;
}

static struct hetmem_resource *resource_of(const struct torch_pool *pool)
{
	return pool->over ? pool->over : hetmem_torch_resource(pool->device);
}

/* 0, or an error: the pool stays, to be given back later. */
static int give_back(const struct torch_pool *pool)
{
	struct hetmem_resource *res = resource_of(pool);
	struct hm_context saved;
	CUresult result;
	int err;

	if (!res)
		return -ENODEV;
	err = hm_context_enter(res->hm, pool->device, &saved);
	if (err)
		return err;
	/* Nothing tells on which streams its graphs were launched. */
	result = res->hm->driver.cuCtxSynchronize();
	hm_context_leave(res->hm, &saved);
	if (result)
		return -EBUSY;
	if (pool->dropped)
		hetmem_private_trim(res, pool->id, NULL);
	return hetmem_private_release(res, pool->id, HETMEM_STREAM_HOST);
}

/* With the lock: what waited for the end of all pools. */
static void record_uses(void)
{
	struct torch_use *u, *next;
	int err;

	/* Blocks are freed after all of their uses. */
	for (u = uses; u; u = u->next) {
		err = hetmem_record_stream(u->res, u->ptr, u->stream);
		if (err)
			complain("record_stream");
	}
	for (u = uses; u; u = next) {
		next = u->next;
		if (u->freed && hetmem_free(u->res, u->ptr, 0,
					    HETMEM_STREAM_UNKNOWN))
			complain("free");
		free(u);
	}
	uses = NULL;
	__atomic_store_n(&nr_uses, 0, __ATOMIC_RELEASE);
}

/* A block that is used on a stream that is captured. */
static void use_later(struct hetmem_resource *res, void *ptr,
		      hetmem_stream stream)
{
	struct torch_use *u = malloc(sizeof(*u));

	if (!u) {
		hm_error(-ENOMEM, "torch: no host memory");
		complain("record_stream");
		return;
	}
	pthread_rwlock_wrlock(&pools_lock);
	*u = (struct torch_use){
		.next = uses, .res = res, .ptr = ptr, .stream = stream,
	};
	uses = u;
	__atomic_add_fetch(&nr_uses, 1, __ATOMIC_RELEASE);
	if (!filters)
		record_uses();
	pthread_rwlock_unlock(&pools_lock);
}

/* Returns whether @ptr is freed when its uses are recorded. */
static bool free_later(void *ptr)
{
	struct torch_use *u;

	if (!__atomic_load_n(&nr_uses, __ATOMIC_ACQUIRE))
		return false;
	pthread_rwlock_wrlock(&pools_lock);
	for (u = uses; u && u->ptr != ptr; u = u->next)
		;
	if (u)
		u->freed = true;
	pthread_rwlock_unlock(&pools_lock);
	return u;
}

/*
 * All that were released; not while something may be captured. Adds them to *@ended, for
 * end_pools().
 */
static void give_all_back(struct torch_pool **ended)
{
	struct torch_pool **link = &pools, *pool;

	while (!filters && (pool = *link)) {
		if (pool->refs || give_back(pool)) {
			link = &pool->next;
			continue;
		}
		*link = pool->next;
		pool->next = *ended;
		*ended = pool;
	}
}

/* Without the lock: gone() can free memory by an allocator that uses these functions. */
static void end_pools(struct torch_pool *ended)
{
	struct torch_pool *next;

	for (; ended; ended = next) {
		next = ended->next;
		if (ended->gone)
			ended->gone(ended->data);
		free(ended);
	}
}

static int make_pool(int device, uint64_t first, uint64_t second,
		     struct torch_pool **made)
{
	struct hetmem_resource *res = hetmem_torch_resource(device);
	struct torch_pool *pool;
	int err;

	if (!res)
		return -ENODEV;
	pool = malloc(sizeof(*pool));
	if (!pool)
		return hm_error(-ENOMEM, "torch: no host memory");
	*pool = (struct torch_pool){
		.next = pools, .device = device,
		.first = first, .second = second, .id = ++last_id,
	};
	err = hetmem_private_retain(res, pool->id);
	if (err) {
		free(pool);
		return err;
	}
	pools = pool;
	*made = pool;
	return 0;
}

/* With the lock. Adds a reference to the pool, which it makes if there is none. */
static int retain_pool(int device, uint64_t first, uint64_t second,
		       struct torch_pool **pool)
{
	int err = 0;

	*pool = find_pool(device, first, second);
	if (!*pool)
		err = make_pool(device, first, second, pool);
	if (!err)
		(*pool)->refs++;
	return err;
}

int hetmem_torch_retain_pool(int device, uint64_t first, uint64_t second)
{
	struct torch_pool *pool;
	int err;

	pthread_rwlock_wrlock(&pools_lock);
	err = retain_pool(device, first, second, &pool);
	pthread_rwlock_unlock(&pools_lock);
	return err;
}

static int no_such_pool(void)
{
	return hm_error(-ENOENT, "torch: no such pool");
}

static int move_pool(struct torch_pool *pool, struct hetmem_resource *res)
{
	struct hetmem_resource *from = hetmem_torch_resource(pool->device);
	int err = hetmem_private_retain(res, pool->id);

	if (!err)
		hetmem_private_release(from, pool->id, HETMEM_STREAM_HOST);
	return err;
}

int hetmem_torch_pool_over(int device, uint64_t first, uint64_t second,
			   struct hetmem_resource *res, void (*gone)(void *data), void *data)
{
	struct torch_pool *pool;
	int err = 0;

	if (!res)
		return hm_error(-EINVAL, "torch: res is NULL");
	pthread_rwlock_wrlock(&pools_lock);
	pool = find_pool(device, first, second);
	if (!pool)
		err = no_such_pool();
	else if (pool->over)
		err = hm_error(-EBUSY, "torch: the pool has a resource");
	else
		err = move_pool(pool, res);
	if (!err) {
		pool->over = res;
		pool->gone = gone;
		pool->data = data;
	}
	pthread_rwlock_unlock(&pools_lock);
	return err;
}

int hetmem_torch_pool_flags(int device, uint64_t first, uint64_t second, unsigned int flags)
{
	struct torch_pool *pool;

	if (flags & ~HETMEM_ALLOC_WHOLE)
		return hm_error(-EINVAL, "torch: a pool has no flags but HETMEM_ALLOC_WHOLE");
	pthread_rwlock_wrlock(&pools_lock);
	pool = find_pool(device, first, second);
	if (pool)
		pool->flags = flags;
	pthread_rwlock_unlock(&pools_lock);
	return pool ? 0 : no_such_pool();
}

int hetmem_torch_pool_refs(int device, uint64_t first, uint64_t second)
{
	const struct torch_pool *pool;
	int refs;

	pthread_rwlock_rdlock(&pools_lock);
	pool = find_pool(device, first, second);
	refs = pool ? (int)pool->refs : 0;
	pthread_rwlock_unlock(&pools_lock);
	return refs;
}

static int begin_pool(int device, uint64_t first, uint64_t second,
		      struct torch_filter *f)
{
	int err = retain_pool(device, first, second, &f->pool);

	if (err)
		return err;
	f->next = filters;
	filters = f;
	__atomic_add_fetch(&nr_filters, 1, __ATOMIC_RELEASE);
	return 0;
}

int hetmem_torch_begin_pool(int device, uint64_t first, uint64_t second,
			    hetmem_torch_filter filter, void *data)
{
	struct torch_filter *f = filter ? malloc(sizeof(*f)) : NULL;
	int err;

	if (f) {
		*f = (struct torch_filter){ .fn = filter, .data = data };
		pthread_rwlock_wrlock(&pools_lock);
		err = begin_pool(device, first, second, f);
		pthread_rwlock_unlock(&pools_lock);
	} else {
		err = filter ? hm_error(-ENOMEM, "torch: no host memory") :
			hm_error(-EINVAL, "torch: filter is NULL");
	}
	if (err) {
		free(f);
		complain("begin_pool");
	}
	return err;
}

void *hetmem_torch_end_pool(int device, uint64_t first, uint64_t second)
{
	struct torch_filter **link = &filters, *f;
	struct torch_pool *ended = NULL;
	void *data = NULL;

	pthread_rwlock_wrlock(&pools_lock);
	while ((f = *link) && (f->pool->device != device ||
			       f->pool->first != first ||
			       f->pool->second != second))
		link = &f->next;
	if (f) {
		data = f->data;
		*link = f->next;
		free(f);
		__atomic_sub_fetch(&nr_filters, 1, __ATOMIC_RELEASE);
		if (!filters)
			record_uses();
		give_all_back(&ended);
	}
	pthread_rwlock_unlock(&pools_lock);
	end_pools(ended);
	return data;
}

static void put_pool(int device, uint64_t first, uint64_t second, bool drop)
{
	struct torch_pool *pool, *ended = NULL;

	if (is_forked())
		return;
	pthread_rwlock_wrlock(&pools_lock);
	pool = find_pool(device, first, second);
	if (pool) {
		pool->refs--;
		pool->dropped = drop;
		give_all_back(&ended);
	}
	pthread_rwlock_unlock(&pools_lock);
	if (!pool) {
		no_such_pool();
		complain("release_pool");
	}
	end_pools(ended);
}

void hetmem_torch_release_pool(int device, uint64_t first, uint64_t second)
{
	put_pool(device, first, second, false);
}

void hetmem_torch_drop_pool(int device, uint64_t first, uint64_t second)
{
	put_pool(device, first, second, true);
}

uint64_t hetmem_torch_private_pool(int device, uint64_t first, uint64_t second)
{
	const struct torch_pool *pool;
	uint64_t id;

	pthread_rwlock_rdlock(&pools_lock);
	pool = find_pool(device, first, second);
	id = pool ? pool->id : 0;
	pthread_rwlock_unlock(&pools_lock);
	return id;
}

int hetmem_torch_region(const char *tag, unsigned int flags)
{
	const size_t len = tag ? strnlen(tag, HM_TAG_LEN) : 0;

	if (tag && !len)
		return hm_error(-EINVAL, "torch: the tag is empty: give NULL for no tag");
	if (len == HM_TAG_LEN)
		return hm_error(-EINVAL, "torch: the tag has more than %d bytes", HM_TAG_LEN - 1);
	if (flags & ~HETMEM_ALLOC_SCRATCH)
		return hm_error(-EINVAL, "torch: a region has no flags except HETMEM_ALLOC_SCRATCH");
	memset(&region, 0, sizeof(region));
	if (tag)
		memcpy(region.tag, tag, len);
	region.flags = flags;
	__atomic_store_n(&any_region, true, __ATOMIC_RELAXED);
	return 0;
}

static bool has_region(void)
{
	return hm_unlikely(__atomic_load_n(&any_region, __ATOMIC_RELAXED)) &&
		(*region.tag || region.flags);
}

static int alloc_chosen(struct hetmem_resource *res, const struct torch_choice *choice,
			size_t size, hetmem_stream stream, void **ptr)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params),
		.bytes = size,
		.stream = stream,
		.private_pool = choice->id,
		.flags = choice->flags,
	};

	/* Memory of an allocator's own sleeps as that allocator does. */
	if (!choice->over && has_region()) {
		params.tag = *region.tag ? region.tag : NULL;
		params.flags |= region.flags;
	}
	return hetmem_alloc_with(choice->over ? choice->over : res, &params, ptr);
}

static int alloc(struct hetmem_resource *res, size_t size, int device,
		 hetmem_stream stream, void **ptr)
{
	struct torch_choice choice;
	int err = pool_for(device, stream, &choice);

	if (err)
		return hm_error(err, "torch: a pool's filter failed");
	if (choice.id || has_region())
		return alloc_chosen(res, &choice, size, stream, ptr);
	return hetmem_alloc(res, size, 0, stream, ptr);
}

int hetmem_torch_pool_alloc(int device, uint64_t first, uint64_t second, size_t size,
			    hetmem_stream stream, void **ptr)
{
	const struct torch_pool *pool;
	struct torch_choice choice;
	struct hetmem_resource *res;
	struct hm_context saved;
	int err = find_resource(device, &res);

	if (err)
		return err;
	pthread_rwlock_rdlock(&pools_lock);
	pool = find_pool(device, first, second);
	if (pool)
		choice = choice_of(pool);
	pthread_rwlock_unlock(&pools_lock);
	err = pool ? enter(res, device, &saved) : no_such_pool();
	if (err)
		return err;
	err = alloc_chosen(res, &choice, size, stream, ptr);
	hm_context_leave(res->hm, &saved);
	return err;
}

int hetmem_torch_try_alloc(size_t size, int device, hetmem_stream stream,
			   void **ptr)
{
	struct hetmem_resource *res;
	struct hm_context saved;
	int err = find_resource(device, &res);

	if (!err)
		err = enter(res, device, &saved);
	if (err)
		return err;
	err = alloc(res, size, device, stream, ptr);
	hm_context_leave(res->hm, &saved);
	return err;
}

void *hetmem_torch_alloc(size_t size, int device, hetmem_stream stream)
{
	void *ptr = NULL;

	if (hm_unlikely(hetmem_torch_try_alloc(size, device, stream, &ptr))) {
		complain("alloc");
		return NULL;
	}
	return ptr;
}

void hetmem_torch_free(void *ptr, size_t size, int device,
		       hetmem_stream stream)
{
	struct hetmem_resource *res;
	struct hm_context saved;
	struct torch_choice choice;
	int err = -ENODEV;

	/* The memory of an inherited block is the parent's: that is no error. */
	if (!ptr || is_forked() || free_later(ptr))
		return;
	res = hetmem_torch_resource(device);
	/*
	 * PyTorch frees on the stream of the allocation. A stream that is captured, or whose
	 * filter failed, must not be asked for its id.
	 */
	if (pool_for(device, stream, &choice) || choice.id)
		stream = HETMEM_STREAM_UNKNOWN;
	if (res && !enter(res, device, &saved)) {
		err = hetmem_free(res, ptr, size, stream);
		hm_context_leave(res->hm, &saved);
	}
	/* At the end of a process the driver may be gone before its memory. */
	if (hm_unlikely(err) && err != -EIO)
		complain("free");
}

/*
 * PyTorch does not say whose a pointer is: that of whom a block begins there,
 * else is around it. *@ptr is where it begins then, *@size what it has.
 */
static struct hetmem_resource *whose(void **ptr, size_t *size)
{
	struct hetmem_resource *res;
	int i, first;

	for (first = 1; first >= 0; first--) {
		for (i = 0; i < HM_MAX_DEVICES; i++) {
			struct hm_ctl_owns owns = {
				.ptr = *ptr, .first = first,
			};

			res = __atomic_load_n(&torch_resources[i],
					      __ATOMIC_ACQUIRE);
			if (!res || res->ops->ctl(res, HM_CTL_OWNS, &owns))
				continue;
			*ptr = owns.base;
			if (size)
				*size = owns.size;
			return res;
		}
	}
	return NULL;
}

void hetmem_torch_record_stream(void *ptr, hetmem_stream stream)
{
	struct hetmem_resource *res;
	void *base = ptr;
	int err;

	if (!ptr)
		return;
	res = whose(&base, NULL);
	err = res ? hetmem_record_stream(res, base, stream) : -ENODEV;
	if (err == -EBUSY)
		use_later(res, base, stream);
	else if (err)
		complain("record_stream");
}

void *hetmem_torch_base_alloc(void *ptr, size_t *size)
{
	return whose(&ptr, size) ? ptr : NULL;
}

void hetmem_torch_init(int device_count)
{
	struct hetmem *hm;

	(void)device_count;
	if (open_once(&hm))
		complain("init");
}

void hetmem_torch_reset(void)
{
	struct torch_pool *ended = NULL;
	struct hetmem_resource *res;
	int i;

	pthread_rwlock_wrlock(&pools_lock);
	give_all_back(&ended);
	pthread_rwlock_unlock(&pools_lock);
	end_pools(ended);
	for (i = 0; i < HM_MAX_DEVICES; i++) {
		res = __atomic_load_n(&torch_resources[i], __ATOMIC_ACQUIRE);
		if (!res)
			continue;
		hetmem_poll(res);
		if (hetmem_trim(res, 0, NULL) < 0)
			complain("reset");
	}
}

void *hetmem_cupy_alloc(void *stream, size_t size, int device)
{
	return size ? hetmem_torch_alloc(size, device, stream) : NULL;
}

void hetmem_cupy_free(void *stream, void *ptr, int device)
{
	(void)stream;
	hetmem_torch_free(ptr, 0, device, HETMEM_STREAM_UNKNOWN);
}
