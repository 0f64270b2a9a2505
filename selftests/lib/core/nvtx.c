// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * NVTX ranges: this program compiles itself into profilers, which log what they are told, and
 * runs a program of slow paths with each. Where NVTX's own headers are installed, the
 * declarations of lib/core/nvtx.c work with a profiler that is compiled with them.
 *
 * FAKE_LOG	the file of the log
 * FAKE_REFUSE	the profiler refuses to start
 * FAKE_GLOBAL	a library of the program's own
 * FAKE_LIBRARY	the profiler, to ask whether it saw a wait
 */
#ifdef FAKE_NVTX

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

#ifdef FAKE_HEADERS
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
typedef nvtxEventAttributes_t event;
typedef nvtxDomainHandle_t handle;
#define NAME(e)		((e)->message.ascii)
#define PAYLOAD(e)	((e)->payload.ullValue)
#define IS_ASCII(e)	((e)->messageType == NVTX_MESSAGE_TYPE_ASCII && \
			 (e)->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64)
#define SLOT_CREATE	NVTX_CBID_CORE2_DomainCreateA
#define SLOT_PUSH	NVTX_CBID_CORE2_DomainRangePushEx
#define SLOT_POP	NVTX_CBID_CORE2_DomainRangePop
#define NR_CORE2	NVTX_CBID_CORE2_SIZE
#define CORE2		NVTX_CB_MODULE_CORE2
#else
typedef void *handle;
typedef struct {
	uint16_t version, size;
	uint32_t category;
	int32_t color_type;
	uint32_t color;
	int32_t payload_type, reserved;
	uint64_t payload;
	int32_t message_type;
	const char *message;
} event;
#define NAME(e)		((e)->message)
#define PAYLOAD(e)	((e)->payload)
#define IS_ASCII(e)	((e)->message_type == 1 && (e)->payload_type == 1)
#define SLOT_CREATE	12
#define SLOT_PUSH	4
#define SLOT_POP	5
#define NR_CORE2	16
#define CORE2		5
#endif

API int fake_waits;

static FILE *out;
static char domains[4];

API handle nvtxDomainCreateA(const char *name);
API int nvtxDomainRangePushEx(handle domain, const event *e);
API int nvtxDomainRangePop(handle domain);

API handle nvtxDomainCreateA(const char *name)
{
	out = fopen(getenv("FAKE_LOG"), "a");
	setvbuf(out, NULL, _IOLBF, 0);
	fprintf(out, "domain %s\n", name);
	return (handle)domains;
}

API int nvtxDomainRangePushEx(handle domain, const event *e)
{
	fprintf(out, "push %s %llu %d %d\n", NAME(e), (unsigned long long)PAYLOAD(e),
		domain == (handle)domains && IS_ASCII(e) && e->size == sizeof(*e), e->version);
	if (!strcmp(NAME(e), "wait"))
		__atomic_store_n(&fake_waits, 1, __ATOMIC_RELEASE);
	return 0;
}

API int nvtxDomainRangePop(handle domain)
{
	fprintf(out, "pop %d\n", domain == (handle)domains);
	return 0;
}

#ifndef FAKE_OLD
typedef const void *(*get_table)(uint32_t id);
typedef void (*function)(void);
struct callbacks {
	size_t size;
	int (*get_module)(int module, function ***table, unsigned int *size);
};
struct info {
	size_t size;
	uint32_t version, reserved;
	void (*set_version)(uint32_t version);
};

#ifdef FAKE_HEADERS
_Static_assert(sizeof(struct callbacks) == sizeof(NvtxExportTableCallbacks), "callbacks");
_Static_assert(sizeof(struct info) == sizeof(NvtxExportTableVersionInfo), "version");
_Static_assert(NVTX_ETID_CALLBACKS == 1 && NVTX_ETID_VERSIONINFO == 3, "tables");
#endif

int InitializeInjectionNvtx2(get_table get);

