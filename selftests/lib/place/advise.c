// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Advice and discard: what is remembered equals a model of it, page by page, after
 * any sequence of advice; it goes with the memory and comes along when memory is
 * resized; bad input and a driver that fails change nothing.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#include "below.h"
#include "place/foreign_memory.h"
#include "platform/machine.h"

#define PAGES	64U
#define STEPS	4000U
#define ANY	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define NODE0	HETMEM_LOC(HETMEM_HOST, 0)
#define NOWHERE	HETMEM_LOC(HETMEM_UNKNOWN, 0)

static struct hetmem *hm;

static uint32_t device(unsigned int i)
{
	return HETMEM_LOC(HETMEM_DEVICE, i);
}

static int advise(const void *p, unsigned int nr, int advice, uint32_t location)
{
	return hetmem_advise(hm, p, nr * page, advice, location, NULL);
}

/* The ranges with advice in @nr pages. */
static size_t ranges(const void *p, unsigned int nr)
{
	struct hetmem_advised a[PAGES];
	uintptr_t next;

	return hetmem_advised(hm, p, nr * page, a, PAGES, &next);
}

struct model {
	uint32_t preferred;
	uint32_t flags;
	uint64_t devices;
};

static void apply(struct model *m, int advice, uint32_t location)
{
	const bool host = HETMEM_LOC_KIND(location) == HETMEM_HOST;

	switch (advice) {
	case HETMEM_ADVISE_PREFERRED:
		m->preferred = location;
		break;
	case HETMEM_ADVISE_NOT_PREFERRED:
		m->preferred = NOWHERE;
		break;
	case HETMEM_ADVISE_ACCESSED_BY:
		if (host)
			m->flags |= HETMEM_ADVISED_BY_HOST;
		else
			m->devices |= 1U << HETMEM_LOC_INDEX(location);
		break;
	case HETMEM_ADVISE_NOT_ACCESSED_BY:
		if (host)
			m->flags &= ~HETMEM_ADVISED_BY_HOST;
		else
			m->devices &= ~(1U << HETMEM_LOC_INDEX(location));
		break;
	case HETMEM_ADVISE_READ_MOSTLY:
		m->flags |= HETMEM_ADVISED_READ_MOSTLY;
		break;
	default:
		m->flags &= ~HETMEM_ADVISED_READ_MOSTLY;
	}
}

static bool has(const struct model *m)
{
	return m->preferred != NOWHERE || m->flags || m->devices;
}

static bool same(const struct model *m, const struct hetmem_advised *a)
{
	return m->preferred == a->preferred && m->flags == a->flags &&
	       m->devices == a->devices;
}

/* Reads it with room for @room: all pages as in the model, neighbours merged. */
static bool matches(const char *p, const struct model *model, size_t room)
{
	struct hetmem_advised a[PAGES], last = { .end = 0 };
	uintptr_t at = (uintptr_t)p, end = at + PAGES * page, next;
	unsigned int i = 0;
	ssize_t n, j;

	for (; at < end; at = next) {
		n = hetmem_advised(hm, (void *)at, end - at, a, room, &next);
		if (n < 0 || next <= at)
			return false;
		for (j = 0; j < n; j++) {
			if (a[j].start == last.end && !memcmp(&a[j].devices,
					&last.devices, sizeof(a[j]) - 16))
				return false;
			last = a[j];
			for (; (uintptr_t)p + i * page < a[j].start; i++)
				if (has(&model[i]))
					return false;
			for (; (uintptr_t)p + i * page < a[j].end; i++)
				if (!same(&model[i], &a[j]))
					return false;
		}
	}
	for (; i < PAGES; i++)
		if (has(&model[i]))
			return false;
	return true;
}

