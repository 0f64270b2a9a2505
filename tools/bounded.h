/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Calls that may never return. A process can keep its own mmap_lock for as long as it likes,
 * for example in mmap() of a file of a FUSE server that does not answer; until then nobody
 * can read its /proc/PID/maps and pagemap. So another thread reads these files. If the read
 * takes too long, the caller abandons the thread, continues, and can exit.
 */
#ifndef HETMEM_TOOLS_BOUNDED_H
#define HETMEM_TOOLS_BOUNDED_H

#include <stdbool.h>

struct bounded;

/*
 * Calls @fn with @arg in another thread, in which all signals are blocked. End it with
 * bounded_end(). NULL: there is no room for a thread, nothing was called.
 */
struct bounded *bounded_begin(void (*fn)(void *arg), void *arg);
/* A descriptor that poll(2) finds readable when the call has returned. */
int bounded_fd(const struct bounded *b);
/* Waits until @end of now(); true: the call has returned. */
bool bounded_wait(const struct bounded *b, double end);
/*
 * Ends @b. True: the call has returned, and its argument belongs to the caller again. False: the
 * call is abandoned, and owns its argument. Its thread calls @drop with the argument later.
 */
bool bounded_end(struct bounded *b, void (*drop)(void *arg));

#endif
