// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The aliases of the process: see alias.h. A forked child has none. The lock is the last one. */
#include <errno.h>

#include "core/alias.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hm_alias *aliases;
static unsigned int generation;

void hm_alias_add(struct hm_alias *alias)
{
	pthread_mutex_lock(&lock);
	alias->next = aliases;
	__atomic_store_n(&generation, hm_generation(), __ATOMIC_RELAXED);
	__atomic_store_n(&aliases, alias, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

/* Whether to look at all: fork() can have left the lock held. */
static bool has_any(void)
{
	return __atomic_load_n(&aliases, __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&generation, __ATOMIC_RELAXED) == hm_generation();
}

void hm_alias_remove(struct hm_alias *alias)
{
	struct hm_alias **link;

	if (!has_any())
		return;
	pthread_mutex_lock(&lock);
	for (link = &aliases; *link && *link != alias; link = &(*link)->next)
		;
	if (*link)
		__atomic_store_n(link, alias->next, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

const char *hm_alias_kind(const void *ptr)
{
	const struct hm_alias *a;

	if (!has_any())
		return NULL;
	pthread_mutex_lock(&lock);
	for (a = aliases; a; a = a->next)
		if ((uintptr_t)ptr - a->addr < a->size)
			break;
	pthread_mutex_unlock(&lock);
	return a ? a->kind : NULL;
}

/* Only one thread takes an alias. */
static struct hm_alias *take(const struct hetmem_resource *res, const void *ptr)
{
	struct hm_alias **link, *a;

	if (!has_any())
		return NULL;
	pthread_mutex_lock(&lock);
	for (link = &aliases; (a = *link); link = &a->next)
		if (a->res == res && a->addr == (uintptr_t)ptr)
			break;
	if (a)
		__atomic_store_n(link, a->next, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return a;
}

int hm_alias_free(struct hetmem_resource *res, const void *ptr, size_t size,
		  hetmem_stream stream)
{
	struct hm_alias *a = take(res, ptr);
	int err;

	if (!a)
		return -EINVAL;
	if (size && size != a->size)
		err = hm_error(-EINVAL, "free: %p is %s of %zu bytes, not %zu", ptr, a->kind,
			       a->size, size);
	else
		err = a->free(a, stream);
	if (err)
		hm_alias_add(a);
	return err;
}
