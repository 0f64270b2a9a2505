// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints through the library within one process: an executor with a thread and
 * one without, what it moves, in which order, what it puts together, and how
 * each asker is answered. Other processes are vm_emu_hint_peer.c's.
 */
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "hint/peer.h"
#include "numbers.h"

#define MIB		((size_t)1 << 20)
#define DEVICE(n)	HETMEM_LOC(HETMEM_DEVICE, n)
#define ANY_HOST	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define LONG_MS		60000

static size_t page;
static struct hetmem_peer *self;

static char *memory(size_t size)
{
	size_t i;
	void *p;

	need(!hetmem_system_alloc(hm, size, &p), "memory");
	for (i = 0; i < size; i++)
		((char *)p)[i] = i * 7 + i / page;
	return p;
}

static size_t wrong(const char *p, size_t size)
{
	size_t i, bad = 0;

	for (i = 0; i < size; i++)
		bad += p[i] != (char)(i * 7 + i / page);
	return bad;
}

static struct hetmem_executor *open_executor(unsigned int flags)
{
	struct hetmem_executor_params params = { .size = sizeof(params),
						 .flags = flags };
	struct hetmem_executor *x = NULL;

	need(!hetmem_executor_open(hm, &params, &x), "an executor: %s",
	     hetmem_last_error());
	return x;
}

static struct hetmem_executor_stats stats_of(struct hetmem_executor *x)
{
	struct hetmem_executor_stats s = { .size = sizeof(s) };

	hetmem_executor_stats(x, &s);
	return s;
}

static int ask(const void *p, size_t size, uint32_t location,
	       struct hetmem_hinted *h)
{
	*h = (struct hetmem_hinted){ .size = sizeof(*h) };
	return hetmem_hint(self, (uintptr_t)p, size, location, NULL, LONG_MS, h);
}

/* A page now and then stays for a moment: asked again, it goes. */
static void ask_until_there(const char *p, size_t size, uint32_t location,
			    const char *name)
{
	struct hetmem_hinted h;
	uint64_t moved = 0;
	int err = 0, i;

	for (i = 0; i < 20; i++) {
		err = ask(p, size, location, &h);
		moved += h.moved;
		if (err || pages_on(p, size, location) == size / page)
			break;
	}
	is(err, 0, "%s: answered", name);
	is(h.answered, 1, "by the executor");
	is(moved, size / page, "moved");
	is(pages_on(p, size, location), size / page, "are there");
}

