/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The providers of device memory: in regions (device), and with addresses and
 * memory apart (vmm).
 */
#ifndef HETMEM_PROVIDER_VMM_H
#define HETMEM_PROVIDER_VMM_H

#include "provider/provider.h"

enum hm_vmm_export {
	HM_VMM_EXPORT_NONE,
	HM_VMM_EXPORT_FD,
	HM_VMM_EXPORT_FABRIC,
};

/**
 * struct hm_vmm_options - zero is the default of each
 * @export: what handles can be exported as
 * @peers: mask of devices (by ordinal) that are to reach it too
 */
struct hm_vmm_options {
	enum hm_vmm_export export;
	uint64_t peers;
};

/**
 * struct hm_stripe_options
 * @devices: mask of devices (by ordinal) that have the memory, two or more
 * @peers: as in struct hm_vmm_options
 * @unit: bytes that one device has in turn, 0: the largest granularity of @devices; a power
 *	of two
 */
struct hm_stripe_options {
	uint64_t devices;
	uint64_t peers;
	size_t unit;
};

/* cuMemAlloc() and cuMemFree(). -ENODEV no such device, -ENOMEM. */
int hm_device_provider(struct hetmem *hm, int device,
		       struct hm_provider **out);

/*
 * Reservations, handles, mappings. @options may be NULL. -ENODEV, -ENOMEM,
 * -EOPNOTSUPP the device or the driver has no VMM, cannot export so, or does
 * not reach a peer.
 */
int hm_vmm_provider(struct hetmem *hm, int device,
		    const struct hm_vmm_options *options,
		    struct hm_provider **out);

/*
 * Memory of several devices in turn, for all of them: see stripe.c. The pool is @device's. Errors:
 * -EINVAL: bad options;
 * others as of hm_vmm_provider(), for any of the devices.
 */
int hm_stripe_provider(struct hetmem *hm, int device, const struct hm_stripe_options *options,
		       struct hm_provider **out);

#endif /* HETMEM_PROVIDER_VMM_H */
