// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * park=PATH: contents of a sleeping pool in a file without a name. Contents are there after
 * the wake, and while the pool sleeps neither device nor host memory has them. Whatever call
 * of the kernel or of the driver fails, contents are here or there. Whenever the process is
 * killed, no file is left. Arguments: a seed, rounds.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "bytes.h"
#include "one_resource.h"

#define KIB	((size_t)1 << 10)
#define KEEP	HETMEM_SLEEP_KEEP
#define SLOTS	32

static unsigned int rounds = 4;
static char dir[PATH_MAX];
static bool on_disk;

/* Calls of the kernel that can fail, by their order in @calls. */
enum call { TMPFILE, FALLOCATE, PWRITE, PREAD, NR_KINDS };

/* Of a write or a read: only some of the bytes, and none at the end of a file. */
#define SHORT	-1
#define AT_END	-2
#define KILL	-3

/* Each call of a kind from the @first on fails with @error, @times times. */
static struct rule {
	int first, times, error;
	int made;
} rules[NR_KINDS];

/* The error of this call, or 0. */
static int strike(enum call call)
{
	struct rule *r = &rules[call];
	const int nr = __atomic_add_fetch(&r->made, 1, __ATOMIC_RELAXED);

	if (!r->error || nr < r->first || nr >= r->first + r->times)
		return 0;
	if (r->error == KILL)
		kill(getpid(), SIGKILL);
	return r->error;
}

static void set_rule(enum call call, int first, int times, int error)
{
	rules[call] = (struct rule){ .first = first, .times = times, .error = error };
}

static void no_rules(void)
{
	memset(rules, 0, sizeof(rules));
}

static ssize_t struck(int error)
{
	errno = error;
	return -1;
}

/* The program's own calls come before those of the C library. */
ssize_t pwrite(int fd, const void *buf, size_t nr, off_t at)
{
	const int error = strike(PWRITE);

	if (error > 0)
		return struck(error);
	return syscall(SYS_pwrite64, fd, buf, error == SHORT ? nr / 2 : nr, at);
}

ssize_t pread(int fd, void *buf, size_t nr, off_t at)
{
	const int error = strike(PREAD);

	if (error > 0)
		return struck(error);
	return error == AT_END ? 0 :
		syscall(SYS_pread64, fd, buf, error == SHORT ? nr / 2 : nr, at);
}

int fallocate(int fd, int mode, off_t at, off_t len)
{
	const int error = strike(FALLOCATE);

	return error > 0 ? struck(error) : syscall(SYS_fallocate, fd, mode, at, len);
}

