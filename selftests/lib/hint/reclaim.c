// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Requests to other processes: pools give back what is free, within give= and min=; a process that
 * makes no calls and has no agent is silent, and its request is withdrawn; limits change; nobody
 * asks another user's process; rubbish in the file, and death of an asking process, do no harm.
 *
 * Workers are child processes. As root, they and this process become a user of their own, so
 * that no process of other tests is asked.
 */
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <hetmem/hint.h>

#include "below.h"
#include "hint/ask.h"
#include "one_resource.h"

#define SECOND	1000000000ULL

/* What a worker does when its pool has free memory: cached calls, nothing, nothing with an agent. */
enum doing { BUSY, IDLE, AGENT };

/* Shared with the workers. */
static struct shared {
	bool go, ended;
	uint64_t reserved;
} *shared;

struct worker {
	pid_t pid;
	int done;
};

static void set_user(uid_t uid)
{
	need(getuid() || !setreuid(uid, uid), "a user");
	/* Else /proc/self/fd is root's. */
	prctl(PR_SET_DUMPABLE, 1);
}

/* Allocates @bytes in pieces of 2 MiB, and frees them. */
static void make_free(size_t bytes)
{
	void *p[64];
	size_t i, nr = bytes / (2 * MIB);

	for (i = 0; i < nr; i++)
		need(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p[i]), "%s", hetmem_last_error());
	for (i = 0; i < nr; i++)
		hetmem_free(res, p[i], 0, HOST);
}

static void work(const char *spec, enum doing doing, int done)
{
	const struct hetmem_agent_params agent = { .size = sizeof(agent) };
	void *p;

	open_soft("");
	create(spec);
	need(!hetmem_alloc(res, 100, 0, HOST, &p), "a block that stays");
	make_free(64 * MIB);
	if (doing == AGENT)
		need(!hetmem_agent_start(hm, &agent), "%s", hetmem_last_error());
	need(write(done, "r", 1) == 1, "ready");
	while (!__atomic_load_n(&shared->go, __ATOMIC_ACQUIRE)) {
		if (doing == BUSY) {
			need(!hetmem_alloc(res, 100, 0, HOST, &p), "a cached block");
			hetmem_free(res, p, 0, HOST);
		} else {
			wait_nap();
		}
	}
	/* A call that would answer what is still asked. */
	hetmem_poll(res);
	shared->reserved = stats().reserved;
}

static struct worker start_worker(const char *spec, enum doing doing)
{
	struct worker w;
	int fds[2];
	char c;

	shared->go = false;
	need(!pipe(fds), "a pipe");
	fflush(stdout);
	w.pid = fork();
	need(w.pid >= 0, "a worker");
	if (!w.pid) {
		work(spec, doing, fds[1]);
		_exit(0);
	}
	close(fds[1]);
	w.done = fds[0];
	need(read(w.done, &c, 1) == 1, "a worker that is ready");
	return w;
}

/* Returns what the worker held at its end. */
static uint64_t end_worker(struct worker w)
{
	int status;

	__atomic_store_n(&shared->go, true, __ATOMIC_RELEASE);
	need(waitpid(w.pid, &status, 0) == w.pid && !status, "the worker ends well");
	close(w.done);
	return shared->reserved;
}

/* Answers of the workers, by their PIDs. */
static struct hetmem_reclaimed got[4];
static unsigned int nr_got;
static pid_t mine[2];

static void each(void *arg, const struct hetmem_reclaimed *r)
{
	(void)arg;
	if (r->pid == mine[0] || r->pid == mine[1])
		got[nr_got++ % 4] = *r;
}

static uint64_t reclaim(uint64_t bytes, unsigned int ms)
{
	const struct hetmem_reclaim params = {
		.size = sizeof(params), .device = HETMEM_RECLAIM_ALL, .bytes = bytes,
		.timeout_ms = ms, .each = each,
	};
	struct hetmem_reclaimed sum = { .size = sizeof(sum) };
	uint64_t given = 0;
	unsigned int i;

	nr_got = 0;
	memset(got, 0, sizeof(got));
	need(!hetmem_reclaim(NULL, &params, &sum), "%s", hetmem_last_error());
	for (i = 0; i < nr_got; i++)
		given += got[i].bytes;
	return given;
}

static void test_give(const char *spec, uint64_t least, uint64_t most)
{
	const struct worker w = start_worker(spec, BUSY);
	uint64_t given;

	mine[0] = w.pid;
	/* time: only a worker that does not answer takes it */
	given = reclaim(0, 60000);
	ok(nr_got == 1 && got[0].asked && !got[0].silent, "%s: the process answers", spec);
	ok(given >= least && given <= most, "%s: gives %llu", spec, (unsigned long long)given);
	ok(end_worker(w) <= 68 * MIB - given, "%s: and holds less", spec);
}

