/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem doctor: uses. A use is a thing that a reader comes for: pools, PyTorch, managed
 * memory. The report begins with the uses that work here. `--require` asks for them by their
 * word; nothing else makes doctor's exit status 1.
 */
#include <stdlib.h>
#include <string.h>

#include <hetmem.h>

#include "doctor.h"

#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

/* By enum doctor_use. */
static const struct {
	const char *word, *name, *gives;
} use_table[USE_NR] = {
	[USE_POOLS] = { "pools", "pools", "for C, Python, LD_PRELOAD" },
	[USE_DEVICE] = { "device", "device memory", "for RMM, Numba, UCX" },
	[USE_PYTORCH] = { "pytorch", "PyTorch", "python -m hetmem.torch script.py" },
	[USE_CUPY] = { "cupy", "CuPy", "hetmem.cupy.enable()" },
	[USE_MANAGED] = { "managed", "managed memory", "more memory than the device has" },
	[USE_SLEEP] = { "sleep", "sleep", "to the host and back, with contents" },
	[USE_UNIFIED] = { "unified", "unified memory", "devices use memory of malloc()" },
	[USE_HMM] = { "hmm", "HMM", "pages of malloc() move by faults" },
	[USE_MOVES] = { "moves", "moving memory", "prefetch, pullback of malloc() memory" },
	[USE_MODULE] = { "module", "hetmem.ko", "hints, the location of each page" },
};

/* Users whom the lack of a check concerns, by the begin of its name. */
static const struct {
	const char *name, *whom;
} whom_table[] = {
	{ "CONFIG_", "programs whose malloc() memory moves to a device (HMM)" },
	{ "uvm_disable_hmm", "programs whose malloc() memory moves to a device (HMM)" },
	{ "memory moves", "programs whose malloc() memory moves to a device (HMM)" },
	{ "hetmem", "hints, 'hetmem map' of device pages, 'hetmem tune'" },
	{ "/dev/hetmem", "hints, 'hetmem map' of device pages, 'hetmem tune'" },
	{ "module rules", "hints, 'hetmem map' of device pages, 'hetmem tune'" },
	{ "device ", "programs whose malloc() memory moves to a device (HMM)" },
	{ "NVIDIA module", "every program that uses this GPU" },
	{ "nvidia_uvm", "every program that uses this GPU" },
	{ "libcuda", "every program that uses this GPU" },
};

const char *doctor_whom(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(whom_table); i++)
		if (!strncmp(name, whom_table[i].name, strlen(whom_table[i].name)))
			return whom_table[i].whom;
	return "programs that use a device";
}

const char *doctor_use_name(enum doctor_use use)
{
	return use_table[use].name;
}

const char *doctor_use_gives(const struct doctor *doctor, enum doctor_use use)
{
	return doctor->uses[use].gives ? doctor->uses[use].gives : use_table[use].gives;
}

void doctor_use(struct doctor *doctor, enum doctor_use use, bool works, const char *why)
{
	free(doctor->uses[use].why);
	doctor->uses[use].works = works;
	doctor->uses[use].why = xstrdup(why);
}

/* From files alone: a GPU with its driver. */
static void uses_from_files(struct doctor *doctor, bool moves)
{
	const bool emu = doctor->emu_loaded && doctor->node_usable && doctor->device_private != 0;
	const bool cuda = doctor->gpu && doctor_exists(doctor, "/proc/driver/nvidia/version");
	const bool uvm = cuda && doctor_exists(doctor, "/sys/module/nvidia_uvm");
	const bool hmm = uvm && doctor->gpu_hmm && doctor->device_private != 0;
	const char *files = "as far as files tell";
	const char *none = doctor->gpu ? "the NVIDIA driver is not loaded" : "no NVIDIA GPU here";
	const char *no_uvm = cuda ? "nvidia_uvm is not loaded" : none;
	const char *no_hmm = uvm ? "the kernel or the NVIDIA driver has no HMM" : no_uvm;

	doctor_use(doctor, USE_POOLS, true, cuda ? files : "of host memory");
	doctor_use(doctor, USE_DEVICE, cuda, cuda ? files : none);
	doctor_use(doctor, USE_PYTORCH, uvm, uvm ? files : no_uvm);
	doctor_use(doctor, USE_CUPY, uvm, uvm ? files : no_uvm);
	doctor_use(doctor, USE_MANAGED, uvm, uvm ? files : no_uvm);
	doctor_use(doctor, USE_SLEEP, uvm, uvm ? files : no_uvm);
	doctor_use(doctor, USE_UNIFIED, hmm, hmm ? files : no_hmm);
	doctor_use(doctor, USE_HMM, hmm, hmm ? files : no_hmm);
	doctor_use(doctor, USE_MOVES, moves, moves ? files : emu ? "no device" : no_hmm);
}

/* The first device whose platform is HMM, or -1. */
static int hmm_device(struct hetmem *hm)
{
	struct hetmem_platform p = { .size = sizeof(p) };
	const int nr = hetmem_device_count(hm);
	int i;

	for (i = 0; i < nr; i++)
		if (!hetmem_platform(hm, i, &p) && p.kind == HETMEM_PLATFORM_HMM)
			return i;
	return -1;
}

