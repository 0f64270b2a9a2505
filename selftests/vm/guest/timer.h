/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Compares the guest's clock with the host's. A guest that lost its processor while it
 * calibrated its time stamp counter has a clock that runs up to 21 times as fast, until
 * the kernel's watchdog notices. Nothing that such a guest reports can be trusted.
 *
 * The ACPI PM timer and the real-time clock of the machine are the host's clock: qemu
 * computes both when they are read. The first is exact and wraps every 4.7 s, the second
 * counts those wraps.
 */
#ifndef TIMER_H
#define TIMER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/io.h>
#include <time.h>
#include <unistd.h>

/* Where qemu's machine "pc" has them. */
#define PM_PORT		0x608
#define PM_FREQUENCY	3579545LL
#define PM_WRAP		(1 << 24)
#define RTC_INDEX	0x70
#define RTC_DATA	0x71
/* 0.1 ms: a look this tight is tight enough. */
#define PM_TIGHT	(PM_FREQUENCY / 10000)

struct look {
	int64_t guest_us;	/* CLOCK_MONOTONIC */
	int64_t rtc;		/* seconds */
	uint32_t pm, width;	/* ticks of the PM timer */
};

static int rtc_value(int index)
{
	int bcd;

	outb(index, RTC_INDEX);
	bcd = inb(RTC_DATA);
	return (bcd >> 4) * 10 + (bcd & 15);
}

static int64_t rtc_once(void)
{
	struct tm tm = { 0 };

	tm.tm_sec = rtc_value(0);
	tm.tm_min = rtc_value(2);
	tm.tm_hour = rtc_value(4);
	tm.tm_mday = rtc_value(7);
	tm.tm_mon = rtc_value(8) - 1;
	tm.tm_year = rtc_value(9) + 100;
	return timegm(&tm);
}

/* Reads until two times are the same: the clock may be counting. */
static int64_t rtc_seconds(void)
{
	int64_t last, now = -1;

	do {
		last = now;
		now = rtc_once();
	} while (now != last);
	return now;
}

static uint32_t pm_ticks(void)
{
	return inl(PM_PORT) & (PM_WRAP - 1);
}

static uint32_t pm_between(uint32_t begin, uint32_t end)
{
	return (end - begin) & (PM_WRAP - 1);
}

/*
 * All clocks at one moment. The guest can lose its processor between any two reads, so the
 * tightest of several tries counts. Returns false if the machine has no such timer.
 */
static bool take_look(struct look *best)
{
	uint32_t first, before, after;
	struct timespec ts;
	struct look look;
	int64_t rtc;
	int i;

	if (ioperm(PM_PORT, 4, 1) || ioperm(RTC_INDEX, 2, 1) || inl(PM_PORT) == UINT32_MAX)
		return false;
	best->width = UINT32_MAX;
	for (i = 0; best->width == UINT32_MAX || (i < 200 && best->width > PM_TIGHT); i++) {
		first = pm_ticks();
		rtc = rtc_seconds();
		before = pm_ticks();
		clock_gettime(CLOCK_MONOTONIC, &ts);
		after = pm_ticks();
		look.rtc = rtc_seconds();
		/* Read within half a second, the two clocks count the same wraps. */
		if (pm_between(first, after) > PM_FREQUENCY / 2 || look.rtc - rtc > 1)
			continue;
		look.guest_us = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
		look.width = pm_between(before, after);
		look.pm = (before + look.width / 2) & (PM_WRAP - 1);
		if (look.width < best->width)
			*best = look;
	}
	return true;
}

/* Microseconds of the host between two looks. */
static int64_t host_us(const struct look *begin, const struct look *end)
{
	int64_t ticks = pm_between(begin->pm, end->pm);
	int64_t rest = (end->rtc - begin->rtc) * PM_FREQUENCY - ticks;

	if (rest > 0)
		ticks += (rest + PM_WRAP / 2) / PM_WRAP * PM_WRAP;
	return ticks * 1000000 / PM_FREQUENCY;
}

/* True if the guest's clock agrees with the host's, 5% and the looks' own errors aside. */
static bool clocks_agree(const struct look *begin, const struct look *end)
{
	int64_t host = host_us(begin, end), guest = end->guest_us - begin->guest_us;
	int64_t error = (begin->width + end->width) * 1000000LL / PM_FREQUENCY + 1000;

	return (guest > host ? guest - host : host - guest) <= host / 20 + error;
}

#endif
