// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * watermark(R,at=,every=): before R makes memory beyond @at, a function of the program is
 * called. It may free memory, also of R. Then the call goes on, and R may grow beyond @at.
 *
 * A gate in R's providers does the counting (provider/gate.h). It only advises: the first
 * attempt fails and undoes what it did; free memory of R that does not fit is given back;
 * if that does not suffice, the function is called; the last attempt passes. So the
 * function runs on the calling thread with no lock held, once in a call.
 *
 * One thread calls it at a time. Until @every has passed after its end, all calls pass, and
 * so do calls that it makes itself.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "adaptor/gated.h"
#include "core/snapshot.h"

/**
 * struct watermark - the adaptor
 * @gate: in R's providers
 * @before: bytes that R held before the gate
 * @lock: protects @options and @callback, and the changes of what follows
 * @armed: there is a callback
 * @running: hm_generation() + 1 of the process that it runs in, or 0: a forked child does not
 *	wait for a thread of its parent
 * @due: hm_now() from when on it may be called
 * @calls: of the callback
 */
struct watermark {
	struct hetmem_resource resource;
	struct hm_gate gate;
	uint64_t before;
	struct hm_lock lock;
	struct hm_watermark_options options;
	struct hm_ctl_pressure callback;
	bool armed;
	unsigned int running;
	uint64_t due;
	uint64_t calls;
};

static bool is_due(const struct watermark *w)
{
	return __atomic_load_n(&w->armed, __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&w->running, __ATOMIC_ACQUIRE) != hm_generation() + 1 &&
	       hm_now() >= __atomic_load_n(&w->due, __ATOMIC_RELAXED);
}

/* For the gate. */
static bool advises(struct hm_gate *gate)
{
	return is_due((struct watermark *)((char *)gate - offsetof(struct watermark, gate)));
}

static uint64_t held(struct watermark *w)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	return hm_ctl_upstream(&w->resource, HM_CTL_STATS, &stats) ? 0 : stats.reserved;
}

static uint64_t get_at(struct watermark *w)
{
	uint64_t at;

	hm_lock(&w->lock);
	at = w->options.at;
	hm_unlock(&w->lock);
	return at;
}

static int ask(struct watermark *w, const struct hm_request *r)
{
	return hm_request_ask(w->resource.upstream, r);
}

/* *@refused: R did without more memory, and could not. */
static int ask_watched(struct watermark *w, const struct hm_request *r, bool *refused)
{
	return hm_request_watch(w->resource.upstream, r, &w->gate, HM_UNDER_PRESSURE, refused);
}

/* The callback could end the capture, or add to it. */
static bool is_captured(const struct watermark *w, hetmem_stream stream)
{
	return stream != HETMEM_STREAM_HOST && stream != HETMEM_STREAM_UNKNOWN &&
	       w->resource.device >= 0 && hm_capture_active(w->resource.hm, stream);
}

/* Gives back free memory that @r cannot use. Returns whether it may fit now. */
static bool make_room(struct watermark *w, const struct hm_request *r)
{
	const int64_t made = hm_gate_made(&w->gate);
	const uint64_t at = get_at(w);
	const uint64_t reserved = held(w);
	const size_t keep = at > r->size ? at - r->size : 0;
	size_t given = keep;

	if (w->gate.drifts)
		hm_gate_open_to(&w->gate, made, (int64_t)(at - reserved));
	if (reserved <= keep)
		return w->gate.drifts;
	hm_ctl_upstream(&w->resource, HM_CTL_POLL, NULL);
	return !hm_ctl_upstream(&w->resource, HM_CTL_TRIM, &given) && given;
}

static void call(struct watermark *w, const struct hm_request *r)
{
	struct hetmem_pressure pressure = {
		.size = sizeof(pressure), .bytes = r->size, .held = held(w),
	};
	struct hetmem *hm = w->resource.hm;
	struct hm_ctl_pressure callback;
	bool due;

	hm_lock(&w->lock);
	callback = w->callback;
	pressure.at = w->options.at;
	due = is_due(w);
	if (due) {
		__atomic_store_n(&w->running, hm_generation() + 1, __ATOMIC_RELEASE);
		__atomic_store_n(&w->calls, w->calls + 1, __ATOMIC_RELAXED);
	}
	hm_unlock(&w->lock);
	if (!due)
		return;
	__atomic_add_fetch(&hm->pressures[w->resource.device + 1], 1, __ATOMIC_RELAXED);
	hm_ctl_upstream(&w->resource, HM_CTL_PRESSURE, NULL);
	callback.fn(callback.data, &pressure);
	hm_lock(&w->lock);
	__atomic_store_n(&w->due, hm_now() + w->options.every_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&w->running, 0, __ATOMIC_RELEASE);
	hm_unlock(&w->lock);
}

/* The gate refused. */
__attribute__((noinline))
static int ask_again(struct watermark *w, const struct hm_request *r)
{
	bool refused = true;
	int err = 0;

	if (is_captured(w, r->stream))
		return ask(w, r);
	if (make_room(w, r))
		err = ask_watched(w, r, &refused);
	if (!refused)
		return err;
	call(w, r);
	return ask(w, r);
}

static int request(struct watermark *w, const struct hm_request *r)
{
	bool refused;
	int err;

	if (!__atomic_load_n(&w->armed, __ATOMIC_ACQUIRE))
		return ask(w, r);
	err = ask_watched(w, r, &refused);
	return hm_unlikely(refused) ? ask_again(w, r) : err;
}

