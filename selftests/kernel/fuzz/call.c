// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The fuzzer's calls: a command that would be right, then made wrong in some
 * places, and what must hold of every answer: an errno that the command
 * documents, and counters that add up.
 */
#include "fuzz.h"

/* Errors that every command shares; fatal signals are not seen. */
static const int errors_all[] = {
	ENOTTY, EINVAL, ERANGE, E2BIG, EFAULT, EPERM, ENOMEM, EINTR,
	/* The file was closed by another thread. */
	EBADF, 0
};

static const int errors_of[CALL_NR][7] = {
	[CMD_TRACK] = { EEXIST, EDQUOT },
	[CMD_UNTRACK] = { ENOENT },
	[CMD_RESIDENCY] = { ENOSPC, ESRCH },
	[CMD_MIGRATE] = { ENODEV, EOPNOTSUPP, EDQUOT },
	[CMD_STATS] = { ENOENT },
	[CMD_RING] = { EEXIST, EDQUOT },
	[CMD_REFRESH] = { ENOENT, ESRCH },
	[CMD_BIND_DEVICE] = { EBUSY, ENXIO, ENOSPC },
	[CMD_HINT] = { ENXIO, ENOTUNIQ, EAGAIN, EDQUOT, ETIMEDOUT, EOWNERDEAD },
	[CMD_COMPLETE] = { ENOENT },
	[CMD_BACKGROUND] = { EBUSY, EAGAIN, ENOENT },
	[CALL_EMU_ACCESS] = { EBUSY },
};

const char *const call_names[CALL_NR] = {
	"INFO", "TRACK", "UNTRACK", "RESIDENCY", "MIGRATE", "UNPIN", "STATS",
	"RING", "REFRESH", "ALLOW", "BIND_DEVICE", "HINT", "COMPLETE", "LIST",
	"MIGRATE_VECTOR", "BACKGROUND",
	"EMU_INFO", "EMU_ACCESS", "EMU_EVICT", "no command",
};

union fuzz_command {
	union any_command hetmem;
	struct command_head head;
	struct hetmem_emu_cmd_info emu_info;
	struct hetmem_emu_cmd_access emu_access;
	struct hetmem_emu_cmd_evict emu_evict;
	uint32_t words[128];
	uint64_t longs[64];
	unsigned char bytes[4096];
};

struct call {
	unsigned int id;
	unsigned long nr;
	int fd;
	size_t size;		/* of the struct as it should be */
	bool mutated;
	union fuzz_command c;
};

static bool errno_documented(unsigned int id, int error)
{
	const int *e;

	for (e = errors_all; *e; e++)
		if (*e == error)
			return true;
	for (e = errors_of[id]; *e; e++)
		if (*e == error)
			return true;
	return false;
}

/* Some memory of the process, or none. */
static void pick_range(struct fuzzer *f, uint64_t *start, uint64_t *end)
{
	struct random *r = &f->r;
	uint64_t pages, first, nr, base;

	switch (pick(r, 16)) {
	case 0:				/* everything */
		*start = one_in(r, 2) ? 0 : FUZZ_BASE;
		*end = one_in(r, 4) ? 0x7ffffffff000 : FUZZ_BASE + 64 * GiB;
		return;
	case 1:				/* code and data of the program */
		base = (uintptr_t)(one_in(r, 3) ? (void *)pick_range :
				   one_in(r, 2) ? (void *)&board : inherited) &
		       ~(page_size() - 1);
		pages = 16;
		break;
	case 2:				/* the stack */
		base = (uintptr_t)start & ~(page_size() - 1);
		pages = 4;
		break;
	case 3:
		base = RING(pick(r, FUZZ_CONTEXTS));
		pages = 16;
		break;
	case 4:
		base = (uintptr_t)f->scratch;
		pages = SCRATCH_SIZE / page_size();
		break;
	case 5:
	case 6:
	case 7:
	case 8:
		base = WILD;
		pages = WILD_SIZE / page_size();
		break;
	case 9:				/* where another thread's may be */
		base = ARENA(pick(r, f->w->threads), pick(r, FUZZ_SLOTS));
		pages = f->arena.pages;
		break;
	default:
		base = (uintptr_t)f->arena.p;
		pages = f->arena.pages;
		break;
	}
	first = one_in(r, 3) ? 0 : pick(r, pages);
	nr = one_in(r, 3) ? pages : 1 + pick(r, 40);
	if (nr > pages - first && !one_in(r, 8))
		nr = pages - first;
	*start = base + first * page_size();
	*end = *start + nr * page_size();
}

