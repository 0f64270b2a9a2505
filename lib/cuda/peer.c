// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Access of one device to the blocks of another, as a program asks for it by
 * cuCtxEnablePeerAccess() or, for the default pool, by cuMemPoolSetAccess().
 *
 * The driver gives access to its own allocations. The mappings of a vmm() resource need
 * cuMemSetAccess() each: the library's calls go through this file, which gives the peers access
 * to present and later mappings. What the spec itself gives (peers=) is never taken.
 *
 * The lock covers everything here, the driver's calls that change access or unmap included. No
 * other lock is taken inside.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

_Static_assert(HM_MAX_DEVICES <= 64, "bits of a mask");

/**
 * struct mapping - memory of a device that the library has mapped
 * @given: devices that have access because the program asked
 * @spec: devices that have it by the spec
 */
struct mapping {
	struct hm_range range;
	CUdevice device;
	uint64_t given;
	uint64_t spec;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *mappings;
/* Devices that may use the memory of a device: by its context, and by its pool. */
static uint64_t by_context[HM_MAX_DEVICES];
static uint64_t by_pool[HM_MAX_DEVICES];
static struct hm_driver real;

static bool is_counted(CUdevice device)
{
	return device >= 0 && device < HM_MAX_DEVICES;
}

static CUresult set_access(const struct mapping *m, CUdevice peer, CUmemAccess_flags flags)
{
	const CUmemAccessDesc desc = { { CU_MEM_LOCATION_TYPE_DEVICE, peer }, flags };

	return real.cuMemSetAccess(m->range.start, m->range.end - m->range.start, &desc, 1);
}

/* Makes the access of @m what is wanted. */
static CUresult apply(struct mapping *m)
{
	const uint64_t want = (by_context[m->device] | by_pool[m->device]) & ~m->spec;
	CUresult res = CUDA_SUCCESS;
	CUdevice peer;

	for (peer = 0; peer < HM_MAX_DEVICES && !res; peer++) {
		const uint64_t bit = 1ULL << peer;

		if (!((want ^ m->given) & bit))
			continue;
		res = set_access(m, peer, want & bit ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
				 CU_MEM_ACCESS_FLAGS_PROT_NONE);
		if (!res)
			m->given ^= bit;
	}
	return res;
}

static void forget_mapping(uintptr_t start, size_t size)
{
	struct hm_range *found;

	while (size && (found = hm_range_find(&mappings, start, size))) {
		hm_range_erase(&mappings, found);
		free(found);
	}
}

/* Notes the mapping. Without host memory its peers have no access. */
static CUresult note_mapping(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
			     size_t count)
{
	struct mapping *m;
	CUresult res;
	size_t i;

	if (!count || desc[0].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !is_counted(desc[0].location.id))
		return CUDA_SUCCESS;
	forget_mapping(ptr, size);
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_SUCCESS;
	m->range = (struct hm_range){ ptr, ptr + size };
	m->device = desc[0].location.id;
	for (i = 0; i < count; i++)
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    is_counted(desc[i].location.id))
			m->spec |= 1ULL << desc[i].location.id;
	res = apply(m);
	if (res || hm_range_insert(&mappings, &m->range))
		free(m);
	return res;
}

static CUresult note_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
			    size_t count)
{
	CUresult res;

	pthread_mutex_lock(&lock);
	res = real.cuMemSetAccess(ptr, size, desc, count);
	if (!res)
		res = note_mapping(ptr, size, desc, count);
	pthread_mutex_unlock(&lock);
	return res;
}

static CUresult note_unmap(CUdeviceptr ptr, size_t size)
{
	CUresult res;

	pthread_mutex_lock(&lock);
	res = real.cuMemUnmap(ptr, size);
	if (!res)
		forget_mapping(ptr, size);
	pthread_mutex_unlock(&lock);
	return res;
}

