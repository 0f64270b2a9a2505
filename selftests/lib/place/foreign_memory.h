/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The program's own memory, which is attached, and its owner. */
#ifndef HETMEM_SELFTESTS_FOREIGN_MEMORY_H
#define HETMEM_SELFTESTS_FOREIGN_MEMORY_H

#include <sys/mman.h>

#include "api.h"

/* Set it first: bytes of a page. */
static size_t page;

/* How often an owner was released. */
__attribute__((unused))
static unsigned int released;

__attribute__((unused))
static void count_release(void *owner)
{
	__atomic_add_fetch((unsigned int *)owner, 1, __ATOMIC_RELEASE);
}

__attribute__((unused))
static const struct hetmem_attach_params owned = {
	.size = sizeof(owned), .release = count_release, .owner = &released,
};

static char *pages(size_t nr)
{
	char *p = mmap(NULL, nr * page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "memory");
	return p;
}

/* What is wrong in one of four threads, whose arguments are 0 to 3, or NULL. */
__attribute__((unused))
static void *in_threads(void *(*work)(void *arg))
{
	void *wrong, *any = NULL;
	pthread_t threads[4];
	uintptr_t i;

	for (i = 0; i < 4; i++)
		need(!pthread_create(&threads[i], NULL, work, (void *)i), "a thread");
	for (i = 0; i < 4; i++) {
		pthread_join(threads[i], &wrong);
		any = any ? any : wrong;
	}
	return any;
}

/* Whether @p is page-locked for the driver. */
__attribute__((unused))
static bool is_pinned(struct hetmem *hm, const void *p)
{
	CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	unsigned int type = 0;
	void *data = &type;

	hm->driver.cuPointerGetAttributes(1, &which, &data, (uintptr_t)p);
	return type == CU_MEMORYTYPE_HOST;
}

#endif /* HETMEM_SELFTESTS_FOREIGN_MEMORY_H */