int open(const char *path, int flags, ...)
{
	int error = 0;
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	if ((flags & O_TMPFILE) == O_TMPFILE)
		error = strike(TMPFILE);
	return error > 0 ? struck(error) : syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

struct slot {
	unsigned char *p;
	size_t size;
	unsigned int value;
};

static struct slot slots[SLOTS];

static char *spec_of(const char *fmt)
{
	static char spec[PATH_MAX + 200];

	snprintf(spec, sizeof(spec), fmt, dir, dir);
	return spec;
}

static void make(const char *fmt)
{
	memset(slots, 0, sizeof(slots));
	create(spec_of(fmt));
}

static void fill(struct slot *s, size_t size)
{
	void *p = NULL;

	need(!hetmem_alloc(res, size, 0, HOST, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	*s = (struct slot){ p, size, below(256) };
	write_bytes(p, 0, size, s->value);
}

static void empty(struct slot *s)
{
	if (s->p && hetmem_free(res, s->p, s->size, HOST))
		ok(false, "free: %s", hetmem_last_error());
	s->p = NULL;
}

static unsigned int wrong(void)
{
	unsigned int k, n = 0;

	for (k = 0; k < SLOTS; k++)
		if (slots[k].p)
			n += wrong_bytes(slots[k].p, 0, slots[k].size, slots[k].value);
	return n;
}

static size_t live(void)
{
	size_t bytes = 0;
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		bytes += slots[k].p ? slots[k].size : 0;
	return bytes;
}

static void end(void)
{
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	is(device_used(), 0, "no device memory is left");
}

/* Names in the directory. */
static unsigned int names(void)
{
	const struct dirent *entry;
	unsigned int n = 0;
	DIR *d = opendir(dir);

	need(d, "%s", dir);
	while ((entry = readdir(d)))
		n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(d);
	return n;
}

/* A descriptor of a file in the directory, or -1; *@nr: how many there are. */
static int file_of(unsigned int *nr)
{
	const struct dirent *entry;
	DIR *d = opendir("/proc/self/fd");
	int fd, found = -1;
	struct stat st, at;

	need(d && !stat(dir, &at), "descriptors");
	*nr = 0;
	while ((entry = readdir(d))) {
		char path[64], to[PATH_MAX + 1];
		ssize_t n;

		fd = atoi(entry->d_name);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, to, PATH_MAX);
		if (n <= 0 || fd == dirfd(d) || fstat(fd, &st))
			continue;
		to[n] = '\0';
		if (strncmp(to, dir, strlen(dir)) || st.st_dev != at.st_dev)
			continue;
		++*nr;
		found = fd;
	}
	closedir(d);
	return found;
}

static unsigned int files(void)
{
	unsigned int nr;

	file_of(&nr);
	return nr;
}

static size_t any_size(void)
{
	switch (below(4)) {
	case 0:
		return 1 + below(2000);
	case 1:
		return 1 + below(300 * KIB);
	case 2:
		return 1 + below(5 * MIB);
	default:
		return 1 + below(17 * MIB);
	}
}

/* Blocks come and go, the pool sleeps and wakes. */
static void at_random(const char *fmt)
{
	unsigned int i, k, bad = 0, errors = 0;
	void *none;

	make(fmt);
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < SLOTS; k++) {
			if (below(2))
				empty(&slots[k]);
			if (!slots[k].p && below(3))
				fill(&slots[k], any_size());
		}
		errors += !!hetmem_sleep(res, NULL, KEEP);
		errors += device_used() || stats().parked || names() || !files();
		errors += stats().parked_file < live() / 512 * 512;
		errors += hetmem_alloc(res, 100, 0, HOST, &none) != -EBUSY;
		/* Freed while they are away. */
		for (k = below(4) * 8; k < SLOTS; k += 3)
			empty(&slots[k]);
		hetmem_trim(res, 0, NULL);
		errors += below(2) && hetmem_sleep(res, NULL, KEEP);
		errors += !!hetmem_wake(res, NULL);
		errors += files() || stats().parked_file;
		bad += wrong();
	}
	is(bad, 0, "%s: contents are kept", fmt);
	is(errors, 0, "all calls do as they should: %s", hetmem_last_error());
	end();
}

/* The file has no name, is this user's alone, and goes with the contents. */
static void the_file(void)
{
	struct stat st;
	unsigned int nr;
	int fd;

	make("pool(vmm,park=%s)");
	is(hetmem_sleep(res, NULL, KEEP), 0, "nothing is live");
	is(files(), 0, "and there is no file");
	is(hetmem_wake(res, NULL), 0, "wakes");
	fill(&slots[0], 9 * MIB + 1);
	fill(&slots[1], 100);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	fd = file_of(&nr);
	is(nr, 1, "a file");
	need(!fstat(fd, &st), "its status");
	is(st.st_mode & 07777, 0600, "is this user's alone");
	is(st.st_nlink, 0, "and has no name");
	ok(fd > STDERR_FILENO && fcntl(fd, F_GETFD) & FD_CLOEXEC, "no other program gets it");
	ok(st.st_size >= (off_t)(9 * MIB) && st.st_size < (off_t)(10 * MIB),
	   "it has the contents alone: %lld", (long long)st.st_size);
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(files(), 0, "it is gone");
	is(wrong(), 0, "contents are there");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "without contents");
	is(files(), 0, "there is none");
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	slots[0].p = slots[1].p = NULL;
	is(hetmem_resource_destroy(res), 2, "destroyed asleep");
	is(files(), 0, "the file is gone, too");
	is(device_used(), 0, "and no device memory is left");
}

