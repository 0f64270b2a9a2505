/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Resources inside the library: what a pool, an adaptor or a plain allocator
 * is made of. spec.c builds stacks of them; include/hetmem.h has what
 * programs see.
 *
 * A resource is its ops and its own data behind struct hetmem_resource. An
 * adaptor has one upstream (fallback and binning have more, in their own
 * data) and forwards what it does not care for: hm_ctl_upstream() is the ctl
 * of one that cares for nothing. Whoever creates a resource gives it its
 * upstream, which then belongs to it and is destroyed with it.
 *
 * Streams come as the driver's handles. A handle tells nothing for long, since
 * the driver reuses handles. stream/stream.h tells streams apart by identity.
 */
#ifndef HETMEM_CORE_RESOURCE_H
#define HETMEM_CORE_RESOURCE_H

#include "core/core.h"

/* What ctl() is asked for; the type behind arg is in brackets. */
enum hm_ctl {
	HM_CTL_OWNS,		/* [struct hm_ctl_owns] */
	HM_CTL_RECORD,		/* [struct hm_ctl_stream] a use on another stream */
	HM_CTL_RETIRE,		/* [struct hm_ctl_stream] it will be destroyed */
	HM_CTL_POLL,		/* [NULL] what has completed */
	HM_CTL_TRIM,		/* [size_t] in: bytes to keep; out: bytes given back */
	HM_CTL_STATS,		/* [struct hetmem_resource_stats] */
	HM_CTL_TAG_STATS,	/* [struct hm_ctl_tag_stats] core/snapshot.h */
	HM_CTL_GROW,		/* [struct hm_ctl_grow] in place */
	HM_CTL_SHRINK,		/* [struct hm_ctl_shrink] core/shrink.h */
	HM_CTL_SEGMENTS,	/* [struct hm_ctl_segments] */
	HM_CTL_PIN_COMM, HM_CTL_UNPIN_COMM,	/* [struct hm_ctl_stream] without @stream */
	HM_CTL_SLEEP, HM_CTL_WAKE,	/* [struct hm_ctl_sleep] core/snapshot.h */
	HM_CTL_PARKED_READ,	/* [struct hm_ctl_parked] core/parked.h */
	HM_CTL_CAPTURE_BEGIN, HM_CTL_CAPTURE_END,	/* [struct hm_ctl_capture] */
	HM_CTL_CAPTURE_RELEASE,	/* [struct hm_ctl_capture] */
	HM_CTL_PRIVATE_RETAIN,	/* [struct hm_ctl_capture] stream is not used */
	HM_CTL_PRIVATE_RELEASE,	/* [struct hm_ctl_capture] */
	HM_CTL_PRIVATE_TRIM,	/* [struct hm_ctl_private_trim] core/snapshot.h */
	HM_CTL_EXPORT,		/* [struct hm_ctl_export] */
	HM_CTL_ALLOC_WITH,		/* [struct hm_ctl_alloc] with options */
	HM_CTL_COUNTERS,	/* [struct hm_ctl_counters] of the first stats() */
	HM_CTL_ON_FAILURE,	/* [struct hm_ctl_callback] of every retry() */
	HM_CTL_EDGE,		/* [struct hm_ctl_edge] for every log() */
	HM_CTL_ACCESS,		/* [struct hm_ctl_access] takes no lock */
	HM_CTL_SET,		/* [struct hm_ctl_set] at run time */
	HM_CTL_HISTORY,		/* [struct hm_ctl_history] core/snapshot.h */
	HM_CTL_CHECKPOINT,	/* [struct hm_ctl_checkpoint] likewise */
	HM_CTL_RESTORE,		/* [struct hm_ctl_restore] likewise */
	HM_CTL_WALK,		/* [struct hm_ctl_walk] core/snapshot.h */
	HM_CTL_TRACE,		/* [struct hm_ctl_trace] calls no driver */
	HM_CTL_GATE,		/* [struct hm_ctl_gate] provider/gate.h */
	HM_CTL_MOVE,		/* [struct hm_ctl_move] core/move.h */
	HM_CTL_OBSERVE,		/* [struct hm_ctl_observe] likewise */
	HM_CTL_CHARGE,		/* [struct hm_ctl_charge] adaptor/adaptor.h */
	HM_CTL_ON_PRESSURE,	/* [struct hm_ctl_pressure] likewise */
	HM_CTL_PRESSURE,	/* [NULL] for every pool */
};

/*
 * Whose is the block that @ptr is in? 0, or -ENOENT: not this resource's. A pool searches
 * for interior pointers. With @first it finds the block that begins there, or any other.
 */
struct hm_ctl_owns {
	const void *ptr;	/* in */
	bool first;		/* in */
	void *base;		/* out: as alloc returned it */
	size_t size;		/* out: bytes that may be used */
	size_t asked;		/* out: bytes that were requested */
	hetmem_stream stream;	/* out: that it was allocated on, if known */
};

struct hm_ctl_stream {
	void *ptr;
	hetmem_stream stream;
};

/* @size: that the block is to have, at the same address, more or less; @was: out: it had. */
struct hm_ctl_grow {
	void *ptr;
	size_t size;
	size_t was;
	hetmem_stream stream;
};

/* 0, or -ENOSPC with @nr as there are. */
struct hm_ctl_segments {
	const void *ptr;
	size_t size;
	struct hetmem_segment *segments;
	size_t nr;		/* in: room; out: filled */
};

