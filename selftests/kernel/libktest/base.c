// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/base.h"

#include <limits.h>
#include <poll.h>

#include <linux/futex.h>

#include "../../vm/guest/clock.h"

/* Before the test gives up what it takes to find the clock. */
__attribute__((constructor))
static void find_clock(void)
{
	open_clock();
}

size_t page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

bool slow_kernel(void)
{
	return getenv("HETMEM_TEST_SLOW") ||
	       access("/sys/kernel/debug/kmemleak", F_OK) == 0;
}

size_t test_size(void)
{
	return slow_kernel() ? 1 * MiB : 4 * MiB;
}

int test_rounds(int rounds)
{
	return slow_kernel() ? (rounds + 7) / 8 : rounds;
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

long had_ms(void)
{
	return clock_ms();
}

uint64_t pattern_word(uint64_t seed, size_t offset)
{
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15ULL ^ seed << 17;

	return x ^ x >> 29;
}

void fill(void *p, size_t size, uint64_t seed)
{
	volatile uint64_t *w = p;
	size_t i;

	for (i = 0; i < size / sizeof(*w); i++)
		w[i] = pattern_word(seed, i * sizeof(*w));
}

long mismatch_at(const void *p, size_t size, uint64_t seed, size_t first_offset)
{
	const volatile uint64_t *w = p;
	size_t i;

	for (i = 0; i < size / sizeof(*w); i++)
		if (w[i] != pattern_word(seed, first_offset + i * sizeof(*w)))
			return i * sizeof(*w);
	return -1;
}

long mismatch(const void *p, size_t size, uint64_t seed)
{
	return mismatch_at(p, size, seed, 0);
}

bool all_zero(const void *p, size_t size)
{
	const volatile uint64_t *w = p;
	size_t i;

	for (i = 0; i < size / sizeof(*w); i++)
		if (w[i])
			return false;
	return true;
}

int child_status(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) != pid)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) :
				   128 + WTERMSIG(status);
}

int become_nobody(void)
{
	if (setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return -errno;
	return 0;
}

int turns_init(struct turns *t)
{
	return pipe2(t->to_child, O_CLOEXEC) ||
	       pipe2(t->to_parent, O_CLOEXEC) ? -errno : 0;
}

bool turn_wait(int pipe_end)
{
	char c;
	ssize_t n;

	do {
		n = read(pipe_end, &c, 1);
	} while (n < 0 && errno == EINTR);
	return n == 1;
}

bool turn_pass(int pipe_end)
{
	return write(pipe_end, "x", 1) == 1;
}

void turns_in_child(struct turns *t)
{
	close(t->to_child[1]);
	close(t->to_parent[0]);
}

void turns_in_parent(struct turns *t)
{
	close(t->to_child[0]);
	close(t->to_parent[1]);
}

void word_add(int *word)
{
	__atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int word_read(const int *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

void word_wait(const int *word, int at_least)
{
	int now;

	while ((now = word_read(word)) < at_least)
		syscall(SYS_futex, word, FUTEX_WAIT, now, NULL, NULL, 0);
}

long read_long(const char *path)
{
	FILE *f = fopen(path, "r");
	long v = -1;

	if (!f)
		return -1;
	if (fscanf(f, "%ld", &v) != 1)
		v = -1;
	fclose(f);
	return v;
}

int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -EIO;
}

int write_long(const char *path, long v)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", v);
	return write_text(path, text);
}

int poll_one(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int ret = poll(&p, 1, timeout_ms);

	return ret < 0 ? -errno : ret ? p.revents : 0;
}
