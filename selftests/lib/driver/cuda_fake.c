// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Finding the CUDA driver, with libraries of the name libcuda.so.1 that this
 * program makes from its own source: one that works, old ones, ones that
 * lack something, none. Each case is a process of its own, with the
 * library's directory in LD_LIBRARY_PATH, as a library once loaded stays.
 *
 * What the fake does is told by environment variables:
 * FAKE_VERSION	what cuDriverGetVersion says (13000)
 * FAKE_INIT	what cuInit returns (0)
 * FAKE_DEVICES	how many devices (1)
 * FAKE_LACKS	the call that cuGetProcAddress does not find
 * FAKE_NULL	the call that it finds, with a NULL function
 */
#include "driver/calls.h"

#ifdef FAKE_LIBCUDA

#include <stdlib.h>
#include <string.h>

#include "driver/cuda_types.h"

#define API __attribute__((visibility("default")))

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);

	return text ? atoi(text) : otherwise;
}

static int names(const char *variable, const char *call)
{
	const char *text = getenv(variable);

	return text && !strcmp(text, call);
}

API CUresult cuInit(unsigned int flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : number("FAKE_INIT", 0);
}

API CUresult cuDriverGetVersion(int *version)
{
	*version = number("FAKE_VERSION", 13000);
	return *version < 0 ? CUDA_ERROR_STUB_LIBRARY : CUDA_SUCCESS;
}

