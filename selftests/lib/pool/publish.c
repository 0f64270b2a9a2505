// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a process publishes of its pools: the file's form, its figures beside those of
 * hetmem_resource_stats(), forks, threads, and a program that closes or takes its descriptor.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "core/publish.h"
#include "one_resource.h"

#define LINK	"/memfd:" HM_PUBLISH_NAME " (deleted)"

/* The last of this process's descriptors that has the name, -1; and how many have it. */
static int published_fd(int *nr)
{
	DIR *dir = opendir("/proc/self/fd");
	char target[128];
	struct dirent *e;
	int fd = -1;
	ssize_t len;

	*nr = 0;
	while (dir && (e = readdir(dir))) {
		len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
		if (len == (ssize_t)strlen(LINK) && !memcmp(target, LINK, len)) {
			fd = atoi(e->d_name);
			++*nr;
		}
	}
	if (dir)
		closedir(dir);
	return fd;
}

static int how_many(void)
{
	int nr;

	published_fd(&nr);
	return nr;
}

static struct hm_published page;

/* As a reader would. */
static bool read_page(void)
{
	int nr, fd = published_fd(&nr);

	memset(&page, 0, sizeof(page));
	return nr == 1 && pread(fd, &page, sizeof(page), 0) == sizeof(page) &&
	       page.magic == HM_PUBLISH_MAGIC && page.version == HM_PUBLISH_VERSION &&
	       page.pid == (uint32_t)getpid();
}

static unsigned int nr_pools(void)
{
	unsigned int i, nr = 0;

	for (i = 0; i < HM_PUBLISH_POOLS; i++)
		nr += page.pools[i].number != 0;
	return nr;
}

