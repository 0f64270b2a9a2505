/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Loading and unloading the modules under test. They are looked for in
 * $HETMEM_MODULES, else in /lib/modules, where the virtual machine has them, and
 * there in foreign/; and come back with the parameters that they had.
 */
#ifndef LIBKTEST_MODULES_H
#define LIBKTEST_MODULES_H

#include "libktest/base.h"

struct module {
	const char *name;
	char params[256];
};

bool module_loaded(const char *name);

/* Remember what it was loaded with. */
void module_params(struct module *m);
int module_load(const struct module *m);

/* -EAGAIN: somebody uses it. */
int module_unload_once(const char *name);

/* For who may use it for a moment longer: a process that is being reaped. */
int module_unload(const char *name);

#endif
