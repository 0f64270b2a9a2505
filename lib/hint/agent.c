// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The agent: a thread that waits for events of thrash, and for hints.
 *
 * It has its own context of the module, hm->watching, in which provider/system.c tracks
 * all system memory a second time: a context has one ring, and closing the context ends
 * all pins. Hints come through an executor, which has its own context, too.
 *
 * When a block thrashes, the agent holds it on the host for a while, and devices use it
 * there: by a pin of the module, or by advice (preferred location, accessed-by) to a
 * driver that is not registered with the module. A hold is longer than the 150 ms for
 * which UVM pins by itself. After the hold the block is free to move. If it thrashes
 * again soon, the next hold is twice as long, up to a bound. A block that cannot be held
 * is left alone for as long as it would have been held.
 *
 * The thread answers requests of other processes to pools (core/asked.h). Without the module and
 * with the policy off it does nothing else.
 *
 * The thread also has the module look again at what moved, once a second at most. Limits
 * of other drivers' devices (foreign/ in sysfs) go by what the module has seen.
 *
 * Only the thread uses the ring and the table of blocks. Start, stop and stats hold
 * hm->making; the thread never takes it. Counters are atomic. The thread ends early if
 * the module does not answer, or the program closes its descriptors or ends it: the agent
 * reports that once, and the library continues without it.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/asked.h"
#include "hint/agent.h"
#include "hint/executor.h"
#include "provider/arenas.h"

/* Events that fit the ring; fewer if the administrator allows fewer. */
#define ENTRIES		256
_Static_assert(ENTRIES <= HETMEM_RING_MAX, "the module takes such a ring");

#define PIN_TRIES	4

#define NS_PER_MS	1000000ULL

/* From one refresh() to the next, and how long one may take. */
#define REFRESH_MS	1000
#define REFRESH_MAX_MS	50
/* From one look for requests to the next, without the module. */
#define ANSWER_MS	500

static const uint32_t any_host = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);

static const struct hm_policy policies[] = {
	[HETMEM_AGENT_OFF] = { "off", 0, 0, 0, 0 },
	[HETMEM_AGENT_CONSERVATIVE] = { "conservative", 300, 4800, 4, 0 },
	[HETMEM_AGENT_AGGRESSIVE] = { "aggressive", 1200, 19200, 8, 1 },
};

#define NR_POLICIES	(int)(sizeof(policies) / sizeof(policies[0]))

