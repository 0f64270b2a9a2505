/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A program of the model test: a list of operations, kept as data, so that it can be made
 * from a seed, written to a file, read back, and shortened.
 *
 * Any subset of a program's operations is a program: an operation whose block, stream or
 * capture is not in the state that it needs does nothing.
 *
 * The text form has one line for the row, and one line for each operation:
 *
 *	row pool(vmm)
 *	threads 2
 *	0 alloc slot=3 stream=1 size=70000
 *	1 free slot=3 x=2 fail=cuEventRecord:1
 *
 * The line "delay 300" makes each write of a stream take so many microseconds.
 * The first word of an operation is the thread. Members that are 0 are left out. Lines that begin with #
 * are comments.
 */
#ifndef HETMEM_SELFTESTS_MODEL_PROGRAM_H
#define HETMEM_SELFTESTS_MODEL_PROGRAM_H

#include "below.h"
#include "driver_calls.h"
#include "tap.h"

#define MODEL_SLOTS	24
#define MODEL_STREAMS	4	/* made by the program; they can be retired */
#define MODEL_LEGACY	4
#define MODEL_HOST	5
#define MODEL_ALL	6
#define MODEL_THREADS	3
#define MODEL_MAX_OPS	400

/*
 * The operations, and how often each is made. A weight of 0 in the last column: never by
 * several threads at a time.
 */
#define MODEL_OPS(X)			\
X(alloc, 220, 1)			\
X(free, 190, 1)				\
X(write, 90, 1)				\
X(use, 60, 1)				\
X(verify, 60, 1)			\
X(record, 15, 1)			\
X(sync, 30, 1)				\
X(poll, 12, 1)				\
X(trim, 12, 1)				\
X(retire, 12, 0)			\
X(walk, 10, 1)				\
X(segments, 8, 1)			\
X(grow, 16, 1)				\
X(shrink, 12, 1)			\
X(bad, 12, 1)				\
X(sleep, 7, 0)				\
X(wake, 7, 0)				\
X(tag, 24, 0)				\
X(spill, 24, 1)				\
X(fetch, 16, 1)				\
X(sparse, 10, 1)			\
X(commit, 30, 1)			\
X(decommit, 26, 1)			\
X(alias, 12, 1)				\
X(ring, 12, 1)				\
X(priority, 5, 1)			\
X(access, 3, 1)				\
X(retain, 10, 0)			\
X(release, 7, 0)			\
X(checkpoint, 5, 0)			\
X(restore, 5, 0)			\
X(begin, 14, 0)				\
X(end, 14, 0)				\
X(launch, 10, 0)			\
X(drop, 8, 0)				\
X(fork, 1, 0)				\
X(export, 8, 0)				\
X(comm, 2, 0)				\
X(set, 4, 0)				\
X(stats, 8, 1)

enum model_kind {
#define OP(name, weight, parallel)	MODEL_##name,
	MODEL_OPS(OP)
#undef OP
	MODEL_NR_KINDS
};

static const struct {
	const char *name;
	unsigned int weight;
	bool parallel;
} model_kinds[] = {
#define OP(name, weight, parallel)	{ #name, weight, parallel },
	MODEL_OPS(OP)
#undef OP
};

/**
 * struct op - one operation
 * @slot: of the block; @stream: by number; @other: a second stream
 * @size: bytes; @x: what else there is to choose, a number of any size
 * @fail: 0, or 1 + the index of a driver call that fails in it; @nth: which one
 */
struct op {
	unsigned char kind, thread;
	unsigned short slot, stream, other;
	size_t size;
	unsigned int x;
	unsigned short fail, nth;
};

/*
 * @delay: microseconds that each write of a stream takes, so that streams are busy. No driver
 *	call fails then: the driver has one set of rules.
 */
struct program {
	char row[160];
	unsigned int threads;
	unsigned int delay;
	unsigned int nr;
	struct op ops[MODEL_MAX_OPS];
};

/* Sizes that matter: classes of small blocks, the boundaries at 64 KiB, 1 MiB and 2 MiB. */
static size_t model_size(size_t largest)
{
	static const size_t edges[] = { 512, 4096, 65536, 1 << 20, 2 << 20, 4 << 20 };
	size_t size;

	switch (below(10)) {
	case 0:
		size = below(3);
		break;
	case 1:
	case 2:
		size = 1 + below(4096);
		break;
	case 3:
	case 4:
		size = 1 + below(200000);
		break;
	case 5:
		size = edges[below(6)] + below(3) - 1;
		break;
	case 6:
	case 7:
		size = (1 + below(12)) << 18;
		break;
	case 8:
		size = 1 + below(3 << 20);
		break;
	default:
		size = (1 + below(5)) * (1 << 20) + below(1 << 20) * below(2);
	}
	return largest && size > largest ? 1 + size % largest : size;
}

