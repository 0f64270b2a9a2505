// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The custom provider: memory that callbacks of the program hand out. They are
 * registered by name, and copied; each resource that is made of them holds a
 * reference.
 *
 * A callback is not trusted to be right. Each call is made with no lock of this
 * file, inside hm_callback_enter(), so that re-entrance is refused. A result
 * other than 0 is -ENOMEM or -EIO; a callback's own -EUCLEAN or -EBUSY would
 * mean something else to the pool. What a callback hands out must be aligned,
 * and must not overlap what it handed out before: regions and reservations are
 * kept in a tree. A region leaves the tree before the callback takes it back,
 * because another thread can be given the same addresses at once.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "provider/regions.h"

#define NAME_MAX_LEN	31
/* The first version's size. */
#define FIRST_SIZE	sizeof(struct hetmem_provider)
/* The pool counts pages of a reservation by 32 bits. */
#define MAX_PAGES	((uint64_t)1 << 31)
#define MAX_TOTAL_PAGES	((uint64_t)1 << 24)

/**
 * struct hm_custom - what the program registered
 * @refs: providers that are made of it; with hm->lock
 */
struct hm_custom {
	struct hm_custom *next;
	char name[NAME_MAX_LEN + 1];
	struct hetmem_provider calls;
	void *data;
	unsigned int refs;
};

/**
 * struct custom - the provider
 * @lock: protects @out, a tree of regions or reservations
 */
struct custom {
	struct hm_provider provider;
	struct hm_custom *custom;
	struct hm_lock lock;
	void *out;
};

static const struct hetmem_provider *calls_of(struct hm_provider *self)
{
	return &((struct custom *)self)->custom->calls;
}

static void *data_of(struct hm_provider *self)
{
	return ((struct custom *)self)->custom->data;
}

static const char *name_of(struct hm_provider *self)
{
	return ((struct custom *)self)->custom->name;
}

/* Calling. */

struct call {
	struct hm_callback callback;
	struct hm_context saved;
	bool entered;
};

/* 0, and call_end() follows the callback; or an error, and nothing does. */
static int call_begin(struct hm_provider *self, struct call *call)
{
	int err = hm_check_owner(self->hm);

	if (err && !(self->caps & HM_PROVIDER_FORK))
		return err;
	call->entered = !err && self->device >= 0;
	if (call->entered) {
		err = hm_provider_enter(self, &call->saved);
		if (err)
			return err;
	}
	hm_callback_enter(&call->callback, self);
	return 0;
}

/* Returns what @result of the callback @what means. */
static int call_end(struct hm_provider *self, struct call *call,
		    const char *what, int result)
{
	hm_callback_leave(&call->callback);
	if (call->entered)
		hm_context_leave(self->hm, &call->saved);
	if (!result)
		return 0;
	if (result == -ENOMEM)
		return hm_error(-ENOMEM, "custom: %s of %s: no memory", what,
				name_of(self));
	return hm_error(-EIO, "custom: %s of %s returned %d: it is to return 0 or -ENOMEM",
			what, name_of(self), result);
}

/* What is out. */

/* @range, allocated, is out from now on. -EIO: it cannot be. */
static int range_add(struct hm_provider *self, const char *what,
		     struct hm_range *range)
{
	struct custom *c = (struct custom *)self;
	int err;

	hm_lock(&c->lock);
	err = hm_range_insert(&c->out, range);
	hm_unlock(&c->lock);
	if (err == -EEXIST)
		return hm_error(-EIO, "custom: %s of %s returned %#lx, which overlaps memory that is still out",
				what, name_of(self),
				(unsigned long)range->start);
	return err ? hm_error(err, "custom: no host memory") : 0;
}

static bool is_overlap(struct hm_provider *self, const void *ptr, size_t size)
{
	struct custom *c = (struct custom *)self;
	bool overlap;

	hm_lock(&c->lock);
	overlap = hm_range_find(&c->out, (uintptr_t)ptr, size);
	hm_unlock(&c->lock);
	return overlap;
}

