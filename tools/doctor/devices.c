/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: devices as the library sees them, and the verdict. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetmem.h>

#include "core/nvtx.h"
#include "doctor.h"

#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

/* What a verdict means for memory that the program has already. */
static const char *kind_text(int kind)
{
	switch (kind) {
	case HETMEM_PLATFORM_MANAGED:
		return "memory of cudaMallocManaged moves, malloc's does not";
	case HETMEM_PLATFORM_HMM:
		return "it uses all memory, pages move by faults";
	case HETMEM_PLATFORM_ATS:
		return "it uses all memory, its own is a NUMA node";
	case HETMEM_PLATFORM_CDMM:
		return "it uses all memory, its own is no NUMA node and takes managed memory only";
	case HETMEM_PLATFORM_INTEGRATED:
		return "it and the CPU have one memory";
	default:
		return "it shares no memory with the CPU at the same time";
	}
}

/* Why a GPU does not reach ordinary memory, as far as earlier checks know. */
static const char *why_none(const struct doctor *doctor)
{
	if (doctor->device_private == 0)
		return "HMM needs CONFIG_DEVICE_PRIVATE";
	if (doctor->gpu && !doctor->gpu_hmm)
		return "the NVIDIA driver is proprietary, old, or has HMM disabled, see above";
	return NULL;
}

/* A line for each source of evidence: what it said, piece by piece. */
static void report_evidence(struct doctor *doctor, struct hetmem *hm, int device)
{
	struct hetmem_evidence e = { .size = sizeof(e) };
	const char *source = NULL;
	char *text = NULL, *longer, *name;
	unsigned int i;
	int err;

	for (i = 0;; i++) {
		err = hetmem_evidence(hm, device, i, &e);
		if (source && (err || strcmp(source, e.source))) {
			name = xasprintf("device %d: %s", device, source);
			doctor_report(doctor, CHECK_NOTE, name, NULL, "%s", text);
			free(name);
			free(text);
			text = NULL;
		}
		if (err)
			return;
		source = e.source;
		longer = xasprintf("%s%s%s %s", text ? text : "",
				   text ? ", " : "", e.what, e.value);
		free(text);
		text = longer;
	}
}

static void report_contradictions(struct doctor *doctor, struct hetmem *hm,
				  int device)
{
	char *name = xasprintf("device %d: contradiction", device);
	const char *line;
	unsigned int i;

	for (i = 0; (line = hetmem_contradiction(hm, device, i)); i++) {
		doctor_report(doctor, CHECK_NOTE, name, NULL, "%s", line);
		doctor_show(doctor);
	}
	free(name);
}

/* What is left of the memory of @device, -1 the host's: the least, and each figure. */
static void report_memory(struct doctor *doctor, struct hetmem *hm, int device)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };
	char *name = device < 0 ? xstrdup("host: memory") :
		xasprintf("device %d: memory", device);
	char *text, *longer;
	int i, err;

	err = hetmem_memory_info(hm, device, &info);
	if (err || info.least < 0) {
		doctor_report(doctor, CHECK_NOTE, name, NULL, "%s", err ?
			      hetmem_last_error() : "nobody tells how much is left");
		free(name);
		return;
	}
	text = xasprintf("%s usable", size_text(info.usable));
	longer = xasprintf("%s of %s, by %s", text, size_text(info.total),
			   hetmem_memory_figure_name(info.least));
	free(text);
	text = xasprintf("%s less a reserve of %s", longer, size_text(info.reserve));
	free(longer);
	for (i = 0; i < HETMEM_MEMORY_NR; i++) {
		const struct hetmem_memory_figure *f = &info.figures[i];

		if (f->bytes == HETMEM_MEMORY_UNKNOWN)
			continue;
		longer = xasprintf("%s; %s%s: %s (%s)", text,
				   hetmem_memory_figure_name(i),
				   f->counts ? "" : ", does not count",
				   size_text(f->bytes), f->source);
		free(text);
		text = longer;
	}
	doctor_report(doctor, CHECK_NOTE, name, NULL, "%s", text);
	free(text);
	free(name);
}

