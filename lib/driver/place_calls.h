/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Types of the driver's calls that place memory; see struct hm_driver. Ranges are of
 * managed memory, or of any memory where the device is pageable; else
 * CUDA_ERROR_INVALID_VALUE. In v1 calls CU_DEVICE_CPU is the host.
 */
#ifndef HETMEM_DRIVER_PLACE_CALLS_H
#define HETMEM_DRIVER_PLACE_CALLS_H

#include <stdbool.h>

#include "driver/cuda_types.h"

/* In cuda.h a macro of newer toolkits only. */
#ifndef CU_MEMHOSTREGISTER_READ_ONLY
#define CU_MEMHOSTREGISTER_READ_ONLY	0x08
#endif

/* post: moved in stream order; a hint. */
typedef CUresult hm_prefetch_v1_fn(CUdeviceptr ptr, size_t size, CUdevice device,
				   CUstream stream);
typedef CUresult hm_prefetch_v2_fn(CUdeviceptr ptr, size_t size,
				   CUmemLocation location, unsigned int flags,
				   CUstream stream);

/* post: advised at once; a hint. Unsafe while another stream is captured. */
typedef CUresult hm_advise_v1_fn(CUdeviceptr ptr, size_t size,
				 CUmem_advise advice, CUdevice device);
typedef CUresult hm_advise_v2_fn(CUdeviceptr ptr, size_t size,
				 CUmem_advise advice, CUmemLocation location);

/*
 * pre:  managed memory.
 * post: what was asked last, not where it is.
 */
typedef CUresult hm_range_attribute_fn(void *data, size_t data_size,
				       CUmem_range_attribute which,
				       CUdeviceptr ptr, size_t size);

/*
 * pre:  count ranges; locations[i] is for the ranges from first[i] on; first[0] is 0,
 *	 the others do not fall; flags is 0; every device has concurrent managed access.
 * post: as a prefetch of each; Discard: the contents are undefined and need not be
 *	 moved.
 */
typedef CUresult hm_prefetch_batch_fn(CUdeviceptr *ptrs, size_t *sizes,
				      size_t count, CUmemLocation *locations,
				      size_t *first, size_t nr_locations,
				      unsigned long long flags, CUstream stream);
typedef CUresult hm_discard_batch_fn(CUdeviceptr *ptrs, size_t *sizes,
				     size_t count, unsigned long long flags,
				     CUstream stream);

/*
 * The same in whichever version the driver has, to and about a HETMEM_LOC(). A context
 * is current. CUDA_ERROR_NOT_SUPPORTED: the driver has none.
 */

struct hetmem;

bool hm_driver_can_prefetch(const struct hetmem *hm);
bool hm_driver_can_advise(const struct hetmem *hm);
CUresult hm_driver_prefetch(const struct hetmem *hm, uintptr_t start, size_t size,
			    uint32_t location, CUstream stream);
CUresult hm_driver_advise(const struct hetmem *hm, uintptr_t start, size_t size,
			  CUmem_advise advice, uint32_t location);

/* Returns @location in the driver's terms. */
CUmemLocation hm_driver_location(const struct hetmem *hm, uint32_t location);

#endif /* HETMEM_DRIVER_PLACE_CALLS_H */