static void errors(void)
{
	struct hetmem_params none = { .size = sizeof(none), .driver = "soft",
				      .module_path = "" };
	struct hetmem_executor_params params = { .size = sizeof(params) };
	struct hetmem_executor_stats small = { .size = 1 };
	struct hetmem_hinted h = { .size = 1 };
	struct hetmem_executor *x = NULL, *other = NULL;
	struct hetmem_peer *peer;
	struct hetmem *bare;

	is(hetmem_executor_open(NULL, NULL, &x), -EINVAL, "no library");
	is(hetmem_executor_open(hm, NULL, NULL), -EINVAL, "no result");
	params.size--;
	is(hetmem_executor_open(hm, &params, &x), -EINVAL, "a short struct");
	params = (struct hetmem_executor_params){ .size = sizeof(params),
						  .flags = 4 };
	is(hetmem_executor_open(hm, &params, &x), -EINVAL, "unknown flags");
	need(!hetmem_open(&bare, &none), "without the module");
	is(hetmem_executor_open(bare, NULL, &x), -EOPNOTSUPP, "no executor");
	is(hetmem_list(bare, NULL, 0), -EOPNOTSUPP, "nor a list");
	hetmem_close(bare);
	ok(!x, "there is none");

	/* There is a library open, but nobody carries anything out. */
	is(hetmem_hint(self, page, page, DEVICE(0), NULL, 1000, NULL), -ENXIO,
	   "nobody to ask: %s", hetmem_last_error());
	x = open_executor(0);
	is(hetmem_executor_open(hm, NULL, &other), -EBUSY,
	   "another one: %s", hetmem_last_error());
	is(hetmem_hint(NULL, page, page, DEVICE(0), NULL, 1, NULL), -EINVAL,
	   "no peer");
	is(hetmem_hint(self, page, page, DEVICE(0), NULL, 1, &h), -EINVAL,
	   "a short answer");
	is(hetmem_hint(self, page, 0, DEVICE(0), NULL, 1, NULL), -EINVAL, "nothing");
	is(hetmem_hint(self, -page, 2 * page, DEVICE(0), NULL, 1, NULL), -EINVAL,
	   "round the end");
	is(hetmem_hint(self, page, page, DEVICE(0), NULL, 0, NULL), -EINVAL,
	   "no time");
	is(hetmem_hint(self, page, page, DEVICE(99), NULL, 1, NULL), -ENXIO,
	   "a device that is not there");
	is(hetmem_executor_stats(x, &small), -EINVAL, "short statistics");
	is(hetmem_executor_run(x), 0, "nothing was asked");
	hetmem_executor_close(x);
	x = open_executor(HETMEM_EXECUTOR_THREAD);
	is(hetmem_executor_run(x), -EINVAL, "its thread does that");
	hetmem_executor_close(x);
	hetmem_executor_close(NULL);

	is(hetmem_peer_open(0, &peer), -EINVAL, "no process");
	is(hetmem_peer_open(INT32_MAX, &peer), -ESRCH, "one that is gone: %s",
	   hetmem_last_error());
	is(hetmem_peer_open(1, &peer), -ENXIO, "one without the module: %s",
	   hetmem_last_error());
	is(hetmem_peer_adopt(0, &peer), -EINVAL, "another file: %s",
	   hetmem_last_error());
	is(hetmem_peer_adopt(-1, &peer), -EINVAL, "no file");
	hetmem_peer_close(NULL);
}

static void there_and_back(void)
{
	const size_t size = 4 * MIB;
	struct hetmem_executor *x = open_executor(HETMEM_EXECUTOR_THREAD);
	struct hetmem_executor_stats s;
	struct hetmem_hinted h;
	char *p = memory(size);

	ask_until_there(p, size, DEVICE(0), "to device 0");
	is(ask(p, size, DEVICE(0), &h), 0, "again");
	is(h.moved, 0, "nothing to do");
	ask_until_there(p, size, DEVICE(1), "to device 1");
	ask_until_there(p, size, ANY_HOST, "to the host");
	is(wrong(p, size), 0, "contents");
	ask_until_there(p + page, page, DEVICE(0), "one page");
	is(pages_on(p, size, DEVICE(0)), 1, "and no more");
	is(ask(p + 2 * page + 5, 1, DEVICE(0), &h), 0, "a byte");
	is(h.moved, 1, "is its page");
	s = stats_of(x);
	ok(s.hints >= 6 && s.hints == s.moves, "%llu hints, each a move",
	   (unsigned long long)s.hints);
	ok(s.moved >= 3 * size / page, "%llu pages",
	   (unsigned long long)s.moved);
	is(s.failed + s.refused + s.withdrawn, 0, "nothing else");
	hetmem_executor_close(x);
	is(wrong(p, size), 0, "contents");
	hetmem_system_free(hm, p);
}

static void holes(void)
{
	struct hetmem_executor *x = open_executor(HETMEM_EXECUTOR_THREAD);
	char *p = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hetmem_hinted h;

	need(p != MAP_FAILED, "memory");
	memset(p, 1, 8 * page);
	munmap(p + 2 * page, 2 * page);
	ask_until_there(p, 2 * page, DEVICE(0), "before the hole");
	is(ask(p, 8 * page, DEVICE(0), &h), 0, "with a hole");
	is(h.moved, 4, "what is behind it moves");
	is(pages_on(p, 8 * page, DEVICE(0)), 6, "all that there is");
	is(ask(p + 2 * page, 2 * page, DEVICE(0), &h), 0, "only the hole");
	is(h.moved, 0, "is nothing");
	is(ask(p, 8 * page, ANY_HOST, &h), 0, "back");
	is(h.moved, 6, "all of it");
	munmap(p, 8 * page);
	hetmem_executor_close(x);
}

