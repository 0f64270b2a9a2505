// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Closing the gate, see gate.h: the threads that it knows, and those that wait.
 *
 * The first call of a thread registers it. A thread that ends can still call the driver in its
 * last destructors: from then on hm_gate_close() waits until the kernel no longer has it.
 *
 * Locks: @lock covers the list. fork() holds it. A child knows no thread, and its gate is open.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/core.h"
#include "cuda/gate.h"

/* Between two looks at the threads. */
#define NAP_NS		100000
#define NS_PER_MS	1000000ULL

/* @word: NULL: the thread ends, and its word can be gone */
struct thread {
	struct thread *next;
	uintptr_t *word;
	pid_t tid;
};

_Thread_local uintptr_t hm_gate_word = HM_GATE_NEW;
uint32_t hm_gate_closed;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t ending;
static struct thread *threads;
/* A thread is not in the list: the gate can no longer close. */
static bool unknown;

static void end_thread(void *arg)
{
	struct thread *thread = arg;

	pthread_mutex_lock(&lock);
	thread->word = NULL;
	pthread_mutex_unlock(&lock);
	__atomic_store_n(&hm_gate_word, HM_GATE_LATE, __ATOMIC_RELEASE);
}

static void hold(void)
{
	pthread_mutex_lock(&lock);
}

static void let_go(void)
{
	pthread_mutex_unlock(&lock);
}

static void begin_child(void)
{
	struct thread *thread;

	while ((thread = threads)) {
		threads = thread->next;
		free(thread);
	}
	unknown = false;
	pthread_setspecific(ending, NULL);
	if (!hm_gate_word)
		hm_gate_word = HM_GATE_NEW;
	__atomic_store_n(&hm_gate_closed, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
}

static void begin(void)
{
	if (pthread_key_create(&ending, end_thread) || pthread_atfork(hold, let_go, begin_child))
		unknown = true;
}

static void add_thread(void)
{
	struct thread *thread = malloc(sizeof(*thread));

	pthread_once(&once, begin);
	pthread_mutex_lock(&lock);
	if (thread && !pthread_setspecific(ending, thread)) {
		*thread = (struct thread){ threads, &hm_gate_word, gettid() };
		threads = thread;
	} else {
		free(thread);
		unknown = true;
	}
	pthread_mutex_unlock(&lock);
	__atomic_store_n(&hm_gate_word, 0, __ATOMIC_RELEASE);
}

void hm_gate_wait(void)
{
	const int before = errno;

	if (hm_gate_word == HM_GATE_NEW)
		add_thread();
	/* A signal can end the wait: the caller looks at the gate again. */
	if (__atomic_load_n(&hm_gate_closed, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &hm_gate_closed, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
	errno = before;
}

static bool has_ended(const struct thread *thread)
{
	return syscall(SYS_tgkill, getpid(), thread->tid, 0) && errno == ESRCH;
}

/* Whether every other thread is outside. Forgets those that have ended. */
static bool are_outside(void)
{
	struct thread **link = &threads, *thread;
	bool outside = true;

	pthread_mutex_lock(&lock);
	while ((thread = *link)) {
		if (!thread->word && has_ended(thread)) {
			*link = thread->next;
			free(thread);
			continue;
		}
		if (thread->word != &hm_gate_word &&
		    (!thread->word || __atomic_load_n(thread->word, __ATOMIC_ACQUIRE)))
			outside = false;
		link = &thread->next;
	}
	pthread_mutex_unlock(&lock);
	return outside;
}

int hm_gate_close(unsigned int wait_ms)
{
	const uint64_t deadline = hm_now() + wait_ms * NS_PER_MS;
	bool known;

	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
		return -ENOSYS;
	__atomic_store_n(&hm_gate_closed, 1, __ATOMIC_SEQ_CST);
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) {
		hm_gate_open();
		return -ENOSYS;
	}
	pthread_mutex_lock(&lock);
	known = !unknown;
	pthread_mutex_unlock(&lock);
	while (known && !are_outside()) {
		if (hm_now() >= deadline) {
			hm_gate_open();
			return -EBUSY;
		}
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	}
	if (known)
		return 0;
	hm_gate_open();
	return -ENOMEM;
}

void hm_gate_open(void)
{
	__atomic_store_n(&hm_gate_closed, 0, __ATOMIC_RELEASE);
	syscall(SYS_futex, &hm_gate_closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
