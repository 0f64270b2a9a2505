/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The types and enumerators of the CUDA Driver API that the driver table
 * uses, so that nothing of the CUDA toolkit is needed to build. The ABI is
 * NVIDIA's; selftests/lib/driver/cuda_types.c compares every line of this with
 * cuda.h where that is installed. Declarations only: the test includes this
 * file inside a function.
 */
#ifndef HETMEM_DRIVER_CUDA_TYPES_H
#define HETMEM_DRIVER_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef void (*CUhostFn)(void *data);

#ifndef CU_STREAM_LEGACY
#define CU_STREAM_LEGACY	((CUstream)0x1)
#define CU_STREAM_PER_THREAD	((CUstream)0x2)
#define CU_DEVICE_CPU		((CUdevice)-1)
#define CU_DEVICE_INVALID	((CUdevice)-2)
#define CU_MEMHOSTALLOC_PORTABLE	0x01
#define CU_MEMHOSTREGISTER_PORTABLE	0x01
#define CU_MEMHOSTREGISTER_DEVICEMAP	0x02
#endif

typedef enum cudaError_enum {
	CUDA_SUCCESS			= 0,
	CUDA_ERROR_INVALID_VALUE	= 1,
	CUDA_ERROR_OUT_OF_MEMORY	= 2,
	CUDA_ERROR_NOT_INITIALIZED	= 3,
	CUDA_ERROR_DEINITIALIZED	= 4,
	CUDA_ERROR_STUB_LIBRARY		= 34,
	CUDA_ERROR_DEVICE_UNAVAILABLE	= 46,
	CUDA_ERROR_NO_DEVICE		= 100,
	CUDA_ERROR_INVALID_DEVICE	= 101,
	CUDA_ERROR_INVALID_CONTEXT	= 201,
	CUDA_ERROR_MAP_FAILED		= 205,
	CUDA_ERROR_UNMAP_FAILED		= 206,
	CUDA_ERROR_ALREADY_MAPPED	= 208,
	CUDA_ERROR_NOT_MAPPED		= 211,
	CUDA_ERROR_ECC_UNCORRECTABLE	= 214,
	CUDA_ERROR_OPERATING_SYSTEM	= 304,
	CUDA_ERROR_INVALID_HANDLE	= 400,
	CUDA_ERROR_ILLEGAL_STATE	= 401,
	CUDA_ERROR_NOT_FOUND		= 500,
	CUDA_ERROR_NOT_READY		= 600,
	CUDA_ERROR_ILLEGAL_ADDRESS	= 700,
	CUDA_ERROR_CONTEXT_IS_DESTROYED	= 709,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED	= 713,
	CUDA_ERROR_LAUNCH_FAILED	= 719,
	CUDA_ERROR_NOT_PERMITTED	= 800,
	CUDA_ERROR_NOT_SUPPORTED	= 801,
	CUDA_ERROR_SYSTEM_NOT_READY	= 802,
	CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_MERGE	= 902,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
	CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_CAPTURED_EVENT	= 907,
	CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_ERROR_UNKNOWN		= 999,
} CUresult;

typedef enum CUdevice_attribute_enum {
	CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
	CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
	CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
	CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
	CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
	CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
	CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
	CU_DEVICE_ATTRIBUTE_NUMA_CONFIG = 130,
	CU_DEVICE_ATTRIBUTE_NUMA_ID = 131,
	CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
} CUdevice_attribute;

typedef enum CUdeviceNumaConfig_enum {
	CU_DEVICE_NUMA_CONFIG_NUMA_NODE	= 1,
} CUdeviceNumaConfig;

typedef enum CUpointer_attribute_enum {
	CU_POINTER_ATTRIBUTE_CONTEXT		= 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE	= 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER	= 3,
	CU_POINTER_ATTRIBUTE_HOST_POINTER	= 4,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS	= 6,
	CU_POINTER_ATTRIBUTE_BUFFER_ID		= 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED		= 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL	= 9,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR	= 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE		= 12,
	CU_POINTER_ATTRIBUTE_MAPPED		= 13,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE	= 17,
} CUpointer_attribute;

typedef enum CUmemorytype_enum {
	CU_MEMORYTYPE_HOST	= 1,
	CU_MEMORYTYPE_DEVICE	= 2,
} CUmemorytype;

