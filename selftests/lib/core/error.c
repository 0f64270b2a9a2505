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
	ok(!strcmp(hetmem_why_names(HETMEM_WHY_LARGE_FOLIO, buf, sizeof(buf)),
		   "large folio"), "the last one");
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
	ok(!strcmp(hetmem_driver_name(NULL), ""), "driver of no library");
	return tap_end();
}
