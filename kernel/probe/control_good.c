// SPDX-License-Identifier: GPL-2.0
/* Control: this compiles on every kernel. */
#include <linux/mm.h>

static int (* const ask)(unsigned long) __used = NULL;
