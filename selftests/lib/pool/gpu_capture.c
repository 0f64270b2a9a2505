// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Resources and captures, over CUDA.
 */
#include "capture.h"

int main(void)
{
	run_all(DRIVER);
	return tap_end();
}
