// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory of --spec: blocks of a resource of libhetmem, and its agent.
 *
 * The first block opens the library, so a program without large allocations never loads it.
 * The library calls malloc() itself, and must not get memory of its own resource then. So
 * each thread that is in the library is noted in @inside, and gets pages of pages.c there.
 * Nobody waits: while one thread opens the library, others get pages of pages.c, too.
 *
 * The library opens in one process and is not used in its forked children: what they get is
 * from pages.c, and what they free of the parent's memory loses its pages only.
 */
#include <dlfcn.h>
#include <hetmem.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/preload.h"

/* Threads that can be in the library at a time; the others get pages of pages.c. */
#define THREADS	64

enum { UNTRIED, OPENING, OPEN, CLOSED };

static atomic_int state;
static _Atomic(pthread_t) inside[THREADS];
static struct hetmem_resource *resource;

static struct {
	__typeof__(&hetmem_open) open;
	__typeof__(&hetmem_last_error) last_error;
	__typeof__(&hetmem_resource_create) create;
	__typeof__(&hetmem_alloc) alloc;
	__typeof__(&hetmem_free) free;
	__typeof__(&hetmem_agent_start) agent_start;
} lib;

static bool is_inside(void)
{
	const pthread_t self = pthread_self();
	size_t i;

	for (i = 0; i < THREADS; i++)
		if (atomic_load_explicit(&inside[i], memory_order_relaxed) == self)
			return true;
	return false;
}

/* NULL: too many threads are inside. */
static _Atomic(pthread_t) *enter(void)
{
	size_t i;

	for (i = 0; i < THREADS; i++) {
		pthread_t nobody = 0;

		if (atomic_compare_exchange_strong(&inside[i], &nobody, pthread_self()))
			return &inside[i];
	}
	return NULL;
}

static void leave(_Atomic(pthread_t) *slot)
{
	atomic_store(slot, 0);
}

static bool load(void)
{
	void *handle = dlopen(hm_settings.library, RTLD_NOW | RTLD_LOCAL);
	size_t i;
	const struct {
		const char *name;
		void **to;
	} calls[] = {
		{ "hetmem_open", (void **)&lib.open },
		{ "hetmem_last_error", (void **)&lib.last_error },
		{ "hetmem_resource_create", (void **)&lib.create },
		{ "hetmem_alloc", (void **)&lib.alloc },
		{ "hetmem_free", (void **)&lib.free },
		{ "hetmem_agent_start", (void **)&lib.agent_start },
	};

	if (!handle) {
		hm_say("--spec is off in this process: ", dlerror(), "");
		return false;
	}
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		*calls[i].to = dlsym(handle, calls[i].name);
		if (!*calls[i].to) {
			hm_say("--spec is off in this process: no ", calls[i].name,
			       " in libhetmem; install the one of this hetmem");
			return false;
		}
	}
	return true;
}

static bool open_resource(void)
{
	struct hetmem *hm;

	if (!load())
		return false;
	if (lib.open(&hm, NULL) || lib.create(hm, hm_settings.spec, &resource)) {
		hm_say("--spec is off in this process: ", lib.last_error(), "");
		return false;
	}
	/* HETMEM_AGENT has started it already. */
	if (hm_settings.agent && !secure_getenv("HETMEM_AGENT") && lib.agent_start(hm, NULL))
		hm_say("--agent is off in this process: ", lib.last_error(), "");
	return true;
}

/* Whether it was opened in this process. */
static bool is_here(void)
{
	struct hm_here *here = hm_here();

	return here && atomic_load(&here->library);
}

/* Inside. Whether the resource can be used. */
static bool is_open(void)
{
	struct hm_here *here = hm_here();
	int untried = UNTRIED;

	if (!here)
		return false;
	if (atomic_load(&state) == OPEN)
		return is_here();
	if (!atomic_compare_exchange_strong(&state, &untried, OPENING))
		return false;
	atomic_store(&here->library, 1);
	atomic_store(&state, open_resource() ? OPEN : CLOSED);
	return atomic_load(&state) == OPEN;
}

void *hm_resource_alloc(size_t size)
{
	_Atomic(pthread_t) *slot;
	void *p = NULL;

	if (!hm_settings.spec || atomic_load(&state) == CLOSED || is_inside())
		return NULL;
	slot = enter();
	if (!slot)
		return NULL;
	if (is_open() && lib.alloc(resource, size, HM_UNIT, HETMEM_STREAM_HOST, &p))
		p = NULL;
	if ((uintptr_t)p & (HM_UNIT - 1)) {
		lib.free(resource, p, size, HETMEM_STREAM_HOST);
		p = NULL;
	}
	leave(slot);
	return p;
}

void hm_resource_free(void *p, size_t size)
{
	_Atomic(pthread_t) *slot;

	/* Inside, the library's lock may be held. Addresses without pages cost little. */
	if (!is_here() || is_inside()) {
		syscall(SYS_madvise, p, size, MADV_DONTNEED);
		return;
	}
	/* A full table: another thread leaves soon. */
	while (!(slot = enter()))
		sched_yield();
	lib.free(resource, p, size, HETMEM_STREAM_HOST);
	leave(slot);
}
