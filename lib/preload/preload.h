/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libhetmem-preload.so: the large allocations of a program that knows nothing of hetmem.
 *
 * preload.c has the functions that the program calls in place of its allocator's. A block is
 * an allocation of settings.min bytes or more; block.c makes, finds, resizes and frees blocks.
 * It gets pages from pages.c (mmap, huge pages, NUMA, the module) or, with --spec, from
 * resource.c (libhetmem). Everything else goes to the next allocator.
 *
 * Invariants: no function takes a lock, so that fork() in any thread leaves the child nothing
 * locked. No function allocates by malloc(), except resource.c. There is no thread-local
 * storage. Every block begins at a multiple of HM_UNIT.
 */
#ifndef HETMEM_PRELOAD_PRELOAD_H
#define HETMEM_PRELOAD_PRELOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "preload/settings.h"

/* Alignment of blocks: a huge page of x86 and of arm64 with pages of 4 KiB. */
#define HM_UNIT		((size_t)2 << 20)

#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)

#define HM_NODE_WORDS	(HM_RUN_NODES_MAX / (8 * sizeof(unsigned long)))

/**
 * struct hm_settings - HM_RUN_VARIABLE, read
 * @min: SIZE_MAX until the library is ready, or for good if it is off
 * @policy: MPOL_*, -1: none
 * @nodes: of @policy
 * @mmap, @agent: switches
 * @report, @spec, @library: NULL if not given
 */
struct hm_settings {
	size_t min;
	int policy;
	unsigned long nodes[HM_NODE_WORDS];
	bool mmap;
	bool agent;
	const char *report;
	const char *spec;
	const char *library;
};

extern struct hm_settings hm_settings;

/* What the report has. Counted for blocks only, and for mappings of --mmap. */
struct hm_counters {
	atomic_size_t blocks;	/* made, from the cache too */
	atomic_size_t mappings;	/* of --mmap */
	atomic_size_t cached;	/* of @blocks: from the cache */
	atomic_size_t live;	/* bytes */
	atomic_size_t peak;	/* bytes */
	atomic_size_t moved;	/* by mremap(2), in place of a copy */
	atomic_size_t tracked;	/* ranges that the module took */
	atomic_size_t resource;	/* of @blocks: from libhetmem */
};

extern struct hm_counters hm_counters;
/* Whether a limit of RLIMIT_AS or RLIMIT_DATA was set: no block is cached. */
extern atomic_bool hm_limited;

static inline void hm_count(atomic_size_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* pages.c. Sizes are multiples of the page size. Failures leave errno at ENOMEM. */

extern size_t hm_page_size;

static inline size_t hm_whole_pages(size_t size)
{
	return (size + hm_page_size - 1) & ~(hm_page_size - 1);
}

/* mmap(2) and the like as system calls: the program's own go through preload.c. */
void *hm_sys_mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset);
int hm_sys_munmap(void *addr, size_t size);

/*
 * Fresh zeroed pages at a multiple of @align (a power of two, HM_UNIT at least), with huge
 * pages where they fit, by the policy. Not tracked. NULL: no memory.
 */
void *hm_pages_map(size_t size, size_t align);
/* Asks for huge pages and the policy for memory of any private anonymous mapping. */
void hm_pages_advise(void *start, size_t size);
/* In place. False: nothing has changed. */
bool hm_pages_resize(void *start, size_t old_size, size_t size);
/* Addresses for hm_pages_move(); NULL: no memory. */
void *hm_pages_reserve(size_t size);
/*
 * Moves the page tables of @old to the reserved @target, which has @size bytes. False: @old is
 * as it was, and @target is not ours any more: the kernel may have unmapped it, and another
 * thread may have mapped memory there. The mapping of @old is in parts then, by the program's
 * mprotect() for example.
 */
bool hm_pages_move(void *old, size_t old_size, void *target, size_t size);
/* The module; whatever it refuses is left untracked. */
void hm_pages_track(void *start, size_t size);
void hm_pages_untrack(void *start, size_t size);

/**
 * struct hm_here - a page with MADV_WIPEONFORK: fork() zeroes it in the child
 * @module: the module's file is of this process
 * @library: libhetmem was opened in this process
 */
struct hm_here {
	atomic_int module;
	atomic_int library;
};

/* NULL: a kernel before 4.14, or no memory. */
struct hm_here *hm_here(void);

/* block.c. */

/*
 * A block of @size bytes at a multiple of @align (a power of two). @zero: its contents are
 * zeroes. NULL: no memory; errno is unchanged.
 */
void *hm_block_alloc(size_t size, size_t align, bool zero);
/* Bytes that the block at @p has, 0: no block begins there. Any @p is allowed. */
size_t hm_block_size(const void *p);
/* False: no block begins at @p. Keeps errno. */
bool hm_block_free(void *p);
/*
 * Makes @size bytes of the block at @p, which is one, with page tables rather than copies.
 * NULL: nothing has changed, the caller copies.
 */
void *hm_block_resize(void *p, size_t size);
/* Unmaps what is cached. True: there was something. */
bool hm_block_trim(void);
/* Takes note of a mapping that the program made, and of its end. */
void hm_block_mapped(void *start, size_t size);
void hm_block_unmapped(void *start);

/* resource.c. */

/*
 * Memory of --spec at a multiple of HM_UNIT. NULL: there is no --spec, the library cannot be
 * used here, or it has no memory.
 */
void *hm_resource_alloc(size_t size);
/* @size: as it was given to alloc. In a forked child only the pages are dropped. */
void hm_resource_free(void *p, size_t size);

/* preload.c */

/* One line on stderr, "hetmem run: " before it. Allocates nothing. */
void hm_say(const char *a, const char *b, const char *c);

#endif /* HETMEM_PRELOAD_PRELOAD_H */
