/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: the NVIDIA driver, as far as files tell. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#define UVM_DISABLE_HMM	"/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"

static bool line_starts_with(const struct doctor *doctor, const char *path,
			     const char *prefix)
{
	char *line = doctor_line(doctor, path);
	bool starts = line && !strncmp(line, prefix, strlen(prefix));

	free(line);
	return starts;
}

/* Whether a display controller of NVIDIA is on the PCI bus. */
static bool gpu_on_bus(const struct doctor *doctor)
{
	char *path = xasprintf("%s/sys/bus/pci/devices", doctor->root);
	DIR *dir = opendir(path);
	struct dirent *entry;
	bool found = false;

	free(path);
	if (!dir)
		return false;
	while (!found && (entry = readdir(dir))) {
		char *vendor, *class;

		if (entry->d_name[0] == '.')
			continue;
		vendor = xasprintf("/sys/bus/pci/devices/%s/vendor",
				   entry->d_name);
		class = xasprintf("/sys/bus/pci/devices/%s/class",
				  entry->d_name);
		found = line_starts_with(doctor, vendor, "0x10de") &&
			line_starts_with(doctor, class, "0x03");
		free(vendor);
		free(class);
	}
	closedir(dir);
	return found;
}

/*
 * The release after "Kernel Module", which the open and the proprietary
 * driver have both in their line, as a copy.
 */
static char *release_of(const char *line)
{
	const char *at = strstr(line, "Kernel Module");
	size_t len;

	at = at ? at + strlen("Kernel Module") : "";
	at += strspn(at, " ");
	if (!strncmp(at, "for ", 4)) {
		at += 4;
		at += strcspn(at, " ");
		at += strspn(at, " ");
	}
	len = strcspn(at, " ");
	return xasprintf("%.*s", len ? (int)len : 7, len ? at : "unknown");
}

static void check_hmm(struct doctor *doctor, bool open)
{
	char *value = doctor_line(doctor, UVM_DISABLE_HMM);
	const bool loadable = doctor_has_command(doctor, "modprobe") &&
			      (doctor_has_module(doctor, "nvidia-uvm.ko") ||
			       doctor_has_module(doctor, "nvidia-current-uvm.ko"));

	if (!doctor_exists(doctor, "/sys/module/nvidia_uvm"))
		doctor_report(doctor, CHECK_MISSING, "nvidia_uvm", loadable ?
			      "type 'modprobe nvidia_uvm' as root" :
			      "load nvidia-uvm.ko of the driver that is in use",
			      "not loaded: no unified memory");
	else if (!value)
		doctor_report(doctor, CHECK_NOTE, "uvm_disable_hmm", NULL,
			      "the driver has no such parameter: it is older than HMM");
	else if (*value == 'Y' || *value == '1')
		doctor_report(doctor, CHECK_MISSING, "uvm_disable_hmm",
			      doctor_exists(doctor, "/etc/modprobe.d") ?
			      "write 'options nvidia_uvm uvm_disable_hmm=0' to /etc/modprobe.d/nvidia-uvm.conf and load nvidia_uvm again" :
			      "load nvidia_uvm again, with uvm_disable_hmm=0",
			      "set: the driver leaves ordinary memory on the host");
	else
		doctor_report(doctor, CHECK_OK, "uvm_disable_hmm", NULL,
			      "not set");
	doctor->gpu_hmm = open && value && *value != 'Y' && *value != '1';
	free(value);
}

void doctor_nvidia(struct doctor *doctor)
{
	char *line = doctor_line(doctor, "/proc/driver/nvidia/version");
	char *release;
	bool open;

	doctor->gpu = line || gpu_on_bus(doctor);
	if (!line) {
		if (doctor->gpu)
			doctor_report(doctor, CHECK_MISSING, "NVIDIA module",
				      doctor_is_debian(doctor) ?
				      "install the driver with open kernel modules (Debian: nvidia-open from NVIDIA's repository)" :
				      "install the driver with open kernel modules",
				      "a GPU is there, its kernel module is not loaded");
		else
			doctor_report(doctor, CHECK_NOTE, "NVIDIA module",
				      NULL, "no NVIDIA GPU here");
		return;
	}
	open = strstr(line, "Open Kernel Module");
	release = release_of(line);
	if (open)
		doctor_report(doctor, CHECK_OK, "NVIDIA module", NULL,
			      "open, release %s", release);
	else
		doctor_report(doctor, CHECK_MISSING, "NVIDIA module",
			      "install the same driver with open kernel modules",
			      "proprietary, release %s: only the open one has HMM",
			      release);
	free(release);
	free(line);
	check_hmm(doctor, open);
}