static CUresult get_error_name(CUresult error, const char **str)
{
	*str = error == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" :
		error == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH ?
		"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : NULL;
	return *str ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_get_count(int *count)
{
	*count = number("FAKE_DEVICES", 1);
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult device_get_name(char *name, int len, CUdevice device)
{
	(void)device;
	strncpy(name, "Fake GPU", len);
	return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute,
				     CUdevice device)
{
	char name[32] = "FAKE_ATTRIBUTE_";
	size_t end = strlen(name);

	(void)device;
	name[end] = '0' + attribute / 100;
	name[end + 1] = '0' + attribute / 10 % 10;
	name[end + 2] = '0' + attribute % 10;
	*value = number(name, 0);
	return CUDA_SUCCESS;
}

static CUresult device_total_mem(size_t *bytes, CUdevice device)
{
	(void)device;
	*bytes = 1 << 30;
	return CUDA_SUCCESS;
}

static CUresult old_call(void)
{
	return CUDA_ERROR_ILLEGAL_STATE;
}

/* As of malloc'd memory. */
static CUresult pointer_get_attributes(void)
{
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult other_call(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

static void *function(const char *base, int version)
{
#define HAS(name, fn) do { if (!strcmp(base, #name)) return (void *)fn; } while (0)
	HAS(cuInit, cuInit);
	HAS(cuDriverGetVersion, cuDriverGetVersion);
	HAS(cuGetErrorName, get_error_name);
	HAS(cuDeviceGetCount, device_get_count);
	HAS(cuDeviceGet, device_get);
	HAS(cuDeviceGetName, device_get_name);
	HAS(cuDeviceGetAttribute, device_get_attribute);
	HAS(cuDeviceTotalMem, device_total_mem);
	HAS(cuPointerGetAttributes, pointer_get_attributes);
#undef HAS
	/* As the real one: the newest ABI up to the version asked for. */
	if (!strcmp(base, "cuMemPrefetchAsync") &&
	    (version < 12020 || number("FAKE_VERSION", 13000) < 12020))
		return (void *)old_call;
	return (void *)other_call;
}

#ifdef FAKE_V1
API CUresult cuGetProcAddress(const char *symbol, void **fn, int version,
			      cuuint64_t flags)
{
	(void)flags;
	*fn = NULL;
	if (names("FAKE_LACKS", symbol))
		return CUDA_ERROR_NOT_FOUND;
	if (!names("FAKE_NULL", symbol))
		*fn = function(symbol, version);
	return CUDA_SUCCESS;
}
#elif !defined(FAKE_V0)
API CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version,
				 cuuint64_t flags,
				 CUdriverProcAddressQueryResult *status)
{
	(void)flags;
	*fn = NULL;
	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (names("FAKE_LACKS", symbol))
		return CUDA_SUCCESS;
	*status = CU_GET_PROC_ADDRESS_SUCCESS;
	if (!names("FAKE_NULL", symbol))
		*fn = function(symbol, version);
	return CUDA_SUCCESS;
}
#else
/* Only exported symbols; what is not among them is lacking. */
API CUresult cuGetErrorName(CUresult error, const char **str)
{
	return get_error_name(error, str);
}

API CUresult cuDeviceGetCount(int *count)
{
	return device_get_count(count);
}
#endif

#else /* the test */

#include <dlfcn.h>
#include <sys/wait.h>

#include "driver/hetmem.h"
#include "fake_library.h"
#include "tap.h"

static char dir[64];
static bool sanitized;

/* Runs this program again as @what, returns its status. */
static int again(const char *self, const char *library, const char *what)
{
	char path[128];
	int status;

	snprintf(path, sizeof(path), "%s/%s", dir, library);
	fflush(stdout);
	if (!fork()) {
		setenv("LD_LIBRARY_PATH", path, 1);
		execl(self, self, what, NULL);
		_exit(99);
	}
	wait(&status);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static char reason[HM_REASON_LEN];

/* The child: tells @what is expected by its exit status, and why not. */
static int expect(bool good, const char *what)
{
	if (!good)
		printf("# not as expected: %s (%s)\n", what, reason);
	fflush(stdout);
	return !good;
}

#define EXPECT(cond) do {						\
	if (expect(cond, #cond))					\
		return 1;						\
} while (0)

static int child(const char *what)
{
	struct hm_driver d;
	int err = hm_cuda_open(&d, reason, sizeof(reason));
	const char *text = getenv("EXPECT_REASON");

	if (!strcmp(what, "fails")) {
		EXPECT(err == -ENODEV);
		EXPECT(strstr(reason, text));
		return 0;
	}
	EXPECT(!err);
	EXPECT(!strcmp(d.name, "cuda"));
	if (!strcmp(what, "works")) {
		EXPECT(strstr(reason, "libcuda.so.1, CUDA "));
#define CALL(member, base, symbol, version, need) EXPECT(d.member);
		HM_DRIVER_CALLS(CALL)
#undef CALL
		/* Each of the two is the one of its own version. */
		EXPECT(d.cuMemPrefetchAsync_v1(0, 0, 0, NULL) ==
		       CUDA_ERROR_ILLEGAL_STATE);
		EXPECT(d.cuMemPrefetchAsync_v2(0, 0, (CUmemLocation){ 0 }, 0,
					       NULL) ==
		       CUDA_ERROR_NOT_SUPPORTED);
	} else if (!strcmp(what, "old")) {
		EXPECT(d.version == 12010);
		EXPECT(d.cuMemPrefetchAsync_v1 && !d.cuMemPrefetchAsync_v2);
		EXPECT(d.cuMemCreate);
	} else {
#define CALL(member, base, symbol, version, need) \
		EXPECT(!d.member == !strcmp(#base, what));
		HM_DRIVER_CALLS(CALL)
#undef CALL
	}
	return 0;
}

/* The child: the verdict as the fake's attributes make it. */
static int props_child(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "cuda", .module_path = "",
	};
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_feature feature;
	struct hetmem *hm;
	char page[4096];

	EXPECT(!hetmem_open(&hm, &params));
	EXPECT(!hetmem_device_props(hm, 0, &props));
	EXPECT(!strcmp(props.name, "Fake GPU"));
	EXPECT(props.total == 1 << 30);
	EXPECT(props.platform == atoi(getenv("EXPECT_PLATFORM")));
	EXPECT(!hetmem_feature(hm, HETMEM_FEATURE_CUDA, &feature));
	EXPECT(feature.available);
	EXPECT(!hetmem_feature(hm, HETMEM_FEATURE_PAGEABLE, &feature));
	EXPECT(feature.available ==
	       (props.platform != HETMEM_PLATFORM_NONE));
	/* Malloc'd memory: to be refused, or the driver's, which fails. */
	if (props.platform == HETMEM_PLATFORM_NONE ||
	    props.platform == HETMEM_PLATFORM_INTEGRATED) {
		EXPECT(!hetmem_prefetch(hm, page, 1,
					HETMEM_LOC(HETMEM_DEVICE, 0), NULL,
					&moved));
		EXPECT(!strcmp(moved.how, "none") && *moved.reason);
	} else {
		EXPECT(hetmem_prefetch(hm, page, 1,
				       HETMEM_LOC(HETMEM_DEVICE, 0), NULL,
				       &moved) == -EIO);
	}
	hetmem_close(hm);
	return 0;
}

/*
 * The child: no usable CUDA is no error, unless it was asked for; there is no
 * device then, which says what to do, and host memory works.
 */
static int open_child(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "cuda", .module_path = "",
	};
	struct hetmem_resource *res;
	struct hetmem_feature feature;
	struct hetmem *hm;
	void *p;

	EXPECT(hetmem_open(&hm, &params) == -ENODEV);
	EXPECT(strstr(hetmem_last_error(), "CUDA_ERROR_NO_DEVICE"));
	params.driver = NULL;
	unsetenv("HETMEM_DRIVER");
	EXPECT(!hetmem_open(&hm, &params));
	EXPECT(!strcmp(hetmem_driver_name(hm), "none"));
	EXPECT(!hetmem_device_count(hm));
	EXPECT(hetmem_resource_create(hm, "device-pool", &res) == -ENODEV);
	EXPECT(strstr(hetmem_last_error(), "HETMEM_DRIVER=soft"));
	EXPECT(strstr(hetmem_last_error(), "CUDA_ERROR_NO_DEVICE"));
	EXPECT(!hetmem_resource_create(hm, "pool(host)", &res));
	EXPECT(!hetmem_alloc(res, 1000, 0, HETMEM_STREAM_HOST, &p));
	EXPECT(!hetmem_free(res, p, 1000, HETMEM_STREAM_HOST));
	EXPECT(!hetmem_resource_destroy(res));
	EXPECT(!hetmem_feature(hm, HETMEM_FEATURE_CUDA, &feature));
	EXPECT(!feature.available);
	EXPECT(strstr(feature.reason, "cuInit: CUDA_ERROR_NO_DEVICE"));
	hetmem_close(hm);
	return 0;
}

/* The child: everything that host memory can do, without a driver. */
static int use_host(struct hetmem *hm, const char *spec)
{
	static hetmem_stream streams[] = {
		HETMEM_STREAM_HOST, NULL, HETMEM_STREAM_LEGACY,
		HETMEM_STREAM_PER_THREAD,
	};
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_segment segment;
	struct hetmem_resource *res;
	void *p, *q;
	size_t i;
	int err;

	EXPECT(!hetmem_resource_create(hm, spec, &res));
	for (i = 0; i < 4; i++) {
		EXPECT(!hetmem_alloc(res, 3000, 0, streams[i], &p));
		EXPECT(!hetmem_alloc(res, 3 << 20, 0, streams[i], &q));
		memset(p, 1, 3000);
		memset(q, 2, 3 << 20);
		EXPECT(!hetmem_record_stream(res, q, streams[3 - i]));
		hetmem_segments(res, q, 5, &segment, 1);
		hetmem_pin_comm(res, q);
		EXPECT(!hetmem_free(res, p, 3000, streams[3 - i]));
		EXPECT(!hetmem_free(res, q, 0, HETMEM_STREAM_UNKNOWN));
		err = hetmem_stream_retire(res, streams[i]);
		EXPECT(!err || streams[i] == HETMEM_STREAM_HOST);
	}
	EXPECT(!strstr(spec, "pool(") || hetmem_alloc(res, 3 << 20, 0,
				(hetmem_stream)&err, &p) == -EINVAL);
	hetmem_capture_begin(res, NULL, 1);
	hetmem_capture_end(res, NULL, 1);
	hetmem_capture_release(res, NULL, 1);
	EXPECT(hetmem_poll(res) != -EFAULT);
	hetmem_trim(res, 0, NULL);
	EXPECT(!hetmem_resource_stats(res, &stats) && !stats.live);
	EXPECT(!hetmem_alloc(res, 5, 0, NULL, &p));
	EXPECT(hetmem_resource_destroy(res) == 1);
	return 0;
}

static int none_child(void)
{
	static const char *const hosts[] = {
		"host", "system", "pool(host)", "pool(system)",
		"stats(pool(host))", "limit(pool(system),max=1G)",
		"log(pool(host),file=/dev/null,full=on)", "guard(pool(host))",
		"retry(pool(host))", "fallback(pool(host),pool(system))",
		"binning(host,pool(host),at=1M)", "align(pool(host),align=4K)",
		"fixed(pool(host),size=4M,count=4)", "guard(system)",
		"unified", "unified(max=1G,wait=0s)",
	};
	static const char *const devices[] = {
		"device", "managed", "async", "pinned", "system(device=0)",
		"pool(vmm)", "pool(device)", "pool(pinned)", "device-pool",
		"unified(device=1)", "unified(over=managed)",
		"fallback(device,host)",
	};
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_params params = {
		.size = sizeof(params), .module_path = "",
	};
	struct hetmem_resource *res;
	struct hetmem_segment segment = { .length = 2 << 20 };
	struct hetmem *hm;
	char page[4096];
	int fd = 0;
	void *p;
	size_t i;

	EXPECT(!hetmem_open(&hm, &params));
	for (i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
		snprintf(reason, sizeof(reason), "%s", hosts[i]);
		if (use_host(hm, hosts[i]))
			return 1;
	}
	for (i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
		snprintf(reason, sizeof(reason), "%s", devices[i]);
		EXPECT(hetmem_resource_create(hm, devices[i], &res) == -ENODEV);
		EXPECT(strstr(hetmem_last_error(), "set HETMEM_DRIVER=soft"));
	}
	EXPECT(!hetmem_resource_current(hm, -1, &res));
	EXPECT(hetmem_resource_current(hm, 0, &res) == -ENODEV);
	EXPECT(!hetmem_torch_alloc(100, 0, NULL));
	EXPECT(hetmem_import(hm, 0, &fd, &segment, 1, &p) < 0);
	EXPECT(hetmem_prefetch(hm, page, 1, HETMEM_LOC(HETMEM_DEVICE, 0), NULL,
			       &moved) == -ENODEV);
	EXPECT(!hetmem_prefetch(hm, page, 1,
				HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY), NULL,
				&moved));
	hetmem_close(hm);
	return 0;
}

static bool compile(const char *name, const char *options)
{
	char all[128];

	snprintf(all, sizeof(all), "-DFAKE_LIBCUDA %s", options);
	return fake_library(dir, name, "libcuda.so.1", __FILE__, all);
}

static void fails(const char *self, const char *library, const char *text)
{
	setenv("EXPECT_REASON", text, 1);
	is(again(self, library, "fails"), 0, "%s: %s", library, text);
}

static void platform(const char *self, int pageable, int host_tables,
		     int numa_config, int numa_id, int want,
		     const char *what)
{
	char text[16];

#define SET(name, value) do {						\
	snprintf(text, sizeof(text), "%d", value);			\
	setenv(name, text, 1);						\
} while (0)
	SET("FAKE_ATTRIBUTE_088", pageable);
	SET("FAKE_ATTRIBUTE_100", host_tables);
	SET("FAKE_ATTRIBUTE_130", numa_config);
	SET("FAKE_ATTRIBUTE_131", numa_id);
	SET("EXPECT_PLATFORM", want);
#undef SET
	is(again(self, "good", "props"), 0, "platform: %s", what);
}

static void run(const char *self)
{
	char command[256];
	void *library;

	need(compile("good", "") && compile("v1", "-DFAKE_V1") &&
	     compile("v0", "-DFAKE_V0") && compile("other", "-DcuInit=x "
	     "-DcuDriverGetVersion=y"), "fake libraries");
	is(again(self, "good", "works"), 0, "a driver with everything");
	is(again(self, "v1", "works"), 0, "by the first cuGetProcAddress");
	setenv("FAKE_VERSION", "12010", 1);
	is(again(self, "good", "old"), 0, "a driver before cuMemPrefetchAsync_v2");
	setenv("FAKE_VERSION", "10020", 1);
	fails(self, "good", "is of CUDA 10.2: 11.0 at least");
	setenv("FAKE_VERSION", "-1", 1);
	fails(self, "good", "error 34 (the toolkit's stub");
	unsetenv("FAKE_VERSION");

#define REQUIRED(base, variable) do {					\
	char lacks[96];							\
									\
	setenv(variable, base, 1);					\
	snprintf(lacks, sizeof(lacks), "lacks %s", base);		\
	fails(self, "good", lacks);					\
} while (0)
#define OPTIONAL(base, variable) do {					\
	setenv(variable, base, 1);					\
	is(again(self, "good", base), 0, "%s %s", variable, base);	\
} while (0)
#define CALL(member, base, symbol, version, need)			\
	if (!sanitized || strstr(#base, "Mem"))				\
		need(#base, "FAKE_LACKS");
	HM_DRIVER_CALLS(CALL)
	unsetenv("FAKE_LACKS");
	OPTIONAL("cuMemCreate", "FAKE_NULL");
	REQUIRED("cuMemAlloc", "FAKE_NULL");
	unsetenv("FAKE_NULL");

	snprintf(command, sizeof(command),
		 "mkdir '%s/text' && echo text >'%s/text/libcuda.so.1'", dir,
		 dir);
	need(!system(command), "a file that is no library");
	fails(self, "text", "libcuda.so.1 cannot be loaded: ");
	/* Where the system has one, that is found instead. */
	library = dlopen("libcuda.so.1", RTLD_LAZY);
	if (!library)
		fails(self, "none", "libcuda.so.1 not found: ");

	fails(self, "v0", "lacks cuDeviceGet");
	fails(self, "other", "lacks cuDriverGetVersion");
	setenv("FAKE_DEVICES", "0", 1);
	fails(self, "good", "has no device");
	unsetenv("FAKE_DEVICES");
	setenv("FAKE_INIT", "100", 1);
	fails(self, "good", "cuInit: CUDA_ERROR_NO_DEVICE");
	is(again(self, "good", "open"), 0, "no device, and what to do");
	unsetenv("HETMEM_DRIVER");
	is(again(self, "good", "none"), 0, "host memory without a driver");
	setenv("FAKE_INIT", "803", 1);
	fails(self, "good", "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
	unsetenv("FAKE_INIT");

	platform(self, 0, 0, 0, 0, HETMEM_PLATFORM_NONE, "none");
	platform(self, 1, 0, 0, 0, HETMEM_PLATFORM_HMM, "HMM");
	platform(self, 1, 1, 1, 0, HETMEM_PLATFORM_ATS, "ATS");
	platform(self, 1, 1, 1, 99, HETMEM_PLATFORM_CDMM,
		   "ATS, but its node is none");
	platform(self, 1, 1, 0, 0, HETMEM_PLATFORM_CDMM, "CDMM");
	setenv("FAKE_ATTRIBUTE_018", "1", 1);
	platform(self, 1, 1, 0, 0, HETMEM_PLATFORM_INTEGRATED, "integrated");
}

int main(int argc, char **argv)
{
	char command[128];

	if (argc > 1 && !strcmp(argv[1], "open"))
		return open_child();
	if (argc > 1 && !strcmp(argv[1], "none"))
		return none_child();
	if (argc > 1 && !strcmp(argv[1], "props"))
		return props_child();
	if (argc > 1)
		return child(argv[1]);
#ifdef __SANITIZE_ADDRESS__
	sanitized = true;
#endif
	snprintf(dir, sizeof(dir), "%s/hetmem-fake.XXXXXX",
		 getenv("TMPDIR") && strlen(getenv("TMPDIR")) < 40 ?
		 getenv("TMPDIR") : "/tmp");
	need(mkdtemp(dir), "a directory");
	run("/proc/self/exe");
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	is(system(command), 0, "cleaned up");
	return tap_end();
}

#endif /* FAKE_LIBCUDA */
