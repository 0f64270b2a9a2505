// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The handler for NumPy, called as NumPy calls it, beside another handler that
 * counts and aborts where it is given memory that is not its own.
 */
#include <malloc.h>
#include <sys/wait.h>

#include "soft_driver.h"

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)
#define NR(a)	(sizeof(a) / sizeof((a)[0]))

struct handler {
	char name[127];
	uint8_t version;
	void *ctx;
	void *(*malloc)(void *ctx, size_t size);
	void *(*calloc)(void *ctx, size_t nr, size_t size);
	void *(*realloc)(void *ctx, void *ptr, size_t size);
	void (*free)(void *ctx, void *ptr, size_t size);
};

static long others;

static void *count_malloc(void *ctx, size_t size)
{
	++*(long *)ctx;
	return malloc(size);
}

static void *count_calloc(void *ctx, size_t nr, size_t size)
{
	++*(long *)ctx;
	return calloc(nr, size);
}

static void *count_realloc(void *ctx, void *ptr, size_t size)
{
	*(long *)ctx += !ptr;
	return realloc(ptr, size);
}

static void count_free(void *ctx, void *ptr, size_t size)
{
	(void)size;
	*(long *)ctx -= !!ptr;
	free(ptr);
}

static struct handler other = {
	.name = "other",
	.version = 1,
	.ctx = &others,
	.malloc = count_malloc,
	.calloc = count_calloc,
	.realloc = count_realloc,
	.free = count_free,
};

static struct hetmem_resource *res;
static struct handler *h;

static long live(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	return hetmem_resource_stats(res, &stats) ? -1 : (long)stats.live;
}

static void make(const char *spec)
{
	void *made;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
	need(!hetmem_numpy_handler(res, 64 * KB, &other, &made), "a handler over %s", spec);
	h = made;
	is(h->version, 1, "of version 1");
}

static void test_sizes(void)
{
	static const size_t sizes[] = { 0, 1, 64 * KB - 1, 64 * KB, MB, 9 * MB };
	void *p[NR(sizes)];
	bool good = true;
	size_t i;

	for (i = 0; i < NR(sizes); i++) {
		p[i] = h->malloc(h->ctx, sizes[i]);
		good = good && p[i] && (sizes[i] < 64 * KB || !((uintptr_t)p[i] % 512));
	}
	ok(good, "memory of every size, large ones aligned");
	is(live(), 3, "the large ones are the resource's");
	is(others, 3, "the others are not");
	/* NumPy does not always know the size. */
	for (i = 0; i < NR(sizes); i++)
		h->free(h->ctx, p[i], i % 2 ? sizes[i] : sizes[NR(sizes) - 1 - i]);
	is(live(), 0, "all are freed, whatever size is passed");
	is(others, 0, "by the handler that has them");
	h->free(h->ctx, NULL, 0);
	is(live() + others, 0, "NULL is nothing");
}

static void test_calloc(void)
{
	char *p;
	int i;

	for (i = 0; i < 3; i++) {
		p = h->malloc(h->ctx, MB);
		memset(p, 1, MB);
		h->free(h->ctx, p, MB);
		p = h->calloc(h->ctx, KB, KB);
		ok(p && all_bytes(p, 0, MB), "memory that was used before is zeroed");
		is(live(), 1, "and the resource's");
		h->free(h->ctx, p, MB);
	}
	p = h->calloc(h->ctx, 3, 5);
	ok(p && all_bytes(p, 0, 15), "small memory, too");
	is(others, 1, "which is not");
	h->free(h->ctx, p, 15);
	ok(!h->calloc(h->ctx, SIZE_MAX / 2, 3), "an overflow is no memory");
}

static void test_realloc(void)
{
	static const size_t sizes[] = {
		10, 100, 64 * KB, 200 * KB, 3 * MB, 64 * KB, 64 * KB - 1, 5, MB, 5,
	};
	size_t i, before = 10;
	bool good = true;
	char *p = h->realloc(h->ctx, NULL, before);

	memset(p, 0, before);
	for (i = 0; i < NR(sizes); i++) {
		p = h->realloc(h->ctx, p, sizes[i]);
		good = good && p && all_bytes(p, i, sizes[i] < before ? sizes[i] : before) &&
			live() == (sizes[i] >= 64 * KB) && others == (sizes[i] < 64 * KB);
		before = sizes[i];
		memset(p, i + 1, before);
	}
	ok(good, "contents are kept in every direction, and nothing else");
	h->free(h->ctx, p, 0);
	is(live() + others, 0, "nothing is left");
}

