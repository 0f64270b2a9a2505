// SPDX-License-Identifier: GPL-2.0
/* is_swap_pte(): entries without a page were told apart by swapops.h, now by leafops.h. */
#include <linux/swap.h>
#include <linux/swapops.h>

bool ask(pte_t pte);

bool ask(pte_t pte)
{
	return is_swap_pte(pte) && !non_swap_entry(pte_to_swp_entry(pte));
}
