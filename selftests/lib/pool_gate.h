/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A gate that streams can be held up at, and counts of what a pool asks of the
 * driver to order streams.
 */
#ifndef HETMEM_SELFTESTS_POOL_GATE_H
#define HETMEM_SELFTESTS_POOL_GATE_H

#include "new_stream.h"
#include "pool.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_open;
static int passed;
__attribute__((unused))
static unsigned int nr_records, nr_waits, nr_queries;
static struct hm_driver real;

static CUresult count_record(CUevent event, CUstream stream)
{
	__atomic_add_fetch(&nr_records, 1, __ATOMIC_RELAXED);
	return real.cuEventRecord(event, stream);
}

static CUresult count_wait(CUstream stream, CUevent event, unsigned int flags)
{
	__atomic_add_fetch(&nr_waits, 1, __ATOMIC_RELAXED);
	return real.cuStreamWaitEvent(stream, event, flags);
}

static CUresult count_query(CUevent event)
{
	__atomic_add_fetch(&nr_queries, 1, __ATOMIC_RELAXED);
	return real.cuEventQuery(event);
}

static void wait_for_gate(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	while (!is_open)
		pthread_cond_wait(&opened, &lock);
	pthread_mutex_unlock(&lock);
}

static void pass(void *unused)
{
	(void)unused;
	__atomic_add_fetch(&passed, 1, __ATOMIC_SEQ_CST);
}

__attribute__((unused))
static void close_gate(CUstream stream)
{
	pthread_mutex_lock(&lock);
	is_open = false;
	pthread_mutex_unlock(&lock);
	need(!drv->cuLaunchHostFunc(stream, wait_for_gate, NULL),
	     "a stream waits");
}

__attribute__((unused))
static void open_gate(void)
{
	pthread_mutex_lock(&lock);
	is_open = true;
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&lock);
}

/* For a thread: opens the gate when the main thread waits for it. */
__attribute__((unused))
static void *open_gate_later(void *unused)
{
	(void)unused;
	wait_until(thread_sleeps(getpid(), getpid()));
	open_gate();
	return NULL;
}

/* Gives the stream work, and returns the count of work done before. */
static int give_work(CUstream stream)
{
	int before = __atomic_load_n(&passed, __ATOMIC_SEQ_CST);

	need(!drv->cuLaunchHostFunc(stream, pass, NULL), "work");
	return before;
}

__attribute__((unused))
static bool is_held_up(CUstream stream)
{
	const int before = give_work(stream);

	/* time: work that must not be done has so long to be done all the same */
	usleep(20000);
	return __atomic_load_n(&passed, __ATOMIC_SEQ_CST) == before;
}

__attribute__((unused))
static bool gets_through(CUstream stream)
{
	const int before = give_work(stream);

	return wait_until(__atomic_load_n(&passed, __ATOMIC_SEQ_CST) != before);
}

__attribute__((unused))
static void count_calls(void)
{
	real = hm->driver;
	hm->driver.cuEventRecord = count_record;
	hm->driver.cuStreamWaitEvent = count_wait;
	hm->driver.cuEventQuery = count_query;
}

#endif /* HETMEM_SELFTESTS_POOL_GATE_H */