static void random_program(void)
{
	static const uint32_t where[] = { HETMEM_LOC(HETMEM_DEVICE, 0),
					  HETMEM_LOC(HETMEM_DEVICE, 1), ANY, NODE0 };
	struct model model[PAGES];
	char *p = pages(PAGES);
	unsigned int i, j, bad = 0;
	const uint64_t begin = seed;

	for (i = 0; i < PAGES; i++)
		model[i] = (struct model){ .preferred = NOWHERE };
	for (i = 0; i < STEPS && !bad; i++) {
		unsigned int from = below(PAGES), nr = 1 + below(PAGES - from);
		const uint32_t to = where[below(4)];
		int advice = below(6), err;
		size_t cut = below(2) ? below(page) : 0;

		if (below(3))
			nr = 1 + below(nr < 4 ? nr : 4);
		soft_rules(below(5) ? NULL : "cuMemAdvise:1", NULL);
		err = hetmem_advise(hm, p + from * page + cut, nr * page - cut,
				    advice, to, NULL);
		for (j = from; j < from + nr && !err; j++)
			apply(&model[j], advice, to);
		bad = !matches(p, model, 1 + below(PAGES));
	}
	soft_rules(NULL, NULL);
	ok(!bad, "%u steps from seed %llu: as the model has it (%u)", i,
	   (unsigned long long)begin, bad);
	for (i = 0; i < 6; i += 2)
		advise(p, PAGES, i + 1, ANY);
	advise(p, PAGES, HETMEM_ADVISE_NOT_ACCESSED_BY, device(0));
	advise(p, PAGES, HETMEM_ADVISE_NOT_ACCESSED_BY, device(1));
	is(ranges(p, PAGES), 0, "all of it taken back");
	munmap(p, PAGES * page);
}

static void bad_input(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	struct hetmem_advised a;
	char *p = pages(4);
	uintptr_t next;

	is(hetmem_advise(NULL, p, page, 0, NODE0, NULL), -EINVAL, "no library");
	is(advise(p, 0, 0, NODE0), -EINVAL, "no bytes");
	is(hetmem_advise(hm, p, SIZE_MAX, 0, NODE0, NULL), -EINVAL, "too many");
	is(advise(p, 1, -1, NODE0), -EINVAL, "advice -1");
	is(advise(p, 1, 6, NODE0), -EINVAL, "advice 6");
	is(advise(p, 1, HETMEM_ADVISE_PREFERRED, device(9)), -ENODEV, "no such device");
	is(advise(p, 1, HETMEM_ADVISE_PREFERRED, device(0x8000)), -ENODEV,
	   "no such device of the module");
	is(advise(p, 1, HETMEM_ADVISE_ACCESSED_BY, HETMEM_LOC(HETMEM_HOST, 77)),
	   -EINVAL, "no such node");
	is(advise(p, 1, HETMEM_ADVISE_PREFERRED, NOWHERE), -EINVAL, "nowhere");
	is(advise(p, 1, HETMEM_ADVISE_READ_MOSTLY, 0x12345), 0,
	   "a location that does not count");
	is(advise(p, 1, HETMEM_ADVISE_NOT_READ_MOSTLY, 0), 0, "nor here");
	m.size = 8;
	is(hetmem_advise(hm, p, page, 0, NODE0, &m), -EINVAL, "a result too small");
	m.size = sizeof(m);
	munmap(p + 2 * page, page);
	is(advise(p, 4, HETMEM_ADVISE_PREFERRED, device(0)), -EINVAL, "a hole");
	ok(strstr(hetmem_last_error(), "nothing is mapped"), "%s", hetmem_last_error());
	is(hetmem_discard(hm, p, 4 * page, NULL, &m), -EINVAL, "a hole to discard");
	is(ranges(p, 4), 0, "nothing is remembered of it");
	is(hetmem_advised(hm, p, page, NULL, 1, &next), -EINVAL, "no ranges");
	is(hetmem_advised(hm, p, page, &a, 0, &next), -EINVAL, "no room");
	is(hetmem_advised(hm, p, page, &a, 1, NULL), -EINVAL, "no next");
	is(hetmem_advised(NULL, p, page, &a, 1, &next), -EINVAL, "no library");
	is(hetmem_discard(NULL, p, page, NULL, &m), -EINVAL, "no library");
	is(hetmem_discard(hm, p, 0, NULL, &m), -EINVAL, "nothing to discard");
	munmap(p, 4 * page);
}

