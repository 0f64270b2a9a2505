// SPDX-License-Identifier: GPL-2.0
/* vma_lookup() */
#include <linux/mm.h>

static struct vm_area_struct *(* const ask)(struct mm_struct *mm,
					    unsigned long addr) __used = vma_lookup;
