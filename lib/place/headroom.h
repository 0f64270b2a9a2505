/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Cuts prefetches to the room that a headroom() leaves. */
#ifndef HETMEM_PLACE_HEADROOM_H
#define HETMEM_PLACE_HEADROOM_H

#include "place/place.h"

/*
 * Cuts off the end of @span that does not fit on the device that @plan moves it to.
 * -ENOMEM: nothing fits; the text has the number that would.
 */
int hm_headroom_cut(struct hetmem *hm, const struct hm_plan *plan,
		    struct hm_span *span);

/*
 * Call it right after hm_headroom_cut(), in the same thread. @moved reports @part of
 * @span: adds the rest. @moved->reason is valid until the thread's next prefetch.
 */
void hm_headroom_left(const struct hetmem *hm, const struct hm_span *span,
		      const struct hm_span *part, struct hetmem_moved *moved);

#endif /* HETMEM_PLACE_HEADROOM_H */