static void test_size(void)
{
	const struct worker a = start_worker("pool(device)", BUSY);
	const struct worker b = start_worker("pool(vmm)", BUSY);
	uint64_t given;

	mine[0] = a.pid;
	mine[1] = b.pid;
	/* time: as above */
	given = reclaim(100 * MIB, 60000);
	ok(given >= 100 * MIB && nr_got == 2, "two processes give 100 MiB together: %llu",
	   (unsigned long long)given);
	end_worker(a);
	waitpid(b.pid, NULL, 0);
	close(b.done);
	mine[1] = 0;
}

static void test_idle(void)
{
	struct worker w = start_worker("pool(vmm)", IDLE);
	uint64_t given;

	mine[0] = w.pid;
	/* time: an idle process lets all of it pass */
	given = reclaim(0, 50);
	ok(!given && nr_got == 1 && got[0].silent, "a process without calls and agent is silent");
	ok(end_worker(w) >= 60 * MIB, "what it was asked for is withdrawn");
	w = start_worker("pool(vmm)", AGENT);
	mine[0] = w.pid;
	/* time: only an agent that does not answer takes it */
	given = reclaim(0, 60000);
	ok(given >= 60 * MIB && nr_got == 1 && !got[0].silent, "its agent answers");
	end_worker(w);
}

/* Asks pool @i of @pid until it answers; returns its answer's err. */
static int ask(pid_t pid, unsigned int i, enum hm_asked_op op, uint64_t bytes,
	       struct hm_asked_pool *answer)
{
	static struct hm_target t;
	int err = hm_target_open(pid, hm_now() + 60 * SECOND, &t);
	uint32_t request;

	if (err)
		return err;
	request = hm_target_ask(&t, i, op, bytes);
	need(wait_until(hm_target_answered(&t, i, request, answer)), "an answer");
	hm_target_close(&t);
	return answer->err;
}

static uint64_t max_of(pid_t pid)
{
	static struct hm_target t;

	need(!hm_target_open(pid, hm_now() + 60 * SECOND, &t), "figures");
	hm_target_close(&t);
	return t.figures.pools[0].max;
}

static void test_max(void)
{
	struct worker w = start_worker("pool(vmm,max=256M,min=4M)", BUSY);
	struct hm_asked_pool answer;

	is(ask(w.pid, 0, HM_ASKED_MAX, 16 * MIB, &answer), 0, "a limit is lowered");
	is(max_of(w.pid), 16 * MIB, "which is published");
	is(ask(w.pid, 0, HM_ASKED_MAX, MIB, &answer), -EINVAL, "max= below min=");
	ok(strstr(answer.text, "min"), "tells so: %s", answer.text);
	is(ask(w.pid, 0, HM_ASKED_MAX, 0, &answer), -EINVAL, "max= of nothing");
	is(max_of(w.pid), 16 * MIB, "and changes nothing");
	is(ask(w.pid, 0, 77, 0, &answer), -EOPNOTSUPP, "a request that is not known");
	ok(end_worker(w) <= 16 * MIB, "free memory beyond the limit went");
}

/* The process has a private mapping of it, and reads it at each slow call. */
static void test_rubbish(void)
{
	struct worker w = start_worker("pool(vmm,max=256M)", BUSY);
	static struct hm_target t;
	struct hm_asked_pool answer;
	unsigned int i, n;

	need(!hm_target_open(w.pid, hm_now() + 60 * SECOND, &t), "the process");
	for (n = 0; n < 2000; n++) {
		unsigned char *p = (unsigned char *)&t.asked->pools[below(2)];

		for (i = 0; i < sizeof(answer); i++)
			p[i] = below(256);
	}
	memset(t.asked->pools, 0, sizeof(t.asked->pools));
	hm_target_close(&t);
	is(ask(w.pid, 0, HM_ASKED_MAX, 128 * MIB, &answer), 0, "after rubbish the process answers");
	end_worker(w);
}

static void test_killed(void)
{
	struct worker w = start_worker("pool(vmm)", IDLE);
	static struct hm_target t;
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		need(!hm_target_open(w.pid, hm_now() + 60 * SECOND, &t), "the process");
		hm_target_ask(&t, 0, HM_ASKED_RECLAIM, MIB);
		kill(getpid(), SIGKILL);
	}
	need(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "an asking process is killed");
	need(!hm_target_open(w.pid, hm_now() + 60 * SECOND, &t), "another one can ask");
	is(hm_target_open(w.pid, 0, &(struct hm_target){ 0 }), -EBUSY, "one at a time");
	hm_target_close(&t);
	mine[0] = w.pid;
	/* time: an idle process lets all of it pass */
	reclaim(0, 50);
	ok(nr_got == 1 && got[0].silent, "the process is asked again");
	end_worker(w);
}

