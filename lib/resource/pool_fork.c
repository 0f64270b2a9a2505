// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools of host memory go on in a forked child. Their locks are held across
 * fork(), so that the child finds whole pools and free locks. Handlers run
 * before those of the open library, whose lock is taken inside a pool's, and
 * after those of adaptors' tables, whose owners call pools with theirs.
 */
#include "resource/pool_impl.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct pool *list;

static void before_fork(void)
{
	struct pool *p;
	unsigned int i;

	pthread_mutex_lock(&list_lock);
	for (p = list; p; p = p->next) {
		pthread_mutex_lock(&p->lock);
		for (i = 0; i < p->order.nr; i++)
			stream_lock(stream_at(p, i));
	}
}

static void after_fork(void)
{
	struct pool *p;
	unsigned int i;

	for (p = list; p; p = p->next) {
		for (i = 0; i < p->order.nr; i++)
			stream_unlock(stream_at(p, i));
		pthread_mutex_unlock(&p->lock);
	}
	pthread_mutex_unlock(&list_lock);
}

static void watch_fork(void)
{
	pthread_atfork(before_fork, after_fork, after_fork);
}

void hm_pool_fork_watch(void)
{
	pthread_once(&once, watch_fork);
}

void hm_pool_fork_add(struct pool *p)
{
	hm_pool_fork_watch();
	pthread_mutex_lock(&list_lock);
	p->next = list;
	list = p;
	pthread_mutex_unlock(&list_lock);
}

void hm_pool_fork_remove(struct pool *p)
{
	struct pool **link;

	pthread_mutex_lock(&list_lock);
	for (link = &list; *link; link = &(*link)->next) {
		if (*link == p) {
			*link = p->next;
			break;
		}
	}
	pthread_mutex_unlock(&list_lock);
}
