/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Reading the module's tracepoints through plain tracefs. */
#ifndef LIBKTEST_TRACE_H
#define LIBKTEST_TRACE_H

#include "libktest/base.h"

#define TRACEFS		"/sys/kernel/tracing/"

/* tracefs is there, mounted by us if need be; a kernel may be without. */
bool trace_possible(void);

/* Starts anew: all events of hetmem and no others. */
int trace_start(void);
void trace_stop(void);

/* How many lines have " @event: " and @text behind it. */
int trace_count(const char *event, const char *text);
void trace_print(void);

/* One line, built as the test expects it, is there @nr times. */
#define EXPECT_TRACED(nr, event, ...)					\
	do {								\
		char text_[512];					\
									\
		snprintf(text_, sizeof(text_), __VA_ARGS__);		\
		EXPECT_EQ(nr, trace_count(event, text_)) {		\
			TH_LOG("%s: %s", event, text_);			\
			trace_print();					\
		}							\
	} while (0)

#endif
