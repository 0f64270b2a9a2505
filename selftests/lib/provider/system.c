// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * System memory: alignment, sizes, contents across resizing, and frees that
 * must be refused.
 */
#include <sys/mman.h>

#include "driver/hetmem.h"
#include "tap.h"

#define MIB	((size_t)1 << 20)

static struct hetmem *hm;

static bool is_mapped(const void *p)
{
	unsigned char core;

	return !mincore((void *)((uintptr_t)p & ~4095UL), 4096, &core);
}

static void sizes(void)
{
	static const size_t sizes[] = {
		1, 512, 4095, 4096, 4097, 65536, MIB, 2 * MIB - 1, 2 * MIB,
		2 * MIB + 1, 5 * MIB, 64 * MIB, 1024 * MIB,
	};
	unsigned char *p;
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t size = sizes[i], align = size < 2 * MIB ? 512 : 2 * MIB;
		bool good = !hetmem_system_alloc(hm, size, (void **)&p);

		need(good, "%zu bytes: %s", size, hetmem_last_error());
		ok(!((uintptr_t)p & (align - 1)), "%zu bytes are aligned", size);
		good = !p[0] && !p[size / 2] && !p[size - 1];
		p[0] = p[size / 2] = p[size - 1] = 0xa5;
		ok(good && p[size - 1] == 0xa5, "zeroed and writable");
		is(hetmem_system_free(hm, p), 0, "freed");
		ok(!is_mapped(p), "really");
	}
	is(hetmem_system_alloc(hm, 0, (void **)&p), -EINVAL, "no bytes");
	is(hetmem_system_alloc(hm, SIZE_MAX, (void **)&p), -ENOMEM,
	   "all the bytes there are");
	is(hetmem_system_alloc(hm, SIZE_MAX / 2 - 4096, (void **)&p), -ENOMEM,
	   "half of them");
	is(hetmem_system_alloc(hm, 4096, NULL), -EINVAL, "nowhere to put it");
	is(hetmem_system_alloc(NULL, 4096, (void **)&p), -EINVAL, "no library");
}

static void bad_frees(void)
{
	unsigned char *p, *q, here = 0;

	hetmem_system_alloc(hm, 4 * MIB, (void **)&p);
	hetmem_system_alloc(hm, 4096, (void **)&q);
	memset(p, 7, 4 * MIB);
	is(hetmem_system_free(hm, NULL), -EINVAL, "free of NULL");
	is(hetmem_system_free(hm, &here), -EINVAL, "of foreign memory");
	is(hetmem_system_free(hm, p + 1), -EINVAL, "of a pointer inside");
	is(hetmem_system_free(hm, p + 2 * MIB), -EINVAL, "aligned inside");
	is(hetmem_system_free(hm, p + 4 * MIB), -EINVAL, "of the end");
	is(hetmem_system_free(NULL, p), -EINVAL, "by no library");
	ok(p[0] == 7 && p[4 * MIB - 1] == 7, "nothing has changed");
	is(hetmem_system_free(hm, p), 0, "free");
	is(hetmem_system_free(hm, p), -EINVAL, "a second time");
	ok(strstr(hetmem_last_error(), "not allocated"), "says why: %s",
	   hetmem_last_error());
	is(hetmem_system_free(hm, q), 0, "the neighbour");
}

static void write_numbers(unsigned char *p, size_t size)
{
	size_t i;

	for (i = 0; i + 8 <= size; i += 4096)
		memcpy(p + i, &(size_t){ i * 2654435761 }, 8);
}

static bool has_numbers(const unsigned char *p, size_t size)
{
	size_t i, v;

	for (i = 0; i + 8 <= size; i += 4096) {
		memcpy(&v, p + i, 8);
		if (v != i * 2654435761)
			return false;
	}
	return true;
}

