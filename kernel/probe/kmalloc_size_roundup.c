// SPDX-License-Identifier: GPL-2.0
/* kmalloc_size_roundup(): what an allocation really takes. */
#include <linux/slab.h>

static size_t (* const ask)(size_t bytes) __used = kmalloc_size_roundup;
