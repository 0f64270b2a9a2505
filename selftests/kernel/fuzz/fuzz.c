// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A fuzzer of the two ioctl interfaces, for the virtual machine: processes
 * with threads that call every command, right and wrong, on memory that is
 * unmapped, moved, protected, merged, swapped, forked and limited meanwhile.
 *
 * usage: fuzz [-t SECONDS] [-s SEED] [-w WORKERS] [-v]
 *
 * A seed repeats what each thread does; what happens at the same time it
 * cannot repeat. Passes if memory with contents that count has them whenever
 * it is read, by the CPU or by the device, if no command returns what it does
 * not document, if every process ends, and if nothing is left when all have.
 * That the kernel does not complain is for who runs it to see. Prints TAP.
 */
#include <getopt.h>
#include <sys/eventfd.h>

#include "fuzz.h"

struct board *board;
char *inherited;

static struct {
	unsigned int seconds, workers;
	uint64_t seed;
	bool verbose, slow;
} opt = { .seconds = 10, .workers = 3 };

uint64_t random_next(struct random *r)
{
	uint64_t x = r->state += 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

uint64_t pick(struct random *r, uint64_t n)
{
	return random_next(r) % n;
}

bool one_in(struct random *r, unsigned int n)
{
	return !pick(r, n);
}

uint64_t seed_of(uint64_t seed, uint64_t a, uint64_t b)
{
	struct random r = { .state = seed ^ a << 32 ^ b << 48 };

	return random_next(&r);
}

__attribute__((noreturn, format(printf, 1, 2)))
void wrong(const char *format, ...)
{
	va_list args;

	if (!atomic_fetch_add(&board->wrong, 1)) {
		va_start(args, format);
		vsnprintf(board->what, sizeof(board->what), format, args);
		va_end(args);
	}
	_exit(STATUS_WRONG);
}

void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static int open_context(struct worker *w)
{
	int fd = hm_open();

	/* Everything that a new context may be refused for. */
	if (fd < 0 && fd != -EDQUOT && fd != -ENOMEM && fd != -EMFILE)
		wrong("open of /dev/hetmem: %d", fd);
	return fd;
}

/* A context that is told of everything, and is asked to move memory. */
static void open_executor(struct worker *w)
{
	struct hetmem_cmd_bind_device bind = {
		.size = sizeof(bind), .flags = HETMEM_BIND_EXECUTOR,
		.location = HETMEM_LOC(HETMEM_FOREIGN, 0),
		.uuid = { 1 },
	};
	size_t size;

	if (ring_make(w->context[0], HETMEM_RING_MIN, ALL_EVENTS, &size) ||
	    hm_ioctl(w->context[0], HETMEM_IOC_BIND_DEVICE, &bind))
		return;
	mmap(at(RING(0)), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
	     w->context[0], 0);
}

/*
 * Reads what an executor is told, and answers it. The ring may not be there
 * any more, and what is in it may be rubbish.
 */
static void execute(struct fuzzer *f)
{
	struct hetmem_cmd_complete complete = { .size = sizeof(complete) };
	size_t size = page_size() + HETMEM_RING_MIN * sizeof(struct hetmem_event);
	char *copy = f->scratch + SCRATCH_SIZE / 2;
	struct hetmem_ring_header *header = (void *)copy;
	static __thread int file = -1;
	const struct hetmem_event *e = (void *)(copy + page_size());
	unsigned int i;

	/* By system calls, which say so where nothing is mapped. */
	if (file < 0)
		file = memfd_create("ring", MFD_CLOEXEC);
	if (pwrite(file, at(RING(0)), size, 0) != (ssize_t)size ||
	    pread(file, copy, size, 0) != (ssize_t)size)
		return;
	if (pread(file, at(RING(0) + offsetof(struct hetmem_ring_header, tail)),
		  sizeof(header->tail), offsetof(struct hetmem_ring_header, head)) < 0)
		return;
	for (i = 0; i < HETMEM_RING_MIN; i++) {
		if (e[i].type != HETMEM_EVENT_HINT)
			continue;
		atomic_store(&board->last_hint, e[i].data);
		complete.id = e[i].data;
		if (!hm_ioctl(f->w->context[0], HETMEM_IOC_COMPLETE, &complete))
			atomic_fetch_add(&board->succeeded[CMD_COMPLETE], 1);
	}
}

static void context_operate(struct fuzzer *f)
{
	unsigned int i = pick(&f->r, FUZZ_CONTEXTS);
	struct worker *w = f->w;
	struct random *r = &f->r;
	struct pollfd p = { .fd = w->context[i], .events = POLLIN | POLLOUT };
	char *ring = at(RING(i));
	uint64_t count;

	switch (pick(r, 10)) {
	case 0:
		w->context[i] = -1;
		close(p.fd);
		w->context[i] = open_context(w);
		if (!i)
			open_executor(w);
		break;
	case 6:
	case 7:
	case 8:
	case 9:
		execute(f);
		break;
	case 1:
		mmap(ring, page_size() << pick(r, 7) | page_size(),
		     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p.fd, 0);
		for (count = 1; count <= 64; count *= 2)
			if (mmap(ring, (1 + count) * page_size(),
				 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				 p.fd, 0) == ring)
				break;
		break;
	case 2:				/* rubbish into it, if it is there */
		if (read(w->urandom, ring + pick(r, 4096),
			 1 + pick(r, 8192)) < 0)
			break;
		break;
	case 3:				/* just the tail */
		if (read(w->urandom,
			 ring + offsetof(struct hetmem_ring_header, tail),
			 8) < 0)
			break;
		break;
	case 4:
		poll(&p, 1, pick(r, 3));
		break;
	default:
		if (one_in(r, 4))
			munmap(ring, 8 * MiB);
		else
			madvise(ring, (1 + pick(r, 16)) * page_size(),
				PICK(r, advice_wild));
		break;
	}
}

/* Takes a file of another worker, which may be a context, and uses it. */
static void steal(struct fuzzer *f)
{
	int pid = atomic_load(&PICK(&f->r, board->pids)), pidfd, fd;
	struct hetmem_cmd_residency residency = {
		.size = sizeof(residency), .end = 0x7ffffffff000,
	};
	struct hetmem_cmd_info info;

	if (pid <= 0)
		return;
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	fd = syscall(SYS_pidfd_getfd, pidfd, 3 + pick(&f->r, 16), 0);
	close(pidfd);
	if (fd < 0)
		return;
	hm_info(fd, &info);
	hm_ioctl(fd, HETMEM_IOC_RESIDENCY, &residency);
	if (one_in(&f->r, 4))
		/* time: holds the descriptor for a random while */
		usleep(pick(&f->r, 2000));
	close(fd);
}

static void open_devices(struct worker *w)
{
	unsigned int i;

	for (i = 0; i < FUZZ_DEVICES; i++) {
		struct emu e = { .fd = -1 };

		w->device[i] = emu_open(&e, i) ? -1 : e.fd;
		w->location[i] = e.loc;
	}
}

/* The child has what its parent had, and most of its parent's files. */
static void child(struct fuzzer *f)
{
	struct arena *a = &f->arena;
	unsigned int i, n = pick(&f->r, 20);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	arena_check(a, 0, a->pages, "read by a child");
	f->w->context[0] = open_context(f->w);
	open_devices(f->w);
	for (i = 0; i < n; i++) {
		if (!arena_is_shared(a) && one_in(&f->r, 3))
			arena_operate(f);
		else
			call_one(f);
	}
	arena_check(a, 0, a->pages, "read by a child at its end");
	if (one_in(&f->r, 3))
		raise(SIGKILL);
	if (one_in(&f->r, 3))
		execl("/proc/self/exe", "fuzz", "-t", "0", NULL);
	_exit(0);
}

static void spawn(struct fuzzer *f)
{
	bool wait = arena_is_shared(&f->arena) || one_in(&f->r, 2);
	int status = 0;
	pid_t pid = fork();

	if (!pid)
		child(f);
	if (pid < 0)
		return;
	if (!wait) {
		unsigned int i;

		for (i = 0; i < 4; i++)
			arena_operate(f);
	}
	if (one_in(&f->r, 4) && !arena_is_shared(&f->arena))
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) != pid && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == STATUS_WRONG)
		_exit(STATUS_WRONG);
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		wrong("a child was ended by signal %d", WTERMSIG(status));
}

