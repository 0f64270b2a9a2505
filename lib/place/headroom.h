/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What a headroom() leaves of a prefetch. */
#ifndef HETMEM_PLACE_HEADROOM_H
#define HETMEM_PLACE_HEADROOM_H

#include "place/place.h"

/*
 * @span is about to be moved by @plan: cuts off its end what does not fit on the device
 * that it goes to. -ENOMEM, and the text has the number that fits: nothing does.
 */
int hm_headroom_cut(struct hetmem *hm, const struct hm_plan *plan,
		    struct hm_span *span);

/*
 * Right after that, in the same thread: only @part of @span was moved, as @moved has it.
 * Adds the rest. @moved->reason lasts until the thread's next prefetch.
 */
void hm_headroom_left(const struct hetmem *hm, const struct hm_span *span,
		      const struct hm_span *part, struct hetmem_moved *moved);

#endif /* HETMEM_PLACE_HEADROOM_H */