#ifdef HAVE_JSON_C
static struct json_object *memory_json(struct hetmem *hm, int device)
{
	struct json_object *memory = json_object_new_object(), *object;
	struct hetmem_memory_info info = { .size = sizeof(info) };
	int i;

	if (hetmem_memory_info(hm, device, &info) || info.least < 0)
		return memory;
	json_object_object_add(memory, "usable", json_object_new_int64(info.usable));
	json_object_object_add(memory, "reserve", json_object_new_int64(info.reserve));
	json_object_object_add(memory, "least",
			       json_text(hetmem_memory_figure_name(info.least)));
	for (i = 0; i < HETMEM_MEMORY_NR; i++) {
		const struct hetmem_memory_figure *f = &info.figures[i];

		object = json_object_new_object();
		if (f->bytes != HETMEM_MEMORY_UNKNOWN)
			json_object_object_add(object, "bytes",
					       json_object_new_int64(f->bytes));
		json_object_object_add(object, "counts",
				       json_object_new_boolean(f->counts));
		json_object_object_add(object, "source", json_text(f->source));
		json_object_object_add(memory, hetmem_memory_figure_name(i), object);
	}
	return memory;
}

/* The same, so that programs need not take lines apart. */
static void add_json(struct doctor *doctor, struct hetmem *hm, int device,
		     const char *platform)
{
	struct json_object *object = json_object_new_object();
	struct json_object *evidence = json_object_new_array();
	struct json_object *contradictions = json_object_new_array();
	struct hetmem_evidence e = { .size = sizeof(e) };
	const char *line;
	unsigned int i;

	for (i = 0; !hetmem_evidence(hm, device, i, &e); i++) {
		struct json_object *piece = json_object_new_object();

		json_object_object_add(piece, "source", json_text(e.source));
		json_object_object_add(piece, "what", json_text(e.what));
		json_object_object_add(piece, "value", json_text(e.value));
		json_object_array_add(evidence, piece);
	}
	for (i = 0; (line = hetmem_contradiction(hm, device, i)); i++)
		json_object_array_add(contradictions, json_text(line));
	json_object_object_add(object, "device", json_object_new_int(device));
	json_object_object_add(object, "platform", json_text(platform));
	json_object_object_add(object, "evidence", evidence);
	json_object_object_add(object, "contradictions", contradictions);
	json_object_object_add(object, "memory", memory_json(hm, device));
	if (!doctor->devices)
		doctor->devices = json_object_new_array();
	json_object_array_add(doctor->devices, object);
}
#else
static void add_json(struct doctor *doctor, struct hetmem *hm, int device,
		     const char *platform)
{
	(void)doctor;
	(void)hm;
	(void)device;
	(void)platform;
}
#endif

static void report_device(struct doctor *doctor, struct hetmem *hm, int device)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	char name[32], vmm[64] = "no VMM", node[32] = "", host[16] = "unknown";
	const char *platform, *why;
	struct hetmem_platform p = { .size = sizeof(p) };
	bool misses;

	snprintf(name, sizeof(name), "device %d", device);
	if (hetmem_device_props(hm, device, &props) ||
	    hetmem_platform(hm, device, &p)) {
		doctor_report(doctor, CHECK_MISSING, name, NULL, "%s",
			      hetmem_last_error());
		return;
	}
	platform = hetmem_platform_name(p.kind);
	misses = p.kind == HETMEM_PLATFORM_NONE ||
		 p.kind == HETMEM_PLATFORM_MANAGED;
	why = misses ? why_none(doctor) : NULL;
	if (props.vmm)
		snprintf(vmm, sizeof(vmm), "VMM with granularity %s",
			 size_text(props.granularity));
	if (p.node >= 0)
		snprintf(node, sizeof(node), " (node %d)", p.node);
	if (p.host_node >= 0)
		snprintf(host, sizeof(host), "%d", p.host_node);
	doctor_report(doctor, misses ? CHECK_MISSING : CHECK_OK, name, NULL,
		      "%s, %s; platform %s%s: %s%s%s; %s managed access; %s; nearest node %s",
		      props.name, size_text(props.total), platform, node,
		      kind_text(p.kind), why ? ": " : "",
		      why ? why : "", p.concurrent ? "concurrent" : "no",
		      vmm, host);
	doctor_show(doctor);
	if (props.vmm && p.kind == HETMEM_PLATFORM_INTEGRATED) {
		doctor_report(doctor, CHECK_NOTE, name,
			      "give park=PATH, a directory on a disk, to pools that sleep with contents",
			      "one memory: no spill=, and a sleep keeps contents only with park=PATH, since a copy in host memory frees nothing");
		doctor_show(doctor);
	}
	report_evidence(doctor, hm, device);
	report_contradictions(doctor, hm, device);
	report_memory(doctor, hm, device);
	add_json(doctor, hm, device, platform);
}

