// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * reach WAY: every function of cuda/calls.h, reached in one way, is that of
 * libhetmem-cuda.so. It passes its arguments on, returns the driver's result, and is counted.
 * For the way "linked" the program is linked with libcuda.so.1, for the others it is not.
 *
 * The driver is libcuda.c. Functions that it does not note are only compared.
 */
#include <dlfcn.h>
#include <limits.h>

#include "cuda/calls.h"
#include "cuda/libcuda.h"
#include "lib/tap.h"

typedef CUresult call_fn(long a, long b, long c, long d, long e, long f, long g, long h);

static const char *const names[] = {
#define NAME(name)	#name,
	HM_CUDA_CALLS(NAME, NAME)
#undef NAME
};

#define NR	(sizeof(names) / sizeof(names[0]))

/* Passed functions, which can be called with any arguments. */
static const bool passed[] = {
#define PASSED(name)	true,
#define SERVED(name)	false,
	HM_CUDA_CALLS(PASSED, SERVED)
#undef PASSED
#undef SERVED
};

static struct fake_call (*noted)(void);
/* Whether the driver of the tests only notes the call: others use the arguments. */
static bool (*is_noted)(const char *name);
static uint64_t (*count)(const char *name);

#ifdef LINKED
#define DECLARE(name)	extern char name[];
HM_CUDA_CALLS(DECLARE, DECLARE)
#undef DECLARE

static void *const linked[] = {
#define LINK(name)	name,
	HM_CUDA_CALLS(LINK, LINK)
#undef LINK
};
#else
static void *linked[NR];
#endif

/* Whether @fn is in libhetmem-cuda.so. */
static bool is_ours(void *fn)
{
	Dl_info info;

	return fn && dladdr(fn, &info) && strstr(info.dli_fname, "libhetmem-cuda.so");
}

static bool same_arguments(const struct fake_call *call, const char *name)
{
	static const long want[8] = { 11, -22, 33L << 40, 44, -55, 66, 77L << 33, -88 };

	return call->name && !strcmp(call->name, name) && !memcmp(call->args, want, sizeof(want));
}

/* Calls it twice: the first call can find the function, the second knows it. */
static bool passes(size_t i, call_fn *fn)
{
	const uint64_t before = count(names[i]);
	struct fake_call call;
	CUresult res;
	int times;

	for (times = 0; times < 2; times++) {
		res = fn(11, -22, 33L << 40, 44, -55, 66, 77L << 33, -88);
		call = noted();
		if (res != FAKE_RESULT(i) || !same_arguments(&call, names[i]))
			return false;
	}
	return count(names[i]) == before + 2;
}

static void check_all(void **found, const char *way)
{
	size_t i, ours = 0, there = 0, noted_calls = 0, good = 0;

	for (i = 0; i < NR; i++) {
		call_fn *fn;

		if (!found[i])
			continue;
		there++;
		if (is_ours(found[i]))
			ours++;
		else
			printf("# %s is not replaced\n", names[i]);
		if (!passed[i] || !is_noted(names[i]))
			continue;
		noted_calls++;
		memcpy(&fn, &found[i], sizeof(fn));
		if (passes(i, fn))
			good++;
		else
			printf("# %s: its arguments, result or count are wrong\n", names[i]);
	}
	is(ours, there, "%s: %zu functions are replaced", way, there);
	is(good, noted_calls, "%s: %zu functions pass, and are counted", way, noted_calls);
}

