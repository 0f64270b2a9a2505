/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What a program may expect of malloc() and its relatives, of large sizes. It knows nothing of
 * hetmem: with the argument "blocks" the addresses have to be those that 'hetmem run' gives.
 */
#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tap.h"

#define KIB	((size_t)1 << 10)
#define MIB	((size_t)1 << 20)
#define UNIT	(2 * MIB)

static bool blocks;
static size_t page;

/* Sizes that no compiler knows: it would warn, or leave calls out. */
static volatile size_t most = PTRDIFF_MAX, all = SIZE_MAX, odd = 3, zero;
/* So are pointers. */
static void *volatile hidden;

static bool is_block(const void *p)
{
	return p && !((uintptr_t)p % UNIT);
}

/* Where blocks are expected, it is one. */
static bool as_expected(const void *p)
{
	return p && (!blocks || is_block(p));
}

static unsigned char byte_at(size_t at, unsigned int seed)
{
	return (at >> 12) * 31 + at * 7 + seed;
}

static void fill(void *p, size_t size, unsigned int seed)
{
	unsigned char *c = p;
	size_t i;

	for (i = 0; i < size; i += i + 509 < size || i == size - 1 ? 509 : size - 1 - i)
		c[i] = byte_at(i, seed);
}

static bool is_filled(const void *p, size_t size, size_t of, unsigned int seed)
{
	const unsigned char *c = p;
	size_t i;

	for (i = 0; i < size; i += i + 509 < of || i == of - 1 ? 509 : of - 1 - i)
		if (c[i] != byte_at(i, seed))
			return false;
	return true;
}

static bool is_zero(const void *p, size_t size)
{
	const unsigned char *c = p;

	return !c[0] && !memcmp(c, c + 1, size - 1);
}

/* Bytes of the process that are in memory. */
static size_t resident(void)
{
	unsigned long total = 0, here = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	need(f && fscanf(f, "%lu %lu", &total, &here) == 2, "/proc/self/statm");
	fclose(f);
	return here * page;
}

static size_t resident_of(void *p, size_t size)
{
	static unsigned char map[1 << 16];
	size_t i, nr = 0;

	need(size / page <= sizeof(map) && !mincore(p, size, map), "mincore");
	for (i = 0; i < size / page; i++)
		nr += map[i] & 1;
	return nr * page;
}

static void sizes(void)
{
	static const size_t tried[] = {
		0, 1, 24, 4 * KIB, 128 * KIB, MIB, UNIT - 1, UNIT, UNIT + 1, 3 * MIB + 4095,
		4 * MIB, 33 * MIB, 65 * MIB, 200 * MIB + 17,
	};
	size_t i;

	for (i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
		const size_t size = tried[i];
		void *p = malloc(size), *q = calloc(1, size);
		size_t usable = malloc_usable_size(p);

		ok(p && q && p != q, "%zu bytes", size);
		ok(!((uintptr_t)p % (size < 16 ? 8 : 16)) && usable >= size, "aligned, and as many");
		if (size >= UNIT)
			ok(as_expected(p) && as_expected(q), "a block");
		else
			ok(!is_block(p), "no block");
		ok(!size || is_zero(q, size), "zeroes");
		memset(p, 0x5a, usable);
		memset(q, 0xa5, malloc_usable_size(q));
		free(p);
		free(q);
	}
	free(NULL);
	is(malloc_usable_size(NULL), 0, "usable size of nothing");
}

static void too_large(void)
{
	/* The compiler knows nothing of it: a call that fails does not free it. */
	void *volatile p = malloc(4 * MIB);
	void *q = &q;

	fill(p, 4 * MIB, 1);
	errno = 0;
	ok(!(hidden = malloc(most)) && errno == ENOMEM, "malloc(PTRDIFF_MAX)");
	errno = 0;
	ok(!(hidden = malloc(all)) && errno == ENOMEM, "malloc(SIZE_MAX)");
	errno = 0;
	ok(!(hidden = malloc(all - 4095)) && errno == ENOMEM, "malloc of the last page");
	errno = 0;
	ok(!(hidden = calloc(all / 2, odd)) && errno == ENOMEM, "calloc that overflows");
	errno = 0;
	ok(!(hidden = realloc(p, most)) && errno == ENOMEM, "realloc to PTRDIFF_MAX");
	errno = 0;
	ok(!(hidden = reallocarray(p, all / 2, odd)) && errno == ENOMEM, "reallocarray that overflows");
	errno = 0;
	ok(!(hidden = aligned_alloc(64, most)) && errno == ENOMEM, "aligned_alloc of PTRDIFF_MAX");
	is(posix_memalign(&q, 64, most), ENOMEM, "posix_memalign of PTRDIFF_MAX");
	ok(q == &q, "leaves the pointer");
	ok(is_filled(p, 4 * MIB, 4 * MIB, 1), "the block is as it was");
	free(p);
}

