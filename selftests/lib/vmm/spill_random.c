// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Threads, each with a stream of its own, allocate, free and move blocks of one pool at
 * random, while it sleeps and wakes: contents stay, in check mode too.
 * Arguments: a seed, rounds of each thread.
 */
#include "spill_test.h"

#define THREADS	3
#define BLOCKS	6

static unsigned int rounds = 120;
/* No block is used while the pool sleeps. */
static pthread_rwlock_t asleep = PTHREAD_RWLOCK_INITIALIZER;

static unsigned int moved;

struct worker {
	pthread_t thread;
	unsigned int nr;
	uint64_t seed;
	CUstream stream;
	struct slot slots[BLOCKS];
	bool moving[BLOCKS];
	unsigned int bad, none, refused, moves;
};

static size_t random_size(void)
{
	switch (below(4)) {
	case 0:
		return 1 + below(1U << 20);
	case 1:
		return (1 + below(4)) * MIB;
	case 2:
		return (1 + below(12)) * MIB + below(MIB);
	default:
		return 1 + below(40 * MIB);
	}
}

static void one_alloc(struct worker *w, struct slot *s)
{
	const unsigned int flags[] = { HETMEM_ALLOC_MOVABLE, HETMEM_ALLOC_MOVABLE, 0,
				       HETMEM_ALLOC_KEEP };
	int err = try_flagged(s, random_size(), w->stream, flags[below(4)], (int)below(3) - 1);

	w->none += err == -ENOMEM;
	w->bad += err && err != -ENOMEM;
}

/* Ends the move of a block that is about to be used: it is here or there. */
static void settle(struct worker *w, unsigned int k)
{
	if (!w->moving[k])
		return;
	/* After wait= it may still move: machines are busy. */
	while (hetmem_spill(res, w->slots[k].p) == -EBUSY)
		;
	w->moving[k] = false;
}

static void one_move(struct worker *w, unsigned int k)
{
	static int (*const moves[])(struct hetmem_resource *res, void *ptr) = {
		hetmem_spill, hetmem_fetch, hetmem_spill_async, hetmem_fetch_async,
	};
	unsigned int way = below(4);
	int err = moves[way](res, w->slots[k].p);

	w->moves += !err;
	w->refused += err == -EBUSY || err == -ENOMEM;
	w->bad += err && err != -EBUSY && err != -ENOMEM;
	w->moving[k] = w->moving[k] || (way >= 2 && !err);
}

static void one_step(struct worker *w)
{
	unsigned int k = below(BLOCKS), what = below(20);
	struct slot *s = &w->slots[k];
	int err;

	if (!s->p) {
		one_alloc(w, s);
	} else if (what < 4) {
		/* Also while it moves. */
		w->bad += hetmem_free(res, s->p, s->size, w->stream) != 0;
		s->p = NULL;
		w->moving[k] = false;
	} else if (what < 9) {
		settle(w, k);
		w->bad += wrong_in(s);
		write_block(s);
	} else if (what < 17) {
		one_move(w, k);
	} else if (what == 17) {
		err = hetmem_priority(res, s->p, (int)below(5) - 2);
		w->bad += err && err != -EBUSY;
	} else if (what == 18) {
		w->bad += hetmem_poll(res) != 0;
	} else {
		w->bad += hetmem_trim(res, below(2) * 16 * MIB, NULL) != 0;
	}
}

static void sleep_and_wake(struct worker *w)
{
	pthread_rwlock_wrlock(&asleep);
	if (hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP))
		w->refused++;
	w->bad += hetmem_wake(res, NULL) != 0;
	pthread_rwlock_unlock(&asleep);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned int i, k;

	drv->cuCtxSetCurrent(context);
	seed = w->seed;
	image = malloc(LARGEST);
	for (i = 0; i < rounds && image; i++) {
		if (!w->nr && i % 40 == 39)
			sleep_and_wake(w);
		pthread_rwlock_rdlock(&asleep);
		one_step(w);
		pthread_rwlock_unlock(&asleep);
	}
	pthread_rwlock_rdlock(&asleep);
	for (k = 0; k < BLOCKS; k++) {
		if (!w->slots[k].p)
			continue;
		settle(w, k);
		w->bad += wrong_in(&w->slots[k]);
		w->bad += hetmem_free(res, w->slots[k].p, 0, w->stream) != 0;
	}
	pthread_rwlock_unlock(&asleep);
	free(image);
	return NULL;
}

static void play(const char *spec, uint64_t first)
{
	struct worker workers[THREADS] = { 0 };
	unsigned int i, bad = 0, none = 0, refused = 0;
	const char *what;

	make(spec);
	for (i = 0; i < THREADS; i++) {
		workers[i].nr = i;
		workers[i].seed = first * 1000 + i;
		workers[i].stream = streams[i];
		need(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "a thread");
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		bad += workers[i].bad;
		moved += workers[i].moves;
		none += workers[i].none;
		refused += workers[i].refused;
	}
	ok(!bad, "%s: %u moves so far, %u refused, no memory %u times", spec, moved, refused, none);
	what = leftover(0);
	ok(!what, "nothing is left: %s", what ? what : "");
}

int main(int argc, char **argv)
{
	const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	unsigned int check;

	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	for (check = 0; check < 2; check++) {
		printf("# seed %llu, %s\n", (unsigned long long)first,
		       check ? "checked" : "not checked");
		open_moves(check ? "1" : "0");
		play("pool(vmm,wait=10ms)", first);
		play("pool(vmm,handle=2M,wait=10ms)", first + 1);
		play("pool(vmm,handle=4M,max=120M,spill=200M,wait=10ms)", first + 2);
		play("pool(vmm,handle=2M,max=80M,spill=100M,wait=10ms)", first + 3);
		play("pool(vmm,handle=16M,max=160M,spill=160M,movable=3M,wait=10ms)", first + 4);
		play("pool(vmm,max=100M,spill=60M,wait=10ms)", first + 5);
		close_moves();
	}
	ok(moved, "%u moves", moved);
	return tap_end();
}