/* The range that is exactly [@start, @start + @size) is out no more. */
static struct hm_range *range_take(struct hm_provider *self, uintptr_t start,
				   size_t size)
{
	struct custom *c = (struct custom *)self;
	struct hm_range *range;

	hm_lock(&c->lock);
	range = hm_range_find(&c->out, start, 1);
	if (range && range->start == start && range->end == start + size)
		hm_range_erase(&c->out, range);
	else
		range = NULL;
	hm_unlock(&c->lock);
	return range;
}

/* The callback did not take it back: it is out again, or only not checked. */
static void range_put_back(struct hm_provider *self, struct hm_range *range)
{
	struct custom *c = (struct custom *)self;

	hm_lock(&c->lock);
	if (range && hm_range_insert(&c->out, range))
		free(range);
	hm_unlock(&c->lock);
}

/* 0, or -EIO: what a callback returned is no range of @size bytes. */
static int range_check(struct hm_provider *self, const char *what,
		       const void *ptr, size_t size, size_t align)
{
	const uintptr_t start = (uintptr_t)ptr;

	if (!ptr)
		return hm_error(-EIO, "custom: %s of %s returned 0 and NULL",
				what, name_of(self));
	if (start & (align - 1))
		return hm_error(-EIO, "custom: %s of %s returned %p, which is not a multiple of %zu",
				what, name_of(self), ptr, align);
	if (start + size < start)
		return hm_error(-EIO, "custom: %s of %s returned %p, after which there are no %zu bytes",
				what, name_of(self), ptr, size);
	return 0;
}

static int call_put(struct hm_provider *self, const char *what,
		    int (*put)(void *data, void *ptr, size_t size), void *ptr,
		    size_t size)
{
	struct call call;
	int err = call_begin(self, &call);

	return err ? err : call_end(self, &call, what,
				    put(data_of(self), ptr, size));
}

/*
 * @range: of @ptr, which a callback just handed out. After an error it is freed,
 * and @ptr is given back, unless it is another range's.
 */
static int range_got(struct hm_provider *self, const char *what,
		     struct hm_range *range, void *ptr, size_t size,
		     size_t align,
		     int (*put)(void *data, void *ptr, size_t size))
{
	int err = range_check(self, what, ptr, size, align);
	char text[256];

	range->start = (uintptr_t)ptr;
	range->end = range->start + size;
	if (!err)
		err = range_add(self, what, range);
	else if (!ptr || range->end < range->start)
		ptr = NULL;
	if (!err)
		return 0;
	free(range);
	if (ptr && !is_overlap(self, ptr, size)) {
		snprintf(text, sizeof(text), "%s", hetmem_last_error());
		call_put(self, "giving back", put, ptr, size);
		hm_error(err, "%s", text);
	}
	return err;
}

static int range_given(struct hm_provider *self, const char *what,
		       int (*put)(void *data, void *ptr, size_t size),
		       void *ptr, size_t size)
{
	struct hm_range *range = range_take(self, (uintptr_t)ptr, size);
	int err = call_put(self, what, put, ptr, size);

	if (err)
		range_put_back(self, range);
	else
		free(range);
	return err;
}

/* A region, or addresses: @get hands out what @put takes back. */
static int range_get(struct hm_provider *self, const char *what, size_t size,
		     size_t align,
		     int (*get)(struct hm_provider *self, size_t size,
				size_t align, void **ptr),
		     int (*put)(void *data, void *ptr, size_t size), void **out)
{
	struct hm_range *range = malloc(sizeof(*range));
	struct call call;
	void *ptr = NULL;
	int err;

	if (!range)
		return hm_error(-ENOMEM, "custom: no host memory");
	err = call_begin(self, &call);
	if (!err)
		err = call_end(self, &call, what,
			       get(self, size, align, &ptr));
	if (err) {
		free(range);
		return err;
	}
	err = range_got(self, what, range, ptr, size, align, put);
	if (!err)
		*out = ptr;
	return err;
}

