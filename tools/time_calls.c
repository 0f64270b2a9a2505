/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A clock around calls of the driver table: see time_calls.h. */
#include <time.h>

#include "time_calls.h"

/*
 * Those that change what is mapped, and those that a pool makes to order
 * streams; not cuStreamGetId(), which takes less than the clock.
 */
#define TIMED_CALLS(X)							\
X(cuMemCreate, (CUmemGenericAllocationHandle *a, size_t b,		\
		const CUmemAllocationProp *c, unsigned long long d),	\
  (a, b, c, d))								\
X(cuMemRelease, (CUmemGenericAllocationHandle a), (a))			\
X(cuMemMap, (CUdeviceptr a, size_t b, size_t c,				\
	     CUmemGenericAllocationHandle d, unsigned long long e),	\
  (a, b, c, d, e))							\
X(cuMemUnmap, (CUdeviceptr a, size_t b), (a, b))			\
X(cuMemSetAccess, (CUdeviceptr a, size_t b, const CUmemAccessDesc *c,	\
		   size_t d), (a, b, c, d))				\
X(cuMemAlloc, (CUdeviceptr *a, size_t b), (a, b))			\
X(cuMemFree, (CUdeviceptr a), (a))					\
X(cuEventRecord, (CUevent a, CUstream b), (a, b))			\
X(cuEventQuery, (CUevent a), (a))					\
X(cuEventSynchronize, (CUevent a), (a))					\
X(cuStreamWaitEvent, (CUstream a, CUevent b, unsigned int c), (a, b, c))

enum timed {
#define NUMBER(call, params, args) TIMED_##call,
	TIMED_CALLS(NUMBER)
#undef NUMBER
	NR_TIMED
};

_Static_assert(NR_TIMED <= TIME_CALLS, "callers have room for them");

static const char *const names[] = {
#define NAME(call, params, args) #call,
	TIMED_CALLS(NAME)
#undef NAME
};

static struct hm_driver real;
static uint64_t taken[NR_TIMED];

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

#define WRAP(call, params, args)					\
static CUresult timed_##call params					\
{									\
	uint64_t before = now();					\
	CUresult res = real.call args;					\
									\
	taken[TIMED_##call] += now() - before;				\
	return res;							\
}
TIMED_CALLS(WRAP)
#undef WRAP

void time_calls_begin(struct hetmem *hm)
{
	unsigned int i;

	real = hm->driver;
	for (i = 0; i < NR_TIMED; i++)
		taken[i] = 0;
#define BEGIN(call, params, args)					\
	if (real.call)							\
		hm->driver.call = timed_##call;
	TIMED_CALLS(BEGIN)
#undef BEGIN
}

void time_calls_end(struct hetmem *hm, uint64_t *ns)
{
	unsigned int i;

	for (i = 0; i < NR_TIMED; i++)
		ns[i] = taken[i];
#define END(call, params, args) hm->driver.call = real.call;
	TIMED_CALLS(END)
#undef END
}

unsigned int time_calls_nr(void)
{
	return NR_TIMED;
}

const char *time_calls_name(unsigned int index)
{
	return names[index];
}