static void count(uint64_t *counter, uint64_t n)
{
	__atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

static bool logs(const struct hm_agent *a)
{
	return a->log || a->flags & HETMEM_AGENT_LOG;
}

/* Logs a decision about a block, with its reason. */
__attribute__((format(printf, 4, 5)))
static void decided(struct hm_agent *a, uintptr_t start, uintptr_t end,
		    const char *fmt, ...)
{
	char line[256];
	va_list args;
	int n;

	if (!logs(a))
		return;
	n = snprintf(line, sizeof(line), "%#lx-%#lx: ", (long)start, (long)end);
	va_start(args, fmt);
	vsnprintf(line + n, sizeof(line) - n, fmt, args);
	va_end(args);
	if (a->log)
		a->log(a->arg, line);
	else
		fprintf(stderr, "hetmem: agent: %s\n", line);
}

/* Reports the end of the thread, once. */
static void say_ended(struct hm_agent *a, const char *why)
{
	if (!__atomic_exchange_n(&a->told, true, __ATOMIC_ACQ_REL))
		fprintf(stderr, "hetmem: agent: its thread ended: %s; memory is no longer watched\n",
			why);
}

static bool advise_once(const struct hetmem *hm, const struct hm_block *b,
			CUmem_advise advice, uint32_t location)
{
	return !hm_driver_advise(hm, b->from, b->to - b->from, advice, location);
}

/* In the device's context. */
static bool unadvise_device(const struct hetmem *hm, const struct hm_block *b, int device)
{
	const bool done = advise_once(hm, b, CU_MEM_ADVISE_UNSET_ACCESSED_BY,
				      HETMEM_LOC(HETMEM_DEVICE, device));

	return advise_once(hm, b, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, any_host) && done;
}

/* In the device's context. All of the advice, or none. */
static bool advise_device(const struct hetmem *hm, const struct hm_block *b, int device)
{
	if (!advise_once(hm, b, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, any_host))
		return false;
	if (advise_once(hm, b, CU_MEM_ADVISE_SET_ACCESSED_BY,
			HETMEM_LOC(HETMEM_DEVICE, device)))
		return true;
	/* Nobody would take it back: the block would stay on the host for ever. */
	advise_once(hm, b, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, any_host);
	return false;
}

/*
 * @set: advises the drivers of all unregistered devices to use @b on the host. Otherwise
 * takes that back. False: there is no such device, or its driver refused.
 */
static bool advise(struct hm_agent *a, const struct hm_block *b, bool set)
{
	struct hetmem *hm = a->hm;
	struct hm_context saved;
	bool done = false;
	int i;

	for (i = 0; i < hm->nr_devices; i++) {
		if (hm->devices[i].module_id >= 0 ||
		    !hm->devices[i].platform.moves ||
		    hm_context_enter(hm, i, &saved))
			continue;
		done = (set ? advise_device(hm, b, i) : unadvise_device(hm, b, i)) || done;
		hm_context_leave(hm, &saved);
	}
	return done;
}

/*
 * Whether the program, or a placement class, gave advice about the block: the agent's would
 * replace it.
 */
static bool is_advised(const struct hm_agent *a, const struct hm_block *b)
{
	struct hetmem_advised range;
	uintptr_t next;

	return hm_arenas_advised(a->hm, b->from, b->to) ||
	       hetmem_advised(a->hm, (void *)b->from, b->to - b->from, &range, 1, &next) != 0;
}

/* Lets the block move. @early: its pin has not ended by itself. */
static void release(struct hm_agent *a, struct hm_block *b, bool early)
{
	if (b->pinned && early)
		hm_kmod_unpin(a->fd, b->from, b->to);
	if (b->advised)
		advise(a, b, false);
	if (b->pinned || b->advised)
		count(&a->stats.released, 1);
	b->pinned = false;
	b->advised = false;
	b->holding = false;
}

static struct hm_block *find_block(struct hm_agent *a, uintptr_t start)
{
	struct hm_block *oldest = NULL;
	int i;

	for (i = 0; i < HM_AGENT_BLOCKS; i++) {
		struct hm_block *b = &a->blocks[i];

		if (b->start == start)
			return b;
		if (!oldest || (oldest->start && (!b->start ||
						  b->until < oldest->until)))
			oldest = b;
	}
	if (oldest->start)
		release(a, oldest, true);
	*oldest = (struct hm_block){ .start = start };
	return oldest;
}

/* Returns the next hold of @b in ms: longer if it thrashes again soon. */
static unsigned int next_hold(const struct hm_policy *policy, const struct hm_block *b,
			      uint64_t now)
{
	if (!b->ms || now > b->until + policy->calm * b->ms * NS_PER_MS)
		return policy->first_ms;
	return 2 * b->ms < policy->most_ms ? 2 * b->ms : policy->most_ms;
}

/*
 * A page that is just moving cannot be pinned: try again. A page that was never touched
 * cannot be pinned either, so the number of tries is bounded.
 */
static int pin(struct hm_agent *a, const struct hm_block *b, unsigned int ms,
	       struct hm_pinned *pinned)
{
	const uint64_t all = (b->to - b->from) / a->hm->page_size;
	uint64_t moved = 0;
	int err, i;

	for (i = 0; i < PIN_TRIES; i++) {
		err = hm_kmod_pin(a->fd, b->from, b->to, ms, pinned);
		moved += pinned->moved;
		if (err || pinned->pages == all)
			break;
	}
	pinned->moved = moved;
	return err;
}

/* Sets the range to hold: the block and its neighbours within one allocation. */
static void find_held(struct hm_agent *a, struct hm_block *b)
{
	const uintptr_t more = a->policy->neighbours * HM_HUGE_SIZE;
	const struct hm_range *r;

	b->from = b->start;
	b->to = b->end;
	pthread_mutex_lock(&a->hm->lock);
	r = hm_range_find(&a->hm->system, b->start, 1);
	if (r && r->end >= b->end) {
		b->from = b->start - r->start > more ? b->start - more : r->start;
		b->to = r->end - b->end > more ? b->end + more : r->end;
	}
	pthread_mutex_unlock(&a->hm->lock);
}

/* Advises an unregistered driver; the module pins for registered ones. */
static void hold(struct hm_agent *a, struct hm_block *b, const struct hetmem_event *event,
		 uint64_t now)
{
	const char *again = b->ms ? "again, " : "";
	struct hm_pinned pinned = { 0 };
	int err = -EOPNOTSUPP;

	b->ms = next_hold(a->policy, b, now);
	b->until = now + b->ms * NS_PER_MS;
	b->holding = true;
	find_held(a, b);
	b->advised = !event->location && !is_advised(a, b) && advise(a, b, true);
	if (!b->advised || a->policy->neighbours)
		err = pin(a, b, b->ms, &pinned);
	b->pinned = pinned.pages;
	count(&a->stats.pulled, pinned.moved);
	count(&a->stats.pinned, pinned.pages);
	if (b->pinned)
		count(&a->stats.pins, 1);
	if (b->advised)
		count(&a->stats.advised, 1);
	if (b->pinned || b->advised) {
		decided(a, b->from, b->to, "%sheld on the host for %u ms%s: it went back and forth %u times; %llu pages came back",
			again, b->ms, b->advised ? ", and its driver advised" : "",
			event->count, (unsigned long long)pinned.moved);
		return;
	}
	count(&a->stats.failed, 1);
	decided(a, b->start, b->end, "%sleft alone for %u ms: it went back and forth %u times, but cannot be held: %s",
		again, b->ms, event->count, err ? strerror(-err) : "no page of it can be pinned");
}

/*
 * A held block thrashes: the event is stale, or some pages of the block are not pinned.
 * Pin these for the rest of the hold.
 */
static void hold_rest(struct hm_agent *a, struct hm_block *b,
		      const struct hetmem_event *event, uint64_t now)
{
	struct hm_pinned pinned = { 0 };

	count(&a->stats.left, 1);
	if (b->pinned && !pin(a, b, (b->until - now) / NS_PER_MS + 1, &pinned) &&
	    pinned.moved) {
		count(&a->stats.pulled, pinned.moved);
		decided(a, b->from, b->to, "held as before: %llu more pages came back",
			(unsigned long long)pinned.moved);
		return;
	}
	decided(a, event->start, event->end, "left: it is held, or was tried, already");
}

static void on_thrash(struct hm_agent *a, const struct hetmem_event *event)
{
	const uint64_t now = hm_now();
	struct hm_block *b;

	count(&a->stats.thrash, 1);
	if (!a->policy->first_ms) {
		count(&a->stats.left, 1);
		decided(a, event->start, event->end, "left: the policy is off; it went back and forth %u times",
			event->count);
		return;
	}
	b = find_block(a, event->start);
	if (b->holding && now < b->until) {
		hold_rest(a, b, event, now);
		return;
	}
	release(a, b, false);
	b->end = event->end;
	hold(a, b, event, now);
}

static void on_events(struct hm_agent *a)
{
	struct hetmem_event event;

	while (!__atomic_load_n(&a->stop, __ATOMIC_ACQUIRE) &&
	       hm_ring_next(&a->ring, &event))
		if (event.type == HETMEM_EVENT_THRASH)
			on_thrash(a, &event);
	__atomic_store_n(&a->stats.dropped, hm_ring_dropped(&a->ring), __ATOMIC_RELAXED);
}

/* Releases blocks whose hold is over. Returns the milliseconds to the next, or -1. */
static int on_time(struct hm_agent *a)
{
	const uint64_t now = hm_now();
	uint64_t next = UINT64_MAX;
	int i;

	for (i = 0; i < HM_AGENT_BLOCKS; i++) {
		struct hm_block *b = &a->blocks[i];

		if (!b->holding)
			continue;
		if (b->until > now) {
			next = b->until < next ? b->until : next;
			continue;
		}
		if (b->pinned || b->advised)
			decided(a, b->from, b->to, "let go after %u ms", b->ms);
		release(a, b, false);
	}
	return next == UINT64_MAX ? -1 : (int)((next - now) / NS_PER_MS + 1);
}

static void refresh(struct hm_agent *a)
{
	const uint64_t now = hm_now();

	if (now - a->refreshed < REFRESH_MS * NS_PER_MS)
		return;
	a->refreshed = now;
	hm_kmod_refresh_all(a->fd, now + REFRESH_MAX_MS * NS_PER_MS);
}

static void on_hints(struct hm_agent *a)
{
	ssize_t n = hetmem_executor_run(a->hints);

	if (n > 0)
		decided(a, 0, 0, "%zd hints carried out: another process asked", n);
}

/* Without the module. False: the thread ends. */
static bool answer_only(struct hm_agent *a, struct pollfd *stop)
{
	stop->revents = 0;
	if (poll(stop, 1, ANSWER_MS) < 0 && errno != EINTR)
		return false;
	if (stop->revents || __atomic_load_n(&a->stop, __ATOMIC_ACQUIRE))
		return false;
	count(&a->stats.wakeups, 1);
	hm_publish_answer();
	return true;
}

static void *run(void *arg)
{
	struct hm_agent *a = arg;
	struct pollfd fds[3] = {
		{ .fd = a->fd, .events = POLLIN },
		{ .fd = a->stop_fd, .events = POLLIN },
		{ .fd = a->hints ? hetmem_executor_fd(a->hints) : -1,
		  .events = POLLIN },
	};
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	while (a->fd >= 0 && hm_ring_wait(&a->ring, fds, 3, &a->stop, on_time(a))) {
		count(&a->stats.wakeups, 1);
		hm_publish_answer();
		on_events(a);
		if (a->hints && hm_ring_lost(&a->hints->ring, &fds[2]))
			fds[2].fd = -1;
		else if (a->hints && fds[2].revents)
			on_hints(a);
		refresh(a);
	}
	while (a->fd < 0 && answer_only(a, &fds[1]))
		;
	if (!__atomic_load_n(&a->stop, __ATOMIC_ACQUIRE))
		say_ended(a, "the module does not answer, or the program closed its descriptor");
	__atomic_store_n(&a->stats.running, 0, __ATOMIC_RELEASE);
	return NULL;
}

/* Signals are the program's: none is delivered to our thread. */
static int start_thread(struct hm_agent *a)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	__atomic_store_n(&a->stats.running, 1, __ATOMIC_RELEASE);
	err = pthread_create(&a->thread, NULL, run, a);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		a->stats.running = 0;
		return hm_error(-err, "agent: a thread: %s", strerror(err));
	}
	a->alive = true;
	pthread_setname_np(a->thread, "hetmem-agent");
	return 0;
}

