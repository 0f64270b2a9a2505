// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_parked_read(): contents of a sleeping pool are what its blocks had, whatever the range,
 * the spec and the place of the contents. Other ranges and other states are errors. Threads
 * that read beside a sleep and a wake get contents or an error. Arguments: a seed, rounds.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "bytes.h"
#include "one_resource.h"

#define KEEP	HETMEM_SLEEP_KEEP
#define DISCARD	HETMEM_SLEEP_DISCARD
#define SLOTS	24

static unsigned int rounds = 6;

static struct slot {
	unsigned char *p;
	size_t size;
	unsigned int value;
} slots[SLOTS];

static unsigned char *to;

static void fill(struct slot *s, size_t size, const char *tag)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = HOST, .tag = tag,
	};
	void *p = NULL;

	need(!hetmem_alloc_with(res, &params, &p), "%zu bytes: %s", size, hetmem_last_error());
	*s = (struct slot){ p, size, below(256) };
	write_bytes(p, 0, size, s->value);
}

static void empty(struct slot *s)
{
	if (s->p && hetmem_free(res, s->p, s->size, HOST))
		ok(false, "free: %s", hetmem_last_error());
	s->p = NULL;
}

static void end(void)
{
	unsigned int k;

	for (k = 0; k < SLOTS; k++)
		empty(&slots[k]);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* Bytes that a read of [@from, @from + @size) gets wrong. */
static size_t wrong(const struct slot *s, size_t from, size_t size)
{

	to[size] = 0xa5;
	if (hetmem_parked_read(res, s->p + from, to, size)) {
		printf("# %zu bytes at %zu of %zu: %s\n", size, from, s->size,
		       hetmem_last_error());
		return size + 1;
	}
	return wrong_bytes(to, from, size, s->value) + (to[size] != 0xa5);
}

static size_t any_size(void)
{
	switch (below(4)) {
	case 0:
		return 1 + below(2000);
	case 1:
		return 1 + below(100 << 10);
	case 2:
		return 1 + below(2 * MIB);
	default:
		return 1 + below(9 * MIB);
	}
}

static void at_random(const char *spec)
{
	size_t bad = 0, from;
	unsigned int i, k, j, errors = 0;

	create(spec);
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < SLOTS; k++) {
			if (below(2))
				empty(&slots[k]);
			if (!slots[k].p && below(3))
				fill(&slots[k], any_size(), NULL);
		}
		errors += !!hetmem_sleep(res, NULL, KEEP);
		for (k = 0; k < SLOTS; k++) {
			if (!slots[k].p)
				continue;
			bad += wrong(&slots[k], 0, slots[k].size);
			for (j = 0; j < 4; j++) {
				from = below(slots[k].size);
				bad += wrong(&slots[k], from, below(slots[k].size - from + 1));
			}
			/* Blocks that go meanwhile take no contents of others. */
			if (!below(5))
				empty(&slots[k]);
		}
		errors += !!hetmem_wake(res, NULL);
	}
	is(bad, 0, "%s: all contents are read", spec);
	is(errors, 0, "it sleeps and wakes: %s", hetmem_last_error());
	end();
}

