/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The providers of whole regions: managed, async, pinned, registered, system,
 * host, and the program's own, custom. The provider device is in vmm.h. All return 0, or:
 * -ENODEV: no such device;
 * -EOPNOTSUPP: the device or the driver cannot;
 * -EINVAL: an option makes no sense;
 * -ENOMEM.
 * An @options that is NULL is all zeros, which is the default of each.
 */
#ifndef HETMEM_PROVIDER_REGIONS_H
#define HETMEM_PROVIDER_REGIONS_H

#include "provider/provider.h"

/* cuMemAllocManaged(): one address for the CPU and every device. */
int hm_managed_provider(struct hetmem *hm, int device,
			struct hm_provider **out);

/**
 * struct hm_async_options - of a memory pool of the driver
 * @threshold: bytes that it keeps when a stream synchronizes; 0: all
 * @max: bytes that it may have, 0: what there is (drivers from 12.3 know it)
 */
struct hm_async_options {
	uint64_t threshold;
	uint64_t max;
};

/* cuMemAllocFromPoolAsync(), from a pool of its own. STREAMED. */
int hm_async_provider(struct hetmem *hm, int device,
		      const struct hm_async_options *options,
		      struct hm_provider **out);

/**
 * struct hm_pinned_options - of page-locked memory
 * @threads: that touch its pages first, 0: chosen, at most 64
 * @node: plus 1: host node that it is on; 0: the device's nearest
 * @fork_copies: of registered memory: a forked child has a copy
 */
struct hm_pinned_options {
	unsigned int threads;
	unsigned int node;
	bool fork_copies;
};

/*
 * Huge pages near the device, touched by several threads, then registered
 * with it: made several times faster than by cuMemHostAlloc(). Reached by
 * all devices of the process.
 */
int hm_pinned_provider(struct hetmem *hm, int device,
		       const struct hm_pinned_options *options,
		       struct hm_provider **out);

/* As hm_pinned_provider(). A forked child lacks the memory unless @fork_copies. */
int hm_registered_provider(struct hetmem *hm, int device,
			   const struct hm_pinned_options *options,
			   struct hm_provider **out);

/**
 * struct hm_system_options - of the process's own pages
 * @node: plus 1: host node that pages come from if it has any; 0: the one nearest to
 *	the device
 * @populate: threads that make pages be there; 0: none
 * @slow_ns: as of struct hm_provider
 */
struct hm_system_options {
	unsigned int node;
	unsigned int populate;
	uint64_t slow_ns;
};

/*
 * hetmem_system_alloc(): the process's own pages, which devices reach where
 * the hardware or the driver lets them. @device, -1 for none, is whom it is
 * for. Zeroed. A forked child has it.
 */
int hm_system_provider(struct hetmem *hm, int device,
		       const struct hm_system_options *options,
		       struct hm_provider **out);

/* The process's own pages for the CPU alone. A forked child has it. */
int hm_host_provider(struct hetmem *hm, struct hm_provider **out);

/*
 * What the program registered as @name: regions, or MAPPABLE. -EINVAL: it
 * registered nothing of that name.
 */
int hm_custom_provider(struct hetmem *hm, const char *name,
		       struct hm_provider **out);

#endif /* HETMEM_PROVIDER_REGIONS_H */
