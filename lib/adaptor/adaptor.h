/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Adaptors: resources over other resources. Each is one file; each of these
 * makes it, and the upstream (or upstreams) given is its own if it succeeds.
 * Documentation/spec.md has their effects and parameters.
 *
 * An adaptor holds none of its locks while it calls upstream. So their order
 * among themselves and with the locks below does not matter.
 */
#ifndef HETMEM_ADAPTOR_ADAPTOR_H
#define HETMEM_ADAPTOR_ADAPTOR_H

#include "core/resource.h"
#include "driver/hetmem.h"
#include "pool/pool.h"

/* several.c: what adaptors have in common. */

/*
 * @bytes, zeroed, that begin with a struct hetmem_resource: an adaptor of
 * @upstream, or of @nr of them, then it begins with a struct hm_several. NULL: no
 * memory; the text is set.
 */
void *hm_adaptor_new(size_t bytes, const struct hm_resource_ops *ops,
		     struct hetmem_resource *upstream);
void *hm_several_new(size_t bytes, const struct hm_resource_ops *ops,
		     struct hetmem_resource **upstreams, int nr);

/* hm_resource_ops.free of an adaptor that does not care for it. */
int hm_adaptor_free(struct hetmem_resource *self, void *ptr, size_t *size,
		    hetmem_stream stream);

/* HM_CTL_ACCESS of an adaptor without sparse blocks. */
int hm_adaptor_access(struct hetmem_resource *self, struct hm_ctl_access *arg);

/* Bytes of the memory that a percentage of @resource's is of; 0: not known. */
static inline uint64_t hm_adaptor_total(const struct hetmem_resource *resource)
{
	return resource->device < 0 ? 0 :
		resource->hm->devices[resource->device].props.total;
}

/* stats.c: counters, which can be pushed and popped. */
int hm_statistics_create(struct hetmem_resource *upstream,
			 struct hetmem_resource **res);

/*
 * HM_CTL_CHARGE, of the first limit(): takes @add bytes of memory that is not its upstream's,
 * and gives @sub bytes back. Sets @max and @used, also for no bytes. -ENOMEM: @add bytes are
 * beyond the limit. -EOPNOTSUPP: there is no limit().
 */
struct hm_ctl_charge {
	uint64_t add;
	uint64_t sub;
	uint64_t max;
	uint64_t used;
};

/* limit.c: at most @max bytes as they were asked for. @most: as of struct hm_pool_options. */
struct hm_limit_options {
	uint64_t max;
	uint64_t most;
};

int hm_limit_create(struct hetmem_resource *upstream,
		    const struct hm_limit_options *options,
		    struct hetmem_resource **res);

/*
 * headroom.c: an allocation leaves at least @bytes usable on the device or host that has
 * @upstream's memory; a prefetch leaves @on_device bytes usable on its device.
 * hm_headroom_where() sets *@total, of which @bytes may be a share; 0: not known. -EINVAL:
 * only some of @upstream's memory is the host's.
 */
int hm_headroom_where(struct hetmem_resource *upstream, uint64_t *total);
int hm_headroom_create(struct hetmem_resource *upstream, uint64_t bytes,
		       uint64_t on_device, struct hetmem_resource **res);

/* HM_CTL_ON_PRESSURE, of every watermark(). HM_CTL_PRESSURE: pools publish that it was called. */
struct hm_ctl_pressure {
	hetmem_pressure_fn fn;
	void *data;
};

/* @share: what @at is of hm_watermark_total(), in millionths; 0: @at was given in bytes */
struct hm_watermark_options {
	uint64_t at;
	uint64_t share;
	uint64_t every_ns;
};

/*
 * watermark.c: calls the program before @upstream makes memory beyond a bound.
 * hm_watermark_total(): bytes that @upstream may hold, 0: not known.
 */
uint64_t hm_watermark_total(struct hetmem_resource *upstream);
int hm_watermark_create(struct hetmem_resource *upstream,
			const struct hm_watermark_options *options,
			struct hetmem_resource **res);

/*
 * log.c: every call a line of @file, in which %p is the process's id and %n
 * the log's number in it; @full: also what orders streams. -EBUSY: another log
 * of this process writes that file.
 */
int hm_log_create(struct hetmem_resource *upstream, const char *file,
		  bool full, struct hetmem_resource **res);

struct hm_retry_options {
	unsigned int times;
	uint64_t wait_ns;
};

/*
 * retry.c: when upstream has no memory, up to times: asks the callback if
 * there is one, else gives cached memory back and waits for wait_ns.
 */
int hm_retry_create(struct hetmem_resource *upstream,
		    const struct hm_retry_options *options,
		    struct hetmem_resource **res);

/* fallback.c: the first of @nr that has memory. */
int hm_fallback_create(struct hetmem_resource **upstreams, int nr,
		       struct hetmem_resource **res);

/* binning.c: the first of @nr whose bound, @nr - 1 ascending, is not less. */
int hm_binning_create(struct hetmem_resource **upstreams, int nr,
		      const uint64_t *bounds, struct hetmem_resource **res);

/*
 * classes.c: a pool for each placement class, over @provider, which belongs to the
 * resource if it succeeds. @options as of a pool; max is of all together.
 */
int hm_classes_create(struct hm_provider *provider,
		      const struct hm_pool_options *options,
		      struct hetmem_resource **res);

/* align.c: blocks of @min bytes up at a multiple of @align. */
int hm_align_create(struct hetmem_resource *upstream, uint64_t align,
		    uint64_t min, struct hetmem_resource **res);

/*
 * history.c: the last @events events, each with up to @callers return addresses.
 * -EINVAL: more than there can be.
 */
int hm_history_create(struct hetmem_resource *upstream, unsigned int events,
		      unsigned int callers, struct hetmem_resource **res);

/*
 * guard.c: red zones on both sides, poison in what is allocated and freed.
 * -EINVAL: only some of @upstream's memory is the host's.
 */
int hm_guard_create(struct hetmem_resource *upstream, bool abort_on_damage,
		    struct hetmem_resource **res);

/* fixed.c: @count buffers of @size bytes, made at once. */
int hm_fixed_create(struct hetmem_resource *upstream, uint64_t size,
		    unsigned int count, bool comm,
		    struct hetmem_resource **res);

/* tags.c: hm_vmm_pool_create(), of a pool whose blocks can have tags. */
int hm_tagged_pool_create(struct hm_provider *provider, const struct hm_pool_options *options,
			  struct hetmem_resource **res);

/* several.c: what those with several upstreams have in common. */

/* Bits of a word, which tells those that were told of something. */
#define HM_SEVERAL_MOST	64

/**
 * struct hm_several - a resource with several upstreams
 * The first member of its own struct; resource.upstream is NULL.
 */
struct hm_several {
	struct hetmem_resource resource;
	int nr;
	struct hetmem_resource *upstreams[HM_SEVERAL_MOST];
};

int hm_several_free(struct hetmem_resource *self, void *ptr, size_t *size,
		    hetmem_stream stream);
int hm_several_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg);
/* -ENOMEM: appends to its text that of the first resource, unless that is "". */
#define HM_SEVERAL_TEXT	640
int hm_several_no_memory(const char *first);
void hm_several_destroy(struct hetmem_resource *self);

#endif /* HETMEM_ADAPTOR_ADAPTOR_H */