static int watermark_alloc(struct hetmem_resource *self, size_t size, size_t align,
			   hetmem_stream stream, void **ptr)
{
	const struct hm_request r = hm_request_alloc(size, align, stream, ptr);

	return request((struct watermark *)self, &r);
}

/* Sums what R's pools may hold: HM_CTL_SET finds them, and with a try it changes nothing. */
struct most {
	struct hm_ctl_set set;
	uint64_t bytes;
	bool unknown;
};

static int add_most(const struct hm_ctl_set *set, const char *kind, uint64_t total,
		    void *options)
{
	struct most *most = (struct most *)((char *)set - offsetof(struct most, set));
	uint64_t bytes;

	if (strcmp(kind, "pool") && strcmp(kind, "classes"))
		return -ENOENT;
	bytes = ((const struct hm_pool_options *)options)->max;
	bytes = bytes ? bytes : total;
	most->bytes += bytes;
	most->unknown |= !bytes;
	return 0;
}

uint64_t hm_watermark_total(struct hetmem_resource *upstream)
{
	struct most most = { .set = { .try = true, .change = add_most } };
	uint64_t total = 0;

	if (!upstream->ops->ctl(upstream, HM_CTL_SET, &most.set) && !most.unknown)
		return most.bytes;
	return upstream->mixed || hm_headroom_where(upstream, &total) ? 0 : total;
}

/* Lock held. */
static void set_bound(struct watermark *w)
{
	const uint64_t most = INT64_MAX / 4;
	const uint64_t at = w->options.at < most ? w->options.at : most;

	hm_gate_bound(&w->gate, (int64_t)(at - w->before));
}

/* The pools' max= can be what a share is of. */
static int set_below(struct watermark *w, struct hm_ctl_set *set)
{
	int err = hm_ctl_upstream(&w->resource, HM_CTL_SET, set);
	uint64_t total;

	if (err || set->try || !w->options.share)
		return err;
	total = hm_watermark_total(w->resource.upstream);
	hm_lock(&w->lock);
	if (total && w->options.share) {
		w->options.at = (unsigned __int128)total * w->options.share / 1000000;
		set_bound(w);
	}
	hm_unlock(&w->lock);
	return 0;
}

static int watermark_set(struct watermark *w, struct hm_ctl_set *set)
{
	struct hm_watermark_options options = { 0 };
	uint64_t total;
	int err;

	/* Whether the parameter is one of ours: what a share is of is asked for only then. */
	if (set->change(set, "watermark", 0, &options) == -ENOENT)
		return set_below(w, set);
	total = hm_watermark_total(w->resource.upstream);
	hm_lock(&w->lock);
	options = w->options;
	err = set->change(set, "watermark", total, &options);
	if (!err && !set->try) {
		w->options = options;
		set_bound(w);
	}
	hm_unlock(&w->lock);
	return err;
}

static int set_callback(struct watermark *w, const struct hm_ctl_pressure *callback)
{
	int err = hm_ctl_upstream(&w->resource, HM_CTL_ON_PRESSURE, (void *)callback);

	if (err && err != -EOPNOTSUPP)
		return err;
	hm_lock(&w->lock);
	w->callback = *callback;
	__atomic_store_n(&w->armed, callback->fn, __ATOMIC_RELEASE);
	hm_unlock(&w->lock);
	return 0;
}

static int watermark_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct watermark *w = (struct watermark *)self;
	struct hetmem_resource_stats *stats = arg;
	struct hm_request r;
	int err;

	if (hm_request_of(&r, op, arg))
		return request(w, &r);
	switch (op) {
	case HM_CTL_SET:
		return watermark_set(w, arg);
	case HM_CTL_ON_PRESSURE:
		return set_callback(w, arg);
	case HM_CTL_STATS:
		err = hm_ctl_upstream(self, op, arg);
		if (!err) {
			stats->pressures += __atomic_load_n(&w->calls, __ATOMIC_RELAXED);
			stats->metadata += sizeof(*w);
		}
		return err;
	default:
		return hm_ctl_upstream(self, op, arg);
	}
}

static void watermark_destroy(struct hetmem_resource *self)
{
	struct watermark *w = (struct watermark *)self;

	hm_gate_pass(self, &w->gate, false);
	hm_lock_destroy(&w->lock);
	hm_resource_free(self);
}

static const struct hm_resource_ops watermark_ops = {
	.name = "watermark",
	.alloc = watermark_alloc,
	.free = hm_adaptor_free,
	.ctl = watermark_ctl,
	.destroy = watermark_destroy,
};

int hm_watermark_create(struct hetmem_resource *upstream,
			const struct hm_watermark_options *options,
			struct hetmem_resource **res)
{
	struct watermark *w = hm_adaptor_new(sizeof(*w), &watermark_ops, upstream);

	if (!w)
		return -ENOMEM;
	hm_lock_init(&w->lock, HM_FORK_ADAPTOR);
	w->options = *options;
	w->before = held(w);
	w->gate.advises = advises;
	set_bound(w);
	hm_gate_pass(&w->resource, &w->gate, true);
	*res = &w->resource;
	return 0;
}

int hetmem_on_pressure(struct hetmem_resource *res, hetmem_pressure_fn fn, void *data)
{
	struct hm_ctl_pressure arg = { .fn = fn, .data = data };

	return hm_resource_ctl(res, "on_pressure", HM_CTL_ON_PRESSURE, &arg);
}
