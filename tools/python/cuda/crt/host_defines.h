/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the headers of the CUDA Runtime need of the compiler's own headers, for C++ without
 * kernels. PyTorch's packages have the former and lack the latter (nvidia-cuda-crt). This
 * folder is searched last.
 */
#ifndef HETMEM_HOST_DEFINES_H
#define HETMEM_HOST_DEFINES_H

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define __cluster_dims__(...)
#define __block_size__(...)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __annotate__(a)
#define __location__(a)
#define __launch_bounds__(...)
#define __no_return__ __attribute__((noreturn))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#ifndef __forceinline__
#define __forceinline__ __inline__ __attribute__((always_inline))
#endif

#endif /* HETMEM_HOST_DEFINES_H */