static void track(struct hm_range *range, void *arg)
{
	hm_kmod_track(arg, range->start, range->end);
}

static int open_stop(struct hm_agent *a)
{
	a->stop_fd = eventfd(0, EFD_CLOEXEC);
	return a->stop_fd < 0 ? hm_error(-errno, "agent: eventfd: %s", strerror(errno)) : 0;
}

/* Opens the context and its ring, and tracks all system memory in it. */
static int open_context(struct hm_agent *a)
{
	struct hetmem *hm = a->hm;
	unsigned int entries = ENTRIES;
	int err;

	a->fd = hm_kmod_context(&hm->kmod);
	if (a->fd < 0)
		return hm_error(a->fd, "agent: a context of the module: %s",
				strerror(-a->fd));
	do {
		err = hm_ring_open(&a->ring, a->fd, entries,
				   1ULL << HETMEM_EVENT_THRASH);
		entries /= 2;
	} while (err == -EDQUOT && entries >= HETMEM_RING_MIN);
	if (err)
		return hm_error(err, "agent: its ring: %s", strerror(-err));
	pthread_mutex_lock(&hm->lock);
	hm->watching = (struct hm_kmod){ .fd = a->fd };
	hm_range_walk(&hm->system, track, &hm->watching);
	pthread_mutex_unlock(&hm->lock);
	return 0;
}