static void refused(void)
{
	struct slot *s = &slots[0];
	int status;
	pid_t pid;

	create("pool(vmm)");
	fill(s, 5000, NULL);
	is(hetmem_parked_read(res, s->p, to, 10), -ENODATA, "awake: %s", hetmem_last_error());
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps");
	is(hetmem_parked_read(res, NULL, to, 10), -EINVAL, "no ptr: %s", hetmem_last_error());
	is(hetmem_parked_read(res, s->p, NULL, 10), -EINVAL, "no to: %s", hetmem_last_error());
	is(hetmem_parked_read(res, to, to, 10), -EINVAL, "no block: %s", hetmem_last_error());
	is(hetmem_parked_read(res, s->p, to, 5001), -EINVAL, "too long: %s", hetmem_last_error());
	is(hetmem_parked_read(res, s->p + 4999, to, 2), -EINVAL, "at the end: %s",
	   hetmem_last_error());
	is(hetmem_parked_read(res, s->p + 5001, to, 1), -EINVAL, "behind the end: %s",
	   hetmem_last_error());
	is(hetmem_parked_read(res, s->p + 1, to, SIZE_MAX), -EINVAL, "overflow: %s",
	   hetmem_last_error());
	is(hetmem_parked_read(res, s->p, NULL, 0), 0, "nothing");
	is(wrong(s, 4999, 1), 0, "the last byte");
	ok(stats().parked >= 5000, "contents are in host memory");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps twice");
	is(wrong(s, 0, 5000), 0, "and has the contents");
	pid = fork();
	if (!pid)
		_exit(hetmem_parked_read(res, s->p, to, 10) != -EOWNERDEAD);
	waitpid(pid, &status, 0);
	is(status, 0, "a child has none");
	is(hetmem_wake(res, NULL), 0, "wakes");
	is(hetmem_parked_read(res, s->p, to, 10), -ENODATA, "awake again");
	is(hetmem_sleep(res, NULL, DISCARD), 0, "sleeps without contents");
	is(hetmem_parked_read(res, s->p, to, 10), -ENODATA, "none: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	empty(s);
	is(hetmem_resource_destroy(res), 0, "ends");
	create("pool(device)");
	fill(s, 5000, NULL);
	is(hetmem_parked_read(res, s->p, to, 10), -EOPNOTSUPP, "no vmm: %s", hetmem_last_error());
	end();
}

/* Pinned memory stays and is read there; a hole has none. */
static void in_place(void)
{
	create("pool(vmm,handle=2M)");
	fill(&slots[0], 8 * MIB, NULL);
	fill(&slots[1], 8 * MIB, NULL);
	is(hetmem_pin_comm(res, slots[0].p), 0, "one is pinned");
	is(hetmem_shrink(res, slots[1].p, 2 * MIB, 4 * MIB, HOST), 0, "one has a hole: %s",
	   hetmem_last_error());
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	is(wrong(&slots[0], 5, 8 * MIB - 5), 0, "the pinned one");
	is(wrong(&slots[1], 0, 2 * MIB), 0, "before the hole");
	is(wrong(&slots[1], 6 * MIB, 2 * MIB), 0, "behind the hole");
	is(hetmem_parked_read(res, slots[1].p + 3 * MIB, to, 1), -ENODATA, "inside the hole: %s",
	   hetmem_last_error());
	is(hetmem_parked_read(res, slots[1].p, to, 8 * MIB), -ENODATA, "across it: %s",
	   hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "wakes");
	end();
}

/* The @nth call of one kind fails in a read of memory that stayed in place. */
static bool read_fails(const char *call, unsigned int nth)
{
	unsigned int bad;
	char rule[48];
	int err;

	snprintf(rule, sizeof(rule), "%s:%u", call, nth);
	need(!soft_rules(rule, NULL), "a rule");
	err = hetmem_parked_read(res, slots[0].p + 3, to, 5 * MIB);
	soft_rules(NULL, NULL);
	bad = wrong(&slots[0], 0, 6 * MIB) + wrong(&slots[1], 0, 6 * MIB);
	ok(!bad && (!err || err == -EIO), "%s: an error or none, and the contents stay: %d", rule,
	   err);
	return err;
}

static void driver_fails(void)
{
	static const char *const calls[] = {
		"cuStreamCreate", "cuMemcpyAsync", "cuStreamSynchronize", "cuCtxSetCurrent",
	};
	unsigned int i, nth, errors;

	create("pool(vmm,handle=2M)");
	fill(&slots[0], 6 * MIB, NULL);
	fill(&slots[1], 6 * MIB, NULL);
	is(hetmem_pin_comm(res, slots[0].p), 0, "one is pinned");
	is(hetmem_sleep(res, NULL, KEEP), 0, "sleeps: %s", hetmem_last_error());
	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		errors = 0;
		for (nth = 1; nth <= 3; nth++)
			errors += read_fails(calls[i], nth);
		/* The pinned block is one handle. */
		if (!strcmp(calls[i], "cuMemcpyAsync"))
			is(errors, 1, "a copy that fails is an error");
	}
	is(hetmem_wake(res, NULL), 0, "wakes");
	end();
}

static void tags(void)
{
	create("pool(vmm)");
	fill(&slots[0], 3 * MIB, "weights");
	fill(&slots[1], 3 * MIB, "kv");
	fill(&slots[2], 3 * MIB, NULL);
	is(hetmem_sleep(res, "weights", KEEP), 0, "one tag sleeps");
	is(hetmem_sleep(res, "kv", DISCARD), 0, "another without contents");
	is(wrong(&slots[0], 0, 3 * MIB), 0, "is read");
	is(hetmem_parked_read(res, slots[1].p, to, 1), -ENODATA, "lost: %s", hetmem_last_error());
	is(hetmem_parked_read(res, slots[2].p, to, 1), -ENODATA, "awake: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "all wake");
	end();
}

static bool stop;

static void *reads(void *arg)
{
	unsigned char mine[4096];
	size_t *bad = arg;

	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		const size_t from = (rand() % (3 * MIB / 4096)) * 4096;
		int err = hetmem_parked_read(res, slots[0].p + from, mine, sizeof(mine));

		if (err && err != -ENODATA)
			++*bad;
		else if (!err)
			*bad += wrong_bytes(mine, from, sizeof(mine), slots[0].value);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[3];
	size_t bad[3] = { 0 };
	unsigned int i, errors = 0;

	create("pool(vmm)");
	fill(&slots[0], 3 * MIB, NULL);
	fill(&slots[1], MIB, NULL);
	for (i = 0; i < 3; i++)
		need(!pthread_create(&thread[i], NULL, reads, &bad[i]), "a thread");
	for (i = 0; i < 10 * rounds; i++) {
		errors += !!hetmem_sleep(res, NULL, KEEP);
		empty(&slots[1]);
		errors += !!hetmem_wake(res, NULL);
		fill(&slots[1], MIB, NULL);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	for (i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	is(bad[0] + bad[1] + bad[2], 0, "beside sleeps and wakes");
	is(errors, 0, "which succeed");
	end();
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %llu\n", (unsigned long long)seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "managed memory=1G", 1);
	to = malloc(9 * MIB + 1);
	need(to, "memory");
	open_soft("");
	at_random("pool(vmm)");
	at_random("pool(vmm,handle=2M,park=release)");
	at_random("pool(vmm,park=/var/tmp)");
	at_random("stats(guard(pool(vmm)))");
	at_random("binning(pool(vmm),pool(vmm,park=1M),at=64K)");
	refused();
	in_place();
	driver_fails();
	tags();
	threads();
	free(to);
	close_soft();
	return tap_end();
}
