// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Prefetch to a host node, where the module brings what is on a device and
 * leaves pages of other nodes to move_pages(2): what moved, what did not, and
 * the first reason, as if one had done it all. Asked again of move_pages(2),
 * which the module has no part in.
 */
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include "driver/hetmem.h"
#include "platform/platform.h"
#include "tap.h"

#define MIB	((size_t)1 << 20)

static struct hetmem *hm;
static size_t page;

static uint32_t node(int nr)
{
	return HETMEM_LOC(HETMEM_HOST, nr);
}

/* @size bytes on node 0, huge pages or not, of which nothing is there yet. */
static char *reserve(size_t size, int advice)
{
	char *p = mmap(NULL, size + 2 * MIB, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "memory");
	p = (char *)(((uintptr_t)p + 2 * MIB - 1) & -(2 * MIB));
	madvise(p, size, advice);
	numa_tonode_memory(p, size, 0);
	return p;
}

static void fill(char *p, size_t size)
{
	size_t i;

	for (i = 0; i < size / page; i++)
		memset(p + i * page, i % 251 + 1, page);
}

static size_t wrong(const char *p, size_t size)
{
	size_t i, k, bad = 0;

	for (i = 0; i < size / page; i++)
		for (k = 0; k < page; k++)
			bad += p[i * page + k] != (char)(i % 251 + 1);
	return bad;
}

/* Pages on @nr; asks nobody but the kernel's own system call. */
static long pages_on(char *p, size_t size, int nr)
{
	long i, n = 0;

	for (i = 0; i < (long)(size / page); i++) {
		void *at = p + i * page;
		int status = -1;

		if (!move_pages(0, 1, &at, NULL, &status, 0))
			n += status == nr;
	}
	return n;
}

static struct hetmem_moved prefetch(char *p, size_t size, uint32_t location)
{
	struct hetmem_moved m = { .size = sizeof(m) };

	is(hetmem_prefetch(hm, p, size, location, NULL, &m), 0, "prefetch");
	ok(!strcmp(m.how, "module"), "by the module");
	is(m.moved + m.already + m.not_moved, size / page,
	   "each page is counted once");
	return m;
}

/* As the library tells it: pages of [@p, @p + @size) on @nr. */
static uint64_t seen_on(char *p, size_t size, int nr)
{
	uintptr_t at = (uintptr_t)p, end = at + size, next;
	struct hetmem_run runs[64];
	uint64_t pages = 0;
	ssize_t n, i;

	for (; at < end; at = next) {
		n = hetmem_residency(hm, (void *)at, end - at, runs, NULL, 64, &next);
		if (n <= 0 || next <= at)
			return UINT64_MAX;
		for (i = 0; i < n; i++)
			if (runs[i].location == node(nr))
				pages += (runs[i].end - runs[i].start) / page;
	}
	return pages;
}

/*
 * Node 1 has memory and no CPU, as a device's has that is coherent: a policy
 * puts memory there, residency tells so, and a prefetch moves it in spite of
 * the policy.
 */
static void policy(void)
{
	const size_t size = 4 * MIB, all = size / page;
	const unsigned long mask = 2;
	char *p = reserve(size, MADV_NOHUGEPAGE);
	struct hetmem_moved m;

	need(!mbind(p, size, MPOL_BIND, &mask, 8 * sizeof(mask), 0),
	     "a policy for node 1");
	fill(p, size);
	is(seen_on(p, size, 1), all, "memory is born there");
	m = prefetch(p, size / 2, node(0));
	is(m.moved, all / 2, "half of it moves to node 0");
	is(seen_on(p, size, 0), all / 2, "and is there");
	is(seen_on(p, size, 1), all / 2, "the rest stays");
	m = prefetch(p, size, HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY));
	is(m.already, all, "wherever on the host: nothing to do");
	is(seen_on(p, size, 0), all / 2, "nothing moves");
	m = prefetch(p, size, node(1));
	is(m.moved, all / 2, "back");
	is(seen_on(p, size, 1), all, "all of it");
	is(wrong(p, size), 0, "contents");
	munmap(p, size);
}

