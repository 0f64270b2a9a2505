// SPDX-License-Identifier: GPL-2.0
/* MIGRATE_VMA_SELECT_COMPOUND: migrate_vma_setup() can take whole huge pages. */
#include <linux/migrate.h>

unsigned long ask(struct migrate_vma *args);

unsigned long ask(struct migrate_vma *args)
{
	args->flags |= MIGRATE_VMA_SELECT_COMPOUND;
	return MIGRATE_PFN_COMPOUND;
}