#ifndef FAKE_NO_ENTRY
#ifndef FAKE_LINKED
API
#endif
int InitializeInjectionNvtx2(get_table get)
{
	const struct callbacks *callbacks = get(1);
	const struct info *info = get(3);
	unsigned int size, module, i;
	function **table;

	if (getenv("FAKE_REFUSE"))
		return 0;
	/* What is not there is no table. */
	if (get(0) || get(2) || get(4) || callbacks->size != sizeof(*callbacks) ||
	    info->size != sizeof(*info) || info->version != 3 ||
	    callbacks->get_module(0, &table, &size) || callbacks->get_module(7, &table, &size))
		return 0;
	info->set_version(3);
	for (module = 1; module < 7; module++) {
		if (!callbacks->get_module(module, &table, &size) || size < 7 || table[0] || table[size])
			return 0;
		for (i = 1; i < size; i++)
			*table[i] = NULL;
	}
	if (!callbacks->get_module(CORE2, &table, &size) || size != NR_CORE2)
		return 0;
#ifndef FAKE_NO_RANGES
	*table[SLOT_CREATE] = (function)nvtxDomainCreateA;
	*table[SLOT_PUSH] = (function)nvtxDomainRangePushEx;
	*table[SLOT_POP] = (function)nvtxDomainRangePop;
#endif
	return 1;
}
#endif
#ifdef FAKE_LINKED
API int (*InitializeInjectionNvtx2_fnptr)(get_table get) = InitializeInjectionNvtx2;
#endif
#endif /* FAKE_OLD */

#else /* the test */

#include <glob.h>

#include "core/nvtx.h"
#include "fake_library.h"
#include "soft_driver.h"
#include "wait.h"

#define MIB ((size_t)1 << 20)

static char dir[64];

/* The program of slow paths. */

static int *waits;

static void stay(void *arg)
{
	(void)arg;
	need(wait_until(!waits || __atomic_load_n(waits, __ATOMIC_ACQUIRE)), "the host waits");
}

static struct hetmem_resource *make(const char *spec)
{
	struct hetmem_resource *res;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
	return res;
}

static void *get(struct hetmem_resource *res, size_t size, unsigned int flags, hetmem_stream stream)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = stream, .flags = flags,
	};
	void *p;

	need(!hetmem_alloc_with(res, &params, &p), "alloc: %s", hetmem_last_error());
	return p;
}

static void wait_for_a_stream(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=8M)");
	CUstream s;
	void *p;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	p = get(res, 8 * MIB, 0, s);
	need(!drv->cuLaunchHostFunc(s, stay, NULL), "work");
	need(!hetmem_free(res, p, 8 * MIB, s), "a free");
	p = get(res, 8 * MIB, 0, HETMEM_STREAM_HOST);
	hetmem_free(res, p, 8 * MIB, HETMEM_STREAM_HOST);
	need(!hetmem_stream_retire(res, s) && !drv->cuStreamDestroy(s), "the stream's end");
	hetmem_resource_destroy(res);
}

