// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The library with hetmem.ko, on any kernel: tracking through allocation,
 * resizing and fork, residency that is gone on with, prefetch to the host
 * and between nodes, and the limits of the module.
 */
#include <sys/mman.h>
#include <sys/wait.h>

#include "driver/hetmem.h"
#include "platform/platform.h"
#include "tap.h"

#define MIB	((size_t)1 << 20)

static struct hetmem *hm;
static size_t page;

static bool is_tracked(const void *p, size_t size)
{
	struct hetmem_cmd_stats stats;

	return !hm_kmod_stats(hetmem_kmod(hm), p, &stats) &&
	       stats.start == (uintptr_t)p &&
	       stats.end == (uintptr_t)p + size;
}

static bool is_untracked(const void *p)
{
	struct hetmem_cmd_stats stats;

	return hm_kmod_stats(hetmem_kmod(hm), p, &stats) == -ENOENT;
}

static void features(void)
{
	struct hetmem_feature f;

	hetmem_feature(hm, HETMEM_FEATURE_MODULE, &f);
	ok(f.available, "module: %s", f.reason);
	hetmem_feature(hm, HETMEM_FEATURE_RESIDENCY, &f);
	ok(f.available, "residency: %s", f.reason);
	hetmem_feature(hm, HETMEM_FEATURE_MIGRATION, &f);
	ok(*f.reason, "migration: %d: %s", f.available, f.reason);
}

