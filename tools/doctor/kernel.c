/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: the running kernel and what it was configured with. */
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#define CONFIG_MAX	((size_t)4 << 20)

static const struct option_check {
	const char *name;
	enum check_state if_not;
	const char *without;	/* what is lost */
} option_checks[] = {
	{ "DEVICE_PRIVATE", CHECK_MISSING,
	  "no driver can keep ordinary memory on its device (HMM); ATS does not need it" },
	{ "HMM_MIRROR", CHECK_MISSING,
	  "neither hetmem.ko nor a GPU driver can look at page tables" },
	{ "MMU_NOTIFIER", CHECK_MISSING,
	  "devices are not notified when memory goes away" },
	{ "MIGRATION", CHECK_MISSING, "no page can move at all" },
	{ "TRANSPARENT_HUGEPAGE", CHECK_NOTE,
	  "all memory is in base pages, which move slowly" },
	{ "NUMA", CHECK_NOTE, "host memory has one node, whatever it is" },
};

static char *read_gzip(const struct doctor *doctor, const char *path)
{
#ifdef HAVE_ZLIB
	char *full = xasprintf("%s%s", doctor->root, path);
	char *text = NULL;
	gzFile file;
	int len;

	file = gzopen(full, "rbe");
	free(full);
	if (!file)
		return NULL;
	text = xcalloc(CONFIG_MAX + 1, 1);
	len = gzread(file, text, CONFIG_MAX);
	gzclose(file);
	if (len > 0)
		return text;
	free(text);
#else
	(void)doctor;
	(void)path;
#endif
	return NULL;
}

/* The configuration's text and, at @from, the file it is from. */
static char *read_config(const struct doctor *doctor, char **from)
{
	static const struct {
		const char *before, *behind;
	} places[] = {
		{ "/boot/config-", "" },
		{ "/lib/modules/", "/build/.config" },
		{ "/lib/modules/", "/config" },
	};
	char *text = read_gzip(doctor, "/proc/config.gz");
	size_t i;

	*from = xstrdup("/proc/config.gz");
	for (i = 0; !text && doctor->release && i < ARRAY_SIZE(places); i++) {
		char *path;

		/* The release is a file's content: no way out of the place. */
		if (strchr(doctor->release, '/'))
			break;
		path = xasprintf("%s%s%s", places[i].before, doctor->release,
				 places[i].behind);
		text = read_file(doctor->root, path, CONFIG_MAX, NULL);
		free(*from);
		*from = path;
	}
	return text;
}

/* 'y', 'm', or 0 if it is not set. */
static char config_value(const char *config, const char *option)
{
	char *key = xasprintf("CONFIG_%s=", option);
	const char *at = config;
	char value = 0;

	while ((at = strstr(at, key))) {
		if (at == config || at[-1] == '\n') {
			value = at[strlen(key)];
			break;
		}
		at++;
	}
	free(key);
	return value == 'y' || value == 'm' ? value : 0;
}

void doctor_kernel(struct doctor *doctor)
{
	char *config, *from, *todo, name[64];
	size_t i;

	doctor->release = doctor_line(doctor, "/proc/sys/kernel/osrelease");
	doctor_report(doctor, doctor->release ? CHECK_OK : CHECK_NOTE,
		      "kernel", NULL, "%s",
		      doctor->release ? doctor->release :
		      "/proc/sys/kernel/osrelease cannot be read");
	config = read_config(doctor, &from);
	if (!config) {
		doctor_report(doctor, CHECK_NOTE, "kernel configuration", NULL,
			      "not found: no /proc/config.gz%s, no /boot/config-%s",
#ifdef HAVE_ZLIB
			      "",
#else
			      " (or zlib1g-dev was missing at the build)",
#endif
			      doctor->release ? doctor->release : "?");
		free(from);
		return;
	}
	doctor->modules = config_value(config, "MODULES") == 'y';
	doctor->device_private = !!config_value(config, "DEVICE_PRIVATE");
	todo = doctor_other_kernel(doctor);
	for (i = 0; i < ARRAY_SIZE(option_checks); i++) {
		const struct option_check *check = &option_checks[i];
		char value = config_value(config, check->name);

		snprintf(name, sizeof(name), "CONFIG_%s", check->name);
		if (value)
			doctor_report(doctor, CHECK_OK, name, NULL,
				      "%c in %s", value, from);
		else
			doctor_report(doctor, check->if_not, name,
				      check->if_not == CHECK_MISSING ? todo : NULL,
				      "not set: %s (%s)", check->without, from);
	}
	free(todo);
	free(config);
	free(from);
}
