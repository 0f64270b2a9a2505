// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Prints the frequency of this machine's time stamp counter in kHz, measured against
 * CLOCK_MONOTONIC_RAW. Prints 0 if the counter is not invariant: it then changes its
 * frequency or stops, and no one number describes it.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

#define INTERVAL_NS	200000000LL
#define ENOUGH_TRIES	2000

struct look {
	int64_t ns;
	uint64_t ticks, width;
};

static int64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_RAW, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

/*
 * Both clocks at one moment. This process can lose its processor between reading one and
 * the other, so the tightest of many tries counts.
 */
static struct look take_look(void)
{
	struct look best = { .width = UINT64_MAX }, look;
	uint64_t before, after;
	int i;

	for (i = 0; i < ENOUGH_TRIES; i++) {
		before = __rdtsc();
		look.ns = now();
		after = __rdtsc();
		look.width = after - before;
		look.ticks = before + look.width / 2;
		if (look.width < best.width)
			best = look;
	}
	return best;
}

/* The kernel has watched the counter: where it found it unstable, it uses another clock. */
static bool kernel_trusts_it(void)
{
	char name[32] = "";
	FILE *f;

	f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
	if (!f)
		return true;
	if (!fgets(name, sizeof(name), f))
		name[0] = '\0';
	fclose(f);
	/* Clocks of hypervisors rest on the counter, and so on its being invariant. */
	return strcmp(name, "hpet\n") && strcmp(name, "acpi_pm\n") && strcmp(name, "jiffies\n");
}

static bool is_invariant(void)
{
	unsigned int eax, ebx, ecx, edx;

	return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) && edx & (1u << 8);
}

int main(void)
{
	const struct timespec interval = { .tv_nsec = INTERVAL_NS };
	struct look begin, end;

	if (!is_invariant() || !kernel_trusts_it()) {
		puts("0");
		return 0;
	}
	begin = take_look();
	do {
		/* time: it is what is measured */
		nanosleep(&interval, NULL);
		end = take_look();
	} while (end.ns - begin.ns < INTERVAL_NS);
	printf("%.0f\n", (end.ticks - begin.ticks) * 1e6 / (end.ns - begin.ns));
	return 0;
}
