// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Descriptions of machines for the soft driver: what they may say, files, the older
 * variables beside them, and bad ones, each of which has one clear error.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "platform/machine.h"

static struct hetmem_device_props props_of(struct hetmem *hm, int device)
{
	struct hetmem_device_props props = { .size = sizeof(props) };

	need(!hetmem_device_props(hm, device, &props), "device %d", device);
	return props;
}

static void bad(const char *description, const char *error)
{
	struct hetmem *hm = open_machine(description);

	ok(!hm && strstr(hetmem_last_error(), error) &&
	   strstr(hetmem_last_error(), "HETMEM_SOFT_MACHINE"), "%s: %s", error,
	   hm ? "opens" : hetmem_last_error());
	hetmem_close(hm);
}

static void bad_descriptions(void)
{
	char many[17 * 5 + 1] = "", longer[4000];
	int i;

	bad("gh200", "line 1: \"gh200\": use none, managed, hmm");
	bad("HMM", "\"HMM\": use none");
	bad(";", "describes no device");
	bad("  # nothing\n\n", "describes no device");
	bad("hmm\nats memroy=1G", "line 2: \"memroy\": use memory, node");
	bad("hmm # one\n\n\nats node=x", "line 4: \"node=x\": use a number or none");
	bad("hmm memory", "\"memory\": use NAME=VALUE");
	bad("hmm memory=", "\"memory=\": use NAME=VALUE");
	bad("hmm =1G", "\"=1G\": use NAME=VALUE");
	bad("hmm memory=1X", "\"memory=1X\": use a size like 256M");
	bad("hmm memory=0", "use a size");
	bad("hmm memory=-1M", "use a size");
	bad("hmm memory=99999999999T", "use a size");
	bad("hmm memory=1M memory=2M", "\"memory\" twice");
	bad("ats node=0 node=1", "\"node\" twice");
	bad("ats node=-1", "use a number or none");
	bad("ats node=99999999999", "use a number or none");
	bad("ats node=0x1", "use a number or none");
	bad("hmm host_node=here", "\"driver.host_node=here\": use a number or none");
	bad("hmm host_node=0 driver.host_node=0", "\"driver.host_node\" twice");
	bad("hmm driver.pageable=1", "\"driver.pageable=1\": use yes or no, or fails");
	bad("hmm driver.pageable=yes driver.pageable=no", "\"driver.pageable\" twice");
	bad("hmm driver.wings=yes", "\"driver.wings\": use");
	bad("hmm driverspageable=yes", "\"driverspageable\": use");
	bad("hmm pageable=yes", "\"pageable\": use");
	bad("hmm nvml.addressing=cdmm", "use none, hmm or ats, or fails");
	bad("hmm kernel.node_memory=lots", "use a size like 16G, or fails");
	bad("hmm kernel.node_memory=16777216T", "use a size like 16G, or fails");
	bad("hmm kernel.node_memory=1GX", "use a size like 16G, or fails");
	bad("hmm module.loaded=yes", "\"module.loaded\": use");
	bad("hmm module.device=0", "\"module.device\": use");
	for (i = 0; i < 17; i++)
		strcat(many, "hmm;\n");
	bad(many, "line 17: use at most 16 devices");
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	bad(longer, "line 1: \"xxx");
}

static void good_descriptions(void)
{
	struct hetmem *hm = open_machine("");

	ok(hm && platform_of(hm, 0).kind == HETMEM_PLATFORM_MANAGED &&
	   hetmem_device_count(hm) == 1, "no description: a device as ever");
	hetmem_close(hm);
	hm = open_machine("\n # comment\r\n\thmm   memory=32M #; ats\n ;;none;");
	need(hm, "blanks and comments: %s", hetmem_last_error());
	is(hetmem_device_count(hm), 2, "two devices");
	is(props_of(hm, 0).total, 32 << 20, "of the first's memory");
	is(props_of(hm, 1).total, 256 << 20, "and what is not told");
	is(props_of(hm, 1).platform, HETMEM_PLATFORM_NONE, "the second");
	hetmem_close(hm);
	hm = open_machine("ats node=none host_node=0 driver.integrated=no");
	need(hm, "opens: %s", hetmem_last_error());
	is(platform_of(hm, 0).kind, HETMEM_PLATFORM_CDMM, "ATS without its node is CDMM");
	is(platform_of(hm, 0).host_node, 0, "its nearest node");
	is(props_of(hm, 0).host_node, 0, "in the properties, too");
	hetmem_close(hm);
}