static void test_form(void)
{
	int nr, fd, again;
	struct stat st;
	void *p;

	is(how_many(), 0, "nothing is published before there is a pool");
	create("pool(device,max=64M,tag=model)");
	fd = published_fd(&nr);
	need(nr == 1 && !fstat(fd, &st), "one file");
	is(st.st_size, sizeof(page), "its size");
	ok(st.st_blocks * 512 >= (off_t)sizeof(page), "all its memory is there, so no write fails later");
	is(st.st_mode & 0777, 0400, "its owner may read it");
	is(fcntl(fd, F_GET_SEALS) & HM_PUBLISH_SEALS, HM_PUBLISH_SEALS, "its size is sealed");
	is(fcntl(fd, F_GETFD), FD_CLOEXEC, "no other program gets it");
	again = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
	close(again);
	p = mmap(NULL, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ok(p == MAP_FAILED, "nobody maps it for writing");
	ok(ftruncate(fd, 0) && pwrite(fd, "x", 1, 0) != 1, "nor writes it, nor cuts it off");
	ok(read_page(), "it reads as one");
	is(nr_pools(), 1, "one pool");
	ok(!strcmp(page.pools[0].provider, "device") && !strcmp(page.pools[0].tag, "model") &&
	   !page.pools[0].device && page.pools[0].max == 64 << 20, "which is that one");
	hetmem_resource_destroy(res);
	is(how_many(), 0, "the file goes with the last pool");
}

static bool agrees(void)
{
	struct hetmem_resource_stats s = stats();
	const struct hm_published_pool *p = page.pools;

	if (!read_page())
		return false;
	if (p->requested == s.requested && p->requested_peak == s.requested_peak &&
	    p->reserved == s.reserved && p->reserved_peak == s.reserved_peak &&
	    p->allocs == s.allocs && p->frees == s.frees && p->failed == s.failed &&
	    p->spilled == s.spilled && p->spilled_total == s.spilled_total &&
	    p->fetched_total == s.fetched_total && p->spill_host == s.spill_host)
		return true;
	printf("# requested %llu of %llu, reserved %llu of %llu, allocs %llu of %llu, frees %llu of %llu, failed %llu of %llu, spilled %llu of %llu\n",
	       (long long)p->requested, (long long)s.requested, (long long)p->reserved,
	       (long long)s.reserved, (long long)p->allocs, (long long)s.allocs,
	       (long long)p->frees, (long long)s.frees, (long long)p->failed,
	       (long long)s.failed, (long long)p->spilled, (long long)s.spilled);
	return false;
}

static void test_figures(const char *spec)
{
	void *p[100], *q;
	unsigned int i;

	create(spec);
	for (i = 0; i < 100; i++)
		need(!hetmem_alloc(res, (i + 1) * 1000, 0, HOST, &p[i]), "memory");
	ok(agrees(), "%s: after allocations", spec);
	for (i = 0; i < 100; i += 2)
		hetmem_free(res, p[i], 0, HOST);
	ok(agrees(), "%s: after frees", spec);
	ok(hetmem_alloc(res, (size_t)1 << 40, 0, HOST, &q) == -ENOMEM && agrees(),
	   "%s: after an allocation that failed", spec);
	hetmem_trim(res, 0, NULL);
	ok(agrees(), "%s: after a trim", spec);
	hetmem_resource_destroy(res);
}

/* Without hetmem_resource_stats(), which brings all up to date. */
static void test_large_is_exact(void)
{
	void *p, *q;

	create("pool(device)");
	need(!hetmem_alloc(res, 3 * MIB, 0, HOST, &p) && !hetmem_alloc(res, 5 * MIB, 0, HOST, &q),
	     "memory");
	ok(read_page() && page.pools[0].requested == 8 * MIB && page.pools[0].allocs == 2 &&
	   page.pools[0].reserved >= 8 * MIB, "large blocks show at once");
	hetmem_free(res, p, 0, HOST);
	ok(read_page() && page.pools[0].requested == 5 * MIB && page.pools[0].frees == 1,
	   "and when they are freed");
	hetmem_resource_destroy(res);
}

static void *frees_all(void *arg)
{
	void **p = arg;

	for (; *p; p++)
		hetmem_free(res, *p, 0, HOST);
	return NULL;
}

/* Another thread frees what this one's stream has cached: the owner takes it later. */
static void test_remote(void)
{
	uint64_t frees = 0;
	pthread_t thread;
	void *p[101];
	int i, round, back = 0, differ = 0;

	create("pool(host)");
	for (round = 0; round < 20; round++) {
		for (i = 0; i < 100; i++)
			need(!hetmem_alloc(res, 1000 + round, 0, HOST, &p[i]), "memory");
		p[100] = NULL;
		need(!pthread_create(&thread, NULL, frees_all, p), "thread");
		pthread_join(thread, NULL);
		differ += !agrees();
		/* Long enough for the stream to publish by itself. */
		for (i = 0; i < 3 * HM_PUBLISH_BATCH; i++) {
			need(!hetmem_alloc(res, 5000, 0, HOST, &p[0]), "memory");
			hetmem_free(res, p[0], 0, HOST);
		}
		back += !read_page() || page.pools[0].frees < frees;
		frees = page.pools[0].frees;
		differ += !agrees();
	}
	is(differ, 0, "another thread's frees are counted alike");
	is(back, 0, "and counters never go back");
	hetmem_resource_destroy(res);
}

static void test_cached_lag(void)
{
	uint64_t worst = 0, i;
	void *p;

	create("pool(device)");
	for (i = 1; i <= 10 * HM_PUBLISH_BATCH; i++) {
		need(!hetmem_alloc(res, 4096, 0, HOST, &p) && !hetmem_free(res, p, 0, HOST),
		     "memory");
		if (i % 100)
			continue;
		need(read_page(), "the file");
		if (i - page.pools[0].allocs > worst)
			worst = i - page.pools[0].allocs;
	}
	ok(worst && worst <= HM_PUBLISH_BATCH, "what a cache serves shows %llu later at most",
	   (long long)worst);
	hetmem_resource_destroy(res);
}

static void test_spill(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 16 * MIB, .flags = HETMEM_ALLOC_MOVABLE,
	};
	CUstream stream;
	void *p;

	need(!drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
	params.stream = stream;
	create("pool(vmm,spill=64M,handle=2M)");
	need(!hetmem_alloc_with(res, &params, &p), "memory: %s", hetmem_last_error());
	need(!hetmem_spill(res, p), "spill: %s", hetmem_last_error());
	ok(read_page() && page.pools[0].spilled == 16 * MIB &&
	   page.pools[0].spilled_total == 16 * MIB, "a block that is on the host");
	need(!hetmem_fetch(res, p), "fetch: %s", hetmem_last_error());
	ok(read_page() && !page.pools[0].spilled && page.pools[0].fetched_total == 16 * MIB,
	   "and came back");
	ok(agrees(), "as the pool says");
	hetmem_resource_destroy(res);
	drv->cuStreamDestroy(stream);
}

static int run_child(int (*child)(void))
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child());
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ?
		WEXITSTATUS(status) : -1;
}

