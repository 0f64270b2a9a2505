/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What a handle of the first device is made with, and what may be done there. */
#ifndef HETMEM_SELFTESTS_DEVICE_MEMORY_H
#define HETMEM_SELFTESTS_DEVICE_MEMORY_H

#include "driver/cuda_types.h"

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

static const CUmemAccessDesc rw = {
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

#endif /* HETMEM_SELFTESTS_DEVICE_MEMORY_H */