static int get_region(struct hm_provider *self, size_t size, size_t align,
		      void **ptr)
{
	(void)align;
	return calls_of(self)->alloc(data_of(self), size, ptr);
}

static int get_addresses(struct hm_provider *self, size_t size, size_t align,
			 void **addr)
{
	return calls_of(self)->reserve(data_of(self), size, align, addr);
}

static int custom_alloc(struct hm_provider *self, size_t size,
			hetmem_stream stream, void **ptr)
{
	int err = range_get(self, "alloc", size, self->granularity, get_region,
			    calls_of(self)->free, ptr);

	(void)stream;
	/* If it is a live block of another resource, check mode must not take it for two. */
	if (!err)
		hm_check_free(self->hm, *ptr, size, HETMEM_STREAM_HOST);
	return err;
}

static int custom_free(struct hm_provider *self, void *ptr, size_t size,
		       hetmem_stream stream)
{
	(void)stream;
	hm_check_forget(self->hm, ptr, size);
	return range_given(self, "free", calls_of(self)->free, ptr, size);
}

static int custom_reserve(struct hm_provider *self, size_t size, size_t align,
			  uintptr_t *addr)
{
	void *start;
	int err;

	if (size / self->granularity >= MAX_PAGES)
		return hm_error(-ENOMEM, "custom: %zu bytes of addresses are more than a pool has",
				size);
	err = range_get(self, "reserve", size, align < self->granularity ?
			self->granularity : align, get_addresses,
			calls_of(self)->unreserve, &start);
	if (!err)
		*addr = (uintptr_t)start;
	return err;
}

static int custom_unreserve(struct hm_provider *self, uintptr_t addr,
			    size_t size)
{
	return range_given(self, "unreserve", calls_of(self)->unreserve,
			   (void *)addr, size);
}

static int custom_create(struct hm_provider *self, size_t size, bool rdma,
			 uint64_t *handle)
{
	uint64_t made = 0;
	struct call call;
	int err = call_begin(self, &call);

	(void)rdma;
	if (!err)
		err = call_end(self, &call, "create",
			       calls_of(self)->create(data_of(self), size,
						      &made));
	if (!err)
		*handle = made;
	return err;
}

static int custom_release(struct hm_provider *self, uint64_t handle)
{
	struct call call;
	int err = call_begin(self, &call);

	return err ? err : call_end(self, &call, "release",
			calls_of(self)->release(data_of(self), handle));
}

static int custom_map(struct hm_provider *self, uintptr_t addr, size_t size,
		      uint64_t handle)
{
	struct call call;
	int err = call_begin(self, &call);

	return err ? err : call_end(self, &call, "map",
			calls_of(self)->map(data_of(self), (void *)addr, size,
					    handle));
}

static int custom_unmap(struct hm_provider *self, uintptr_t addr, size_t size)
{
	hm_check_forget(self->hm, (void *)addr, size);
	return call_put(self, "unmap", calls_of(self)->unmap, (void *)addr,
			size);
}

static void let_go(struct hm_custom *custom, struct hetmem *hm)
{
	pthread_mutex_lock(&hm->lock);
	custom->refs--;
	pthread_mutex_unlock(&hm->lock);
}

static void custom_destroy(struct hm_provider *self)
{
	struct custom *c = (struct custom *)self;
	struct hm_range *range;

	while ((range = hm_range_any(&c->out))) {
		hm_range_erase(&c->out, range);
		free(range);
	}
	hm_lock_destroy(&c->lock);
	let_go(c->custom, self->hm);
	free(c);
}

static const struct hm_provider_ops region_ops = {
	.name = "custom",
	.alloc = custom_alloc,
	.free = custom_free,
	.destroy = custom_destroy,
};

static const struct hm_provider_ops mapped_ops = {
	.name = "custom",
	.reserve = custom_reserve,
	.unreserve = custom_unreserve,
	.create = custom_create,
	.release = custom_release,
	.map = custom_map,
	.unmap = custom_unmap,
	.destroy = custom_destroy,
};

/* Registered by name. */

