/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Hints: a process asks another process to move its memory, because a driver moves only
 * memory of its own process. The asking side has a peer, the other side an executor.
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
/* The library starts a thread that carries out hints. */
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
 * Returns the file to wait on with poll(2), POLLIN, before hetmem_executor_run(), and to
 * send to a process that may ask (hetmem_peer_adopt()). The executor owns the file.
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
 * @refused: hints refused by @accept
 * @failed: hints answered with an error, refused ones included
 * @withdrawn: hints whose asking process no longer waits
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
 * Opens the process @pid through a copy of its file of the module, which needs
 * the rights of ptrace(2) on it. Errors:
 * -ESRCH: no such process;
 * -ENXIO: the process has no such file;
 * -EPERM: no right to the process;
 * -EOPNOTSUPP: no module here.
 */
int hetmem_peer_open(pid_t pid, struct hetmem_peer **peer);

/*
 * Opens the process that sent @fd, its hetmem_executor_fd(). After success the peer owns
 * @fd. Errors:
 * -EINVAL: @fd is no such file.
 */
int hetmem_peer_adopt(int fd, struct hetmem_peer **peer);
void hetmem_peer_close(struct hetmem_peer *peer);

/**
 * struct hetmem_hinted - the result of a hint
 * @size: in: sizeof(struct hetmem_hinted)
 * @answered: 1: the executor answered; an error is the executor's. 0: it did not answer
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
 * names another driver's device; the index of @location is ignored then. NULL:
 * @location alone names the device. Pages that cannot move, or were never touched, are
 * no error: @hinted (may be NULL) has the number of pages that moved. Errors of the
 * kernel:
 * -EPERM: the process does not allow it;
 * -ENXIO: the process has no executor for @location, or exited;
 * -ENOTUNIQ: @location is several devices: give @uuid;
 * -EAGAIN: too many hints are waiting;
 * -EDQUOT: the administrator's limit for that device;
 * -EOWNERDEAD: the process exited while the hint was under way;
 * -ETIMEDOUT, -EINTR, -EINVAL.
 * Errors of the executor:
 * -EOPNOTSUPP: this memory cannot move there;
 * those of hetmem_prefetch(), and of its @accept.
 */
int hetmem_hint(struct hetmem_peer *peer, uint64_t start, uint64_t size,
		uint32_t location, const unsigned char *uuid,
		unsigned int timeout_ms, struct hetmem_hinted *hinted);

/*
 * Lists contexts of the module: those of the caller's user; with CAP_SYS_PTRACE, all.
 * Fills @entries (room for @nr) and returns the number of contexts, which can be more
 * than @nr. Errors:
 * -EOPNOTSUPP: no module.
 */
ssize_t hetmem_list(struct hetmem *hm, struct hetmem_list_entry *entries,
		    size_t nr);

/*
 * The agent: one thread that watches memory of hetmem_system_alloc() and of system() in a
 * spec. If CPU and device use a block in turns, the agent holds it on the host for a
 * while, by its policy. It also carries out hints of other processes. It needs the
 * module. It runs only if the program, its environment or a spec starts it.
 */
enum hetmem_agent_policy {
	HETMEM_AGENT_OFF,		/* only counts, and carries out hints */
	HETMEM_AGENT_CONSERVATIVE,	/* holds a block, at first for a short time */
	HETMEM_AGENT_AGGRESSIVE,	/* holds a block and its neighbours, for longer */
};

/* Do not carry out hints. */
#define HETMEM_AGENT_NO_HINTS	(1U << 0)
/* A holder of this process's file may ask without CAP_SYS_NICE. */
#define HETMEM_AGENT_ALLOW	(1U << 1)
/* Writes a line for each decision on stderr, if @log is NULL. */
#define HETMEM_AGENT_LOG	(1U << 2)

/**
 * struct hetmem_agent_params - how the agent works
 * @size: sizeof(struct hetmem_agent_params)
 * @policy: enum hetmem_agent_policy
 * @flags: HETMEM_AGENT_*
 * @log: called on the agent's thread for each decision, with its reason: one line
 *	without a newline. It must not call hetmem_agent_*(). NULL: none.
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
 * "aggressive", with ",log" appended for a log. A set-user-ID program ignores it.
 * Errors:
 * -EINVAL: a short struct, an unknown policy or flag;
 * -EOPNOTSUPP: no module;
 * -EBUSY: the agent runs;
 * -EDQUOT: a limit of the administrator;
 * -EOWNERDEAD: a forked child, which has no agent;
 * -ENOMEM, -EAGAIN: no memory, no thread.
 */
int hetmem_agent_start(struct hetmem *hm,
		       const struct hetmem_agent_params *params);

/*
 * Stops the agent and waits for its thread. Releases the blocks that it holds and takes
 * its advice back. hetmem_close() does the same. Both wait up to 2 s for the thread if the
 * program closed its descriptors. Errors:
 * -ENOENT: the agent does not run;
 * -EOWNERDEAD: a forked child.
 */
int hetmem_agent_stop(struct hetmem *hm);

/**
 * struct hetmem_agent_stats - counters of the agent
 * @size: in: sizeof(struct hetmem_agent_stats)
 * @running: 1: the agent runs
 * @wakeups: of its thread
 * @thrash: events of blocks that go back and forth
 * @dropped: events lost because the agent did not keep up
 * @pins: blocks pinned on the host
 * @pinned: pages pinned
 * @pulled: pages that came back from a device to be pinned
 * @advised: blocks for which the driver was given a preferred location and accessed-by
 * @released: pinned or advised blocks whose time is over, or that stop released
 * @left: events that start no hold: the policy is off, or the block is held already
 * @failed: blocks that could not be held
 * @hints: hints carried out for other processes
 *
 * Each event of @thrash leads to one of @pins, @advised, @left and @failed. Both
 * @pins and @advised can count it. A block that is held again counts again.
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
 * Reports the counters since the last start; they stay after a stop. Errors:
 * -EINVAL: a short struct;
 * -ENOENT: the agent was never started;
 * -EOWNERDEAD: a forked child.
 */
int hetmem_agent_stats(struct hetmem *hm, struct hetmem_agent_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_HINT_H */