static uint32_t pick_location(struct fuzzer *f)
{
	switch (pick(&f->r, 8)) {
	case 0:
	case 1:
		return ANY_HOST;
	case 2:
		return HETMEM_LOC(HETMEM_HOST, pick(&f->r, 3));
	case 3:
		return HETMEM_LOC(one_in(&f->r, 4) ? HETMEM_COHERENT :
				  HETMEM_FOREIGN, pick(&f->r, 3));
	case 4:
		return HETMEM_LOC(pick(&f->r, 9), pick(&f->r, 40));
	default:
		return f->w->location[pick(&f->r, FUZZ_DEVICES)];
	}
}

/* Where the kernel may write; never anything that counts. */
static uint64_t pick_buffer(struct fuzzer *f)
{
	switch (pick(&f->r, 12)) {
	case 0:
		return 0;
	case 1:
		return WILD + pick(&f->r, WILD_SIZE);
	case 2:				/* ends in the middle */
		return (uintptr_t)f->scratch + SCRATCH_SIZE -
		       pick(&f->r, 300);
	case 3:
		return KERNEL_ADDR + pick(&f->r, 1 << 20);
	default:
		return (uintptr_t)f->scratch + pick(&f->r, SCRATCH_SIZE / 8);
	}
}

/* A tracked range of the context, if there is one. */
static void pick_tracked(struct fuzzer *f, unsigned int context,
			 struct command_head *head)
{
	struct tracked t = PICK(&f->r, f->w->tracked[context]);

	if (one_in(&f->r, 6))
		return;
	head->start = t.start;
	head->end = t.end;
}

static uint32_t pick_count(struct fuzzer *f, uint32_t usual)
{
	return one_in(&f->r, 4) ? pick(&f->r, 4) : pick(&f->r, usual + 1);
}

/* The size of an entry as it should be, or as a later kernel might have it. */
static uint32_t pick_stride(struct fuzzer *f, size_t entry)
{
	switch (pick(&f->r, 12)) {
	case 0:
		return entry + pick(&f->r, 64);
	case 1:
		return page_size() - pick(&f->r, 64);
	case 2:
		return pick(&f->r, entry);
	default:
		return entry;
	}
}

/* One of few, so that they meet; sometimes none, which not all commands allow. */
static void pick_uuid(struct fuzzer *f, unsigned char *uuid)
{
	uuid[0] = one_in(&f->r, 4) ? 0 : 1 + pick(&f->r, 3);
}

/* Whether a hint for it may have a UUID. */
static bool hint_may_name(uint32_t location)
{
	return HETMEM_LOC_KIND(location) == HETMEM_FOREIGN ||
	       HETMEM_LOC_KIND(location) == HETMEM_COHERENT;
}

/* Commands of a vector. The kernel writes nothing but their answers. */
#define VECTOR	8

static __thread struct hetmem_cmd_migrate moves[VECTOR];

static void make_moves(struct fuzzer *f)
{
	struct random *r = &f->r;
	uint64_t start, end;
	unsigned int i;

	memset(moves, 0, sizeof(moves));
	for (i = 0; i < VECTOR; i++) {
		pick_range(f, &start, &end);
		moves[i].start = start + one_in(r, 8);
		moves[i].end = end;
		moves[i].location = pick_location(f);
		moves[i].flags = one_in(r, 4);
		moves[i].timeout_ms = moves[i].flags * (1 + pick(r, 200));
	}
}

