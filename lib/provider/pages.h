/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Anonymous pages for the providers of host memory.
 */
#ifndef HETMEM_PROVIDER_PAGES_H
#define HETMEM_PROVIDER_PAGES_H

#include <stddef.h>
#include <stdint.h>

/*
 * Maps @size bytes, whole pages; from 2 MiB on at a multiple of that and with
 * huge pages advised. NULL: no memory, see errno.
 */
void *hm_pages_map(size_t size, size_t page_size);

/*
 * Maps @size bytes, whole pages, twice in a row. A forked child shares them. NULL: likewise.
 * munmap() of both takes twice @size.
 */
void *hm_pages_map_ring(size_t size);

/* Pages that are touched from now on come from @node if it has any. */
void hm_pages_prefer(void *ptr, size_t size, int node);

/*
 * Makes every page be there, writable, with @threads at once, 0: as many as
 * are worth it. 0, or -ENOMEM: some are there and some are not.
 *
 * Where memory is fragmented, a huge page can take the kernel milliseconds. A thread
 * for which some took longer than @slow_ns each (0: HM_PAGES_SLOW_NS) makes the rest of
 * its share of small pages.
 */
int hm_pages_populate(void *ptr, size_t size, size_t page_size,
		      unsigned int threads, uint64_t slow_ns);

/* A huge page takes 0.1 to 0.5 ms where there are some. */
#define HM_PAGES_SLOW_NS	10000000
/* So many slow ones, and a thread asks for no more. */
#define HM_PAGES_SLOW		4
#define HM_PAGES_THREADS	64

#endif /* HETMEM_PROVIDER_PAGES_H */
