/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Hints: a process asks another one to move its memory, which only that one
 * can have its driver do. The asking side has a peer, the other an executor.
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
 * Makes this process able to receive hints, and binds its devices. Where the
 * module cannot know which device is which, a scratch page is moved to each.
 * A process has one executor for a device. @params may be NULL. Errors:
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
 * Hints under way fail with -EOWNERDEAD. Call it before hetmem_close(). NULL
 * does nothing. In a forked child it only releases host memory.
 */
void hetmem_executor_close(struct hetmem_executor *executor);

/*
 * The file to wait on with poll(2), POLLIN, before hetmem_executor_run(), and
 * to send to a process that may ask (hetmem_peer_adopt()). It stays the
 * executor's.
 */
int hetmem_executor_fd(struct hetmem_executor *executor);

/*
 * Carries out and answers all waiting hints, in order; overlapping ones at
 * once. Does not wait for further hints; waits for the memory that it moves. One thread
 * at a time. Returns the number of hints answered. Errors:
 * -EINVAL: the executor has a thread of its own.
 */
ssize_t hetmem_executor_run(struct hetmem_executor *executor);

/**
 * struct hetmem_executor_stats - what an executor did
 * @size: in: sizeof(struct hetmem_executor_stats)
 * @hints: answered
 * @moves: made for them: overlapping hints are moved once
 * @refused: hints refused by @accept
 * @failed: hints answered with an error, refused ones included
 * @withdrawn: hints whose asking process waits no more
 * @moved: pages, as far as known
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
 * -ENXIO: it has no such file;
 * -EPERM: no right to it;
 * -EOPNOTSUPP: no module here.
 */
int hetmem_peer_open(pid_t pid, struct hetmem_peer **peer);

/*
 * Opens the process that sent @fd, its hetmem_executor_fd(). @fd belongs to
 * the peer from then on. Errors: -EINVAL: it is no such file.
 */
int hetmem_peer_adopt(int fd, struct hetmem_peer **peer);
void hetmem_peer_close(struct hetmem_peer *peer);

/**
 * struct hetmem_hinted - the result of a hint
 * @size: in: sizeof(struct hetmem_hinted)
 * @answered: 1: the executor answered, and an error is its own; 0: it did not
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
 * names another driver's device whatever the index of @location; NULL: by
 * @location alone. Pages that cannot move, or were never touched, are
 * no error: @hinted (may be NULL) has the number that moved. Errors of the
 * kernel:
 * -EPERM: the process does not allow it;
 * -ENXIO: it has no executor for @location, or exited;
 * -ENOTUNIQ: @location is several devices: give @uuid;
 * -EAGAIN: too many hints are waiting;
 * -EDQUOT: the administrator's limit for that device;
 * -EOWNERDEAD: it exited while the hint was under way;
 * -ETIMEDOUT, -EINTR, -EINVAL.
 * Errors of the executor:
 * -EOPNOTSUPP: this memory cannot move there;
 * those of hetmem_prefetch(), and of its @accept.
 */
int hetmem_hint(struct hetmem_peer *peer, uint64_t start, uint64_t size,
		uint32_t location, const unsigned char *uuid,
		unsigned int timeout_ms, struct hetmem_hinted *hinted);

/*
 * Lists contexts of the module: those of the caller's user; with
 * CAP_SYS_PTRACE, all. Fills @entries (room for @nr) and returns how many
 * there are, which can be more. Errors: -EOPNOTSUPP: no module.
 */
ssize_t hetmem_list(struct hetmem *hm, struct hetmem_list_entry *entries,
		    size_t nr);

/*
 * The agent: one thread that watches system memory of hetmem_system_alloc(), and so of
 * system() in a spec. Where CPU and device fight over a block, it acts by its policy; it carries
 * out hints of other processes, too. It needs the module. A program that does not start
 * it has none.
 */
enum hetmem_agent_policy {
	HETMEM_AGENT_OFF,		/* only counts, and carries out hints */
	HETMEM_AGENT_CONSERVATIVE,	/* holds a block for a short time first */
	HETMEM_AGENT_AGGRESSIVE,	/* longer, and its neighbours */
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
 * has an executor, or no device, the agent carries out no hints.
 * HETMEM_AGENT of the environment ("off", "conservative", "aggressive", ",log" behind it
 * for the log) has hetmem_open() start it; ignored in a set-user-ID program.
 * Errors:
 * -EINVAL: a short struct, an unknown policy or flag;
 * -EOPNOTSUPP: no module;
 * -EBUSY: it runs;
 * -EDQUOT: a limit of the administrator;
 * -EOWNERDEAD: a forked child, which has no agent;
 * -ENOMEM, -EAGAIN: no memory, no thread.
 */
int hetmem_agent_start(struct hetmem *hm,
		       const struct hetmem_agent_params *params);

/*
 * Stops it and waits for its thread. What it held is let go, what it advised is taken
 * back. hetmem_close() does the same. Errors:
 * -ENOENT: it does not run;
 * -EOWNERDEAD: a forked child.
 */
int hetmem_agent_stop(struct hetmem *hm);

/**
 * struct hetmem_agent_stats - what the agent saw and did
 * @size: in: sizeof(struct hetmem_agent_stats)
 * @running: 1: it runs
 * @wakeups: of its thread
 * @thrash: events of blocks that go back and forth
 * @dropped: events lost, because it did not keep up
 * @pins: blocks held on the host for a while
 * @pinned: pages held
 * @pulled: pages that came back from a device for that
 * @advised: blocks for which the driver was given a preferred location and accessed-by
 * @released: blocks that were let go when their time was over
 * @left: decisions to do nothing: the policy is off, or the block is held already
 * @failed: actions that failed
 * @hints: carried out for other processes
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
 * Counters since the last start; they stay after a stop. Errors:
 * -EINVAL: a short struct;
 * -ENOENT: it was never started;
 * -EOWNERDEAD: a forked child.
 */
int hetmem_agent_stats(struct hetmem *hm, struct hetmem_agent_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_HINT_H */
