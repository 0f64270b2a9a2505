/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A library that is preloaded after ours: it allocates in its constructor, which runs before
 * ours, and asks dlsym() for what nobody has, which allocates, too.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB	((size_t)1 << 20)

static char *kept;

__attribute__((constructor))
static void before_main(void)
{
	char *p = malloc(4 * MIB), *q = calloc(3, MIB), *r = realloc(NULL, 100);

	if (!p || !q || !r || q[0] || q[3 * MIB - 1] || dlsym(RTLD_NEXT, "nobody_has_this") ||
	    !dlerror())
		_exit(90);
	memset(p, 7, 4 * MIB);
	free(q);
	free(r);
	kept = p;
}

/* Allocated before the library was ready, resized and freed when it is. */
__attribute__((destructor))
static void behind_main(void)
{
	kept = realloc(kept, 6 * MIB);
	if (!kept || kept[0] != 7 || kept[4 * MIB - 1] != 7)
		_exit(91);
	free(kept);
}
