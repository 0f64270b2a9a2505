// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Discard: the contents are dead and need not be moved. Only NVIDIA's UVM can discard,
 * and only managed memory. Only whole pages of the range are discarded.
 */
#include <errno.h>

#include "place/place.h"

static const char *why_not(const struct hetmem *hm, const struct hm_span *span)
{
	const struct hetmem_platform *p;
	int i;

	if (span->memory == HM_DRIVERS_OWN)
		return hm_stays;
	if (span->memory == HM_PINNED)
		return hm_page_locked;
	if (span->memory == HM_MANAGED) {
		if (hm_any_platform(hm, hm_is_integrated))
			return "the device and the CPU have one memory: the driver discards nothing";
		if (hm_any_platform(hm, hm_is_not_concurrent))
			return "a device of this machine has no concurrent managed access: the driver discards nothing";
		if (!hm->driver.cuMemDiscardBatchAsync)
			return "this driver has no cuMemDiscardBatchAsync: CUDA 13.0 has it";
		return NULL;
	}
	for (i = 0; i < hm->nr_devices; i++) {
		p = &hm->devices[i].platform;
		if (p->kind == HETMEM_PLATFORM_HMM)
			return "HMM: the driver discards only memory that it allocated";
		if (p->kind == HETMEM_PLATFORM_ATS)
			return "ATS: the driver discards only memory that it allocated";
		if (p->kind == HETMEM_PLATFORM_CDMM)
			return "CDMM: the driver discards only memory that it allocated";
	}
	return hm_any_platform(hm, hm_is_integrated) ?
		"the device and the CPU have one memory: the driver discards nothing" :
		"no device of this machine holds pages of this memory";
}

static int discard(struct hetmem *hm, uintptr_t start, uintptr_t end,
		   hetmem_stream stream)
{
	CUdeviceptr ptr = start;
	size_t size = end - start;
	struct hm_context saved;
	CUresult res;
	int err;

	if (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "discard: the driver needs a stream: give one, or NULL");
	err = hm_context_default(hm, 0, &saved);
	if (err)
		return err;
	res = hm->driver.cuMemDiscardBatchAsync(&ptr, &size, 1, 0, stream);
	hm_context_leave(hm, &saved);
	return res ? hm_place_error(hm, "cuMemDiscardBatchAsync", res) : 0;
}

int hetmem_discard(struct hetmem *hm, void *ptr, size_t size, hetmem_stream stream,
		   struct hetmem_moved *done)
{
	struct hetmem_moved result = hm_nothing_moved;
	const char *reason = NULL;
	struct hm_span span;
	int err = hm_place_enter(hm, "discard", done);

	if (err)
		return err;
	err = hm_place_span(hm, "discard", ptr, size, &span);
	if (!err && span.memory == HM_PAGEABLE)
		err = hm_place_mapped(&span, "discard");
	if (!err)
		reason = why_not(hm, &span);
	if (!err && !reason) {
		const uintptr_t mask = hm->page_size - 1;
		const uintptr_t start = ((uintptr_t)ptr + mask) & ~mask;
		const uintptr_t end = ((uintptr_t)ptr + size) & ~mask;

		if (start >= end)
			reason = "no page is wholly in the range: the rest of a page is kept";
		else
			err = discard(hm, start, end, stream);
		if (!err && start < end)
			result.how = "driver";
	}
	if (reason)
		result.reason = reason;
	if (done) {
		result.size = done->size;
		*done = result;
	}
	return err;
}