static void resize_to(unsigned char **p, size_t from, size_t to)
{
	size_t less = from < to ? from : to;
	unsigned char *was = *p, *now = NULL;
	int err = hetmem_system_resize(hm, was, to, (void **)&now);

	need(!err, "%zu to %zu bytes: %s", from, to, hetmem_last_error());
	ok(has_numbers(now, less), "%zu to %zu bytes: contents", from, to);
	ok(to < 2 * MIB || !((uintptr_t)now & (2 * MIB - 1)), "alignment");
	ok(now == was || !is_mapped(was), "nothing stays behind");
	if (to > from) {
		size_t at = (from + 4095) & ~4095UL;

		ok(at >= to || !now[at], "what is new is zeroed");
		now[to - 1] = 1;
	}
	write_numbers(now, to);
	*p = now;
}

static void resize(void)
{
	static const size_t steps[] = {
		4096, 8192, 4096, MIB, 3 * MIB, 2 * MIB, 32 * MIB, 33 * MIB,
		5 * MIB + 1, 8 * MIB, 4096, 64 * MIB, 1,
	};
	unsigned char *p, *blocker;
	void *q;
	size_t i;

	hetmem_system_alloc(hm, steps[0], (void **)&p);
	write_numbers(p, steps[0]);
	for (i = 1; i < sizeof(steps) / sizeof(steps[0]); i++)
		resize_to(&p, steps[i - 1], steps[i]);
	is(hetmem_system_free(hm, p), 0, "freed at its last place");

	hetmem_system_alloc(hm, 4 * MIB, (void **)&p);
	write_numbers(p, 4 * MIB);
	blocker = mmap(p + 4 * MIB, 4096, PROT_READ, MAP_PRIVATE |
		       MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	resize_to(&p, 4 * MIB, 16 * MIB);
	if (blocker != MAP_FAILED)
		munmap(blocker, 4096);

	q = (void *)1;
	is(hetmem_system_resize(hm, p, 0, &q), -EINVAL, "to nothing");
	is(hetmem_system_resize(hm, p + 4096, MIB, &q), -EINVAL, "from inside");
	is(hetmem_system_resize(hm, NULL, MIB, &q), -EINVAL, "of NULL");
	is(hetmem_system_resize(hm, p, MIB, NULL), -EINVAL, "nowhere to tell");
	is(hetmem_system_resize(NULL, p, MIB, &q), -EINVAL, "by no library");
	is(hetmem_system_resize(hm, p, SIZE_MAX, &q), -ENOMEM, "to everything");
	is(hetmem_system_resize(hm, p, (size_t)1 << 50, &q), -ENOMEM,
	   "to more than there is");
	ok(q == (void *)1 && has_numbers(p, 16 * MIB), "nothing has changed");
	is(hetmem_system_free(hm, p), 0, "and it is still ours");
}

/* Strict overcommit or not, the address space of a process is limited. */
static void many(void)
{
	static void *p[3000];
	size_t i, bad = 0;

	for (i = 0; i < 3000; i++)
		bad += !!hetmem_system_alloc(hm, 1 + i * 7 % 9000, &p[i]);
	is(bad, 0, "3000 small ones");
	for (i = 0; i < 3000; i += 2)
		bad += !!hetmem_system_free(hm, p[i]);
	for (i = 0; i < 3000; i += 2)
		bad += hetmem_system_free(hm, p[i]) != -EINVAL;
	for (i = 1; i < 3000; i += 2)
		bad += !!hetmem_system_free(hm, p[i]);
	is(bad, 0, "each freed once");
}

static void outlive(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	struct hetmem *other;
	unsigned char *p;

	need(!hetmem_open(&other, &params), "another library");
	hetmem_system_alloc(other, 3 * MIB, (void **)&p);
	p[0] = 1;
	is(hetmem_system_free(hm, p), -EINVAL, "memory of another library");
	hetmem_close(other);
	ok(p[0] == 1, "outlives its library");
	munmap(p, 3 * MIB);
}

int main(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};

	need(!hetmem_open(&hm, &params), "opens");
	sizes();
	bad_frees();
	resize();
	many();
	outlive();
	hetmem_close(hm);
	return tap_end();
}
