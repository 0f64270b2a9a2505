/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Hints: a process asks another process to move that process's memory, because a driver
 * moves only memory of its own process. The asking process opens a peer. The other process
 * opens an executor.
 *
 * Locations are the module's on both sides, as `hetmem map PID` shows them:
 * HETMEM_DEVICE with the id in the module, HETMEM_FOREIGN with the index of
 * another driver's device, or HETMEM_HOST.
 */
#ifndef HETMEM_HINT_H
#define HETMEM_HINT_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hetmem_executor;

/* A holder of this process's file may ask without CAP_SYS_NICE. */
#define HETMEM_EXECUTOR_ALLOW	(1U << 0)
/* Start a thread of the library that carries out hints. */
#define HETMEM_EXECUTOR_THREAD	(1U << 1)

/**
 * struct hetmem_executor_params - how to carry out hints
 * @size: sizeof(struct hetmem_executor_params)
 * @flags: HETMEM_EXECUTOR_*
 * @accept: called before a hint is carried out, with a location for
 *	hetmem_prefetch(). Returns 0, or a negative errno for the asking
 *	process. It must not call hetmem_executor_*(). NULL: accept all.
 * @arg: passed to @accept
 */
struct hetmem_executor_params {
	size_t size;
	unsigned int flags;
	int (*accept)(void *arg, const void *ptr, size_t size,
		      uint32_t location);
	void *arg;
};

/*
 * Makes this process able to receive hints, and binds its devices. If the module
 * cannot identify a device, a scratch page is moved to it. A process has one executor for
 * a device. @params may be NULL. Errors:
 * -EOPNOTSUPP: no module;
 * -ENODEV: no device that memory can move to;
 * -EBUSY: a device has an executor;
 * -EDQUOT: a limit of the administrator;
 * -ENOMEM, -EIO.
 */
int hetmem_executor_open(struct hetmem *hm,
			 const struct hetmem_executor_params *params,
			 struct hetmem_executor **executor);

/*
 * Closes @executor; NULL does nothing. Hints under way fail with -EOWNERDEAD. Call it
 * before hetmem_close(). In a forked child it only releases host memory.
 */
void hetmem_executor_close(struct hetmem_executor *executor);

/*
 * Returns a file descriptor. Wait on it with poll(2), POLLIN, before hetmem_executor_run().
 * Send it to a process to let that process ask (hetmem_peer_adopt()). The executor owns it.
 */
int hetmem_executor_fd(struct hetmem_executor *executor);

/*
 * Carries out and answers all waiting hints, in order; overlapping hints take one move.
 * Waits for the moves, but not for further hints. Call it in one thread at a time.
 * Returns the number of hints answered. Errors:
 * -EINVAL: the executor has a thread of its own.
 */
ssize_t hetmem_executor_run(struct hetmem_executor *executor);

/**
 * struct hetmem_executor_stats - counters of an executor
 * @size: in: sizeof(struct hetmem_executor_stats)
 * @hints: hints answered
 * @moves: moves for them; overlapping hints take one
 * @refused: hints that @accept refused
 * @failed: hints answered with an error, refused ones included
 * @withdrawn: hints whose asking process stopped waiting
 * @moved: pages moved, as far as known
 */
struct hetmem_executor_stats {
	size_t size;
	uint64_t hints;
	uint64_t moves;
	uint64_t refused;
	uint64_t failed;
	uint64_t withdrawn;
	uint64_t moved;
};

int hetmem_executor_stats(struct hetmem_executor *executor,
			  struct hetmem_executor_stats *stats);

/* Another process that can be asked. */
struct hetmem_peer;

/*
 * Opens the process @pid through a copy of its descriptor of /dev/hetmem. This needs
 * the rights of ptrace(2) on the process. Errors:
 * -ESRCH: no such process;
 * -ENXIO: the process has no descriptor of /dev/hetmem;
 * -EPERM: the caller lacks these rights;
 * -EOPNOTSUPP: no module here.
 */
int hetmem_peer_open(pid_t pid, struct hetmem_peer **peer);

/*
 * Opens the process that sent @fd, its hetmem_executor_fd(). After success the peer owns
 * @fd. Errors:
 * -EINVAL: @fd is not a descriptor of /dev/hetmem.
 */
int hetmem_peer_adopt(int fd, struct hetmem_peer **peer);
void hetmem_peer_close(struct hetmem_peer *peer);

