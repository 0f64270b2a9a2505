// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Tags of blocks: blocks of one tag sleep and wake alone, share no handle with others, and keep
 * to max= together. A scratch block's contents are not parked. A sleep or a wake that fails
 * leaves all blocks as they were.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "below.h"
#include "by_spec.h"
#include "failing_calls.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

struct one {
	unsigned char *p;
	size_t size;
	int byte;
	const char *tag;
	bool scratch;
};

static int try_tagged(struct hetmem_resource *res, const char *tag, unsigned int flags,
		      size_t size, uint64_t id, void **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = HOST, .flags = flags,
		.private_pool = id, .tag = tag,
	};

	return hetmem_alloc_with(res, &params, p);
}

static struct one tagged(struct hetmem_resource *res, const char *tag, bool scratch, size_t size,
			 int byte)
{
	struct one o = { .size = size, .byte = byte, .tag = tag, .scratch = scratch };
	void *p;

	need(!try_tagged(res, tag, scratch ? HETMEM_ALLOC_SCRATCH : 0, size, 0, &p), "%zu bytes of %s: %s",
	     size, tag ? tag : "no tag", hetmem_last_error());
	o.p = p;
	memset(p, byte, size);
	return o;
}

static bool intact(const struct one *o)
{
	return all_bytes(o->p, o->byte, o->size);
}

static void drop(struct hetmem_resource *res, struct one *o)
{
	if (o->p)
		need(!hetmem_free(res, o->p, o->size, HOST), "free: %s", hetmem_last_error());
	o->p = NULL;
}

static bool is_of(const struct one *o, const char *tag)
{
	return !tag || (o->tag && !strcmp(o->tag, tag));
}

/* What a spec with blocks of three tags, scratch and plain ones does. */
static void alone(const char *spec, unsigned int flags)
{
	static const char *const tags[] = { NULL, "weights", "kv", "0123456789012345678901234567890" };
	struct hetmem_resource *res = make(spec);
	struct one blocks[4 * 2 * 6];
	uint64_t all, of, used;
	unsigned int i, n = 0, t;
	bool good;

	/* In turns, so that they would share handles. */
	for (i = 0; i < 6; i++)
		for (t = 0; t < 8; t++, n++)
			blocks[n] = tagged(res, tags[t / 2], t % 2, i % 2 ? 3 * MIB + 512 * i : 5000 * (i + 1),
					   n + 1);
	all = stats(res).reserved;
	for (t = 1; t < 4; t++) {
		used = device_used();
		is(hetmem_sleep(res, tags[t], flags), 0, "%s: %s sleeps", spec, tags[t]);
		of = all - stats(res).reserved;
		ok(of >= 2 * 3 * (3 * MIB), "and holds nothing (%llu of %llu)", (unsigned long long)of,
		   (unsigned long long)all);
		is(used - device_used(), of, "the device has it");
		for (i = 0, good = true; i < n; i++)
			good &= is_of(&blocks[i], tags[t]) || intact(&blocks[i]);
		ok(good, "the others are as they were");
		if (flags)
			ok(stats(res).parked <= 3 * (3 * MIB + 3000) + 3 * 40000 + 2 * MIB,
			   "no scratch block is parked: %llu", (unsigned long long)stats(res).parked);
		is(hetmem_sleep(res, tags[t], flags), 0, "a second sleep is no error");
		is(hetmem_wake(res, tags[t]), 0, "it wakes: %s", hetmem_last_error());
		is(stats(res).reserved, all, "all is there");
		for (i = 0, good = true; i < n; i++) {
			if (is_of(&blocks[i], tags[t]) && (blocks[i].scratch || !flags))
				memset(blocks[i].p, blocks[i].byte, blocks[i].size);
			good &= intact(&blocks[i]);
		}
		ok(good, "contents");
		is(hetmem_sleep(res, "", flags), 0, "an empty tag");
		is(hetmem_wake(res, NULL), 0, "all wake");
		for (i = 0; i < n; i++)
			if (blocks[i].scratch || !flags)
				memset(blocks[i].p, blocks[i].byte, blocks[i].size);
	}
	is(hetmem_sleep(res, NULL, flags), 0, "all sleep");
	is(stats(res).reserved, 0, "and hold nothing");
	is(hetmem_wake(res, "weights"), 0, "one tag wakes");
	for (i = 0, good = true; i < n; i++)
		if (is_of(&blocks[i], "weights") && !blocks[i].scratch && flags)
			good &= intact(&blocks[i]);
	ok(good && stats(res).reserved, "with its contents");
	is(hetmem_wake(res, NULL), 0, "the rest wakes");
	for (i = 0, good = true; i < n && flags; i++)
		good &= blocks[i].scratch || intact(&blocks[i]);
	ok(good, "contents");
	for (i = 0; i < n; i++)
		drop(res, &blocks[i]);
	is(hetmem_trim(res, 0, NULL), 0, "trim");
	is(stats(res).reserved, 0, "nothing is left");
	is(hetmem_resource_destroy(res), 0, "no live blocks");
}