static int work(void)
{
	struct hetmem_resource *res;
	void *p[4], *system;
	const char *why;
	int i;

	if (getenv("FAKE_GLOBAL"))
		need(dlopen(getenv("FAKE_GLOBAL"), RTLD_NOW | RTLD_GLOBAL), "a profiler of the program");
	open_soft(NULL);
	if (hm_nvtx_source(&why))
		waits = dlsym(getenv("FAKE_LIBRARY") ? dlopen(getenv("FAKE_LIBRARY"), RTLD_LAZY) :
			      RTLD_DEFAULT, "fake_waits");
	printf("%s\n", hm_nvtx_source(&why) ? hm_nvtx_source(&why) : why);
	res = make("pool(vmm,max=12M,spill=64M,tag=t)");
	for (i = 0; i < 4; i++)
		p[i] = get(res, 4 * MIB, HETMEM_ALLOC_MOVABLE, HETMEM_STREAM_HOST);
	hetmem_free(res, p[3], 4 * MIB, HETMEM_STREAM_HOST);
	need(!hetmem_fetch(res, p[0]), "fetch: %s", hetmem_last_error());
	for (i = 0; i < 3; i++)
		hetmem_free(res, p[i], 4 * MIB, HETMEM_STREAM_HOST);
	need(!hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP) && !hetmem_wake(res, "t"), "sleep: %s",
	     hetmem_last_error());
	need(!hetmem_trim(res, 0, NULL), "trim: %s", hetmem_last_error());
	/* A cached pair has no range. */
	p[0] = get(res, 777, 0, HETMEM_STREAM_HOST);
	for (i = 0; i < 100; i++) {
		hetmem_free(res, p[0], 777, HETMEM_STREAM_HOST);
		p[0] = get(res, 777, 0, HETMEM_STREAM_HOST);
	}
	hetmem_free(res, p[0], 777, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(res);
	need(!hetmem_system_alloc(hm, 3 * MIB, &system), "system memory");
	hetmem_prefetch(hm, system, 3 * MIB, HETMEM_LOC(HETMEM_DEVICE, 0), NULL, NULL);
	hetmem_prefetch(hm, system, 3 * MIB, HETMEM_LOC(HETMEM_HOST, 0), NULL, NULL);
	hetmem_system_free(hm, system);
	if (waits)
		wait_for_a_stream();
	close_soft();
	return 0;
}

/* The log of a profiler. */

static char names[4096];
static unsigned int nr_pushed;

/* Whether each range has the right form and ends, and fills @names. */
static bool read_log(const char *path, int version)
{
	char line[256], name[64];
	int right, of, depth = 0, nr_domains = 0;
	FILE *in = fopen(path, "r");
	unsigned long long bytes;
	bool good = in;

	names[0] = '\0';
	nr_pushed = 0;
	while (in && fgets(line, sizeof(line), in)) {
		if (sscanf(line, "push %63[a-z ]%llu %d %d", name, &bytes, &right, &of) == 4) {
			good &= right == 1 && of == version;
			depth++;
			nr_pushed++;
			if (strlen(names) + strlen(name) + 40 < sizeof(names))
				sprintf(names + strlen(names), "%s%llu\n", name, bytes);
		} else if (sscanf(line, "pop %d", &right) == 1) {
			good &= right == 1 && depth > 0;
			depth--;
		} else {
			good &= !strcmp(line, "domain hetmem\n");
			nr_domains++;
		}
	}
	if (in)
		fclose(in);
	return good && !depth && nr_domains == 1;
}

/* Runs the program with @environment: it prints @source, and logs if @version is not 0. */
static void run(const char *what, const char *environment, const char *source, int version)
{
	char command[1024], line[256] = "", log[128];
	FILE *out;

	snprintf(log, sizeof(log), "%s/log", dir);
	unlink(log);
	snprintf(command, sizeof(command), "env FAKE_LOG=%s %s %s work", log, environment,
		 program_invocation_name);
	fflush(stdout);
	out = popen(command, "r");
	need(out, "a process");
	if (!fgets(line, sizeof(line), out))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	is(pclose(out), 0, "%s: the program ends well", what);
	ok(!strcmp(line, source), "%s: %s", what, line);
	if (!version) {
		ok(access(log, F_OK) || !nr_pushed, "%s: no ranges", what);
		return;
	}
	ok(read_log(log, version), "%s: each range is right and ends", what);
	ok(nr_pushed < 80, "%s: cached allocations have none: %u", what, nr_pushed);
}

static void all_of(const char *what)
{
	static const struct {
		const char *name;
		unsigned int bytes;
	} ranges[] = {
		{ "alloc", 4 * MIB }, { "grow", 4 * MIB }, { "spill", 0 }, { "fetch", 0 }, { "sleep", 0 },
		{ "wake", 0 }, { "trim", 0 }, { "to device", 3 * MIB }, { "to host", 3 * MIB }, { "wait", 0 },
	};
	char line[64];
	size_t i;

	for (i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		snprintf(line, sizeof(line), "%s %u\n", ranges[i].name, ranges[i].bytes);
		ok(strstr(names, line), "%s: %s, %u bytes", what, ranges[i].name, ranges[i].bytes);
	}
}

