// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Texts: the calling thread's last error, names of locations and reasons.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"

static __thread unsigned int nr_errors;

int hm_error(int err, const char *fmt, ...)
{
	struct hm_thread_page *page = hm_thread_page();
	va_list args;

	va_start(args, fmt);
	if (page)
		vsnprintf(page->error, sizeof(page->error), fmt, args);
	va_end(args);
	nr_errors++;
	return err;
}

unsigned int hm_errors(void)
{
	return nr_errors;
}

const char *hetmem_last_error(void)
{
	const struct hm_thread_page *page = nr_errors ? hm_thread_page() : NULL;

	if (page && page->error[0])
		return page->error;
	return nr_errors ? "no memory for the text of the error" : "no error";
}

char *hm_location_name(uint32_t location, char *buf, size_t len)
{
	unsigned int index = HETMEM_LOC_INDEX(location);

	if (!buf || !len)
		return buf;
	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_UNKNOWN:
		snprintf(buf, len, "unknown");
		break;
	case HETMEM_UNMAPPED:
		snprintf(buf, len, "unmapped");
		break;
	case HETMEM_HOST:
		if (index == HETMEM_NODE_ANY)
			snprintf(buf, len, "host");
		else
			snprintf(buf, len, "host node %u", index);
		break;
	case HETMEM_DEVICE:
		if (index & HM_KERNEL_DEVICE)
			snprintf(buf, len, "kernel device %u",
				 index & ~HM_KERNEL_DEVICE);
		else
			snprintf(buf, len, "device %u", index);
		break;
	case HETMEM_FOREIGN:
	case HETMEM_COHERENT:
		snprintf(buf, len, "other driver's %sdevice",
			 HETMEM_LOC_KIND(location) == HETMEM_COHERENT ?
			 "coherent " : "");
		if (index != HETMEM_SEVERAL) {
			size_t used = strlen(buf);

			snprintf(buf + used, len - used, " %u", index);
		}
		break;
	case HETMEM_ZERO:
		snprintf(buf, len, "page of zeroes");
		break;
	default:
		snprintf(buf, len, "location %#x", location);
	}
	return buf;
}

char *hetmem_why_names(uint32_t why, char *buf, size_t len)
{
	static const char *const names[] = {
		"file", "shared memory", "hugetlb", "special", "userfaultfd",
		"mlocked", "not readable", "mergeable", "unmapped", "absent",
		"moving", "exclusive seen", "pinned by hetmem", "busy",
		"no memory", "on another node", "large folio", "swapped out",
	};
	const unsigned int nr = sizeof(names) / sizeof(names[0]);
	size_t pos = 0;
	unsigned int i;

	if (!buf || !len)
		return buf;
	buf[0] = '\0';
	for (i = 0; i < 32 && pos < len; i++) {
		const char *comma = pos ? ", " : "";

		if (!(why & (1U << i)))
			continue;
		if (i < nr)
			pos += snprintf(buf + pos, len - pos, "%s%s", comma,
					names[i]);
		else
			pos += snprintf(buf + pos, len - pos, "%sbit %u",
					comma, i);
	}
	return buf;
}