/* A spec's tag= names all blocks of the pool. */
static void of_spec(void)
{
	struct hetmem_resource *res = make("binning(pool(vmm,tag=small),pool(vmm,tag=large),at=1M)");
	struct one a = tagged(res, "x", false, 4096, 1), b = tagged(res, "x", false, 4 * MIB, 2);
	struct one c = tagged(res, NULL, false, 4 * MIB, 3);
	uint64_t held;

	need(!hetmem_sleep(res, "large", HETMEM_SLEEP_KEEP), "large sleeps");
	held = stats(res).reserved;
	ok(intact(&a) && held <= 4 * MIB, "small blocks stay");
	need(!hetmem_wake(res, "large"), "large wakes");
	ok(intact(&b) && intact(&c), "contents of all tags");
	need(!hetmem_sleep(res, "x", HETMEM_SLEEP_KEEP), "x sleeps");
	ok(stats(res).reserved >= 4 * MIB && intact(&c), "in both pools, and nothing else");
	need(!hetmem_wake(res, "x"), "x wakes");
	ok(intact(&a) && intact(&b), "contents");
	drop(res, &a);
	drop(res, &b);
	drop(res, &c);
	hetmem_resource_destroy(res);
}

static void errors(void)
{
	static const struct {
		const char *spec;
		int err;
	} specs[] = {
		{ "pool(vmm)", 0 }, { "pool(vmm(export=fd))", 0 }, { "log(pool(vmm),file=/dev/null)", 0 },
		{ "limit(pool(vmm),max=64M)", 0 }, { "guard(pool(vmm))", 0 },
		{ "fallback(pool(device),pool(vmm))", 0 },
		{ "pool(device)", -EOPNOTSUPP }, { "pool(host)", -EOPNOTSUPP },
		{ "classes(managed)", -EOPNOTSUPP }, { "device", -EOPNOTSUPP },
	};
	const char *long_tag = "01234567890123456789012345678901";
	struct hetmem_resource *res;
	struct hetmem_alloc_params params;
	char tag[16];
	unsigned int i;
	void *p, *q;

	for (i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		res = make(specs[i].spec);
		is(try_tagged(res, "t", 0, 3 * MIB, 0, &p), specs[i].err, "%s: a tag: %s", specs[i].spec,
		   hetmem_last_error());
		if (!specs[i].err) {
			is(hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP), 0, "which sleeps");
			is(try_tagged(res, "t", 0, 4096, 0, &q), -EBUSY, "it gives out nothing");
			is(hetmem_wake(res, "t"), 0, "and wakes");
			is(hetmem_free(res, p, 3 * MIB, HOST), 0, "free");
		}
		is(try_tagged(res, NULL, HETMEM_ALLOC_SCRATCH, 3 * MIB, 0, &p), 0, "scratch: %s",
		   hetmem_last_error());
		is(hetmem_free(res, p, 3 * MIB, HOST), 0, "free");
		hetmem_resource_destroy(res);
	}
	res = make("pool(vmm)");
	is(try_tagged(res, "", 0, 512, 0, &p), -EINVAL, "%s", hetmem_last_error());
	is(try_tagged(res, long_tag, 0, 512, 0, &p), -EINVAL, "%s", hetmem_last_error());
	is(hetmem_sleep(res, "none", 0), 0, "a tag that nothing has");
	is(hetmem_sleep(res, long_tag, 0), 0, "one that nothing can have");
	params = (struct hetmem_alloc_params){
		.size = offsetof(struct hetmem_alloc_params, tag), .bytes = 512, .stream = HOST,
	};
	is(hetmem_alloc_with(res, &params, &p), 0, "a struct without the member");
	hetmem_free(res, p, 0, HOST);
	for (i = 0; i < 70; i++) {
		snprintf(tag, sizeof(tag), "t%u", i);
		if (try_tagged(res, tag, 0, 512, 0, &p))
			break;
		hetmem_free(res, p, 0, HOST);
	}
	is(i, 63, "as many tags as there can be: %s", hetmem_last_error());
	is(try_tagged(res, "t7", 0, 512, 0, &p), 0, "which go on");
	need(!hetmem_sleep(res, NULL, 0), "sleep");
	is(try_tagged(res, "new", 0, 512, 0, &q), -EBUSY, "no new tag while the pool sleeps");
	need(!hetmem_wake(res, NULL), "wake");
	is(hetmem_free(res, p, 1024, HOST), -EINVAL, "a wrong size");
	is(hetmem_free(res, (char *)p + 512, 0, HOST), -EINVAL, "no block");
	is(hetmem_free(res, p, 512, HOST), 0, "free");
	is(hetmem_free(res, p, 512, HOST), -EINVAL, "twice");
	hetmem_resource_destroy(res);
}