static void variables(void)
{
	struct hetmem *hm;

	setenv("HETMEM_SOFT_MEMORY", "48M", 1);
	setenv("HETMEM_SOFT_DEVICES", "4", 1);
	hm = open_machine("hmm memory=32M; cdmm");
	need(hm, "opens: %s", hetmem_last_error());
	is(hetmem_device_count(hm), 4, "HETMEM_SOFT_DEVICES: the last again and again");
	is(props_of(hm, 0).total, 32 << 20, "the description's memory");
	is(props_of(hm, 3).total, 48 << 20, "HETMEM_SOFT_MEMORY where it tells none");
	ok(platform_of(hm, 0).kind == HETMEM_PLATFORM_HMM &&
	   platform_of(hm, 1).kind == HETMEM_PLATFORM_CDMM &&
	   platform_of(hm, 3).kind == HETMEM_PLATFORM_CDMM, "kinds");
	ok(strcmp(props_of(hm, 2).name, props_of(hm, 3).name), "names of their own: %s",
	   props_of(hm, 3).name);
	hetmem_close(hm);
	setenv("HETMEM_SOFT_DEVICES", "1", 1);
	hm = open_machine("hmm;cdmm");
	is(hetmem_device_count(hm), 1, "fewer than described");
	hetmem_close(hm);
	setenv("HETMEM_SOFT_DEVICES", "0", 1);
	hm = open_machine("hmm");
	is(hetmem_device_count(hm), 0, "none at all");
	hetmem_close(hm);
	setenv("HETMEM_SOFT_DEVICES", "16", 1);
	hm = open_machine("hmm;cdmm");
	is(hetmem_device_count(hm), 16, "as many as can be");
	hetmem_close(hm);
	unsetenv("HETMEM_SOFT_DEVICES");
	unsetenv("HETMEM_SOFT_MEMORY");
}

static void files(void)
{
	char path[] = "/tmp/hetmem-machine-XXXXXX", blanks[70000], dot[64];
	int fd = mkstemp(path);
	struct hetmem *hm;

	need(fd >= 0 && dprintf(fd, "# two\nhmm\ncdmm memory=1G\n") > 0, "a file");
	hm = open_machine(path);
	need(hm, "opens: %s", hetmem_last_error());
	ok(hetmem_device_count(hm) == 2 && props_of(hm, 1).total == 1 << 30,
	   "a description in a file");
	hetmem_close(hm);
	snprintf(dot, sizeof(dot), "../%s", path + 1);
	need(!chdir("/tmp"), "another directory");
	hm = open_machine(dot);
	ok(hm && hetmem_device_count(hm) == 2, "a path that begins with a dot");
	hetmem_close(hm);
	need(dprintf(fd, "ats memory=lots\n") > 0, "more of it");
	hm = open_machine(path);
	ok(!hm && strstr(hetmem_last_error(), path) &&
	   strstr(hetmem_last_error(), "line 4: \"memory=lots\""),
	   "an error names the file: %s", hetmem_last_error());
	hetmem_close(hm);
	need(!ftruncate(fd, 0), "empty");
	hm = open_machine(path);
	ok(!hm && strstr(hetmem_last_error(), "describes no device"),
	   "an empty file: %s", hetmem_last_error());
	need(pwrite(fd, "hmm\0hmm", 7, 0) == 7, "a byte that is no text");
	bad(path, "NUL byte");
	memset(blanks, ' ', sizeof(blanks));
	need(pwrite(fd, blanks, sizeof(blanks), 0) == sizeof(blanks), "much text");
	bad(path, "less than 64 KiB");
	close(fd);
	unlink(path);
	bad(path, "No such file");
	bad("/tmp", "Is a directory");
}

int main(void)
{
	bad_descriptions();
	good_descriptions();
	variables();
	files();
	return tap_end();
}