static void open_hints(struct hm_agent *a)
{
	struct hetmem_executor_params params = {
		.size = sizeof(params),
		.flags = a->flags & HETMEM_AGENT_ALLOW ? HETMEM_EXECUTOR_ALLOW : 0,
	};

	if (a->flags & HETMEM_AGENT_NO_HINTS)
		return;
	if (hetmem_executor_open(a->hm, &params, &a->hints)) {
		a->hints = NULL;
		decided(a, 0, 0, "hints are not carried out: %s", hetmem_last_error());
	}
}

/* With hm->making. Reports a thread that the program ended. */
static void check_thread(struct hm_agent *a)
{
	if (!a->alive || pthread_tryjoin_np(a->thread, NULL))
		return;
	a->alive = false;
	__atomic_store_n(&a->stats.running, 0, __ATOMIC_RELEASE);
	say_ended(a, "somebody ended it");
}

/* The executor counts a hint before it answers: an asker can read it at once. */
static void copy_hints(struct hm_agent *a)
{
	struct hetmem_executor_stats stats = { .size = sizeof(stats) };

	if (a->hints && !hetmem_executor_stats(a->hints, &stats))
		a->stats.hints = stats.hints;
}

/* Frees everything of the agent except its counters. */
static void end(struct hm_agent *a)
{
	const uint64_t one = 1;
	struct hetmem *hm = a->hm;
	int i;

	check_thread(a);
	__atomic_store_n(&a->stop, true, __ATOMIC_RELEASE);
	/*
	 * A thread that ended by itself needs none, and the descriptor may be another file's.
	 * Fails with EINTR, if the eventfd is readable already, or if it is closed.
	 */
	while (a->alive && __atomic_load_n(&a->stats.running, __ATOMIC_ACQUIRE) &&
	       write(a->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	if (a->alive)
		pthread_join(a->thread, NULL);
	a->alive = false;
	__atomic_store_n(&a->stats.running, 0, __ATOMIC_RELEASE);
	for (i = 0; i < HM_AGENT_BLOCKS; i++)
		if (a->blocks[i].start)
			release(a, &a->blocks[i], true);
	copy_hints(a);
	hetmem_executor_close(a->hints);
	a->hints = NULL;
	pthread_mutex_lock(&hm->lock);
	hm->watching.fd = -1;
	pthread_mutex_unlock(&hm->lock);
	hm_ring_close(&a->ring);
	if (a->stop_fd >= 0)
		close(a->stop_fd);
	if (a->fd >= 0)
		close(a->fd);
	a->stop_fd = -1;
	a->fd = -1;
}

static int check_params(const struct hetmem *hm,
			const struct hetmem_agent_params *params)
{
	if (!hm)
		return hm_error(-EINVAL, "agent_start: hm is NULL");
	if (params && params->size < sizeof(*params))
		return hm_error(-EINVAL, "agent_start: params->size is %zu, set it to sizeof(struct hetmem_agent_params)",
				params->size);
	if (params && (params->policy < 0 || params->policy >= NR_POLICIES))
		return hm_error(-EINVAL, "agent_start: no policy %d", params->policy);
	if (params && params->flags & ~(HETMEM_AGENT_NO_HINTS | HETMEM_AGENT_ALLOW |
					HETMEM_AGENT_LOG))
		return hm_error(-EINVAL, "agent_start: unknown flags %#x",
				params->flags);
	return 0;
}

/* With hm->making. */
static int start(struct hetmem *hm, const struct hetmem_agent_params *params)
{
	const int policy = params ? params->policy : HETMEM_AGENT_CONSERVATIVE;
	struct hm_agent *a;
	int err;

	if (hm->agent)
		check_thread(hm->agent);
	if (hm->agent && hm->agent->stop_fd >= 0 &&
	    __atomic_load_n(&hm->agent->stats.running, __ATOMIC_ACQUIRE))
		return hm_error(-EBUSY, "agent_start: the agent runs: stop it first");
	a = calloc(1, sizeof(*a));
	if (!a)
		return hm_error(-ENOMEM, "agent: no memory");
	a->hm = hm;
	a->generation = hm_generation();
	a->policy = &policies[policy];
	a->fd = -1;
	a->stop_fd = -1;
	if (params) {
		a->flags = params->flags;
		a->log = params->log;
		a->arg = params->arg;
	}
	if (hm->agent)
		end(hm->agent);
	err = open_stop(a);
	if (!err && hm_kmod_there(&hm->kmod))
		err = open_context(a);
	if (!err && a->fd >= 0)
		open_hints(a);
	if (!err)
		err = start_thread(a);
	if (err) {
		end(a);
		free(a);
		return err;
	}
	free(hm->agent);
	hm->agent = a;
	return 0;
}

int hetmem_agent_start(struct hetmem *hm,
		       const struct hetmem_agent_params *params)
{
	int err = check_params(hm, params);

	if (!err)
		err = hm_check_owner(hm);
	if (err)
		return err;
	if (!hm_kmod_there(&hm->kmod) && (!params || params->policy != HETMEM_AGENT_OFF))
		return hm_error(-EOPNOTSUPP, "agent: %s",
				hm->reasons[HETMEM_FEATURE_MODULE]);
	pthread_mutex_lock(&hm->making);
	err = start(hm, params);
	pthread_mutex_unlock(&hm->making);
	return err;
}

int hetmem_agent_stop(struct hetmem *hm)
{
	int err;

	if (!hm)
		return hm_error(-EINVAL, "agent_stop: hm is NULL");
	err = hm_check_owner(hm);
	if (err)
		return err;
	pthread_mutex_lock(&hm->making);
	if (hm->agent && hm->agent->stop_fd >= 0)
		end(hm->agent);
	else
		err = hm_error(-ENOENT, "agent_stop: the agent does not run");
	pthread_mutex_unlock(&hm->making);
	return err;
}

int hetmem_agent_stats(struct hetmem *hm, struct hetmem_agent_stats *stats)
{
	const uint64_t *from;
	uint64_t *to;
	size_t i, nr;
	int err;

	if (!hm || !stats)
		return hm_error(-EINVAL, "agent_stats: %s is NULL", hm ? "stats" : "hm");
	if (stats->size < sizeof(*stats))
		return hm_error(-EINVAL, "agent_stats: size is %zu, set it to sizeof(struct hetmem_agent_stats)",
				stats->size);
	err = hm_check_owner(hm);
	if (err)
		return err;
	pthread_mutex_lock(&hm->making);
	if (!hm->agent) {
		err = hm_error(-ENOENT, "agent_stats: the agent was never started");
	} else {
		check_thread(hm->agent);
		copy_hints(hm->agent);
		from = &hm->agent->stats.running;
		to = &stats->running;
		nr = &stats->hints - to + 1;
		for (i = 0; i < nr; i++)
			to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
	}
	pthread_mutex_unlock(&hm->making);
	return err;
}

/* Parses "aggressive", "conservative,log", ... False: not valid. */
static bool parse(const char *text, struct hetmem_agent_params *params)
{
	const size_t len = strcspn(text, ",");
	int i;

	if (text[len] && strcmp(text + len, ",log"))
		return false;
	params->flags = text[len] ? HETMEM_AGENT_LOG : 0;
	for (i = 0; i < NR_POLICIES; i++) {
		if (strlen(policies[i].name) != len ||
		    strncmp(policies[i].name, text, len))
			continue;
		params->policy = i;
		return true;
	}
	return false;
}

/* Starts the agent for agent= of a spec. One that runs serves; other errors are printed. */
static void start_for_spec(struct hetmem *hm, int policy)
{
	const struct hetmem_agent_params params = { .size = sizeof(params),
						    .policy = policy };
	int err = hetmem_agent_start(hm, &params);

	if (err && err != -EBUSY)
		fprintf(stderr, "hetmem: agent=%s: %s\n", policies[policy].name,
			hetmem_last_error());
}

int hm_agent_open(struct hetmem *hm)
{
	const char *text = secure_getenv("HETMEM_AGENT");
	struct hetmem_agent_params params = { .size = sizeof(params) };

	hm->start_agent = start_for_spec;
	if (!text || !*text)
		return 0;
	if (!parse(text, &params))
		return hm_error(-EINVAL, "HETMEM_AGENT is \"%s\": use off, conservative or aggressive, and append \",log\" for a log",
				text);
	if (hetmem_agent_start(hm, &params))
		fprintf(stderr, "hetmem: HETMEM_AGENT=%s: %s\n", text,
			hetmem_last_error());
	return 0;
}

void hm_agent_close(struct hetmem *hm)
{
	struct hm_agent *a = hm->agent;

	if (!a)
		return;
	if (a->generation == hm_generation()) {
		end(a);
	} else {
		hetmem_executor_close(a->hints);
		if (a->stop_fd >= 0)
			close(a->stop_fd);
		if (a->fd >= 0)
			close(a->fd);
	}
	free(a);
	hm->agent = NULL;
}