static void system_memory(void)
{
	unsigned char *p, *q, *other;
	struct hetmem_cmd_stats stats;
	void *new;

	need(!hetmem_system_alloc(hm, 4 * MIB, (void **)&p), "allocates");
	ok(is_tracked(p, 4 * MIB), "what is allocated is tracked");
	need(!hetmem_system_alloc(hm, 100, (void **)&q), "a small one");
	ok(is_tracked(q, page), "as a page");
	memset(p, 1, 4 * MIB);
	is(hm_kmod_stats(hetmem_kmod(hm), p, &stats), 0, "its statistics");
	is(mprotect(p, page, PROT_READ), 0, "mprotect");
	hm_kmod_stats(hetmem_kmod(hm), p, &stats);
	ok(stats.changes[HETMEM_CHANGE_PROTECT], "is counted");
	is(mprotect(p, page, PROT_READ | PROT_WRITE), 0, "and back");

	is(hetmem_system_resize(hm, p, 2 * MIB, &new), 0, "smaller");
	p = new;
	ok(is_tracked(p, 2 * MIB), "tracked as it is");
	other = mmap(p + 2 * MIB, page, PROT_READ, MAP_PRIVATE |
		     MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	ok(other == p + 2 * MIB, "no room to grow");
	is(hetmem_system_resize(hm, p, 16 * MIB, &new), 0, "so it moves");
	ok(new != p && is_tracked(new, 16 * MIB), "tracked where it is");
	ok(is_untracked(p), "not where it was");
	munmap(other, page);
	is(hetmem_system_free(hm, new), 0, "freed");
	ok(is_untracked(new), "and untracked");
	is(hetmem_system_free(hm, q), 0, "the small one");
	ok(is_untracked(q), "too");
}

static unsigned int count(const void *p, size_t size, size_t nr,
			  uint64_t pages[HETMEM_ZERO + 1])
{
	uintptr_t at = (uintptr_t)p, end = at + size, next;
	struct hetmem_run *runs = calloc(nr, sizeof(*runs));
	unsigned int calls = 0;
	ssize_t n, i;

	memset(pages, 0, (HETMEM_ZERO + 1) * sizeof(*pages));
	for (; at < end; at = next, calls++) {
		n = hetmem_residency(hm, (void *)at, end - at, runs, NULL, nr, &next);
		if (n <= 0 || next <= at || runs[0].start != at ||
		    runs[n - 1].end != next) {
			calls = 0;
			break;
		}
		for (i = 0; i < n; i++)
			pages[HETMEM_LOC_KIND(runs[i].location)] +=
				(runs[i].end - runs[i].start) / page;
	}
	free(runs);
	return calls;
}

static void residency(void)
{
	const size_t nr = 3000;
	uint64_t pages[HETMEM_ZERO + 1];
	unsigned char *p;
	size_t i;

	p = mmap(NULL, nr * page, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(p, nr * page, MADV_NOHUGEPAGE);
	for (i = 0; i < nr; i += 2)
		p[i * page] = 1;
	is(count(p, nr * page, nr, pages), 1, "a comb of pages, one call");
	is(pages[HETMEM_HOST], nr / 2, "on the host");
	is(pages[HETMEM_UNKNOWN], nr / 2, "nowhere");
	is(count(p, nr * page, 7, pages), (nr + 6) / 7,
	   "seven runs a call: all the calls it takes");
	is(pages[HETMEM_HOST] + pages[HETMEM_UNKNOWN], nr, "and all pages");
	munmap(p + 512 * page, 1024 * page);
	ok(count(p, nr * page, 100, pages), "a hole of 1024 pages");
	is(pages[HETMEM_UNMAPPED], 1024, "is one");
	munmap(p, nr * page);
}

static void to_host(void)
{
	const uint32_t any = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	struct hetmem_moved m = { .size = sizeof(m) };
	unsigned char *p;

	p = mmap(NULL, 100 * page, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(p, 100 * page, MADV_NOHUGEPAGE);
	memset(p, 5, 60 * page);
	is(hetmem_prefetch(hm, p, 100 * page, any, NULL, &m), 0, "to the host");
	ok(!strcmp(m.how, "module"), "by the module");
	is(m.already, 60, "what is there");
	is(m.not_moved, 40, "what is nowhere");
	is(m.why, HETMEM_WHY_ABSENT, "why");
	is(m.why_addr, (uintptr_t)p + 60 * page, "from where");

	if (hm_numa_nodes() > 1) {
		struct hetmem_run run;
		uintptr_t next;

		is(hetmem_prefetch(hm, p, 60 * page, HETMEM_LOC(HETMEM_HOST, 1),
				   NULL, &m), 0, "to node 1");
		is(m.moved, 60, "all moved");
		is(m.already + m.not_moved, 0, "none left");
		hetmem_residency(hm, p, 60 * page, &run, NULL, 1, &next);
		is(run.location, HETMEM_LOC(HETMEM_HOST, 1), "they are there");
		is(next, (uintptr_t)p + 60 * page, "all of them");
		ok(p[0] == 5 && p[60 * page - 1] == 5, "as they were");
		is(hetmem_prefetch(hm, p, 60 * page, HETMEM_LOC(HETMEM_HOST, 1),
				   NULL, &m), 0, "again");
		is(m.already, 60, "already there");
	}
	munmap(p, 100 * page);
	is(hetmem_prefetch(hm, p, 100 * page, any, NULL, &m), 0, "a hole");
	is(m.not_moved, 100, "nothing moved");
	is(m.why, HETMEM_WHY_UNMAPPED, "why");
}

static void forked(void)
{
	struct hetmem_run run;
	unsigned char *p;
	uintptr_t next;
	int status;

	hetmem_system_alloc(hm, 4 * MIB, (void **)&p);
	p[0] = 1;
	fflush(stdout);
	if (!fork()) {
		void *q;

		_exit(!(hetmem_residency(hm, p, page, &run, NULL, 1, &next) ==
			-EOWNERDEAD &&
			!hetmem_system_resize(hm, p, 8 * MIB, &q) &&
			!hetmem_system_free(hm, q)));
	}
	wait(&status);
	is(status, 0, "a child has memory and no module");
	ok(is_tracked(p, 4 * MIB), "the parent's is tracked as it was");
	hetmem_system_free(hm, p);
}

#define TOTAL_KB	"/sys/class/misc/hetmem/caps/total_kb"
#define BYTES		"/sys/class/misc/hetmem/stats/bytes"

static long read_number(const char *path)
{
	FILE *f = fopen(path, "r");
	long n = -1;

	if (f && fscanf(f, "%ld", &n) != 1)
		n = -1;
	if (f)
		fclose(f);
	return n;
}

static bool write_number(const char *path, long n)
{
	FILE *f = fopen(path, "w");

	if (f)
		fprintf(f, "%ld", n);
	return f && !fclose(f);
}

/* More than the module has memory for: the program's memory goes on without. */
static void too_many(void)
{
	const unsigned int max = 4096;
	long total = read_number(TOTAL_KB), used = read_number(BYTES);
	const struct hm_kmod *kmod = hetmem_kmod(hm);
	unsigned int i, n = 0, bad = 0;
	uintptr_t at;
	int err = 0;
	void *p, *q;

	need(total > 0 && used > 0, "the module's memory is bounded");
	need(write_number(TOTAL_KB, used / 1024 + 64), "by little more than it uses");
	p = mmap(NULL, ((size_t)max + 1) * 2 * page, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	at = (uintptr_t)p;
	while (n < max && !err) {
		err = hm_kmod_track(kmod, at + n * 2 * page,
				    at + n * 2 * page + page);
		n += !err;
	}
	ok(n > 0 && n < max, "%u ranges have room there", n);
	is(err, -EDQUOT, "and no more");
	is(hetmem_system_alloc(hm, MIB, &q), 0, "memory there is all the same");
	ok(is_untracked(q), "untracked");
	is(hetmem_system_free(hm, q), 0, "and freed");
	for (i = 0; i < n; i++)
		bad += !!hm_kmod_untrack(kmod, at + i * 2 * page,
					 at + i * 2 * page + page);
	is(bad, 0, "all untracked");
	is(read_number(BYTES), used, "nothing is left");
	ok(write_number(TOTAL_KB, total), "as before");
	munmap(p, ((size_t)max + 1) * 2 * page);
}

int main(void)
{
	struct hetmem_params params = { .size = sizeof(params),
					.driver = "soft" };

	page = sysconf(_SC_PAGESIZE);
	need(!hetmem_open(&hm, &params), "opens");
	features();
	system_memory();
	residency();
	to_host();
	forked();
	too_many();
	hetmem_close(hm);
	return tap_end();
}