static void test_none(void)
{
	char *p, *same;

	need(!hetmem_resource_set(res, "max", "4M"), "a limit");
	ok(!h->malloc(h->ctx, 8 * MB), "no memory is NULL");
	ok(!h->calloc(h->ctx, 8, MB), "likewise zeroed");
	p = h->malloc(h->ctx, MB);
	memset(p, 7, MB);
	ok(!h->realloc(h->ctx, p, 8 * MB) && all_bytes(p, 7, MB), "a block that cannot grow stays");
	h->free(h->ctx, p, MB);
	p = h->malloc(h->ctx, 10);
	memset(p, 7, 10);
	same = h->realloc(h->ctx, p, 8 * MB);
	ok(same && all_bytes(same, 7, 10), "one of the other handler grows there");
	h->free(h->ctx, same, 8 * MB);
	is(live() + others, 0, "nothing is left");
}

/* @own: a child has the memory of the resource. */
static void test_fork(bool own)
{
	/* Addresses that a block could have, too. */
	char *before = h->malloc(h->ctx, MB), *small = memalign(512, 512), *p;
	int status = -1, bad = 0;
	pid_t pid;

	others++;
	memset(before, 5, MB);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		p = h->malloc(h->ctx, MB);
		bad |= !p;
		memset(p, 1, MB);
		p = h->realloc(h->ctx, p, 2 * MB);
		bad |= (!p || !all_bytes(p, 1, MB)) << 1;
		bad |= (own && others != 1) << 2;
		h->free(h->ctx, p, 2 * MB);
		if (own) {
			bad |= !all_bytes(before, 5, MB) << 3;
			before = h->realloc(h->ctx, before, 2 * MB);
			bad |= !all_bytes(before, 5, MB) << 4;
		}
		h->free(h->ctx, before, MB);
		h->free(h->ctx, small, 512);
		bad |= (others != 0) << 5;
		_exit(bad);
	}
	waitpid(pid, &status, 0);
	is(status, 0, "a forked child goes on");
	is(live(), 1, "and frees nothing here");
	h->free(h->ctx, before, MB);
	h->free(h->ctx, small, 512);
	is(live() + others, 0, "nothing is left");
}

static void test_bad(void)
{
	struct handler later = other;
	struct hetmem_resource *device;
	void *made = NULL;

	later.version = 2;
	is(hetmem_numpy_handler(res, 1, &later, &made), -EINVAL, "a handler of a later version");
	is(hetmem_numpy_handler(NULL, 1, &other, &made), -EINVAL, "no resource");
	is(hetmem_numpy_handler(res, 1, NULL, &made), -EINVAL, "no other handler");
	is(hetmem_numpy_handler(res, 1, &other, NULL), -EINVAL, "nowhere to put it");
	need(!hetmem_resource_create(hm, "device-pool", &device), "memory of a device");
	is(hetmem_numpy_handler(device, 1, &other, &made), -EOPNOTSUPP,
	   "memory that the CPU cannot use");
	ok(strstr(hetmem_last_error(), "unified"), "and what to take: %s", hetmem_last_error());
	ok(!made, "nothing is made");
	is(hetmem_resource_destroy(device), 0, "that is all");
}

int main(void)
{
	static const char *const specs[] = { "pool(host)", "pool(managed)", "unified", "host" };
	size_t i;

	open_soft("");
	for (i = 0; i < NR(specs); i++) {
		make(specs[i]);
		test_sizes();
		test_calloc();
		test_realloc();
		test_fork(!strcmp(specs[i], "pool(host)") || !strcmp(specs[i], "host"));
		if (!i) {
			test_bad();
			test_none();
		}
		/* As a program must not: it has no arrays any more. */
		is(hetmem_resource_destroy(res), 0, "nothing is left of %s", specs[i]);
	}
	close_soft();
	return tap_end();
}
