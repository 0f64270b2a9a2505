/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Looks at a program's file: whether the loader can put a library into it. */
#ifndef HETMEM_TOOLS_PROGRAM_H
#define HETMEM_TOOLS_PROGRAM_H

#include <stdbool.h>

/*
 * Why a preloaded library has no effect in the program @path, or does harm: the rest of a
 * sentence that begins with its name. NULL: nothing is known against it. A script, and a file
 * that cannot be read, are such. @is_malloc: the library has a malloc.
 */
const char *program_objection(const char *path, bool is_malloc);

#endif
