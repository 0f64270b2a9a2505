// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Calls that place memory, where the driver's versions differ. From CUDA 12.2 on a call
 * takes a CUmemLocation. Before, it takes a device or CU_DEVICE_CPU, and the nodes of the
 * host are one place.
 */
#include <string.h>

#include "driver/hetmem.h"

/* Returns @where as calls of the first version take it. */
static CUdevice device_of(CUmemLocation where)
{
	return where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : CU_DEVICE_CPU;
}

CUmemLocation hm_driver_location(const struct hetmem *hm, uint32_t location)
{
	const unsigned int index = HETMEM_LOC_INDEX(location);
	CUmemLocation where;

	memset(&where, 0, sizeof(where));
	where.type = CU_MEM_LOCATION_TYPE_HOST;
	if (HETMEM_LOC_KIND(location) == HETMEM_DEVICE) {
		where.type = CU_MEM_LOCATION_TYPE_DEVICE;
		where.id = hm->devices[index].handle;
	} else if (index != HETMEM_NODE_ANY) {
		where.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
		where.id = index;
	}
	return where;
}

bool hm_driver_can_prefetch(const struct hetmem *hm)
{
	return hm->driver.cuMemPrefetchAsync_v2 || hm->driver.cuMemPrefetchAsync_v1;
}

CUresult hm_driver_prefetch(const struct hetmem *hm, uintptr_t start, size_t size,
			    uint32_t location, CUstream stream)
{
	const CUmemLocation where = hm_driver_location(hm, location);
	const struct hm_driver *d = &hm->driver;

	if (d->cuMemPrefetchAsync_v2)
		return d->cuMemPrefetchAsync_v2(start, size, where, 0, stream);
	if (d->cuMemPrefetchAsync_v1)
		return d->cuMemPrefetchAsync_v1(start, size, device_of(where), stream);
	return CUDA_ERROR_NOT_SUPPORTED;
}

bool hm_driver_can_advise(const struct hetmem *hm)
{
	return hm->driver.cuMemAdvise_v2 || hm->driver.cuMemAdvise_v1;
}

CUresult hm_driver_advise(const struct hetmem *hm, uintptr_t start, size_t size,
			  CUmem_advise advice, uint32_t location)
{
	const CUmemLocation where = hm_driver_location(hm, location);
	const struct hm_driver *d = &hm->driver;

	if (d->cuMemAdvise_v2)
		return d->cuMemAdvise_v2(start, size, advice, where);
	if (d->cuMemAdvise_v1)
		return d->cuMemAdvise_v1(start, size, advice, device_of(where));
	return CUDA_ERROR_NOT_SUPPORTED;
}
