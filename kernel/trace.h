/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints. Fields are stable: they are added to, never changed. Addresses
 * are of the address space whose id (the opener's process) is in opener;
 * locations are as in the uapi header, kind in the upper half, index in the
 * lower one. Documentation/tracing.md shows how to use them.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hetmem

#if !defined(_HETMEM_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _HETMEM_TRACE_H

#include <linux/pid.h>
#include <linux/tracepoint.h>

#include "hetmem.h"

DECLARE_EVENT_CLASS(hetmem_range_event,
	TP_PROTO(const struct hetmem_context *ctx, unsigned long start,
		 unsigned long end, int result),
	TP_ARGS(ctx, start, end, result),
	TP_STRUCT__entry(
		__field(pid_t, opener)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->opener = pid_nr(ctx->opener);
		__entry->start = start;
		__entry->end = end;
		__entry->result = result;
	),
	TP_printk("opener=%d range=%#lx-%#lx result=%d", __entry->opener,
		  __entry->start, __entry->end, __entry->result)
);

DEFINE_EVENT(hetmem_range_event, hetmem_track,
	TP_PROTO(const struct hetmem_context *ctx, unsigned long start,
		 unsigned long end, int result),
	TP_ARGS(ctx, start, end, result)
);

DEFINE_EVENT(hetmem_range_event, hetmem_untrack,
	TP_PROTO(const struct hetmem_context *ctx, unsigned long start,
		 unsigned long end, int result),
	TP_ARGS(ctx, start, end, result)
);

/* So that tools which read the format know their values. */
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_UNMAP);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_CLEAR);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_PROTECTION);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_SOFT_DIRTY);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_RELEASE);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_MIGRATE);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_EXCLUSIVE);
TRACE_DEFINE_ENUM(HETMEM_NOTIFY_OTHER);

#define HETMEM_SHOW_NOTIFICATION(type)					\
	__print_symbolic(type,						\
		{ HETMEM_NOTIFY_UNMAP,		"unmap" },		\
		{ HETMEM_NOTIFY_CLEAR,		"clear" },		\
		{ HETMEM_NOTIFY_PROTECTION,	"protection" },		\
		{ HETMEM_NOTIFY_SOFT_DIRTY,	"soft-dirty" },		\
		{ HETMEM_NOTIFY_RELEASE,	"release" },		\
		{ HETMEM_NOTIFY_MIGRATE,	"migrate" },		\
		{ HETMEM_NOTIFY_EXCLUSIVE,	"exclusive" },		\
		{ HETMEM_NOTIFY_OTHER,		"other" })

TRACE_EVENT(hetmem_notify,
	TP_PROTO(const struct hetmem_context *ctx, u32 type,
		 unsigned long start, unsigned long end),
	TP_ARGS(ctx, type, start, end),
	TP_STRUCT__entry(
		__field(pid_t, opener)
		__field(u32, type)
		__field(unsigned long, start)
		__field(unsigned long, end)
	),
	TP_fast_assign(
		__entry->opener = pid_nr(ctx->opener);
		__entry->type = type;
		__entry->start = start;
		__entry->end = end;
	),
	TP_printk("opener=%d type=%s range=%#lx-%#lx", __entry->opener,
		  HETMEM_SHOW_NOTIFICATION(__entry->type), __entry->start,
		  __entry->end)
);

TRACE_EVENT(hetmem_migrate_begin,
	TP_PROTO(const struct hetmem_context *ctx,
		 const struct hetmem_cmd_migrate *cmd),
	TP_ARGS(ctx, cmd),
	TP_STRUCT__entry(
		__field(pid_t, opener)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(u32, location)
		__field(u32, flags)
	),
	TP_fast_assign(
		__entry->opener = pid_nr(ctx->opener);
		__entry->start = cmd->start;
		__entry->end = cmd->end;
		__entry->location = cmd->location;
		__entry->flags = cmd->flags;
	),
	TP_printk("opener=%d range=%#lx-%#lx location=%#x flags=%#x",
		  __entry->opener, __entry->start, __entry->end,
		  __entry->location, __entry->flags)
);

TRACE_EVENT(hetmem_migrate_end,
	TP_PROTO(const struct hetmem_context *ctx,
		 const struct hetmem_cmd_migrate *cmd, int result),
	TP_ARGS(ctx, cmd, result),
	TP_STRUCT__entry(
		__field(pid_t, opener)
		__field(unsigned long, start)
		__field(unsigned long, walk_end)
		__field(u64, moved)
		__field(u64, already)
		__field(u64, not_moved)
		__field(u32, why)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->opener = pid_nr(ctx->opener);
		__entry->start = cmd->start;
		__entry->walk_end = cmd->walk_end;
		__entry->moved = cmd->moved;
		__entry->already = cmd->already;
		__entry->not_moved = cmd->not_moved;
		__entry->why = cmd->why;
		__entry->result = result;
	),
	TP_printk("opener=%d range=%#lx-%#lx moved=%llu already=%llu not_moved=%llu why=%#x result=%d",
		  __entry->opener, __entry->start, __entry->walk_end,
		  __entry->moved, __entry->already, __entry->not_moved,
		  __entry->why, __entry->result)
);

TRACE_EVENT(hetmem_thrash,
	TP_PROTO(const struct hetmem_context *ctx,
		 const struct hetmem_event *event),
	TP_ARGS(ctx, event),
	TP_STRUCT__entry(
		__field(pid_t, opener)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(u32, location)
		__field(u32, count)
	),
	TP_fast_assign(
		__entry->opener = pid_nr(ctx->opener);
		__entry->start = event->start;
		__entry->end = event->end;
		__entry->location = event->location;
		__entry->count = event->count;
	),
	TP_printk("opener=%d range=%#lx-%#lx location=%#x count=%u",
		  __entry->opener, __entry->start, __entry->end,
		  __entry->location, __entry->count)
);

TRACE_EVENT(hetmem_hint,
	TP_PROTO(const struct hetmem_context *executor,
		 const struct hetmem_event *event, int result),
	TP_ARGS(executor, event, result),
	TP_STRUCT__entry(
		__field(pid_t, opener)
		__field(u64, id)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(u32, location)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->opener = pid_nr(executor->opener);
		__entry->id = event->data;
		__entry->start = event->start;
		__entry->end = event->end;
		__entry->location = event->location;
		__entry->result = result;
	),
	TP_printk("opener=%d id=%llu range=%#lx-%#lx location=%#x result=%d",
		  __entry->opener, __entry->id, __entry->start, __entry->end,
		  __entry->location, __entry->result)
);

TRACE_EVENT(hetmem_complete,
	TP_PROTO(u64 id, u64 moved, int result),
	TP_ARGS(id, moved, result),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u64, moved)
		__field(int, result)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->moved = moved;
		__entry->result = result;
	),
	TP_printk("id=%llu moved=%llu result=%d", __entry->id, __entry->moved,
		  __entry->result)
);

/* A cap kept somebody from something: which file under caps/ or limit. */
TRACE_EVENT(hetmem_limit_hit,
	TP_PROTO(const char *limit, u64 value),
	TP_ARGS(limit, value),
	TP_STRUCT__entry(
		__array(char, limit, 24)
		__field(u64, value)
	),
	TP_fast_assign(
		strscpy(__entry->limit, limit, sizeof(__entry->limit));
		__entry->value = value;
	),
	TP_printk("limit=%s value=%llu", __entry->limit, __entry->value)
);

#endif /* _HETMEM_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