static void make_hetmem(struct fuzzer *f, struct call *call,
			unsigned int context)
{
	union any_command *c = &call->c.hetmem;
	struct random *r = &f->r;

	call->fd = f->w->context[context];
	call->nr = commands[call->id].nr;
	call->size = commands[call->id].size;
	c->head.size = call->size;
	if (commands[call->id].range) {
		uint64_t start, end;

		pick_range(f, &start, &end);
		c->head.start = start;
		c->head.end = end;
	}
	switch ((enum command_id)call->id) {
	case CMD_INFO:
		c->info.devices = pick_buffer(f);
		c->info.nr_devices = pick_count(f, 40);
		c->info.device_size =
			pick_stride(f, sizeof(struct hetmem_device_info));
		c->info.pools = pick_buffer(f);
		c->info.nr_pools = pick_count(f, 70);
		c->info.pool_size =
			pick_stride(f, sizeof(struct hetmem_pool_info));
		break;
	case CMD_UNTRACK:
		pick_tracked(f, context, &c->head);
		break;
	case CMD_RESIDENCY:
		c->residency.runs = pick_buffer(f);
		c->residency.nr_runs = pick_count(f, 400);
		c->residency.run_size = pick_stride(f, sizeof(struct hetmem_run));
		c->residency.totals = pick_buffer(f);
		c->residency.nr_totals = pick_count(f, HETMEM_MAX_TOTALS);
		c->residency.total_size =
			pick_stride(f, sizeof(struct hetmem_total));
		break;
	case CMD_MIGRATE:
		c->migrate.location = pick_location(f);
		if (HETMEM_LOC_KIND(c->migrate.location) == HETMEM_HOST)
			c->migrate.flags = pick(r, 2);
		if (c->migrate.flags & HETMEM_MIGRATE_PIN)
			c->migrate.timeout_ms = 1 + pick(r, 200);
		if (one_in(r, 4)) {
			c->migrate.rest = pick_buffer(f);
			c->migrate.nr_rest = HETMEM_REST_MIN + pick(r, 4096);
			c->migrate.rest_size =
				pick_stride(f, sizeof(struct hetmem_run));
		}
		break;
	case CMD_STATS:
		if (one_in(r, 3)) {
			c->stats.flags = HETMEM_STATS_CONTEXT;
			break;
		}
		if (one_in(r, 3))
			c->stats.flags = HETMEM_STATS_NEXT;
		/* fall through */
	case CMD_REFRESH: {
		struct command_head head = { .start = WILD };

		pick_tracked(f, context, &head);
		c->head.start = head.start;
		break;
	}
	case CMD_RING:
		c->ring.nr_entries = HETMEM_RING_MIN << pick(r, 8);
		c->ring.events = one_in(r, 2) ? ALL_EVENTS :
					       pick(r, ALL_EVENTS + 1);
		break;
	case CMD_ALLOW:
		c->allow.allowed = pick(r, one_in(r, 4) ? 8 : 4);
		break;
	case CMD_BIND_DEVICE:
		c->bind_device.flags = pick(r, 2);
		c->bind_device.location = pick_location(f);
		pick_uuid(f, c->bind_device.uuid);
		break;
	case CMD_HINT:
		call->fd = f->w->context[0];
		c->hint.location = one_in(r, 4) ? pick_location(f) : ANY_HOST;
		c->hint.timeout_ms = 1 + pick(r, 200);
		if (hint_may_name(c->hint.location))
			pick_uuid(f, c->hint.uuid);
		break;
	case CMD_COMPLETE:
		c->complete.id = atomic_load(&board->last_hint) - pick(r, 4);
		c->complete.moved = pick(r, 1000);
		c->complete.result = one_in(r, 2) ? 0 : -(int)pick(r, 4096);
		break;
	case CMD_LIST:
		c->list.entries = pick_buffer(f);
		c->list.entry_size =
			pick_stride(f, sizeof(struct hetmem_list_entry));
		c->list.nr = pick_count(f, 100);
		break;
	case CMD_MIGRATE_VECTOR:
		make_moves(f);
		c->vector.results = pick_buffer(f);
		c->vector.command_size = pick_stride(f, sizeof(moves[0]));
		c->vector.nr = pick_count(f, 600);
		break;
	case CMD_BACKGROUND:
		make_moves(f);
		c->background.flags = one_in(r, 2);
		c->background.command_size = pick_stride(f, sizeof(moves[0]));
		c->background.eventfd = one_in(r, 8) ? PICK(r, f->w->device) : f->w->eventfd;
		break;
	default:
		break;
	}
}

