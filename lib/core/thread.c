// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What each thread has of its own. Thread-local storage has room for a few words only: glibc
 * keeps 1,664 bytes for all libraries that a program loads while it runs, and programs load
 * others after this one. So one word points to a page, which the thread's end unmaps.
 */
#include <sys/mman.h>

#include "core/core.h"

static __thread struct hm_thread_page *here;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

/* At the end of a thread. Destructors of others may use a new page, and this runs again. */
static void forget(void *page)
{
	here = NULL;
	munmap(page, sizeof(*here));
}

static void make_key(void)
{
	has_key = !pthread_key_create(&key, forget);
}

static struct hm_thread_page *make_page(void)
{
	struct hm_thread_page *page;

	pthread_once(&once, make_key);
	if (!has_key)
		return NULL;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		    -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	if (pthread_setspecific(key, page)) {
		munmap(page, sizeof(*page));
		return NULL;
	}
	here = page;
	return page;
}

struct hm_thread_page *hm_thread_page(void)
{
	return here ? here : make_page();
}