/* The calls of a sleep fail: the pool is awake, and whole. */
static void sleep_fails(enum call call, int first, int error, int want, const char *what)
{
	unsigned int bad;
	int err;

	set_rule(call, first, 1000, error);
	err = hetmem_sleep(res, NULL, KEEP);
	no_rules();
	bad = wrong();
	is(err, want, "%s: %s", what, hetmem_last_error());
	is(bad + files() + names(), 0, "contents are where they were, and no file is left");
	is(stats().parked + stats().parked_file, 0, "nothing is parked");
}

static void no_room(void)
{
	struct rlimit all, few;

	make("pool(vmm,handle=2M,park=%s)");
	fill(&slots[0], 21 * MIB);
	fill(&slots[1], 3000);
	fill(&slots[2], 6 * MIB);
	empty(&slots[0]);
	fill(&slots[0], 14 * MIB + 700);
	sleep_fails(FALLOCATE, 1, ENOSPC, -ENOSPC, "no room");
	ok(strstr(hetmem_last_error(), "at most "), "with the number: %s", hetmem_last_error());
	sleep_fails(FALLOCATE, 1, EDQUOT, -ENOSPC, "a quota");
	sleep_fails(FALLOCATE, 1, EIO, -EIO, "a broken disk");
	set_rule(FALLOCATE, 1, 1000, EOPNOTSUPP);
	is(hetmem_sleep(res, NULL, KEEP), 0, "room that nobody promises: %s", hetmem_last_error());
	no_rules();
	is(hetmem_wake(res, NULL), 0, "wakes");
	sleep_fails(PWRITE, 1, ENOSPC, -ENOSPC, "the disk is full at the first write");
	sleep_fails(PWRITE, 4, ENOSPC, -ENOSPC, "in the middle");
	sleep_fails(PWRITE, 5, EIO, -EIO, "a write fails");
	sleep_fails(TMPFILE, 1, EACCES, -EACCES, "a directory that has changed");
	sleep_fails(TMPFILE, 1, EMFILE, -EMFILE, "no descriptor");
	need(!getrlimit(RLIMIT_FSIZE, &all), "a limit");
	few = all;
	few.rlim_cur = 10 * MIB;
	need(!setrlimit(RLIMIT_FSIZE, &few), "a limit");
	sleep_fails(TMPFILE, 1, 0, -ENOSPC, "RLIMIT_FSIZE");
	ok(strstr(hetmem_last_error(), "at most 10485760"), "with the number: %s",
	   hetmem_last_error());
	need(!setrlimit(RLIMIT_FSIZE, &all), "no limit");
	is(hetmem_sleep(res, NULL, KEEP), 0, "then it sleeps");
	is(hetmem_wake(res, NULL), 0, "and wakes");
	is(wrong(), 0, "contents are there");
	end();
}

/* What a file system may do instead. */
static void file_systems(void)
{
	static const struct {
		enum call call;
		int first, times, error;
		const char *what;
	} table[] = {
		{ TMPFILE, 1, 1000, EOPNOTSUPP, "no files without a name" },
		{ TMPFILE, 1, 1000, EISDIR, "a kernel without them" },
		{ PWRITE, 2, 1, EINVAL, "no direct access after all" },
		{ PREAD, 1, 1, EINVAL, "nor for reads" },
		{ PWRITE, 1, 3, SHORT, "short writes" },
		{ PREAD, 2, 4, SHORT, "short reads" },
		{ PWRITE, 1, 3, EINTR, "interrupted writes" },
		{ PREAD, 1, 3, EINTR, "interrupted reads" },
	};
	unsigned int i;

	for (i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		make("pool(vmm,park=%s)");
		fill(&slots[0], 13 * MIB + 77);
		fill(&slots[1], 600 * KIB);
		set_rule(table[i].call, table[i].first, table[i].times, table[i].error);
		is(hetmem_sleep(res, NULL, KEEP), 0, "%s: sleeps: %s", table[i].what,
		   hetmem_last_error());
		is(names(), 0, "no name");
		is(hetmem_wake(res, NULL), 0, "wakes: %s", hetmem_last_error());
		no_rules();
		is(wrong(), 0, "contents are there");
		end();
	}
}

