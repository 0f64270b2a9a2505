/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Plays a program: its steps one after the other and in threads, from a new library to none. */
#ifndef HETMEM_SELFTESTS_MODEL_PLAY_H
#define HETMEM_SELFTESTS_MODEL_PLAY_H

#include "model/aliases.h"

static void (*const functions[])(const struct op *op) = {
#define OP(name, weight, parallel)	op_##name,
	MODEL_OPS(OP)
#undef OP
};

static void one_step(const struct op *op, unsigned int nr)
{
	step = nr;
	now = op;
	functions[op->kind](op);
	now = NULL;
}

/* The streams that @op can give work to, in ascending order; the host has no lock. */
static unsigned int streams_of(const struct op *op)
{
	const struct block *b = &slots[op->slot];
	unsigned int mask = 1U << op->stream | 1U << op->other, u;

	if (b->p)
		mask |= 1U << b->home | b->mask;
	for (u = 0; u < sparse[op->slot].units; u++)
		mask |= 1U << sparse[op->slot].by[u];
	if (rings[op->slot].p)
		mask |= 1U << rings[op->slot].by;
	return mask;
}

static void parallel_step(const struct op *op, unsigned int nr)
{
	unsigned int mask, i;

	if (!model_kinds[op->kind].parallel) {
		pthread_rwlock_wrlock(&world);
		one_step(op, nr);
		check_stats();
		pthread_rwlock_unlock(&world);
		return;
	}
	pthread_rwlock_rdlock(&world);
	pthread_mutex_lock(&slot_locks[op->slot]);
	mask = streams_of(op);
	for (i = 0; i < MODEL_ALL; i++)
		if (mask & 1U << i && i != MODEL_HOST)
			pthread_mutex_lock(&stream_locks[i]);
	one_step(op, nr);
	for (i = 0; i < MODEL_ALL; i++)
		if (mask & 1U << i && i != MODEL_HOST)
			pthread_mutex_unlock(&stream_locks[i]);
	pthread_mutex_unlock(&slot_locks[op->slot]);
	pthread_rwlock_unlock(&world);
}

static void *run_thread(void *arg)
{
	const unsigned int thread = (uintptr_t)arg;
	unsigned int i;

	if (!on_cpu()) {
		driver_must(drv->cuCtxSetCurrent(context));
		driver_must(drv->cuStreamCreate(&aux, CU_STREAM_NON_BLOCKING));
	}
	for (i = 0; i < program.nr; i++)
		if (program.ops[i].thread == thread)
			parallel_step(&program.ops[i], i);
	if (!on_cpu()) {
		pthread_rwlock_wrlock(&world);
		driver_must(drv->cuStreamDestroy(aux));
		pthread_rwlock_unlock(&world);
	}
	return NULL;
}

/* The sum of all max= of the spec, if every pool has one. */
static size_t limit_of(const char *spec)
{
	size_t sum = 0, n;

	limits_requested = strstr(spec, "limit(") != NULL;
	if (strstr(spec, "binning(") || strstr(spec, "fixed("))
		return 0;
	while ((spec = strstr(spec, "max="))) {
		spec += 4;
		if (sscanf(spec, "%zuM", &n) == 1)
			sum += n << 20;
	}
	return sum;
}