typedef enum CUstream_flags_enum {
	CU_STREAM_DEFAULT	= 0,
	CU_STREAM_NON_BLOCKING	= 1,
} CUstream_flags;

typedef enum CUstreamCaptureStatus_enum {
	CU_STREAM_CAPTURE_STATUS_NONE		= 0,
	CU_STREAM_CAPTURE_STATUS_ACTIVE		= 1,
	CU_STREAM_CAPTURE_STATUS_INVALIDATED	= 2,
} CUstreamCaptureStatus;

typedef enum CUstreamCaptureMode_enum {
	CU_STREAM_CAPTURE_MODE_GLOBAL		= 0,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL	= 1,
	CU_STREAM_CAPTURE_MODE_RELAXED		= 2,
} CUstreamCaptureMode;

typedef enum CUevent_flags_enum {
	CU_EVENT_BLOCKING_SYNC	= 1,
	CU_EVENT_DISABLE_TIMING	= 2,
} CUevent_flags;

typedef enum CUmemAttach_flags_enum {
	CU_MEM_ATTACH_GLOBAL	= 1,
	CU_MEM_ATTACH_HOST	= 2,
} CUmemAttach_flags;

typedef enum CUmem_advise_enum {
	CU_MEM_ADVISE_SET_READ_MOSTLY		= 1,
	CU_MEM_ADVISE_UNSET_READ_MOSTLY		= 2,
	CU_MEM_ADVISE_SET_PREFERRED_LOCATION	= 3,
	CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION	= 4,
	CU_MEM_ADVISE_SET_ACCESSED_BY		= 5,
	CU_MEM_ADVISE_UNSET_ACCESSED_BY		= 6,
} CUmem_advise;

typedef enum CUmem_range_attribute_enum {
	CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY		= 1,
	CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION	= 2,
	CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY		= 3,
	CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION	= 4,
} CUmem_range_attribute;

typedef enum CUmemLocationType_enum {
	CU_MEM_LOCATION_TYPE_INVALID		= 0,
	CU_MEM_LOCATION_TYPE_DEVICE		= 1,
	CU_MEM_LOCATION_TYPE_HOST		= 2,
	CU_MEM_LOCATION_TYPE_HOST_NUMA		= 3,
	CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT	= 4,
	CU_MEM_LOCATION_TYPE_MAX		= 0x7fffffff,
} CUmemLocationType;

typedef enum CUmemAllocationType_enum {
	CU_MEM_ALLOCATION_TYPE_INVALID	= 0,
	CU_MEM_ALLOCATION_TYPE_PINNED	= 1,
	CU_MEM_ALLOCATION_TYPE_MAX	= 0x7fffffff,
} CUmemAllocationType;

typedef enum CUmemAllocationHandleType_enum {
	CU_MEM_HANDLE_TYPE_NONE			= 0,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_HANDLE_TYPE_FABRIC		= 8,
	CU_MEM_HANDLE_TYPE_MAX			= 0x7fffffff,
} CUmemAllocationHandleType;

typedef enum CUmemAccess_flags_enum {
	CU_MEM_ACCESS_FLAGS_PROT_NONE		= 0,
	CU_MEM_ACCESS_FLAGS_PROT_READ		= 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE	= 3,
	CU_MEM_ACCESS_FLAGS_PROT_MAX		= 0x7fffffff,
} CUmemAccess_flags;

typedef enum CUmemAllocationGranularity_flags_enum {
	CU_MEM_ALLOC_GRANULARITY_MINIMUM	= 0,
	CU_MEM_ALLOC_GRANULARITY_RECOMMENDED	= 1,
} CUmemAllocationGranularity_flags;

typedef enum CUmemPool_attribute_enum {
	CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES	= 1,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC	= 2,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD		= 4,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT		= 5,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH		= 6,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT		= 7,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH			= 8,
} CUmemPool_attribute;

typedef enum CUdriverProcAddressQueryResult_enum {
	CU_GET_PROC_ADDRESS_SUCCESS			= 0,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND		= 1,
} CUdriverProcAddressQueryResult;

typedef struct CUuuid_st {
	char bytes[16];
} CUuuid;

typedef struct CUmemLocation_st {
	CUmemLocationType type;
	int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemPoolProps_st {
	CUmemAllocationType allocType;
	CUmemAllocationHandleType handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

#endif /* HETMEM_DRIVER_CUDA_TYPES_H */