/* With hm->lock. */
static struct hm_custom **find(struct hetmem *hm, const char *name)
{
	struct hm_custom **link = &hm->customs;

	while (*link && strcmp((*link)->name, name))
		link = &(*link)->next;
	return link;
}

int hm_custom_provider(struct hetmem *hm, const char *name,
		       struct hm_provider **out)
{
	const struct hetmem_provider *calls;
	struct hm_custom *custom;
	struct custom *c = calloc(1, sizeof(*c));

	if (!c)
		return hm_error(-ENOMEM, "custom: no host memory");
	pthread_mutex_lock(&hm->lock);
	custom = *find(hm, name);
	if (custom)
		custom->refs++;
	pthread_mutex_unlock(&hm->lock);
	if (!custom) {
		free(c);
		return hm_error(-EINVAL, "custom: nothing is registered as '%s': call hetmem_provider_register() first",
				name);
	}
	calls = &custom->calls;
	c->custom = custom;
	hm_lock_init(&c->lock, HM_FORK_PROVIDER);
	c->provider.ops = calls->alloc ? &region_ops : &mapped_ops;
	c->provider.hm = hm;
	c->provider.device = calls->device;
	c->provider.devices = calls->devices;
	c->provider.caps = (calls->alloc ? 0 : HM_PROVIDER_MAPPABLE) |
		(calls->device >= 0 ? HM_PROVIDER_DEVICE : 0) |
		(calls->flags & HETMEM_PROVIDER_HOST ? HM_PROVIDER_HOST : 0) |
		(calls->flags & HETMEM_PROVIDER_FORK ? HM_PROVIDER_FORK : 0);
	c->provider.granularity = calls->granularity;
	c->provider.total = calls->total;
	*out = &c->provider;
	return 0;
}

static int bad(const char *why)
{
	return hm_error(-EINVAL, "provider_register: %s", why);
}

/* All of a struct that is not older than the first, and not newer in use. */
static int copy_calls(const struct hetmem_provider *from,
		      struct hetmem_provider *calls)
{
	const unsigned char *bytes = (const unsigned char *)from;
	size_t i;

	if (from->size < FIRST_SIZE)
		return hm_error(-EINVAL, "provider_register: provider->size is %zu, set it to sizeof(struct hetmem_provider)",
				from->size);
	for (i = sizeof(*calls); i < from->size; i++)
		if (bytes[i])
			return hm_error(-E2BIG, "provider_register: a member is set that this library does not know");
	memcpy(calls, from, sizeof(*calls));
	if (calls->version != HETMEM_PROVIDER_VERSION)
		return hm_error(-EOPNOTSUPP, "provider_register: version %u is not known, %d is",
				calls->version, HETMEM_PROVIDER_VERSION);
	return 0;
}

static int check_callbacks(const struct hetmem_provider *calls)
{
	const bool mapped = calls->reserve || calls->unreserve ||
		calls->create || calls->release || calls->map || calls->unmap;

	if (mapped && (calls->alloc || calls->free))
		return bad("alloc and free are for regions, reserve and the like for memory that is mapped: set those of one kind");
	if (!mapped)
		return calls->alloc && calls->free ? 0 :
			bad(calls->alloc ? "free is NULL" : "alloc is NULL");
	return !calls->reserve ? bad("reserve is NULL") :
		!calls->unreserve ? bad("unreserve is NULL") :
		!calls->create ? bad("create is NULL") :
		!calls->release ? bad("release is NULL") :
		!calls->map ? bad("map is NULL") :
		!calls->unmap ? bad("unmap is NULL") : 0;
}

/* What only memory that is mapped has to be. */
static int check_mapped(const struct hetmem *hm,
			const struct hetmem_provider *calls)
{
	if (calls->granularity < hm->page_size)
		return bad("granularity is less than a page");
	if (calls->flags & HETMEM_PROVIDER_FORK)
		return bad("HETMEM_PROVIDER_FORK is for regions only");
	if (calls->total < calls->granularity)
		return bad("total is less than granularity: the pool reserves addresses by it");
	if (calls->total / calls->granularity > MAX_TOTAL_PAGES)
		return bad("granularity is too small for so much memory");
	return 0;
}

