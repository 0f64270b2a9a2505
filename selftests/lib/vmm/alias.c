// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Aliases: a second address of a block. What they refuse, which memory stays, the order of the
 * free, each driver call that fails, and what check mode reports.
 */
#include "ring_test.h"
#include "failing_calls.h"

static char *get_alias(struct hetmem_resource *res, void *p, size_t size, unsigned int flags)
{
	void *other = NULL;

	need(!hetmem_alias(res, p, size, flags, &other), "alias: %s", hetmem_last_error());
	return other;
}

/* Blocks of all sizes, also those inside a handle with others. */
static void basic(const char *spec)
{
	static const size_t sizes[] = { 1, 512, 100000, 2 * MIB, 3 * MIB, 9 * MIB };
	struct hetmem_resource *res = make(spec);
	char *p[6], *q[6];
	size_t i;

	for (i = 0; i < 6; i++) {
		p[i] = get(res, sizes[i], NULL);
		q[i] = get_alias(res, p[i], sizes[i], 0);
		memset(p[i], 1 + i, sizes[i]);
	}
	for (i = 0; i < 6; i++) {
		ok(p[i] != q[i] && all_bytes(q[i], 1 + i, sizes[i]), "%s: %zu bytes", spec, sizes[i]);
		*(volatile char *)(q[i] + sizes[i] / 2) = 99;
		is(*(volatile char *)(p[i] + sizes[i] / 2), 99, "%s: it is one memory", spec);
	}
	is(stats(res).live, 6, "%s: an alias is no block", spec);
	is(hetmem_free(res, q[5], 1, NULL), -EINVAL, "%s: its size: %s", spec, hetmem_last_error());
	for (i = 0; i < 6; i++) {
		is(hetmem_free(res, q[i], i % 2 ? sizes[i] : 0, NULL), 0, "%s: free: %s", spec,
		   hetmem_last_error());
		is(hetmem_free(res, q[i], 0, NULL), -EINVAL, "%s: once", spec);
		is(hetmem_free(res, p[i], sizes[i], NULL), 0, "%s: the block", spec);
	}
	drv->cuCtxSynchronize();
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 0, "%s: all is given back", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
	is(device_used(), 0, "%s: the driver agrees", spec);
}

static void bad_input(void)
{
	struct hetmem_resource *res = make("pool(vmm,spill=100M,launcher=single)"), *with;
	char *p = get(res, 4 * MIB, NULL), *q = get_alias(res, p, 4 * MIB, 0), *s = NULL;
	static const char *const specs[] = {
		"pool(device)", "device", "pool(vmm(export=fd))", "pool(vmm,comm=on)", "guard(pool(vmm))",
		"fixed(pool(vmm),size=1M,count=4)", "pool(host)", "pool(managed)", "classes(managed,max=48M)",
	};
	const struct hetmem_alloc_params sparse = {
		.size = sizeof(sparse), .bytes = 4 * MIB, .flags = HETMEM_ALLOC_SPARSE,
	}, movable = {
		.size = sizeof(movable), .bytes = 4 * MIB, .flags = HETMEM_ALLOC_MOVABLE,
	};
	void *other = NULL, *m;
	size_t i;

	is(hetmem_alias(NULL, p, MIB, 0, &other), -EINVAL, "no resource");
	is(hetmem_alias(res, NULL, MIB, 0, &other), -EINVAL, "no block");
	is(hetmem_alias(res, p, MIB, 0, NULL), -EINVAL, "no result");
	is(hetmem_alias(res, p, 0, 0, &other), -EINVAL, "no bytes");
	is(hetmem_alias(res, p, 4 * MIB + 1, 0, &other), -EINVAL, "a byte more: %s", hetmem_last_error());
	is(hetmem_alias(res, p, SIZE_MAX, 0, &other), -EINVAL, "overflow");
	is(hetmem_alias(res, p, MIB, 2, &other), -EINVAL, "flags: %s", hetmem_last_error());
	is(hetmem_alias(res, p + MIB, MIB, 0, &other), -EINVAL, "inside: %s", hetmem_last_error());
	is(hetmem_alias(res, q, MIB, 0, &other), -EINVAL, "an alias: %s", hetmem_last_error());
	is(hetmem_alias(res, q + MIB, MIB, 0, &other), -EINVAL, "inside one");
	need(!hetmem_alloc_with(res, &sparse, (void **)&s) && !hetmem_commit(res, s, 0, 2 * MIB, NULL), "sparse");
	is(hetmem_alias(res, s, 2 * MIB, 0, &other), -EOPNOTSUPP, "sparse: %s", hetmem_last_error());
	need(!hetmem_alloc_with(res, &movable, &m) && !hetmem_spill(res, m), "spill: %s", hetmem_last_error());
	is(hetmem_alias(res, m, MIB, 0, &other), -EBUSY, "spilled: %s", hetmem_last_error());
	need(!hetmem_fetch(res, m), "fetch");
	is(hetmem_alias(res, m, MIB, 0, &other), 0, "fetched: %s", hetmem_last_error());
	is(hetmem_spill(res, m), -EBUSY, "it moves no more: %s", hetmem_last_error());
	is(hetmem_record_stream(res, q, NULL), -EINVAL, "record: an alias is no block");
	ok(hetmem_grow(res, q, 8 * MIB, NULL) < 0, "grow");
	is(hetmem_pin_comm(res, q), -EINVAL, "pin_comm");
	is(hetmem_free(res, q, 0, HETMEM_STREAM_UNKNOWN), -EINVAL, "no stream: %s", hetmem_last_error());
	is(hetmem_free(res, q + 512, 0, NULL), -EINVAL, "inside an alias");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(hetmem_alias(res, p, MIB, 0, &other), -EBUSY, "asleep: %s", hetmem_last_error());
	is(hetmem_free(res, other, 0, NULL), 0, "but it can be freed: %s", hetmem_last_error());
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	hetmem_free(res, p, 0, NULL);
	is(hetmem_alias(res, p, MIB, 0, &other), -EINVAL, "a freed block");
	hetmem_free(res, q, 0, NULL);
	hetmem_free(res, m, 0, NULL);
	hetmem_free(res, s, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		with = make(specs[i]);
		p = get(with, 512 << 10, HETMEM_STREAM_HOST);
		is(hetmem_alias(with, p, 512, 0, &other), -EOPNOTSUPP, "%s: %s", specs[i], hetmem_last_error());
		ok(hetmem_last_error()[0], "%s: with a reason", specs[i]);
		hetmem_free(with, p, 0, HETMEM_STREAM_HOST);
		is(hetmem_resource_destroy(with), 0, "%s: destroyed", specs[i]);
	}
}