/* By version and form: what a program of @version gets for each base name. */
static void check_get(void *get, bool second, int version, cuuint64_t flags, const char *way)
{
	CUresult (*v1)(const char *, void **, int, cuuint64_t);
	CUresult (*v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	CUdriverProcAddressQueryResult status;
	size_t i, ours = 0, there = 0;
	void *fn;

	memcpy(&v1, &get, sizeof(v1));
	memcpy(&v2, &get, sizeof(v2));
	for (i = 0; i < NR; i++) {
		fn = NULL;
		if (second ? v2(names[i], &fn, version, flags, &status) :
		    v1(names[i], &fn, version, flags))
			continue;
		if (!fn)
			continue;
		there++;
		ours += is_ours(fn);
		if (!is_ours(fn))
			printf("# %s\n", names[i]);
	}
	ok(there > 300 && ours == there, "%s: %zu of %zu functions are replaced", way, ours, there);
	fn = NULL;
	if (second)
		v2("cuMemAlloc", &fn, 99000, flags, &status);
	else
		v1("cuMemAlloc", &fn, 99000, flags);
	ok(fn && !is_ours(fn), "%s: an unknown version is the driver's", way);
}

/* cuParamSetf() has a float, which is in another register. */
static void check_float(void *fn)
{
	CUresult (*set)(long, int, float);
	struct fake_call call;

	memcpy(&set, &fn, sizeof(set));
	set(5, 6, 7.5f);
	call = noted();
	ok(!strcmp(call.name, "cuParamSetf") && call.args[0] == 5 && call.args[1] == 6 &&
	   call.args[2] == 7680, "a float passes");
}

/* The address that a program gets for @name in that way. */
static void *look(const char *way, void *library, const char *name)
{
	void *(*by_version)(void *handle, const char *name);
	void *fn;

	/* libc's own dlsym(), as programs that interpose find it. */
	if (!strcmp(way, "dlvsym")) {
		fn = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
		memcpy(&by_version, &fn, sizeof(fn));
		return by_version(library, name);
	}
	if (!strcmp(way, "default"))
		return dlsym(RTLD_DEFAULT, name);
	if (!strcmp(way, "next"))
		return dlsym(RTLD_NEXT, name);
	return dlsym(library, name);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "linked";
	const char *path = argc > 2 ? argv[2] : "libcuda.so.1";
	void *found[NR] = { 0 }, *library = NULL, *fn;
	size_t i;

	for (i = 1; i < NR && strcmp(names[i - 1], names[i]) < 0; i++)
		;
	is(i, NR, "the functions are in order");
	if (strcmp(way, "linked") && strcmp(way, "next")) {
		ok(!dlsym(RTLD_DEFAULT, "cuInit") && dlerror(),
		   "%s: without the driver there is no cuInit", way);
		library = dlopen(path, RTLD_NOW | (strcmp(way, "default") ? RTLD_LOCAL : RTLD_GLOBAL));
		need(library, "%s: the driver is loaded: %s", way, library ? "" : dlerror());
	} else if (!strcmp(way, "next")) {
		library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	}
	for (i = 0; i < NR; i++)
		found[i] = strcmp(way, "linked") ? look(way, library, names[i]) : linked[i];
	fn = library ? dlsym(library, "fake_last") : dlsym(RTLD_DEFAULT, "fake_last");
	memcpy(&noted, &fn, sizeof(fn));
	need(fn && !is_ours(fn), "%s: a function that is not in the list is the driver's", way);
	fn = library ? dlsym(library, "fake_is_noted") : dlsym(RTLD_DEFAULT, "fake_is_noted");
	memcpy(&is_noted, &fn, sizeof(fn));
	fn = dlsym(RTLD_DEFAULT, "hetmem_cuda_count");
	memcpy(&count, &fn, sizeof(fn));
	need(fn, "%s: the library is there", way);

	check_all(found, way);
	fn = look(!strcmp(way, "linked") ? "default" : way, library, "cuParamSetf");
	check_float(fn);
	fn = look(!strcmp(way, "linked") ? "default" : way, library, "cuGetProcAddress");
	check_get(fn, false, 11040, 0, "cuGetProcAddress");
	fn = look(!strcmp(way, "linked") ? "default" : way, library, "cuGetProcAddress_v2");
	check_get(fn, true, 13000, 0, "cuGetProcAddress_v2");
	check_get(fn, true, 12000, 1, "cuGetProcAddress_v2, legacy stream");
	check_get(fn, true, 12050, 2, "cuGetProcAddress_v2, stream of the thread");
	ok(!look(!strcmp(way, "linked") ? "default" : way, library, "cuNoSuchCall") && dlerror(),
	   "%s: a function that is not there", way);
	ok(!dlvsym(library ? library : RTLD_DEFAULT, "cuInit", "GLIBC_2.2.5") && dlerror(),
	   "%s: functions of the driver have no version", way);
	ok(dlsym(RTLD_NEXT, "strlen") && dlsym(RTLD_DEFAULT, "curl_easy_init") == NULL,
	   "%s: functions of other libraries", way);
	return tap_end();
}