static struct hetmem_resource_stats of_tag(struct hetmem_resource *res, const char *tag)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_tag_stats(res, tag, &s), "%s", hetmem_last_error());
	return s;
}

/* The counters of each tag are its own, and in all those of the resource. */
static void counters(const char *spec)
{
	static const char *const tags[] = { "a", "b", "c" };
	struct { struct hetmem_resource_stats s; uint64_t more; } later = { .s.size = sizeof(later) };
	struct hetmem_resource *res = make(spec);
	struct hetmem_resource_stats s = { .size = sizeof(s) }, sum = { 0 };
	struct one blocks[3][2];
	unsigned int i, k;

	is(hetmem_tag_stats(res, "a", &s), -ENOENT, "%s: no tag yet: %s", spec, hetmem_last_error());
	for (i = 0; i < 3; i++)
		for (k = 0; k < 2; k++)
			blocks[i][k] = tagged(res, tags[i], k, (i + 3) * MIB, 1);
	for (i = 0; i < 3; i++) {
		s = of_tag(res, tags[i]);
		is(s.live, 2, "%s: blocks of %s", spec, tags[i]);
		is(s.requested, 2 * (i + 3) * MIB, "bytes");
		ok(s.reserved >= s.requested, "and its memory");
		sum.requested += s.requested;
		sum.reserved += s.reserved;
	}
	s = of_tag(res, NULL);
	is(s.requested, sum.requested, "of all");
	is(s.reserved, stats(res).reserved, "held");
	need(!hetmem_sleep(res, "b", HETMEM_SLEEP_KEEP), "sleep");
	is(of_tag(res, "b").reserved, 0, "a tag that sleeps holds nothing");
	ok(of_tag(res, "b").parked >= 4 * MIB, "and has parked its contents");
	is(of_tag(res, "a").parked, 0, "no other has");
	need(!hetmem_wake(res, "b"), "wake");
	is(hetmem_tag_stats(res, "none", &s), -ENOENT, "a tag that nothing has");
	is(hetmem_tag_stats(res, "a", NULL), -EINVAL, "no struct");
	s.size = 8;
	is(hetmem_tag_stats(res, "a", &s), -EINVAL, "a short one");
	is(hetmem_tag_stats(res, "a", &later.s), -E2BIG, "one of a later version");
	for (i = 0; i < 3; i++)
		for (k = 0; k < 2; k++)
			drop(res, &blocks[i][k]);
	is(of_tag(res, "a").frees, 2, "freed");
	hetmem_resource_destroy(res);
}

/* The first block of a tag that fails leaves no tag: neither its name nor its addresses. */
static void failed_first(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=16M)");
	struct hetmem_resource_stats s = { .size = sizeof(s) };
	struct one other = tagged(res, "other", false, 10 * MIB, 7);
	const uint64_t failed = stats(res).failed;
	char tag[16];
	unsigned int i;
	void *p;

	for (i = 0; i < 100; i++) {
		snprintf(tag, sizeof(tag), "t%u", i);
		if (try_tagged(res, tag, 0, 10 * MIB, 0, &p) != -ENOMEM)
			break;
	}
	is(i, 100, "100 tags without room: %s", hetmem_last_error());
	is(stats(res).failed, failed + 100, "each failed");
	is(hetmem_tag_stats(res, "t3", &s), -ENOENT, "none is there");
	is(try_tagged(res, "t3", 0, 4 * MIB, 3, &p), -ENOENT, "a private pool that is not retained");
	is(hetmem_tag_stats(res, "t3", &s), -ENOENT, "leaves none either");
	is(try_tagged(res, "t3", 0, 4 * MIB, 0, &p), 0, "with room it is made");
	is(of_tag(res, "t3").live, 1, "and is there");
	ok(intact(&other), "the other is as it was");
	hetmem_resource_destroy(res);
}

