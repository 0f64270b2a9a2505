/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem doctor: our modules, whether the kernel would load them, and the
 * device node.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/hetmem.h>

#include "doctor.h"
#include "core/device_open.h"

#define SECURE_BOOT	"/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

#define UDEV_RULE	"write KERNEL==\"hetmem\", MODE=\"0666\" to /etc/udev/rules.d/60-hetmem.rules, then 'udevadm control --reload && udevadm trigger --name-match=hetmem'"

/* Secure boot: 1 on, 0 off, -1 not to be told (no EFI, not permitted). */
static int secure_boot(const struct doctor *doctor)
{
	size_t len = 0;
	char *data = read_file(doctor->root, SECURE_BOOT, 64, &len);
	int on = -1;

	/* Four bytes of attributes, then the value. */
	if (data && len >= 5)
		on = data[4] == 1;
	free(data);
	return on;
}

/* "integrity" of "none [integrity] confidentiality", or NULL. */
static char *lockdown_mode(const struct doctor *doctor)
{
	char *line = doctor_line(doctor, "/sys/kernel/security/lockdown");
	char *open = line ? strchr(line, '[') : NULL;
	char *mode = NULL;

	if (open) {
		open[1 + strcspn(open + 1, "]")] = '\0';
		mode = xstrdup(open + 1);
	}
	free(line);
	return mode;
}

static char *sign_it(const struct doctor *doctor)
{
	return xasprintf("sign hetmem.ko with a key that the kernel trusts%s%s",
			 doctor_has_headers(doctor) ? " (scripts/sign-file of the kernel's headers)" : "",
			 doctor_has_command(doctor, "mokutil") ? "; 'mokutil --import' enrols one" : "");
}

/* Whether the kernel takes a module that nobody signed. */
static void check_signature(struct doctor *doctor)
{
	char *enforce = doctor_line(doctor,
				    "/sys/module/module/parameters/sig_enforce");
	char *disabled = doctor_line(doctor, "/proc/sys/kernel/modules_disabled");
	char *lockdown = lockdown_mode(doctor);
	int boot = secure_boot(doctor);
	enum check_state bad = doctor->module_loaded ? CHECK_NOTE :
			       CHECK_MISSING;
	const char *boot_text = boot == 1 ? "secure boot on" :
				boot == 0 ? "secure boot off" :
				"secure boot unknown";
	char *sign = sign_it(doctor);

	if (!doctor->modules || (doctor->modules < 0 && !disabled))
		doctor_report(doctor, bad, "module rules",
			      "boot a kernel that loads modules",
			      "this kernel loads no modules (CONFIG_MODULES)");
	else if (disabled && strcmp(disabled, "0"))
		doctor_report(doctor, bad, "module rules",
			      "reboot, and load hetmem.ko before that is set",
			      "kernel.modules_disabled is set: no module can be loaded until the next boot");
	else if (lockdown && strcmp(lockdown, "none"))
		doctor_report(doctor, bad, "module rules", sign,
			      "kernel lockdown is '%s' (%s): unsigned modules are refused",
			      lockdown, boot_text);
	else if (enforce && *enforce == 'Y')
		doctor_report(doctor, bad, "module rules", sign,
			      "signatures are enforced (MODULE_SIG_FORCE, %s): unsigned modules are refused",
			      boot_text);
	else
		doctor_report(doctor, CHECK_OK, "module rules", NULL,
			      "unsigned modules are loaded (lockdown %s, %s)",
			      lockdown ? lockdown : "not there", boot_text);
	free(sign);
	free(enforce);
	free(disabled);
	free(lockdown);
}

static void check_loaded(struct doctor *doctor)
{
	char *version = doctor_line(doctor, "/sys/module/hetmem/version");
	char *disabled = doctor_line(doctor, "/proc/sys/kernel/modules_disabled");
	char *todo;

	doctor->loads = doctor->modules && disabled && !strcmp(disabled, "0");
	todo = doctor_load(doctor, "hetmem");
	doctor->module_loaded = doctor_exists(doctor, "/sys/module/hetmem");
	doctor->emu_loaded = doctor_exists(doctor, "/sys/module/hetmem_emu");
	if (doctor->module_loaded)
		doctor_report(doctor, CHECK_OK, "hetmem.ko", NULL,
			      "loaded%s%s", version ? ", version " : "",
			      version ? version : "");
	else
		doctor_report(doctor, CHECK_MISSING, "hetmem.ko", todo,
			      "not loaded: no residency of device pages, and no hints");
	free(todo);
	free(disabled);
	free(version);
}

static void check_emu(struct doctor *doctor)
{
	char *todo = doctor->loads ? doctor_load(doctor, "hetmem_emu") : NULL;

	if (doctor->emu_loaded)
		doctor_report(doctor, CHECK_OK, "hetmem_emu.ko", NULL,
			      "loaded");
	else if (doctor->device_private == 0)
		doctor_report(doctor, CHECK_NOTE, "hetmem_emu.ko", NULL,
			      "not loaded, and needs CONFIG_DEVICE_PRIVATE");
	else
		doctor_report(doctor, CHECK_NOTE, "hetmem_emu.ko", todo,
			      "not loaded: a device to try things without a GPU");
	free(todo);
}

