/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A stream that is not ordered with the legacy one. The caller destroys it. */
#ifndef HETMEM_SELFTESTS_NEW_STREAM_H
#define HETMEM_SELFTESTS_NEW_STREAM_H

#include "soft_driver.h"

__attribute__((unused))
static CUstream new_stream(void)
{
	CUstream s;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	return s;
}

#endif /* HETMEM_SELFTESTS_NEW_STREAM_H */