/* Fills @p for @row from @from. @threads: 1, or as many as it has. */
static void model_generate(struct program *p, const char *row, size_t largest,
			   uint64_t from, unsigned int threads)
{
	unsigned int total = 0, i, k, w, home;
	unsigned int weights[MODEL_NR_KINDS];
	bool failing, busy;

	seed = from * 0x9e3779b97f4a7c15ULL + 12345;
	for (i = 0; i < 4; i++)
		(void)below(2);
	memset(p, 0, sizeof(*p));
	snprintf(p->row, sizeof(p->row), "%s", row);
	p->threads = threads;
	p->nr = 20 + below(below(4) ? 120 : MODEL_MAX_OPS - 20);
	failing = threads == 1 && !below(3);
	/* Streams run ahead of one another, and the host waits for none of them. */
	busy = !failing && below(3);
	if (busy)
		p->delay = below(2) ? 100 + below(900) : 5000;
	/* Each program prefers operations of its own: they come close together. */
	for (k = 0; k < MODEL_NR_KINDS; k++) {
		w = model_kinds[k].weight * (below(5) ? 2 : below(9));
		if (threads > 1 && !model_kinds[k].parallel)
			w /= 4;
		if (busy && (k == MODEL_sync || k == MODEL_verify || k == MODEL_retire ||
			     k == MODEL_fork || k == MODEL_sleep || k == MODEL_release ||
			     k == MODEL_drop || k == MODEL_begin || k == MODEL_spill))
			w /= 16;
		weights[k] = k == MODEL_alloc || k == MODEL_free ? 2 * model_kinds[k].weight : w;
		total += weights[k];
	}
	home = 1 + below(MODEL_ALL);
	for (i = 0; i < p->nr; i++) {
		struct op *op = &p->ops[i];

		w = below(total);
		for (k = 0; w >= weights[k]; k++)
			w -= weights[k];
		op->kind = k;
		op->thread = below(threads);
		op->slot = below(below(2) ? 6 : MODEL_SLOTS);
		op->stream = below(3) ? below(home) : below(MODEL_ALL);
		op->other = below(MODEL_ALL);
		op->size = model_size(largest);
		op->x = below(1U << 16);
		if (failing && !below(4)) {
			op->fail = 1 + below(NR_CALLS);
			op->nth = 1 + below(4);
		}
	}
}

static void model_print_op(FILE *f, const struct op *op)
{
	fprintf(f, "%u %s", op->thread, model_kinds[op->kind].name);
	if (op->slot)
		fprintf(f, " slot=%u", op->slot);
	if (op->stream)
		fprintf(f, " stream=%u", op->stream);
	if (op->other)
		fprintf(f, " other=%u", op->other);
	if (op->size)
		fprintf(f, " size=%zu", op->size);
	if (op->x)
		fprintf(f, " x=%u", op->x);
	if (op->fail)
		fprintf(f, " fail=%s:%u", calls[op->fail - 1], op->nth);
	fprintf(f, "\n");
}

static void model_print(FILE *f, const struct program *p)
{
	unsigned int i;

	fprintf(f, "row %s\n", p->row);
	if (p->threads > 1)
		fprintf(f, "threads %u\n", p->threads);
	if (p->delay)
		fprintf(f, "delay %u\n", p->delay);
	for (i = 0; i < p->nr; i++)
		model_print_op(f, &p->ops[i]);
}

static bool model_read_member(struct op *op, const char *word)
{
	char name[64];
	unsigned long long n;
	unsigned int nth, i;

	if (sscanf(word, "fail=%63[^:]:%u", name, &nth) == 2) {
		for (i = 0; i < NR_CALLS && strcmp(calls[i], name); i++)
			;
		op->fail = 1 + i;
		op->nth = nth;
		return i < NR_CALLS && nth;
	}
	if (sscanf(word, "%63[a-z]=%llu", name, &n) != 2)
		return false;
	if (!strcmp(name, "slot") && n < MODEL_SLOTS)
		op->slot = n;
	else if (!strcmp(name, "stream") && n < MODEL_ALL)
		op->stream = n;
	else if (!strcmp(name, "other") && n < MODEL_ALL)
		op->other = n;
	else if (!strcmp(name, "size"))
		op->size = n;
	else if (!strcmp(name, "x"))
		op->x = n;
	else
		return false;
	return true;
}

static bool model_read_op(struct program *p, char *line)
{
	struct op *op = &p->ops[p->nr];
	char *save = NULL, *word = strtok_r(line, " \n", &save), *end;
	unsigned int k;

	memset(op, 0, sizeof(*op));
	op->thread = strtoul(word, &end, 10);
	word = strtok_r(NULL, " \n", &save);
	if (*end || !word || p->nr == MODEL_MAX_OPS || op->thread >= p->threads)
		return false;
	for (k = 0; k < MODEL_NR_KINDS && strcmp(model_kinds[k].name, word); k++)
		;
	if (k == MODEL_NR_KINDS)
		return false;
	op->kind = k;
	while ((word = strtok_r(NULL, " \n", &save)))
		if (!model_read_member(op, word))
			return false;
	p->nr++;
	return true;
}

/* Returns false, and prints the line, if the file @path is no program. */
static bool model_read(struct program *p, const char *path)
{
	FILE *f = fopen(path, "r");
	char line[256], copy[256];
	bool good = f != NULL;

	memset(p, 0, sizeof(*p));
	p->threads = 1;
	while (good && fgets(line, sizeof(line), f)) {
		snprintf(copy, sizeof(copy), "%s", line);
		if (*line == '#' || *line == '\n')
			continue;
		if (sscanf(line, "row %159[^\n]", p->row) == 1)
			continue;
		if (sscanf(line, "threads %u", &p->threads) == 1)
			good = p->threads && p->threads <= MODEL_THREADS;
		else if (sscanf(line, "delay %u", &p->delay) == 1)
			good = p->delay <= 1000000;
		else
			good = model_read_op(p, line);
		if (!good)
			printf("# %s: %s", path, copy);
	}
	if (f)
		fclose(f);
	return good && p->row[0];
}

#endif /* HETMEM_SELFTESTS_MODEL_PROGRAM_H */
