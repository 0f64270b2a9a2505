// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Attached memory with the module: what the program unmaps is detached, whole or in
 * part, by munmap(2) or mremap(2); new memory at the same address finds no old
 * registration. The driver is the soft one, on a machine that has only managed memory.
 */
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include "place/foreign_memory.h"

static struct hetmem *hm;

/* The library's thread has some time for it. */
static bool soon(unsigned int nr)
{
	return wait_until(__atomic_load_n(&released, __ATOMIC_ACQUIRE) == nr);
}

static void unmapped(void)
{
	char *p = pages(8);

	released = 0;
	is(hetmem_attach(hm, p, 8 * page, NULL, NULL), 0, "no owner is needed: %s",
	   hetmem_last_error());
	is(hetmem_attach(hm, p + page, page, &owned, NULL), 0, "a part, with an owner");
	ok(is_pinned(hm, p + page), "registered");
	munmap(p, 8 * page);
	ok(soon(1), "unmapped: the owner is released");
	ok(!is_pinned(hm, p + page), "and nothing is registered");
	is(hetmem_detach(hm, p + page, page), -ENOENT, "nor attached: %s",
	   hetmem_last_error());
	is(hetmem_detach(hm, p, 8 * page), -ENOENT, "all of it");

	p = pages(8);
	is(hetmem_attach(hm, p + 10, 7 * page, &owned, NULL), 0, "attached");
	munmap(p + 3 * page, page);
	ok(soon(2), "a page in the middle");
	is(hetmem_detach(hm, p + 10, 7 * page), -ENOENT, "ends it all");
	munmap(p, 8 * page);

	p = pages(4);
	is(hetmem_attach(hm, p, 4 * page, &owned, NULL), 0, "attached");
	p = mremap(p, 4 * page, 8 * page, MREMAP_MAYMOVE | MREMAP_FIXED, pages(8));
	ok(p != MAP_FAILED && soon(3), "moved away");
	munmap(p, 8 * page);

	p = pages(4);
	is(hetmem_attach(hm, p, 4 * page, &owned, NULL), 0, "attached");
	mprotect(p, page, PROT_READ);
	mprotect(p, page, PROT_READ | PROT_WRITE);
	memset(p, 1, 4 * page);
	is(hetmem_detach(hm, p, 4 * page), 0, "what happens beside is no end");
	munmap(p, 4 * page);
	is(released, 4, "each owner once");
}

