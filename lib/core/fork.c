// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fork(): one registry of everything whose locks are held across it.
 *
 * A forked child has the parent's memory and nothing else: no thread of the
 * driver, no context of the module. A generation that goes up in the child
 * tells it apart at no cost. The child finds whole objects and free locks,
 * because fork() takes, in this order: the registry's lock; then the locks of
 * each registered object, by level, within a level the newest first. Objects
 * above call those below with their locks held, so that this is the order in
 * which they take them as well.
 */
#include "core/core.h"

static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static unsigned int generation;
static struct hm_fork *registry;

unsigned int hm_generation(void)
{
	return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

static void before_fork(void)
{
	struct hm_fork *f;

	pthread_mutex_lock(&fork_lock);
	for (f = registry; f; f = f->next)
		f->hold(f);
}

static void let_go_all(bool child)
{
	struct hm_fork *f;

	for (f = registry; f; f = f->next)
		f->let_go(f, child);
	pthread_mutex_unlock(&fork_lock);
}

static void in_parent(void)
{
	let_go_all(false);
}

static void in_child(void)
{
	__atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
	let_go_all(true);
}

static void watch_fork(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

void hm_fork_lock(void)
{
	pthread_once(&fork_once, watch_fork);
	pthread_mutex_lock(&fork_lock);
}

void hm_fork_unlock(void)
{
	pthread_mutex_unlock(&fork_lock);
}

void hm_fork_add(struct hm_fork *fork)
{
	struct hm_fork **link = &registry;

	hm_fork_lock();
	while (*link && (*link)->level < fork->level)
		link = &(*link)->next;
	fork->next = *link;
	*link = fork;
	hm_fork_unlock();
}

void hm_fork_remove(struct hm_fork *fork)
{
	struct hm_fork **link = &registry;

	hm_fork_lock();
	while (*link && *link != fork)
		link = &(*link)->next;
	if (*link)
		*link = fork->next;
	hm_fork_unlock();
}

static void hold_lock(struct hm_fork *fork)
{
	struct hm_lock *l = (struct hm_lock *)fork;

	pthread_mutex_lock(&l->mutex);
}

static void let_go_lock(struct hm_fork *fork, bool child)
{
	struct hm_lock *l = (struct hm_lock *)fork;

	(void)child;
	pthread_mutex_unlock(&l->mutex);
}

void hm_lock_init(struct hm_lock *lock, enum hm_fork_level level)
{
	pthread_mutex_init(&lock->mutex, NULL);
	lock->fork = (struct hm_fork){
		.level = level, .hold = hold_lock, .let_go = let_go_lock,
	};
	hm_fork_add(&lock->fork);
}

void hm_lock_destroy(struct hm_lock *lock)
{
	hm_fork_remove(&lock->fork);
	pthread_mutex_destroy(&lock->mutex);
}

void hm_nap(pthread_mutex_t *lock, unsigned int *naps)
{
	const unsigned int shift = *naps < 6 ? *naps : 6;
	const struct timespec nap = { .tv_nsec = 20000 << shift };

	++*naps;
	pthread_mutex_unlock(lock);
	nanosleep(&nap, NULL);
	pthread_mutex_lock(lock);
}

uint64_t hm_thread(void)
{
	static uint64_t nr;
	static __thread uint64_t id;

	if (!id)
		id = __atomic_add_fetch(&nr, 1, __ATOMIC_RELAXED);
	return id;
}