/* More pages than one call lists, each a run of its own in the end. */
static void there_and_back(const char *name, size_t size, int advice)
{
	char *p = reserve(size, advice);
	struct hetmem_moved m;

	fill(p, size);
	need(pages_on(p, size, 0) == (long)(size / page), "%s: on node 0",
	     name);
	m = prefetch(p, size, node(1));
	is(pages_on(p, size, 1), size / page, "%s: all are on node 1", name);
	is(m.moved, size / page, "and were moved");
	m = prefetch(p, size, node(1));
	is(m.already, size / page, "once");
	m = prefetch(p, size, node(0));
	is(pages_on(p, size, 0), size / page, "and back");
	is(m.moved, size / page, "all of them");
	is(m.why, 0, "without a reason why not");
	is(wrong(p, size), 0, "contents");
	munmap(p, size);
}

/* Every other page is there already: as many runs as there can be. */
static void scattered(void)
{
	const size_t size = 6 * MIB, nr = size / page;
	char *p = reserve(size, MADV_NOHUGEPAGE);
	struct hetmem_moved m;
	size_t i;

	fill(p, size);
	for (i = 0; i < nr; i += 2) {
		void *at = p + i * page;
		int to = 1, status = -1;

		move_pages(0, 1, &at, &to, &status, MPOL_MF_MOVE);
	}
	need(pages_on(p, size, 1) == (long)nr / 2, "half is on node 1");
	m = prefetch(p, size, node(1));
	is(m.moved, nr / 2, "the other half moves");
	is(m.already, nr / 2, "and the first was there");
	is(pages_on(p, size, 1), nr, "all are");
	is(wrong(p, size), 0, "contents");
	munmap(p, size);
}

/*
 * A page that a pipe holds cannot move, and one that was never touched is not
 * there; the first of the two is who is named.
 */
static void left(size_t held, size_t absent)
{
	const size_t size = 2 * MIB;
	char *p = reserve(size, MADV_NOHUGEPAGE);
	struct iovec iov = { p + held * page, page };
	struct hetmem_moved m;
	int fd[2];

	fill(p, size);
	madvise(p + absent * page, page, MADV_DONTNEED);
	need(!pipe(fd) && vmsplice(fd[1], &iov, 1, 0) == (ssize_t)page,
	     "page %zu is held by a pipe", held);
	m = prefetch(p, size, node(1));
	is(m.not_moved, 2, "two pages stay");
	is(m.moved, size / page - 2, "the others move");
	is(pages_on(p, size, 1), size / page - 2, "indeed");
	is((m.why_addr - (uintptr_t)p) / page, held < absent ? held : absent,
	   "the first that stays is told");
	is(m.why, held < absent ? HETMEM_WHY_BUSY : HETMEM_WHY_ABSENT,
	   "and why");
	close(fd[0]);
	close(fd[1]);
	m = prefetch(p, size, node(1));
	is(m.moved, 1, "it moves when it is let go");
	is(m.not_moved, 1, "what is not there does not");
	munmap(p, size);
}

/* From a device and from the other node at once. */
static void from_device(void)
{
	const size_t size = 4 * MIB;
	char *p = reserve(size, MADV_NOHUGEPAGE);
	struct hetmem_moved m;
	uint64_t there;

	fill(p, size);
	there = prefetch(p, size / 2, HETMEM_LOC(HETMEM_DEVICE, 0)).moved;
	ok(there > 0, "%lld pages are on the device", (long long)there);
	m = prefetch(p, size, node(1));
	is(m.moved, size / page, "all move to node 1");
	is(m.not_moved, 0, "none stays");
	is(pages_on(p, size, 1), size / page, "they are there");
	is(wrong(p, size), 0, "contents");
	munmap(p, size);
}

int main(void)
{
	struct hetmem_params params = { .size = sizeof(params),
					.driver = "soft" };
	struct hetmem_device_props props = { .size = sizeof(props) };

	page = sysconf(_SC_PAGESIZE);
	need(!hetmem_open(&hm, &params), "opens: %s", hetmem_last_error());
	need(hm_kmod_there(hetmem_kmod(hm)), "the module is there");
	need(hm_numa_nodes() > 1, "there are two nodes");

	there_and_back("pages", 5 * MIB, MADV_NOHUGEPAGE);
	there_and_back("huge pages", 8 * MIB, MADV_HUGEPAGE);
	policy();
	scattered();
	left(3, 300);
	left(300, 3);
	if (!hetmem_device_props(hm, 0, &props) && props.module_id >= 0)
		from_device();
	hetmem_close(hm);
	return tap_end();
}