/* Without a moment for the thread: the next call finds what has gone. */
static void again(void)
{
	char *p = pages(4), *q;
	unsigned int i, bad = 0;

	released = 0;
	for (i = 0; i < 200; i++) {
		bad |= !!hetmem_attach(hm, p, 4 * page, &owned, NULL);
		munmap(p, 4 * page);
		q = mmap(p, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			 MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		bad |= q != p;
		bad |= !!hetmem_attach(hm, p + page, 2 * page, &owned, NULL) << 1;
		bad |= !!hetmem_detach(hm, p + page, 2 * page) << 2;
		bad |= (hetmem_detach(hm, p, 4 * page) != -ENOENT) << 3;
	}
	ok(!bad, "unmapped, mapped and attached, %u times (%#x)", i, bad);
	ok(soon(2 * i), "all owners are released");
	munmap(p, 4 * page);
}

/* Neighbours share a page, which one of them tracks. */
static void neighbours(void)
{
	char *p = pages(4);

	released = 0;
	is(hetmem_attach(hm, p, page + 100, &owned, NULL), 0, "attached");
	is(hetmem_attach(hm, p + page + 100, 2 * page, &owned, NULL), 0, "its neighbour");
	munmap(p, 4 * page);
	ok(soon(2), "both end");
}

/* More invalidations than the ring holds while nobody reads it. */
static void many(void)
{
	char *p = pages(2), *q = pages(2);
	unsigned int i;

	released = 0;
	is(hetmem_attach(hm, p, 2 * page, &owned, NULL), 0, "attached");
	is(hetmem_attach(hm, q, 2 * page, &owned, NULL), 0, "and another");
	for (i = 0; i < 20000; i++)
		mprotect(p, page, i & 1 ? PROT_READ | PROT_WRITE : PROT_READ);
	munmap(q, 2 * page);
	is(hetmem_attach(hm, p, page, NULL, NULL), 0, "a call that looks");
	ok(soon(1), "finds what is gone");
	is(hetmem_detach(hm, p, page) + hetmem_detach(hm, p, 2 * page), 0,
	   "and what is not");
	munmap(p, 2 * page);
}

static void forked(void)
{
	char *p = pages(2);
	int status;

	released = 0;
	is(hetmem_attach(hm, p, 2 * page, &owned, NULL), 0, "attached");
	fflush(stdout);
	if (!fork()) {
		munmap(p, 2 * page);
		hetmem_close(hm);
		_exit(released);
	}
	wait(&status);
	is(status, 0, "a child that unmaps its own");
	is(hetmem_detach(hm, p, 2 * page), 0, "ends nothing here");
	munmap(p, 2 * page);
}

/* Whether a child has the page at @p. */
static bool child_has(char *p)
{
	unsigned char core;
	int status;

	fflush(stdout);
	if (!fork())
		_exit(!mincore(p, page, &core));
	wait(&status);
	return status;
}

/* Memory that was kept from children, and is unmapped in part. */
static void dontfork(void)
{
	struct hetmem_attach_params params = owned;
	char *p = pages(8), *q;

	released = 0;
	params.flags = HETMEM_ATTACH_DONTFORK;
	is(hetmem_attach(hm, p, 8 * page, &params, NULL), 0, "kept from children");
	ok(!child_has(p) && !child_has(p + 7 * page), "a child has none of it");
	munmap(p + 3 * page, page);
	q = mmap(p + 3 * page, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED_NOREPLACE, -1, 0);
	ok(q == p + 3 * page && !madvise(q, page, MADV_DONTFORK), "other memory there");
	ok(soon(1), "it is detached");
	ok(child_has(p) && child_has(p + 2 * page) && child_has(p + 4 * page) &&
	   child_has(p + 7 * page), "children have the rest");
	ok(!child_has(q), "and not the other memory");
	munmap(p, 8 * page);
}

/* Advice about attached memory is forgotten with it. */
static void advised(void)
{
	const uint32_t device = HETMEM_LOC(HETMEM_DEVICE, 0);
	struct hetmem_advised a[2];
	char *p = pages(8);
	uintptr_t next;

	released = 0;
	is(hetmem_advise(hm, p, 8 * page, HETMEM_ADVISE_PREFERRED, device, NULL), 0,
	   "advised");
	is(hetmem_attach(hm, p, 8 * page, &owned, NULL), 0, "and attached");
	munmap(p + 3 * page, page);
	ok(soon(1), "a page is unmapped");
	is(hetmem_advised(hm, p, 8 * page, a, 2, &next), 2, "advice is of what is left");
	ok(a[0].end == (uintptr_t)p + 3 * page && a[1].start == (uintptr_t)p + 4 * page,
	   "and not of that page");
	munmap(p, 8 * page);
}

static void open_lib(void)
{
	struct hetmem_params params = { .size = sizeof(params), .driver = "soft" };

	need(!hetmem_open(&hm, &params), "opens: %s", hetmem_last_error());
}

/* Whether the thread of that name sleeps. */
static bool reader_sleeps(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	char path[300], comm[32];
	bool sleeps = false;
	FILE *f;

	while (dir && !sleeps && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		sleeps = fgets(comm, sizeof(comm), f) && !strcmp(comm, "hetmem-unmap\n") &&
			 thread_sleeps(getpid(), atoi(entry->d_name));
		fclose(f);
	}
	if (dir)
		closedir(dir);
	return sleeps;
}

/* The program closes the library's descriptors: nothing hangs. */
static void closed(void)
{
	char *p = pages(2);

	open_lib();
	is(hetmem_attach(hm, p, page, &owned, NULL), 0, "attached");
	is(hetmem_attach(hm, p + page, page, &owned, NULL), 0, "another page");
	released = 0;
	need(wait_until(reader_sleeps()), "the library's thread waits for events");
	is(close_range(3, ~0U, 0), 0, "all descriptors are closed");
	is(hetmem_detach(hm, p, page), 0, "detached all the same");
	is(released, 1, "released");
	hetmem_close(hm);
	is(released, 2, "close releases the other, and ends");
	munmap(p, 2 * page);
}

int main(void)
{
	char *p;

	page = sysconf(_SC_PAGESIZE);
	setenv("HETMEM_SOFT_MACHINE", "managed", 1);
	open_lib();
	unmapped();
	again();
	neighbours();
	many();
	forked();
	dontfork();
	p = pages(1);
	is(hetmem_attach(hm, p, page, &owned, NULL), 0, "left attached");
	released = 0;
	hetmem_close(hm);
	is(released, 1, "until close");
	munmap(p, page);
	setenv("HETMEM_SOFT_MACHINE", "hmm; managed", 1);
	open_lib();
	advised();
	hetmem_close(hm);
	setenv("HETMEM_SOFT_MACHINE", "managed", 1);
	closed();
	return tap_end();
}
