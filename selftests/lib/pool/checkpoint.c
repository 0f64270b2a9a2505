// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is live in a private pool, checkpoints of that, and restoring them: at the
 * same addresses, in any order, after the memory was something else, while streams
 * are captured or work, through adaptors; and failures, after which all is as it
 * was.
 */
#include <dlfcn.h>
#include <sys/wait.h>

#include "alloc_with.h"
#include "driver_calls.h"
#include "pool/graph.h"
#include "pool_gate.h"

/* Allocations until one fails; -1: none does. */
static int memory_for = -1;

static bool fails(void)
{
	return memory_for >= 0 && !memory_for--;
}

/* In the place of the C library's. */

void *malloc(size_t size)
{
	static void *(*real_malloc)(size_t size);

	if (!real_malloc)
		*(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
	return fails() ? NULL : real_malloc(size);
}

void *realloc(void *ptr, size_t size)
{
	static void *(*real_realloc)(void *ptr, size_t size);

	if (!real_realloc)
		*(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
	return fails() ? NULL : real_realloc(ptr, size);
}

#define ID	5
#define MOST	512

/* What a restore told. */
static struct hetmem_restored told[4 * MOST];
static unsigned int nr_told, nr_kind[3];

static void see(void *data, const struct hetmem_restored *block)
{
	unsigned int *bad = data;

	/* Freed ones first, then allocated ones. */
	if (block->size != sizeof(*block) ||
	    (nr_told && block->kind < told[nr_told - 1].kind))
		++*bad;
	nr_kind[block->kind]++;
	if (nr_told < 4 * MOST)
		told[nr_told++] = *block;
}

static int restore(const struct hetmem_checkpoint *checkpoint)
{
	unsigned int bad = 0;
	int err;

	nr_told = 0;
	memset(nr_kind, 0, sizeof(nr_kind));
	err = hetmem_private_restore(pool, checkpoint, see, &bad);
	if (bad)
		ok(false, "what a restore tells is in order");
	return err;
}

static bool was(int kind, const void *p, size_t bytes, hetmem_stream stream)
{
	unsigned int i;

	for (i = 0; i < nr_told; i++)
		if (told[i].ptr == p)
			return told[i].kind == kind && told[i].bytes == bytes &&
			       told[i].stream == stream;
	return false;
}

static bool told_are(int freed, int allocated, int kept)
{
	return (int)nr_kind[HETMEM_RESTORED_FREED] == freed &&
	       (int)nr_kind[HETMEM_RESTORED_ALLOCATED] == allocated &&
	       (int)nr_kind[HETMEM_RESTORED_KEPT] == kept;
}

static struct hetmem_checkpoint *save(void)
{
	struct hetmem_checkpoint *c = NULL;

	need(!hetmem_private_checkpoint(pool, ID, &c), "a checkpoint: %s",
	     hetmem_last_error());
	return c;
}

static void *get_private(size_t size, CUstream s)
{
	void *p = NULL;

	need(!alloc_private(pool, ID, size, s, &p), "private: %s",
	     hetmem_last_error());
	return p;
}

static bool is_live(const void *p)
{
	void *ptrs[MOST];
	ssize_t i, nr = hetmem_private_live(pool, ID, ptrs, MOST);

	for (i = 0; i < nr; i++)
		if (ptrs[i] == p)
			return true;
	return false;
}

static ssize_t nr_live(void)
{
	return hetmem_private_live(pool, ID, NULL, 0);
}

/* Every byte that is held is in one block. */
static int add_bytes(void *data, const struct hetmem_walk_segment *segment,
		     const struct hetmem_walk_block *block)
{
	(void)segment;
	*(uint64_t *)data += block->bytes;
	return 0;
}

static bool complete(void)
{
	uint64_t bytes = 0;
	struct hetmem_walk walk = {
		.size = sizeof(walk), .block = add_bytes, .data = &bytes,
	};

	return !hetmem_walk(pool, &walk) && bytes == pool_stats().reserved;
}

static void bad_input(void)
{
	struct hetmem_checkpoint *c = NULL, *other;
	struct hetmem_resource *first;
	void *p[2];

	make_pool("vmm", NULL);
	is(hetmem_private_live(NULL, ID, p, 2), -EINVAL, "no resource");
	is(hetmem_private_live(pool, 0, p, 2), -EINVAL, "no number");
	is(hetmem_private_live(pool, ID, NULL, 2), -EINVAL, "no room");
	is(hetmem_private_live(pool, ID, p, 2), -ENOENT, "not retained: %s",
	   hetmem_last_error());
	is(hetmem_private_checkpoint(pool, ID, NULL), -EINVAL, "nowhere to put it");
	is(hetmem_private_checkpoint(pool, ID, &c), -ENOENT, "no private pool");
	is(hetmem_private_checkpoint(pool, 0, &c), -EINVAL, "no number");
	is(hetmem_private_restore(pool, NULL, NULL, NULL), -EINVAL,
	   "no checkpoint");
	ok(!c, "nothing was returned");
	hetmem_checkpoint_free(NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	c = save();
	is(nr_live(), 0, "nothing is live");
	is(restore(c), 0, "nothing is restored");
	ok(told_are(0, 0, 0), "so nothing is told");
	is(hetmem_private_restore(NULL, c, NULL, NULL), -EINVAL, "no resource");
	first = pool;
	make_pool("vmm", NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	is(restore(c), -EINVAL, "of another resource: %s", hetmem_last_error());
	other = save();
	hetmem_resource_destroy(pool);
	pool = first;
	is(restore(other), -EINVAL, "of one that has gone");
	hetmem_checkpoint_free(other);
	is(hetmem_private_release(pool, ID, NULL), 0, "released");
	is(restore(c), -ENOENT, "restored after the release");
	need(!hetmem_private_retain(pool, ID), "retain");
	is(restore(c), -ENOENT, "nor when the number is used again: %s",
	   hetmem_last_error());
	hetmem_resource_destroy(pool);
	hetmem_checkpoint_free(c);
	need(!hetmem_resource_create(hm, "device", &pool), "a resource");
	is(hetmem_private_checkpoint(pool, ID, &c), -EOPNOTSUPP, "not a pool");
	hetmem_resource_destroy(pool);
}

static void orders(const char *provider, size_t size)
{
	struct hetmem_checkpoint *none, *two, *three;
	CUstream a = new_stream(), b = new_stream();
	void *p[4], *q, *small[8];
	int i;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	none = save();
	p[0] = get_private(size, a);
	p[1] = get_private(size, b);
	two = save();
	p[2] = get_private(size - 100, a);
	three = save();
	is(nr_live(), 3, "%s, %zu: three are live", provider, size);
	ok(is_live(p[0]) && is_live(p[1]) && is_live(p[2]), "%s, %zu: these",
	   provider, size);
	is(restore(three), 0, "%s, %zu: at once", provider, size);
	ok(told_are(0, 0, 3), "%s, %zu: all are kept", provider, size);
	is(restore(two), 0, "%s, %zu: an earlier one", provider, size);
	ok(told_are(1, 0, 2) &&
	   was(HETMEM_RESTORED_FREED, p[2], size - 100, a) &&
	   was(HETMEM_RESTORED_KEPT, p[1], size, b), "%s, %zu: one is freed",
	   provider, size);
	ok(!is_live(p[2]) && nr_live() == 2, "%s, %zu: it is not live",
	   provider, size);
	is(hetmem_free(pool, p[2], 0, a), -EINVAL, "%s, %zu: nor freed again",
	   provider, size);
	is(restore(three), 0, "%s, %zu: a later one", provider, size);
	ok(told_are(0, 1, 2) &&
	   was(HETMEM_RESTORED_ALLOCATED, p[2], size - 100, a),
	   "%s, %zu: it is there again", provider, size);
	is(hetmem_free(pool, p[2], size - 100, a), 0, "%s, %zu: and is freed",
	   provider, size);
	is(restore(none), 0, "%s, %zu: the empty one", provider, size);
	ok(told_are(2, 0, 0) && !nr_live(), "%s, %zu: nothing is live",
	   provider, size);
	is(pool_stats().live, 0, "%s, %zu: in statistics too", provider, size);
	/* The addresses are something else meanwhile: smaller, larger, another stream's. */
	for (i = 0; i < 8; i++)
		small[i] = get_private(size / 8, i & 1 ? a : b);
	q = get_private(size / 2, a);
	is(restore(three), 0, "%s, %zu: over what is there", provider, size);
	ok(told_are(9, 3, 0), "%s, %zu: all of it", provider, size);
	ok(was(HETMEM_RESTORED_FREED, q, size / 2, a) &&
	   was(HETMEM_RESTORED_FREED, small[0], size / 8, b),
	   "%s, %zu: was freed", provider, size);
	is(restore(three), 0, "%s, %zu: twice", provider, size);
	ok(told_are(0, 0, 3) && complete(), "%s, %zu: all are there", provider,
	   size);
	/* Others of the same bytes are others: of another stream. */
	put(p[0], size, b);
	q = get_private(size, b);
	ok(q == p[0], "%s, %zu: another stream has it", provider, size);
	is(restore(three), 0, "%s, %zu: until a restore", provider, size);
	ok(told_are(1, 1, 2), "%s, %zu: which gives it back", provider, size);
	put(p[0], size, HETMEM_STREAM_UNKNOWN);
	ok(get_private(size, a) == p[0], "%s, %zu: to its own stream", provider,
	   size);
	is(hetmem_private_release(pool, ID, a), 0, "%s, %zu: released",
	   provider, size);
	for (i = 0; i < 3; i++)
		put(p[i], 0, a);
	hetmem_checkpoint_free(none);
	hetmem_checkpoint_free(two);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left",
	   provider, size);
	hetmem_checkpoint_free(three);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Work under way, uses of other streams, captures, memory that goes and sleeps. */
static void meanwhile(const char *provider)
{
	CUstream a = new_stream(), b = new_stream(), s = new_stream();
	struct hetmem_checkpoint *c;
	CUgraph graph = NULL;
	void *p, *q, *r;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	p = get_private(3 * MIB, a);
	q = get_private(700, a);
	c = save();
	close_gate(a);
	put(p, 3 * MIB, a);
	r = get_private(1 * MIB, a);
	drv->cuMemsetD8Async((CUdeviceptr)r, 1, 1 * MIB, a);
	is(restore(c), 0, "%s: with work under way", provider);
	ok(told_are(1, 1, 1) && was(HETMEM_RESTORED_ALLOCATED, p, 3 * MIB, a),
	   "%s: nobody waits for it", provider);
	/* A block that another stream uses is parked until release. */
	need(!hetmem_record_stream(pool, p, b), "a use");
	put(p, 3 * MIB, a);
	r = get_private(3 * MIB, a);
	ok(r != p, "%s: parked", provider);
	is(restore(c), 0, "%s: what is parked", provider);
	ok(is_live(p) && !is_live(r) && told_are(1, 1, 1), "%s: is live again",
	   provider);
	need(!hetmem_record_stream(pool, p, b), "a use");
	is(hetmem_private_restore(pool, c, NULL, NULL), 0, "%s: uses", provider);
	put(p, 3 * MIB, a);
	ok(get_private(3 * MIB, a) != p, "%s: stay", provider);
	is(restore(c), 0, "%s: until it is restored", provider);
	open_gate();
	need(!drv->cuStreamSynchronize(a), "idle");
	/* A capture is open, of which nobody was told. */
	put(p, 0, a);
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
	r = get_private(2 * MIB, s);
	drv->cuMemsetD8Async((CUdeviceptr)r, 1, 2 * MIB, s);
	is(restore(c), 0, "%s: while a stream is captured", provider);
	ok(is_live(p) && is_live(q) && nr_live() == 2, "%s: as ever", provider);
	is(drv->cuStreamEndCapture(s, &graph), 0, "%s: the capture is valid",
	   provider);
	if (graph)
		drv->cuGraphDestroy(graph);
	put(p, 3 * MIB, a);
	put(q, 700, a);
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", provider);
	is(restore(c), 0, "%s: takes nothing away", provider);
	ok(is_live(p) && is_live(q) && complete(), "%s: from a private pool",
	   provider);
	put(p, 3 * MIB, a);
	if (!strcmp(provider, "vmm")) {
		need(!hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), "sleep");
		is(restore(c), -EBUSY, "asleep: %s", hetmem_last_error());
		need(!hetmem_wake(pool, NULL), "wake");
		is(restore(c), 0, "and awake");
		is(drv->cuMemsetD8Async((CUdeviceptr)p, 1, 3 * MIB, a), 0,
		   "there is memory");
		put(p, 3 * MIB, a);
		need(!drv->cuStreamSynchronize(a), "idle");
	}
	put(q, 700, a);
	is(hetmem_private_release(pool, ID, a), 0, "%s: released", provider);
	hetmem_checkpoint_free(c);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(s);
}

/* Without host memory, of any kind, all is as it was. */
static void no_memory(void)
{
	struct hetmem_checkpoint *c, *other = NULL;
	uint32_t names;
	void *p, *q, *r;
	struct pool *in;
	int i, err;

	make_pool("vmm", NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	p = get_private(3 * MIB, NULL);
	c = save();
	put(p, 3 * MIB, NULL);
	q = get_private(1 * MIB, NULL);
	r = get_private(1 * MIB, NULL);
	for (i = 0; i < 20; i++) {
		memory_for = i;
		err = hetmem_private_restore(pool, c, NULL, NULL);
		memory_for = -1;
		if (err != -ENOMEM)
			break;
		is(nr_live(), 2, "restore, %d: as it was", i);
		ok(is_live(q) && is_live(r) && complete(), "%d: all of it", i);
	}
	is(err, 0, "then it succeeds");
	ok(i >= 2, "in %d tries", i);
	ok(is_live(p) && nr_live() == 1, "as it is to be");
	for (i = 0; i < 20; i++) {
		memory_for = i;
		err = hetmem_private_checkpoint(pool, ID, &other);
		memory_for = -1;
		if (err != -ENOMEM)
			break;
	}
	ok(!err && i >= 2 && other, "a checkpoint, in %d tries", i);
	put(p, 3 * MIB, NULL);
	q = get_private(1 * MIB, NULL);
	/* As if there were no names for blocks but these. */
	in = to_pool(pool);
	pthread_mutex_lock(&in->lock);
	names = in->blocks.max;
	in->blocks.max = in->blocks.nr;
	while (hm_name_get(in, 0))
		;
	pthread_mutex_unlock(&in->lock);
	is(restore(other), -ENOMEM, "no names: %s", hetmem_last_error());
	ok(is_live(q) && nr_live() == 1 && complete(), "all is as it was");
	in->blocks.max = names;
	is(restore(other), 0, "names");
	ok(is_live(p) && nr_live() == 1 && complete(), "all is as it is to be");
	put(p, 3 * MIB, NULL);
	is(hetmem_private_release(pool, ID, NULL), 0, "released");
	hetmem_checkpoint_free(c);
	hetmem_checkpoint_free(other);
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
}

/* Whatever call of the driver fails: none is made, or none that matters. */
static void driver_fails(const char *provider)
{
	struct hetmem_checkpoint *c, *empty, *other;
	int err = 0, wrong = 0;
	char rule[80];
	unsigned int i;
	void *p;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	empty = save();
	p = get_private(3 * MIB, NULL);
	get_private(700, NULL);
	c = save();
	for (i = 0; i < NR_CALLS; i++) {
		snprintf(rule, sizeof(rule), "%s:1", calls[i]);
		need(!soft_rules(rule, NULL), "a rule");
		err |= restore(i & 1 ? c : empty);
		err |= hetmem_private_checkpoint(pool, ID, &other);
		soft_rules(NULL, NULL);
		hetmem_checkpoint_free(other);
		wrong += is_live(p) != (i & 1) || nr_live() != (i & 1 ? 2 : 0);
	}
	is(err, 0, "%s: nothing fails", provider);
	is(wrong, 0, "%s: and all is as it is to be", provider);
	is(restore(empty), 0, "%s: nothing is live", provider);
	is(hetmem_private_release(pool, ID, NULL), 0, "%s: released", provider);
	hetmem_checkpoint_free(c);
	hetmem_checkpoint_free(empty);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
}

/* More than one hold of the lock works at; and each of them is known to be. */
static void thousands(const char *provider)
{
	struct hetmem_checkpoint *c, *empty;
	static void *ptrs[20000];
	int i, nr = 20000;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	empty = save();
	for (i = 0; i < nr; i++)
		get_private(i % 7 * 512 + 1, (CUstream)(uintptr_t)(4096 + i % 50));
	c = save();
	is(restore(empty), 0, "%s: thousands", provider);
	for (i = 0; i < 1000; i++)
		get_private(i * 700 + 1, (CUstream)(uintptr_t)(4096 + i % 50));
	is(restore(c), 0, "%s: again", provider);
	ok(nr_kind[HETMEM_RESTORED_KEPT] < 1000 &&
	   told_are(1000 - nr_kind[HETMEM_RESTORED_KEPT],
		    nr - nr_kind[HETMEM_RESTORED_KEPT],
		    nr_kind[HETMEM_RESTORED_KEPT]), "%s: all of them", provider);
	is(hetmem_private_live(pool, ID, ptrs, nr), nr, "%s: are live", provider);
	for (i = 1; i < nr && ptrs[i - 1] < ptrs[i]; i++)
		;
	is(i, nr, "%s: in order", provider);
	ok(complete(), "%s: each byte is in a block", provider);
	is(restore(empty), 0, "%s: none", provider);
	is(pool_stats().live, 0, "%s: is live", provider);
	is(hetmem_private_release(pool, ID, NULL), 0, "%s: released", provider);
	hetmem_checkpoint_free(c);
	hetmem_checkpoint_free(empty);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
}

static struct hetmem_counters counters(void)
{
	struct hetmem_counters c = { .size = sizeof(c) };

	need(!hetmem_counters(pool, &c), "counters");
	return c;
}

static void adaptors(void)
{
	struct hetmem_history_event event[2];
	struct hetmem_checkpoint *c, *d;
	void *p, *q;

	need(!hetmem_resource_create(hm, "stats(history(limit(pool(vmm),max=10M)))",
				     &pool), "a stack: %s", hetmem_last_error());
	need(!hetmem_private_retain(pool, ID), "retain");
	p = get_private(6 * MIB, NULL);
	c = save();
	put(p, 6 * MIB, NULL);
	q = get_private(2 * MIB, NULL);
	is(restore(c), 0, "through a stack");
	is(counters().bytes.value, 6 * MIB, "stats() counts");
	is(counters().blocks.value, 1, "blocks");
	is(hetmem_history(pool, event, 2), 2, "history() has it");
	ok(event[0].kind == HETMEM_HISTORY_FREE && event[0].ptr == q &&
	   event[1].kind == HETMEM_HISTORY_ALLOC && event[1].ptr == p &&
	   event[1].bytes == 6 * MIB, "a free and an allocation");
	is(alloc_private(pool, ID, 5 * MIB, NULL, &q), -ENOMEM, "limit() too");
	put(p, 6 * MIB, NULL);
	need(!hetmem_alloc(pool, 5 * MIB, 0, NULL, &q), "as much as there may be");
	is(restore(c), -ENOMEM, "with what is everyone's: %s",
	   hetmem_last_error());
	is(nr_live(), 0, "all is as it was");
	is(counters().bytes.value, 5 * MIB, "also in stats()");
	put(q, 5 * MIB, NULL);
	is(restore(c), 0, "and then there is room");
	put(p, 6 * MIB, NULL);
	is(counters().bytes.value, 0, "stats() has nothing");
	need(!hetmem_alloc(pool, 10 * MIB, 0, NULL, &q), "nor has limit()");
	put(q, 0, NULL);
	hetmem_checkpoint_free(c);
	hetmem_resource_destroy(pool);

	need(!hetmem_resource_create(hm, "stats(binning(limit(pool(vmm),max=2M),limit(pool(device),max=4M),at=1M))",
				     &pool), "two: %s", hetmem_last_error());
	need(!hetmem_private_retain(pool, ID), "retain");
	c = save();
	p = get_private(1 * MIB, NULL);
	q = get_private(3 * MIB, NULL);
	is(nr_live(), 2, "both have blocks");
	d = save();
	is(restore(c), 0, "both are empty");
	is(nr_live(), 0, "of blocks");
	is(counters().bytes.value, 0, "and bytes");
	is(restore(d), 0, "and full");
	ok(is_live(p) && is_live(q), "again");
	is(restore(c), 0, "empty");
	need(!hetmem_alloc(pool, 3 * MIB, 0, NULL, &p), "the second's");
	is(restore(d), -ENOMEM, "both or none");
	is(nr_live(), 0, "none");
	put(p, 3 * MIB, NULL);
	is(restore(d), 0, "both");
	is(counters().blocks.value, 2, "are counted");
	is(restore(c), 0, "none");
	need(!hetmem_alloc(pool, 1 * MIB, 0, NULL, &p) &&
	     !hetmem_alloc(pool, 1 * MIB, 0, NULL, &q),
	     "a failed one has taken nothing of a limit");
	put(p, 0, NULL);
	put(q, 0, NULL);
	hetmem_checkpoint_free(c);
	hetmem_checkpoint_free(d);
	hetmem_resource_destroy(pool);
}

/* At random, against a list of what is to be live. */

struct model {
	struct { char *p; size_t bytes; int stream; } block[MOST];
	int nr;
};

static bool is_model(const struct model *m)
{
	static void *ptrs[2 * MOST];
	ssize_t nr = hetmem_private_live(pool, ID, ptrs, 2 * MOST);
	int i, j, found = 0;

	for (i = 0; i < m->nr; i++)
		for (j = 0; j < nr; j++)
			found += ptrs[j] == m->block[i].p;
	for (j = 1; j < nr; j++)
		if (ptrs[j - 1] >= ptrs[j])
			return false;
	return nr == m->nr && found == m->nr &&
	       pool_stats().live == (uint64_t)m->nr && complete();
}

static void at_random(const char *provider, unsigned int seed)
{
	static struct model now, then[8];
	struct hetmem_checkpoint *c[8] = { NULL };
	CUstream s[3];
	size_t bytes;
	int i, k, bad = 0, wrong = 0, restores = 0;

	now.nr = 0;
	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	for (i = 0; i < 3; i++)
		s[i] = new_stream();
	for (i = 0; i < 4000; i++) {
		seed = seed * 1103515245 + 12345;
		k = seed >> 28 & 7;
		if (!(seed >> 16 & 63)) {
			hetmem_checkpoint_free(c[k]);
			c[k] = save();
			then[k] = now;
		} else if ((seed >> 16 & 63) == 1 && c[k]) {
			bad += !!restore(c[k]);
			now = then[k];
			wrong += !is_model(&now);
			restores++;
		} else if (seed >> 24 & 1 && now.nr < 100) {
			bytes = seed & 0x800 ? seed % 5000 + 1 : seed % (3 * MIB) + 1;
			now.block[now.nr].p = get_private(bytes, s[k % 3]);
			now.block[now.nr].bytes = bytes;
			now.block[now.nr++].stream = k % 3;
		} else if (now.nr) {
			k = (seed >> 8) % now.nr;
			if (seed & 0x100000)
				bad += !!hetmem_record_stream(pool, now.block[k].p,
							      s[seed % 3]);
			bad += !!hetmem_free(pool, now.block[k].p,
					     now.block[k].bytes,
					     seed & 0x40000000 ? s[seed % 3] :
					     HETMEM_STREAM_UNKNOWN);
			now.block[k] = now.block[--now.nr];
		}
	}
	is(bad, 0, "%s: nothing fails", provider);
	is(wrong, 0, "%s: what is live is what is to be", provider);
	ok(restores > 20, "%s: after %d restores", provider, restores);
	for (i = 0; i < 8; i++)
		hetmem_checkpoint_free(c[i]);
	is(hetmem_private_release(pool, ID, s[0]), 0, "%s: released", provider);
	for (i = 0; i < now.nr; i++)
		put(now.block[i].p, now.block[i].bytes, s[0]);
	drv->cuCtxSynchronize();
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", provider);
	is(pool_stats().reserved, 0, "%s: gives all back", provider);
	hetmem_resource_destroy(pool);
	for (i = 0; i < 3; i++)
		drv->cuStreamDestroy(s[i]);
}

/* Threads that allocate, free, list and restore at the same time. */

static CUcontext context;
static struct hetmem_checkpoint *shared;
static int stop;

static void *use(void *arg)
{
	unsigned int seed = (uintptr_t)arg;
	void *p = NULL;
	long bad = 0;
	CUstream s;
	int err;

	drv->cuCtxSetCurrent(context);
	s = new_stream();
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		seed = seed * 1103515245 + 12345;
		err = alloc_private(pool, ID, 1 + (seed >> 8) % 900000, s, &p);
		bad += !!err;
		/* A restore may have freed it, and another thread have it. */
		err = hetmem_free(pool, p, 0, s);
		bad += err && err != -EINVAL;
	}
	return (void *)bad;
}

static void *restore_often(void *arg)
{
	struct hetmem_checkpoint *own;
	long bad = 0;
	int i;

	drv->cuCtxSetCurrent(context);
	for (i = 0; i < 200; i++) {
		bad += !!hetmem_private_restore(pool, shared, NULL, NULL);
		if (hetmem_private_checkpoint(pool, ID, &own))
			return (void *)-1L;
		hetmem_checkpoint_free(own);
		bad += nr_live() < 0;
	}
	(void)arg;
	return (void *)bad;
}

static void threads(const char *provider)
{
	pthread_t t[4];
	void *one, *p;
	long bad = 0;
	int i;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, ID), "retain");
	p = get_private(3 * MIB, NULL);
	for (i = 0; i < 100; i++)
		get_private(3000, NULL);
	shared = save();
	__atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
	for (i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, use, (void *)(uintptr_t)(i + 1));
	for (; i < 4; i++)
		pthread_create(&t[i], NULL, restore_often, NULL);
	for (i = 2; i < 4; i++) {
		pthread_join(t[i], &one);
		is((long)one, 0, "%s: restores between what others do",
		   provider);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (i = 0; i < 2; i++) {
		pthread_join(t[i], &one);
		bad += (long)one;
	}
	is(bad, 0, "%s: others succeed", provider);
	is(restore(shared), 0, "%s: a last one", provider);
	ok(is_live(p) && nr_live() == 101 && complete(),
	   "%s: and all is as it is to be", provider);
	is(hetmem_private_release(pool, ID, NULL), 0, "%s: released", provider);
	hetmem_checkpoint_free(shared);
	is(hetmem_resource_destroy(pool), 101, "%s: what was restored is live",
	   provider);
}

/* A child has host memory, and nobody who has its private pools for himself. */
static void *restore_on(void *arg)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		hetmem_private_restore(pool, arg, NULL, NULL);
		hetmem_private_restore(pool, shared, NULL, NULL);
	}
	return NULL;
}

