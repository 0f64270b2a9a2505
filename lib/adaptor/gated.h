/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Adaptors with a gate in their upstream's providers share this: they learn which calls can
 * make memory, and whether the gate refused one.
 */
#ifndef HETMEM_ADAPTOR_GATED_H
#define HETMEM_ADAPTOR_GATED_H

#include "adaptor/adaptor.h"
#include "core/shrink.h"
#include "provider/gate.h"

/**
 * struct hm_request - a call of the upstream that can make memory
 * @op, @arg: of its ctl(); @ptr: instead, by ops->alloc()
 * @size: bytes that are asked for; 0: not known
 * @stream: HETMEM_STREAM_UNKNOWN: of no stream
 */
struct hm_request {
	enum hm_ctl op;
	void *arg;
	size_t size;
	size_t align;
	hetmem_stream stream;
	void **ptr;
};

static inline struct hm_request hm_request_alloc(size_t size, size_t align, hetmem_stream stream,
						 void **ptr)
{
	return (struct hm_request){
		.op = HM_CTL_ALLOC_WITH, .size = size, .align = align,
		.stream = stream, .ptr = ptr,
	};
}

/* *@r becomes the call @op with @arg. false: it makes no memory. */
static inline bool hm_request_of(struct hm_request *r, enum hm_ctl op, void *arg)
{
	*r = (struct hm_request){ .op = op, .arg = arg, .stream = HETMEM_STREAM_UNKNOWN };
	switch (op) {
	case HM_CTL_GROW:
		r->size = ((struct hm_ctl_grow *)arg)->size;
		r->stream = ((struct hm_ctl_grow *)arg)->stream;
		return true;
	case HM_CTL_SHRINK:
		r->size = ((struct hm_ctl_shrink *)arg)->length;
		r->stream = ((struct hm_ctl_shrink *)arg)->stream;
		return ((struct hm_ctl_shrink *)arg)->what == HM_PART_COMMIT;
	case HM_CTL_ALLOC_WITH:
		r->size = ((struct hm_ctl_alloc *)arg)->size;
		r->stream = ((struct hm_ctl_alloc *)arg)->stream;
		return true;
	case HM_CTL_MOVE:
	case HM_CTL_WAKE:
	case HM_CTL_RESTORE:
		return true;
	default:
		return false;
	}
}

static inline int hm_request_ask(struct hetmem_resource *up, const struct hm_request *r)
{
	if (r->ptr)
		return up->ops->alloc(up, r->size, r->align, r->stream, r->ptr);
	return up->ops->ctl(up, r->op, r->arg);
}

/* hm_request_ask(). *@refused: the result is @refusal, and @gate had a part in that. */
static inline int hm_request_watch(struct hetmem_resource *up, const struct hm_request *r,
				   const struct hm_gate *gate, int refusal, bool *refused)
{
	struct hm_gate_watch watch;
	int err;

	hm_gate_watch(&watch, gate);
	err = hm_request_ask(up, r);
	*refused = hm_gate_unwatch(&watch) && err == refusal;
	return err;
}

/* The memory of @self's upstream passes @gate, or no longer does. */
static inline void hm_gate_pass(struct hetmem_resource *self, struct hm_gate *gate, bool attach)
{
	struct hm_ctl_gate arg = { .gate = gate, .attach = attach };

	hm_ctl_upstream(self, HM_CTL_GATE, &arg);
}

#endif /* HETMEM_ADAPTOR_GATED_H */
