/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the samples share. A sample prints a line for each step: its name, the result, and a
 * number. Natively and under 'hetmem run --device' the lines are the same.
 */
#ifndef HETMEM_SAMPLE_H
#define HETMEM_SAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB	((size_t)1 << 20)

/* FNV-1a of what was copied back. */
static inline unsigned long long sum(const void *data, size_t size)
{
	const unsigned char *p = data;
	unsigned long long h = 14695981039346656037ULL;

	while (size--)
		h = (h ^ *p++) * 1099511628211ULL;
	return h;
}

static inline void print_step(const char *name, int result, unsigned long long number)
{
	printf("%s %d %llx\n", name, result, number);
	fflush(stdout);
}

/* First the call, then the number, which is about what the call has done. */
#define step(name, call, number) do {					\
	const int result_ = (call);					\
									\
	print_step(name, result_, number);				\
} while (0)

static inline void to_hex(char *text, const void *data, size_t size)
{
	size_t i;

	for (i = 0; i < size; i++)
		sprintf(text + 2 * i, "%02x", ((const unsigned char *)data)[i]);
}

static inline void from_hex(void *data, const char *text, size_t size)
{
	size_t i;

	for (i = 0; i < size; i++)
		sscanf(text + 2 * i, "%2hhx", (unsigned char *)data + i);
}

/* This program again, with "open" and the handle. fork() alone would share the parent's CUDA. */
static inline int run_peer(const char *program, const void *handle, size_t size)
{
	char hex[200];
	int status = -1;
	pid_t pid;

	to_hex(hex, handle, size);
	pid = fork();
	if (!pid) {
		execl(program, program, "open", hex, (char *)NULL);
		_exit(9);
	}
	waitpid(pid, &status, 0);
	return status;
}

#endif /* HETMEM_SAMPLE_H */