static void test_others(void)
{
	struct worker w = start_worker("pool(vmm)", IDLE);
	static struct hm_target t;
	int status;
	pid_t pid;

	is(hm_target_open(INT32_MAX, 0, &t), -ESRCH, "no such process");
	is(hm_target_open(getpid(), 0, &t), -ENXIO, "a process without pools");
	is(hm_target_open(1, 0, &t), -EPERM, "another user's process");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		setenv("HETMEM_PUBLISH", "0", 1);
		work("pool(vmm)", IDLE, open("/dev/null", O_WRONLY));
		_exit(0);
	}
	/* It has its pool when it has written to the descriptor; it needs none. */
	is(hm_target_open(pid, 0, &t), -ENXIO, "a process that publishes nothing");
	end_worker(w);
	need(waitpid(pid, &status, 0) == pid && !status, "it ends well");
}

/* The pool of a forked child is not its parent's. */
static void test_fork(void)
{
	struct worker w;
	struct hm_asked_pool answer;
	int status, fds[2];
	pid_t pid;
	char c;

	open_soft("");
	create("pool(host)");
	make_free(16 * MIB);
	need(!pipe(fds), "a pipe");
	shared->go = false;
	fflush(stdout);
	pid = fork();
	if (!pid) {
		need(write(fds[1], "r", 1) == 1, "ready");
		while (!__atomic_load_n(&shared->go, __ATOMIC_ACQUIRE))
			hetmem_poll(res);
		_exit(stats().reserved ? 1 : 0);
	}
	need(read(fds[0], &c, 1) == 1, "a child");
	w = (struct worker){ pid, fds[0] };
	is(ask(pid, 0, HM_ASKED_RECLAIM, UINT64_MAX, &answer), 0, "a forked child answers");
	ok(answer.done >= 16 * MIB && stats().reserved >= 16 * MIB, "and its parent keeps its memory");
	__atomic_store_n(&shared->go, true, __ATOMIC_RELEASE);
	ok(waitpid(w.pid, &status, 0) == w.pid && !status, "the child's memory went");
	close(fds[0]);
	close(fds[1]);
	hetmem_resource_destroy(res);
	close_soft();
}

/* Pools come and go while others ask and the agent answers. */
static void test_destroy(void)
{
	const struct hetmem_agent_params agent = { .size = sizeof(agent) };
	static struct hm_target t;
	int status, i;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		open_soft("");
		need(!hetmem_agent_start(hm, &agent), "an agent");
		need(hetmem_agent_start(hm, &agent) == -EBUSY, "one agent");
		for (i = 0; i < 200; i++) {
			create("pool(device)");
			make_free(4 * MIB);
			hetmem_resource_destroy(res);
		}
		need(!hetmem_agent_stop(hm) && hetmem_agent_stop(hm) == -ENOENT, "the agent ends");
		close_soft();
		_exit(0);
	}
	while (!waitpid(pid, &status, WNOHANG)) {
		if (hm_target_open(pid, hm_now(), &t))
			continue;
		for (i = 0; i < 4; i++)
			hm_target_ask(&t, 0, HM_ASKED_RECLAIM, MIB);
		hm_target_close(&t);
	}
	is(status, 0, "pools come and go while others ask");
}

static void test_bad(void)
{
	struct hetmem_reclaim params = { .size = sizeof(params) - 1 };
	struct hetmem_reclaimed sum = { .size = 1 };

	is(hetmem_reclaim(NULL, NULL, NULL), -EINVAL, "no parameters");
	is(hetmem_reclaim(NULL, &params, NULL), -EINVAL, "a short struct");
	params.size++;
	is(hetmem_reclaim(NULL, &params, NULL), -EINVAL, "a device without the library");
	params.device = HETMEM_RECLAIM_ALL - 1;
	is(hetmem_reclaim(NULL, &params, NULL), -EINVAL, "a device below all");
	params.device = HETMEM_RECLAIM_ALL;
	is(hetmem_reclaim(NULL, &params, &sum), -EINVAL, "a short result");
	params.timeout_ms = 600001;
	is(hetmem_reclaim(NULL, &params, NULL), -EINVAL, "too long a time");
	open_soft("");
	params.timeout_ms = 0;
	params.device = 99;
	is(hetmem_reclaim(hm, &params, NULL), -ENODEV, "no such device");
	params.device = 0;
	is(hetmem_reclaim(hm, &params, NULL), 0, "a device that nobody has memory of");
	close_soft();
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	need(shared != MAP_FAILED, "shared memory");
	set_user(30000 + getpid() % 20000);
	test_bad();
	test_give("pool(vmm)", 60 * MIB, 68 * MIB);
	test_give("pool(device)", 32 * MIB, 68 * MIB);
	test_give("pool(host)", 32 * MIB, 68 * MIB);
	test_give("pool(vmm,give=8M)", 2 * MIB, 8 * MIB);
	test_give("pool(vmm,give=0)", 0, 0);
	test_give("pool(vmm,min=32M)", 28 * MIB, 36 * MIB);
	test_size();
	test_idle();
	test_max();
	test_rubbish();
	test_killed();
	test_others();
	test_fork();
	test_destroy();
	return tap_end();
}