static int child_of_device(void)
{
	/* Nothing of it is alive here. */
	if (how_many())
		return 1;
	hetmem_resource_destroy(res);
	return how_many() ? 2 : 0;
}

static int child_of_host(void)
{
	void *p;

	if (!read_page() || nr_pools() != 1 || strcmp(page.pools[0].provider, "host") ||
	    page.pools[0].requested != 2 * MIB)
		return 1;
	if (hetmem_alloc(res, 3 * MIB, 0, HOST, &p) || !read_page() ||
	    page.pools[0].requested != 5 * MIB)
		return 2;
	hetmem_resource_destroy(res);
	return how_many() ? 3 : 0;
}

/* Past the handlers: it has the parent's file, which must not say that it is its. */
static int raw_child(void)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!pid)
		_exit(read_page() ? 1 : page.pid == (uint32_t)getppid() ? 0 : 2);
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ?
		WEXITSTATUS(status) : -1;
}

static void test_fork(void)
{
	void *p;

	create("pool(device)");
	need(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p), "memory");
	is(run_child(child_of_device), 0, "a child publishes no pool of its parent's device");
	is(raw_child(), 0, "the file tells whose it is");
	ok(read_page() && page.pools[0].requested == 2 * MIB, "the parent's is as it was");
	hetmem_resource_destroy(res);
	create("pool(host)");
	need(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p), "memory");
	is(run_child(child_of_host), 0, "a child publishes its copy of a host pool, in a file of its own");
	ok(read_page() && page.pools[0].requested == 2 * MIB && nr_pools() == 1,
	   "of which the parent's shows nothing");
	hetmem_resource_destroy(res);
}

static struct rlimit addresses;

/* The limit holds while the handlers of fork() run, no longer. */
static int child_without_addresses(void)
{
	void *p;

	return setrlimit(RLIMIT_AS, &addresses) || hetmem_alloc(res, 3 * MIB, 0, HOST, &p) ? 1 : 0;
}

static void test_fork_without_addresses(void)
{
	static struct hm_published before;
	struct rlimit none;
	void *p;
	int ret;

	create("pool(host)");
	need(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p) && read_page(), "memory");
	before = page;
	need(!getrlimit(RLIMIT_AS, &addresses), "limit");
	none = (struct rlimit){ .rlim_cur = 4096, .rlim_max = addresses.rlim_max };
	setrlimit(RLIMIT_AS, &none);
	ret = run_child(child_without_addresses);
	setrlimit(RLIMIT_AS, &addresses);
	is(ret, 0, "a child that is forked without free addresses allocates");
	ok(read_page() && !memcmp(&page, &before, sizeof(page)),
	   "and the parent's file shows nothing of it");
	hetmem_resource_destroy(res);
}

/* The limit of mappings holds while the handlers of fork() run, no longer. */
static char *pages;
static size_t nr_pages;

static int child_without_mappings(void)
{
	void *p;

	munmap(pages, nr_pages * 4096);
	return hetmem_alloc(res, 3 * MIB, 0, HOST, &p) ? 1 : 0;
}