void hm_cuda_peer_wrap(struct hm_driver *driver)
{
	if (!driver->cuMemSetAccess || !driver->cuMemUnmap)
		return;
	real = *driver;
	driver->cuMemSetAccess = note_access;
	driver->cuMemUnmap = note_unmap;
}

struct all {
	CUdevice device;
	CUresult res;
};

static void apply_one(struct hm_range *range, void *arg)
{
	struct mapping *m = (void *)range;
	struct all *all = arg;
	CUresult res = m->device == all->device ? apply(m) : CUDA_SUCCESS;

	if (res && !all->res)
		all->res = res;
}

/* With the lock: all mappings of @device. The first error. */
static CUresult apply_all(CUdevice device)
{
	struct all all = { .device = device };

	hm_range_walk(&mappings, apply_one, &all);
	return all.res;
}

/* Gives @peer access to memory of @device, or takes it. */
static CUresult change(uint64_t *mask, CUdevice device, CUdevice peer, bool on)
{
	const uint64_t bit = 1ULL << peer;
	CUresult res;

	pthread_mutex_lock(&lock);
	mask[device] = on ? mask[device] | bit : mask[device] & ~bit;
	res = apply_all(device);
	if (res && on) {
		mask[device] &= ~bit;
		apply_all(device);
	}
	pthread_mutex_unlock(&lock);
	return res;
}

void hm_cuda_peer_forget(CUdevice device)
{
	int i;

	if (!is_counted(device))
		return;
	pthread_mutex_lock(&lock);
	by_context[device] = 0;
	for (i = 0; i < HM_MAX_DEVICES; i++) {
		by_context[i] &= ~(1ULL << device);
		apply_all(i);
	}
	pthread_mutex_unlock(&lock);
}

/* The devices of @peer, whose memory is used, and of the current context. */
static bool find_devices(CUcontext peer, CUdevice *owner, CUdevice *user)
{
	return !hm_cuda_is_child() && hm_cuda_device_of_context(peer, owner) &&
		hm_cuda_current_device(user) && is_counted(*owner) && is_counted(*user) &&
		*owner != *user;
}

CUresult HM_CUDA_EXPORT cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	CUresult res = HM_CUDA_NEXT(cuCtxEnablePeerAccess)(peer, flags);
	CUdevice owner, user;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuCtxEnablePeerAccess);
	if (res || !find_devices(peer, &owner, &user))
		return res;
	res = change(by_context, owner, user, true);
	if (res)
		HM_CUDA_NEXT(cuCtxDisablePeerAccess)(peer);
	return res;
}

CUresult HM_CUDA_EXPORT cuCtxDisablePeerAccess(CUcontext peer)
{
	CUresult res = HM_CUDA_NEXT(cuCtxDisablePeerAccess)(peer);
	CUdevice owner, user;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuCtxDisablePeerAccess);
	/* A mapping that keeps its access is no error of the program's. */
	if (!res && find_devices(peer, &owner, &user))
		change(by_context, owner, user, false);
	return res;
}

/* The device whose default pool it is; -1: none. */
static CUdevice device_of(CUmemoryPool pool)
{
	CUmemoryPool preset;
	CUdevice i;

	for (i = 0; i < HM_MAX_DEVICES; i++) {
		preset = NULL;
		if (HM_CUDA_NEXT_AS(cuDeviceGetDefaultMemPool, CUresult (*)(CUmemoryPool *,
				CUdevice))(&preset, i))
			break;
		if (preset == pool)
			return i;
	}
	return -1;
}

CUresult HM_CUDA_EXPORT cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc,
					   size_t count)
{
	CUresult res = HM_CUDA_NEXT(cuMemPoolSetAccess)(pool, desc, count);
	CUdevice owner;
	size_t i;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemPoolSetAccess);
	owner = res || hm_cuda_is_child() ? -1 : device_of(pool);
	for (i = 0; owner >= 0 && i < count && !res; i++)
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    is_counted(desc[i].location.id) && desc[i].location.id != owner)
			res = change(by_pool, owner, desc[i].location.id,
				     desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
	return res;
}