/**
 * struct hetmem_hinted - the result of a hint
 * @size: in: sizeof(struct hetmem_hinted)
 * @answered: 1: the executor answered, and an error is its own. 0: it did not answer
 * @reserved: 0
 * @moved: pages moved, as far as the executor knows
 */
struct hetmem_hinted {
	size_t size;
	uint32_t answered;
	uint32_t reserved;
	uint64_t moved;
};

/*
 * Asks @peer to move all pages that overlap [@start, @start + @size) of its
 * memory to @location. Waits for the answer, up to @timeout_ms (1 to
 * HETMEM_HINT_TIMEOUT_MAX). @uuid, 16 bytes as cuDeviceGetUuid() returns them,
 * names another driver's device. The index of @location is ignored then. NULL:
 * @location alone names the device. Pages that cannot move, or were never touched, are
 * no error. @hinted (may be NULL) receives the number of pages that moved. Errors of the
 * kernel:
 * -EPERM: the process does not allow it;
 * -ENXIO: the process has no executor for @location, or exited;
 * -ENOTUNIQ: @location is bound to several devices: pass @uuid;
 * -EAGAIN: too many hints are waiting;
 * -EDQUOT: the hint exceeds the administrator's limit for that device;
 * -EOWNERDEAD: the process exited while the hint was under way;
 * -ETIMEDOUT, -EINTR, -EINVAL.
 * Errors of the executor:
 * -EOPNOTSUPP: this memory cannot move to @location;
 * those of hetmem_prefetch(), and those that @accept returns.
 */
int hetmem_hint(struct hetmem_peer *peer, uint64_t start, uint64_t size,
		uint32_t location, const unsigned char *uuid,
		unsigned int timeout_ms, struct hetmem_hinted *hinted);

/*
 * Lists the module's contexts that the caller's user opened. With CAP_SYS_PTRACE, lists
 * all contexts. Fills @entries (room for @nr). Returns the number of contexts, which can
 * be more than @nr. Errors:
 * -EOPNOTSUPP: no module.
 */
ssize_t hetmem_list(struct hetmem *hm, struct hetmem_list_entry *entries,
		    size_t nr);

/* The device of hetmem_reclaim(): all devices, and the host. */
#define HETMEM_RECLAIM_ALL	(-2)

/**
 * struct hetmem_reclaimed - what processes gave back
 * @size: sizeof(struct hetmem_reclaimed)
 * @bytes: that they gave back
 * @asked: number of processes that were asked
 * @silent: of these, those that did not answer in time
 * @pid: the process; 0: a sum
 */
struct hetmem_reclaimed {
	size_t size;
	uint64_t bytes;
	unsigned int asked;
	unsigned int silent;
	int pid;
	unsigned int reserved;
};

/**
 * struct hetmem_reclaim - a request for memory that other processes do not use
 * @size: sizeof(struct hetmem_reclaim)
 * @device: ordinal of the device, -1: the host, HETMEM_RECLAIM_ALL
 * @timeout_ms: most time for the call, 0: 3 s; at most 600,000
 * @bytes: that are wanted; 0: all
 * @each: called for each process that was asked, on the calling thread. May be NULL
 * @arg: passed to @each
 */
struct hetmem_reclaim {
	size_t size;
	int device;
	unsigned int timeout_ms;
	uint64_t bytes;
	void (*each)(void *arg, const struct hetmem_reclaimed *process);
	void *arg;
};

/*
 * Asks other processes of the calling user to give back free memory of their pools. Pools with
 * the most free memory are asked first. A process answers at its next call of the pool that a
 * stream's cache does not serve, at the latest after 1,024 cached allocations of a stream; or its
 * agent does, within 2 s. It gives back free memory that no earlier work uses, down to min= of
 * the pool, and for one request at most give=. It does not wait. A request that nobody answered
 * in time is withdrawn. *@reclaimed (may be NULL) receives the sum. Less than @bytes is no error.
 * @hm may be NULL unless @device is an ordinal. Devices are compared by UUID. Processes with
 * HETMEM_PUBLISH=0, and those of other users, are not asked. Any thread may call it. Errors:
 * -EINVAL: a short struct, no such @device, @timeout_ms;
 * -ENODEV: there is no such device;
 * -ENOMEM: host memory;
 * -EOWNERDEAD: @hm in a forked child;
 * -EACCES: /proc.
 */
int hetmem_reclaim(struct hetmem *hm, const struct hetmem_reclaim *params,
		   struct hetmem_reclaimed *reclaimed);

