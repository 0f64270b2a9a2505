// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * lib/driver/cuda_types.h, driver.h and soft/calls.h against the CUDA toolkit's
 * cuda.h: every enumerator, type, member and function signature, at compile time.
 * Ours are included inside a function, where they may have the names that
 * the toolkit's have outside.
 *
 * Where there is no cuda.h, the sizes that the ABI has are all that can be
 * checked. At run time, that the lists below are complete.
 */
#define __CUDA_API_VERSION_INTERNAL	/* old ABIs under their own names */
#if __has_include(<cuda.h>)
#include <cuda.h>
#define HAVE_CUDA_H	1
#elif __has_include("/usr/local/cuda/include/cuda.h")
#include "/usr/local/cuda/include/cuda.h"
#define HAVE_CUDA_H	1
#else
#define HAVE_CUDA_H	0
#endif

#include "tap.h"

#define TYPES								\
	X(cuuint64_t) X(CUdeviceptr) X(CUdevice) X(CUcontext) \
	X(CUstream) X(CUevent) X(CUmemoryPool) X(CUgraph) X(CUgraphExec) \
	X(CUmemGenericAllocationHandle) X(CUhostFn) X(CUresult) \
	X(CUdevice_attribute) X(CUdeviceNumaConfig) \
	X(CUpointer_attribute) X(CUmemorytype) X(CUstream_flags) \
	X(CUstreamCaptureStatus) X(CUstreamCaptureMode) \
	X(CUevent_flags) X(CUmemAttach_flags) \
	X(CUmem_advise) X(CUmem_range_attribute) X(CUmemLocationType) \
	X(CUmemAllocationType) X(CUmemAllocationHandleType) \
	X(CUmemAccess_flags) X(CUmemAllocationGranularity_flags) \
	X(CUmemPool_attribute) X(CUdriverProcAddressQueryResult)

#define STRUCTS								\
	X(CUuuid) X(CUmemLocation) \
	X(CUmemAllocationProp) X(CUmemAccessDesc) X(CUmemPoolProps)

#define MEMBERS								\
	X(CUuuid, bytes) \
	X(CUmemLocation, type) X(CUmemLocation, id) \
	X(CUmemAllocationProp, type) \
	X(CUmemAllocationProp, requestedHandleTypes) \
	X(CUmemAllocationProp, location) \
	X(CUmemAllocationProp, win32HandleMetaData) \
	X(CUmemAllocationProp, allocFlags.compressionType) \
	X(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) \
	X(CUmemAllocationProp, allocFlags.usage) \
	X(CUmemAllocationProp, allocFlags.reserved) \
	X(CUmemAccessDesc, location) X(CUmemAccessDesc, flags) \
	X(CUmemPoolProps, allocType) X(CUmemPoolProps, handleTypes) \
	X(CUmemPoolProps, location) \
	X(CUmemPoolProps, win32SecurityAttributes) \
	X(CUmemPoolProps, maxSize)

/*
 * What cuda.h has from 12.3, 12.6 on. CUmemPoolProps.reserved becomes members
 * from 13.4 on: that all of it is as large as ours is compared above.
 */
#define MEMBERS_12060	X(CUmemPoolProps, usage)

#define ENUMERATORS_12030	X(CU_MEM_HANDLE_TYPE_FABRIC)

#define MACROS								\
	X(CU_STREAM_LEGACY) X(CU_STREAM_PER_THREAD) X(CU_DEVICE_CPU) \
	X(CU_DEVICE_INVALID) X(CU_MEMHOSTALLOC_PORTABLE) \
	X(CU_MEMHOSTREGISTER_PORTABLE) X(CU_MEMHOSTREGISTER_DEVICEMAP)