static void test_fork_without_mappings(void)
{
	static struct hm_published before;
	FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
	unsigned long most = 0;
	size_t i;
	void *p;
	int ret;

	if (!file || fscanf(file, "%lu", &most) != 1 || most > 1 << 20)
		most = 0;
	if (file)
		fclose(file);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	/* A sanitizer's own child needs mappings, too. */
	most = 0;
#endif
	if (!most)
		return;
	create("pool(host)");
	need(!hetmem_alloc(res, 2 * MIB, 0, HOST, &p) && read_page(), "memory");
	before = page;
	nr_pages = most + 2;
	pages = mmap(NULL, nr_pages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		     -1, 0);
	need(pages != MAP_FAILED, "addresses");
	for (i = 1; i < nr_pages; i += 2)
		if (mprotect(pages + i * 4096, 4096, PROT_READ))
			break;
	ret = run_child(child_without_mappings);
	munmap(pages, nr_pages * 4096);
	is(ret, 0, "a child that is forked with as many mappings as there may be allocates");
	ok(read_page() && !memcmp(&page, &before, sizeof(page)),
	   "and the parent's file shows nothing of it");
	hetmem_resource_destroy(res);
}

static void test_many(void)
{
	struct hetmem_resource *pools[HM_PUBLISH_POOLS + 2];
	unsigned int i;

	for (i = 0; i < HM_PUBLISH_POOLS + 2; i++)
		need(!hetmem_resource_create(hm, "pool(host)", &pools[i]), "pools");
	ok(read_page() && nr_pools() == HM_PUBLISH_POOLS && page.unlisted == 2,
	   "two of %d pools find no room, which it tells", HM_PUBLISH_POOLS + 2);
	hetmem_resource_destroy(pools[5]);
	hetmem_resource_destroy(pools[HM_PUBLISH_POOLS]);
	create("pool(host)");
	ok(read_page() && nr_pools() == HM_PUBLISH_POOLS &&
	   page.pools[5].number > HM_PUBLISH_POOLS, "a new one has a number of its own");
	hetmem_resource_destroy(res);
	for (i = 0; i < HM_PUBLISH_POOLS + 2; i++)
		if (i != 5 && i != HM_PUBLISH_POOLS)
			hetmem_resource_destroy(pools[i]);
	is(how_many(), 0, "nothing is left");
}

static void test_descriptors(void)
{
	struct rlimit old, none;
	int nr, fd, other;
	void *p;

	create("pool(host)");
	fd = published_fd(&nr);
	close(fd);
	other = open("/dev/null", O_RDONLY);
	dup2(other, fd);
	need(!hetmem_alloc(res, 3 * MIB, 0, HOST, &p), "memory");
	hetmem_resource_destroy(res);
	ok(fcntl(fd, F_GETFD) >= 0, "a descriptor that is the program's by now stays open");
	close(fd);
	if (other != fd)
		close(other);

	need(!getrlimit(RLIMIT_NOFILE, &old), "limit");
	none = (struct rlimit){ .rlim_cur = 0, .rlim_max = old.rlim_max };
	setrlimit(RLIMIT_NOFILE, &none);
	nr = hetmem_resource_create(hm, "pool(host)", &res);
	setrlimit(RLIMIT_NOFILE, &old);
	is(nr, 0, "without a descriptor there is a pool");
	is(how_many(), 0, "that is not published");
	ok(!hetmem_alloc(res, 3 * MIB, 0, HOST, &p) && !hetmem_free(res, p, 0, HOST),
	   "and works");
	hetmem_resource_destroy(res);

	/* A file that grows beyond this ends the program by a signal. */
	need(!getrlimit(RLIMIT_FSIZE, &old), "limit");
	none = (struct rlimit){ .rlim_cur = 1024, .rlim_max = old.rlim_max };
	setrlimit(RLIMIT_FSIZE, &none);
	nr = hetmem_resource_create(hm, "pool(host)", &res);
	setrlimit(RLIMIT_FSIZE, &old);
	is(nr, 0, "where files must be small there is a pool");
	is(how_many(), 0, "that is not published");
	hetmem_resource_destroy(res);

	other = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 100);
	close(STDIN_FILENO);
	create("pool(host)");
	fd = published_fd(&nr);
	ok(nr == 1 && fd > STDERR_FILENO, "it is no standard stream");
	hetmem_resource_destroy(res);
	ok(fcntl(STDIN_FILENO, F_GETFD) < 0, "and takes none");
	if (other >= 0) {
		dup2(other, STDIN_FILENO);
		close(other);
	}

	setenv("HETMEM_PUBLISH", "0", 1);
	create("pool(host)");
	is(how_many(), 0, "HETMEM_PUBLISH=0: nothing is published");
	hetmem_resource_destroy(res);
	unsetenv("HETMEM_PUBLISH");
}

