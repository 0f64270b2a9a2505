/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem_parked_read() asks ctl() for this. */
#ifndef HETMEM_CORE_PARKED_H
#define HETMEM_CORE_PARKED_H

#include "core/resource.h"

/* [@ptr, @ptr + @size) is in one live block; @to: host memory. */
struct hm_ctl_parked {
	const void *ptr;
	size_t size;
	void *to;
};

#endif /* HETMEM_CORE_PARKED_H */
