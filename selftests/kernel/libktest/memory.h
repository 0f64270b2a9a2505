/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The kinds of memory that a process can have, each made by one function, so
 * that one test body runs on all of them.
 */
#ifndef LIBKTEST_MEMORY_H
#define LIBKTEST_MEMORY_H

#include "libktest/base.h"

#include <linux/hetmem.h>
#include <linux/mman.h>

/* An address far from all mappings: TRACK takes it, for it does not ask what is mapped. */
#define FAR		((char *)0x200000000000UL)

enum mem_kind {
	MEM_ANON,
	MEM_FILE_READ,		/* private, only ever read */
	MEM_FILE_COW,		/* private, written: pages of its own */
	MEM_FILE_SHARED,
	MEM_SHARED_ANON,
	MEM_MEMFD,
	MEM_THP,
	MEM_HUGETLB,
	MEM_MLOCKED,
};

/* The variants of a fixture that is set up for every kind of memory. */
#define MEM_KIND_VARIANTS(fixture)					\
	FIXTURE_VARIANT(fixture) { enum mem_kind kind; };		\
	FIXTURE_VARIANT_ADD(fixture, anon) { .kind = MEM_ANON };	\
	FIXTURE_VARIANT_ADD(fixture, file_read) { .kind = MEM_FILE_READ }; \
	FIXTURE_VARIANT_ADD(fixture, file_cow) { .kind = MEM_FILE_COW }; \
	FIXTURE_VARIANT_ADD(fixture, file_shared) { .kind = MEM_FILE_SHARED }; \
	FIXTURE_VARIANT_ADD(fixture, shared_anon) { .kind = MEM_SHARED_ANON }; \
	FIXTURE_VARIANT_ADD(fixture, memfd) { .kind = MEM_MEMFD };	\
	FIXTURE_VARIANT_ADD(fixture, thp) { .kind = MEM_THP };		\
	FIXTURE_VARIANT_ADD(fixture, hugetlb) { .kind = MEM_HUGETLB };	\
	FIXTURE_VARIANT_ADD(fixture, mlocked) { .kind = MEM_MLOCKED }

struct mem {
	enum mem_kind kind;
	char *p;		/* contents: fill(p, size, seed) */
	size_t size;
	void *map;
	size_t map_size;
	int fd;
	long old_hugepages;
	const char *lacks;	/* set if mem_map() gives -EOPNOTSUPP */
};

/*
 * Map @size bytes (a multiple of 2 MiB for the huge kinds) of @kind with the
 * pattern of @seed in them, all of it populated.
 *
 * -EOPNOTSUPP: the kernel has no such memory, m->lacks says what is missing.
 * The caller calls mem_unmap() in any case.
 */
int mem_map(struct mem *m, enum mem_kind kind, size_t size, uint64_t seed);
void mem_unmap(struct mem *m);

/* What RESIDENCY's why must say of the mapping. */
uint32_t mem_why(enum mem_kind kind);
bool mem_is_huge(enum mem_kind kind);

/* Kinds whose pages a device can have. */
bool mem_moves(enum mem_kind kind);

/* Anonymous memory without huge pages, filled with the pattern, or NULL. */
char *map_filled(size_t size, uint64_t seed);

/* @size bytes of private memory on a 2 MiB boundary, or MAP_FAILED. */
void *map_aligned(struct mem *m, size_t size);

/*
 * A file that is no shmem: the root of a virtual machine often is tmpfs,
 * whose pages count as shared memory. ramfs is in every kernel.
 */
int make_file(size_t size, uint64_t seed);

bool thp_possible(void);

/* KiB that huge pages map in the mapping that begins at or holds @p. */
long huge_mapped(const void *p);

/* KiB of that mapping that are in memory; the page of zeroes is not. */
long resident(const void *p);

/*
 * A mapping of this process that no struct page stands behind, as far as
 * get_user_pages() is concerned: the kernel's own data page for the clock,
 * which every process has.
 */
int special_mapping(char **p, size_t *size);

/*
 * Puts memory at @at that the kernel has no mapping of. Return: -ENOSYS if the
 * kernel lacks it, or it is off.
 */
int map_secret(void *at, size_t size);

/* NUMA node of the page at @p as the kernel tells others, or -errno. */
int host_node(void *p);

/*
 * NUMA balancing, which notifies of all that its scans pass, leaves a mapping
 * alone that has a policy of its own: here the usual one, said explicitly.
 */
int no_numa_balancing(void *p, size_t size);

#endif