/* All tags together keep to max=. What one has free is another's. */
static void bounded(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=64M,wait=1ms)");
	struct one a = tagged(res, "a", false, 30 * MIB, 1), b = tagged(res, "b", false, 30 * MIB, 2), c;
	struct hetmem_resource_stats st;
	void *p;

	is(try_tagged(res, NULL, 0, 20 * MIB, 0, &p), -ENOMEM, "max= is all tags': %s", hetmem_last_error());
	drop(res, &a);
	c = tagged(res, NULL, false, 30 * MIB, 3);
	ok(intact(&b) && stats(res).reserved <= 64 * MIB, "free memory of a tag gives way");
	need(!hetmem_sleep(res, "b", HETMEM_SLEEP_KEEP), "b sleeps");
	a = tagged(res, "a", false, 30 * MIB, 4);
	st = stats(res);
	is(hetmem_wake(res, "b"), -ENOMEM, "no room for b");
	ok(strstr(hetmem_last_error(), "missing"), "%s", hetmem_last_error());
	ok(stats(res).reserved == st.reserved && intact(&a) && intact(&c), "the others are as they were");
	is(hetmem_wake_within(res, "b", 20), -ENOMEM, "nor later");
	is(hetmem_sleep(res, "a", HETMEM_SLEEP_KEEP), 0, "a sleeps");
	is(hetmem_wake(res, "b"), 0, "now b wakes: %s", hetmem_last_error());
	ok(intact(&b) && intact(&c), "contents");
	drop(res, &c);
	is(hetmem_wake(res, "a"), 0, "free memory gives way to a wake: %s", hetmem_last_error());
	ok(intact(&a) && stats(res).reserved <= 64 * MIB, "contents");
	/* A lower max= refuses no memory that all of them had. */
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "all sleep");
	need(!hetmem_resource_set(res, "max", "16M"), "max: %s", hetmem_last_error());
	is(hetmem_wake(res, NULL), 0, "all wake: %s", hetmem_last_error());
	ok(intact(&a) && intact(&b), "contents");
	is(try_tagged(res, "a", 0, MIB, 0, &p), -ENOMEM, "and nothing more");
	drop(res, &a);
	drop(res, &b);
	need(!hetmem_resource_set(res, "max", "16M"), "max again");
	ok(stats(res).reserved <= 16 * MIB, "free memory beyond max= went");
	hetmem_resource_destroy(res);
}

/* max_host= bounds the contents of all tags. */
static void host_bound(void)
{
	struct hetmem_resource *res = make("pool(vmm,max_host=10M,park=release)");
	struct one a = tagged(res, "a", false, 6 * MIB, 1), b = tagged(res, "b", false, 6 * MIB, 2);

	need(!hetmem_sleep(res, "a", HETMEM_SLEEP_KEEP), "a sleeps");
	is(hetmem_sleep(res, "b", HETMEM_SLEEP_KEEP), -ENOMEM, "no room for b: %s", hetmem_last_error());
	ok(intact(&b), "which is awake");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), -ENOMEM, "nor for all");
	ok(intact(&b), "which are as before");
	need(!hetmem_wake(res, "a") && intact(&a), "a wakes");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), -ENOMEM, "all at once: %s", hetmem_last_error());
	ok(intact(&a) && intact(&b), "all are awake");
	drop(res, &a);
	drop(res, &b);
	hetmem_resource_destroy(res);
}