/* Who asks cannot make a process use memory that it does not use. */
static void untouched(void)
{
	const size_t size = 64 * MIB;
	struct hetmem_executor *x = open_executor(HETMEM_EXECUTOR_THREAD);
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct hetmem_hinted h;
	size_t i;

	need(p != MAP_FAILED, "memory");
	madvise(p, size, MADV_NOHUGEPAGE);
	is(ask(p, size, DEVICE(0), &h), 0, "memory that was never touched");
	is(h.moved, 0, "does not move");
	for (i = 0; i < 8; i++)
		p[i * 8 * MIB] = i + 1;
	is(ask(p, size, DEVICE(0), &h), 0, "eight pages of it were");
	is(h.moved, 8, "and move");
	is(pages_on(p, size, DEVICE(0)), 8, "alone");
	is(pages_on(p, size, HETMEM_LOC(HETMEM_UNKNOWN, 0)), size / page - 8,
	   "the rest is as it was");
	for (i = 0; i < 8; i++)
		ok(p[i * 8 * MIB] == (char)(i + 1), "contents of page %zu", i);
	munmap(p, size);
	hetmem_executor_close(x);
}

/* What @accept saw last, and what it is to say. */
static struct { const void *p; size_t size; uint32_t location; int say; } seen;

static int accept_hint(void *arg, const void *p, size_t size,
		       uint32_t location)
{
	ok(arg == &seen, "its argument");
	seen.p = p;
	seen.size = size;
	seen.location = location;
	return seen.say;
}

static void refuse(void)
{
	struct hetmem_executor_params params = {
		.size = sizeof(params),
		.flags = HETMEM_EXECUTOR_THREAD,
		.accept = accept_hint,
		.arg = &seen,
	};
	struct hetmem_executor_stats s;
	struct hetmem_executor *x;
	char *p = memory(MIB);
	struct hetmem_hinted h;

	need(!hetmem_executor_open(hm, &params, &x), "one that may refuse");
	seen.say = -EACCES;
	is(ask(p, MIB, DEVICE(1), &h), -EACCES, "refused: %s",
	   hetmem_last_error());
	is(h.answered, 1, "by the executor");
	is(h.moved, 0, "nothing moved");
	ok(seen.p == p && seen.size == MIB && seen.location == DEVICE(1),
	   "it knew what was asked");
	is(pages_on(p, MIB, DEVICE(1)), 0, "indeed");
	seen.say = 1;
	is(ask(p, MIB, ANY_HOST, &h), -EPERM, "an answer that is none");
	ok(seen.location == ANY_HOST, "to the host");
	seen.say = 0;
	is(ask(p, MIB, DEVICE(1), &h), 0, "accepted");
	is(h.moved, MIB / page, "and moved");
	s = stats_of(x);
	is(s.refused, 2, "two were refused");
	is(s.failed, 2, "none failed but those");
	is(s.hints, 3, "three were answered");
	is(s.moves, 1, "one was carried out");
	hetmem_executor_close(x);
	hetmem_system_free(hm, p);
}

/* A hint from a thread of its own, that waits. */
struct asker {
	pthread_t thread;
	const char *p;
	size_t size;
	uint32_t location;
	unsigned int timeout_ms;
	struct hetmem_hinted hinted;
	int err;
};

static void *asking(void *arg)
{
	struct asker *a = arg;

	a->hinted.size = sizeof(a->hinted);
	a->err = hetmem_hint(self, (uintptr_t)a->p, a->size, a->location, NULL,
			     a->timeout_ms, &a->hinted);
	return NULL;
}