/* Adaptors let aliases through, and count nothing. */
static void adaptors(void)
{
	static const char *const specs[] = {
		"limit(pool(vmm),max=8M)", "stats(pool(vmm))", "log(pool(vmm),file=/dev/null,full=on)",
		"history(pool(vmm))", "retry(pool(vmm))", "headroom(pool(vmm))", "align(pool(vmm),align=64K)",
		"fallback(pool(device,max=2M),pool(vmm))", "binning(pool(device),pool(vmm),at=1M)",
	};
	struct hetmem_resource *res;
	char *p, *q;
	size_t i;

	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		res = make(specs[i]);
		p = get(res, 4 * MIB, NULL);
		q = get_alias(res, p, 4 * MIB, 0);
		is(stats(res).requested, 4 * MIB, "%s: requested once", specs[i]);
		is(hetmem_free(res, q, 4 * MIB, NULL), 0, "%s: free: %s", specs[i], hetmem_last_error());
		is(hetmem_free(res, p, 4 * MIB, NULL), 0, "%s: the block", specs[i]);
		is(stats(res).requested, 0, "%s: nothing is requested", specs[i]);
		is(hetmem_resource_destroy(res), 0, "%s: destroyed", specs[i]);
	}
}

/* What has an alias stays in a sleep and a trim; afterwards it goes as other memory does. */
static void stays(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get(res, 8 * MIB, NULL), *other = get(res, 8 * MIB, NULL), *q, *again;

	memset(p, 5, 8 * MIB);
	memset(other, 6, 8 * MIB);
	q = get_alias(res, p, 8 * MIB, 0);
	again = get_alias(res, p, 8 * MIB, 0);
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(stats(res).reserved, 8 * MIB, "memory with an alias stays in a sleep");
	ok(all_bytes(q, 5, 8 * MIB), "with its contents");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	ok(all_bytes(p, 5, 8 * MIB) && all_bytes(other, 6, 8 * MIB), "awake");
	hetmem_free(res, q, 0, NULL);
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(stats(res).reserved, 8 * MIB, "the second alias holds it");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	hetmem_free(res, p, 0, NULL);
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 16 * MIB, "also after the block is freed");
	p = get(res, 8 * MIB, NULL);
	is(stats(res).reserved, 16 * MIB, "its memory serves others");
	hetmem_free(res, again, 0, NULL);
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(stats(res).reserved, 0, "without an alias all goes");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	need(!hetmem_pin_comm(res, p), "pin_comm");
	q = get_alias(res, p, 8 * MIB, 0);
	hetmem_free(res, q, 0, NULL);
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(stats(res).reserved, 8 * MIB, "what is pinned stays pinned");
	need(!hetmem_wake(res, NULL), "wake");
	q = get_alias(res, p, 8 * MIB, 0);
	is(hetmem_resource_destroy(res), 2, "live blocks are counted, and no aliases");
	is(device_used(), 0, "all is given back");
}

