// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Advice: the preferred location of memory, its users, whether it is mostly read.
 *
 * Advice in force is kept in an array of at most MAX_ADVISED disjoint ranges of whole
 * pages, sorted by address. Neighbours with equal advice are one range. The array grows
 * before anything changes, so a change cannot fail half done. The library forgets advice
 * when it frees the memory, and gives it again when it resizes the memory. The driver and
 * the kernel forget it at munmap(2). The library forgets what the program unmapped when the
 * array is full, and attached memory when the module reports munmap(2).
 *
 * place->lock protects the array and the call that puts advice in force, so that both
 * agree. It is taken after hm->lock, after attach->lock and after a context is current.
 * Every change of the array is one pass over it. A full array costs one more pass, with one
 * look at /proc/self/maps for each range.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/resource.h"
#include "place/place.h"
#include "provider/arenas.h"

/* Ranges. Advice that is taken back from the middle of a range adds one: up to twice as many. */
#define MAX_ADVISED	16384

#define NOWHERE		HETMEM_LOC(HETMEM_UNKNOWN, 0)

/* Internal flag: the program took back advice of the unit's class. Not reported. */
#define ADVISED_NOT	(1U << 31)
/* For remember(): changes nothing except @mark. */
#define NO_ADVICE	(-1)

/**
 * struct hm_place - the advice in force
 * @advised: @nr ranges, room for @room
 */
struct hm_place {
	struct hm_lock lock;
	struct hetmem_advised *advised;
	size_t nr;
	size_t room;
};

static bool is_empty(const struct hetmem_advised *a)
{
	return a->preferred == NOWHERE && !a->flags && !a->devices;
}

static bool is_same(const struct hetmem_advised *a, const struct hetmem_advised *b)
{
	return a->preferred == b->preferred && a->flags == b->flags &&
	       a->devices == b->devices;
}