static unsigned int hints_waiting(void)
{
	struct hetmem_list_entry e[16];
	ssize_t n = hetmem_list(hm, e, 16), i;
	unsigned int sum = 0;

	for (i = 0; i < n && i < 16; i++)
		if (e[i].pid == (uint32_t)getpid())
			sum += e[i].nr_hints;
	return sum;
}

static void start(struct asker *a, const char *p, size_t size,
		  uint32_t location)
{
	unsigned int before = hints_waiting();

	*a = (struct asker){ .p = p, .size = size, .location = location,
			     .timeout_ms = LONG_MS };
	need(!pthread_create(&a->thread, NULL, asking, a), "an asker");
	need(wait_until(hints_waiting() > before) && hints_waiting() == before + 1,
	     "its hint waits");
}

/*
 * Three hints that overlap, one that is apart, then one elsewhere, and the
 * first again: four moves, in this order.
 */
static void merge(void)
{
	struct hetmem_executor *x = open_executor(0);
	struct pollfd pfd = { .fd = hetmem_executor_fd(x), .events = POLLIN };
	struct hetmem_executor_stats s;
	struct asker a[6];
	char *p = memory(8 * MIB);
	int i;

	is(poll(&pfd, 1, 0), 0, "nothing waits");
	start(&a[0], p + MIB, 2 * MIB, DEVICE(0));
	is(poll(&pfd, 1, 0), 1, "poll() tells");
	start(&a[1], p, 2 * MIB, DEVICE(0));
	start(&a[2], p + 6 * MIB, MIB, DEVICE(0));
	start(&a[3], p + MIB, MIB, DEVICE(0));
	start(&a[4], p, 4 * MIB, ANY_HOST);
	start(&a[5], p, MIB, DEVICE(1));
	is(hetmem_executor_run(x), 6, "six hints are carried out");
	for (i = 0; i < 6; i++)
		pthread_join(a[i].thread, NULL);
	s = stats_of(x);
	is(s.hints, 6, "and answered");
	is(s.moves, 4, "by four moves");
	for (i = 0; i < 6; i++)
		ok(!a[i].err && a[i].hinted.answered, "hint %d: no error", i);
	is(a[0].hinted.moved, 2 * MIB / page, "each is told of its pages");
	is(a[1].hinted.moved, 2 * MIB / page, "also where others moved them");
	is(a[2].hinted.moved, MIB / page, "the one that is apart");
	is(a[3].hinted.moved, MIB / page, "the one in the others");
	is(a[4].hinted.moved, 3 * MIB / page, "back");
	is(a[5].hinted.moved, MIB / page, "to the other device");
	is(pages_on(p, 8 * MIB, DEVICE(1)), MIB / page, "the last one is last");
	is(pages_on(p, 8 * MIB, DEVICE(0)), MIB / page, "what none took back");
	is(hetmem_executor_run(x), 0, "nothing is left");
	is(poll(&pfd, 1, 0), 0, "poll() agrees");
	is(wrong(p, 8 * MIB), 0, "contents");
	hetmem_executor_close(x);
	hetmem_system_free(hm, p);
}

static void unanswered(void)
{
	struct hetmem_executor *x = open_executor(0);
	struct hetmem_hinted h = { .size = sizeof(h), .moved = 77 };
	struct asker a;
	char *p = memory(MIB);

	is(hetmem_hint(self, (uintptr_t)p, MIB, DEVICE(0), NULL, 50, &h),
	   -ETIMEDOUT, "nobody answers: %s", hetmem_last_error());
	is(h.answered, 0, "it says so");
	is(h.moved, 0, "nothing moved");
	is(hetmem_executor_run(x), 1, "it is carried out all the same");
	is(stats_of(x).withdrawn, 1, "for nobody");
	is(stats_of(x).hints, 0, "and not answered");

	start(&a, p, MIB, ANY_HOST);
	hetmem_executor_close(x);
	pthread_join(a.thread, NULL);
	is(a.err, -EOWNERDEAD, "the executor goes");
	is(a.hinted.answered, 0, "without an answer");
	is(hetmem_hint(self, (uintptr_t)p, MIB, DEVICE(0), NULL, 1, NULL), -ENXIO,
	   "nobody is left");
	hetmem_system_free(hm, p);
}