static void alignments(void)
{
	size_t align;
	void *p;

	for (align = sizeof(void *); align <= 64 * MIB; align *= 4) {
		void *q = aligned_alloc(align, 3 * MIB), *r = memalign(align, 5 * MIB);

		is(posix_memalign(&p, align, 4 * MIB + 3), 0, "posix_memalign at %zu", align);
		ok(!((uintptr_t)p % align) && !((uintptr_t)q % align) && !((uintptr_t)r % align),
		   "aligned at %zu", align);
		ok(as_expected(p) && as_expected(q) && as_expected(r), "blocks");
		memset(p, 1, 4 * MIB + 3);
		memset(q, 2, 3 * MIB);
		memset(r, 3, 5 * MIB);
		free(p);
		free(q);
		free(r);
	}
	p = &p;
	errno = 77;
	ok(posix_memalign(&p, odd, 4 * MIB) == EINVAL, "posix_memalign at 3");
	ok(posix_memalign(&p, zero, 4 * MIB) == EINVAL, "posix_memalign at 0");
	ok(posix_memalign(&p, sizeof(void *) / 2, 4 * MIB) == EINVAL, "posix_memalign at 4");
	ok(p == &p && errno == 77, "changes neither the pointer nor errno");
	/* Small, at a block's alignment: another allocator's, which free() must not keep. */
	p = memalign(UNIT, 100);
	ok(is_block(p) && malloc_usable_size(p) < UNIT, "small, aligned as a block");
	p = realloc(p, 3 * MIB);
	ok(as_expected(p), "grown to a block");
	free(p);
	free(memalign(UNIT, 100));
}

static void resizes(void)
{
	static const size_t steps[] = {
		100, MIB, UNIT, UNIT + 1, 3 * MIB, 64 * MIB, 64 * MIB + 1, 300 * MIB, 70 * MIB,
		5 * MIB, UNIT, MIB, 10, 7 * MIB, 0,
	};
	void *p = NULL, *q;
	size_t size = 0, i;

	for (i = 0; steps[i]; i++) {
		const size_t least = size < steps[i] ? size : steps[i];

		q = realloc(p, steps[i]);
		need(q, "realloc to %zu", steps[i]);
		ok(!size || is_filled(q, least, size, i), "contents at %zu bytes", steps[i]);
		ok(malloc_usable_size(q) >= steps[i], "as many bytes");
		if (steps[i] >= UNIT)
			ok(as_expected(q), "a block");
		p = q;
		size = steps[i];
		fill(p, size, i + 1);
	}
	p = reallocarray(p, 9, MIB);
	ok(as_expected(p), "reallocarray");
	hidden = realloc(p, zero);
	ok(!hidden, "realloc to 0 frees");

	/* Small steps: each block is as large as the last and a page. */
	p = malloc(UNIT);
	memset(p, 3, UNIT);
	for (size = UNIT; size < 2 * UNIT; size += 4096) {
		p = realloc(p, size + 4096);
		if (!p)
			break;
		memset((char *)p + size, 3, 4096);
	}
	ok(p && ((char *)p)[0] == 3 && !memcmp(p, (char *)p + 1, 2 * UNIT - 1), "page by page");
	free(p);

	/*
	 * The program has divided the mapping: it cannot move as one. An allocator that keeps
	 * the freed half for others would give out memory that cannot be written.
	 */
	if (!blocks || getenv("BY_SPEC"))
		return;
	p = aligned_alloc(4096, 8 * MIB);
	fill(p, 8 * MIB, 9);
	q = malloc(8 * MIB);
	need(!mprotect((char *)p + MIB, MIB, PROT_READ), "mprotect");
	p = realloc(p, 100 * MIB);
	ok(p && is_filled(p, 8 * MIB, 8 * MIB, 9), "contents of a divided block");
	/* It may have moved with its parts. */
	mprotect((void *)((uintptr_t)p & -page), 100 * MIB, PROT_READ | PROT_WRITE);
	memset(p, 1, 99 * MIB);
	free(p);
	free(q);
}