/* Index of the first range that ends after @addr. */
static size_t find(const struct hm_place *p, uintptr_t addr)
{
	size_t low = 0, high = p->nr;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (p->advised[middle].end <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Makes room for the ranges that a change of [@start, @end) can add. -ENOMEM. */
static int reserve(struct hm_place *p, uintptr_t start, uintptr_t end)
{
	const size_t need = p->nr + find(p, end) - find(p, start) + 4;
	struct hetmem_advised *grown;
	size_t room = p->room ? p->room : 16;

	if (need <= p->room)
		return 0;
	while (room < need)
		room *= 2;
	grown = reallocarray(p->advised, room, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	p->advised = grown;
	p->room = room;
	return 0;
}

static void insert(struct hm_place *p, size_t at, const struct hetmem_advised *a)
{
	memmove(&p->advised[at + 1], &p->advised[at],
		(p->nr - at) * sizeof(*a));
	p->advised[at] = *a;
	p->nr++;
}

static void erase(struct hm_place *p, size_t at, size_t nr)
{
	memmove(&p->advised[at], &p->advised[at + nr],
		(p->nr - at - nr) * sizeof(*p->advised));
	p->nr -= nr;
}

/* Splits the range that crosses @addr. */
static void split(struct hm_place *p, uintptr_t addr)
{
	const size_t at = find(p, addr);
	struct hetmem_advised a;

	if (at == p->nr || p->advised[at].start >= addr)
		return;
	a = p->advised[at];
	a.end = addr;
	insert(p, at, &a);
	p->advised[at + 1].start = addr;
}

/* Erases empty ranges and joins equal neighbours, from @at to the range at @end. */
static void tidy(struct hm_place *p, size_t at, uintptr_t end)
{
	const size_t first = at ? at - 1 : 0;
	size_t to = first;

	for (at = first; at < p->nr && p->advised[at].start <= end; at++) {
		const struct hetmem_advised *a = &p->advised[at];
		struct hetmem_advised *last = &p->advised[to] - 1;

		if (is_empty(a))
			continue;
		if (to > first && last->end == a->start && is_same(last, a))
			last->end = a->end;
		else
			p->advised[to++] = *a;
	}
	erase(p, to, at - to);
}

/*
 * Inserts empty ranges where [@start, @end) has none. No range crosses @start or @end, and
 * reserve() has made room.
 */
static void fill_gaps(struct hm_place *p, uintptr_t start, uintptr_t end)
{
	const size_t first = find(p, start);
	struct hetmem_advised *a = p->advised;
	size_t from = first, to, gaps = 0;
	uintptr_t at = start;

	for (; from < p->nr && a[from].start < end; at = a[from++].end)
		gaps += a[from].start > at;
	gaps += at < end;
	memmove(&a[from + gaps], &a[from], (p->nr - from) * sizeof(*a));
	p->nr += gaps;
	/* From the end: the ranges move towards it. */
	for (to = from + gaps; to > from;) {
		at = from > first ? a[from - 1].end : start;
		if (at < end)
			a[--to] = (struct hetmem_advised){
				.start = at, .end = end, .preferred = NOWHERE,
			};
		if (from > first) {
			a[--to] = a[--from];
			end = a[to].start;
		}
	}
}

static void set(struct hetmem_advised *a, int advice, uint32_t location)
{
	const bool device = HETMEM_LOC_KIND(location) == HETMEM_DEVICE;
	const uint64_t bit = device ? 1ULL << HETMEM_LOC_INDEX(location) : 0;

	switch (advice) {
	case HETMEM_ADVISE_PREFERRED:
		a->preferred = location;
		break;
	case HETMEM_ADVISE_NOT_PREFERRED:
		a->preferred = NOWHERE;
		break;
	case HETMEM_ADVISE_ACCESSED_BY:
		a->devices |= bit;
		a->flags |= device ? 0 : HETMEM_ADVISED_BY_HOST;
		break;
	case HETMEM_ADVISE_NOT_ACCESSED_BY:
		a->devices &= ~bit;
		a->flags &= device ? ~0U : ~HETMEM_ADVISED_BY_HOST;
		break;
	case HETMEM_ADVISE_READ_MOSTLY:
		a->flags |= HETMEM_ADVISED_READ_MOSTLY;
		break;
	case NO_ADVICE:
		break;
	default:
		a->flags &= ~HETMEM_ADVISED_READ_MOSTLY;
	}
}

static const struct hm_block_ops block_ops;

/* Watches blocks while there is advice. @before: number of ranges before the change. */
static void watch(const struct hm_place *p, size_t before)
{
	if (!before != !p->nr)
		hm_watch_blocks(&block_ops, p->nr ? 1 : -1);
}

/* reserve() has made room. @mark: ADVISED_NOT or 0 */
static void remember(struct hm_place *p, uintptr_t start, uintptr_t end,
		     int advice, uint32_t location, uint32_t mark)
{
	const size_t before = p->nr;
	size_t first, at;

	split(p, start);
	split(p, end);
	fill_gaps(p, start, end);
	first = find(p, start);
	for (at = first; at < p->nr && p->advised[at].start < end; at++) {
		set(&p->advised[at], advice, location);
		p->advised[at].flags |= mark;
	}
	tidy(p, first, end);
	watch(p, before);
}

/* Without memory to split a range, forgets all of the range. */
static void forget(struct hm_place *p, uintptr_t start, uintptr_t end)
{
	const size_t before = p->nr;
	size_t at, to;

	if (!p->nr)
		return;
	if (!reserve(p, start, end)) {
		split(p, start);
		split(p, end);
	}
	at = to = find(p, start);
	while (to < p->nr && p->advised[to].start < end)
		to++;
	erase(p, at, to - at);
	watch(p, before);
}

/*
 * Forgets ranges without any mapping. One pass, with at most one query for each range, or one
 * reading of /proc/self/maps on kernels without queries. New memory at the address of old
 * memory keeps the range.
 */
static void forget_unmapped(struct hm_place *p)
{
	const size_t before = p->nr;
	struct hm_vma vma = { 0 };
	struct hm_maps maps;
	size_t at, to = 0;

	if (hm_maps_open(&maps))
		return;
	for (at = 0; at < p->nr; at++) {
		const struct hetmem_advised a = p->advised[at];

		if (vma.end <= a.start && !hm_maps_next(&maps, a.start, &vma))
			break;
		if (vma.start < a.end)
			p->advised[to++] = a;
	}
	hm_maps_close(&maps);
	p->nr = to;
	watch(p, before);
}

void hm_place_unmapped(struct hetmem *hm, uintptr_t start, uintptr_t end)
{
	struct hm_place *p = hm->place;
	struct hm_maps maps;
	struct hm_vma vma;

	hm_lock(&p->lock);
	/* With the lock: new memory there has no advice that would be forgotten. */
	if (p->nr && !hm_maps_open(&maps)) {
		while (start < end) {
			if (!hm_maps_next(&maps, start, &vma) || vma.start > end)
				vma.start = vma.end = end;
			if (start < vma.start)
				forget(p, start, vma.start);
			start = vma.end;
		}
		hm_maps_close(&maps);
	}
	hm_unlock(&p->lock);
}

/* The ways to put advice in force: a driver call, or the kernel's memory policy. */
enum by { BY_NOBODY, BY_DRIVER, BY_POLICY };

/**
 * struct advice - one advice, and how it is put in force
 * @node: BY_POLICY: NUMA node, -1: none
 * @reason: as in struct hetmem_moved
 * @hmm: look at the mappings: HMM leaves some on the host
 */
struct advice {
	int what;
	uint32_t location;
	enum by by;
	int node;
	const char *reason;
	bool hmm;
};

static bool has_location(int what)
{
	return what == HETMEM_ADVISE_PREFERRED ||
	       what == HETMEM_ADVISE_ACCESSED_BY ||
	       what == HETMEM_ADVISE_NOT_ACCESSED_BY;
}

/* Whether @what can be refused with -ENOSPC. Taking advice back cannot. */
static bool is_added(int what)
{
	return what == HETMEM_ADVISE_PREFERRED ||
	       what == HETMEM_ADVISE_ACCESSED_BY ||
	       what == HETMEM_ADVISE_READ_MOSTLY;
}

static bool is_about_location(int what)
{
	return what == HETMEM_ADVISE_PREFERRED ||
	       what == HETMEM_ADVISE_NOT_PREFERRED;
}

static void nobody(struct advice *a, const char *reason)
{
	a->by = BY_NOBODY;
	a->reason = reason;
}

static bool host_tables(const struct hetmem_platform *p)
{
	return p->kind == HETMEM_PLATFORM_ATS || p->kind == HETMEM_PLATFORM_CDMM;
}

static bool is_hmm(const struct hetmem_platform *p)
{
	return p->kind == HETMEM_PLATFORM_HMM;
}

static void by_policy(struct advice *a, int node, const char *reason)
{
	a->by = BY_POLICY;
	a->node = node;
	a->reason = reason;
	if (!hm_numa_there())
		nobody(a, "this kernel has no NUMA: there is one node");
}

/* For devices with the CPU's page tables, the kernel's memory policy decides. */
static void plan_host_tables(const struct hetmem_platform *p, struct advice *a)
{
	if (!is_about_location(a->what))
		nobody(a, a->what == HETMEM_ADVISE_READ_MOSTLY ||
		       a->what == HETMEM_ADVISE_NOT_READ_MOSTLY ?
		       "the device uses the CPU's page tables: there is one copy of this memory" :
		       "the device uses the CPU's page tables: it accesses this memory without advice");
	else if (a->what == HETMEM_ADVISE_NOT_PREFERRED)
		by_policy(a, -1, "");
	else if (p->node >= 0)
		by_policy(a, p->node, "");
	else if (p->host_node < 0)
		nobody(a, "CDMM: the device's memory cannot hold this memory, and its nearest host node is not known");
	else
		by_policy(a, p->host_node, "CDMM: the device's memory cannot hold this memory: the host node nearest to the device is preferred");
}

static int nearest_host_node(const struct hetmem *hm)
{
	int i, node;

	for (i = 0; i < hm->nr_devices; i++)
		if (host_tables(&hm->devices[i].platform) &&
		    hm->devices[i].platform.host_node >= 0)
			return hm->devices[i].platform.host_node;
	for (node = 0; hm_device_of_node(hm, node) >= 0; node++)
		;
	return hm_numa_has_node(node) ? node : 0;
}

static void plan_driver(const struct hetmem *hm, struct advice *a)
{
	a->by = BY_DRIVER;
	if (!hm_driver_can_advise(hm))
		nobody(a, "this driver has no cuMemAdvise");
	else if (a->what == HETMEM_ADVISE_PREFERRED &&
		 HETMEM_LOC_KIND(a->location) == HETMEM_HOST &&
		 HETMEM_LOC_INDEX(a->location) != HETMEM_NODE_ANY &&
		 !hm->driver.cuMemAdvise_v2)
		a->reason = "this driver knows the host, and none of its nodes: the host is preferred";
}

static void plan_managed(const struct hetmem *hm, const struct hetmem_platform *p,
			 struct advice *a)
{
	if (p ? hm_is_integrated(p) : !hm_any_platform(hm, hm_moves_managed) &&
	    hm_any_platform(hm, hm_is_integrated))
		nobody(a, hm_one_memory);
	else if (p ? !p->concurrent : !hm_any_platform(hm, hm_moves_managed))
		nobody(a, "no concurrent managed access: managed memory takes no advice");
	else
		plan_driver(hm, a);
}

static void plan_pageable(const struct hetmem *hm, const struct hetmem_platform *p,
			  struct advice *a)
{
	const bool hmm = hm_any_platform(hm, is_hmm);
	const bool node = a->what == HETMEM_ADVISE_PREFERRED && !p &&
			  HETMEM_LOC_INDEX(a->location) != HETMEM_NODE_ANY;

	if (p && !p->pageable) {
		nobody(a, hm_not_pageable(hm, p->kind));
	} else if (p && hm_is_integrated(p)) {
		nobody(a, hm_one_memory);
	} else if (p && host_tables(p)) {
		plan_host_tables(p, a);
	} else if (p || (hmm && !hm_any_platform(hm, host_tables))) {
		plan_driver(hm, a);
		a->hmm = true;
		if (a->by == BY_DRIVER && a->what == HETMEM_ADVISE_READ_MOSTLY)
			a->reason = "HMM: the driver makes copies only of memory that it allocated: it may not copy this";
	} else if (hm_any_platform(hm, host_tables)) {
		const struct hetmem_platform host = {
			.node = node ? (int)HETMEM_LOC_INDEX(a->location) :
				nearest_host_node(hm),
		};

		plan_host_tables(&host, a);
	} else if (node || a->what == HETMEM_ADVISE_NOT_PREFERRED) {
		by_policy(a, node ? (int)HETMEM_LOC_INDEX(a->location) : -1, "");
	} else if (hm_any_platform(hm, hm_is_integrated)) {
		nobody(a, hm_one_memory);
	} else {
		nobody(a, "no device of this machine uses this memory: it is the host's");
	}
}

static void plan(const struct hetmem *hm, enum hm_memory memory, struct advice *a)
{
	const bool device = has_location(a->what) &&
			    HETMEM_LOC_KIND(a->location) == HETMEM_DEVICE;
	const struct hetmem_platform *p = NULL;

	a->reason = "";
	if (device && HETMEM_LOC_INDEX(a->location) & HM_KERNEL_DEVICE) {
		nobody(a, "only hetmem.ko knows this device, and it takes no advice");
		return;
	}
	if (device)
		p = &hm->devices[HETMEM_LOC_INDEX(a->location)].platform;
	switch (memory) {
	case HM_MANAGED:
		plan_managed(hm, p, a);
		break;
	case HM_PAGEABLE:
		plan_pageable(hm, p, a);
		break;
	case HM_PINNED:
		nobody(a, hm_page_locked);
		break;
	default:
		nobody(a, hm_stays);
	}
}

static CUresult call_advise(const struct hetmem *hm, uintptr_t start, size_t size,
			    const struct advice *a)
{
	static const CUmem_advise calls[] = {
		[HETMEM_ADVISE_PREFERRED] = CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
		[HETMEM_ADVISE_NOT_PREFERRED] = CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
		[HETMEM_ADVISE_ACCESSED_BY] = CU_MEM_ADVISE_SET_ACCESSED_BY,
		[HETMEM_ADVISE_NOT_ACCESSED_BY] = CU_MEM_ADVISE_UNSET_ACCESSED_BY,
		[HETMEM_ADVISE_READ_MOSTLY] = CU_MEM_ADVISE_SET_READ_MOSTLY,
		[HETMEM_ADVISE_NOT_READ_MOSTLY] = CU_MEM_ADVISE_UNSET_READ_MOSTLY,
	};
	uint32_t location = a->location;

	/* The host is one processor, whichever node its memory is on. */
	if (!has_location(a->what) || (a->what != HETMEM_ADVISE_PREFERRED &&
				       HETMEM_LOC_KIND(location) == HETMEM_HOST))
		location = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	return hm_driver_advise(hm, start, size, calls[a->what], location);
}

/* With the lock. BY_DRIVER: a context is current. */
static int put_in_force(const struct hetmem *hm, uintptr_t start, uintptr_t end,
			const struct advice *a)
{
	CUresult res;
	int err;

	if (a->by == BY_DRIVER) {
		res = call_advise(hm, start, end - start, a);
		return res ? hm_place_error(hm, "cuMemAdvise", res) : 0;
	}
	err = hm_numa_prefer(start, end, a->node);
	if (err)
		hm_error(err, "mbind: %s", strerror(-err));
	if (err == -EINVAL)
		hm_error(err, "mbind: the range begins or ends within a mapping that cannot be split: advise all of the mapping");
	return err == -EFAULT ? -EINVAL :
		err && err != -ENOMEM && err != -EINVAL ? -EIO : err;
}

/* Counts pages that HMM leaves on the host. False: these are all pages of @span. */
static bool look(const struct hetmem *hm, const struct hm_span *span,
		 struct hetmem_moved *done)
{
	const uint32_t mask = HETMEM_WHY_FILE | HETMEM_WHY_SHMEM |
			      HETMEM_WHY_HUGETLB | HETMEM_WHY_SPECIAL;
	uintptr_t at = span->start;
	struct hm_maps maps;
	struct hm_vma vma;

	if (hm_maps_open(&maps))
		return true;
	for (; at < span->end && hm_maps_next(&maps, at, &vma); at = vma.end) {
		const uintptr_t end = vma.end < span->end ? vma.end : span->end;

		if (vma.start >= span->end || !(vma.why & mask))
			continue;
		if (!done->not_moved) {
			done->why = vma.why;
			done->why_addr = at;
		}
		done->not_moved += (end - at) / hm->page_size;
	}
	hm_maps_close(&maps);
	return done->not_moved < (span->end - span->start) / hm->page_size;
}

static bool cuts(const struct hm_place *p, uintptr_t addr)
{
	const size_t at = find(p, addr);

	return at < p->nr && p->advised[at].start < addr;
}

/* -ENOSPC: the array is full, and its memory is mapped. */
static int check_room(struct hm_place *p, const struct hm_span *span, int what)
{
	const size_t max = is_added(what) ? MAX_ADVISED : 2 * MAX_ADVISED;

	if (p->nr + 3 <= max ||
	    (!is_added(what) && !cuts(p, span->start) && !cuts(p, span->end)))
		return 0;
	forget_unmapped(p);
	return p->nr + 3 <= max ? 0 : -ENOSPC;
}

static int carry_out(struct hetmem *hm, const struct hm_span *span,
		     const struct advice *a, struct hetmem_moved *done)
{
	const uint32_t mark = a->by == BY_DRIVER && !is_added(a->what) &&
		hm_arenas_advised(hm, span->start, span->end) ? ADVISED_NOT : 0;
	struct hm_place *p = hm->place;
	struct hm_context saved = { 0 };
	int device = 0, err = 0;

	if (HETMEM_LOC_KIND(a->location) == HETMEM_DEVICE)
		device = HETMEM_LOC_INDEX(a->location);
	if (a->by == BY_DRIVER) {
		err = hm_context_default(hm, device, &saved);
		if (err)
			return err;
		hm_context_relax(hm, &saved);
	}
	hm_lock(&p->lock);
	err = reserve(p, span->start, span->end);
	if (!err)
		err = check_room(p, span, a->what);
	if (err)
		hm_error(err, err == -ENOSPC ?
			 "advise: %zu ranges have advice: take advice back about whole ranges, or advise fewer and larger ones" :
			 "advise: no memory to remember more than %zu ranges", p->nr);
	if (!err)
		err = put_in_force(hm, span->start, span->end, a);
	if (!err)
		remember(p, span->start, span->end, a->what, a->location, mark);
	hm_unlock(&p->lock);
	if (a->by == BY_DRIVER)
		hm_context_leave(hm, &saved);
	if (!err) {
		done->how = a->by == BY_DRIVER ? "driver" : "mbind";
		done->reason = a->reason;
	}
	return err;
}

static int check_advice(struct hetmem *hm, int advice, uint32_t location)
{
	if (advice < 0 || advice > HETMEM_ADVISE_NOT_READ_MOSTLY)
		return hm_error(-EINVAL, "advise: there is no advice %d: give one of enum hetmem_advice", advice);
	return has_location(advice) ? hm_place_location(hm, "advise", location) : 0;
}

int hetmem_advise(struct hetmem *hm, const void *ptr, size_t size,
		  enum hetmem_advice advice, uint32_t location,
		  struct hetmem_moved *done)
{
	struct advice a = { .what = (int)advice, .location = location };
	struct hetmem_moved result = hm_nothing_moved;
	struct hm_span span;
	int err = hm_place_enter(hm, "advise", done);

	if (err)
		return err;
	err = hm_place_span(hm, "advise", ptr, size, &span);
	if (!err)
		err = check_advice(hm, a.what, location);
	if (!err && span.memory == HM_PAGEABLE)
		err = hm_place_mapped(&span, "advise");
	if (!err) {
		plan(hm, span.memory, &a);
		if (a.by != BY_NOBODY && a.hmm && !look(hm, &span, &result))
			nobody(&a, "HMM: files, shared memory and pages of hugetlbfs stay on the host, whatever is advised");
		if (a.by == BY_NOBODY)
			result.reason = a.reason;
		else
			err = carry_out(hm, &span, &a, &result);
	}
	if (done) {
		result.size = done->size;
		*done = result;
	}
	return err;
}

ssize_t hetmem_advised(struct hetmem *hm, const void *ptr, size_t size,
		       struct hetmem_advised *ranges, size_t nr, uintptr_t *next)
{
	struct hm_place *p;
	struct hm_span span;
	size_t at, n = 0;
	int err = hm_place_enter(hm, "advised", NULL);

	if (!err && (!ranges || !nr || !next))
		err = hm_error(-EINVAL, "advised: %s", !ranges ? "ranges is NULL" :
			       !nr ? "nr is 0" : "next is NULL");
	if (!err)
		err = hm_place_pages(hm, "advised", ptr, size, &span);
	if (err)
		return err;
	p = hm->place;
	hm_lock(&p->lock);
	at = find(p, span.start);
	for (; at < p->nr && p->advised[at].start < span.end && n < nr; at++) {
		ranges[n] = p->advised[at];
		ranges[n].flags &= ~ADVISED_NOT;
		if (is_empty(&ranges[n]))
			continue;
		if (ranges[n].start < span.start)
			ranges[n].start = span.start;
		if (ranges[n].end > span.end)
			ranges[n].end = span.end;
		n++;
	}
	*next = at < p->nr && p->advised[at].start < span.end ?
		p->advised[at].start : span.end;
	hm_unlock(&p->lock);
	return n;
}

/* Memory that the library frees or resizes. */

/* Finds the whole pages inside [@start, @start + @size). False: none. */
static bool pages_inside(const struct hetmem *hm, uintptr_t start, size_t size,
			 uintptr_t *first, uintptr_t *end)
{
	const uintptr_t mask = hm->page_size - 1;

	*first = (start + mask) & ~mask;
	*end = (start + size) & ~mask;
	return *first < *end;
}

static bool is_forked(const struct hetmem *hm)
{
	return hm->generation != hm_generation();
}

static void memory_gone(struct hetmem *hm, uintptr_t start, size_t size)
{
	uintptr_t first, end;

	if (is_forked(hm) || !pages_inside(hm, start, size + hm->page_size - 1,
					   &first, &end))
		return;
	hm_lock(&hm->place->lock);
	forget(hm->place, first, end);
	hm_unlock(&hm->place->lock);
}

/* Calls @each for each advice in @a. */
static void each_advice(const struct hetmem_advised *a,
			void (*each)(void *arg, int what, uint32_t location),
			void *arg)
{
	unsigned int i;

	if (a->preferred != NOWHERE)
		each(arg, HETMEM_ADVISE_PREFERRED, a->preferred);
	if (a->flags & HETMEM_ADVISED_READ_MOSTLY)
		each(arg, HETMEM_ADVISE_READ_MOSTLY, 0);
	if (a->flags & HETMEM_ADVISED_BY_HOST)
		each(arg, HETMEM_ADVISE_ACCESSED_BY,
		     HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY));
	for (i = 0; i < HM_MAX_DEVICES; i++)
		if (a->devices >> i & 1)
			each(arg, HETMEM_ADVISE_ACCESSED_BY,
			     HETMEM_LOC(HETMEM_DEVICE, i));
}

struct again {
	struct hetmem *hm;
	uintptr_t start;
	uintptr_t end;
	enum hm_memory memory;
	bool off;		/* take it back, and do not remember */
};

static void once_again(void *arg, int what, uint32_t location)
{
	const struct again *again = arg;
	struct advice a = { .what = what, .location = location };
	int opposite = what + 1;

	if (again->off)
		a.what = opposite;
	plan(again->hm, again->memory, &a);
	if (a.by == BY_NOBODY)
		return;
	if (put_in_force(again->hm, again->start, again->end, &a) || again->off)
		return;
	if (!reserve(again->hm->place, again->start, again->end))
		remember(again->hm->place, again->start, again->end, what, location, 0);
}

/* What the memory is, for advice that changes with it. Retry once: no error is returned. */
static enum hm_memory known_memory(struct hetmem *hm, uintptr_t addr)
{
	enum hm_memory memory;

	if (!hm_memory_of(hm, (void *)addr, &memory) ||
	    !hm_memory_of(hm, (void *)addr, &memory))
		return memory;
	return HM_DRIVERS_OWN;
}

/*
 * Forgets the advice about [@from, @from_end). With @off, takes it back from the driver or
 * the kernel. Otherwise puts it in force on [@to, @to_end); if that is longer, its end
 * gets the advice of the last page. Returns whether there was any. The work is at most one
 * call of the driver for each piece of advice that the program gave about the range.
 */
static bool transfer(struct hetmem *hm, uintptr_t from, uintptr_t from_end,
		     uintptr_t to, uintptr_t to_end, bool off)
{
	struct hm_place *p = hm->place;
	struct hetmem_advised *copy = NULL;
	struct hm_context saved = { 0 };
	const bool has_context = hm->nr_devices &&
				 !hm_context_default(hm, 0, &saved);
	enum hm_memory memory;
	size_t first, nr, i;

	if (has_context)
		hm_context_relax(hm, &saved);
	/* It takes locks that are held when memory is forgotten: ask before p->lock. */
	memory = known_memory(hm, to);
	hm_lock(&p->lock);
	first = find(p, from);
	nr = find(p, from_end - 1) - first;
	if (first + nr < p->nr && p->advised[first + nr].start < from_end)
		nr++;
	if (nr)
		copy = malloc(nr * sizeof(*copy));
	if (copy)
		memcpy(copy, &p->advised[first], nr * sizeof(*copy));
	forget(p, from, from_end);
	for (i = 0; copy && i < nr; i++) {
		struct again again = { .hm = hm, .off = off };
		uintptr_t start = copy[i].start < from ? from : copy[i].start;
		uintptr_t end = copy[i].end < from_end ? copy[i].end : from_end;

		again.start = start - from + to;
		again.end = end == from_end ? to_end : end - from + to;
		if (again.end > to_end)
			again.end = to_end;
		again.memory = memory;
		if (again.start >= again.end)
			continue;
		each_advice(&copy[i], once_again, &again);
		if (!off && copy[i].flags & ADVISED_NOT &&
		    !reserve(p, again.start, again.end))
			remember(p, again.start, again.end, NO_ADVICE, 0, ADVISED_NOT);
	}
	hm_unlock(&p->lock);
	free(copy);
	if (has_context)
		hm_context_leave(hm, &saved);
	return nr;
}

static bool has_advice(struct hm_place *p)
{
	bool has;

	hm_lock(&p->lock);
	has = p->nr;
	hm_unlock(&p->lock);
	return has;
}

static void memory_moved(struct hetmem *hm, uintptr_t from, size_t size,
			 uintptr_t to, size_t new_size)
{
	const uintptr_t mask = hm->page_size - 1;

	if (!is_forked(hm) && has_advice(hm->place))
		transfer(hm, from & ~mask, (from + size + mask) & ~mask,
			 to & ~mask, (to + new_size + mask) & ~mask, false);
}

static const struct hm_memory_ops memory_ops = {
	.gone = memory_gone,
	.moved = memory_moved,
};

/*
 * Takes advice back: the pool gives the memory to blocks that have none. Advice of the
 * block's class may have gone with it, so the driver gets that again.
 */
static void block_freed(struct hetmem *hm, uintptr_t start, size_t size)
{
	uintptr_t first, end;

	if (!is_forked(hm) && pages_inside(hm, start, size, &first, &end) &&
	    transfer(hm, first, end, first, end, true))
		hm_arenas_advise(hm, first, end);
}

static const struct hm_block_ops block_ops = {
	.freed = block_freed,
	.grown = memory_moved,
};

int hm_place_open(struct hetmem *hm)
{
	struct hm_place *p = calloc(1, sizeof(*p));

	if (!p)
		return hm_error(-ENOMEM, "open: no memory");
	hm_lock_init(&p->lock, HM_FORK_PLACE);
	hm->place = p;
	hm->memory_ops = &memory_ops;
	return 0;
}

void hm_place_close(struct hetmem *hm)
{
	struct hm_place *p = hm->place;

	if (!p)
		return;
	if (p->nr)
		hm_watch_blocks(&block_ops, -1);
	hm_lock_destroy(&p->lock);
	free(p->advised);
	free(p);
	hm->place = NULL;
}