/* Files stay on the host with HMM: part of a range, or all of it. */
static void files(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	char *p = pages(4);
	int fd = memfd_create("shared", MFD_CLOEXEC), exe = open("/proc/self/exe", O_RDONLY);

	need(fd >= 0 && exe >= 0 && !ftruncate(fd, 4 * page), "files");
	need(mmap(p + page, page, PROT_READ, MAP_PRIVATE | MAP_FIXED, exe, 0) != MAP_FAILED &&
	     mmap(p + 2 * page, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		  fd, 0) != MAP_FAILED, "maps them");
	is(hetmem_advise(hm, p, 4 * page, HETMEM_ADVISE_PREFERRED, device(0), &m), 0,
	   "memory and files");
	ok(!strcmp(m.how, "driver") && m.not_moved == 2 && m.why == HETMEM_WHY_FILE &&
	   m.why_addr == (uintptr_t)p + page, "%s: %llu pages, why %#x", m.how,
	   (unsigned long long)m.not_moved, m.why);
	is(hetmem_prefetch(hm, p, 4 * page, device(0), NULL, &m), 0, "prefetched");
	ok(!strcmp(m.how, "driver") && m.not_moved == 2 && m.why == HETMEM_WHY_FILE,
	   "%s: %llu pages stay", m.how, (unsigned long long)m.not_moved);
	advise(p, 4, HETMEM_ADVISE_NOT_PREFERRED, 0);
	is(hetmem_advise(hm, p + page, 2 * page, HETMEM_ADVISE_PREFERRED, device(0), &m),
	   0, "files alone");
	ok(!strcmp(m.how, "none") && *m.reason, "no: %s", m.reason);
	is(hetmem_prefetch(hm, p + 2 * page, page, device(0), NULL, &m), 0, "prefetched");
	ok(!strcmp(m.how, "none") && m.why == HETMEM_WHY_SHMEM, "no: %s", m.reason);
	is(hetmem_prefetch(hm, p + 2 * page, page, ANY, NULL, &m), 0, "to the host");
	is(m.not_moved, 0, "is where they are");
	munmap(p + page, page);
	is(hetmem_prefetch(hm, p, 4 * page, device(0), NULL, &m), 0, "with a hole");
	ok(!strcmp(m.how, "driver") && m.not_moved == 2 && m.why == HETMEM_WHY_UNMAPPED,
	   "counts, and so does the file: %llu", (unsigned long long)m.not_moved);
	is(hetmem_prefetch(hm, p + page, page, device(0), NULL, &m), 0, "a hole alone");
	ok(!strcmp(m.how, "none") && strstr(m.reason, "mapped"), "%s", m.reason);
	munmap(p, 4 * page);
	close(fd);
	close(exe);
}

/* Huge pages in a memfd are no shared memory like another. */
static void hugetlb(void)
{
	const size_t huge = (size_t)2 << 20;
	struct hetmem_moved m = { .size = sizeof(m) };
	int fd = memfd_create("huge", MFD_HUGETLB | MFD_CLOEXEC);
	char *p = MAP_FAILED;
	struct hm_maps maps;

	if (fd >= 0 && !ftruncate(fd, huge))
		p = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED) {
		ok(true, "no hugetlbfs here # SKIP");
		return;
	}
	is(hetmem_prefetch(hm, p, huge, device(0), NULL, &m), 0, "prefetched");
	/* Kernels before 6.11 do not report the size of its pages. */
	need(!hm_maps_open(&maps), "mappings");
	is(m.why, maps.text ? HETMEM_WHY_SHMEM : HETMEM_WHY_HUGETLB, "%s: why", m.reason);
	hm_maps_close(&maps);
	munmap(p, huge);
}