#define ENUMERATORS							\
	X(CUDA_SUCCESS) X(CUDA_ERROR_INVALID_VALUE) \
	X(CUDA_ERROR_OUT_OF_MEMORY) X(CUDA_ERROR_NOT_INITIALIZED) \
	X(CUDA_ERROR_DEINITIALIZED) X(CUDA_ERROR_STUB_LIBRARY) \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE) X(CUDA_ERROR_NO_DEVICE) \
	X(CUDA_ERROR_INVALID_DEVICE) X(CUDA_ERROR_INVALID_CONTEXT) \
	X(CUDA_ERROR_MAP_FAILED) X(CUDA_ERROR_UNMAP_FAILED) \
	X(CUDA_ERROR_ALREADY_MAPPED) X(CUDA_ERROR_NOT_MAPPED) \
	X(CUDA_ERROR_ECC_UNCORRECTABLE) X(CUDA_ERROR_OPERATING_SYSTEM) \
	X(CUDA_ERROR_INVALID_HANDLE) X(CUDA_ERROR_ILLEGAL_STATE) \
	X(CUDA_ERROR_NOT_FOUND) X(CUDA_ERROR_NOT_READY) \
	X(CUDA_ERROR_ILLEGAL_ADDRESS) \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED) \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) \
	X(CUDA_ERROR_LAUNCH_FAILED) X(CUDA_ERROR_NOT_PERMITTED) \
	X(CUDA_ERROR_NOT_SUPPORTED) X(CUDA_ERROR_SYSTEM_NOT_READY) \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE) \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) \
	X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED) \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION) \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) X(CUDA_ERROR_CAPTURED_EVENT) \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) X(CUDA_ERROR_UNKNOWN) \
	 \
	 \
	X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) \
	X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) \
	X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) \
	X(CU_STREAM_CAPTURE_MODE_GLOBAL) \
	X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) \
	X(CU_STREAM_CAPTURE_MODE_RELAXED) \
	 \
	 \
	 \
	 \
	X(CU_DEVICE_ATTRIBUTE_INTEGRATED) \
	X(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST) \
	X(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) \
	X(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) \
	X(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) \
	X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) \
	X(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) \
	X(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) \
	X(CU_DEVICE_ATTRIBUTE_NUMA_CONFIG) \
	X(CU_DEVICE_ATTRIBUTE_NUMA_ID) \
	X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) \
	X(CU_DEVICE_NUMA_CONFIG_NUMA_NODE) \
	X(CU_POINTER_ATTRIBUTE_CONTEXT) \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) \
	X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER) \
	X(CU_POINTER_ATTRIBUTE_HOST_POINTER) \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID) \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED) \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) \
	X(CU_POINTER_ATTRIBUTE_RANGE_SIZE) \
	X(CU_POINTER_ATTRIBUTE_MAPPED) \
	X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) X(CU_MEMORYTYPE_HOST) \
	X(CU_MEMORYTYPE_DEVICE) \
	X(CU_STREAM_DEFAULT) \
	X(CU_STREAM_NON_BLOCKING) X(CU_STREAM_CAPTURE_STATUS_NONE) \
	X(CU_STREAM_CAPTURE_STATUS_ACTIVE) \
	X(CU_STREAM_CAPTURE_STATUS_INVALIDATED) \
	X(CU_EVENT_BLOCKING_SYNC) X(CU_EVENT_DISABLE_TIMING) \
	X(CU_MEM_ATTACH_GLOBAL) X(CU_MEM_ATTACH_HOST) \
	X(CU_MEM_ADVISE_SET_READ_MOSTLY) \
	X(CU_MEM_ADVISE_UNSET_READ_MOSTLY) \
	X(CU_MEM_ADVISE_SET_PREFERRED_LOCATION) \
	X(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) \
	X(CU_MEM_ADVISE_SET_ACCESSED_BY) \
	X(CU_MEM_ADVISE_UNSET_ACCESSED_BY) \
	X(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) \
	X(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) \
	X(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) \
	X(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) \
	X(CU_MEM_LOCATION_TYPE_INVALID) X(CU_MEM_LOCATION_TYPE_DEVICE) \
	X(CU_MEM_LOCATION_TYPE_HOST) X(CU_MEM_LOCATION_TYPE_HOST_NUMA) \
	X(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) \
	X(CU_MEM_LOCATION_TYPE_MAX) X(CU_MEM_ALLOCATION_TYPE_INVALID) \
	X(CU_MEM_ALLOCATION_TYPE_PINNED) X(CU_MEM_ALLOCATION_TYPE_MAX) \
	X(CU_MEM_HANDLE_TYPE_NONE) \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) \
	X(CU_MEM_HANDLE_TYPE_MAX) \
	X(CU_MEM_ACCESS_FLAGS_PROT_NONE) \
	X(CU_MEM_ACCESS_FLAGS_PROT_READ) \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE) \
	X(CU_MEM_ACCESS_FLAGS_PROT_MAX) \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM) \
	X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) \
	X(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES) \
	X(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) \
	X(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) \
	X(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) \
	X(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) \
	X(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) \
	X(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) \
	X(CU_MEMPOOL_ATTR_USED_MEM_HIGH) X(CU_GET_PROC_ADDRESS_SUCCESS) \
	X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)

#if HAVE_CUDA_H && CUDA_VERSION < 12020

static int compare(void)
{
	printf("# SKIP cuda.h is older than 12.2\n");
	return 1;
}

#elif HAVE_CUDA_H

/* With the toolkit's own types, signatures compare as they are. */
#define HETMEM_DRIVER_CUDA_TYPES_H
#include "soft/calls.h"

