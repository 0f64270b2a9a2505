/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The soft driver: the Driver API in software, for machines without a GPU
 * and for tests. It is a shared object of its own, libhetmem-soft.so, which the
 * library finds as it finds libcuda.so.1; core/ and the module's calls are
 * linked into both.
 *
 * A world holds everything: devices, streams, memory. There is one per
 * process, made by the first open of struct hm_soft and gone with the last
 * close; in a forked child the parent's is forgotten.
 *
 * A stream is a queue of tasks and a thread that executes them in order. A
 * point in a stream is its task: an event refers to the task that recorded
 * it, a wait is a task that depends on another's. A task only ever depends
 * on tasks that were submitted before it, so that there are no cycles.
 *
 * Locking: one lock, world->lock, for all of it, one condition for all that
 * changes. Tasks run without the lock. Fork's lock is taken before it.
 *
 * Device memory is ordinary memory of this process, of limited amount. What
 * is not the device's own is reached through /dev/hetmem_emuN if there is
 * one, so that the device faults and moves pages as a GPU would, else
 * directly.
 */
#ifndef HETMEM_SOFT_SOFT_H
#define HETMEM_SOFT_SOFT_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "platform/kmod.h"
#include "platform/platform.h"
#include "soft/stream.h"

#define SOFT_VERSION		13000
#define SOFT_MAX_DEVICES	16
#define SOFT_MAX_RULES		32
#define SOFT_MAX_POOLS		32
#define SOFT_STREAM_BUCKETS	1024

struct soft_rule {
	char call[48];
	unsigned long nth;	/* 0: every call */
	unsigned long count;
	CUresult error;
	uint64_t delay;
};

/* Who an actor is: a stream, or branch @branch of a graph, counted from 1. */
struct soft_name {
	unsigned long long id;
	unsigned int branch;
};

/* A device of hetmem_emu.ko. */
struct soft_emu {
	int fd;
	int module_id;
	size_t capacity;
	char name[64];
};

/**
 * struct soft_sleep - the process as others put it to sleep, see checkpoint.c
 * @state: with the lock; @stop: the driver ends
 * @fd: where others ask, -1: they cannot; @asked: the thread that answers
 * @saved: contents of the devices' memory
 */
struct soft_sleep {
	CUprocessState state;
	bool stop;
	int fd;
	pthread_t asked;
	struct soft_saved *saved;
};

struct soft_world {
	unsigned int generation;
	unsigned int refs;
	bool initialized;
	bool debug;
	bool check;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	size_t page_size;
	int nr_emus;
	struct soft_emu emus[SOFT_MAX_DEVICES];
	int nr_devices;
	struct CUctx_st devices[SOFT_MAX_DEVICES];
	struct CUstream_st *streams;
	struct CUstream_st *buckets[SOFT_STREAM_BUCKETS]; /* by handle */
	void *events;		/* tree of struct CUevent_st */
	struct soft_capture *captures;
	struct CUgraph_st *graphs;
	struct CUgraph_st *execs;
	void *nodes;		/* tree of struct soft_node */
	void *handles;		/* tree of struct soft_handle */
	int fd;			/* a memfd, with the end of what was used of it */
	uint64_t file_end;
	uint64_t file_size;
	void *memory;		/* tree of struct soft_memory */
	void *reserved;		/* tree of struct hm_range */
	size_t host_capacity;	/* of handles of the host's memory */
	size_t host_used;
	unsigned long long next_id;
	uint64_t seed;		/* of the order of graphs' branches */
	struct CUmemPoolHandle_st pools[SOFT_MAX_POOLS];
	struct hm_kmod kmod;
	struct soft_sleep sleep;
	unsigned int nr_rules;
	struct soft_rule rules[SOFT_MAX_RULES];
	/* Check mode: what the host is behind, memory that is not the driver's. */
	struct soft_clock host;
	void *process_uses;
	unsigned int nr_actors;
	struct soft_name *actors;
	struct soft_move *moves;
};

/* Of this process; NULL after the last close. */
extern struct soft_world *hm_soft_world;

/* soft.c */

/*
 * Begins a call: counts it for the rules. CUDA_SUCCESS, or what it shall
 * fail with. *@delay is how long it takes; NULL: waited for here.
 */
CUresult hm_soft_enter(const char *call, uint64_t *delay);

#define SOFT_ENTER(call) do {						\
	CUresult entered = hm_soft_enter(#call, NULL);			\
	if (entered)							\
		return entered;						\
} while (0)

#define SOFT_ENTER_WORK(call, delay) do {				\
	CUresult entered = hm_soft_enter(#call, delay);			\
	if (entered)							\
		return entered;						\
} while (0)

