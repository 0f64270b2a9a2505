/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What stream.c (order) and stream_id.c (who is who) share.
 */
#ifndef HETMEM_RESOURCE_STREAM_IMPL_H
#define HETMEM_RESOURCE_STREAM_IMPL_H

#include "resource/stream.h"

static inline int hm_order_error(const struct hm_order *o, const char *call,
				 CUresult res)
{
	return hm_driver_error(&o->hm->driver, call, res);
}

/* A new one, at the end of the table, in which it is not yet; NULL. */
struct hm_stream *hm_stream_new(struct hm_order *o);

/*
 * -EBUSY: @handle is captured, or waits for what is: neither its id may be
 * asked for nor an event be recorded. 0: it is not, or *@res is what the
 * driver said to that question.
 */
int hm_stream_check(const struct hetmem *hm, hetmem_stream handle,
		    CUresult *res);

#endif /* HETMEM_RESOURCE_STREAM_IMPL_H */
