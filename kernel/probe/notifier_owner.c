// SPDX-License-Identifier: GPL-2.0
/* mmu_notifier_range.owner, and with it MMU_NOTIFY_EXCLUSIVE */
#include <linux/mmu_notifier.h>

void *ask(const struct mmu_notifier_range *range);

void *ask(const struct mmu_notifier_range *range)
{
	return range->event == MMU_NOTIFY_EXCLUSIVE ? NULL : range->owner;
}
