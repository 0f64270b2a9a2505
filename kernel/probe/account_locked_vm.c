// SPDX-License-Identifier: GPL-2.0
/* account_locked_vm(): pages charged to RLIMIT_MEMLOCK. */
#include <linux/mm.h>

static int (* const ask)(struct mm_struct *mm, unsigned long pages,
			 bool inc) __used = account_locked_vm;