static void make_emu(struct fuzzer *f, struct call *call)
{
	union fuzz_command *c = &call->c;
	uint64_t start, end;

	call->fd = PICK(&f->r, f->w->device);
	switch (call->id) {
	case CALL_EMU_INFO:
		call->nr = HETMEM_EMU_IOC_INFO;
		call->size = sizeof(c->emu_info);
		break;
	case CALL_EMU_ACCESS:
		call->nr = HETMEM_EMU_IOC_ACCESS;
		call->size = sizeof(c->emu_access);
		pick_range(f, &start, &end);
		c->emu_access.flags = pick(&f->r, 2);
		c->emu_access.op = pick(&f->r, 4);
		c->emu_access.addr = start;
		c->emu_access.length = end - start;
		if (c->emu_access.length > SCRATCH_SIZE / 2)
			c->emu_access.length = SCRATCH_SIZE / 2;
		if (c->emu_access.op <= HETMEM_EMU_WRITE)
			c->emu_access.data = pick_buffer(f);
		else
			c->emu_access.value = pick(&f->r, 1000);
		break;
	default:
		call->nr = HETMEM_EMU_IOC_EVICT;
		call->size = sizeof(c->emu_evict);
		c->emu_evict.nr_pages = pick(&f->r, 1000);
		break;
	}
	c->head.size = call->size;
}

static uint64_t pick_value(struct fuzzer *f)
{
	static const uint64_t values[] = {
		0, 1, 2, 7, 8, 511, 512, 513, 4095, 4096, 4097, 65535, 65536,
		1UL << 21, (1UL << 21) - 1, 1UL << 31, (1UL << 32) - 1,
		1UL << 32, 1UL << 47, (1UL << 47) - 4096, 1UL << 56, 1UL << 63,
		~0UL, ~4095UL, KERNEL_ADDR, 0xffffffffff600000, WILD,
		WILD + WILD_SIZE, WILD + WILD_SIZE - 4096,
	};

	return one_in(&f->r, 4) ? random_next(&f->r) >> pick(&f->r, 64) :
				  PICK(&f->r, values);
}

static void mutate(struct fuzzer *f, struct call *call)
{
	unsigned int i, n = 1 + pick(&f->r, 2), words = call->size / 4;
	union fuzz_command *c = &call->c;
	struct random *r = &f->r;

	for (i = 0; i < n; i++) {
		switch (pick(r, 8)) {
		case 0:			/* shorter, longer, much too long */
			c->head.size = one_in(r, 2) ? pick(r, 200) :
				       call->size + 8 * pick(r, 500);
			break;
		case 1:			/* longer, and not zero there */
			c->head.size = call->size + 8;
			c->bytes[call->size + pick(r, 8)] = 1 + pick(r, 255);
			break;
		case 2:
			c->head.flags ^= 1U << pick(r, 32);
			break;
		case 3:
		case 4:
			c->longs[1 + pick(r, words / 2)] = pick_value(f);
			break;
		case 5:
			c->words[1 + pick(r, words)] = pick_value(f);
			break;
		case 6:
			c->words[1 + pick(r, words)] ^= 1U << pick(r, 32);
			break;
		default:
			call->nr = one_in(r, 2) ? _IO(HETMEM_TYPE, pick(r, 256)) :
				   random_next(r) & ~0xff00UL;
			break;
		}
	}
}

/* Whether the kernel may write from @p on until it finds nothing mapped. */
static bool may_be_written(const struct fuzzer *f, uint64_t p)
{
	return p < 65536 || p >= 0x800000000000 ||
	       (p >= WILD && p < WILD + WILD_SIZE) ||
	       (p >= (uintptr_t)f->scratch &&
		p < (uintptr_t)f->scratch + SCRATCH_SIZE);
}

