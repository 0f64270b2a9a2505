/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Random calls with checked contents, by threads that pass each other their allocations. Arguments:
 * the seed, how many calls there are in all.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>

#include "tap.h"

#define OPERATIONS	100000
#define THREADS		4
#define SLOTS		24
#define MIB		((size_t)1 << 20)

struct allocation {
	unsigned char *p;
	size_t size;
	unsigned int seed;
};

/* Whoever finds one here owns it. */
static _Atomic(struct allocation *) passed[THREADS];
static atomic_size_t wrong, failed, made;
static unsigned int first_seed, operations = OPERATIONS;

/* Written and looked at: both ends, and a word of each page, of large ones of every 16th. */
static size_t step(size_t size)
{
	return size > 8 * MIB ? 65536 : 4096;
}

static void write_all(const struct allocation *a, size_t from)
{
	size_t i;

	if (!a->size)
		return;
	for (i = from - from % step(a->size); i < a->size; i += step(a->size))
		a->p[i] = i / 4096 * 7 + a->seed;
	a->p[a->size - 1] = a->seed;
}

static void check(const struct allocation *a)
{
	size_t i;

	if (!a->size)
		return;
	for (i = 0; i + 1 < a->size; i += step(a->size))
		if (a->p[i] != (unsigned char)(i / 4096 * 7 + a->seed)) {
			atomic_fetch_add(&wrong, 1);
			return;
		}
	if (a->p[a->size - 1] != (unsigned char)a->seed)
		atomic_fetch_add(&wrong, 1);
}

static size_t random_size(unsigned int *seed)
{
	switch (rand_r(seed) % 16) {
	case 0:
		return rand_r(seed) % (24 * MIB);
	case 1:
	case 2:
		return 2 * MIB - 64 + rand_r(seed) % 128;
	case 3:
	case 4:
		return rand_r(seed) % (4 * MIB);
	default:
		return rand_r(seed) % 65536;
	}
}

static void make(struct allocation *a, unsigned int *seed)
{
	const size_t align = (size_t)8 << rand_r(seed) % 20;
	size_t i;

	a->size = random_size(seed);
	a->seed = rand_r(seed);
	a->p = NULL;
	switch (rand_r(seed) % 5) {
	case 0:
		a->p = malloc(a->size);
		break;
	case 1:
		a->p = calloc(1, a->size);
		for (i = 0; a->p && i < a->size; i += step(a->size))
			if (a->p[i])
				atomic_fetch_add(&wrong, 1);
		break;
	case 2:
		if (posix_memalign((void **)&a->p, align, a->size))
			a->p = NULL;
		break;
	case 3:
		a->p = aligned_alloc(align, a->size);
		break;
	case 4:
		a->p = memalign(align, a->size);
		break;
	}
	if (!a->p) {
		atomic_fetch_add(&failed, 1);
		return;
	}
	if (malloc_usable_size(a->p) < a->size)
		atomic_fetch_add(&wrong, 1);
	atomic_fetch_add(&made, 1);
	write_all(a, 0);
}

static void resize(struct allocation *a, unsigned int *seed)
{
	const size_t size = random_size(seed) + 1, old = a->size;
	const bool same = step(size) == step(old);
	unsigned char *p;

	check(a);
	p = realloc(a->p, size);
	if (!p) {
		atomic_fetch_add(&failed, 1);
		return;
	}
	if (old && p[0] != (unsigned char)a->seed)
		atomic_fetch_add(&wrong, 1);
	a->p = p;
	a->size = size;
	/* The old last byte is a part of the pattern only until the block has changed. */
	if (same && size > old && old)
		p[old - 1] = (old - 1) % step(old) ? 0 : (old - 1) / 4096 * 7 + a->seed;
	write_all(a, same && size > old ? old : size > old ? 0 : size);
	if (!same)
		write_all(a, 0);
	check(a);
}

static void *work(void *arg)
{
	unsigned int seed = first_seed * 1000 + (uintptr_t)arg;
	struct allocation *slots[SLOTS] = { NULL }, *other;
	unsigned int i;

	for (i = 0; i < operations / THREADS; i++) {
		struct allocation **a = &slots[rand_r(&seed) % SLOTS];

		if (!*a) {
			*a = malloc(sizeof(**a));
			make(*a, &seed);
			if (!(*a)->p) {
				free(*a);
				*a = NULL;
			}
			continue;
		}
		switch (rand_r(&seed) % 4) {
		case 0:
			resize(*a, &seed);
			break;
		case 1:
			other = atomic_exchange(&passed[rand_r(&seed) % THREADS], *a);
			*a = other;
			if (other)
				check(other);
			break;
		default:
			check(*a);
			free((*a)->p);
			free(*a);
			*a = NULL;
		}
	}
	for (i = 0; i < SLOTS; i++)
		if (slots[i]) {
			check(slots[i]);
			free(slots[i]->p);
			free(slots[i]);
		}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	uintptr_t i;

	first_seed = argc > 1 ? atoi(argv[1]) : getpid();
	if (argc > 2)
		operations = atoi(argv[2]);
	printf("# seed %u\n", first_seed);
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&threads[i], NULL, work, (void *)(i + 1)), "a thread");
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < THREADS; i++)
		if (atomic_load(&passed[i])) {
			check(passed[i]);
			free(passed[i]->p);
			free(passed[i]);
		}
	is(atomic_load(&wrong), 0, "contents of %zu allocations", atomic_load(&made));
	is(atomic_load(&failed), 0, "none failed");
	return tap_end();
}