/* Blocks beside memory with an alias shrink to the byte. Whole handles with an alias stay. */
static void shrink_beside(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=8M)");
	const struct hetmem_alloc_params room = {
		.size = sizeof(room), .bytes = 24 * MIB, .reserve = 32 * MIB,
	};
	char *p = get(res, 3 * MIB, NULL), *beside = get(res, 4 * MIB, NULL), *q, *r;
	void *with;

	q = get_alias(res, p, 3 * MIB, 0);
	memset(p, 5, 3 * MIB);
	memset(beside, 6, 4 * MIB);
	is(hetmem_grow(res, beside, 2 * MIB, NULL), 0, "a block beside an alias shrinks");
	is(hetmem_shrink(res, p, MIB, 2 * MIB, NULL), 0, "so does one with an alias");
	ok(all_bytes(q, 5, MIB) && all_bytes(beside, 6, 2 * MIB), "the contents stay");
	is(stats(res).requested, 3 * MIB, "both are counted");
	r = get(res, 2 * MIB, NULL);
	is(stats(res).reserved, 8 * MIB, "what they gave back serves another block");
	memset(r, 7, 2 * MIB);
	ok(all_bytes(q, 5, MIB) && all_bytes(beside, 6, 2 * MIB), "and nothing else");
	hetmem_free(res, r, 0, NULL);
	hetmem_free(res, q, 0, NULL);
	hetmem_free(res, beside, 2 * MIB, NULL);
	hetmem_free(res, p, MIB, NULL);
	need(!hetmem_alloc_with(res, &room, &with), "alloc_with: %s", hetmem_last_error());
	q = get_alias(res, with, 24 * MIB, 0);
	is(hetmem_shrink(res, with, 8 * MIB, 16 * MIB, NULL), -EBUSY, "handles with an alias: %s",
	   hetmem_last_error());
	is(hetmem_shrink(res, with, 8 * MIB, 8 * MIB, NULL), -EBUSY, "inside: %s", hetmem_last_error());
	hetmem_free(res, q, 0, NULL);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	is(hetmem_shrink(res, with, 8 * MIB, 16 * MIB, NULL), 0, "without");
	hetmem_free(res, with, 8 * MIB, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* An alias that was freed, and whose use is not known to be complete, when a sleep begins. */
static void freed_before_sleep(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	CUstream s = new_stream();
	char *p = get(res, 4 * MIB, s), *q = get_alias(res, p, 4 * MIB, 0);
	struct hm_soft_range range = { .ptr = (uintptr_t)q, .size = 4 * MIB, .fill = 3 };

	need(!hm->soft->launch(s, "slow", &range, 1, 20000000), "a kernel");
	is(hetmem_free(res, q, 0, s), 0, "free");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	ok(all_bytes(p, 3, 4 * MIB), "contents are there after the wake");
	hetmem_free(res, p, 0, s);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s);
}

/* An alias is there until the last use by it is complete. */
static void in_order(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	CUstream s = new_stream();
	char *p = get(res, 4 * MIB, s), *q = get_alias(res, p, 4 * MIB, 0);
	struct hm_soft_range range = { .ptr = (uintptr_t)q, .size = 4 * MIB, .fill = 3 };
	unsigned int i;

	need(!hm->soft->launch(s, "slow", &range, 1, 20000000), "a kernel");
	is(hetmem_free(res, q, 0, s), 0, "free");
	for (i = 0; i < 3; i++) {
		hetmem_poll(res);
		hetmem_free(res, get_alias(res, p, MIB, 0), 0, s);
	}
	is(drv->cuStreamSynchronize(s), CUDA_SUCCESS, "the kernel was not disturbed");
	hetmem_free(res, p, 0, s);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s);
}

