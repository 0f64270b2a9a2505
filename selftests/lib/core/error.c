// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Texts: locations, reasons, errors; buffers that are too small.
 */
#include "driver/hetmem.h"
#include "tap.h"

static void *other_thread(void *arg)
{
	(void)arg;
	return (void *)hetmem_last_error();
}

/* Its first error needs memory, which ends with the thread. */
static void *failing_thread(void *arg)
{
	hetmem_system_free(NULL, NULL);
	*(bool *)arg = strstr(hetmem_last_error(), "system_free");
	return NULL;
}

/* Pages that the process has mapped. */
static unsigned long mapped(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long pages;

	need(file && fscanf(file, "%lu", &pages) == 1, "/proc/self/statm");
	fclose(file);
	return pages;
}

#define THREADS	200

/* One after the other, so that the stacks are the same ones. */
static void threads_leave_nothing(void)
{
	unsigned long before = 0, after;
	unsigned int i, right = 0;
	pthread_t thread;
	bool told;

	for (i = 0; i < THREADS; i++) {
		need(!pthread_create(&thread, NULL, failing_thread, &told), "a thread");
		pthread_join(thread, NULL);
		right += told;
		if (!i)
			before = mapped();
	}
	is(right, THREADS, "each thread has its error");
	after = mapped();
#ifdef __SANITIZE_THREAD__
	/* Its own memory grows with each thread. */
	after = before;
#endif
	ok(after < before + THREADS / 4, "and leaves nothing: %lu pages, %lu after one", after,
	   before);
}

int main(void)
{
	static const struct {
		uint32_t location;
		const char *name;
	} locations[] = {
		{ HETMEM_LOC(HETMEM_UNKNOWN, 0), "unknown" },
		{ HETMEM_LOC(HETMEM_UNMAPPED, 0), "unmapped" },
		{ HETMEM_LOC(HETMEM_HOST, 0), "host node 0" },
		{ HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY), "host" },
		{ HETMEM_LOC(HETMEM_DEVICE, 3), "device 3" },
		{ HETMEM_LOC(HETMEM_DEVICE, 0x8001), "kernel device 1" },
		{ HETMEM_LOC(HETMEM_FOREIGN, 2), "other driver's device 2" },
		{ HETMEM_LOC(HETMEM_COHERENT, 2), "other driver's coherent device 2" },
		{ HETMEM_LOC(77, 2), "location 0x4d0002" },
	};
	char buf[512], small[8];
	pthread_t thread;
	void *text;
	size_t i, bits;

	for (i = 0; i < sizeof(locations) / sizeof(locations[0]); i++)
		ok(!strcmp(hetmem_location_name(NULL, locations[i].location, buf,
						sizeof(buf)),
			   locations[i].name), "%s", locations[i].name);
	memset(small, 'x', sizeof(small));
	ok(hetmem_location_name(NULL, HETMEM_LOC(HETMEM_HOST, 12), small, 5) ==
	   small && !strcmp(small, "host") && small[5] == 'x',
	   "a small buffer is not overrun");
	hetmem_location_name(NULL, 0, small, 0);
	ok(small[5] == 'x', "none at all neither");

	ok(!*hetmem_why_names(0, buf, sizeof(buf)), "no reason");
	ok(!strcmp(hetmem_why_names(HETMEM_WHY_SWAPPED, buf, sizeof(buf)),
		   "swapped out"), "the last one");
	ok(!strcmp(hetmem_why_names(HETMEM_WHY_FILE | HETMEM_WHY_MLOCKED, buf,
				    sizeof(buf)), "file, mlocked"), "%s", buf);
	ok(!strcmp(hetmem_why_names(1U << 31, buf, sizeof(buf)), "bit 31"),
	   "a reason of a later version");
	hetmem_why_names(~0U, buf, sizeof(buf));
	for (i = 0, bits = 1; buf[i]; i++)
		bits += buf[i] == ',';
	is(bits, 32, "each bit has a name");
	memset(small, 'x', sizeof(small));
	hetmem_why_names(~0U, small, 7);
	ok(strlen(small) == 6 && small[7] == 'x', "in a small buffer: %s",
	   small);

	ok(!strcmp(hetmem_last_error(), "no error"), "no error yet");
	hetmem_system_free(NULL, NULL);
	ok(strstr(hetmem_last_error(), "system_free"), "%s",
	   hetmem_last_error());
	ok(!strchr(hetmem_last_error(), '\n'), "one line");
	need(!pthread_create(&thread, NULL, other_thread, NULL), "a thread");
	pthread_join(thread, &text);
	ok(strcmp(hetmem_last_error(), "no error"),
	   "another thread's error is another's");
	threads_leave_nothing();
	ok(!strcmp(hetmem_driver_name(NULL), ""), "driver of no library");
	return tap_end();
}
