// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The aliases of the process, by address: see alias.h. A forked child has none. The lock is the
 * last one. A process cannot map many more than 65,536: 16 for each list.
 */
#include <errno.h>

#include "core/alias.h"

#define LISTS	4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hm_alias *lists[LISTS];
static unsigned int nr;
static unsigned int generation;

static struct hm_alias **list_of(uintptr_t addr)
{
	return &lists[addr * 0x9e3779b97f4a7c15 >> 52];
}

void hm_alias_add(struct hm_alias *alias)
{
	struct hm_alias **list = list_of(alias->addr);

	pthread_mutex_lock(&lock);
	alias->next = *list;
	*list = alias;
	__atomic_store_n(&generation, hm_generation(), __ATOMIC_RELAXED);
	__atomic_store_n(&nr, nr + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

/* Whether to look at all: fork() can have left the lock held. */
static bool has_any(void)
{
	return __atomic_load_n(&nr, __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&generation, __ATOMIC_RELAXED) == hm_generation();
}

/* What points to the alias that begins at @addr, or to NULL. With the lock. */
static struct hm_alias **find(uintptr_t addr)
{
	struct hm_alias **link = list_of(addr);

	while (*link && (*link)->addr != addr)
		link = &(*link)->next;
	return link;
}

static void remove_at(struct hm_alias **link)
{
	*link = (*link)->next;
	__atomic_store_n(&nr, nr - 1, __ATOMIC_RELEASE);
}

void hm_alias_remove(struct hm_alias *alias)
{
	struct hm_alias **link;

	if (!has_any())
		return;
	pthread_mutex_lock(&lock);
	link = find(alias->addr);
	if (*link == alias)
		remove_at(link);
	pthread_mutex_unlock(&lock);
}

const char *hm_alias_kind(const void *ptr)
{
	const struct hm_alias *a;

	if (!has_any())
		return NULL;
	pthread_mutex_lock(&lock);
	a = *find((uintptr_t)ptr);
	pthread_mutex_unlock(&lock);
	return a ? a->kind : NULL;
}

/* Only one thread takes an alias. */
static struct hm_alias *take(const struct hetmem_resource *res, const void *ptr)
{
	struct hm_alias **link, *a = NULL;

	if (!has_any())
		return NULL;
	pthread_mutex_lock(&lock);
	link = find((uintptr_t)ptr);
	if (*link && (*link)->res == res) {
		a = *link;
		remove_at(link);
	}
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
