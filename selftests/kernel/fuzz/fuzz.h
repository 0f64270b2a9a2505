/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the parts of the fuzzer share: call.c the commands, memory.c arenas and the wild
 * area, world.c the machine, fuzz.c the processes. Here are random numbers that a seed repeats,
 * the board on which all processes count and the first that finds something
 * wrong writes what, and where in every process's address space things are.
 *
 * Everything that the fuzzer lets the kernel write to or take away is below
 * FUZZ_BASE + 64 GiB, far from what the C library maps, with nothing mapped
 * behind each area: an array that is shorter than the kernel was told, or a
 * mapping that was taken away, must harm nobody but the caller.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include "libktest/emu.h"
#include "libktest/memory.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/table.h"

#include <pthread.h>
#include <stdatomic.h>

#define GiB		(1024 * MiB)
#define CGROUP		"/sys/fs/cgroup/"
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
uint64_t random_next(struct random *r);

/* 0 to @n - 1. */
uint64_t pick(struct random *r, uint64_t n);

bool one_in(struct random *r, unsigned int n);

/* Another sequence, of its own for each pair. */
uint64_t seed_of(uint64_t seed, uint64_t a, uint64_t b);

#define PICK(r, array)	((array)[pick(r, ARRAY_SIZE(array))])

/* Behind the commands of hetmem. */
enum { CALL_EMU_INFO = CMD_NR, CALL_EMU_ACCESS, CALL_EMU_EVICT, CALL_OTHER,
       CALL_NR };

#define FUZZ_WORKERS	8

/* One page for all processes. */
struct board {
	_Atomic uint64_t succeeded[CALL_NR];
	_Atomic uint64_t failed[CALL_NR];
	_Atomic uint64_t verified;	/* pages of arenas */
	_Atomic uint64_t operations;	/* on arenas and on the wild area */
	_Atomic uint64_t last_hint;
	_Atomic int pids[FUZZ_WORKERS];
	_Atomic int wrong;
	char what[512];
};

extern struct board *board;

/* What all processes have from the first one, which leaves it alone. */
#define INHERITED_SIZE	(64 * 4096)
extern char *inherited;

/*
 * Something is wrong: the first to say so is heard, and the process ends
 * with a status that its parent knows.
 */
#define STATUS_WRONG	97
#define STATUS_SIGBUS	98

__attribute__((noreturn, format(printf, 1, 2)))
void wrong(const char *format, ...);

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
	int urandom, zero, eventfd;
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

void *at(uint64_t address);

/* call.c: one command; return: which. */
extern const char *const call_names[CALL_NR];
unsigned int call_one(struct fuzzer *f);

/* memory.c: the thread's arena, and what belongs to nobody. */
void arena_make(struct fuzzer *f, unsigned int pages);
void arena_check(const struct arena *a, unsigned int first, unsigned int nr,
		 const char *how);
bool arena_is_shared(const struct arena *a);
void arena_operate(struct fuzzer *f);
void wild_operate(struct fuzzer *f);
extern const int advice_wild[17];

/* world.c: what the machine has, and changing what the administrator can change. */
struct world {
	bool swap, cgroup, devices;
	unsigned int id[FUZZ_DEVICES];
	long capacity[FUZZ_DEVICES];
};

void world_init(struct world *world);
void world_exit(struct world *world);
void world_operate(const struct world *world, struct random *r);
void world_restore(const struct world *world);
void leave_late(int hm);
void take_back(void);

#endif
