// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Several processes share one device and keep a reserve: what they allocate, free, put to sleep,
 * wake, move and give back is random, and so are their limits. Another process watches:
 *
 *	free memory is below the reserve by one handle of each process at most, and only while
 *	a call runs;
 *	no process fails while its share fits: the shares and the reserve fit together, and
 *	blocks have one size, so that no free memory is beside a live block;
 *	contents stay equal, over a sleep too.
 *
 * An argument is the number of operations of each process, for a long run by hand.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "one_resource.h"

#define DEVICE	(96 * MIB)
#define RESERVE	(32 * MIB)
#define SHARE	(16 * MIB)
#define WORKERS	3
#define HANDLE	(2 * MIB)
#define MOST	(8 * MIB)
#define BLOCKS	8

static struct shared {
	bool ended[WORKERS];
	unsigned int failed[WORKERS], done[WORKERS];
} *shared;

struct one {
	unsigned char *p;
	size_t size;
	int byte;
};

static struct one blocks[BLOCKS];
static size_t live;

/* In a worker: the line of the first thing that is wrong. */
#define must(cond) do {							\
	if (!(cond)) {							\
		printf("# line %d: %s: %s\n", __LINE__, #cond, hetmem_last_error()); \
		fflush(stdout);						\
		_exit(__LINE__ % 251 + 1);				\
	}								\
} while (0)

static void allocate(struct one *b, unsigned int worker, bool guaranteed)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .stream = HOST,
		.bytes = (guaranteed ? 2 : 1 + below(MOST / HANDLE)) * HANDLE, .flags = below(2) ? HETMEM_ALLOC_MOVABLE : 0,
	};
	void *p;
	int err;

	if (live + params.bytes > SHARE && guaranteed)
		return;
	err = hetmem_alloc_with(res, &params, &p);
	if (err) {
		must(err == -ENOMEM && !guaranteed);
		shared->failed[worker]++;
		return;
	}
	*b = (struct one){ p, params.bytes, below(255) + 1 };
	b->p[0] = b->p[b->size / 2] = b->p[b->size - 1] = b->byte;
	live += b->size;
}

static void drop(struct one *b)
{
	must(b->p[0] == b->byte && b->p[b->size / 2] == b->byte && b->p[b->size - 1] == b->byte);
	must(!hetmem_free(res, b->p, b->size, HOST));
	live -= b->size;
	b->p = NULL;
}

/* Its own memory can be gone before it wakes: only a guaranteed share is there again. */
static void sleep_and_wake(bool guaranteed)
{
	must(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP));
	if (guaranteed)
		must(!hetmem_wake(res, NULL));
	else
		must(wait_until(!hetmem_wake(res, NULL)));
}

static void operate(unsigned int worker, bool guaranteed)
{
	struct one *b = &blocks[below(BLOCKS)];
	char text[16];

	switch (below(16)) {
	case 0:
		sleep_and_wake(guaranteed);
		break;
	case 1:
		hetmem_trim(res, below(SHARE), NULL);
		break;
	case 2:
		hetmem_poll(res);
		break;
	case 3:
		/* Below what is live, nothing new is made. */
		snprintf(text, sizeof(text), "%zu", guaranteed ? SHARE : SHARE + below(SHARE));
		must(!hetmem_resource_set(res, "max", text));
		break;
	default:
		if (b->p)
			drop(b);
		else
			allocate(b, worker, guaranteed);
	}
}

static void work(unsigned int worker, unsigned int ops, bool guaranteed)
{
	unsigned int i;
	char spec[80];

	seed = 77 * (worker + 1) + guaranteed;
	open_soft("");
	snprintf(spec, sizeof(spec), "headroom(pool(vmm,handle=2M,max=%zu),keep=%zu)",
		 guaranteed ? SHARE : 2 * SHARE, RESERVE);
	create(spec);
	for (i = 0; i < ops; i++) {
		operate(worker, guaranteed);
		__atomic_store_n(&shared->done[worker], i + 1, __ATOMIC_RELEASE);
	}
	must(stats().requested == live);
	for (i = 0; i < BLOCKS; i++)
		if (blocks[i].p)
			drop(&blocks[i]);
	hetmem_resource_destroy(res);
	close_soft();
}