/* Whether the memory of each device is the host's own: no contents move to the host. */
static bool is_one_memory(struct hetmem *hm)
{
	struct hetmem_platform p = { .size = sizeof(p) };
	const int nr = hetmem_device_count(hm);
	int i;

	for (i = 0; i < nr; i++)
		if (hetmem_platform(hm, i, &p) || p.kind != HETMEM_PLATFORM_INTEGRATED)
			return false;
	return nr;
}

static void use_feature(struct doctor *doctor, struct hetmem *hm, enum doctor_use use,
			enum hetmem_feature_id id)
{
	struct hetmem_feature feature;
	const int err = hetmem_feature(hm, id, &feature);

	doctor_use(doctor, use, !err && feature.available,
		   err ? hetmem_last_error() : feature.reason);
}

static void uses_of_library(struct doctor *doctor, struct hetmem *hm)
{
	const int device = hmm_device(hm);

	use_feature(doctor, hm, USE_DEVICE, HETMEM_FEATURE_DEVICE);
	doctor_use(doctor, USE_POOLS, true, doctor->uses[USE_DEVICE].works ?
		   "of device and host memory" : "of host memory");
	use_feature(doctor, hm, USE_PYTORCH, HETMEM_FEATURE_VMM);
	use_feature(doctor, hm, USE_SLEEP, HETMEM_FEATURE_VMM);
	if (doctor->uses[USE_SLEEP].works && is_one_memory(hm)) {
		doctor_use(doctor, USE_SLEEP, true,
			   "the device and the CPU have one memory");
		doctor->uses[USE_SLEEP].gives = "to a file and back, with park=PATH";
	}
	use_feature(doctor, hm, USE_CUPY, HETMEM_FEATURE_DEVICE);
	use_feature(doctor, hm, USE_MANAGED, HETMEM_FEATURE_MANAGED);
	use_feature(doctor, hm, USE_UNIFIED, HETMEM_FEATURE_PAGEABLE);
	use_feature(doctor, hm, USE_MOVES, HETMEM_FEATURE_MIGRATION);
	if (device >= 0 || !doctor->uses[USE_DEVICE].works)
		doctor_use(doctor, USE_HMM, device >= 0, device < 0 ?
			   doctor->uses[USE_DEVICE].why : "the platform of a device");
	else
		doctor_use(doctor, USE_HMM, false, "the platform of no device is HMM");
}

void doctor_uses(struct doctor *doctor, struct hetmem *hm, bool moves)
{
	size_t i;

	if (hm) {
		uses_of_library(doctor, hm);
	} else if (!doctor->live) {
		uses_from_files(doctor, moves);
	} else {
		for (i = 0; i < USE_NR; i++)
			doctor_use(doctor, i, false, hetmem_last_error());
	}
	doctor_use(doctor, USE_MODULE, doctor->module_loaded && doctor->node_usable,
		   !doctor->module_loaded ? "hetmem.ko is not loaded" :
		   doctor->node_usable ? "loaded" : "/dev/hetmem cannot be used");
}

int doctor_require(struct doctor *doctor, const char *typed)
{
	const char *at = typed, *end;
	char *known = NULL, *longer;
	size_t i;
	int err;

	for (;; at = end + 1) {
		const size_t len = strcspn(at, ",");

		end = at + len;
		for (i = 0; i < USE_NR; i++)
			if (strlen(use_table[i].word) == len && !strncmp(use_table[i].word, at, len))
				break;
		if (i < USE_NR)
			doctor->uses[i].required = true;
		else if (len == 3 && !strncmp(at, "all", 3))
			doctor->require_all = true;
		else
			break;
		if (!*end)
			return 0;
	}
	for (i = 0; i < USE_NR; i++) {
		longer = xasprintf("%s%s, ", known ? known : "", use_table[i].word);
		free(known);
		known = longer;
	}
	err = usage_error("doctor", "--require: '%.*s' is not one of %sall", (int)(end - at), at,
			  known);
	free(known);
	return err;
}

/* One line on stderr for each required use that does not work. */
int doctor_judge(const struct doctor *doctor, int missing)
{
	int status = EXIT_OK;
	size_t i;

	for (i = 0; i < USE_NR; i++)
		if (doctor->uses[i].required && !doctor->uses[i].works)
			status = complain(EXIT_FAILED, "doctor", "required, and does not work: %s: %s",
					  use_table[i].word, doctor->uses[i].why);
	if (doctor->require_all && (missing || !doctor->uses[USE_MOVES].works))
		status = complain(EXIT_FAILED, "doctor", "required, and does not work: all: %d missing",
				  missing);
	return status;
}

#ifdef HAVE_JSON_C
struct json_object *doctor_uses_json(const struct doctor *doctor)
{
	struct json_object *uses = json_object_new_array(), *object;
	size_t i;

	for (i = 0; i < USE_NR; i++) {
		object = json_object_new_object();
		json_object_object_add(object, "use", json_text(use_table[i].word));
		json_object_object_add(object, "name", json_text(use_table[i].name));
		json_object_object_add(object, "works",
				       json_object_new_boolean(doctor->uses[i].works));
		json_object_object_add(object, "required",
				       json_object_new_boolean(doctor->uses[i].required));
		json_object_object_add(object, "why", json_text(doctor->uses[i].why));
		json_object_array_add(uses, object);
	}
	return uses;
}
#endif