static int check_calls(const struct hetmem *hm,
		       const struct hetmem_provider *calls)
{
	const uint64_t known = hm->nr_devices < HM_MAX_DEVICES ?
		(1ULL << hm->nr_devices) - 1 : UINT64_MAX;
	int err = check_callbacks(calls);

	if (err)
		return err;
	if (calls->flags & ~(HETMEM_PROVIDER_HOST | HETMEM_PROVIDER_FORK))
		return bad("unknown flags");
	if (calls->device < -1 || calls->device >= hm->nr_devices)
		return hm_no_device(hm, "provider_register", calls->device);
	if (calls->devices & ~known)
		return hm_no_device(hm, "provider_register: devices",
				    __builtin_ctzll(calls->devices & ~known));
	if (!(calls->flags & HETMEM_PROVIDER_HOST) && !calls->devices &&
	    calls->device < 0)
		return bad("nobody can use the memory: set HETMEM_PROVIDER_HOST, device or devices");
	if (calls->granularity < HETMEM_ALIGNMENT ||
	    calls->granularity > (size_t)1 << 40 ||
	    calls->granularity & (calls->granularity - 1))
		return bad("granularity must be a power of two, 512 to 2^40");
	return calls->alloc ? 0 : check_mapped(hm, calls);
}

static int check_name(const char *name)
{
	size_t n = strlen(name), i;

	for (i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && name[i] != '-' &&
		    name[i] != '_')
			break;
	return n && n <= NAME_MAX_LEN && i == n ? 0 :
		bad("name must be 1 to 31 letters, digits, - and _");
}

int hetmem_provider_register(struct hetmem *hm, const char *name,
			     const struct hetmem_provider *provider,
			     void *data)
{
	struct hm_custom *custom;
	int err;

	if (!hm || !name || !provider)
		return bad(!hm ? "hm is NULL" : !name ? "name is NULL" :
			   "provider is NULL");
	err = hm_check_owner(hm);
	if (!err)
		err = check_name(name);
	if (err)
		return err;
	custom = calloc(1, sizeof(*custom));
	if (!custom)
		return hm_error(-ENOMEM, "provider_register: no memory");
	err = copy_calls(provider, &custom->calls);
	if (!err)
		err = check_calls(hm, &custom->calls);
	if (err) {
		free(custom);
		return err;
	}
	if (custom->calls.device >= 0)
		custom->calls.devices |= 1ULL << custom->calls.device;
	strcpy(custom->name, name);
	custom->data = data;
	pthread_mutex_lock(&hm->lock);
	if (*find(hm, name)) {
		err = -EEXIST;
	} else {
		custom->next = hm->customs;
		hm->customs = custom;
	}
	pthread_mutex_unlock(&hm->lock);
	if (!err)
		return 0;
	free(custom);
	return hm_error(err, "provider_register: '%s' is registered", name);
}

int hetmem_provider_unregister(struct hetmem *hm, const char *name)
{
	struct hm_custom **link, *custom;
	int err = 0;

	if (!hm || !name)
		return hm_error(-EINVAL, "provider_unregister: %s is NULL",
				hm ? "name" : "hm");
	pthread_mutex_lock(&hm->lock);
	link = find(hm, name);
	custom = *link;
	if (!custom)
		err = -ENOENT;
	else if (custom->refs)
		err = -EBUSY;
	else
		*link = custom->next;
	pthread_mutex_unlock(&hm->lock);
	if (err)
		return hm_error(err, err == -ENOENT ?
				"provider_unregister: '%s' is not registered" :
				"provider_unregister: a resource is made of '%s'",
				name);
	free(custom);
	return 0;
}

void hm_custom_close(struct hetmem *hm)
{
	struct hm_custom *custom;

	while ((custom = hm->customs)) {
		hm->customs = custom->next;
		free(custom);
	}
}
