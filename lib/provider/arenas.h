/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Arenas: regions of one provider, shared by several pools. Each pool is one
 * placement class, and gets whole aligned units of 2 MiB. So two classes never
 * share 2 MiB, while free units go from one class to another without a call of the
 * driver.
 *
 * A unit is held from the first time it is handed out until its memory goes back to
 * the system. A provider that makes pages on first touch ("lazy") gets arenas that
 * are larger than what is held: they cost addresses only, and make the memory of a
 * class contiguous.
 *
 * hm_arenas.lock protects the tree of arenas, the counters and the class of units;
 * it is not held while the provider is called. Class and whereabouts are read
 * without it, from a map by address.
 */
#ifndef HETMEM_PROVIDER_ARENAS_H
#define HETMEM_PROVIDER_ARENAS_H

#include "provider/gate.h"
#include "provider/provider.h"

/* Classes are 1 to HM_ARENAS_CLASSES. */
#define HM_ARENAS_CLASSES	5
#define HM_UNIT_SIZE		HM_HUGE_SIZE
/* Whereabouts are known by pieces of this size. */
#define HM_GRAIN_SHIFT		16

/* Where pages of a grain may be; 0: not used yet. */
#define HM_ON_HOST		1
#define HM_ON_DEVICE		2
/* The pages of a grain must stay: a transport registered them. */
#define HM_KEPT			4

struct hm_arenas;

/**
 * struct hm_arenas_user - the owner of the pools
 * @spare: the pools of other classes than @class give units back that they do not
 *	use, if there are @bytes of them. Called without a lock.
 * @is_gap: whether only free memory of @class is between the live blocks that begin at
 *	@left and @right
 */
struct hm_arenas_user {
	void (*spare)(struct hm_arenas_user *user, unsigned int class,
		      size_t bytes);
	bool (*is_gap)(struct hm_arenas_user *user, unsigned int class,
		       uintptr_t left, uintptr_t right);
};

/*
 * Makes arenas over @base, and owns @base after success. At most @max bytes are held;
 * 0: no bound. Errors:
 * -EOPNOTSUPP: @base is mappable, or in stream order;
 * -ENOMEM.
 */
int hm_arenas_create(struct hm_provider *base, uint64_t max,
		     struct hm_arenas_user *user, struct hm_arenas **out);

/*
 * Call it after the pools are destroyed. Frees all arenas, except in a forked child.
 * Returns the provider, which the caller owns again.
 */
struct hm_provider *hm_arenas_destroy(struct hm_arenas *a);

/* A provider of units for @class, for a pool. NULL: no host memory. */
struct hm_provider *hm_arenas_provider(struct hm_arenas *a, unsigned int class);

const struct hm_provider *hm_arenas_base(const struct hm_arenas *a);

/* HM_CTL_GATE: units pass it when they become held, and when they no longer are. */
int hm_arenas_gate(struct hm_arenas *a, const struct hm_ctl_gate *arg);

/* The class of the unit that @ptr is in; 0: none. Takes no lock. */
unsigned int hm_arenas_class(const struct hm_arenas *a, const void *ptr);

/* Gives free units back until @keep bytes are held. Returns the bytes. */
size_t hm_arenas_trim(struct hm_arenas *a, uint64_t keep);

void hm_arenas_set_max(struct hm_arenas *a, uint64_t max);

/**
 * struct hm_arenas_stats - counters of arenas
 * @held, @peak: bytes held, and the highest value of that
 * @metadata: bytes of host memory
 * @asked: calls of the providers of pools, each of which counts as a driver call
 *	there
 * @calls: of the base provider, and of the driver to bring memory
 */
struct hm_arenas_stats {
	uint64_t held, peak;
	uint64_t metadata;
	uint64_t asked, calls;
};

void hm_arenas_get_stats(struct hm_arenas *a, struct hm_arenas_stats *stats);

/*
 * [@ptr, @ptr + @size) was just allocated for use by @stream, and its contents are dead:
 * moves pages on the other side to the user, in one piece. HETMEM_STREAM_HOST: to the
 * host, before this returns; else to the device, in the order of @stream. Pages that
 * cannot be moved come by faults.
 */
void hm_arenas_given(struct hm_arenas *a, const void *ptr, size_t size,
		     hetmem_stream stream);

/* A transport has registered the pages of @ptr: they are neither moved nor dropped. */
void hm_arenas_keep(struct hm_arenas *a, const void *ptr, size_t size);

/* @stream used [@ptr, @ptr + @size). It is not HETMEM_STREAM_UNKNOWN. */
void hm_arenas_used(struct hm_arenas *a, const void *ptr, size_t size,
		    hetmem_stream stream);

/*
 * For placement: whether the memory between the live blocks that begin at @left and
 * @right may move with them: it is free memory of their common class, in one arena.
 */
bool hm_arenas_gap(struct hetmem *hm, uintptr_t left, uintptr_t right);

/*
 * Whether an arena begins at @addr. The driver refuses one call for the memory of two
 * arenas, even if their addresses are contiguous.
 */
bool hm_arenas_border(struct hetmem *hm, uintptr_t addr);

/*
 * Returns the kind of memory of @addr's arenas, which is one kind, as last set by
 * hm_arenas_set_kind(). 0: never set, or @addr is in no arena.
 */
int hm_arenas_kind(struct hetmem *hm, uintptr_t addr);
void hm_arenas_set_kind(struct hetmem *hm, uintptr_t addr, int kind);

/* Whether the driver was advised about any memory of [@start, @end) for its class. */
bool hm_arenas_advised(struct hetmem *hm, uintptr_t start, uintptr_t end);

/*
 * Gives the driver the advice of the class again about the pages [@start, @end), which are of
 * one block. Call it when a program's advice there was taken back.
 */
void hm_arenas_advise(struct hetmem *hm, uintptr_t start, uintptr_t end);

/* A program's prefetch brought [@start, @end) to the device, or to the host. */
void hm_arenas_moved(struct hetmem *hm, uintptr_t start, uintptr_t end,
		     bool device);

#endif /* HETMEM_PROVIDER_ARENAS_H */