/* "crw-rw---- root:video" */
static char *rights_text(const struct stat *st)
{
	const struct passwd *user = getpwuid(st->st_uid);
	const struct group *group = getgrgid(st->st_gid);
	char owner[64], owning_group[64];

	snprintf(owner, sizeof(owner), "%u", st->st_uid);
	snprintf(owning_group, sizeof(owning_group), "%u", st->st_gid);
	return xasprintf("mode %04o, owner %s:%s", st->st_mode & 07777,
			 user ? user->pw_name : owner,
			 group ? group->gr_name : owning_group);
}

/* Makes the node that the module has, by its "MAJOR:MINOR". As a copy. */
static char *make_node(const struct doctor *doctor)
{
	char *dev = doctor_line(doctor, "/sys/class/misc/hetmem/dev");
	unsigned int major, minor;
	char *todo;

	if (dev && sscanf(dev, "%u:%u", &major, &minor) == 2)
		todo = xasprintf("type 'mknod -m 666 /dev/hetmem c %u %u' as root", major, minor);
	else
		todo = xstrdup("mount devtmpfs on /dev");
	free(dev);
	return todo;
}

static const char *permit(const struct doctor *doctor)
{
	return doctor_exists(doctor, "/etc/udev/rules.d") && doctor_has_command(doctor, "udevadm") ?
		UDEV_RULE : "type 'chmod 666 /dev/hetmem' as root";
}

/* Opens the node and asks the module who it is. */
static void ask_module(struct doctor *doctor, const char *path,
		       const char *rights)
{
	struct hetmem_cmd_info info = { .size = sizeof(info) };
	int fd = hm_device_open(path);
	int error = -fd;

	if (fd >= 0) {
		error = ioctl(fd, HETMEM_IOC_INFO, &info) ? errno : 0;
		close(fd);
	}
	if (fd < 0 || error) {
		doctor_report(doctor, CHECK_MISSING, "/dev/hetmem",
			      doctor_has_command(doctor, "dmesg") ? "see 'dmesg | tail'" :
			      "see the kernel log", "%s, but %s: %s", rights,
			      fd < 0 ? "cannot be opened" : "INFO fails",
			      strerror(error));
		return;
	}
	if (info.version != HETMEM_VERSION) {
		doctor_report(doctor, CHECK_MISSING, "/dev/hetmem",
			      "build and load the module of this version",
			      "the module speaks interface %u, this program %d",
			      info.version, HETMEM_VERSION);
		return;
	}
	doctor->node_usable = true;
	doctor_report(doctor, CHECK_OK, "/dev/hetmem", NULL,
		      "usable (%s), interface %u, %llu of %llu KiB used by this user, devices %u, other drivers' pools %u",
		      rights, info.version, info.used_bytes >> 10,
		      info.max_bytes >> 10, info.nr_devices, info.nr_pools);
}

static void check_node(struct doctor *doctor)
{
	char *path = xasprintf("%s/dev/hetmem", doctor->root);
	char *rights, *todo;
	struct stat st;

	if (stat(path, &st)) {
		todo = make_node(doctor);
		if (doctor->module_loaded)
			doctor_report(doctor, CHECK_MISSING, "/dev/hetmem", todo,
				      "the module is loaded but there is no device node");
		else
			doctor_report(doctor, CHECK_MISSING, "/dev/hetmem",
				      NULL, "comes with hetmem.ko");
		free(todo);
		free(path);
		return;
	}
	rights = rights_text(&st);
	todo = doctor_load(doctor, "hetmem");
	/* Another root has plain files there: nodes need root to make. */
	if (doctor->live && !S_ISCHR(st.st_mode))
		doctor_report(doctor, CHECK_MISSING, "/dev/hetmem",
			      "remove it, then load hetmem.ko",
			      "is not a character device");
	else if (access(path, R_OK | W_OK))
		doctor_report(doctor, CHECK_MISSING, "/dev/hetmem", permit(doctor),
			      "not for this user: %s", rights);
	else if (!doctor->module_loaded)
		doctor_report(doctor, CHECK_MISSING, "/dev/hetmem", todo,
			      "is there, its module is not");
	else if (doctor->live)
		ask_module(doctor, path, rights);
	else {
		doctor->node_usable = true;
		doctor_report(doctor, CHECK_OK, "/dev/hetmem", NULL,
			      "usable (%s)", rights);
	}
	free(todo);
	free(rights);
	free(path);
}

void doctor_module(struct doctor *doctor)
{
	check_loaded(doctor);
	check_signature(doctor);
	check_emu(doctor);
	check_node(doctor);
}
