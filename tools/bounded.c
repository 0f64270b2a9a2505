/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Calls that may never return: see bounded.h. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bounded.h"
#include "util.h"

/* With the buffers of source.c, which each thread has. */
#define STACK	(1 << 20)

/**
 * struct bounded - a call
 * @fd: an eventfd that the thread writes when @fn has returned
 * @lock: protects @returned and @drop. The second of the thread and bounded_end() frees the call
 */
struct bounded {
	void (*fn)(void *arg);
	void *arg;
	int fd;
	pthread_mutex_t lock;
	bool returned;
	void (*drop)(void *arg);
};

static void destroy(struct bounded *b)
{
	pthread_mutex_destroy(&b->lock);
	close(b->fd);
	free(b);
}

static void *run(void *arg)
{
	struct bounded *b = arg;
	const uint64_t one = 1;
	void (*drop)(void *arg);

	b->fn(b->arg);
	pthread_mutex_lock(&b->lock);
	b->returned = true;
	drop = b->drop;
	/* The first write to an eventfd does not block. */
	if (write(b->fd, &one, sizeof(one)) < 0)
		abort();
	pthread_mutex_unlock(&b->lock);
	if (drop) {
		drop(b->arg);
		destroy(b);
	}
	return NULL;
}

struct bounded *bounded_begin(void (*fn)(void *arg), void *arg)
{
	struct bounded *b = xcalloc(1, sizeof(*b));
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	b->fn = fn;
	b->arg = arg;
	b->fd = eventfd(0, EFD_CLOEXEC);
	if (b->fd < 0) {
		free(b);
		return NULL;
	}
	pthread_mutex_init(&b->lock, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&thread, &attr, run, b);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (!err)
		return b;
	destroy(b);
	return NULL;
}

int bounded_fd(const struct bounded *b)
{
	return b->fd;
}

bool bounded_wait(const struct bounded *b, double end)
{
	struct pollfd fd = { .fd = b->fd, .events = POLLIN };
	int n;

	do {
		const double left = end - now();

		n = poll(&fd, 1, left <= 0 ? 0 : left < 3600 ? 1000 * left + 1 : 3600000);
	} while (n < 0 && errno == EINTR && now() < end);
	return n > 0;
}

bool bounded_end(struct bounded *b, void (*drop)(void *arg))
{
	bool returned;

	pthread_mutex_lock(&b->lock);
	returned = b->returned;
	b->drop = drop;
	pthread_mutex_unlock(&b->lock);
	if (returned)
		destroy(b);
	return returned;
}
