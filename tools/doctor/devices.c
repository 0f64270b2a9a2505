/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: devices as the library sees them, and the verdict. */
#include <errno.h>
#include <string.h>

#include <hetmem.h>

#include "doctor.h"

static const char *addressing_text(int addressing)
{
	switch (addressing) {
	case HETMEM_ADDRESSING_HMM:
		return "HMM";
	case HETMEM_ADDRESSING_ATS:
		return "ATS";
	case HETMEM_ADDRESSING_CDMM:
		return "ATS with CDMM: device memory is no NUMA node";
	case HETMEM_ADDRESSING_SOFT:
		return "by software, in this process";
	default:
		return "none";
	}
}

/* Why a GPU does not reach ordinary memory, as far as earlier checks know. */
static const char *why_none(const struct doctor *doctor)
{
	if (doctor->device_private == 0)
		return " (HMM needs CONFIG_DEVICE_PRIVATE)";
	if (doctor->gpu && !doctor->gpu_hmm)
		return " (the NVIDIA driver is proprietary, old, or has HMM disabled, see above)";
	return " (the driver does not say why)";
}

static void report_devices(struct doctor *doctor, struct hetmem *hm)
{
	int nr = hetmem_device_count(hm), i;

	for (i = 0; i < nr; i++) {
		struct hetmem_device_props props = { .size = sizeof(props) };
		char name[32], vmm[64] = "no VMM";
		bool none;

		snprintf(name, sizeof(name), "device %d", i);
		if (hetmem_device_props(hm, i, &props)) {
			doctor_report(doctor, CHECK_MISSING, name, NULL, "%s",
				      hetmem_last_error());
			continue;
		}
		none = props.addressing == HETMEM_ADDRESSING_NONE;
		if (props.vmm)
			snprintf(vmm, sizeof(vmm), "VMM with granularity %s",
				 size_text(props.granularity));
		doctor_report(doctor, none ? CHECK_MISSING : CHECK_OK, name,
			      none ? "memory of cudaMallocManaged moves, malloc's does not" :
			      NULL,
			      "%s, %s; addressing %s%s; %s managed access; %s; nearest node %d",
			      props.name, size_text(props.total),
			      addressing_text(props.addressing),
			      none ? why_none(doctor) : "",
			      props.managed ? "concurrent" : "no", vmm,
			      props.host_node);
	}
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
			      "libcuda", doctor->gpu ?
			      "install the driver's libcuda.so.1 (Debian: libcuda1)" :
			      NULL,
			      "%s", hetmem_last_error());
		return;
	}
	doctor_report(doctor, CHECK_OK, "libcuda", NULL, "devices: %d",
		      hetmem_device_count(hm));
	hetmem_close(hm);
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
		doctor_report(doctor, CHECK_MISSING, "memory moves", NULL,
			      "no: no device that ordinary memory could move to");
	return emu || gpu;
}

bool doctor_devices(struct doctor *doctor)
{
	struct hetmem_feature feature;
	struct hetmem *hm;
	bool moves;
	int ret;

	if (!doctor->live)
		return verdict_from_files(doctor);
	check_cuda(doctor);
	ret = hetmem_open(&hm, NULL);
	if (ret) {
		doctor_report(doctor, CHECK_MISSING, "memory moves", NULL,
			      "no: %s", hetmem_last_error());
		return false;
	}
	doctor_report(doctor, CHECK_OK, "driver in use", NULL, "%s",
		      hetmem_driver_name(hm));
	report_devices(doctor, hm);
	ret = hetmem_feature(hm, HETMEM_FEATURE_MIGRATION, &feature);
	moves = !ret && feature.available;
	doctor_report(doctor, moves ? CHECK_OK : CHECK_MISSING, "memory moves",
		      moves ? NULL :
		      "type 'make demo' to see it in a virtual machine", "%s%s",
		      moves ? "" : "no: ",
		      ret ? hetmem_last_error() : feature.reason);
	hetmem_close(hm);
	return moves;
}
