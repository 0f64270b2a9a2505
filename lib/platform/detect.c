// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The platform: how a device reaches system memory. One verdict per device, made
 * once from evidence that the driver gathers; nobody else tests attributes for
 * it.
 */
#include "platform/platform.h"

/*
 * A device that walks the CPU's page tables is coherent; then its own memory is
 * a NUMA node, or the driver keeps it to itself (CDMM).
 */
enum hetmem_addressing hm_platform_verdict(const struct hm_evidence *e)
{
	if (e->soft)
		return HETMEM_ADDRESSING_SOFT;
	if (!e->pageable)
		return HETMEM_ADDRESSING_NONE;
	if (!e->host_tables)
		return HETMEM_ADDRESSING_HMM;
	return e->numa_node >= 0 && hm_numa_has_node(e->numa_node) ?
		HETMEM_ADDRESSING_ATS : HETMEM_ADDRESSING_CDMM;
}
