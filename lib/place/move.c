// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Moving in order: a prefetch that is complete when the call returns. Earlier work of
 * the stream uses the memory where it was; the CPU may use it after the call. The host
 * waits for an event, so work that other threads add to the stream does not delay it.
 *
 * The module and move_pages(2) know no stream: the host waits for the stream, then they
 * move. With HETMEM_NONBLOCKING they move at once. Pages move safely while work uses
 * them, so only their location changes, not the result of the work.
 */
#include <errno.h>

#include "place/place.h"

/* Makes the context of @stream current. A context is current before: special streams use it. */
static int enter(struct hetmem *hm, hetmem_stream stream, CUcontext *ctx,
		 CUcontext *before)
{
	const struct hm_driver *d = &hm->driver;
	CUresult res = d->cuCtxGetCurrent(before);

	if (res)
		return hm_place_error(hm, "cuCtxGetCurrent", res);
	*ctx = *before;
	if (!hm_stream_special(stream) && d->cuStreamGetCtx) {
		res = d->cuStreamGetCtx(stream, ctx);
		if (res)
			return hm_place_error(hm, "cuStreamGetCtx", res);
	}
	res = hm_current_enter(d, *ctx, before);
	return res ? hm_place_error(hm, "cuCtxSetCurrent", res) : 0;
}

/* Waits for the work that the stream has now. */
static int wait_for(struct hetmem *hm, hetmem_stream stream)
{
	const struct hm_driver *d = &hm->driver;
	CUcontext ctx, before;
	CUevent event;
	CUresult res;
	int err = enter(hm, stream, &ctx, &before);

	if (err)
		return err;
	res = d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	if (res) {
		err = hm_place_error(hm, "cuEventCreate", res);
	} else {
		res = d->cuEventRecord(event, stream);
		if (res)
			err = hm_place_error(hm, "cuEventRecord", res);
		if (!res)
			res = d->cuEventSynchronize(event);
		if (res && !err)
			err = hm_place_error(hm, "cuEventSynchronize", res);
		hm_retry_once(d->cuEventDestroy(event));
	}
	hm_current_leave(d, ctx, before);
	return err;
}

static int check_stream(struct hetmem *hm, hetmem_stream stream)
{
	if (stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "move: HETMEM_STREAM_UNKNOWN has no order: give the stream, or HETMEM_STREAM_HOST");
	if (stream == HETMEM_STREAM_HOST || !hm->nr_devices)
		return 0;
	if (hm_capture_active(hm, stream))
		return hm_error(-EBUSY, "move: the stream is captured: move before the capture");
	return 0;
}

/* A context is current, unless there is no device. */
static int move_in_context(struct hetmem *hm, const struct hm_span *span,
			   uint32_t location, hetmem_stream stream, bool waits,
			   struct hetmem_moved *moved)
{
	/* HETMEM_STREAM_HOST has no work to wait for. */
	const bool on_host = stream == HETMEM_STREAM_HOST;
	const bool has_stream = hm->nr_devices && !on_host;
	struct hm_plan plan;
	int err = 0;

	hm_place_plan(hm, span, location, &plan);
	if (plan.way != HM_WAY_DRIVER && has_stream && waits)
		err = wait_for(hm, stream);
	if (!err)
		err = hm_place_carry_out(hm, span, &plan, on_host ? NULL : stream,
					 NULL, moved);
	if (!err && plan.way == HM_WAY_DRIVER && (waits || on_host))
		err = wait_for(hm, on_host ? NULL : stream);
	if (!err && !waits && has_stream &&
	    (plan.way == HM_WAY_MODULE || plan.way == HM_WAY_PAGES))
		moved->reason = "moved at once, and not in the order of the stream";
	return err;
}

/*
 * A thread without a context gets that of the device that it moves to, for the move and
 * for the wait: the driver's own streams are another one in each context.
 */
static int move(struct hetmem *hm, const struct hm_span *span, uint32_t location,
		hetmem_stream stream, bool waits, struct hetmem_moved *moved)
{
	const unsigned int index = HETMEM_LOC_INDEX(location);
	struct hm_context saved;
	int device = 0, err;

	if (HETMEM_LOC_KIND(location) == HETMEM_DEVICE && !(index & HM_KERNEL_DEVICE))
		device = index;
	if (!hm->nr_devices)
		return move_in_context(hm, span, location, stream, waits, moved);
	err = hm_context_default(hm, device, &saved);
	if (err)
		return err;
	err = move_in_context(hm, span, location, stream, waits, moved);
	hm_context_leave(hm, &saved);
	return err;
}

int hetmem_move(struct hetmem *hm, const void *ptr, size_t size, uint32_t location,
		hetmem_stream stream, unsigned int flags, struct hetmem_moved *moved)
{
	struct hetmem_moved result = hm_nothing_moved;
	struct hm_span span;
	int err = hm_place_enter(hm, "move", moved);

	if (err)
		return err;
	if (flags & ~HETMEM_NONBLOCKING)
		return hm_error(-EINVAL, "move: unknown flags %#x: use 0 or HETMEM_NONBLOCKING", flags);
	err = hm_place_span(hm, "move", ptr, size, &span);
	if (!err)
		err = hm_place_location(hm, "move", location);
	if (!err)
		err = check_stream(hm, stream);
	if (!err)
		err = move(hm, &span, location, stream, !(flags & HETMEM_NONBLOCKING),
			   &result);
	if (moved) {
		result.size = moved->size;
		*moved = result;
	}
	return err;
}