static void *thread_main(void *arg)
{
	struct fuzzer *f = arg;
	unsigned int i;

	if (mmap(f->scratch, SCRATCH_SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != f->scratch)
		wrong("mmap: %d", errno);
	arena_make(f, opt.slow || !one_in(&f->r, 4) ? 512 : ARENA_PAGES_MAX);
	for (i = 0; i < f->w->rounds; i++) {
		switch (pick(&f->r, 16)) {
		case 0:
		case 1:
		case 2:
			arena_operate(f);
			break;
		case 3:
		case 4:
		case 5:
			wild_operate(f);
			break;
		case 6:
		case 7:
			context_operate(f);
			break;
		case 8:
			if (one_in(&f->r, 8))
				spawn(f);
			else if (one_in(&f->r, 4))
				steal(f);
			break;
		default:
			/* Before it times out. */
			if (call_one(f) == CMD_HINT && one_in(&f->r, 2))
				execute(f);
			break;
		}
	}
	arena_check(&f->arena, 0, f->arena.pages, "read at the end");
	return NULL;
}

/* Memory could not be charged when it was needed: so the kernel says that. */
static void sigbus(int signal, siginfo_t *info, void *context)
{
	_exit(STATUS_SIGBUS);
}

static void worker_open(struct worker *w)
{
	unsigned int i;

	w->zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	w->urandom = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	w->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	for (i = 0; i < FUZZ_CONTEXTS; i++)
		w->context[i] = open_context(w);
	open_executor(w);
	open_devices(w);
}

/* One process, from its seed to its end. */
static void worker_main(const struct world *world, uint64_t seed)
{
	static struct fuzzer fuzzers[FUZZ_THREADS];
	static struct worker w;
	struct sigaction action = { .sa_sigaction = sigbus };
	struct random r = { .state = seed };
	pthread_t threads[FUZZ_THREADS];
	unsigned int i, group = pick(&r, 8);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	w.rounds = 50 + pick(&r, 400);
	w.threads = 1 + pick(&r, FUZZ_THREADS);
	w.root = !one_in(&r, 3);
	if (world->cgroup && group < 2) {
		const char *path = group ? CGROUP "fuzz-high/cgroup.procs" :
					   CGROUP "fuzz-max/cgroup.procs";

		w.limited = !write_text(path, "0");
	}
	if (w.limited) {
		w.threads = 1;
		sigaction(SIGBUS, &action, NULL);
	}
	if (!w.root && become_nobody())
		wrong("cannot become nobody: %d", errno);
	prctl(PR_SET_DUMPABLE, 1);
	worker_open(&w);
	for (i = 0; i < w.threads; i++) {
		fuzzers[i] = (struct fuzzer){
			.w = &w,
			.nr = i,
			.r = { .state = seed_of(seed, i, 1) },
			.scratch = at(SCRATCH(i)),
		};
		if (i && pthread_create(&threads[i], NULL, thread_main,
					&fuzzers[i]))
			wrong("pthread_create: %d", errno);
	}
	thread_main(&fuzzers[0]);
	/* Sometimes in the middle of what the others do. */
	if (one_in(&r, 4))
		_exit(0);
	for (i = 1; i < w.threads; i++)
		pthread_join(threads[i], NULL);
	_exit(0);
}

struct slot {
	pid_t pid;
	uint64_t seed;
	uint64_t deadline;	/* ns; killed then, however far it came */
};

/* Of what must end: on a busy host that takes longer. */
static uint64_t had_ns(void)
{
	return had_ms() * 1000000ULL;
}

static uint64_t seconds(unsigned int nr)
{
	return nr * 1000000000ULL;
}

static void start(struct slot *s, const struct world *world, unsigned int nr,
		  unsigned int generation, struct random *r)
{
	unsigned int life = opt.slow ? 30 : 6;

	s->seed = seed_of(opt.seed, nr, generation);
	s->deadline = had_ns() + seconds(life);
	/* Some are killed early. */
	if (one_in(r, 3))
		s->deadline = had_ns() + pick(r, seconds(life));
	s->pid = fork();
	if (!s->pid)
		worker_main(world, s->seed);
	if (s->pid < 0)
		s->pid = 0;
	atomic_store(&board->pids[nr], s->pid);
	if (opt.verbose)
		printf("# worker %u, generation %u: pid %d, seed %llx\n", nr,
		       generation, s->pid, (unsigned long long)s->seed);
}

/* A worker has ended: as it may? */
static void judge(const struct slot *s, int status)
{
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL &&
	    !atomic_fetch_add(&board->wrong, 1))
		snprintf(board->what, sizeof(board->what),
			 "a worker (seed %llx) was ended by signal %d",
			 (unsigned long long)s->seed, WTERMSIG(status));
	if (WIFEXITED(status) && WEXITSTATUS(status) == STATUS_WRONG)
		fprintf(stderr, "# worker of seed %llx\n",
			(unsigned long long)s->seed);
}