static int child(void)
{
	void *p = NULL;
	int i;

	/* Rather than wait for a thread that is not there. */
	hang_limit(true);
	for (i = 0; i < 100; i++)
		if (alloc_private(pool, ID, 3000, HETMEM_STREAM_HOST, &p) ||
		    hetmem_free(pool, p, 3000, HETMEM_STREAM_HOST))
			return 1;
	return hetmem_private_live(pool, ID, NULL, 0) < 0 ||
		hetmem_private_release(pool, ID, HETMEM_STREAM_HOST) ? 2 : 0;
}

static void forks(void)
{
	struct hetmem_checkpoint *empty;
	int i, status, bad = 0;
	pthread_t t;
	void *p;
	pid_t pid;

#ifdef __SANITIZE_ADDRESS__
	/* Its allocator may be locked in a child of several threads. */
	return;
#endif
	need(!hetmem_resource_create(hm, "pool(host)", &pool), "host memory");
	need(!hetmem_private_retain(pool, ID), "retain");
	empty = save();
	for (i = 0; i < 1000; i++)
		need(!alloc_private(pool, ID, 3000, HETMEM_STREAM_HOST, &p),
		     "blocks");
	shared = save();
	__atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
	pthread_create(&t, NULL, restore_on, empty);
	for (i = 0; i < 30; i++) {
		fflush(stdout);
		pid = fork();
		if (!pid)
			_exit(child());
		bad += waitpid(pid, &status, 0) != pid || status;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	is(bad, 0, "children use private pools that are being restored");
	is(nr_live(), 1000, "and the parent's go on");
	hetmem_checkpoint_free(empty);
	hetmem_checkpoint_free(shared);
	hetmem_resource_destroy(pool);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "2G", 1);
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	count_calls();
	bad_input();
	orders("device", 4096);
	orders("vmm", 4096);
	orders("device", 5 * MIB);
	orders("vmm", 5 * MIB);
	meanwhile("device");
	meanwhile("vmm");
	no_memory();
	driver_fails("device");
	driver_fails("vmm");
	thousands("device");
	thousands("vmm");
	adaptors();
	at_random("device", 1);
	at_random("vmm", 2);
	threads("device");
	threads("vmm");
	forks();
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
