// SPDX-License-Identifier: GPL-2.0
/* Control: this compiles on no kernel. */
#include <linux/mm.h>

static int (* const ask)(struct hetmem_no_such_struct) __used =
	hetmem_no_such_function;