void hm_soft_sleep(uint64_t ns);
/* The thread is the driver's own: it is not stopped while the process is locked. */
extern _Thread_local bool hm_soft_is_worker;
/* With the lock: the process is locked by another one, and this thread must wait for @changed. */
bool hm_soft_is_stopped(const struct soft_world *w);
/* Waits while that holds. */
void hm_soft_lock(void);
void hm_soft_unlock(void);
/* Says on stderr that something was not freed. */
void hm_soft_leak(const char *what, unsigned long long which, size_t size);
bool hm_soft_error_by_name(const char *name, CUresult *res);

/* config.c: from the environment; on failure why in @reason. */
int hm_soft_configure(struct soft_world *w, char *reason, size_t len);
int hm_soft_parse_rules(struct soft_rule *rules, unsigned int *nr,
			const char *fail, const char *delay);
/* hm_parse_size() of more than 0. */
bool hm_soft_parse_size(const char *text, size_t *size);

/*
 * machine.c: the machine that is played. @count: how many devices, -1: as the
 * machine has. On failure why in @reason.
 */
int hm_soft_machine(struct soft_world *w, int count, size_t memory,
		    char *reason, size_t len);
bool hm_soft_says(const struct CUctx_st *dev, enum hm_fact_id id);
/* Nearest node of the host. */
int hm_soft_host_node(const struct CUctx_st *dev);
extern const struct hm_nvml hm_soft_nvml;
/* As in struct hm_soft. */
bool hm_soft_fact(int ordinal, int id, struct hm_platform *p);

/* checkpoint.c: Begin: 0, or -EINVAL and why in @reason. End: without the lock, both. */
void hm_soft_fill_checkpoint(struct hm_api *d);
int hm_soft_begin_sleep(struct soft_world *w, char *reason, size_t len);
void hm_soft_end_sleep(struct soft_world *w);

/* device.c */
void hm_soft_fill_device(struct hm_api *d);
/* The device of the thread's current context, NULL if there is none. */
struct CUctx_st *hm_soft_current(void);

/* copy.c, place.c */
void hm_soft_fill_copy(struct hm_api *d);
/* As in struct hm_soft. */
CUresult hm_soft_launch(CUstream stream, const char *name,
			const struct hm_soft_range *ranges, unsigned int nr,
			uint64_t ns);
void hm_soft_fill_place(struct hm_api *d);

/*
 * check.c: in struct hm_soft, without the lock; see driver/check.h.
 */
void hm_check_alloc_memory(const void *ptr, size_t size, hetmem_stream stream);
void hm_check_free_memory(const void *ptr, size_t size, hetmem_stream stream);
void hm_check_forget_memory(const void *ptr, size_t size);
void hm_check_begin_move(const void *ptr, size_t size, hetmem_stream stream,
			 hetmem_stream copies, bool frozen);
void hm_check_end_move(const void *ptr, size_t size);
void hm_check_set_parks(hetmem_stream copies, bool on);

/*
 * With the lock; without check mode all do nothing. In order: an actor begins;
 * it is given work; it is given work that does something (@what may be NULL); a clock is
 * ordered after another; the host has waited for a clock; work uses memory; @m's addresses
 * go, by an actor or (NULL) now.
 */
void hm_check_actor(struct soft_actor *a, unsigned long long id,
		    unsigned int branch);
void hm_check_submit(struct soft_actor *a);
void hm_check_work(struct soft_actor *a, const char *what);
void hm_check_join(struct soft_clock *c, const struct soft_clock *with);
void hm_check_host(const struct soft_clock *clock);
void hm_check_use(struct soft_actor *a, uintptr_t addr, size_t size,
		  const char *what, bool write);
void hm_check_gone(struct soft_memory *m, struct soft_actor *a,
		   const char *what);
/* The driver does not mind, but nobody means to: there is no memory. */
void hm_check_hole(uintptr_t addr, size_t size, const char *what);
void hm_check_clock_free(struct soft_clock *c);
void hm_check_free_uses(void **root);
void hm_check_free_moves(struct soft_world *w);

/* emu.c: without the lock; @addr is not the device's own memory */
void hm_soft_emu_open(struct soft_world *w);
void hm_soft_emu_close(struct soft_world *w);
CUresult hm_soft_emu_read(struct CUctx_st *ctx, uintptr_t addr, void *data,
			  size_t size);
CUresult hm_soft_emu_write(struct CUctx_st *ctx, uintptr_t addr,
			   const void *data, size_t size);
CUresult hm_soft_emu_fill(struct CUctx_st *ctx, uintptr_t addr,
			  uint64_t value, size_t size);

#endif /* HETMEM_SOFT_SOFT_H */