/*
 * The agent: one thread that watches memory of hetmem_system_alloc() and of system() in a
 * spec. If CPU and device use a block in turns, the agent holds it on the host for a
 * while. The policy sets how long. The agent also carries out hints of other processes, and
 * answers hetmem_reclaim(). It needs the module, except with HETMEM_AGENT_OFF: without the
 * module it only answers. It runs only if the program, its environment or a spec starts it.
 */
enum hetmem_agent_policy {
	HETMEM_AGENT_OFF,		/* only counts, and does what others ask for */
	HETMEM_AGENT_CONSERVATIVE,	/* holds a block, at first for a short time */
	HETMEM_AGENT_AGGRESSIVE,	/* holds a block and its neighbours, for longer */
};

/* Do not carry out hints. */
#define HETMEM_AGENT_NO_HINTS	(1U << 0)
/* A holder of this process's file may ask without CAP_SYS_NICE. */
#define HETMEM_AGENT_ALLOW	(1U << 1)
/* Write a line for each decision to stderr, if @log is NULL. */
#define HETMEM_AGENT_LOG	(1U << 2)

/**
 * struct hetmem_agent_params - how the agent works
 * @size: sizeof(struct hetmem_agent_params)
 * @policy: enum hetmem_agent_policy
 * @flags: HETMEM_AGENT_*
 * @log: called on the agent's thread for each decision. @line is the decision and its
 *	reason, without a newline. @log must not call hetmem_agent_*(). NULL: no log.
 * @arg: passed to @log
 */
struct hetmem_agent_params {
	size_t size;
	int policy;
	unsigned int flags;
	void (*log)(void *arg, const char *line);
	void *arg;
};

/*
 * Starts the agent of @hm. @params NULL: conservative, without a log. If the program
 * has an executor, or no device, the agent carries out no hints. hetmem_open() starts the
 * agent if HETMEM_AGENT is set in the environment: "off", "conservative" or
 * "aggressive". Append ",log" for a log. A set-user-ID program ignores HETMEM_AGENT.
 * Errors:
 * -EINVAL: a short struct, an unknown policy or flag;
 * -EOPNOTSUPP: no module, and the policy is not HETMEM_AGENT_OFF;
 * -EBUSY: the agent runs;
 * -EDQUOT: a limit of the administrator;
 * -EOWNERDEAD: a forked child, which has no agent;
 * -ENOMEM, -EAGAIN: no memory, no thread.
 */
int hetmem_agent_start(struct hetmem *hm,
		       const struct hetmem_agent_params *params);

/*
 * Stops the agent and waits for its thread. Releases the blocks that the agent holds and
 * undoes its advice. hetmem_close() does the same. If the program closed the thread's
 * descriptors, both wait up to 2 s for the thread. Errors:
 * -ENOENT: the agent does not run;
 * -EOWNERDEAD: a forked child.
 */
int hetmem_agent_stop(struct hetmem *hm);

/**
 * struct hetmem_agent_stats - counters of the agent
 * @size: in: sizeof(struct hetmem_agent_stats)
 * @running: 1: the agent runs
 * @wakeups: wakeups of the agent's thread
 * @thrash: events of blocks that go back and forth
 * @dropped: events lost because the agent was too slow
 * @pins: blocks pinned on the host
 * @pinned: pages pinned
 * @pulled: pages that came back from a device to be pinned
 * @advised: blocks that were advised: a preferred location, and accessed-by
 * @released: pinned or advised blocks that were released: their time expired, or
 *	the agent stopped
 * @left: events that start no hold: the policy is off, or the block is already held
 * @failed: blocks that could not be held
 * @hints: hints carried out for other processes
 *
 * Each event of @thrash counts in @pins, @advised, @left or @failed. It can count in
 * both @pins and @advised. A block that is held again counts again.
 */
struct hetmem_agent_stats {
	size_t size;
	uint64_t running;
	uint64_t wakeups;
	uint64_t thrash;
	uint64_t dropped;
	uint64_t pins;
	uint64_t pinned;
	uint64_t pulled;
	uint64_t advised;
	uint64_t released;
	uint64_t left;
	uint64_t failed;
	uint64_t hints;
};

/*
 * Reports the counters since the last start. A stop keeps the counters. Errors:
 * -EINVAL: a short struct;
 * -ENOENT: the agent was never started;
 * -EOWNERDEAD: a forked child.
 */
int hetmem_agent_stats(struct hetmem *hm, struct hetmem_agent_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_HINT_H */