static bool compile(const char *name, const char *library, const char *options)
{
	char all[256];

	snprintf(all, sizeof(all), "-DFAKE_NVTX %s", options);
	return fake_library(dir, name, library, __FILE__, all);
}

static void injected(const char *name, const char *source, int version)
{
	char environment[512];

	snprintf(environment, sizeof(environment),
		 "HETMEM_NVTX=1 NVTX_INJECTION64_PATH=%s/%s/tool.so FAKE_LIBRARY=%s/%s/tool.so", dir,
		 name, dir, name);
	run(name, environment, source, version);
}

/* NVTX's own headers, where CUDA or a package of PyPI has them. */
static void with_headers(void)
{
	char options[128];
	glob_t found;

	if (glob("/usr/local/cuda*/include/nvtx3", 0, NULL, &found))
		return;
	snprintf(options, sizeof(options), "-DFAKE_HEADERS -isystem %.*s",
		 (int)(strlen(found.gl_pathv[0]) - strlen("/nvtx3")), found.gl_pathv[0]);
	need(compile("headers", "tool.so", options), "a profiler with NVTX's headers");
	injected("headers", "NVTX_INJECTION64_PATH", 3);
	all_of("headers");
	globfree(&found);
}

int main(int argc, char **argv)
{
	char text[512];
	void *real;

	if (argc > 1 && !strcmp(argv[1], "work"))
		return work();
	snprintf(dir, sizeof(dir), "/tmp/hetmem-nvtx.XXXXXX");
	need(mkdtemp(dir), "a directory");
	need(compile("good", "tool.so", "") && compile("lacks", "tool.so", "-DFAKE_NO_ENTRY") &&
	     compile("mute", "tool.so", "-DFAKE_NO_RANGES") &&
	     compile("linked", "tool.so", "-DFAKE_LINKED") &&
	     compile("old", "libnvToolsExt.so.1", "-DFAKE_OLD"), "profilers");
	injected("good", "NVTX_INJECTION64_PATH", 3);
	all_of("good");
	snprintf(text, sizeof(text), "HETMEM_NVTX=0 NVTX_INJECTION64_PATH=%s/good/tool.so", dir);
	run("off", text, "HETMEM_NVTX is not 1", 0);
	snprintf(text, sizeof(text), "HETMEM_NVTX= NVTX_INJECTION64_PATH=%s/good/tool.so", dir);
	run("empty", text, "HETMEM_NVTX is not 1", 0);
	setenv("FAKE_REFUSE", "1", 1);
	injected("good", "the profiler refused", 0);
	unsetenv("FAKE_REFUSE");
	injected("lacks", "the library in NVTX_INJECTION64_PATH is no profiler's", 0);
	injected("mute", "the profiler takes no ranges of domains", 0);
	run("none", "HETMEM_NVTX=1 NVTX_INJECTION64_PATH=/nonexistent",
	    "the library in NVTX_INJECTION64_PATH cannot be loaded", 0);
	snprintf(text, sizeof(text), "HETMEM_NVTX=1 FAKE_GLOBAL=%s/linked/tool.so", dir);
	run("linked", text, "a profiler that is linked in", 3);
	all_of("linked");
	snprintf(text, sizeof(text), "HETMEM_NVTX=1 LD_LIBRARY_PATH=%s/old FAKE_LIBRARY=%s/old/libnvToolsExt.so.1",
		 dir, dir);
	run("old", text, "libnvToolsExt.so.1", 2);
	all_of("old");
	/* Where the system has one, that is found instead. */
	real = dlopen("libnvToolsExt.so.1", RTLD_LAZY);
	if (!real)
		run("no profiler", "HETMEM_NVTX=1", "no profiler: NVTX_INJECTION64_PATH is not set", 0);
	with_headers();
	snprintf(text, sizeof(text), "rm -rf '%s'", dir);
	ok(!system(text), "cleaned up");
	return tap_end();
}

#endif /* FAKE_NVTX */