static void start(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	unsigned int i;
	int err;

	must(!hetmem_open(&hm, &params), "open", "hetmem_open()");
	drv = api_of(hm);
	driver_must(drv->cuDevicePrimaryCtxRetain(&context, 0));
	driver_must(drv->cuCtxSetCurrent(context));
	custom_register(hm);
	for (i = 0; i < MODEL_STREAMS; i++)
		driver_must(drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	streams[MODEL_LEGACY] = HETMEM_STREAM_LEGACY;
	driver_must(drv->cuStreamCreate(&aux, CU_STREAM_NON_BLOCKING));
	for (i = 0; i < MODEL_SLOTS; i++)
		pthread_mutex_init(&slot_locks[i], NULL);
	for (i = 0; i < MODEL_ALL; i++)
		pthread_mutex_init(&stream_locks[i], NULL);
	limit = limit_of(program.row);
	err = hetmem_resource_create(hm, program.row, &res);
	must(!err, "create", "%s: %d", program.row, err);
}

static void free_rings(void)
{
	unsigned int i;

	for (i = 0; i < MODEL_SLOTS; i++)
		if (rings[i].p)
			op_ring(&(struct op){ .slot = i, .x = 1 });
}

/* Frees everything. @left: how many blocks it leaves to destroy. */
static void finish(unsigned int left)
{
	size_t available, total, freed;
	unsigned int i;
	ssize_t n;
	int err;

	step = program.nr;
	for (i = 0; i < MODEL_STREAMS; i++) {
		if (captures[i].state == CAPTURING)
			end_capture(i);
		if (captures[i].state == CAPTURED)
			drop(i);
	}
	/* Blocks that are awake make room for the others; the memory of rings never sleeps. */
	if ((asleep || any_tag_asleep()) && !wake()) {
		free_rings();
		for (i = 0; i < MODEL_SLOTS; i++)
			if (slots[i].p && !is_asleep(&slots[i])) {
				settle(&slots[i]);
				verify(&slots[i]);
				op_free(&(struct op){ .slot = i });
			}
		must(wake(), "wake", "without any other block");
	}
	check_stats();
	for (i = 0; i < MODEL_SLOTS; i++) {
		if (!slots[i].p)
			continue;
		settle(&slots[i]);
		verify(&slots[i]);
		if (left) {
			left--;
			continue;
		}
		op_free(&(struct op){ .slot = i });
	}
	for (i = 0; i < MODEL_SLOTS; i++)
		if (sparse[i].p)
			op_sparse(&(struct op){ .slot = i, .x = i });
	free_rings();
	for (i = 1; i <= MODEL_PRIVATE; i++) {
		while (retained[i])
			release(i, 0);
		hetmem_checkpoint_free(checkpoints[i].made);
	}
	sync_all();
	check_stats();
	err = hetmem_trim(res, 0, &freed);
	must(!err || err == -EOPNOTSUPP, "trim", "%d", err);
	check_stats();
	n = hetmem_resource_destroy(res);
	must(n == (ssize_t)nr_live, "destroy", "%zd blocks left, not %" PRIu64, n, nr_live);
	driver_must(drv->cuMemGetInfo(&available, &total));
	must(available == total, "leak", "%zu bytes of the device", total - available);
	must(!hm->soft->holds(), "leak", "memory that the driver knows");
	for (i = 0; i < MODEL_STREAMS; i++)
		driver_must(drv->cuStreamDestroy(streams[i]));
	driver_must(drv->cuStreamDestroy(aux));
	drv->cuCtxSetCurrent(NULL);
	driver_must(drv->cuDevicePrimaryCtxRelease(0));
}

static void play_all(void)
{
	pthread_t threads[MODEL_THREADS];
	unsigned int i;

	if (program.threads == 1) {
		for (i = 0; i < program.nr; i++) {
			one_step(&program.ops[i], i);
			now = &program.ops[i];
			check_stats();
			now = NULL;
		}
		return;
	}
	for (i = 0; i < program.threads; i++)
		must(!pthread_create(&threads[i], NULL, run_thread, (void *)(uintptr_t)i),
		     "thread", "pthread_create()");
	for (i = 0; i < program.threads; i++)
		pthread_join(threads[i], NULL);
}

static void close_library(void)
{
	hetmem_close(hm);
}

/* Plays program in this process, which it ends if something is wrong. @fd: an empty file */
static void play(int fd)
{
	char text[1024];
	size_t i;

	row = (struct row){ .spec = program.row };
	for (i = 0; i < NR_ROWS; i++)
		if (!strcmp(rows[i].spec, program.row))
			row = rows[i];
	memset(slots, 0, sizeof(slots));
	memset(sparse, 0, sizeof(sparse));
	memset(rings, 0, sizeof(rings));
	memset(ranges, 0, sizeof(ranges));
	memset(captures, 0, sizeof(captures));
	memset(retained, 0, sizeof(retained));
	memset(checkpoints, 0, sizeof(checkpoints));
	asleep = held_back = pinned = limit_set = tag_asleep[0] = tag_asleep[1] = false;
	nr_live = nr_requested = nr_kept_back = nr_allocs = nr_frees = 0;
	last_freed = NULL;
	now = NULL;
	start();
	if (program.delay) {
		snprintf(text, sizeof(text), "cuMemsetD32Async:%uus", program.delay);
		must(!soft_rules(NULL, text), "rules", "%s", text);
	}
	play_all();
	soft_rules(NULL, NULL);
	finish(program.nr % 8 ? 0 : 2);
	if (tap_stderr_of(close_library, fd, text, sizeof(text)) > 0)
		broken("leak", "%s", text);
}

#endif /* HETMEM_SELFTESTS_MODEL_PLAY_H */