/* A wake that cannot read is asleep as before. */
static void wake_fails(void)
{
	static const int errors[] = { EIO, ENOMEM, AT_END };
	unsigned int i, first;

	make("pool(vmm,handle=4M,park=%s)");
	fill(&slots[0], 19 * MIB);
	fill(&slots[1], 3 * MIB + 5);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	for (i = 0; i < 3; i++)
		for (first = 1; first < 5; first += 3) {
			set_rule(PREAD, first, 1000, errors[i]);
			is(hetmem_wake(res, NULL), errors[i] == ENOMEM ? -ENOMEM : -EIO,
			   "read %u fails: %s", first, hetmem_last_error());
			no_rules();
			is(device_used(), 0, "no memory is held");
			ok(stats().parked_file >= 22 * MIB, "contents are in the file");
		}
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	end();
}

/* hetmem_parked_read() of a block whose file fails in the middle. The contents stay. */
static void read_fails(void)
{
	static const int errors[] = { EIO, ENOMEM, AT_END };
	unsigned char *to = malloc(19 * MIB);
	unsigned int i, first;

	need(to, "memory");
	make("pool(vmm,handle=4M,park=%s)");
	fill(&slots[0], 19 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	for (i = 0; i < 3; i++)
		for (first = 1; first < 4; first++) {
			set_rule(PREAD, first, 1000, errors[i]);
			is(hetmem_parked_read(res, slots[0].p + 5, to, 19 * MIB - 5),
			   errors[i] == ENOMEM ? -ENOMEM : -EIO, "read %u of a part fails: %s",
			   first, hetmem_last_error());
			no_rules();
			ok(stats().parked_file >= 19 * MIB, "contents are in the file");
		}
	set_rule(PREAD, 2, 3, SHORT);
	is(hetmem_parked_read(res, slots[0].p + 5, to, 19 * MIB - 5), 0, "short reads go on");
	no_rules();
	is(wrong_bytes(to, 5, 19 * MIB - 5, slots[0].value), 0, "contents are read");
	is(hetmem_wake(res, NULL), 0, "wakes: %s", hetmem_last_error());
	is(wrong(), 0, "contents are there");
	end();
	free(to);
}

/* A program that closes what it does not know. */
static void closed(void)
{
	int fd, other, program;
	unsigned int nr;

	make("pool(vmm,park=%s)");
	fill(&slots[0], 5 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	fd = file_of(&nr);
	need(nr == 1 && !close(fd), "the program closes the file");
	is(hetmem_wake(res, NULL), -EIO, "its contents are lost: %s", hetmem_last_error());
	program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	need(program >= 0, "this program");
	other = program == fd ? fd : fcntl(program, F_DUPFD, fd);
	is(other, fd, "the number is another file's");
	is(hetmem_wake(res, NULL), -EIO, "which is not read: %s", hetmem_last_error());
	is(hetmem_parked_read(res, slots[0].p, &nr, 1), -EIO, "nor by parked_read: %s",
	   hetmem_last_error());
	slots[0].p = NULL;
	is(hetmem_resource_destroy(res), 1, "destroyed");
	ok(fcntl(other, F_GETFD) >= 0, "nor closed");
	close(other);
	if (program != other)
		close(program);
	is(device_used(), 0, "no device memory is left");
}

/* A child has neither the pool nor the file, which would hold its room. */
static void forked(void)
{
	int status;
	pid_t pid;

	make("pool(vmm,park=%s)");
	fill(&slots[0], 12 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	fflush(stdout);
	pid = fork();
	/* In _exit() ThreadSanitizer reports threads that only the parent can join. */
	if (!pid)
		syscall(SYS_exit_group, files() ? 1 : hetmem_wake(res, NULL) != -EOWNERDEAD ? 2 :
			hetmem_resource_destroy(res) < 0 ? 3 : 0);
	need(waitpid(pid, &status, 0) == pid, "a child");
	is(status, 0, "a child has no file");
	is(hetmem_wake(res, NULL), 0, "the parent wakes");
	is(wrong(), 0, "with its contents");
	end();
}

/* Of several pools all fall asleep or none does. */
static void several_pools(void)
{
	make("binning(pool(vmm,tag=a,park=%s),pool(vmm,tag=b,park=%s),at=1M)");
	fill(&slots[0], 1000);
	fill(&slots[1], 5 * MIB);
	set_rule(FALLOCATE, 2, 1, ENOSPC);
	is(hetmem_sleep(res, NULL, KEEP), -ENOSPC, "one has no room: %s", hetmem_last_error());
	no_rules();
	is(wrong(), 0, "contents are where they were");
	is(files(), 0, "no file is left");
	is(hetmem_sleep(res, NULL, KEEP), 0, "both sleep");
	is(files(), 2, "in two files");
	is(hetmem_wake(res, "a"), 0, "one wakes");
	is(hetmem_wake(res, NULL), 0, "and the other");
	is(wrong(), 0, "contents are there");
	end();
}

/* The @nth call of one kind fails in a sleep, or in a wake. */
static void failing(const char *call, unsigned int nth, bool wake)
{
	unsigned int k, bad;
	char rule[48];
	int err;

	make("pool(vmm,handle=2M,park=%s)");
	for (k = 0; k < 8; k++)
		fill(&slots[k], 1 + k * 900 * KIB);
	empty(&slots[3]);
	if (wake)
		need(!hetmem_sleep(res, NULL, KEEP), "sleeps");
	snprintf(rule, sizeof(rule), "%s:%u", call, nth);
	need(!soft_rules(rule, NULL), "a rule");
	err = wake ? hetmem_wake(res, NULL) : hetmem_sleep(res, NULL, KEEP);
	soft_rules(NULL, NULL);
	/* Whether that call is made, and is made again, is not said here. */
	if (err && !wake)
		hetmem_wake(res, NULL);
	if (err && wake)
		need(!hetmem_wake(res, NULL), "%s: wakes then: %s", rule, hetmem_last_error());
	if (!err && !wake)
		need(!device_used() && !hetmem_wake(res, NULL), "%s: wakes", rule);
	bad = wrong() + files() + names();
	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	err = hetmem_resource_destroy(res);
	ok(!bad && !err && !device_used(), "%s in a %s: contents stay, nothing is left", rule,
	   wake ? "wake" : "sleep");
}

static void all_fail(void)
{
	static const char *const calls[] = {
		"cuStreamCreate", "cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyAsync",
		"cuStreamSynchronize", "cuStreamDestroy", "cuMemUnmap", "cuMemRelease",
		"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuCtxSetCurrent",
		"cuCtxSynchronize",
	};
	unsigned int i, nth;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (nth = 1; nth <= 5; nth += 2) {
			failing(calls[i], nth, false);
			failing(calls[i], nth, true);
		}
}

static void *free_all(void *arg)
{
	unsigned int k;

	(void)arg;
	for (k = 1; k < SLOTS; k += 2) {
		empty(&slots[k]);
		hetmem_trim(res, 0, NULL);
		hetmem_poll(res);
		stats();
	}
	return NULL;
}

/* Another thread frees, trims and polls while the pool falls asleep and wakes. */
static void threads(void)
{
	unsigned int i, k, bad = 0, errors = 0;
	pthread_t thread;

	make("pool(vmm,handle=2M,park=%s)");
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < SLOTS; k++)
			if (!slots[k].p)
				fill(&slots[k], any_size() / 2 + 1);
		need(!pthread_create(&thread, NULL, free_all, NULL), "a thread");
		for (k = 0; k < 2; k++) {
			errors += !!hetmem_sleep(res, NULL, KEEP);
			errors += !!hetmem_wake(res, NULL);
		}
		pthread_join(thread, NULL);
		bad += wrong();
	}
	is(bad, 0, "threads: contents are kept");
	is(errors, 0, "no errors: %s", hetmem_last_error());
	end();
}

static void bad_paths(void)
{
	static const struct {
		const char *fmt;
		int err;
	} table[] = {
		{ "pool(vmm,park=%s/none)", -EINVAL },
		{ "pool(vmm,park=/proc/self/status)", -EINVAL },
		{ "pool(vmm,park=some)", -EINVAL },
		{ "pool(vmm,park='')", -EINVAL },
		{ "pool(vmm,park=%s,max_host=1G)", -EINVAL },
		{ "pool(device,park=%s)", -EOPNOTSUPP },
	};
	unsigned int i;

	for (i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		is(hetmem_resource_create(hm, spec_of(table[i].fmt), &res), table[i].err, "%s: %s",
		   table[i].fmt, hetmem_last_error());
	is(hetmem_resource_create(hm, "pool(vmm,park=/proc)", &res) < 0, 1, "no files there: %s",
	   hetmem_last_error());
	set_rule(TMPFILE, 1, 1, EACCES);
	is(hetmem_resource_create(hm, spec_of("pool(vmm,park=%s)"), &res), -EACCES,
	   "not writable: %s", hetmem_last_error());
	set_rule(TMPFILE, 1, 1, EROFS);
	is(hetmem_resource_create(hm, spec_of("pool(vmm,park=%s)"), &res), -EROFS,
	   "read-only: %s", hetmem_last_error());
	no_rules();
	is(names(), 0, "nothing was left there");
}

/* The program goes elsewhere after it has named a directory. */
static void relative(void)
{
	char before[PATH_MAX];

	need(getcwd(before, sizeof(before)) && !chdir(dir) && !mkdir("in", 0700), "a directory");
	memset(slots, 0, sizeof(slots));
	create("pool(vmm,park=./in)");
	need(!chdir(before), "back");
	fill(&slots[0], 5 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), 0, "a relative path: %s", hetmem_last_error());
	is(files(), 1, "is where it was");
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(wrong(), 0, "contents are there");
	end();
	need(!chdir(dir) && !rmdir("in") && !chdir(before), "nothing is left there");
}

/* Killed at each step: the contents are lost, and no file is left. */
static void killed(void)
{
	static const char *const kinds[NR_KINDS] = { "open", "fallocate", "pwrite", "pread" };
	unsigned int nth;
	enum call call;
	int status;
	pid_t pid;

	for (call = TMPFILE; call < NR_KINDS; call++)
		for (nth = 1; nth <= (call > FALLOCATE ? 4 : 1); nth++) {
			fflush(stdout);
			pid = fork();
			if (!pid) {
				open_soft("");
				make("pool(vmm,park=%s)");
				fill(&slots[0], 15 * MIB);
				set_rule(call, nth, 1, KILL);
				hetmem_sleep(res, NULL, KEEP);
				hetmem_wake(res, NULL);
				_exit(1);
			}
			need(waitpid(pid, &status, 0) == pid, "a child");
			ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%s %u: status %#x",
			   kinds[call], nth, status);
			is(names(), 0, "no file is left");
		}
}

