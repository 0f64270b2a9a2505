// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Resources and captures, over the soft driver in check mode.
 */
#include "capture.h"

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	run_all("soft");
	return tap_end();
}
