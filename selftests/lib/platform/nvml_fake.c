// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * NVML through its own library: libnvidia-ml.so.1, made by this program from its
 * own source, which answers as environment variables tell it, lacks what it should
 * have, or is not there. Each case is a process of its own.
 *
 * FAKE_INIT	what nvmlInit_v2 returns (0)
 * FAKE_PREFIX	of the UUIDs that it knows ("GPU")
 * FAKE_MODE	the addressing mode, "error" is NOT_SUPPORTED (2)
 * FAKE_NODE	the node (0)
 */
#ifdef FAKE_NVML

#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

struct mode {
	unsigned int version;
	unsigned int value;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetAddressingMode(void *device, struct mode *mode);
int nvmlDeviceGetNumaNodeId(void *device, unsigned int *node);

static int running;
static char known[64];

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);

	return text ? atoi(text) : otherwise;
}

#ifndef FAKE_NO_INIT
API int nvmlInit_v2(void)
{
	running++;
	return number("FAKE_INIT", 0);
}
#endif

API int nvmlShutdown(void)
{
	running--;
	/* Once for each, and no more: else nobody notices. */
	if (running)
		abort();
	return 0;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	const char *prefix = getenv("FAKE_PREFIX");

	if (!running)
		return 1;
	strcpy(known, prefix ? prefix : "GPU");
	strcat(known, "-00112233-4455-6677-8899-aabbccddeeff");
	*device = known;
	return strcmp(uuid, known) ? 6 : 0;
}

#ifndef FAKE_OLD
API int nvmlDeviceGetAddressingMode(void *device, struct mode *mode)
{
	const char *text = getenv("FAKE_MODE");

	if (device != known || !running)
		return 2;
	/* As the real one is asked: version 1 of a struct of 8 bytes. */
	if (mode->version != 0x1000008)
		return 25;
	if (text && !strcmp(text, "error"))
		return 3;
	mode->value = number("FAKE_MODE", 2);
	return 0;
}

API int nvmlDeviceGetNumaNodeId(void *device, unsigned int *node)
{
	if (device != known || !running)
		return 2;
	*node = number("FAKE_NODE", 0);
	return 0;
}
#endif

#else /* the test */

#include <dlfcn.h>
#include <sys/wait.h>

#include "fake_library.h"
#include "platform/nvml.h"
#include "tap.h"

static char dir[64];

/* Runs this program again with that library; it prints what the facts are. */
static void says(const char *library, const char *want)
{
	char command[256], line[256] = "";
	FILE *out;

	snprintf(command, sizeof(command), "LD_LIBRARY_PATH=%s/%s %s ask", dir,
		 library, program_invocation_name);
	fflush(stdout);
	out = popen(command, "r");
	need(out, "a process");
	if (!fgets(line, sizeof(line), out))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	ok(!pclose(out) && !strcmp(line, want), "%s: %s", library, line);
}

static int ask(void)
{
	static const unsigned char uuid[16] = {
		0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99,
		0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
	};
	struct hm_platform p;
	struct hm_nvml nvml;
	char reason[48] = "";
	int err;

	hm_platform_init(&p);
	err = hm_nvml_open(&nvml, reason, sizeof(reason));
	if (!err)
		err = hm_nvml_begin(&nvml, reason, sizeof(reason));
	if (err) {
		hm_nvml_missing(&p, reason);
	} else {
		hm_nvml_facts(&nvml, uuid, &p);
		hm_nvml_end(&nvml);
	}
	printf("%s, %s, %s\n", p.facts[HM_FACT_NVML].text,
	       p.facts[HM_FACT_NVML_MODE].text, p.facts[HM_FACT_NVML_NODE].text);
	return 0;
}

static bool compile(const char *name, const char *options)
{
	char all[128];

	snprintf(all, sizeof(all), "-DFAKE_NVML %s", options);
	return fake_library(dir, name, "libnvidia-ml.so.1", __FILE__, all);
}

int main(int argc, char **argv)
{
	char command[256];
	void *real;

	if (argc > 1 && !strcmp(argv[1], "ask"))
		return ask();
	snprintf(dir, sizeof(dir), "/tmp/hetmem-nvml.XXXXXX");
	need(mkdtemp(dir), "a directory");
	need(compile("good", "") && compile("old", "-DFAKE_OLD") &&
	     compile("lacking", "-DFAKE_NO_INIT"), "fake libraries");
	says("good", "yes, ATS, 0");
	setenv("FAKE_MODE", "0", 1);
	setenv("FAKE_NODE", "17", 1);
	says("good", "yes, none, 17");
	setenv("FAKE_MODE", "1", 1);
	setenv("FAKE_NODE", "-1", 1);
	says("good", "yes, HMM, none");
	setenv("FAKE_MODE", "7", 1);
	says("good", "yes, unknown: mode 7, none");
	setenv("FAKE_MODE", "error", 1);
	says("good", "yes, unknown: not supported, none");
	unsetenv("FAKE_MODE");
	unsetenv("FAKE_NODE");
	setenv("FAKE_PREFIX", "MIG", 1);
	says("good", "yes, ATS, 0");
	setenv("FAKE_PREFIX", "ABC", 1);
	says("good", "yes, unknown: no such device, error 6, unknown: no such device, error 6");
	unsetenv("FAKE_PREFIX");
	says("old", "yes, unknown: not supported, unknown: not supported");
	says("lacking", "no, unknown: it lacks nvmlInit_v2, unknown: it lacks nvmlInit_v2");
	setenv("FAKE_INIT", "9", 1);
	says("good", "no, unknown: nvmlInit: error 9, unknown: nvmlInit: error 9");
	setenv("FAKE_INIT", "12", 1);
	says("good", "no, unknown: no libnvidia-ml.so.1, unknown: no libnvidia-ml.so.1");
	snprintf(command, sizeof(command),
		 "mkdir '%s/text' && echo text >'%s/text/libnvidia-ml.so.1'", dir, dir);
	need(!system(command), "a file that is no library");
	says("text", "no, unknown: libnvidia-ml.so.1 cannot be loaded, unknown: libnvidia-ml.so.1 cannot be loaded");
	/* Where the system has one, that is found instead. */
	real = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	if (!real)
		says("none", "no, unknown: no libnvidia-ml.so.1, unknown: no libnvidia-ml.so.1");
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	ok(!system(command), "cleaned up");
	return tap_end();
}

#endif /* FAKE_NVML */