static void failures(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	char *p = pages(2);

	soft_rules("cuMemAdvise:1=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_advise(hm, p, page, HETMEM_ADVISE_PREFERRED, device(0), &m), -EIO,
	   "a driver that fails");
	ok(strstr(hetmem_last_error(), "cuMemAdvise: CUDA_ERROR_LAUNCH_FAILED"), "%s",
	   hetmem_last_error());
	soft_rules("cuMemAdvise:1=CUDA_ERROR_OUT_OF_MEMORY", NULL);
	is(advise(p, 1, HETMEM_ADVISE_PREFERRED, device(0)), -ENOMEM, "without memory");
	soft_rules("cuMemAdvise:1=CUDA_ERROR_INVALID_VALUE", NULL);
	is(advise(p, 1, HETMEM_ADVISE_PREFERRED, device(0)), -EINVAL, "that refuses");
	soft_rules("cuCtxGetCurrent:1", NULL);
	ok(advise(p, 1, HETMEM_ADVISE_PREFERRED, device(0)) < 0, "no context");
	soft_rules(NULL, NULL);
	is(ranges(p, 2), 0, "nothing is remembered");
	munmap(p, 2 * page);
}

/* Drivers without the calls, or with the first version only. */
static void lacking(void)
{
	struct hm_driver *d = &hm->driver, all = *d;
	struct hetmem_moved m = { .size = sizeof(m) };
	char *p = pages(1);

	d->cuMemAdvise_v2 = NULL;
	is(hetmem_advise(hm, p, page, HETMEM_ADVISE_PREFERRED, device(1), &m), 0, "v1");
	ok(!strcmp(m.how, "driver") && !*m.reason, "does it");
	is(hetmem_advise(hm, p, page, HETMEM_ADVISE_PREFERRED, NODE0, &m), 0, "a node");
	ok(!strcmp(m.how, "driver") && *m.reason, "to v1: %s", m.reason);
	advise(p, 1, HETMEM_ADVISE_NOT_PREFERRED, 0);
	d->cuMemAdvise_v1 = NULL;
	is(hetmem_advise(hm, p, page, HETMEM_ADVISE_PREFERRED, device(1), &m), 0, "none");
	ok(!strcmp(m.how, "none") && strstr(m.reason, "cuMemAdvise"), "%s", m.reason);
	*d = all;
	munmap(p, page);
}

/* Values of the driver for managed memory. */
static int attribute(const void *p, CUmem_range_attribute which)
{
	int value = -9;

	hm->driver.cuMemRangeGetAttribute(&value, sizeof(value), which, (uintptr_t)p,
					  page);
	return value;
}

