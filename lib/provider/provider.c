// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What providers have in common when they are made: see provider.h.
 */
#include <errno.h>
#include <stdlib.h>

#include "provider/gate.h"
#include "provider/provider.h"

int hm_provider_check(struct hetmem *hm, int device)
{
	int err = hm_check_owner(hm);
	CUcontext ctx;

	return err ? err : hm_device_context(hm, device, &ctx);
}

void *hm_provider_new(struct hetmem *hm, int device,
		      const struct hm_provider_ops *ops, unsigned int caps,
		      size_t bytes)
{
	struct hm_provider *p = calloc(1, bytes);

	if (!p) {
		hm_error(-ENOMEM, "%s: no host memory", ops->name);
		return NULL;
	}
	p->ops = ops;
	p->hm = hm;
	p->device = device;
	p->caps = caps;
	p->granularity = HETMEM_ALIGNMENT;
	if (device >= 0) {
		p->devices = 1ULL << device;
		p->total = hm->devices[device].props.total;
	}
	return p;
}

int hm_provider_alloc_region(struct hm_provider *self, size_t size, hetmem_stream stream,
			     void **ptr)
{
	int err = hm_gate_enter(self, size);

	if (err)
		return err;
	err = self->ops->alloc(self, size, stream, ptr);
	hm_gate_entered(self, size, err);
	if (err)
		return err;
	err = hm_gate_verify(self);
	return err && !hm_provider_free_region(self, *ptr, size, stream) ? err : 0;
}

int hm_provider_free_region(struct hm_provider *self, void *ptr, size_t size,
			    hetmem_stream stream)
{
	int err;

	/* The driver keeps it, and nobody knows until when. */
	if (self->caps & HM_PROVIDER_STREAMED)
		return self->ops->free(self, ptr, size, stream);
	hm_gate_leave(self, size);
	err = self->ops->free(self, ptr, size, stream);
	hm_gate_left(self, size, err ? size : 0);
	return err;
}

int hm_provider_alloc_ring(struct hm_provider *self, size_t size, void **ptr)
{
	int err = hm_gate_enter(self, size);

	if (err)
		return err;
	err = self->ops->ring(self, size, ptr);
	hm_gate_entered(self, size, err);
	if (err)
		return err;
	err = hm_gate_verify(self);
	return err && !hm_provider_free_ring(self, *ptr, size) ? err : 0;
}

int hm_provider_free_ring(struct hm_provider *self, void *ptr, size_t size)
{
	int err;

	hm_gate_leave(self, size);
	err = self->ops->free(self, ptr, 2 * size, HETMEM_STREAM_HOST);
	hm_gate_left(self, size, err ? size : 0);
	return err;
}

static int create(struct hm_provider *self, size_t size, bool rdma, bool shared,
		  uint64_t *handle)
{
	int err = hm_gate_enter(self, size);

	if (err)
		return err;
	err = shared ? self->ops->create_shared(self, size, handle) :
		self->ops->create(self, size, rdma, handle);
	hm_gate_entered(self, size, err);
	if (err)
		return err;
	err = hm_gate_verify(self);
	return err && !hm_provider_release_handle(self, *handle, size) ? err : 0;
}

int hm_provider_create_handle(struct hm_provider *self, size_t size, bool rdma,
			      uint64_t *handle)
{
	return create(self, size, rdma, false, handle);
}

int hm_provider_create_shared(struct hm_provider *self, size_t size, uint64_t *handle)
{
	return create(self, size, true, true, handle);
}

int hm_provider_release_handle(struct hm_provider *self, uint64_t handle, size_t size)
{
	int err;

	hm_gate_leave(self, size);
	err = self->ops->release(self, handle);
	hm_gate_left(self, size, err ? size : 0);
	return err;
}

void hm_provider_free(struct hm_provider *self)
{
	free(self);
}
