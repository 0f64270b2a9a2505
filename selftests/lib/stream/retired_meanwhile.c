// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A stream that another thread retires while a call has looked it up and has no lock yet: the
 * call looks it up again. What is freed on it then is behind the work that it was given after
 * the retire, and its slot, which may be another stream's, is not touched.
 *
 * The other thread is played by the driver's call in the lookup.
 */
#include "block_of.h"
#include "pool_gate.h"

#define SMALL	((size_t)4 << 10)
/* A cached block of SMALL serves it, and is no hit. */
#define SMALLER	(SMALL - 1024)
#define LARGE	(4 * MIB)

static CUstream retired, next;
static void (*meanwhile)(void);
static unsigned int asked;

/* The stream that has the handle of @retired now, or NULL: that itself. */
static CUstream reused;

static CUresult get_id(CUstream s, unsigned long long *id)
{
	CUresult res = real.cuStreamGetId(reused && s == retired ? reused : s, id);
	void (*act)(void) = meanwhile;

	meanwhile = NULL;
	asked++;
	if (act)
		act();
	return res;
}

/* It has no work then, and the pool knows. */
static void retire_complete(void)
{
	need(!hetmem_stream_retire(pool, retired), "retire: %s", hetmem_last_error());
	need(!drv->cuStreamSynchronize(retired), "its end");
	need(!hetmem_poll(pool), "poll");
}

static void retire_and_hold_up(void)
{
	retire_complete();
	close_gate(retired);
}

static void *freed_on_next;

/* The next stream gets the slot, and frees what it still uses. */
static void retire_and_pass_on(void)
{
	retire_complete();
	freed_on_next = get(SMALL, next);
	close_gate(next);
	put(freed_on_next, SMALL, next);
}

static void begin(const char *provider)
{
	make_pool(provider, NULL);
	retired = new_stream();
	next = new_stream();
}

static void end(const char *provider)
{
	open_gate();
	drv->cuCtxSynchronize();
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", provider);
	drv->cuStreamDestroy(retired);
	drv->cuStreamDestroy(next);
}

static void *allocate(void *size)
{
	drv->cuCtxSetCurrent(NULL);
	need(!drv->cuCtxSetCurrent(hm->devices[0].ctx), "the context");
	return get(*(size_t *)size, retired);
}

/*
 * The block is the rest of one of @had bytes. @other: another thread allocates, and so owns
 * the stream's cache. @private: no free hits, because a private pool's blocks are asked for.
 */
static void free_meanwhile(const char *provider, size_t had, size_t size, bool other,
			   bool private)
{
	pthread_t id;
	void *p, *q;

	begin(provider);
	put(get(had, retired), had, retired);
	p = NULL;
	if (other) {
		need(!pthread_create(&id, NULL, allocate, &size) && !pthread_join(id, &p),
		     "a thread");
	} else {
		p = get(size, retired);
	}
	if (private)
		need(!hetmem_private_retain(pool, 1), "%s", hetmem_last_error());
	meanwhile = retire_and_hold_up;
	put(p, size, retired);
	need(!meanwhile, "the stream was looked up");
	is(hetmem_poll(pool), 0, "%s, %zu: freed on a stream that was retired meanwhile",
	   provider, size);
	q = get(size, HETMEM_STREAM_HOST);
	ok(q != p, "%s, %zu%s: is in use until the stream gets there", provider, size,
	   other ? ", by another thread" : "");
	put(q, size, HETMEM_STREAM_HOST);
	if (private)
		need(!hetmem_private_release(pool, 1, HETMEM_STREAM_HOST), "%s",
		     hetmem_last_error());
	end(provider);
}

static void alloc_meanwhile(const char *provider, size_t size)
{
	void *p;

	begin(provider);
	put(get(SMALL, retired), SMALL, retired);
	meanwhile = retire_and_pass_on;
	p = get(size, retired);
	need(!meanwhile, "the stream was looked up");
	ok(p != freed_on_next, "%s: what the next stream in its slot cached is not its own",
	   provider);
	ok(gets_through(retired), "%s: and it waits for nothing", provider);
	put(p, size, retired);
	end(provider);
}

/* A free goes to the stream, not to the next in its slot, which would use it at once. */
static void free_beside(const char *provider, size_t size, bool private)
{
	void *p, *q;

	begin(provider);
	put(get(SMALL, retired), SMALL, retired);
	p = get(size, retired);
	if (private)
		need(!hetmem_private_retain(pool, 1), "%s", hetmem_last_error());
	meanwhile = retire_and_pass_on;
	put(p, size, retired);
	need(!meanwhile, "the stream was looked up");
	if (private)
		need(!hetmem_private_release(pool, 1, HETMEM_STREAM_HOST), "%s",
		     hetmem_last_error());
	open_gate();
	need(!drv->cuStreamSynchronize(next), "the next stream's work");
	close_gate(retired);
	/* Its own is the first that it finds, and then there is no other. */
	q = get(SMALL, next);
	ok(q == freed_on_next, "%s: the next stream has what it freed", provider);
	put(q, SMALL, next);
	end(provider);
}

static CUresult retire_in_sync(void)
{
	hm->driver.cuCtxSynchronize = real.cuCtxSynchronize;
	retire_complete();
	need(!hetmem_poll(pool), "poll");
	freed_on_next = get(SMALL, next);
	open_gate();
	return real.cuCtxSynchronize();
}