#define GUARD(member) do {						\
	if (!may_be_written(f, member))					\
		(member) = KERNEL_ADDR;					\
} while (0)

/*
 * A mutation must neither let the kernel write where it counts nor make a
 * call last. The command is the one that the number says, which may not be
 * the one that was meant.
 */
static void guard(struct fuzzer *f, struct call *call)
{
	struct hetmem_emu_cmd_access *access = &call->c.emu_access;
	union any_command *c = &call->c.hetmem;

	switch (call->nr) {
	case HETMEM_IOC_INFO:
		GUARD(c->info.devices);
		GUARD(c->info.pools);
		break;
	case HETMEM_IOC_RESIDENCY:
		GUARD(c->residency.runs);
		GUARD(c->residency.totals);
		break;
	case HETMEM_IOC_MIGRATE:
		GUARD(c->migrate.rest);
		if (c->migrate.timeout_ms <= HETMEM_PIN_TIMEOUT_MAX &&
		    c->migrate.timeout_ms > 200)
			c->migrate.timeout_ms = 200;
		break;
	case HETMEM_IOC_HINT:
		if (c->hint.timeout_ms <= HETMEM_HINT_TIMEOUT_MAX &&
		    c->hint.timeout_ms > 200)
			c->hint.timeout_ms = 200;
		break;
	case HETMEM_IOC_LIST:
		GUARD(c->list.entries);
		break;
	case HETMEM_IOC_MIGRATE_VECTOR:
		GUARD(c->vector.results);
		c->vector.commands = one_in(&f->r, 8) ? KERNEL_ADDR : (uintptr_t)moves;
		if (c->vector.nr <= HETMEM_VECTOR_MAX && c->vector.nr > VECTOR)
			c->vector.nr = VECTOR;
		if (c->vector.command_size > sizeof(moves[0]) && c->vector.command_size <= page_size())
			c->vector.command_size = sizeof(moves[0]);
		break;
	case HETMEM_IOC_BACKGROUND:
		c->background.command = one_in(&f->r, 8) ? KERNEL_ADDR : (uintptr_t)moves;
		if (c->background.command_size > sizeof(moves[0]) &&
		    c->background.command_size <= page_size())
			c->background.command_size = sizeof(moves[0]);
		break;
	case HETMEM_EMU_IOC_ACCESS:
		/* The device writes to the wild area, from there on. */
		if (access->op != HETMEM_EMU_READ &&
		    !(access->addr >= WILD && access->addr < WILD + WILD_SIZE))
			access->op = HETMEM_EMU_READ;
		if (access->op == HETMEM_EMU_READ)
			GUARD(access->data);
		break;
	}
}

static void check_answer(const struct call *call, const void *answer)
{
	const struct hetmem_cmd_residency *residency = answer;
	const struct hetmem_cmd_migrate *migrate = answer;
	const struct hetmem_cmd_unpin *unpin = answer;
	const struct hetmem_cmd_stats *stats = answer;
	const struct hetmem_cmd_info *info = answer;

	switch (call->id) {
	case CMD_INFO:
		if (info->version != HETMEM_VERSION || info->used_bytes > 1UL << 40)
			wrong("INFO: version %u, %llu bytes used", info->version,
			      info->used_bytes);
		break;
	case CMD_UNPIN:
		if (unpin->unpinned * page_size() > unpin->end - unpin->start)
			wrong("UNPIN [%llx, %llx): %llu pages", unpin->start,
			      unpin->end, unpin->unpinned);
		break;
	case CMD_STATS:
		if (stats->nr_changes != HETMEM_CHANGE_NR)
			wrong("STATS: %u changes", stats->nr_changes);
		break;
	case CMD_RESIDENCY:
		if (residency->walk_end < residency->start ||
		    residency->walk_end > residency->end ||
		    residency->filled_runs > residency->nr_runs ||
		    residency->filled_totals > residency->nr_totals)
			wrong("RESIDENCY [%llx, %llx): walk_end %llx, %u of %u runs, %u of %u totals",
			      residency->start, residency->end,
			      residency->walk_end, residency->filled_runs,
			      residency->nr_runs, residency->filled_totals,
			      residency->nr_totals);
		break;
	case CMD_MIGRATE:
		if (migrate->walk_end < migrate->start ||
		    migrate->walk_end > migrate->end ||
		    migrate->moved + migrate->already + migrate->not_moved !=
		    (migrate->walk_end - migrate->start) / page_size() ||
		    migrate->pinned * page_size() >
		    migrate->walk_end - migrate->start ||
		    migrate->filled_rest > migrate->nr_rest)
			wrong("MIGRATE [%llx, %llx): walk_end %llx, %llu moved, %llu already, %llu not, %u of %u listed",
			      migrate->start, migrate->end, migrate->walk_end,
			      migrate->moved, migrate->already,
			      migrate->not_moved, migrate->filled_rest,
			      migrate->nr_rest);
		break;
	}
}

