// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * HETMEM_ALLOC_WHOLE: blocks of a private pool that share no handle and no region with
 * another block, from their allocation until the private pool is released.
 */
#include "alloc_with.h"
#include "pool_gate.h"

static CUcontext context;

static void make(const char *provider, const char *options)
{
	char spec[80];

	snprintf(spec, sizeof(spec), "pool(%s%s)", provider, options);
	need(!hetmem_resource_create(hm, spec, &pool), "%s: %s", spec, hetmem_last_error());
}

static int try_whole(uint64_t id, size_t size, CUstream s, void **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params),
		.bytes = size,
		.stream = s,
		.private_pool = id,
		.flags = HETMEM_ALLOC_WHOLE,
	};

	return hetmem_alloc_with(pool, &params, p);
}

static void *get_whole(uint64_t id, size_t size, CUstream s)
{
	void *p = NULL;

	need(!try_whole(id, size, s, &p), "whole: %s", hetmem_last_error());
	return p;
}

static uint64_t reserved(void)
{
	return pool_stats().reserved;
}

static size_t rounded(size_t size)
{
	return (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

/* Whether all of @size bytes at @p are of one handle, which begins there. */
static bool is_one_handle(const char *p, size_t size)
{
	struct hetmem_segment segments[4];
	ssize_t nr = hetmem_segments(pool, p, size, segments, 4);

	if (nr == -EOPNOTSUPP)
		return true;
	/* The byte before it, and the one after it, are of none or of another. */
	return nr == 1 && segments[0].base == p;
}

static void sizes(const char *provider, CUstream s)
{
	static const size_t size[] = {
		1, 700, MIB, MIB + 1, 2 * MIB, 5 * MIB + 3, 30 * MIB, 17, 9 * MIB,
	};
	void *p[9];
	uint64_t sum = 0;
	unsigned int i, j, bad = 0;

	make(provider, "");
	need(!hetmem_private_retain(pool, 9), "retain");
	/* Free memory that is there is not cut for them. */
	put(get(3 * MIB, s), 3 * MIB, s);
	drv->cuStreamSynchronize(s);
	sum = reserved();
	for (i = 0; i < 9; i++) {
		p[i] = get_whole(9, size[i], s);
		sum += rounded(size[i]);
		is(reserved(), sum, "%s: %zu bytes have 2 MiB or multiples", provider, size[i]);
		ok(is_one_handle(p[i], size[i]), "in one handle");
		drv->cuMemsetD8Async((CUdeviceptr)p[i], i, size[i], s);
		for (j = 0; j < i; j++)
			bad += (char *)p[j] < (char *)p[i] + rounded(size[i]) &&
				(char *)p[i] < (char *)p[j] + rounded(size[j]);
	}
	is(bad, 0, "%s: none overlaps", provider);
	put(p[6], size[6], s);
	put(p[8], size[8], s);
	is((uintptr_t)get_whole(9, 9 * MIB, s), (uintptr_t)p[8], "%s: the best one is used again",
	   provider);
	is((uintptr_t)get_whole(9, 11 * MIB, s), (uintptr_t)p[6], "%s: a larger one, too", provider);
	is(reserved(), sum, "%s: nothing was made", provider);
	put(p[6], 11 * MIB, s);
	p[7] = get_whole(9, 600, s);
	ok(p[7] != p[6], "%s: a small block leaves the large one", provider);
	is(reserved(), sum + 2 * MIB, "%s: and has its own", provider);
	hetmem_resource_destroy(pool);
}

/* Cached memory of others goes when there is no room, and so does memory in use, later. */
static void no_room(const char *provider, CUstream s)
{
	void *p, *q;

	make(provider, ",max=64M");
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get(40 * MIB, s);
	q = get(20 * MIB, s);
	put(q, 20 * MIB, s);
	is(try_whole(9, 30 * MIB, s, &q), -ENOMEM, "%s: no room", provider);
	ok(strstr(hetmem_last_error(), "at most"), "the limit is named");
	is(pool_stats().live, 1, "nothing has changed");
	close_gate(s);
	put(p, 40 * MIB, s);
	{
		pthread_t t;

		need(!pthread_create(&t, NULL, open_gate_later, NULL), "a thread");
		q = get_whole(9, 50 * MIB, s);
		pthread_join(t, NULL);
	}
	ok(is_one_handle(q, 50 * MIB) && reserved() <= 64 * MIB, "%s: freed memory went for it",
	   provider);
	put(q, 0, s);
	is(try_whole(9, 65 * MIB, s, &q), -ENOMEM, "%s: more than max", provider);
	drv->cuStreamSynchronize(s);
	need(!hetmem_private_trim(pool, 9, NULL), "trim");
	is(reserved(), 0, "%s: a trim gives it back", provider);
	hetmem_resource_destroy(pool);
}

/* After the release they are blocks like others: cut and merged. */
static void released(const char *provider, CUstream s)
{
	void *p, *q, *live, *r[8];
	uint64_t held;
	unsigned int i;

	make(provider, "");
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_whole(9, 40 * MIB, s);
	live = get_whole(9, 6 * MIB, s);
	q = get_whole(9, 12 * MIB, s);
	put(p, 0, s);
	put(q, 0, s);
	drv->cuStreamSynchronize(s);
	held = reserved();
	is(hetmem_private_release(pool, 9, s), 0, "%s: released", provider);
	for (i = 0; i < 8; i++)
		r[i] = get(5 * MIB, s);
	is(reserved(), held, "%s: several blocks have the memory of one", provider);
	drv->cuMemsetD8Async((CUdeviceptr)live, 1, 6 * MIB, s);
	put(live, 6 * MIB, s);
	for (i = 0; i < 8; i++)
		put(r[i], 5 * MIB, s);
	drv->cuStreamSynchronize(s);
	hetmem_trim(pool, 0, NULL);
	is(reserved(), 0, "%s: all of it can go", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
}

static void asleep(CUstream s)
{
	unsigned char *p, *q, got[3] = { 0 };

	make("vmm", "");
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_whole(9, 30 * MIB, s);
	q = get_whole(9, 2 * MIB, s);
	drv->cuMemsetD8Async((CUdeviceptr)p, 5, 30 * MIB, s);
	drv->cuMemsetD8Async((CUdeviceptr)q, 6, 2 * MIB, s);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_KEEP), 0, "asleep");
	is(try_whole(9, MIB, s, (void **)&got), -EBUSY, "no whole block meanwhile");
	is(hetmem_wake(pool, NULL), 0, "awake");
	drv->cuMemcpyDtoHAsync(got, (CUdeviceptr)p, 1, s);
	drv->cuMemcpyDtoHAsync(got + 1, (CUdeviceptr)p + 30 * MIB - 1, 1, s);
	drv->cuMemcpyDtoHAsync(got + 2, (CUdeviceptr)q, 1, s);
	drv->cuStreamSynchronize(s);
	ok(got[0] == 5 && got[1] == 5 && got[2] == 6, "with contents");
	ok(is_one_handle((char *)p, 30 * MIB) && is_one_handle((char *)q, 2 * MIB),
	   "each in one handle, as before");
	hetmem_resource_destroy(pool);
}

static void restored(const char *provider, CUstream s)
{
	struct hetmem_checkpoint *saved;
	void *p, *q;

	make(provider, "");
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_whole(9, 9 * MIB, s);
	q = get_whole(9, 700, s);
	is(hetmem_private_checkpoint(pool, 9, &saved), 0, "%s: a checkpoint", provider);
	put(p, 0, s);
	put(q, 0, s);
	need(get_whole(9, 8 * MIB, s) == p, "another block in its place");
	is(hetmem_private_restore(pool, saved, NULL, NULL), 0, "%s: restored: %s", provider,
	   hetmem_last_error());
	is(pool_stats().live, 2, "both are live");
	ok(is_one_handle(p, 9 * MIB), "in one handle");
	put(p, 9 * MIB, s);
	put(q, 700, s);
	hetmem_checkpoint_free(saved);
	is(hetmem_private_release(pool, 9, s), 0, "released");
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
}

static void bad_input(CUstream s)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = MIB, .stream = s, .flags = HETMEM_ALLOC_WHOLE,
	};
	void *p = NULL;

	make("vmm", "");
	is(hetmem_alloc_with(pool, &params, &p), -EINVAL, "no private pool");
	ok(strstr(hetmem_last_error(), "private_pool"), "tells what to set");
	params.private_pool = 9;
	is(hetmem_alloc_with(pool, &params, &p), -ENOENT, "not retained");
	need(!hetmem_private_retain(pool, 9), "retain");
	params.flags |= HETMEM_ALLOC_MOVABLE;
	is(hetmem_alloc_with(pool, &params, &p), -EINVAL, "movable");
	params.flags = HETMEM_ALLOC_WHOLE | HETMEM_ALLOC_KEEP;
	is(hetmem_alloc_with(pool, &params, &p), 0, "kept is what it is");
	params.flags = HETMEM_ALLOC_WHOLE;
	params.align = 4 * MIB;
	is(hetmem_alloc_with(pool, &params, &p), -EINVAL, "an alignment above a handle's");
	params.align = 0;
	params.bytes = SIZE_MAX - 5;
	is(hetmem_alloc_with(pool, &params, &p), -ENOMEM, "more than there can be");
	hetmem_resource_destroy(pool);
}

