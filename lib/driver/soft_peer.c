// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's peers: every device reaches every other. What is allowed
 * is kept, and hm_soft_launch() honours it; copies find their way anyhow, as
 * the driver's do.
 */
#include "driver/soft.h"

static bool is_device(CUdevice device)
{
	return device >= 0 && device < hm_soft_world->nr_devices;
}

static CUresult device_can_access_peer(int *can, CUdevice device,
				       CUdevice peer)
{
	SOFT_ENTER(cuDeviceCanAccessPeer);
	if (!is_device(device) || !is_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = device != peer;
	return CUDA_SUCCESS;
}

static CUresult change(CUcontext peer, bool enable)
{
	struct CUctx_st *ctx = hm_soft_current();
	CUresult res = CUDA_SUCCESS;
	uint32_t bit;
	int i;

	for (i = 0; is_device(i) && peer != &hm_soft_world->devices[i]; i++)
		;
	if (!ctx || !is_device(i) || ctx == peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	bit = 1U << i;
	hm_soft_lock();
	if (enable == !!(ctx->peers & bit))
		res = enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED :
			CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	else
		ctx->peers ^= bit;
	hm_soft_unlock();
	return res;
}

static CUresult ctx_enable_peer_access(CUcontext peer, unsigned int flags)
{
	SOFT_ENTER(cuCtxEnablePeerAccess);
	return flags ? CUDA_ERROR_INVALID_VALUE : change(peer, true);
}

static CUresult ctx_disable_peer_access(CUcontext peer)
{
	SOFT_ENTER(cuCtxDisablePeerAccess);
	return change(peer, false);
}

static CUresult check_desc(const CUmemAccessDesc *desc, int owner)
{
	if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_device(desc->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	/* A pool's own device has access for ever. */
	if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
	    (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE ||
	     desc->location.id == owner))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult mem_pool_set_access(CUmemoryPool pool,
				    const CUmemAccessDesc *desc, size_t count)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	size_t i;

	SOFT_ENTER(cuMemPoolSetAccess);
	hm_soft_lock();
	if (hm_soft_is_pool(pool))
		res = CUDA_SUCCESS;
	for (i = 0; i < count && !res; i++)
		res = check_desc(&desc[i], pool->device);
	for (i = 0; i < count && !res; i++) {
		if (desc[i].flags)
			pool->peers |= 1U << desc[i].location.id;
		else
			pool->peers &= ~(1U << desc[i].location.id);
	}
	hm_soft_unlock();
	return res;
}

static CUresult mem_pool_get_access(CUmemAccess_flags *flags,
				    CUmemoryPool pool, CUmemLocation *location)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;

	SOFT_ENTER(cuMemPoolGetAccess);
	hm_soft_lock();
	if (hm_soft_is_pool(pool) &&
	    location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    is_device(location->id)) {
		*flags = location->id == pool->device ||
			 pool->peers >> location->id & 1 ?
			CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
			CU_MEM_ACCESS_FLAGS_PROT_NONE;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_peer(struct hm_driver *d)
{
	d->cuDeviceCanAccessPeer = device_can_access_peer;
	d->cuCtxEnablePeerAccess = ctx_enable_peer_access;
	d->cuCtxDisablePeerAccess = ctx_disable_peer_access;
	d->cuMemPoolSetAccess = mem_pool_set_access;
	d->cuMemPoolGetAccess = mem_pool_get_access;
}