/* Remembers what was tracked, so that it can be asked about and untracked. */
static void remember(struct fuzzer *f, const struct call *call,
		     unsigned int context)
{
	struct tracked *t;

	if (call->id != CMD_TRACK)
		return;
	t = &PICK(&f->r, f->w->tracked[context]);
	t->start = call->c.head.start;
	t->end = call->c.head.end;
}

/* Puts the struct somewhere and calls. Return: 0 or a negative errno. */
static int call_issue(struct fuzzer *f, struct call *call, void **answer)
{
	struct random *r = &f->r;
	char *to = f->scratch + 3 * SCRATCH_SIZE / 8 + pick(r, 64) * 8;
	char *end = f->scratch + SCRATCH_SIZE;

	*answer = NULL;
	if (call->mutated && one_in(r, 6)) {
		uint64_t p = pick_buffer(f);

		/* What is there is rubbish, and no command but one allows it. */
		if (call->nr == HETMEM_EMU_IOC_ACCESS ||
		    (p >= (uintptr_t)f->scratch &&
		     p < (uintptr_t)f->scratch + SCRATCH_SIZE))
			p = KERNEL_ADDR;
		to = at(p);
	} else {
		*answer = to;
		/* Ends where nothing is mapped; arrays may overwrite it. */
		if (one_in(r, 8)) {
			to = end - call->c.head.size % 4096;
			*answer = NULL;
		}
		memcpy(to, call->c.bytes, end - to < 4096 ? end - to : 4096);
	}
	return hm_ioctl(call->fd, call->nr, to);
}

/* One call of a command, right or wrong. Return: what succeeded, or CALL_NR. */
unsigned int call_one(struct fuzzer *f)
{
	unsigned int context = pick(&f->r, FUZZ_CONTEXTS);
	static __thread struct call call;
	void *answer;
	int ret;

	memset(&call, 0, sizeof(call));
	call.id = pick(&f->r, one_in(&f->r, 3) ? CALL_OTHER : CMD_NR);
	if (one_in(&f->r, 3))
		call.id = one_in(&f->r, 2) ? CMD_MIGRATE : CMD_TRACK;
	if (call.id < CMD_NR)
		make_hetmem(f, &call, context);
	else
		make_emu(f, &call);
	if (one_in(&f->r, 3)) {
		call.mutated = true;
		mutate(f, &call);
	}
	guard(f, &call);
	ret = call_issue(f, &call, &answer);
	if (call.mutated && call.nr != (call.id < CMD_NR ?
					commands[call.id].nr : call.nr))
		call.id = CALL_OTHER;
	if (ret) {
		atomic_fetch_add(&board->failed[call.id], 1);
		if (call.id != CALL_OTHER && !errno_documented(call.id, -ret))
			wrong("%s returns %d, which it does not document",
			      call_names[call.id], ret);
		return CALL_NR;
	}
	atomic_fetch_add(&board->succeeded[call.id], 1);
	remember(f, &call, context);
	if (answer && !call.mutated)
		check_answer(&call, answer);
	return call.id;
}
