// SPDX-License-Identifier: GPL-2.0
/* vm_flags_set(): VMA flags are no longer written directly. */
#include <linux/mm.h>

void ask(struct vm_area_struct *vma);

void ask(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_DONTCOPY);
}