static void read_only(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get(res, 4 * MIB, NULL), *q = get_alias(res, p, 4 * MIB, HETMEM_ALIAS_READ);
	unsigned char back = 0;

	memset(p, 7, 4 * MIB);
	is(drv->cuMemcpyDtoHAsync(&back, (uintptr_t)q + MIB, 1, NULL), CUDA_SUCCESS, "a read");
	drv->cuCtxSynchronize();
	is(back, 7, "of the same memory");
	hetmem_free(res, q, 0, NULL);
	hetmem_free(res, p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* Each call of the driver fails once. */
static long fail_nth(const char *call, unsigned int nth, unsigned int *wrong)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	CUstream s = new_stream();
	char *p = get(res, 4 * MIB, s);
	void *q = NULL;
	const char *rule = failing_rule(call, nth);
	long made;

	*wrong += drv->cuMemsetD8Async((uintptr_t)p, 4, 4 * MIB, s) || drv->cuStreamSynchronize(s);
	soft_rules(rule, NULL);
	if (hetmem_alias(res, p, 4 * MIB, 0, &q))
		*wrong += !hetmem_last_error()[0] || hetmem_alias(res, p, 4 * MIB, 0, &q);
	*wrong += !q || !all_bytes(q, 4, 4 * MIB);
	if (hetmem_free(res, q, 0, s))
		*wrong += hetmem_free(res, q, 0, s) != 0;
	*wrong += hetmem_free(res, q, 0, s) != -EINVAL;
	hetmem_poll(res);
	made = failing_made(call, nth);
	soft_rules(NULL, NULL);
	hetmem_free(res, p, 0, s);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	hetmem_trim(res, 0, NULL);
	*wrong += stats(res).reserved != 0;
	*wrong += hetmem_resource_destroy(res) != 0 || device_used();
	drv->cuStreamDestroy(s);
	if (*wrong)
		printf("# %s: %s\n", rule, hetmem_last_error());
	return made;
}

static void failing(void)
{
	unsigned int nth, wrong = 0, all = 0;
	long made;
	size_t i;

	count_made(from)
		fail_nth(NULL, from, &wrong);
	ok(!wrong, "no call fails");
	for (i = 0; i < NR_CALLS; i++) {
		if (!is_made[i])
			continue;
		for (made = nth = 1, wrong = 0; nth <= 6 && nth <= made && !wrong; nth++)
			made = fail_nth(calls[i], nth, &wrong);
		all += made > 0;
		if (made || wrong)
			ok(!wrong, "%s fails, %u of %ld", calls[i], nth - 1, made);
	}
	ok(all > 4, "%u calls were made", all);
}

struct thread {
	struct hetmem_resource *res;
	void *p;
	pthread_t id;
	unsigned int wrong;
};

static void *alias_and_free(void *data)
{
	struct thread *t = data;
	unsigned int i;
	void *q;

	for (i = 0; i < 60; i++) {
		if (hetmem_alias(t->res, t->p, 4 * MIB, 0, &q)) {
			t->wrong++;
			continue;
		}
		t->wrong += hetmem_free(t->res, q, 0, HETMEM_STREAM_HOST) != 0;
	}
	return NULL;
}

static void threads(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	struct thread t[4];
	unsigned int i, wrong = 0;
	void *p = get(res, 4 * MIB, NULL);

	for (i = 0; i < 4; i++) {
		t[i] = (struct thread){ .res = res, .p = p };
		need(!pthread_create(&t[i].id, NULL, alias_and_free, &t[i]), "a thread");
	}
	for (i = 0; i < 4; i++) {
		pthread_join(t[i].id, NULL);
		wrong += t[i].wrong;
	}
	is(wrong, 0, "threads that make and free aliases of one block");
	hetmem_free(res, p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* While blocks are watched, or any thread is in a callback, hetmem_free() takes another way. */
static void watched(void)
{
	struct hetmem_resource *res = make("pool(vmm)"), *managed = make("pool(managed)");
	void *advised = get(managed, 4 * MIB, NULL), *p = get(res, MIB, NULL);
	void *q = get_alias(res, p, MIB, 0);

	need(!hetmem_advise(hm, advised, 4 * MIB, HETMEM_ADVISE_READ_MOSTLY, 0, NULL), "advise: %s",
	     hetmem_last_error());
	is(hetmem_free(res, q, 1, NULL), -EINVAL, "watched: its size: %s", hetmem_last_error());
	is(hetmem_free(res, q, 0, NULL), 0, "watched: freed: %s", hetmem_last_error());
	is(hetmem_free(res, q, 0, NULL), -EINVAL, "watched: once");
	is(hetmem_free(managed, advised, 0, NULL), 0, "watched: the advised block");
	is(hetmem_free(res, p, MIB, NULL), 0, "watched: the block");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(hetmem_resource_destroy(managed), 0, "destroyed");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	basic("pool(vmm)");
	basic("pool(vmm,handle=2M)");
	bad_input();
	adaptors();
	stays();
	shrink_beside();
	freed_before_sleep();
	in_order();
	read_only();
	failing();
	watched();
	threads();
	close_soft();
	return tap_end();
}