/* A sleep or a wake of a tag in which the @nth @call fails; returns whether it does, too. */
static bool fails_with(const char *spec, bool wakes, const char *call, unsigned int nth, bool *good)
{
	const char *rule = failing_rule(call, nth);
	struct hetmem_resource *res = make(spec);
	struct one a = tagged(res, "t", false, 3 * MIB, 1), b = tagged(res, "t", true, 2 * MIB, 2);
	struct one c = tagged(res, "t", false, 4096, 3), d = tagged(res, NULL, false, MIB, 4);
	struct one e = tagged(res, "other", false, MIB, 5);
	uint64_t before = stats(res).reserved, asleep;
	bool failed;
	int err;

	if (wakes)
		need(!hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP), "sleep");
	asleep = stats(res).reserved;
	need(!soft_rules(rule, NULL), "a rule");
	err = wakes ? hetmem_wake(res, "t") : hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP);
	failed = err;
	failing_made(call, nth);
	soft_rules(NULL, NULL);
	*good &= intact(&d) && intact(&e);
	if (err && wakes && stats(res).reserved != asleep)
		*good = ok(false, "%s: %s: a failed wake holds %llu, not %llu", spec, rule,
			   (unsigned long long)stats(res).reserved, (unsigned long long)asleep);
	err = hetmem_wake(res, "t");
	if (err || stats(res).reserved != before || !intact(&a) || !intact(&c))
		*good = ok(false, "%s: %s: %s", spec, rule, hetmem_last_error());
	memset(b.p, 7, b.size);
	drop(res, &a);
	drop(res, &b);
	drop(res, &c);
	drop(res, &d);
	drop(res, &e);
	hetmem_resource_destroy(res);
	return failed;
}

/* Each call of the driver fails once, in a sleep and in a wake of a tag. */
static void fails(const char *spec, bool wakes)
{
	unsigned int i, nth, failed = 0;
	bool good = true;

	count_made(from)
		good &= !fails_with(spec, wakes, NULL, from, &good);
	for (i = 0; i < NR_CALLS; i++) {
		for (nth = 1; is_made[i] && nth <= 12; nth++) {
			if (fails_with(spec, wakes, calls[i], nth, &good))
				failed++;
			/* Later ones do not come either; those of memory may be done without. */
			else if (nth > (strncmp(calls[i], "cuMem", 5) ? 1 : 4))
				break;
		}
	}
	ok(good && failed > 3, "%s: %u calls failed in a %s, and nothing was lost", spec, failed,
	   wakes ? "wake" : "sleep");
}

/* Blocks that are freed, grown, shrunk and exported; walks and private pools. */
static void others(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	struct one a = tagged(res, "t", false, 8 * MIB, 1), b = tagged(res, "t", false, 8 * MIB, 2);
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 2 * MIB, .reserve = 16 * MIB, .stream = HOST, .tag = "t",
	};
	struct hetmem_segment segments[16];
	void *p, *q;

	need(!hetmem_alloc_with(res, &params, &p), "one that grows: %s", hetmem_last_error());
	memset(p, 9, 2 * MIB);
	is(hetmem_grow(res, p, 6 * MIB, HOST), 0, "grow: %s", hetmem_last_error());
	memset(p, 9, 6 * MIB);
	need(!hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP), "sleep");
	is(hetmem_grow(res, p, 8 * MIB, HOST), -EBUSY, "not while it sleeps");
	is(hetmem_shrink(res, p, 2 * MIB, 4 * MIB, HOST), -EBUSY, "nor shrink");
	drop(res, &b);
	is(hetmem_free(res, a.p + 1, 0, HOST), -EINVAL, "an inner address");
	need(!hetmem_wake(res, "t"), "wake");
	ok(intact(&a) && all_bytes(p, 9, 6 * MIB), "contents");
	is(hetmem_shrink(res, p, 2 * MIB, 4 * MIB, HOST), 0, "shrink: %s", hetmem_last_error());
	ok(hetmem_segments(res, a.p + MIB, MIB, segments, 16) > 0, "segments");
	need(!hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP) && !hetmem_wake(res, "t"), "once more");
	ok(intact(&a) && all_bytes(p, 9, 2 * MIB), "contents");
	need(!hetmem_free(res, p, 0, HOST), "free");

	need(!hetmem_private_retain(res, 5) && !hetmem_private_retain(res, 5), "a private pool");
	is(try_tagged(res, "late", 0, MIB, 5, &p), 0, "a tag that comes later: %s", hetmem_last_error());
	is(try_tagged(res, "t", 0, MIB, 5, &q), 0, "one that was there: %s", hetmem_last_error());
	memset(p, 4, MIB);
	memset(q, 5, MIB);
	need(!hetmem_sleep(res, "late", HETMEM_SLEEP_KEEP), "late sleeps");
	ok(all_bytes(q, 5, MIB), "the other private block stays");
	need(!hetmem_wake(res, "late"), "late wakes");
	ok(all_bytes(p, 4, MIB), "contents");
	is(hetmem_private_release(res, 5, HOST), 0, "a release");
	is(try_tagged(res, "late", 0, MIB, 5, (void **)&b.p), 0, "it is retained still: %s",
	   hetmem_last_error());
	hetmem_free(res, b.p, 0, HOST);
	is(hetmem_private_release(res, 5, HOST), 0, "the last one");
	is(try_tagged(res, "late", 0, MIB, 5, (void **)&b.p), -ENOENT, "then there is none");
	hetmem_free(res, p, 0, HOST);
	hetmem_free(res, q, 0, HOST);
	drop(res, &a);
	is(hetmem_resource_destroy(res), 0, "no live blocks");

	res = make("pool(vmm(export=fd))");
	a = tagged(res, "t", false, 3 * MIB, 6);
	b = tagged(res, NULL, false, 3 * MIB, 7);
	{
		int fd = -1;

		is(hetmem_export(res, a.p, &fd, segments, 1), 1, "export: %s", hetmem_last_error());
		close(fd);
	}
	need(!hetmem_sleep(res, "t", HETMEM_SLEEP_DISCARD) && !hetmem_wake(res, "t"), "sleep and wake");
	ok(intact(&a) && intact(&b), "exported memory stays");
	drop(res, &a);
	drop(res, &b);
	hetmem_resource_destroy(res);
}

