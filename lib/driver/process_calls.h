/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Types of the driver's calls that put another process to sleep; see struct hm_driver. The
 * process is named by its PID, the caller's own included. Its states and what leads there:
 *
 *	RUNNING -> LOCKED	Lock: the process's calls wait, and its work is done
 *	LOCKED -> CHECKPOINTED	Checkpoint: the memory of its devices is in host memory
 *	CHECKPOINTED -> LOCKED	Restore
 *	LOCKED -> RUNNING	Unlock
 *
 * CUDA_ERROR_ILLEGAL_STATE: another state is needed. After any error the state is as before,
 * or FAILED, which has no way out.
 */
#ifndef HETMEM_DRIVER_PROCESS_CALLS_H
#define HETMEM_DRIVER_PROCESS_CALLS_H

#include "driver/cuda_types.h"

/* cuda.h has them from 12.8 on. */
#if !defined(CUDA_VERSION) || CUDA_VERSION < 12080

typedef enum CUprocessState_enum {
	CU_PROCESS_STATE_RUNNING	= 0,
	CU_PROCESS_STATE_LOCKED		= 1,
	CU_PROCESS_STATE_CHECKPOINTED	= 2,
	CU_PROCESS_STATE_FAILED		= 3,
} CUprocessState;

/* @timeoutMs: 0: none. The other members of these are 0. */
typedef struct CUcheckpointLockArgs_st {
	unsigned int timeoutMs;
	unsigned int reserved0;
	cuuint64_t reserved1[7];
} CUcheckpointLockArgs;

/* @reserved: later drivers give it members, which are the same as none if they are 0. */
typedef struct CUcheckpointCheckpointArgs_st {
	cuuint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct CUcheckpointRestoreArgs_st {
	cuuint64_t reserved[8];
} CUcheckpointRestoreArgs;

typedef struct CUcheckpointUnlockArgs_st {
	cuuint64_t reserved[8];
} CUcheckpointUnlockArgs;

#endif

typedef CUresult hm_process_state_fn(int pid, CUprocessState *state);

/* CUDA_ERROR_NOT_READY: the time is over, and the process runs. */
typedef CUresult hm_process_lock_fn(int pid, CUcheckpointLockArgs *args);

/* CUDA_ERROR_NOT_SUPPORTED: it has memory that cannot leave, as of other processes. */
typedef CUresult hm_process_checkpoint_fn(int pid, CUcheckpointCheckpointArgs *args);
typedef CUresult hm_process_restore_fn(int pid, CUcheckpointRestoreArgs *args);
typedef CUresult hm_process_unlock_fn(int pid, CUcheckpointUnlockArgs *args);

#endif /* HETMEM_DRIVER_PROCESS_CALLS_H */