/* Kills at the deadline; a process that does not die is wrong, too. */
static bool reap(struct slot *s, uint64_t now)
{
	int status;

	if (!s->pid)
		return true;
	if (waitpid(s->pid, &status, WNOHANG) == s->pid) {
		judge(s, status);
		s->pid = 0;
		return true;
	}
	if (now > s->deadline)
		kill(s->pid, SIGKILL);
	if (now > s->deadline + seconds(opt.slow ? 240 : 60)) {
		char path[64], stack[2048] = "";
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/stack", s->pid);
		fd = open(path, O_RDONLY);
		if (fd >= 0 && read(fd, stack, sizeof(stack) - 1) > 0)
			fprintf(stderr, "%s", stack);
		wrong("process %d does not end", s->pid);
	}
	return false;
}

static void run(const struct world *world)
{
	struct slot slots[FUZZ_WORKERS] = {};
	struct random r = { .state = seed_of(opt.seed, 99, 99) };
	uint64_t end = now_ns() + seconds(opt.seconds), now;
	unsigned int generation = 0, i, left;
	bool over;

	do {
		now = had_ns();
		over = now_ns() >= end;
		left = 0;
		for (i = 0; i < opt.workers; i++) {
			if (over && slots[i].deadline > now)
				slots[i].deadline = now;
			if (!reap(&slots[i], now))
				left++;
			else if (!over && !atomic_load(&board->wrong))
				start(&slots[i], world, i, generation++, &r);
		}
		world_operate(world, &r);
		/* time: the pace of looks */
		usleep(10000);
	} while ((!over && !atomic_load(&board->wrong)) || left);
	printf("# %u processes\n", generation);
}