/* As struct hetmem_alloc_params, the defaults filled in; @ptr: out. */
struct hm_ctl_alloc {
	size_t size;
	size_t align;
	size_t reserve;
	uint64_t private_pool;
	unsigned int placement, flags;
	int priority;
	const char *tag;
	hetmem_stream stream;
	void *ptr;
};

struct hm_ctl_capture {
	hetmem_stream stream;
	uint64_t id;
};

/* @fds: a descriptor of the caller's for each segment. */
struct hm_ctl_export {
	void *ptr;
	int *fds;
	struct hetmem_segment *segments;
	size_t nr;		/* in: room; out: filled */
};

/* @counters, if not NULL, are read first. */
struct hm_ctl_counters {
	struct hetmem_counters *counters;
	bool push;
	bool pop;
};

struct hm_ctl_callback {
	hetmem_failure_fn fn;
	void *data;
};

/* What orders streams, and is told only for the record. */
struct hm_ctl_edge {
	enum hetmem_edge edge;
	const void *event;
	hetmem_stream stream;
};

/* @found: out: some of the memory is the provider @whose's, if not NULL. */
struct hm_ctl_access {
	struct hetmem_access *access;
	const void *whose;
	bool found;
};

/*
 * A parameter of a spec that changes. A resource copies its options, has
 * change() read @text into them, and puts them in force unless @try.
 *
 * change() returns 0; -ENOENT: the parameter is none of @kind's, ask upstream;
 * -EINVAL, and the error's text tells why. 100% is @total; 0: not known.
 */
struct hm_ctl_set {
	const char *kind;	/* whose parameter; NULL: of the first that has it */
	const char *name;
	const char *text;
	bool try, now;	/* @now: wait for no work on memory beyond a lower limit */
	int (*change)(const struct hm_ctl_set *set, const char *kind,
		      uint64_t total, void *options);
};

/*
 * Prints on stderr what a history() knows of the block at @ptr: who allocated
 * it, and who freed it. @leak: it is reported as still allocated, and need not be
 * reported so again.
 */
struct hm_ctl_trace {
	const void *ptr;
	bool leak;
};

/**
 * struct hm_resource_ops - what a kind of resource can do
 * @name: as in a spec
 * @alloc: @size > 0 bytes at a multiple of @align, a power of two that is 512
 *	at least, to be used on @stream and what is ordered behind it. The
 *	contents are undefined. -ENOMEM; on an error *@ptr is untouched.
 * @free: @ptr as it was returned. *@size: in: as it was requested, or 0 if
 *	unknown; out: as it was requested. @stream: the caller has ordered it
 *	after all uses; HETMEM_STREAM_UNKNOWN: the allocation's and all that
 *	were recorded. Never waits for a device. After an error nothing has
 *	changed, *@size excepted. -EINVAL: no such block, or a wrong size.
 * @put: free() without the size, for hetmem_free() alone: frees aliases, too; or NULL
 * @ctl: 0 or a negative errno; -EOPNOTSUPP where nobody down the stack knows.
 * @destroy: frees all, @self included, @upstream not. Live blocks are
 *	reported and freed. In a forked child it only forgets.
 *
 * alloc, free and ctl may be called from any thread at any time; in a forked
 * child they return -EOWNERDEAD. Exception: resources of host memory work there.
 */
struct hm_resource_ops {
	const char *name;
	int (*alloc)(struct hetmem_resource *self, size_t size, size_t align, hetmem_stream stream,
		     void **ptr);
	int (*free)(struct hetmem_resource *self, void *ptr, size_t *size, hetmem_stream stream);
	int (*put)(struct hetmem_resource *self, void *ptr, size_t size, hetmem_stream stream);
	int (*ctl)(struct hetmem_resource *self, enum hm_ctl op, void *arg);
	void (*destroy)(struct hetmem_resource *self);
};

/**
 * struct hetmem_resource - the first member of every resource's own struct
 * @ops: its kind
 * @hm: the library it lives in, which must be open as long
 * @upstream: that it takes from, or NULL
 * @device: ordinal that its memory is for, -1 for the host's
 * @mixed: only some of it is the host's, whatever @device says
 * @keep: hm_resource_free() leaves the struct, so that a use of it after
 *	destroy is an error
 */
struct hetmem_resource {
	const struct hm_resource_ops *ops;
	struct hetmem *hm;
	struct hetmem_resource *upstream;
	int device;
	bool mixed;
	bool keep;
};

/*
 * A program's callback of the provider @whose that the calling thread is in.
 * Until it is left, the public functions refuse resources of that provider.
 */
struct hm_callback {
	const void *whose;
	struct hm_callback *outer;
};

void hm_callback_enter(struct hm_callback *callback, const void *whose);
void hm_callback_leave(struct hm_callback *callback);

/*
 * A public call @what of @res. -EINVAL: it is NULL; -EDEADLK: see above. Sets a
 * text for -EOPNOTSUPP.
 */
int hm_resource_ctl(struct hetmem_resource *res, const char *what, enum hm_ctl op, void *arg);
/* HM_CTL_ALLOC_WITH of a resource with no options: a placement alone changes nothing. */
int hm_alloc_placed(struct hetmem_resource *self, struct hm_ctl_alloc *arg);

/* For adaptors: asks the upstream. */
int hm_ctl_upstream(struct hetmem_resource *self, enum hm_ctl op, void *arg);

/* The last thing of every destroy: frees @self. */
void hm_resource_free(struct hetmem_resource *self);

/* Destroys a whole stack, from the top. NULL does nothing. */
void hm_resource_put(struct hetmem_resource *top);

#endif /* HETMEM_CORE_RESOURCE_H */
