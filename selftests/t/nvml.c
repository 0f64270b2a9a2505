/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A stand-in for libnvidia-ml.so.1 that reports what the file STAND_IN_NVML says, line by line:
 *
 *	init N				nvmlInit_v2() returns N
 *	hang				nvmlDeviceGetCount_v2() never returns
 *	gpu TOTAL USED NAME		a GPU; TOTAL "lost": it has no handle
 *	use KIND GPU PID BYTES [PART]	KIND: compute, graphics or mps; BYTES -1: not known
 *
 * With -DOLD the calls have the version before, with -DTOO_OLD there are none of some.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct memory {
	unsigned long long total, free, used;
};

struct info {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int part, compute_part;
};

static int running;

/* Calls @line for each line that begins with @word, with what follows. */
static void each(const char *word, void (*line)(const char *rest, void *arg), void *arg)
{
	const size_t len = strlen(word);
	FILE *f = fopen(getenv("STAND_IN_NVML"), "r");
	char text[256];

	while (f && fgets(text, sizeof(text), f)) {
		text[strcspn(text, "\n")] = '\0';
		if (!strncmp(text, word, len) && (text[len] == ' ' || !text[len]))
			line(text + len + !!text[len], arg);
	}
	if (f)
		fclose(f);
}

static void take_number(const char *rest, void *arg)
{
	*(int *)arg = atoi(rest);
}

static void hang(const char *rest, void *arg)
{
	(void)rest;
	(void)arg;
	for (;;)
		pause();
}

static void count_line(const char *rest, void *arg)
{
	(void)rest;
	++*(unsigned int *)arg;
}

int nvmlInit_v2(void)
{
	int ret = 0;

	each("init", take_number, &ret);
	if (!ret && running++)
		abort();
	return ret;
}

int nvmlShutdown(void)
{
	if (!running--)
		abort();
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *nr)
{
	if (!running)
		return 1;
	each("hang", hang, NULL);
	*nr = 0;
	each("gpu", count_line, nr);
	return 0;
}

/* The line of one GPU. Handles are its index and 1. */
struct wanted {
	unsigned int left;
	char line[256];
};

static void want(const char *rest, void *arg)
{
	struct wanted *w = arg;

	if (!w->left--)
		strcpy(w->line, rest);
}

static struct wanted line_of(uintptr_t index)
{
	struct wanted w = { .left = index };

	each("gpu", want, &w);
	return w;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	*device = (void *)(uintptr_t)(index + 1);
	return strncmp(line_of(index).line, "lost", 4) ? 0 : 15;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int len)
{
	const struct wanted w = line_of((uintptr_t)device - 1);
	int at = 0;

	sscanf(w.line, "%*s %*s %n", &at);
	snprintf(name, len, "%s", w.line + at);
	return 0;
}

#ifndef TOO_OLD
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	const struct wanted w = line_of((uintptr_t)device - 1);

	return sscanf(w.line, "%llu %llu", &memory->total, &memory->used) == 2 ? 0 : 3;
}
#endif

struct list {
	const char *kind;
	unsigned int gpu, nr, room;
	struct info *infos;
};

static void add(const char *rest, void *arg)
{
	struct list *l = arg;
	struct info info = { 0 };
	unsigned int gpu;
	long long bytes;
	char kind[16];

	if (sscanf(rest, "%15s %u %u %lld %u", kind, &gpu, &info.pid, &bytes, &info.part) < 4 ||
	    strcmp(kind, l->kind) || gpu != l->gpu)
		return;
	info.bytes = bytes;
	if (l->nr < l->room)
		l->infos[l->nr] = info;
	l->nr++;
}

static int list(const char *kind, void *device, unsigned int *nr, struct info *infos)
{
	struct list l = { kind, (uintptr_t)device - 1, 0, *nr, infos };

	each("use", add, &l);
	*nr = l.nr;
	return l.nr > l.room ? 7 : 0;
}

#ifdef OLD
#define LIST(name)	nvmlDeviceGet##name##RunningProcesses_v2
#else
#define LIST(name)	nvmlDeviceGet##name##RunningProcesses_v3
#endif

int LIST(Compute)(void *device, unsigned int *nr, struct info *infos)
{
	return list("compute", device, nr, infos);
}

#ifndef OLD
int LIST(Graphics)(void *device, unsigned int *nr, struct info *infos)
{
	return list("graphics", device, nr, infos);
}

int LIST(MPSCompute)(void *device, unsigned int *nr, struct info *infos)
{
	return list("mps", device, nr, infos);
}
#endif
