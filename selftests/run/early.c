/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A library that is preloaded after ours: it allocates in its constructor, which runs before
 * ours. Its dlsym() allocates, as that of some libcs does: when ours looks for the next
 * allocator there is none yet.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB	((size_t)1 << 20)

static char *kept, *first[4];
static int asked;

/* The first call is of ours, if that is there. What it allocates is freed at the end. */
void *dlsym(void *restrict handle, const char *restrict name)
{
	static const char *const versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5" };
	static void *(*real)(void *handle, const char *name);
	size_t i;

	for (i = 0; !real && i < 3; i++)
		real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	if (!asked++) {
		first[0] = malloc(100);
		first[1] = calloc(3, 1000);
		first[2] = memalign(64, 200);
		first[3] = realloc(NULL, 50);
		for (i = 0; i < 4; i++) {
			if (!first[i] || (uintptr_t)first[i] % (i == 2 ? 64 : 16) ||
			    (i == 1 && (first[1][0] || first[1][2999])))
				_exit(93);
			memset(first[i], 1 + i, 50);
		}
		free(malloc(10));
	}
	return real(handle, name);
}

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
	size_t i;

	for (i = 0; i < 4; i++) {
		first[i] = i < 2 ? realloc(first[i], 5000) : first[i];
		if (!first[i] || first[i][0] != (char)(1 + i) || first[i][49] != (char)(1 + i) ||
		    malloc_usable_size(first[i]) < 50)
			_exit(94);
		free(first[i]);
	}
	kept = realloc(kept, 6 * MIB);
	if (!kept || kept[0] != 7 || kept[4 * MIB - 1] != 7)
		_exit(91);
	free(kept);
}