#define X(member, base, symbol, version, need)				\
_Static_assert(__builtin_types_compatible_p(__typeof__(&symbol),	\
	__typeof__(((struct hm_api *)0)->member)), "signature: " #member);
HM_DRIVER_CALLS_12(X)
HM_PROGRAM_CALLS_12(X)
#if CUDA_VERSION >= 13000
HM_DRIVER_CALLS_13(X)
HM_PROGRAM_CALLS_13(X)
#endif
#undef X

/* The toolkit's, under names that ours do not hide. */
#define X(name)	typedef name real_##name;
TYPES STRUCTS
#undef X
#if CUDA_VERSION < 12060
#undef MEMBERS_12060
#define MEMBERS_12060
#endif
#if CUDA_VERSION < 12030
#define KNOWN_12030
#else
#define KNOWN_12030	ENUMERATORS_12030
#endif
#define X(name)	real_##name = (long long)name,
enum { ENUMERATORS KNOWN_12030 MACROS };
#undef X

#undef CU_STREAM_LEGACY
#undef CU_STREAM_PER_THREAD
#undef CU_DEVICE_CPU
#undef CU_DEVICE_INVALID
#undef CU_MEMHOSTALLOC_PORTABLE
#undef CU_MEMHOSTREGISTER_PORTABLE
#undef CU_MEMHOSTREGISTER_DEVICEMAP
#undef HETMEM_DRIVER_CUDA_TYPES_H

#pragma GCC diagnostic ignored "-Wshadow"

static int compare(void)
{
#include "driver/cuda_types.h"

#define X(name) _Static_assert((long long)name == real_##name, #name);
	ENUMERATORS KNOWN_12030 MACROS
#undef X
#define X(name) _Static_assert(sizeof(name) == sizeof(real_##name) &&	\
	_Alignof(name) == _Alignof(real_##name), "size of " #name);
	TYPES STRUCTS
#undef X
#define X(type, member)							\
	_Static_assert(offsetof(type, member) ==			\
		       offsetof(real_##type, member) &&			\
		       sizeof(((type *)0)->member) ==			\
		       sizeof(((real_##type *)0)->member), #type "." #member);
	MEMBERS MEMBERS_12060
#undef X
#if CUDA_VERSION >= 12080
	_Static_assert(sizeof(CUcheckpointLockArgs) == 64 && sizeof(CUcheckpointUnlockArgs) == 64 &&
		       sizeof(CUcheckpointCheckpointArgs) == 64 &&
		       sizeof(CUcheckpointRestoreArgs) == 64 && CU_PROCESS_STATE_LOCKED == 1 &&
		       CU_PROCESS_STATE_CHECKPOINTED == 2 && CU_PROCESS_STATE_FAILED == 3 &&
		       !offsetof(CUcheckpointLockArgs, timeoutMs), "driver/process_calls.h");
#endif
	return 1;
}

#else

#include "driver/cuda_types.h"
#include "driver/driver.h"

static int compare(void)
{
	printf("# SKIP no cuda.h: only what is known of the ABI\n");
	return sizeof(CUuuid) == 16 && sizeof(CUmemLocation) == 8 &&
	       sizeof(CUmemAllocationProp) == 32 &&
	       sizeof(CUmemAccessDesc) == 12 && sizeof(CUmemPoolProps) == 88 &&
	       offsetof(CUmemAllocationProp, win32HandleMetaData) == 16 &&
	       offsetof(CUmemPoolProps, maxSize) == 24 &&
	       sizeof(CUcheckpointLockArgs) == 64 && sizeof(CUcheckpointCheckpointArgs) == 64 &&
	       sizeof(CUcheckpointRestoreArgs) == 64 && sizeof(CUcheckpointUnlockArgs) == 64 &&
	       sizeof(CUprocessState) == 4 &&
	       sizeof(CUresult) == 4 && sizeof(CUdeviceptr) == 8 &&
	       sizeof(CUmemGenericAllocationHandle) == 8;
}

#endif

static bool is_listed(const char *name)
{
#define X(x)	#x,
	static const char *const names[] = { ENUMERATORS ENUMERATORS_12030 };
#undef X
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(names[i], name))
			return true;
	printf("# not compared: %s\n", name);
	return false;
}

/* "\tCU_SOMETHING = 1," */
static void complete(void)
{
	FILE *file = fopen("lib/driver/cuda_types.h", "r");
	unsigned int enumerators = 0, missing = 0;
	char line[256], name[128];

	need(file, "lib/driver/cuda_types.h: run this at the top");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "\t%127[A-Z0-9a-z_] =", name) != 1 ||
		    strncmp(name, "CU", 2) || !strchr(line, '='))
			continue;
		enumerators++;
		missing += !is_listed(name);
	}
	fclose(file);
	ok(enumerators > 100, "%u enumerators", enumerators);
	is(missing, 0, "each is compared");
}

int main(void)
{
	ok(compare(), "%s", HAVE_CUDA_H ?
	   "compared with cuda.h by the compiler" : "sizes of the ABI");
#if HAVE_CUDA_H
	printf("# cuda.h is of %d.%d\n", CUDA_VERSION / 1000,
	       CUDA_VERSION % 1000 / 10);
#endif
	complete();
	return tap_end();
}