/* What is in use; references may go a little later than processes. */
static long in_use(const struct world *world, const char **what)
{
	static char path[96];
	unsigned int i;
	long n;

	*what = path;
	snprintf(path, sizeof(path), SYSFS "stats/contexts");
	n = read_long(path);
	if (n)
		return n;
	snprintf(path, sizeof(path), SYSFS "stats/ranges");
	n = read_long(path);
	if (!n) {
		snprintf(path, sizeof(path), SYSFS "stats/bytes");
		n = read_long(path);
	}
	for (i = 0; !n && world->devices && i < FUZZ_DEVICES; i++) {
		snprintf(path, sizeof(path), SYSFS "devices/%u/used",
			 world->id[i]);
		n = read_long(path);
	}
	return n;
}

/* What is mapped somewhere can be evicted; what cannot is still referenced. */
static void tell_evictable(void)
{
	uint64_t evicted = 0;
	unsigned int i;
	struct emu e;

	for (i = 0; i < FUZZ_DEVICES; i++)
		if (!emu_open(&e, i) && !emu_evict(&e, 1 << 20, &evicted))
			printf("# %llu pages of device %u can be evicted\n",
			       (unsigned long long)evicted, i);
}

/*
 * A fuzzer that fuzzes nothing passes as well: commands that were given often and have
 * never succeeded. One in twenty does, of those that do least; how many there are in
 * some seconds is the machine's affair.
 */