static void captured(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	struct one a = tagged(res, "t", false, MIB, 1);
	CUstream s;
	void *p;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	need(!hetmem_capture_begin(res, s, 3), "begin");
	is(try_tagged(res, "new", 0, MIB, 0, &p), -EBUSY, "%s", hetmem_last_error());
	is(try_tagged(res, "t", 0, MIB, 0, &p), 0, "an old tag goes on: %s", hetmem_last_error());
	need(!hetmem_capture_end(res, s, 3), "end");
	hetmem_free(res, p, 0, HOST);
	is(try_tagged(res, "new", 0, MIB, 0, &p), 0, "then there are new tags");
	hetmem_free(res, p, 0, HOST);
	need(!hetmem_capture_release(res, HOST, 3), "release: %s", hetmem_last_error());
	drop(res, &a);
	drv->cuStreamDestroy(s);
	hetmem_resource_destroy(res);
}

/* Observers see tags that come after them. */
static struct hetmem_resource *observed;
static unsigned int seen, refused;

static void observe(const struct hetmem_remap *remap, void *arg)
{
	void *p;

	(void)arg;
	seen += !remap->after;
	refused += try_tagged(observed, "from here", 0, 512, 0, &p) == -EDEADLK;
	refused += hetmem_sleep(observed, "t", 0) == -EDEADLK;
}

static void observers(void)
{
	struct one a;

	observed = make("pool(vmm)");
	need(!hetmem_on_remap(observed, observe, NULL), "an observer");
	a = tagged(observed, "t", false, 3 * MIB, 1);
	need(!hetmem_sleep(observed, "t", 0), "sleep");
	ok(seen && refused == 4 * seen, "an observer is notified, and makes no tag: %u, %u", seen, refused);
	need(!hetmem_wake(observed, "t"), "wake");
	need(!hetmem_off_remap(observed, observe, NULL), "no observer");
	drop(observed, &a);
	hetmem_resource_destroy(observed);
}

static void forked(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	struct one a = tagged(res, "t", false, MIB, 1);
	int status;
	pid_t pid;
	void *p;

	need(!hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP), "sleep");
	pid = fork();
	if (!pid)
		_exit(try_tagged(res, "t", 0, 512, 0, &p) == -EOWNERDEAD &&
		      hetmem_wake(res, "t") == -EOWNERDEAD &&
		      hetmem_free(res, a.p, 0, HOST) == -EOWNERDEAD &&
		      hetmem_resource_destroy(res) <= 0 ? 0 : 1);
	need(pid > 0 && waitpid(pid, &status, 0) == pid, "a child");
	is(status, 0, "a forked child has nothing");
	need(!hetmem_wake(res, "t") && intact(&a), "its parent has");
	drop(res, &a);
	hetmem_resource_destroy(res);
}

/* Threads that allocate, while others sleep and wake tags. */
#define THREADS	4
#define TURNS	60

static void *run(void *arg)
{
	static const char *const tags[] = { NULL, "a", "b", "c" };
	struct hetmem_resource *res = *(struct hetmem_resource **)arg;
	unsigned int i, t;
	long bad = 0;
	void *p;
	int err;

	seed = (uintptr_t)&seed;
	for (i = 0; i < TURNS; i++) {
		t = below(4);
		if (below(4) == 0) {
			err = hetmem_sleep(res, t ? tags[t] : "c", below(2));
			bad += err && err != -EBUSY;
			bad += hetmem_wake(res, below(2) ? NULL : tags[t]) != 0;
			continue;
		}
		err = try_tagged(res, tags[t], below(2) ? HETMEM_ALLOC_SCRATCH : 0, 512 << below(13), 0, &p);
		bad += err && err != -EBUSY;
		if (!err)
			bad += hetmem_free(res, p, 0, HOST) != 0;
	}
	return (void *)bad;
}

