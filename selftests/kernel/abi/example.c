// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The runtime of Documentation/kernel-interface.md: nothing thrashes. */
#include "example.h"

/* The CPU has the buffer to itself. */
static void example_threads(char *p, size_t size)
{
	fill(p, size / 16, 1);
	if (madvise(p, size / 16, MADV_DONTNEED) || !all_zero(p, size / 16))
		exit(2);
}

TEST(quiet)
{
	char text[256];

	EXPECT_EQ(0, example_run(text, sizeof(text)));
	EXPECT_STREQ("", text);
	EXPECT_EQ(0, read_long("/sys/class/misc/hetmem/stats/bytes"));
}

TEST_HARNESS_MAIN
