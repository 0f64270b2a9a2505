/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Parked contents: what the live blocks of a VMM pool hold, in host memory, while the
 * pool sleeps. The memory is that of the provider registered (huge pages near the
 * device, made by several threads, registered in pieces), so copies run at the speed of
 * the bus; they overlap with the making of the next piece.
 *
 * A park belongs to its pool. pool->sleep_lock protects it, which no allocation or free
 * takes; pool->lock is not held during a copy, nor while host memory is made.
 */
#ifndef HETMEM_VMM_PARK_H
#define HETMEM_VMM_PARK_H

#include "core/parked.h"
#include "pool/pool_impl.h"

struct hm_park;
struct vmm;

/*
 * Saves the contents of all live blocks whose memory a sleep takes. With both locks;
 * releases pool->lock. All work is complete, and the pool lets nobody allocate. -ENOMEM:
 * max_host= or the host has no room, and the text has the number that fits; -ENOSPC: the
 * directory of park=PATH has none, likewise; -EIO. After an error nothing is saved and no
 * memory is held that was not before.
 */
int hm_park_save(struct pool *p, struct hm_park **park);

/*
 * Copies all back, to memory that is mapped where it was. With both locks; releases
 * pool->lock. The contents are still saved.
 */
int hm_park_load(struct pool *p, struct hm_park *park);

/*
 * Forgets contents that were loaded. @undo: also gives back host memory that the sleep made.
 * With both locks; releases pool->lock.
 */
void hm_park_end(struct pool *p, struct hm_park *park, bool undo);

/*
 * Copies saved contents of a live block, as @arg says, while the pool sleeps. Memory that the
 * sleep left in place is copied from there. With both locks; releases pool->lock. -ENODATA: a
 * part of the block has no memory; -EIO: the driver or the file failed.
 */
int hm_park_read(struct pool *p, struct hm_park *park, const struct hm_ctl_parked *arg);

/*
 * Gives one piece of host memory back that is not to be kept; @all: is not needed now.
 * With both locks; releases pool->lock. Returns whether there may be more.
 */
bool hm_park_shrink(struct pool *p, struct hm_park *park, bool all);

/* Bytes of host memory that are held. */
uint64_t hm_park_held(const struct hm_park *park);
/* Bytes of contents in the file of park=PATH. */
uint64_t hm_park_in_file(const struct hm_park *park);

/*
 * How many of the @bytes from @addr on are mapped, or how many are not: *@mapped. Memory
 * that was freed after it was saved can be given back.
 */
uint64_t hm_park_same_state(const struct vmm *v, uint64_t addr, uint64_t bytes, bool *mapped);

/*
 * Waits for the copies of @stream, in its context. Memory of a copy that is under way must not
 * go, so a driver that fails is asked three times.
 */
CUresult hm_park_finish(const struct hm_driver *d, CUstream stream);

/* @forget: the driver is gone. NULL does nothing. */
void hm_park_free(struct pool *p, struct hm_park *park, bool forget);

#endif /* HETMEM_VMM_PARK_H */
