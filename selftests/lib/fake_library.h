/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Fakes of a library that is found by its name: a test compiles itself into them. */
#ifndef HETMEM_SELFTESTS_FAKE_LIBRARY_H
#define HETMEM_SELFTESTS_FAKE_LIBRARY_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* @dir/@name/@library of @source, with @options. */
static bool fake_library(const char *dir, const char *name, const char *library,
			 const char *source, const char *options)
{
	const char *cc = getenv("CC");
	char command[512];

	snprintf(command, sizeof(command),
		 "mkdir -p %s/%s && %s -shared -fPIC -fvisibility=hidden -Ilib %s -o %s/%s/%s %s >&2",
		 dir, name, cc && *cc ? cc : "cc", options, dir, name, library, source);
	return !system(command);
}

#endif /* HETMEM_SELFTESTS_FAKE_LIBRARY_H */
