/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What every folder of the library uses: the public header, errors, fork(),
 * address ranges. Nothing here knows a driver, the kernel module or a
 * struct hetmem; core/ includes no other folder.
 */
#ifndef HETMEM_CORE_CORE_H
#define HETMEM_CORE_CORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Everything else is compiled hidden. */
#pragma GCC visibility push(default)
#include <hetmem.h>
#pragma GCC visibility pop

#define HM_MAX_DEVICES	64
#define HM_REASON_LEN	224
#define HM_TAG_LEN	32	/* of a tag, with its end */
#define HM_HUGE_SIZE	((size_t)2 << 20)

#define hm_likely(x)	__builtin_expect(!!(x), 1)
#define hm_unlikely(x)	__builtin_expect(!!(x), 0)

/*
 * Releases an object that nothing can release later: makes @call again if it
 * fails. Returns the last result.
 */
#define hm_retry_once(call)	((call) ? (call) : 0)

/* The object that has @ptr as its @member. */
#define hm_container(ptr, type, member) \
	((type *)((char *)(ptr) - offsetof(type, member)))

/* Between two looks at a lock that another CPU is about to give away. */
static inline void hm_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t hm_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/*
 * Reads a size: digits, a fraction of at most six digits, an exponent, blanks, a unit in any
 * case: 4096, 64K, 1.5 GiB, 80GB, 1e9. K and KiB are 1024 bytes, KB is 1000, and so on up to
 * T. False: @text is something else, or more than INT64_MAX bytes.
 */
bool hm_parse_size(const char *text, uint64_t *bytes);

/*
 * A device of the module that is none of the driver's has this added to its
 * id where an ordinal is expected; hetmem_prefetch() takes it back.
 */
#define HM_KERNEL_DEVICE	0x8000U

/* thread.c */

/**
 * struct hm_thread_page - what the calling thread has of its own, beyond some words
 * @error: hetmem_last_error()
 * @reason: of its last prefetch that headroom() cut off
 * @ids: of streams that it logged last, for the time that they are captured
 */
struct hm_thread_page {
	char error[1024];
	char reason[128];
	struct {
		hetmem_stream stream;
		uint64_t id;
	} ids[16];
};

/* From the thread's first call to its end. Calls no malloc(). NULL: there is no memory. */
struct hm_thread_page *hm_thread_page(void);

/* error.c */

/* Sets the thread's error text and returns @err. */
__attribute__((format(printf, 2, 3)))
int hm_error(int err, const char *fmt, ...);
/* How many the calling thread has had: whether a call left a text. */
unsigned int hm_errors(void);

/* hetmem_location_name() without devices. */
char *hm_location_name(uint32_t location, char *buf, size_t len);

/* fork.c */

/* Goes up in every forked child. */
unsigned int hm_generation(void);

/* The order in which fork() takes locks. */
enum hm_fork_level {
	HM_FORK_LOGS,		/* the list of all logs */
	HM_FORK_ADAPTOR,
	HM_FORK_POOL,
	HM_FORK_PROVIDER,
	HM_FORK_OPEN,		/* struct hetmem */
	HM_FORK_PLACE,		/* what placement remembers */
	HM_FORK_ARENAS,		/* the list of all arenas */
	HM_FORK_PUBLISH,	/* what others read */
};

/**
 * struct hm_fork - an object in the registry
 * @hold: takes its locks
 * @let_go: releases them, in the parent and in the @child
 */
struct hm_fork {
	struct hm_fork *next;
	enum hm_fork_level level;
	void (*hold)(struct hm_fork *self);
	void (*let_go)(struct hm_fork *self, bool child);
};

/* The caller holds none of the object's locks. */
void hm_fork_add(struct hm_fork *fork);
void hm_fork_remove(struct hm_fork *fork);

/* The registry's own lock, for what must be whole in a child. Ordered first. */
void hm_fork_lock(void);
void hm_fork_unlock(void);

/* A lock that is free in a forked child. */
struct hm_lock {
	struct hm_fork fork;
	pthread_mutex_t mutex;
};

void hm_lock_init(struct hm_lock *lock, enum hm_fork_level level);
void hm_lock_destroy(struct hm_lock *lock);

static inline void hm_lock(struct hm_lock *lock)
{
	pthread_mutex_lock(&lock->mutex);
}

static inline void hm_unlock(struct hm_lock *lock)
{
	pthread_mutex_unlock(&lock->mutex);
}

/*
 * Waits without @lock, which is held: 20 us, and twice that for each of @naps
 * before, up to 1.3 ms.
 */
void hm_nap(pthread_mutex_t *lock, unsigned int *naps);

/* A number of the calling thread's, never used twice, not 0. */
uint64_t hm_thread(void);

/* resource.c */

/**
 * struct hm_block_ops - a watcher of blocks
 * @freed: before the block [@start, @start + @size) is freed
 * @grown: after a block has grown at its address, or moved
 */
struct hm_block_ops {
	void (*freed)(struct hetmem *hm, uintptr_t start, size_t size);
	void (*grown)(struct hetmem *hm, uintptr_t start, size_t size,
		      uintptr_t new_start, size_t new_size);
};

/*
 * Adds @by, 1 or -1, to the number of those who want @ops called. There is one
 * @ops in the process. The cached path pays for nobody.
 */
void hm_watch_blocks(const struct hm_block_ops *ops, int by);

/* range.c */

/**
 * struct hm_range - [@start, @end) in a search tree of disjoint ranges
 * The first member of what is kept there.
 */
struct hm_range {
	uintptr_t start;
	uintptr_t end;
};

/* -EEXIST it overlaps one that is there, -ENOMEM. */
int hm_range_insert(void **root, struct hm_range *range);
/* Any that overlaps [@start, @start + @size), NULL if there is none. */
struct hm_range *hm_range_find(void *const *root, uintptr_t start,
			       size_t size);
void hm_range_erase(void **root, struct hm_range *range);
/* Any one, NULL if there is none. */
struct hm_range *hm_range_any(void *const *root);
/* Calls @each for all of them, in order; it must not change the tree. */
void hm_range_walk(void *const *root,
		   void (*each)(struct hm_range *range, void *arg), void *arg);

/*
 * Appends to @runs, merging with the last one if it goes on the same.
 * False: full.
 */
bool hm_run_add(struct hetmem_run *runs, size_t nr, size_t *filled,
		const struct hetmem_run *run);

#endif /* HETMEM_CORE_CORE_H */