#define THREADS	4

/* The sanitizers' allocators have locks that a child of fork() may find taken for ever. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FORKS	0
#else
#define FORKS	10
#endif

static bool stop;

static void *churn(void *arg)
{
	struct hetmem_resource *own;
	void *p[16];
	unsigned int i;

	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (hetmem_resource_create(hm, "pool(host)", &own))
			break;
		for (i = 0; i < 16; i++)
			if (hetmem_alloc(res, 1000 * (i + 1), 0, HOST, &p[i]))
				p[i] = NULL;
		for (i = 0; i < 16; i++)
			hetmem_free(res, p[i], 0, HOST);
		hetmem_resource_destroy(own);
	}
	return NULL;
}

static int child_reads(void)
{
	return read_page() ? 0 : 1;
}

static void test_threads(void)
{
	pthread_t threads[THREADS];
	int i, bad = 0, forks = 0;

	create("pool(host)");
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&threads[i], NULL, churn, NULL), "thread");
	for (i = 0; i < 200; i++) {
		bad += !read_page() || !page.pools[0].number;
		if (i < FORKS)
			forks += run_child(child_reads) != 0;
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	is(bad, 0, "threads make and destroy pools while it is read");
	is(forks, 0, "children publish what goes on in them");
	ok(agrees() && !page.pools[0].requested, "in the end all is counted");
	hetmem_resource_destroy(res);
	is(how_many(), 0, "and nothing is left");
}

/* From now on system call @nr fails with EPERM, if its second argument is @second or that is 0. */
static bool forbid(unsigned int nr, unsigned int second)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, second, 0, second ? 1 : 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A pool that cannot publish works. */
static int works_unseen(unsigned int nr, unsigned int second)
{
	void *p;

	/* The parent's library is not for a child. */
	if (hetmem_open(&hm, NULL) || !forbid(nr, second))
		return 2;
	if (hetmem_resource_create(hm, "pool(host)", &res))
		return 3;
	if (how_many())
		return 4;
	if (hetmem_alloc(res, 4096, 0, HETMEM_STREAM_HOST, &p) ||
	    hetmem_free(res, p, 0, HETMEM_STREAM_HOST))
		return 1;
	hetmem_resource_destroy(res);
	return 0;
}

static int child_without_memfd(void)
{
	return works_unseen(SYS_memfd_create, 0);
}

static int child_without_seals(void)
{
	return works_unseen(SYS_fcntl, F_ADD_SEALS);
}

static void test_seccomp(void)
{
	is(run_child(child_without_memfd), 0, "seccomp forbids memfd_create: nothing is published");
	is(run_child(child_without_seals), 0, "seccomp forbids seals: likewise");
}

int main(void)
{
	unsetenv("HETMEM_PUBLISH");
	open_soft("");
	test_form();
	test_figures("pool(device)");
	test_figures("pool(vmm)");
	test_figures("pool(host)");
	test_large_is_exact();
	test_remote();
	test_cached_lag();
	test_spill();
	test_fork();
	test_fork_without_addresses();
	test_fork_without_mappings();
	test_many();
	test_descriptors();
	test_threads();
	test_seccomp();
	hetmem_close(hm);
	return tap_end();
}