/*
 * An allocation that waits for the context of a stream that was destroyed: its own stream
 * keeps its slot until then.
 */
static void retire_while_waiting(void)
{
	struct hm_pool_options opt = { .max = 32 * MIB };
	CUstream lost = new_stream();
	struct hm_ctl_owns block;
	void *p;

	make_pool("vmm", &opt);
	retired = new_stream();
	next = new_stream();
	put(get(SMALL, retired), SMALL, retired);
	p = get(24 * MIB, lost);
	close_gate(lost);
	put(p, 24 * MIB, lost);
	drv->cuStreamDestroy(lost);
	hm->driver.cuCtxSynchronize = retire_in_sync;
	p = get(20 * MIB, retired);
	need(hm->driver.cuCtxSynchronize != retire_in_sync, "it waited");
	need(!block_of(pool, p, &block), "the block");
	ok(block.stream == HETMEM_STREAM_UNKNOWN,
	   "what was waited for is not the next stream's in the slot");
	put(p, 0, HETMEM_STREAM_UNKNOWN);
	put(freed_on_next, SMALL, next);
	end("vmm");
}

/* The lookup of a call that fails to hit serves the rest of that call. */
static void ask_once(const char *provider)
{
	const size_t sizes[] = { SMALL, SMALLER, LARGE };
	pthread_t id;
	size_t i;
	void *p;

	begin(provider);
	put(get(SMALL, retired), SMALL, retired);
	put(get(SMALL, retired), SMALL, retired);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		asked = 0;
		p = get(sizes[i], retired);
		is(asked, 1, "%s, %zu: the driver is asked once for an allocation", provider,
		   sizes[i]);
		asked = 0;
		put(p, sizes[i], retired);
		is(asked, 1, "%s, %zu: and once for its free", provider, sizes[i]);
	}
	i = SMALL;
	p = NULL;
	need(!pthread_create(&id, NULL, allocate, &i) && !pthread_join(id, &p) && p, "a thread");
	asked = 0;
	put(p, SMALL, retired);
	is(asked, 1, "%s: and for that of another thread's block", provider);
	asked = 0;
	put(get(SMALL, retired), SMALL, retired);
	is(asked, 2, "%s: and for each call after another thread's", provider);
	hetmem_stream_retire(pool, retired);
	end(provider);
}

static struct hetmem_resource *other;

static void use_other_pool(void)
{
	void *p = NULL;

	need(!hetmem_alloc(other, SMALL, 0, retired, &p) &&
	     !hetmem_free(other, p, SMALL, retired), "%s", hetmem_last_error());
}

/* The driver's call allocates from another pool, on the same stream. */
static void other_pool_meanwhile(const char *provider)
{
	struct hm_ctl_owns block;
	unsigned int i;
	void *p, *q;

	begin(provider);
	need(!hetmem_resource_create(hm, "pool(device)", &other), "another pool");
	/* Both have one block, which is cached. */
	for (i = 0; i < 3; i++) {
		use_other_pool();
		put(get(SMALL, retired), SMALL, retired);
	}
	meanwhile = use_other_pool;
	p = get(SMALL, retired);
	need(!meanwhile, "the stream was looked up");
	ok(!block_of(pool, p, &block), "%s: a block of the pool, not of the other", provider);
	q = get(SMALL, retired);
	ok(p != q, "%s: which is given out once", provider);
	put(q, SMALL, retired);
	meanwhile = use_other_pool;
	put(p, SMALL, retired);
	need(!meanwhile, "the stream was looked up");
	is(pool_stats().live, 0, "%s: and freed", provider);
	is(hetmem_resource_destroy(other), 0, "%s: the other has all of its blocks", provider);
	end(provider);
}

/* A thread hits the cache of a stream; then its handle is another stream's, without retire. */
static void hit_by_another(const char *provider)
{
	void *p, *q;
	int i;

	begin(provider);
	for (i = 0; i < 3; i++) {
		p = get(SMALL, retired);
		put(p, SMALL, retired);
	}
	close_gate(retired);
	p = get(SMALL, retired);
	put(p, SMALL, retired);
	reused = next;
	q = get(SMALL, retired);
	ok(p != q, "%s: the cache of a stream does not serve the one that got its handle", provider);
	put(q, SMALL, retired);
	reused = NULL;
	end(provider);
}

int main(void)
{
	static const char *const providers[] = { "device", "vmm" };
	size_t i;

	open_soft("");
	count_calls();
	hm->driver.cuStreamGetId = get_id;
	for (i = 0; i < sizeof(providers) / sizeof(providers[0]); i++) {
		free_meanwhile(providers[i], LARGE, LARGE, false, false);
		free_meanwhile(providers[i], SMALL, SMALL, false, false);
		free_meanwhile(providers[i], SMALL, SMALLER, false, false);
		free_meanwhile(providers[i], SMALL, SMALL, true, false);
		free_meanwhile(providers[i], SMALL, SMALL, false, true);
		free_meanwhile(providers[i], SMALL, SMALL, true, true);
		alloc_meanwhile(providers[i], SMALL);
		alloc_meanwhile(providers[i], SMALLER);
		free_beside(providers[i], SMALL, false);
		free_beside(providers[i], SMALLER, false);
		free_beside(providers[i], SMALL, true);
		ask_once(providers[i]);
		other_pool_meanwhile(providers[i]);
		hit_by_another(providers[i]);
	}
	retire_while_waiting();
	close_soft();
	return tap_end();
}
