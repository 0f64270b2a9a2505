// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks: a table that finds them by address, and a cache of freed ones.
 *
 * The table has a word for each HM_UNIT of the address space: the size of the block that
 * begins there, and flags. It has two levels, so a lookup takes two loads and touches no
 * memory of the program. A leaf of 64 KiB stands for 16 GiB of addresses and is never freed.
 *
 * The cache keeps freed pages, so that a loop of malloc() and free() costs no page faults. It
 * holds at most CACHE_BYTES. A block that nobody took for CACHE_NS is unmapped by the next
 * call for a block, all by malloc_trim().
 *
 * Every word is atomic and complete by itself: there is no lock. Of two threads that free or
 * resize one block only one finds it, the other's pointer goes to the next allocator, which
 * reports it. After fork() the child misses at most the block that another thread was just
 * caching.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "preload/preload.h"

#define UNIT_SHIFT	21
#define LEAF_SHIFT	13
#define LEAF_WORDS	((size_t)1 << LEAF_SHIFT)
/* Addresses of 48 bits: the kernel gives out higher ones only on request. */
#define TOP_WORDS	((size_t)1 << (48 - UNIT_SHIFT - LEAF_SHIFT))

/* Flags are below the page size. */
#define RESOURCE	((uint64_t)1 << 0)	/* of resource.c */
#define MAPPED		((uint64_t)1 << 1)	/* of the program's mmap(): not a block */
#define FLAGS		((uint64_t)0xfff)

typedef _Atomic(uint64_t) word;

static _Atomic(word *) top[TOP_WORDS];

/* NULL: no block was ever near @p. */
static word *find_word(const void *p)
{
	const uintptr_t unit = (uintptr_t)p >> UNIT_SHIFT;
	word *leaf;

	if ((uintptr_t)p & (HM_UNIT - 1) || unit >> LEAF_SHIFT >= TOP_WORDS)
		return NULL;
	leaf = atomic_load_explicit(&top[unit >> LEAF_SHIFT], memory_order_acquire);
	return leaf ? &leaf[unit & (LEAF_WORDS - 1)] : NULL;
}