/* Where device and host have one memory. */
static void one_memory(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .stream = HOST, .bytes = 8 * MIB,
		.flags = HETMEM_ALLOC_MOVABLE,
	};
	char text[1024], tags[64];
	void *p;

	memset(slots, 0, sizeof(slots));
	create("pool(vmm,handle=2M)");
	fill(&slots[0], 5 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), -EOPNOTSUPP, "contents stay: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "one memory") && strstr(hetmem_last_error(), "park="),
	   "with the reason");
	ok(device_used() && !stats().parked, "the pool is awake");
	is(wrong(), 0, "and whole");
	need(!hetmem_alloc_with(res, &params, &p), "a movable block");
	is(hetmem_spill(res, p), -EOPNOTSUPP, "nor does it spill: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "one memory"), "with the reason");
	is(hetmem_spill_async(res, p), -EOPNOTSUPP, "later neither");
	need(!hetmem_free(res, p, 0, HOST), "free");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "it sleeps without contents");
	is(hetmem_wake(res, NULL), 0, "and wakes");
	end();
	is(hetmem_resource_create(hm, "pool(vmm,spill=1G)", &res), -EOPNOTSUPP, "spill=: %s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "pool(vmm,min_host=64M)", &res), -EOPNOTSUPP, "min_host=: %s",
	   hetmem_last_error());
	need(!hetmem_resource_explain(hm, "stats(device-pool(spill=1G))", text, sizeof(text)),
	     "explains");
	ok(strstr(text, "spill=") && strstr(text, "one memory") && strstr(text, "park="),
	   "each reason");
	is(hetmem_resource_explain(hm, "pool(vmm)", tags, sizeof(tags)), -ENOSPC, "a short buffer");
	if (!on_disk)
		return;
	make("binning(pool(vmm,tag=a,park=%s),pool(vmm,tag=b),at=1M)");
	fill(&slots[0], 1000);
	fill(&slots[1], 5 * MIB);
	is(hetmem_sleep(res, NULL, KEEP), -EOPNOTSUPP, "one of two cannot: %s",
	   hetmem_last_error());
	ok(strstr(hetmem_last_error(), "one memory"), "with the reason");
	is(wrong() + files(), 0, "neither sleeps");
	is(hetmem_sleep(res, "a", KEEP), 0, "the other one can");
	is(hetmem_wake(res, NULL), 0, "and wakes");
	end();
	need(!hetmem_resource_explain(hm, spec_of("pool(vmm,park=%s)"), text, sizeof(text)),
	     "explains");
	ok(strstr(text, dir) && !strstr(text, "one memory"), "where contents go");
	at_random("pool(vmm,park=%s)");
}