static void report_devices(struct doctor *doctor, struct hetmem *hm)
{
	int nr = hetmem_device_count(hm), i;

	for (i = 0; i < nr; i++)
		report_device(doctor, hm, i);
	report_memory(doctor, hm, -1);
}

static void check_cuda(struct doctor *doctor)
{
	const struct hetmem_params params = {
		.size = sizeof(params), .driver = "cuda", .module_path = "",
	};
	struct hetmem *hm;
	int ret = hetmem_open(&hm, &params);

	if (ret) {
		doctor_report(doctor, doctor->gpu ? CHECK_MISSING : CHECK_NOTE,
			      "libcuda", !doctor->gpu ? NULL : doctor_is_debian(doctor) ?
			      "install the driver's libcuda.so.1 (Debian: libcuda1)" :
			      "install the driver's libcuda.so.1",
			      "%s", hetmem_last_error());
		return;
	}
	doctor_report(doctor, CHECK_OK, "libcuda", NULL, "devices: %d",
		      hetmem_device_count(hm));
	hetmem_close(hm);
}

/* A line only for a user who asked for ranges. */
static void check_nvtx(struct doctor *doctor)
{
	const char *why, *source;

	if (!getenv("HETMEM_NVTX"))
		return;
	source = hm_nvtx_source(&why);
	if (source)
		doctor_report(doctor, CHECK_OK, "NVTX", NULL, "ranges go to: %s", source);
	else
		doctor_report(doctor, CHECK_NOTE, "NVTX",
			      "set HETMEM_NVTX=1, and start the program by 'nsys profile'",
			      "no ranges: %s", why);
	doctor_show(doctor);
}

/* From files alone: what such a machine should be able to do. */
static bool verdict_from_files(struct doctor *doctor)
{
	bool emu = doctor->emu_loaded && doctor->node_usable &&
		   doctor->device_private != 0;
	bool gpu = doctor->gpu_hmm && doctor->device_private != 0;

	if (emu || gpu)
		doctor_report(doctor, CHECK_OK, "memory moves", NULL,
			      "by the %s driver, as far as files tell",
			      gpu ? "NVIDIA" : "emulated device's");
	else
		doctor_report(doctor, CHECK_MISSING, "memory moves", doctor->demo,
			      "no: no device that ordinary memory could move to");
	return emu || gpu;
}

bool doctor_devices(struct doctor *doctor)
{
	struct hetmem_feature feature;
	struct hetmem *hm;
	bool moves;
	int ret;

	if (!doctor->live) {
		moves = verdict_from_files(doctor);
		doctor_uses(doctor, NULL, moves);
		return moves;
	}
	check_cuda(doctor);
	ret = hetmem_open(&hm, NULL);
	if (ret) {
		doctor_report(doctor, CHECK_MISSING, "memory moves", NULL,
			      "no: %s", hetmem_last_error());
		doctor_uses(doctor, NULL, false);
		return false;
	}
	doctor_report(doctor, CHECK_OK, "driver in use", NULL, "%s",
		      hetmem_driver_name(hm));
	if (hetmem_device_count(hm))
		doctor_show(doctor);
	check_nvtx(doctor);
	report_devices(doctor, hm);
	ret = hetmem_feature(hm, HETMEM_FEATURE_MIGRATION, &feature);
	moves = !ret && feature.available;
	doctor_report(doctor, moves ? CHECK_OK : CHECK_MISSING, "memory moves",
		      moves ? NULL : doctor->demo, "%s%s",
		      moves ? "" : "no: ",
		      ret ? hetmem_last_error() : feature.reason);
	doctor_uses(doctor, hm, moves);
	hetmem_close(hm);
	return moves;
}