static void errnos(void)
{
	void *p, *q;

	errno = 77;
	p = malloc(4 * MIB);
	q = calloc(5, MIB);
	p = realloc(p, 80 * MIB);
	free(q);
	free(p);
	is(errno, 77, "errno is nobody's");
}

/* What was freed is not what is read. */
static void zeroes(void)
{
	size_t before;
	void *p;
	int i;

	for (i = 0; i < 8; i++) {
		p = malloc(4 * MIB);
		memset(p, 0xff, 4 * MIB);
		free(p);
		p = calloc(1, 4 * MIB);
		ok(is_zero(p, 4 * MIB), "zeroes, where something was");
		memset(p, 0xff, 4 * MIB);
		free(p);
	}
	p = calloc(1, 128 * MIB);
	before = resident_of((void *)((uintptr_t)p & -page), 128 * MIB);
	ok(getenv("BY_SPEC") || before <= 64 * KIB, "calloc touches no page: %zu bytes", before);
	free(p);
}

static void cache(void)
{
	void *p[40], *volatile q;
	const bool cached = !getenv("BY_SPEC");
	struct rusage before, after;
	size_t base = resident(), held;
	int i;

	for (i = 0; i < 40; i++) {
		p[i] = malloc(8 * MIB);
		memset(p[i], 1, 8 * MIB);
	}
	for (i = 0; i < 40; i++)
		free(p[i]);
	held = resident();
	ok(!blocks || held <= base + 80 * MIB, "320 MiB freed, %zu MiB kept",
	   held > base ? (held - base) / MIB : 0);
	malloc_trim(0);
	held = resident();
	ok(held <= base + 16 * MIB, "trimmed: %zu MiB kept", held > base ? (held - base) / MIB : 0);

	q = malloc(4 * MIB);
	memset(q, 1, 4 * MIB);
	free(q);
	getrusage(RUSAGE_SELF, &before);
	for (i = 0; i < 200; i++) {
		q = malloc(4 * MIB);
		memset(q, i, 4 * MIB);
		free(q);
	}
	getrusage(RUSAGE_SELF, &after);
	/* A busy machine may take a second between two calls. Then the block is unmapped. */
	ok(!blocks || !cached || after.ru_minflt - before.ru_minflt < 200 * 2,
	   "200 times malloc and free: %ld page faults", after.ru_minflt - before.ru_minflt);
}

/* Freed twice: the next allocator ends the process, as ever. */
static void twice(void)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	if (!child) {
		void *p = malloc(100 * MIB);

		hidden = p;
		signal(SIGABRT, SIG_DFL);
		close(2);
		free(p);
		free(hidden);
		_exit(0);
	}
	waitpid(child, &status, 0);
	ok(WIFSIGNALED(status), "freed twice: ended by a signal");
}

/* jemalloc's calls for what malloc() returned. */
static void jemalloc(void)
{
	void (*dallocx)(void *, int) = dlsym(RTLD_DEFAULT, "dallocx");
	void (*sdallocx)(void *, size_t, int) = dlsym(RTLD_DEFAULT, "sdallocx");
	void *(*rallocx)(void *, size_t, int) = dlsym(RTLD_DEFAULT, "rallocx");
	size_t (*sallocx)(const void *, int) = dlsym(RTLD_DEFAULT, "sallocx");
	void *p;

	if (!dallocx || !sdallocx || !rallocx || !sallocx)
		return;
	p = malloc(4 * MIB);
	ok(sallocx(p, 0) >= 4 * MIB, "sallocx");
	fill(p, 4 * MIB, 3);
	p = rallocx(p, 9 * MIB, 0);
	ok(p && is_filled(p, 4 * MIB, 4 * MIB, 3), "rallocx");
	dallocx(p, 0);
	sdallocx(malloc(3 * MIB), 3 * MIB, 0);
	dallocx(malloc(100), 0);
	ok(!rallocx || (p = rallocx(malloc(100), 200, 0)), "of small ones");
	free(p);
}

int main(int argc, char **argv)
{
	blocks = argc > 1 && !strcmp(argv[1], "blocks");
	page = sysconf(_SC_PAGESIZE);
	sizes();
	too_large();
	alignments();
	resizes();
	errnos();
	zeroes();
	cache();
	twice();
	jemalloc();
	return tap_end();
}
