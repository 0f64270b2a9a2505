/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints. They are for people who debug: fields may change with any
 * version. Addresses are of the address space of the process in opener;
 * locations are as in the uapi header, kind in the upper half, index in the
 * lower one. Documentation/tracing.md shows how to use them.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hetmem

#if !defined(_HETMEM_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _HETMEM_TRACE_H

#include <linux/tracepoint.h>

#include "hetmem.h"

/* An MMU notification for an address space that has contexts. */
TRACE_EVENT(hetmem_notify,
	    TP_PROTO(pid_t opener, u32 change, unsigned long start, unsigned long end),
	    TP_ARGS(opener, change, start, end),
	    TP_STRUCT__entry(__field(pid_t, opener) __field(u32, change)
				     __field(unsigned long, start) __field(unsigned long, end)),
	    TP_fast_assign(__entry->opener = opener; __entry->change = change;
			   __entry->start = start; __entry->end = end;),
	    TP_printk("opener=%d change=%s range=%#lx-%#lx", __entry->opener,
		      __print_symbolic(__entry->change, { HETMEM_CHANGE_OTHER, "other" },
				       { HETMEM_CHANGE_UNMAP, "unmap" },
				       { HETMEM_CHANGE_REPLACE, "replace" },
				       { HETMEM_CHANGE_PROTECT, "protect" },
				       { HETMEM_CHANGE_MIGRATE, "migrate" },
				       { HETMEM_CHANGE_EXCLUSIVE, "exclusive" },
				       { HETMEM_CHANGE_EXIT, "exit" }),
		      __entry->start, __entry->end));

/* An event of a range. nr: pages, bounces, or a hint's id. */
DECLARE_EVENT_CLASS(hetmem_range_event,
		    TP_PROTO(const struct hetmem_context *ctx, u64 start, u64 end, u32 location,
			     u64 nr, int result),
		    TP_ARGS(ctx, start, end, location, nr, result),
		    TP_STRUCT__entry(__field(pid_t, opener) __field(u64, start) __field(u64, end)
					     __field(u32, location) __field(u64, nr)
						     __field(int, result)),
		    TP_fast_assign(__entry->opener = pid_nr(ctx->opener); __entry->start = start;
				   __entry->end = end; __entry->location = location;
				   __entry->nr = nr; __entry->result = result;),
		    TP_printk("opener=%d range=%#llx-%#llx location=%#x nr=%llu result=%d",
			      __entry->opener, __entry->start, __entry->end, __entry->location,
			      __entry->nr, __entry->result));

#define HETMEM_RANGE_EVENT(name)					\
DEFINE_EVENT(hetmem_range_event, name,					\
	TP_PROTO(const struct hetmem_context *ctx, u64 start, u64 end,	\
		 u32 location, u64 nr, int result),			\
	TP_ARGS(ctx, start, end, location, nr, result))

HETMEM_RANGE_EVENT(hetmem_track);
HETMEM_RANGE_EVENT(hetmem_untrack);
HETMEM_RANGE_EVENT(hetmem_thrash);
HETMEM_RANGE_EVENT(hetmem_hint);
HETMEM_RANGE_EVENT(hetmem_complete);
HETMEM_RANGE_EVENT(hetmem_migrate_begin);

/* A MIGRATE has ended. */
TRACE_EVENT(hetmem_migrate_end,
	TP_PROTO(const struct hetmem_context *ctx,
		 const struct hetmem_cmd_migrate *cmd, int result),
	TP_ARGS(ctx, cmd, result),
	TP_STRUCT__entry(__field(pid_t, opener) __field_struct(struct hetmem_cmd_migrate, cmd)
				 __field(int, result)),
	TP_fast_assign(__entry->opener = pid_nr(ctx->opener); __entry->cmd = *cmd;
		       __entry->result = result;),
	TP_printk(
		"opener=%d range=%#llx-%#llx moved=%llu already=%llu not_moved=%llu why=%#x result=%d",
		__entry->opener, __entry->cmd.start, __entry->cmd.walk_end, __entry->cmd.moved,
		__entry->cmd.already, __entry->cmd.not_moved, __entry->cmd.why, __entry->result));

/* A cap or a limit kept somebody from something: its name. */
TRACE_EVENT(hetmem_limit_hit, TP_PROTO(const char *limit, u64 value), TP_ARGS(limit, value),
	    TP_STRUCT__entry(__array(char, limit, 24) __field(u64, value)),
	    TP_fast_assign(strscpy(__entry->limit, limit, sizeof(__entry->limit));
			   __entry->value = value;),
	    TP_printk("limit=%s value=%llu", __entry->limit, __entry->value));

#endif /* _HETMEM_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
