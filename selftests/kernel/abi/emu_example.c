// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The runtime of Documentation/kernel-interface.md, with a buffer that the CPU and a
 * device take from each other.
 */
#include "example.h"
#include "libktest/emu.h"
#include "libktest/sysfs.h"

#define ROUNDS	20

static void example_threads(char *p, size_t size)
{
	const size_t at = 4 * HUGE_SIZE;
	struct emu e;
	char byte;
	int i;

	if (emu_open(&e, 0) || size < 8 * HUGE_SIZE)
		exit(2);
	p = (char *)(((uintptr_t)p + at) & ~(HUGE_SIZE - 1));
	for (i = 0; i < ROUNDS; i++) {
		*(volatile char *)p = i;
		if (emu_read(&e, HETMEM_EMU_MIGRATE, p, 1, &byte) || byte != i)
			exit(3);
	}
}

TEST(thrashes)
{
	const long window = sysfs_read("thrash/window_ms");
	unsigned long long start, end, came, held;
	char text[4096], *line;
	int lines = 0;

	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 3600000));
	EXPECT_EQ(0, example_run(text, sizeof(text)));
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", window));
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		ASSERT_EQ(4, sscanf(line, "%llx-%llx: %llu pages came, %llu are held",
				    &start, &end, &came, &held)) {
			TH_LOG("%s", line);
		}
		EXPECT_EQ(HUGE_SIZE, end - start);
		/* The page was on the device when it was first held. */
		EXPECT_EQ(!lines, came);
		/* With its neighbours, which may be a huge page. */
		EXPECT_LE(1, held);
		EXPECT_GE(512, held);
		lines++;
	}
	/* 20 rounds are 38 bounces, of which 8 make an event. */
	EXPECT_EQ(4, lines);
	EXPECT_TRUE(EVENTUALLY(!sysfs_read("stats/bytes")));
}

TEST_HARNESS_MAIN