static unsigned int never_right(const struct world *world)
{
	unsigned int i, n = 0;

	for (i = 0; i < CALL_OTHER; i++)
		n += !board->succeeded[i] &&
		     board->failed[i] >= (i < CMD_NR ? 300 : 100) &&
		     (i < CMD_NR || world->devices);
	return n + !board->succeeded[CMD_TRACK];
}

static unsigned int report(const struct world *world)
{
	unsigned int i, failures = 0, tries;
	const char *what = "";
	long n = -1, end;

	for (i = 0; i < CALL_NR; i++)
		printf("# %-12s %8llu succeeded %8llu failed\n", call_names[i],
		       (unsigned long long)board->succeeded[i],
		       (unsigned long long)board->failed[i]);
	printf("# %llu changes of memory, %llu pages verified\n",
	       (unsigned long long)board->operations,
	       (unsigned long long)board->verified);
	if (mismatch(inherited, INHERITED_SIZE, opt.seed) >= 0 &&
	    !atomic_fetch_add(&board->wrong, 1))
		strcpy(board->what, "memory that all have in common has changed");
	leave_late(hm_open());
	failures += !!board->wrong;
	printf("%sok 1 - %u s with seed %llu\n", board->wrong ? "not " : "",
	       opt.seconds, (unsigned long long)opt.seed);
	if (board->wrong)
		printf("# %s\n", board->what);
	end = had_ms() + PATIENCE_MS;
	for (tries = 0; n && had_ms() < end; tries++) {
		n = in_use(world, &what);
		if (!n)
			break;
		if (tries % 50 == 49)
			take_back();
		/* time: the pace of looks */
		usleep(20000);
	}
	failures += !!n;
	printf("%sok 2 - nothing is left\n", n ? "not " : "");
	if (n) {
		printf("# %s: %ld\n", what, n);
		tell_evictable();
	}
	n = never_right(world);
	failures += !!n;
	printf("%sok 3 - every command has succeeded\n1..3\n", n ? "not " : "");
	return failures;
}

int main(int argc, char **argv)
{
	struct world world = {};
	int c;

	opt.seed = now_ns() % 1000000;
	while ((c = getopt(argc, argv, "t:s:w:v")) != -1) {
		switch (c) {
		case 't':
			opt.seconds = atoi(optarg);
			break;
		case 's':
			opt.seed = strtoull(optarg, NULL, 0);
			break;
		case 'w':
			opt.workers = atoi(optarg);
			break;
		case 'v':
			opt.verbose = true;
			break;
		default:
			return 2;
		}
	}
	/* As a child's new program: nothing. */
	if (!opt.seconds)
		return 0;
	if (opt.workers < 1 || opt.workers > FUZZ_WORKERS)
		return 2;
	/* It changes the settings of the machine: not of one without the module. */
	if (access(DEV_HETMEM, F_OK)) {
		fputs("fuzz: no " DEV_HETMEM ": run selftests/vm/fuzz\n", stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		return 1;
	opt.slow = slow_kernel();
	inherited = map_filled(INHERITED_SIZE, opt.seed);
	if (!inherited)
		return 1;
	world_init(&world);
	printf("# seed %llu, %u s, %u workers%s%s%s\n",
	       (unsigned long long)opt.seed, opt.seconds, opt.workers,
	       world.devices ? ", devices" : "", world.swap ? ", swap" : "",
	       world.cgroup ? ", memory limits" : "");
	run(&world);
	world_restore(&world);
	world_exit(&world);
	return report(&world) ? 1 : 0;
}