static size_t left(void)
{
	return DEVICE - device_used();
}

static bool all_ended(void)
{
	unsigned int i;

	for (i = 0; i < WORKERS && __atomic_load_n(&shared->ended[i], __ATOMIC_ACQUIRE); i++)
		;
	return i == WORKERS;
}

static void round_of(unsigned int ops, bool guaranteed)
{
	size_t least = DEVICE, one;
	pid_t pids[WORKERS];
	unsigned int i, low = 0, failed = 0, looks = 0;
	int status, wrong = 0;
	pid_t pid;

	memset(shared, 0, sizeof(*shared));
	fflush(stdout);
	for (i = 0; i < WORKERS; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			work(i, ops, guaranteed);
			_exit(0);
		}
	}
	/* Each process opens its own. */
	open_soft("");
	while (!all_ended()) {
		while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
			for (i = 0; i < WORKERS; i++)
				if (pids[i] == pid) {
					wrong += status != 0;
					__atomic_store_n(&shared->ended[i], true, __ATOMIC_RELEASE);
				}
		one = left();
		if (one < least)
			least = one;
		if (one < RESERVE) {
			low++;
			need(wait_until(left() >= RESERVE), "the reserve is there again");
		}
		if (looks++ % 64 == 0)
			wait_nap();
	}
	for (i = 0; i < WORKERS; i++)
		failed += shared->failed[i];
	printf("# %u operations each: %zu MiB were free at least, %u times below the reserve, %u allocations refused\n",
	       ops, least / MIB, low, failed);
	is(wrong, 0, "%s: each process ends well", guaranteed ? "shares fit" : "shares do not fit");
	ok(least + WORKERS * MOST >= RESERVE, "free memory is at most a handle of each process below the reserve");
	ok(guaranteed || failed, "there was pressure");
	is(left(), DEVICE, "all memory is back");
	close_soft();
}

/* In the middle of a sleep, after what the kernel lets through first. */
static void killed(void)
{
	int status, ready[2];
	pid_t pid;
	char c;

	need(!pipe(ready), "a pipe");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		open_soft("");
		create("pool(vmm)");
		allocate(&blocks[0], 0, false);
		soft_rules(NULL, "cuMemcpyAsync:600s");
		must(write(ready[1], "r", 1) == 1);
		hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP);
		_exit(0);
	}
	need(read(ready[0], &c, 1) == 1, "a process with memory");
	open_soft("");
	ok(left() < DEVICE, "others see its memory");
	kill(pid, SIGKILL);
	need(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "it is killed");
	is(left(), DEVICE, "a killed process leaves no memory in use");
	close_soft();
	close(ready[0]);
	close(ready[1]);
}

static void bad_file(void)
{
	const struct hetmem_params params = { .size = sizeof(params), .driver = "soft" };
	const char *was = getenv("HETMEM_SOFT_SHARED");
	char path[64];

	snprintf(path, sizeof(path), "%s", was);
	setenv("HETMEM_SOFT_SHARED", "/none/none", 1);
	is(hetmem_open(&hm, &params), -EINVAL, "a file that cannot be written: %s", hetmem_last_error());
	setenv("HETMEM_SOFT_SHARED", path, 1);
}

int main(int argc, char **argv)
{
	const unsigned int ops = argc > 1 ? strtoul(argv[1], NULL, 10) : 200;
	char path[] = "/tmp/hetmem-pressure-XXXXXX";
	int fd = mkstemp(path);

	need(fd >= 0, "a file");
	close(fd);
	setenv("HETMEM_SOFT_MEMORY", "96M", 1);
	setenv("HETMEM_SOFT_SHARED", path, 1);
	setenv("HETMEM_RESERVE", "0", 1);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	need(shared != MAP_FAILED, "shared memory");
	hang_limit(argc < 2);
	fflush(stdout);
	bad_file();
	killed();
	round_of(ops, true);
	round_of(ops, false);
	unlink(path);
	return tap_end();
}