/* A directory on a disk, if there is one. */
static void make_dir(void)
{
	const char *const places[] = { getenv("TMPDIR"), "/var/tmp", "/tmp", "." };
	char path[PATH_MAX - 64];
	struct statfs s;
	int i;

	for (i = 0; i < 4 && !on_disk; i++) {
		if (!places[i] || statfs(places[i], &s) || access(places[i], W_OK))
			continue;
		on_disk = s.f_type != TMPFS_MAGIC && s.f_type != RAMFS_MAGIC;
		need(realpath(places[i], path), "%s", places[i]);
	}
	need(i, "a directory");
	snprintf(dir, sizeof(dir), "%s/hetmem-park-XXXXXX", path);
	need(mkdtemp(dir), "%s", dir);
	printf("# in %s\n", dir);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %llu\n", (unsigned long long)seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	make_dir();
	setenv("HETMEM_SOFT_MACHINE", "integrated memory=1G", 1);
	open_soft("");
	one_memory();
	close_soft();
	setenv("HETMEM_SOFT_MACHINE", "managed memory=1G", 1);
	killed();
	open_soft("");
	at_random("pool(vmm,park=%s)");
	at_random("pool(vmm,handle=2M,park=%s)");
	at_random("stats(guard(pool(vmm,park=%s)))");
	at_random("binning(pool(vmm,park=%s),pool(vmm,handle=8M,park=%s),at=64K)");
	the_file();
	no_room();
	file_systems();
	wake_fails();
	read_fails();
	closed();
	forked();
	several_pools();
	all_fail();
	threads();
	bad_paths();
	relative();
	close_soft();
	is(rmdir(dir), 0, "the directory is empty");
	return tap_end();
}
