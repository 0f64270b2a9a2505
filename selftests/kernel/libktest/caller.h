/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The kinds of caller that permissions tell apart, and how a process becomes
 * one of them.
 */
#ifndef LIBKTEST_CALLER_H
#define LIBKTEST_CALLER_H

#define OWNER_UID	1000
#define OTHER_UID	1001

/* The owner first; the others are in another address space. */
enum caller {
	OWNER, ROOT, ONLY_PTRACE, ONLY_NICE, SAME_USER, OTHER_USER,
	USERNS_ROOT, NR_CALLERS
};

extern const char *const callers[NR_CALLERS];

/* In a child that is root so far, for good. */
int become(enum caller who);

/* Where users may have no namespaces there is nothing to try. */
void become_or_exit(enum caller who);

#endif
