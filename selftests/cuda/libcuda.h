/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the libcuda.so.1 of these tests notes about its calls. */
#ifndef HETMEM_SELFTESTS_LIBCUDA_H
#define HETMEM_SELFTESTS_LIBCUDA_H

#include <stdbool.h>

#include "driver/cuda_types.h"

/* The last call that the thread made. */
struct fake_call {
	const char *name;
	long args[8];
};

struct fake_call fake_last(void);

/* Plays a kernel of @ns nanoseconds that writes @size bytes at @ptr. */
CUresult fake_launch(CUstream stream, unsigned long long ptr, size_t size, unsigned long ns);

/* Whether a function notes its call and does nothing else. */
bool fake_is_noted(const char *name);

/* The result of the function with that index, if the soft driver has none. */
#define FAKE_RESULT(i)	((CUresult)(10000 + (i)))
/* The result of a function that is in no list. */
#define FAKE_FUTURE	((CUresult)9999)

#endif /* HETMEM_SELFTESTS_LIBCUDA_H */