static void *churn(void *arg)
{
	const uint64_t id = 1 + (uintptr_t)arg % 2;
	unsigned int seed = (uintptr_t)arg, i;
	size_t size[8] = { 0 };
	void *p[8] = { NULL };
	long bad = 0;
	CUstream s;

	drv->cuCtxSetCurrent(context);
	s = new_stream();
	for (i = 0; i < 1500; i++) {
		const unsigned int at = (seed = seed * 1103515245 + 12345) >> 29;
		const size_t want = 1 + (seed >> 8) % 9000000;

		if (p[at])
			bad += !!hetmem_free(pool, p[at], size[at], s);
		p[at] = NULL;
		if (!(seed & 512))
			continue;
		size[at] = want;
		if (seed & 1024)
			bad += try_whole(id, want, s, &p[at]) || !is_one_handle(p[at], want);
		else if (seed & 2048)
			bad += !!alloc_private(pool, id, want, s, &p[at]);
		else
			bad += !!hetmem_alloc(pool, want, 0, s, &p[at]);
	}
	for (i = 0; i < 8; i++)
		if (p[i])
			bad += !!hetmem_free(pool, p[i], size[i], s);
	drv->cuStreamSynchronize(s);
	return (void *)bad;
}

static void threads(const char *provider)
{
	pthread_t t[4];
	long bad = 0;
	uintptr_t i;
	void *one;

	make(provider, ",max=700M");
	need(!hetmem_private_retain(pool, 1) && !hetmem_private_retain(pool, 2), "retain");
	for (i = 0; i < 4; i++)
		need(!pthread_create(&t[i], NULL, churn, (void *)(77 + i)), "a thread");
	for (i = 0; i < 20; i++)
		bad += !!hetmem_private_trim(pool, 1 + i % 2, NULL);
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &one);
		bad += (long)one;
	}
	is(bad, 0, "%s: four threads: %s", provider, bad ? hetmem_last_error() : "all succeed");
	is(pool_stats().live, 0, "%s: nothing is live", provider);
	for (i = 1; i <= 2; i++)
		is(hetmem_private_release(pool, i, NULL), 0, "%s: released", provider);
	drv->cuCtxSynchronize();
	hetmem_trim(pool, 0, NULL);
	is(reserved(), 0, "%s: all of it can go", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
}

int main(void)
{
	static const char *const providers[] = { "vmm", "device", "vmm(export=fd)" };
	unsigned int i;
	CUstream s;

	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	s = new_stream();
	bad_input(s);
	for (i = 0; i < 3; i++) {
		no_room(providers[i], s);
		restored(providers[i], s);
		threads(providers[i]);
		if (i == 2)
			break;
		sizes(providers[i], s);
		released(providers[i], s);
	}
	asleep(s);
	drv->cuStreamDestroy(s);
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