static void managed(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	struct hetmem_resource *res;
	char *p;

	need(!hetmem_resource_create(hm, "managed", &res) &&
	     !hetmem_alloc(res, 4 * page, 0, NULL, (void **)&p), "managed memory");
	is(advise(p, 4, HETMEM_ADVISE_PREFERRED, device(1)), 0, "preferred");
	is(attribute(p, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), 1, "the driver knows");
	is(advise(p, 4, HETMEM_ADVISE_PREFERRED, ANY), 0, "the host");
	is(attribute(p, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_CPU, "too");
	is(advise(p, 4, HETMEM_ADVISE_READ_MOSTLY, 0), 0, "read mostly");
	is(attribute(p, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1, "known");
	is(advise(p, 4, HETMEM_ADVISE_ACCESSED_BY, NODE0), 0, "accessed by a node's CPUs");
	is(attribute(p, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY), CU_DEVICE_CPU, "the CPU");
	is(ranges(p, 4), 1, "one range");
	is(hetmem_discard(hm, p + 1, 4 * page - 2, NULL, &m), 0, "discard");
	ok(!strcmp(m.how, "driver"), "of whole pages");
	is(hetmem_discard(hm, p + 1, page, NULL, &m), 0, "of parts");
	ok(!strcmp(m.how, "none") && *m.reason, "%s", m.reason);
	is(hetmem_discard(hm, p, page, HETMEM_STREAM_HOST, &m), -EINVAL, "no stream of it");
	soft_rules("cuMemDiscardBatchAsync:1=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_discard(hm, p, page, NULL, &m), -EIO, "that fails");
	ok(strstr(hetmem_last_error(), "cuMemDiscardBatchAsync: CUDA_ERROR_LAUNCH_FAILED"),
	   "%s", hetmem_last_error());
	soft_rules(NULL, NULL);
	is(hetmem_discard(hm, p, 1 << 30, NULL, &m), -EINVAL, "more than there is");
	is(hetmem_free(res, p, 0, NULL), 0, "freed");
	is(ranges(p, 4), 0, "and forgotten");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* A pool's block is another's after it was freed: its advice is taken back. */
static void pool_blocks(void)
{
	struct hetmem_resource *res;
	char *p, *q;

	need(!hetmem_resource_create(hm, "pool(managed)", &res) &&
	     !hetmem_alloc(res, 8 << 20, 0, NULL, (void **)&p) &&
	     !hetmem_alloc(res, 8 << 20, 0, NULL, (void **)&q), "blocks");
	is(advise(p, (8 << 20) / page, HETMEM_ADVISE_PREFERRED, device(1)), 0, "one");
	is(advise(q, (8 << 20) / page, HETMEM_ADVISE_PREFERRED, device(0)), 0, "the other");
	is(hetmem_free(res, p, 0, NULL), 0, "freed");
	is(ranges(p, (8 << 20) / page), 0, "forgotten");
	is(attribute(p, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID,
	   "taken back");
	is(ranges(q, (8 << 20) / page), 1, "the other's stays");
	is(hetmem_free(res, q, 0, NULL), 0, "freed");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* What was advised goes along, and memory added is as the page before it. */
static void resize(void)
{
	const size_t mib = 1 << 20;
	struct hetmem_advised a[4];
	uintptr_t next;
	void *p, *q;

	need(!hetmem_system_alloc(hm, 4 * mib, &p), "memory");
	need(!hetmem_advise(hm, p, 2 * mib, HETMEM_ADVISE_READ_MOSTLY, 0, NULL) &&
	     !hetmem_advise(hm, (char *)p + 2 * mib, 2 * mib, HETMEM_ADVISE_PREFERRED,
			    device(1), NULL), "advised");
	soft_rules("cuMemAdvise:999999", NULL);
	is(hetmem_system_resize(hm, p, 64 * mib, &q), 0, "grown");
	is(hm->soft->made(0), 2, "the driver is told again");
	soft_rules(NULL, NULL);
	is(hetmem_advised(hm, q, 64 * mib, a, 4, &next), 2, "as before");
	ok(a[0].flags == HETMEM_ADVISED_READ_MOSTLY && a[0].start == (uintptr_t)q &&
	   a[0].end == (uintptr_t)q + 2 * mib, "the first half");
	ok(a[1].preferred == device(1) && a[1].end == (uintptr_t)q + 64 * mib,
	   "and the rest");
	ok(p == q || !hetmem_advised(hm, p, 4 * mib, a, 4, &next),
	   "nothing stays behind");
	is(hetmem_system_resize(hm, q, mib, &q), 0, "shrunk");
	is(hetmem_advised(hm, q, 64 * mib, a, 4, &next), 1, "one is left");
	ok(a[0].end == (uintptr_t)q + mib, "of the size that is left");
	soft_rules("cuMemAdvise:1", NULL);
	is(hetmem_system_resize(hm, q, 8 * mib, &q), 0, "grown, and the driver fails");
	soft_rules(NULL, NULL);
	is(hetmem_advised(hm, q, 64 * mib, a, 4, &next), 0, "it is not in force, and not told");
	is(hetmem_advise(hm, q, 8 * mib, HETMEM_ADVISE_PREFERRED, device(0), NULL), 0,
	   "again");
	is(hetmem_system_free(hm, q), 0, "freed");
	is(hetmem_advised(hm, q, 8 * mib, a, 4, &next), 0, "forgotten");
}

/* There is an end, and taking back is possible there. */
static void limit(void)
{
	const unsigned int nr = 2 * 16384 + 64;
	char *p = pages(nr);
	unsigned int i;
	int err = 0;

	for (i = 0; i < nr && !err; i += 2)
		err = advise(p + i * page, 1, HETMEM_ADVISE_READ_MOSTLY, 0);
	is(err, -ENOSPC, "after %u ranges", i / 2);
	ok(i > 2 * 16000, "and not before");
	is(advise(p, nr, HETMEM_ADVISE_NOT_READ_MOSTLY, 0), 0, "taken back");
	is(ranges(p, nr), 0, "all of it");
	is(advise(p, 1, HETMEM_ADVISE_READ_MOSTLY, 0), 0, "there is room again");
	is(advise(p, 1, HETMEM_ADVISE_NOT_READ_MOSTLY, 0), 0, "taken back");
	munmap(p, nr * page);
}

/* What the program unmapped itself does not count for ever. */
static void unmapped(void)
{
	const unsigned int nr = 20000;
	char *kept = pages(1), *p = pages(2 * nr);
	unsigned int i;
	int err = 0;

	munmap(p, 2 * nr * page);
	is(advise(kept, 1, HETMEM_ADVISE_READ_MOSTLY, 0), 0, "memory that stays");
	for (i = 0; i < nr && !err; i++) {
		char *q = mmap(p + 2 * i * page, page, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			       MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		need(q == p + 2 * i * page, "memory");
		err = advise(q, 1, HETMEM_ADVISE_READ_MOSTLY, 0);
		munmap(q, page);
	}
	is(err, 0, "advised and unmapped, %u times: %s", i, err ? hetmem_last_error() : "");
	is(ranges(kept, 1), 1, "what is mapped is remembered");
	is(advise(p, 1, HETMEM_ADVISE_READ_MOSTLY, 0), -EINVAL, "what is not cannot be advised");
	advise(kept, 1, HETMEM_ADVISE_NOT_READ_MOSTLY, 0);
	munmap(kept, page);
}

/* Advice that is taken back page by page makes ranges, too. */
static void cut_up(void)
{
	const unsigned int nr = 2 * 2 * 16384 + 64;
	char *p = pages(nr);
	unsigned int i;
	int err = 0;

	is(advise(p, nr, HETMEM_ADVISE_READ_MOSTLY, 0), 0, "one range");
	for (i = 1; i < nr && !err; i += 2)
		err = advise(p + i * page, 1, HETMEM_ADVISE_NOT_READ_MOSTLY, 0);
	is(err, -ENOSPC, "cut into %u: %s", i / 2, hetmem_last_error());
	ok(i > 2 * 32000, "and not before");
	is(advise(p, 1, HETMEM_ADVISE_NOT_READ_MOSTLY, 0), 0, "a whole range is taken back");
	is(advise(p, nr, HETMEM_ADVISE_NOT_READ_MOSTLY, 0), 0, "and all of them");
	is(ranges(p, nr), 0, "nothing is left");
	munmap(p, nr * page);
}

/* A driver that does not report what memory is. */
static void unknown_kind(void)
{
	static const char fails[] = "cuPointerGetAttributes:*=CUDA_ERROR_LAUNCH_FAILED";
	struct hetmem_prefetch_range range = { .size = sizeof(range) };
	struct hetmem_moved m = { .size = sizeof(m) };
	struct hetmem *all = hm;
	struct hetmem_resource *res, *classes;
	char *p, *d, *c;

	hm = open_machine("managed");
	need(hm, "opens: %s", hetmem_last_error());
	p = pages(1);
	need(!hetmem_resource_create(hm, "device", &res) &&
	     !hetmem_alloc(res, page, 0, NULL, (void **)&d) &&
	     !hetmem_resource_create(hm, "classes(managed)", &classes) &&
	     !hetmem_alloc(classes, 2 << 20, 0, NULL, (void **)&c), "memory");
	soft_rules(fails, NULL);
	is(advise(d, 1, HETMEM_ADVISE_READ_MOSTLY, 0), -EIO, "advise");
	ok(strstr(hetmem_last_error(), "cuPointerGetAttributes: CUDA_ERROR_LAUNCH_FAILED"),
	   "%s", hetmem_last_error());
	is(hetmem_prefetch(hm, d, page, device(0), NULL, &m), -EIO, "prefetch");
	is(hetmem_move(hm, d, page, device(0), NULL, 0, &m), -EIO, "move");
	is(hetmem_discard(hm, d, page, NULL, &m), -EIO, "discard");
	is(hetmem_attach(hm, d, page, &owned, &m), -EIO, "attach");
	range.ptr = d;
	range.bytes = page;
	range.location = device(0);
	is(hetmem_prefetch_batch(hm, &range, 1, NULL), -EIO, "a batch");
	is(range.result, -EIO, "the range of it");
	is(advise(p, 1, HETMEM_ADVISE_READ_MOSTLY, 0), -EIO, "the process's own memory, too");
	is(advise(c, 1, HETMEM_ADVISE_READ_MOSTLY, 0), -EIO, "and a class's");
	soft_rules("cuPointerGetAttributes:*=CUDA_ERROR_INVALID_VALUE", NULL);
	is(hetmem_advise(hm, p, page, HETMEM_ADVISE_READ_MOSTLY, 0, &m), 0,
	   "unknown to the driver: the process's own");
	is(hetmem_prefetch(hm, p, page, device(0), NULL, &m), 0, "likewise");
	soft_rules(NULL, NULL);
	is(hetmem_advise(hm, c, 2 << 20, HETMEM_ADVISE_READ_MOSTLY, 0, &m), 0, "later");
	ok(!strcmp(m.how, "driver"), "a class's memory is managed: %s", m.how);
	is(hetmem_free(classes, c, 0, NULL) + hetmem_free(res, d, 0, NULL), 0, "freed");
	is(hetmem_resource_destroy(classes) + hetmem_resource_destroy(res), 0, "destroyed");
	munmap(p, page);
	hetmem_close(hm);
	hm = all;
}

/* What the program advised goes with its block, and the advice of the block's class stays. */
static void class_advice(void)
{
	static const struct {
		unsigned int class;
		int advice;
		CUmem_range_attribute which;
		int value;
	} rows[] = {
		{ HETMEM_PLACEMENT_READ_MOSTLY, HETMEM_ADVISE_READ_MOSTLY,
		  CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 1 },
		{ HETMEM_PLACEMENT_READ_MOSTLY, HETMEM_ADVISE_NOT_READ_MOSTLY,
		  CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 1 },
		{ HETMEM_PLACEMENT_STREAMING, HETMEM_ADVISE_PREFERRED,
		  CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_DEVICE_CPU },
		{ HETMEM_PLACEMENT_STREAMING, HETMEM_ADVISE_NOT_PREFERRED,
		  CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_DEVICE_CPU },
		{ HETMEM_PLACEMENT_STREAMING, HETMEM_ADVISE_ACCESSED_BY,
		  CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, 0 },
		{ HETMEM_PLACEMENT_STREAMING, HETMEM_ADVISE_NOT_ACCESSED_BY,
		  CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, 0 },
		{ HETMEM_PLACEMENT_DEVICE, HETMEM_ADVISE_READ_MOSTLY,
		  CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0 },
	};
	struct hetmem_alloc_params params = { .size = sizeof(params), .bytes = 1 << 20 };
	struct hetmem_resource *res;
	char *p, *q;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		params.placement = rows[i].class;
		need(!hetmem_resource_create(hm, "unified(over=managed)", &res) &&
		     !hetmem_alloc_with(res, &params, (void **)&p), "a block of class %u",
		     rows[i].class);
		is(attribute(p, rows[i].which), rows[i].value, "its class's advice");
		is(advise(p, (1 << 20) / page, rows[i].advice, device(0)), 0, "advice %d",
		   rows[i].advice);
		is(ranges(p, (1 << 20) / page), rows[i].advice % 2 == 0,
		   "only the program's is reported");
		is(hetmem_grow(res, p, 3 << 19, NULL), 0, "the block grows");
		is(hetmem_free(res, p, 0, NULL), 0, "freed");
		need(!hetmem_alloc_with(res, &params, (void **)&q), "the next block");
		ok(q == p && !ranges(q, (1 << 20) / page), "is there, and nothing is reported");
		is(attribute(q, rows[i].which), rows[i].value, "the class's advice holds");
		is(hetmem_free(res, q, 0, NULL), 0, "freed");
		is(hetmem_resource_destroy(res), 0, "destroyed");
	}
}

static void forked(void)
{
	struct hetmem_advised a;
	char *p = pages(1);
	uintptr_t next;
	int status;
	void *s;

	need(!hetmem_system_alloc(hm, page, &s), "memory");
	need(!advise(p, 1, HETMEM_ADVISE_PREFERRED, device(0)) &&
	     !advise(s, 1, HETMEM_ADVISE_PREFERRED, device(0)), "advised");
	fflush(stdout);
	if (!fork()) {
		int bad = advise(p, 1, HETMEM_ADVISE_NOT_PREFERRED, 0) != -EOWNERDEAD;

		bad |= (hetmem_advised(hm, p, page, &a, 1, &next) != -EOWNERDEAD) << 1;
		bad |= (hetmem_discard(hm, p, page, NULL, NULL) != -EOWNERDEAD) << 2;
		bad |= !!hetmem_system_free(hm, s) << 3;
		hetmem_close(hm);
		_exit(bad);
	}
	wait(&status);
	is(status, 0, "a forked child is told, and may free and close");
	is(ranges(p, 1), 1, "the parent's is as it was");
	hetmem_system_free(hm, s);
	advise(p, 1, HETMEM_ADVISE_NOT_PREFERRED, 0);
	munmap(p, page);
}

static char *shared_pages;

static void *thread(void *arg)
{
	char *p = shared_pages + (uintptr_t)arg * 16 * page;
	unsigned int i;

	for (i = 0; i < 200; i++) {
		if (advise(p + i % 8 * page, 1 + i % 8, HETMEM_ADVISE_PREFERRED, device(0)) ||
		    advise(p, 16, HETMEM_ADVISE_NOT_PREFERRED, 0) ||
		    ranges(p, 16))
			return p;
	}
	return NULL;
}

static void threads(void)
{
	shared_pages = pages(64);
	ok(!in_threads(thread), "each thread sees its own");
	is(ranges(shared_pages, 64), 0, "nothing is left");
	munmap(shared_pages, 64 * page);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	page = sysconf(_SC_PAGESIZE);
	hm = open_machine("hmm; hmm");
	need(hm, "opens: %s", hetmem_last_error());
	random_program();
	bad_input();
	files();
	hugetlb();
	failures();
	lacking();
	managed();
	pool_blocks();
	resize();
	limit();
	unmapped();
	cut_up();
	unknown_kind();
	class_advice();
	forked();
	threads();
	hetmem_close(hm);
	return tap_end();
}