static void threads(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=96M)");
	pthread_t thread[THREADS];
	void *bad;
	long all = 0;
	int i;

	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&thread[i], NULL, run, &res), "a thread");
	for (i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &bad);
		all += (long)bad;
	}
	is(all, 0, "%d threads: every call ended as it should", THREADS);
	need(!hetmem_wake(res, NULL), "wake");
	is(hetmem_resource_destroy(res), 0, "no live blocks");
}

/* A program at random: contents are what they are said to be, max= holds. */
#define BLOCKS	48
#define STEPS	600

static bool step(struct hetmem_resource *res, struct one *blocks, bool *sleeps, bool *lost)
{
	static const char *const tags[] = { NULL, "a", "b", "c" };
	struct one *o = &blocks[below(BLOCKS)];
	const unsigned int t = 1 + below(3);
	unsigned int i, keep;
	bool good = true;
	void *p;
	int err;

	switch (below(8)) {
	case 0:
		keep = below(3) ? HETMEM_SLEEP_KEEP : 0;
		err = hetmem_sleep(res, tags[t], keep);
		if (sleeps[t])
			return !err || err == -EBUSY;
		if (err)
			return false;
		sleeps[t] = true;
		lost[t] = !keep;
		return true;
	case 1:
		err = hetmem_wake(res, tags[t]);
		if (err)
			return err == -ENOMEM && sleeps[t];
		for (i = 0; i < BLOCKS && sleeps[t]; i++)
			if (blocks[i].p && is_of(&blocks[i], tags[t]) && (blocks[i].scratch || lost[t]))
				memset(blocks[i].p, blocks[i].byte, blocks[i].size);
		sleeps[t] = false;
		return true;
	default:
		break;
	}
	if (o->p) {
		i = o->tag ? (unsigned int)(o->tag[0] - 'a' + 1) : 0;
		good = sleeps[i] || intact(o);
		drop(res, o);
		return good;
	}
	i = below(4);
	*o = (struct one){
		.size = below(2) ? 512 + below(100000) : 1 + below(5 * MIB), .byte = 1 + below(255),
		.tag = tags[i], .scratch = !below(4),
	};
	err = try_tagged(res, o->tag, o->scratch ? HETMEM_ALLOC_SCRATCH : 0, o->size, 0, &p);
	if (err)
		return err == -ENOMEM || (err == -EBUSY && sleeps[i]);
	o->p = p;
	memset(p, o->byte, o->size);
	return true;
}

static void at_random(uint64_t from)
{
	struct hetmem_resource *res = make("pool(vmm,max=72M,wait=1ms)");
	struct one blocks[BLOCKS] = { 0 };
	bool sleeps[4] = { false }, lost[4] = { false }, good = true;
	unsigned int i;

	seed = from;
	for (i = 0; i < STEPS && good; i++) {
		good = step(res, blocks, sleeps, lost);
		good &= stats(res).reserved <= 72 * MIB;
	}
	ok(good, "seed %llu: %u steps: %s", (unsigned long long)from, i, hetmem_last_error());
	for (i = 0; i < BLOCKS; i++)
		drop(res, &blocks[i]);
	for (i = 1; i < 4; i++)
		need(!hetmem_wake(res, (const char *[]){ NULL, "a", "b", "c" }[i]), "wake");
	is(hetmem_trim(res, 0, NULL), 0, "trim");
	is(stats(res).reserved, 0, "nothing is left");
	is(hetmem_resource_destroy(res), 0, "no live blocks");
}

static uint64_t parked(struct hetmem_resource *res)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(res, &s), "%s", hetmem_last_error());
	return s.parked;
}

