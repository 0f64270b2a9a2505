// SPDX-License-Identifier: GPL-2.0
/* mmu_notifier_range.vma */
#include <linux/mmu_notifier.h>

struct vm_area_struct *ask(const struct mmu_notifier_range *range);

struct vm_area_struct *ask(const struct mmu_notifier_range *range)
{
	return range->vma;
}
