/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the parts of the fuzzer share: random numbers that a seed repeats,
 * the board on which all processes count and the first that finds something
 * wrong writes what, and where in every process's address space things are.
 *
 * Everything that the fuzzer lets the kernel write to or take away is below
 * FUZZ_BASE + 64 GiB, far from what the C library maps, with nothing mapped
 * behind each area: an array that is shorter than the kernel was told, or a
 * mapping that was taken away, must harm nobody but the caller.
 */
#ifndef FUZZ_BASE_H
#define FUZZ_BASE_H

#include "hetmem_ring.h"
#include "hetmem_emu_test.h"

#include <pthread.h>
#include <stdatomic.h>

#define GiB		(1024 * MiB)
#define FUZZ_BASE	0x100000000000UL
#define FUZZ_THREADS	3
#define FUZZ_CONTEXTS	6
#define FUZZ_DEVICES	2
#define FUZZ_SLOTS	4

/* Answers of commands: a thread's own, 1 MiB of it mapped. */
#define SCRATCH(thread)		(FUZZ_BASE + (thread) * 64 * MiB)
#define SCRATCH_SIZE		(1 * MiB)
/* Mapped, unmapped and changed by every thread; its contents are rubbish. */
#define WILD			(FUZZ_BASE + 4 * GiB)
#define WILD_SIZE		(16 * MiB)
/* A thread's memory with contents that count, in one of several places. */
#define ARENA(thread, slot) \
	(FUZZ_BASE + 8 * GiB + (thread) * 1 * GiB + (slot) * 64 * MiB)
#define ARENA_PAGES_MAX		1024
#define RING(context)		(FUZZ_BASE + 16 * GiB + (context) * 64 * MiB)

struct random {
	uint64_t state;
};

/* splitmix64: any seed will do, and each call's result tells of all bits. */
HELPER uint64_t random_next(struct random *r)
{
	uint64_t x = r->state += 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

/* 0 to @n - 1. */
HELPER uint64_t pick(struct random *r, uint64_t n)
{
	return random_next(r) % n;
}

HELPER bool one_in(struct random *r, unsigned int n)
{
	return !pick(r, n);
}

/* Another sequence, of its own for each pair. */
HELPER uint64_t seed_of(uint64_t seed, uint64_t a, uint64_t b)
{
	struct random r = { .state = seed ^ a << 32 ^ b << 48 };

	return random_next(&r);
}

#define PICK(r, array)	((array)[pick(r, ARRAY_SIZE(array))])

#define FUZZ_CALLS	20	/* commands of hetmem, of hetmem_emu, others */
#define FUZZ_WORKERS	8

/* One page for all processes. */
struct board {
	_Atomic uint64_t succeeded[FUZZ_CALLS];
	_Atomic uint64_t failed[FUZZ_CALLS];
	_Atomic uint64_t verified;	/* pages of arenas */
	_Atomic uint64_t operations;	/* on arenas and on the wild area */
	_Atomic uint64_t last_hint;
	_Atomic int pids[FUZZ_WORKERS];
	_Atomic int wrong;
	char what[512];
};

static struct board *board;

/* What all processes have from the first one, which leaves it alone. */
#define INHERITED_SIZE	(64 * 4096)
static char *inherited;

/*
 * Something is wrong: the first to say so is heard, and the process ends
 * with a status that its parent knows.
 */
#define STATUS_WRONG	97
#define STATUS_SIGBUS	98

HELPER __attribute__((noreturn, format(printf, 1, 2)))
void wrong(const char *format, ...)
{
	va_list args;

	if (!atomic_fetch_add(&board->wrong, 1)) {
		va_start(args, format);
		vsnprintf(board->what, sizeof(board->what), format, args);
		va_end(args);
	}
	_exit(STATUS_WRONG);
}

enum arena_kind {
	ARENA_ANON,
	ARENA_HUGE,	/* anonymous, MADV_HUGEPAGE */
	ARENA_COW,	/* private mapping of a file of zeroes */
	ARENA_SHARED,	/* shared mapping of a memfd */
	ARENA_NR,
};

enum page_state {
	PAGE_ZERO,
	PAGE_PATTERN,
	PAGE_EITHER,	/* MADV_FREE: the pattern, until it is zero */
};

struct arena {
	char *p;
	unsigned int pages;
	unsigned int slot;
	enum arena_kind kind;
	int fd;
	uint32_t next_seed;
	uint32_t seed[ARENA_PAGES_MAX];
	unsigned char state[ARENA_PAGES_MAX];
};

/* A range that was tracked by one of the contexts, to be asked about. */
struct tracked {
	uint64_t start, end;
};

#define TRACKED		4

struct worker {
	int context[FUZZ_CONTEXTS];
	int device[FUZZ_DEVICES];	/* -1: there is none */
	uint32_t location[FUZZ_DEVICES];
	int eventfd, urandom, zero;
	bool limited;			/* by a memory cgroup */
	bool root;
	unsigned int threads;
	unsigned int rounds;
	/* Written by all threads without a lock: a stale one is as good. */
	struct tracked tracked[FUZZ_CONTEXTS][TRACKED];
	size_t ring_size[FUZZ_CONTEXTS];
	atomic_uint ready;		/* threads that have their arena */
};

struct fuzzer {
	struct worker *w;
	unsigned int nr;		/* of the thread */
	struct random r;
	struct arena arena;
	char *scratch;
};

HELPER void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

#endif /* FUZZ_BASE_H */