/* The first tags are saved, the last one does not fit: the host has its memory back. */
static void refused_sleep(void)
{
	struct hetmem_resource *res = make("pool(vmm,max_host=16M)");
	struct one a = tagged(res, "a", false, 4 * MIB, 1), b = tagged(res, "b", false, 4 * MIB, 2);
	struct one c = tagged(res, "c", false, 12 * MIB, 3);

	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), -ENOMEM, "a tag does not fit: no tag sleeps");
	is(parked(res), 0, "and no host memory is kept for any");
	ok(intact(&a) && intact(&b) && intact(&c), "all contents are there");
	need(!hetmem_sleep(res, "a", HETMEM_SLEEP_KEEP) && !hetmem_wake(res, "a"), "a tag sleeps and wakes");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), -ENOMEM, "again");
	is(parked(res), 4 * MIB, "what was kept before is still there");
	drop(res, &a);
	drop(res, &b);
	drop(res, &c);
	hetmem_resource_destroy(res);
}

static void *alloc_on(struct hetmem_resource *res, const char *tag, size_t size, CUstream s)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = s, .tag = tag,
	};
	void *p;

	need(!hetmem_alloc_with(res, &params, &p), "%s", hetmem_last_error());
	return p;
}

/* Memory of another tag is free, and its work has not ended. */
static void wake_waits(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=64M,wait=600s)");
	struct one a = tagged(res, "a", false, 40 * MIB, 1);
	CUstream s;
	void *p;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	need(!hetmem_sleep(res, "a", HETMEM_SLEEP_KEEP), "%s", hetmem_last_error());
	p = alloc_on(res, "b", 40 * MIB, s);
	soft_launch(s, "work", NULL, 0, 50000000);
	hetmem_free(res, p, 40 * MIB, s);
	is(hetmem_wake(res, "a"), 0, "a wake waits for memory that earlier work of another tag uses");
	ok(intact(&a), "and has its contents");
	drop(res, &a);
	hetmem_resource_destroy(res);

	res = make("pool(vmm,max=64M,wait=0s)");
	a = tagged(res, "a", false, 40 * MIB, 1);
	need(!hetmem_sleep(res, "a", HETMEM_SLEEP_KEEP), "%s", hetmem_last_error());
	p = alloc_on(res, "b", 40 * MIB, s);
	is(hetmem_wake(res, "a"), -ENOMEM, "there is no room for live memory of another tag");
	hetmem_free(res, p, 40 * MIB, HOST);
	is(hetmem_wake(res, "a"), 0, "until it is freed");
	drop(res, &a);
	hetmem_resource_destroy(res);
	drv->cuStreamDestroy(s);
}

/* A private pool of another tag, of a resource below, or of the first resource has the memory. */
static void no_memory_text(const char *spec, const char *tag)
{
	struct hetmem_resource *res = make(spec);
	void *p;

	need(!hetmem_private_retain(res, 7), "%s", hetmem_last_error());
	need(!try_tagged(res, tag, 0, 200 * MIB, 7, &p), "%s", hetmem_last_error());
	need(!hetmem_free(res, p, 200 * MIB, HOST), "%s", hetmem_last_error());
	is(try_tagged(res, NULL, 0, 400 * MIB, 0, &p), -ENOMEM, "%s: no memory", spec);
	ok(strstr(hetmem_last_error(), "in private pools"), "tells what private pools have: %s",
	   hetmem_last_error());
	is(hetmem_alloc(res, 400 * MIB, 0, HOST, &p), -ENOMEM, "nor without options");
	ok(strstr(hetmem_last_error(), "in private pools"), "tells it, too");
	hetmem_private_release(res, 7, HOST);
	hetmem_resource_destroy(res);
}

int main(void)
{
	uint64_t from;

	setenv("HETMEM_SOFT_MEMORY", "512M", 1);
	open_soft("");
	alone("pool(vmm,park=release)", HETMEM_SLEEP_KEEP);
	alone("pool(vmm,handle=2M,park=release)", HETMEM_SLEEP_KEEP);
	alone("pool(vmm,max=256M,spill=64M)", HETMEM_SLEEP_DISCARD);
	of_spec();
	errors();
	counters("pool(vmm)");
	counters("stats(retry(pool(vmm)))");
	counters("fallback(pool(vmm),pool(host))");
	failed_first();
	bounded();
	host_bound();
	others();
	refused_sleep();
	wake_waits();
	no_memory_text("pool(vmm)", "a");
	no_memory_text("headroom(pool(vmm),keep=64M)", NULL);
	no_memory_text("headroom(pool(vmm),keep=64M)", "a");
	no_memory_text("fallback(pool(vmm),pool(host,max=8M))", NULL);
	captured();
	observers();
	forked();
	threads();
	fails("pool(vmm)", true);
	fails("pool(vmm)", false);
	for (from = 1; from <= 8; from++)
		at_random(from);
	close_soft();
	return tap_end();
}