/* Nobody has to touch the child for its hints to be the parent's. */
static void forked(void)
{
	struct hetmem_executor *x = open_executor(HETMEM_EXECUTOR_THREAD);
	struct hetmem_hinted h;
	char *p = memory(MIB);
	int status = -1;
	pid_t pid;

	pid = fork();
	if (!pid) {
		struct hetmem_executor *own = NULL;

		if (hetmem_executor_run(x) != -EOWNERDEAD)
			_exit(1);
		if (hetmem_executor_open(hm, NULL, &own) != -EOWNERDEAD)
			_exit(2);
		hetmem_executor_close(x);
		hetmem_close(hm);
		/* A library and an executor of its own. */
		if (hetmem_open(&hm, NULL) ||
		    hetmem_executor_open(hm, NULL, &own))
			_exit(3);
		hetmem_executor_close(own);
		hetmem_close(hm);
		_exit(wrong(p, MIB) ? 4 : 0);
	}
	waitpid(pid, &status, 0);
	is(status, 0, "a child has no part in it, and can have its own");
	is(ask(p, MIB, DEVICE(0), &h), 0, "the parent's goes on");
	is(wrong(p, MIB), 0, "contents");
	hetmem_executor_close(x);
	hetmem_system_free(hm, p);
}

/* Opened and closed while hints come in: none hangs, none is lost. */
static void *keeps_asking(void *arg)
{
	struct hetmem_hinted h;
	long *counts = arg;
	char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int i, err;

	memset(p, 1, MIB);
	for (i = 0; i < 200; i++) {
		err = ask(p, MIB, i & 1 ? ANY_HOST : DEVICE(i / 2 & 1), &h);
		if (!err)
			counts[0]++;
		else if (err == -ENXIO || err == -EOWNERDEAD)
			counts[1]++;
		else
			counts[2]++;
	}
	munmap(p, MIB);
	return NULL;
}

static void come_and_go(void)
{
	long counts[2][3] = { 0 };
	struct hetmem_executor *x;
	pthread_t t[2];
	int i;

	for (i = 0; i < 2; i++)
		need(!pthread_create(&t[i], NULL, keeps_asking, counts[i]),
		     "who asks all the time");
	for (i = 0; i < 30; i++) {
		x = open_executor(HETMEM_EXECUTOR_THREAD);
		/* time: lives of different lengths */
		usleep(2000 * (i % 5));
		hetmem_executor_close(x);
	}
	x = open_executor(HETMEM_EXECUTOR_THREAD);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	hetmem_executor_close(x);
	for (i = 0; i < 2; i++) {
		is(counts[i][0] + counts[i][1] + counts[i][2], 200,
		   "%ld answered, %ld not", counts[i][0], counts[i][1]);
		is(counts[i][2], 0, "and nothing else");
	}
}

int main(void)
{
	int fds[HM_PEER_CONTEXTS], nr;

	page = sysconf(_SC_PAGESIZE);
	open_soft(NULL);
	nr = hm_peer_contexts(getpid(), fds, HM_PEER_CONTEXTS);
	ok(nr >= 2, "this process has %d contexts: its own, the driver's", nr);
	while (nr > 0)
		close(fds[--nr]);
	need(!hetmem_peer_open(getpid(), &self), "this process as a peer");
	errors();
	there_and_back();
	holes();
	untouched();
	refuse();
	merge();
	unanswered();
	forked();
	come_and_go();
	hetmem_peer_close(self);
	close_soft();
	return tap_end();
}
