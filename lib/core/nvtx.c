/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The client side of NVTX 3, which is an interface between processes and profilers without a
 * library between them. A profiler sets NVTX_INJECTION64_PATH to a library of its own. This
 * unit loads it and calls InitializeInjectionNvtx2(), which asks for tables of slots and
 * stores its functions in them. A program that is linked with a profiler has the function in
 * InitializeInjectionNvtx2_fnptr instead. Without either, libnvToolsExt.so.1 (NVTX 2) is
 * taken where it is installed.
 *
 * A profiler may store into its slots at any time, so each is read once for each call. The
 * library of a profiler is never unloaded.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/nvtx.h"

#define DOMAIN		"hetmem"
#define OLD_LIBRARY	"libnvToolsExt.so.1"

/* As in nvToolsExt.h and nvtxTypes.h. */
#define VERSION			3
#define PAYLOAD_UNSIGNED_64	1
#define MESSAGE_ASCII		1
#define TABLE_CALLBACKS		1
#define TABLE_VERSION		3

struct attributes {
	uint16_t version;
	uint16_t size;
	uint32_t category;
	int32_t color_type;
	uint32_t color;
	int32_t payload_type;
	int32_t reserved;
	uint64_t payload;
	int32_t message_type;
	const char *message;
};

enum module { CORE = 1, CUDA, OPENCL, CUDART, CORE2, SYNC, NR_MODULES };
enum core2 { RANGE_PUSH_EX = 4, RANGE_POP = 5, DOMAIN_CREATE = 12 };

/* Slots of each module, the unused first one too. */
static const unsigned int nr_slots[NR_MODULES] = {
	[CORE] = 16, [CUDA] = 9, [OPENCL] = 15, [CUDART] = 7, [CORE2] = 16, [SYNC] = 7,
};

#define MOST_SLOTS	16

typedef void (*slot)(void);
typedef void *(*create_function)(const char *name);
typedef int (*push_function)(void *domain, const struct attributes *attributes);
typedef int (*pop_function)(void *domain);

bool hm_nvtx_on;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
	const char *source;
	const char *why;
	void *domain;
	uint16_t version;
	slot slots[NR_MODULES][MOST_SLOTS];
	/* A NULL ends each, so that a profiler that reads past the end finds it. */
	slot *tables[NR_MODULES][MOST_SLOTS + 1];
} nvtx;

static int get_module(int module, slot ***table, unsigned int *size)
{
	unsigned int i;

	if (module < CORE || module >= NR_MODULES)
		return 0;
	for (i = 1; i < nr_slots[module]; i++)
		nvtx.tables[module][i] = &nvtx.slots[module][i];
	if (table)
		*table = nvtx.tables[module];
	if (size)
		*size = nr_slots[module];
	return 1;
}

static void set_version(uint32_t version)
{
	(void)version;
}

static const void *get_table(uint32_t id)
{
	static const struct {
		size_t size;
		int (*get_module)(int module, slot ***table, unsigned int *size);
	} callbacks = { sizeof(callbacks), get_module };
	static const struct {
		size_t size;
		uint32_t version;
		uint32_t reserved;
		void (*set_version)(uint32_t version);
	} info = { sizeof(info), VERSION, 0, set_version };

	if (id == TABLE_CALLBACKS)
		return &callbacks;
	return id == TABLE_VERSION ? &info : NULL;
}

typedef int (*initialize_function)(const void *(*get_table)(uint32_t id));

static slot function(enum core2 id)
{
	return __atomic_load_n(&nvtx.slots[CORE2][id], __ATOMIC_ACQUIRE);
}

static const char *attach(initialize_function initialize)
{
	if (!initialize(get_table))
		return "the profiler refused";
	nvtx.version = VERSION;
	return NULL;
}

/* NULL, or the reason. */
static const char *from_injection(const char *path)
{
	void *library = dlopen(path, RTLD_LAZY);
	initialize_function initialize;
	const char *why;

	if (!library)
		return "the library in NVTX_INJECTION64_PATH cannot be loaded";
	initialize = (initialize_function)dlsym(library, "InitializeInjectionNvtx2");
	why = initialize ? attach(initialize) : "the library in NVTX_INJECTION64_PATH is no profiler's";
	if (why)
		dlclose(library);
	return why;
}

static const char *from_old(void)
{
	static const struct {
		enum core2 id;
		const char *name;
	} functions[] = {
		{ DOMAIN_CREATE, "nvtxDomainCreateA" },
		{ RANGE_PUSH_EX, "nvtxDomainRangePushEx" },
		{ RANGE_POP, "nvtxDomainRangePop" },
	};
	void *library = dlopen(OLD_LIBRARY, RTLD_LAZY);
	size_t i;

	if (!library)
		return "no profiler: NVTX_INJECTION64_PATH is not set";
	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		nvtx.slots[CORE2][functions[i].id] = (slot)dlsym(library, functions[i].name);
	nvtx.version = 2;
	return NULL;
}

static void find(void)
{
	const char *wanted = secure_getenv("HETMEM_NVTX"), *path;
	const initialize_function *linked;
	create_function create;

	if (!wanted || strcmp(wanted, "1")) {
		nvtx.why = "HETMEM_NVTX is not 1";
		return;
	}
	path = secure_getenv("NVTX_INJECTION64_PATH");
	linked = dlsym(RTLD_DEFAULT, "InitializeInjectionNvtx2_fnptr");
	if (path) {
		nvtx.source = "NVTX_INJECTION64_PATH";
		nvtx.why = from_injection(path);
	} else if (linked && *linked) {
		nvtx.source = "a profiler that is linked in";
		nvtx.why = attach(*linked);
	} else {
		nvtx.source = OLD_LIBRARY;
		nvtx.why = from_old();
	}
	if (!nvtx.why && (!function(RANGE_PUSH_EX) || !function(RANGE_POP)))
		nvtx.why = "the profiler takes no ranges of domains";
	if (nvtx.why)
		return;
	create = (create_function)function(DOMAIN_CREATE);
	nvtx.domain = create ? create(DOMAIN) : NULL;
	__atomic_store_n(&hm_nvtx_on, true, __ATOMIC_RELEASE);
}

void hm_nvtx_open(void)
{
	pthread_once(&once, find);
}

const char *hm_nvtx_source(const char **why)
{
	hm_nvtx_open();
	*why = nvtx.why;
	return nvtx.why ? NULL : nvtx.source;
}

void hm_nvtx_push(const char *name, uint64_t bytes)
{
	const push_function push = (push_function)function(RANGE_PUSH_EX);
	const struct attributes attributes = {
		.version = nvtx.version, .size = sizeof(attributes),
		.payload_type = PAYLOAD_UNSIGNED_64, .payload = bytes,
		.message_type = MESSAGE_ASCII, .message = name,
	};

	if (push)
		push(nvtx.domain, &attributes);
}

void hm_nvtx_pop(void)
{
	const pop_function pop = (pop_function)function(RANGE_POP);

	if (pop)
		pop(nvtx.domain);
}