/* NULL: no memory, or an address that the table does not have. */
static word *make_word(const void *p)
{
	const uintptr_t unit = (uintptr_t)p >> UNIT_SHIFT;
	word *leaf, *other = NULL;

	if (unit >> LEAF_SHIFT >= TOP_WORDS)
		return NULL;
	if (!atomic_load_explicit(&top[unit >> LEAF_SHIFT], memory_order_acquire)) {
		leaf = hm_sys_mmap(NULL, LEAF_WORDS * sizeof(word), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (leaf == MAP_FAILED)
			return NULL;
		if (!atomic_compare_exchange_strong(&top[unit >> LEAF_SHIFT], &other, leaf))
			hm_sys_munmap(leaf, LEAF_WORDS * sizeof(word));
	}
	return find_word(p);
}

static void count_live(size_t more, size_t less)
{
	const size_t live = atomic_fetch_add(&hm_counters.live, more - less) + more - less;
	size_t peak = atomic_load(&hm_counters.peak);

	while (live > peak && live <= PTRDIFF_MAX &&
	       !atomic_compare_exchange_weak(&hm_counters.peak, &peak, live))
		;
}

/* Memory that glibc, too, may keep at its top: twice the most of its threshold for mmap(). */
#define CACHE_BYTES	((size_t)64 << 20)
#define CACHE_MOST	(CACHE_BYTES / 2)
#define CACHE_SLOTS	32
#define CACHE_NS	1000000000ULL

/**
 * struct slot - room for one freed mapping
 * @what: its address and, in the bits that are 0 in an address, its pages; 0: the slot is free
 * @since: when it was freed. Another thread may read the time of an earlier mapping: that one is
 *	unmapped too early or too late, which harms nothing.
 */
struct slot {
	word what;
	word since;
};

static struct slot cache[CACHE_SLOTS];
static atomic_size_t cache_bytes;

static size_t cached_size(uint64_t what)
{
	return (what & (HM_UNIT - 1)) * hm_page_size;
}

static void *cached_start(uint64_t what)
{
	return (void *)(uintptr_t)(what & ~(uint64_t)(HM_UNIT - 1));
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* False: another thread has taken it. */
static bool take_slot(struct slot *slot, uint64_t what)
{
	if (!what || !atomic_compare_exchange_strong(&slot->what, &what, 0))
		return false;
	atomic_fetch_sub(&cache_bytes, cached_size(what));
	return true;
}

static void unmap(void *start, size_t size)
{
	hm_pages_untrack(start, size);
	hm_sys_munmap(start, size);
}

static bool drop_slot(struct slot *slot, uint64_t what)
{
	if (!take_slot(slot, what))
		return false;
	unmap(cached_start(what), cached_size(what));
	return true;
}

/* Unmaps what is older than @age. */
static bool cache_expire(uint64_t age)
{
	bool dropped = false;
	uint64_t time;
	size_t i;

	if (!atomic_load_explicit(&cache_bytes, memory_order_relaxed))
		return false;
	time = now();
	for (i = 0; i < CACHE_SLOTS; i++) {
		const uint64_t what = atomic_load(&cache[i].what);

		if (what && time - atomic_load(&cache[i].since) >= age)
			dropped |= drop_slot(&cache[i], what);
	}
	return dropped;
}

/* A mapping of @size bytes or a quarter more: *@got. NULL: there is none. */
static void *cache_take(size_t size, size_t *got)
{
	size_t i;

	if (size > CACHE_MOST || !atomic_load_explicit(&cache_bytes, memory_order_relaxed))
		return NULL;
	for (i = 0; i < CACHE_SLOTS; i++) {
		const uint64_t what = atomic_load(&cache[i].what);

		if (!what || cached_size(what) < size || cached_size(what) > size + size / 4)
			continue;
		if (take_slot(&cache[i], what)) {
			*got = cached_size(what);
			return cached_start(what);
		}
	}
	return NULL;
}

static void drop_oldest(void)
{
	uint64_t oldest = UINT64_MAX, what = 0;
	struct slot *slot = NULL;
	size_t i;

	for (i = 0; i < CACHE_SLOTS; i++) {
		const uint64_t here = atomic_load(&cache[i].what);
		const uint64_t since = atomic_load(&cache[i].since);

		if (here && since < oldest) {
			oldest = since;
			what = here;
			slot = &cache[i];
		}
	}
	if (slot)
		drop_slot(slot, what);
}

/* False: there is no room for it. */
static bool cache_put(void *start, size_t size)
{
	const uint64_t what = (uintptr_t)start | size / hm_page_size;
	const uint64_t time = now();
	size_t i, tries;

	if (size > CACHE_MOST || atomic_load_explicit(&hm_limited, memory_order_relaxed))
		return false;
	/* The program may have protected a part: the next owner may write all. */
	if (syscall(SYS_mprotect, start, size, PROT_READ | PROT_WRITE))
		return false;
	for (tries = 0; tries < CACHE_SLOTS; tries++) {
		if (atomic_fetch_add(&cache_bytes, size) + size <= CACHE_BYTES) {
			for (i = 0; i < CACHE_SLOTS; i++) {
				uint64_t none = 0;

				if (atomic_load(&cache[i].what))
					continue;
				atomic_store(&cache[i].since, time);
				if (atomic_compare_exchange_strong(&cache[i].what, &none, what))
					return true;
			}
		}
		atomic_fetch_sub(&cache_bytes, size);
		drop_oldest();
	}
	return false;
}

bool hm_block_trim(void)
{
	return cache_expire(0);
}

/* Pages for a block, tracked. *@got: their size. */
static void *make_pages(size_t size, size_t align, bool zero, size_t *got)
{
	void *p;

	cache_expire(CACHE_NS);
	p = align <= HM_UNIT ? cache_take(size, got) : NULL;
	if (p) {
		hm_count(&hm_counters.cached);
		/* Locked memory cannot be dropped. */
		if (zero && syscall(SYS_madvise, p, *got, MADV_DONTNEED))
			memset(p, 0, *got);
		return p;
	}
	if (align < HM_UNIT)
		align = HM_UNIT;
	p = hm_pages_map(size, align);
	if (!p && cache_expire(0))
		p = hm_pages_map(size, align);
	if (p)
		hm_pages_track(p, size);
	*got = size;
	return p;
}

void *hm_block_alloc(size_t size, size_t align, bool zero)
{
	const int error = errno;
	uint64_t flags = 0;
	void *p = NULL;
	word *w;

	if (size > PTRDIFF_MAX - HM_UNIT || align > PTRDIFF_MAX / 2)
		return NULL;
	size = hm_whole_pages(size);
	/* Resources use huge pages: a smaller block would occupy a whole one. */
	if (align <= HM_UNIT && size >= HM_UNIT)
		p = hm_resource_alloc(size);
	if (p) {
		flags = RESOURCE;
		hm_count(&hm_counters.resource);
		if (zero)
			memset(p, 0, size);
	} else {
		p = make_pages(size, align, zero, &size);
	}
	errno = error;
	if (!p)
		return NULL;
	w = make_word(p);
	if (!w) {
		flags ? hm_resource_free(p, size) : unmap(p, size);
		errno = error;
		return NULL;
	}
	atomic_store_explicit(w, size | flags, memory_order_release);
	hm_count(&hm_counters.blocks);
	count_live(size, 0);
	return p;
}

/* The word of a block, 0: none begins at @p. */
static uint64_t look(word *w)
{
	const uint64_t value = w ? atomic_load_explicit(w, memory_order_acquire) : 0;

	return value & MAPPED ? 0 : value;
}

/* look(), and nobody else finds the block any more. */
static uint64_t take(word *w)
{
	uint64_t value = look(w);

	return value && atomic_compare_exchange_strong(w, &value, 0) ? value : 0;
}

size_t hm_block_size(const void *p)
{
	return look(find_word(p)) & ~FLAGS;
}

bool hm_block_free(void *p)
{
	const uint64_t value = take(find_word(p));
	const size_t size = value & ~FLAGS;
	const int error = errno;

	if (!value)
		return false;
	count_live(0, size);
	if (value & RESOURCE)
		hm_resource_free(p, size);
	else if (!cache_put(p, size))
		unmap(p, size);
	errno = error;
	return true;
}

void *hm_block_resize(void *p, size_t size)
{
	word *const here = find_word(p);
	word *w = here;
	uint64_t value = look(w);
	const size_t old = value & ~FLAGS;
	const int error = errno;
	void *to = p;

	if (!value || size > PTRDIFF_MAX - HM_UNIT)
		return NULL;
	size = hm_whole_pages(size);
	/* Less than a unit is not worth a huge page that must be divided. */
	if (size <= old && old - size < HM_UNIT)
		return p;
	if (value & RESOURCE || !take(w))
		return NULL;
	hm_pages_untrack(p, old);
	if (!hm_pages_resize(p, old, size)) {
		to = size > old ? hm_pages_reserve(size) : NULL;
		w = to ? make_word(to) : NULL;
		if (to && !w)
			hm_sys_munmap(to, size);
		if (!w || !hm_pages_move(p, old, to, size)) {
			hm_pages_track(p, old);
			atomic_store_explicit(here, value, memory_order_release);
			errno = error;
			return NULL;
		}
		hm_count(&hm_counters.moved);
	}
	hm_pages_track(to, size);
	atomic_store_explicit(w, size, memory_order_release);
	count_live(size, old);
	errno = error;
	return to;
}

void hm_block_mapped(void *start, size_t size)
{
	word *w = make_word(start);

	if (!w)
		return;
	hm_pages_track(start, size);
	atomic_store_explicit(w, size | MAPPED, memory_order_release);
	hm_count(&hm_counters.mappings);
}

void hm_block_unmapped(void *start)
{
	word *w = find_word(start);
	uint64_t value = w ? atomic_load_explicit(w, memory_order_acquire) : 0;

	if (value & MAPPED && atomic_compare_exchange_strong(w, &value, 0))
		hm_pages_untrack(start, value & ~FLAGS);
}
