// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Moves: the memory of a block goes to the host, behind its address, or comes back.
 *
 * A block moves handle by handle. A handle that it shares with other blocks moves as well,
 * if these may move with it: see sharers.h. Exception: a move that is only begun leaves such
 * handles, because the program does not expect that the others are copied. The contents of a handle are copied to other memory of
 * the same size; then the other memory is mapped at its address. Copies of several handles
 * are under way at one time, and mappings change while the next ones are copied. The old
 * memory is kept until the whole block has moved: if a handle fails, those before it are
 * mapped back, and the block is where it was.
 *
 * Host memory is in handles too, see parts.c. Each has a mapping of its own to copy from and
 * to, and addresses for the device memory of a fetch: the block's own address has its old
 * memory until the copy is complete.
 *
 * Before a move the host waits for the block's stream: the contents change no more then,
 * by the promise in <hetmem/move.h>. A move that is only begun (async) orders its copies
 * behind the stream instead, and ends later.
 *
 * spill.h has the locking.
 */
#include <stdlib.h>
#include <string.h>

#include "core/nvtx.h"
#include "driver/check.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "vmm/sharers.h"
#include "vmm/pin.h"
#include "vmm/ring.h"
#include "vmm/spill.h"
#include "vmm/vmm.h"

/* Copies that are under way at one time: as many as hide a change of mappings. */
#define DEPTH		4
/* A mapping that has to be put back is tried so often. */
#define TRIES		3
/* Instructions of a look at a handle, about. */
#define LOOK_WORK	64
#define MAX_MOVABLES	(1U << 20)

enum job_state {
	JOB_NONE,
	JOB_COPYING,
	JOB_MAPPED,		/* the new memory is at the address */
};

/**
 * struct job - one handle of a move
 * @handle, @page, @pages: which, where
 * @part: host memory
 * @device: device memory: the old one of a spill, the new one of a fetch
 * @event: behind the copy
 */
struct job {
	uint32_t handle;
	uint32_t page;
	uint32_t pages;
	uint32_t part;
	uint64_t device;
	CUevent event;
	enum job_state state;
};

/**
 * struct move - a block that moves
 * @next: of the pending ones
 * @movable: its entry
 * @sharers, @nr_sharers: entries of blocks that share a handle with it
 * @by_priority: the pool has chosen it
 * @begun: it ends later
 * @err: of the first job that failed: the others do not begin
 * @nr, @room: of @jobs, by address; @started, @ended: of them, in order
 */
struct move {
	struct move *next;
	uint32_t movable;
	uint32_t *sharers, nr_sharers;
	bool spill;
	bool by_priority;
	bool begun;
	int err;
	unsigned int nr;
	unsigned int room;
	unsigned int started;
	unsigned int ended;
	struct job jobs[];
};

static int no_memory(void)
{
	return hm_error(-ENOMEM, "spill: no host memory");
}

/* Device memory. */

/* Memory that the driver does not release is held until it does. With the lock. */
static void keep_stuck(struct pool *p, uint64_t handle, uint32_t pages)
{
	struct hm_spill *sp = spill_of(p);
	void *more = realloc(sp->stuck, (sp->nr_stuck + 1) * sizeof(*sp->stuck));

	if (!more)
		return;
	sp->stuck = more;
	sp->stuck[sp->nr_stuck].handle = handle;
	sp->stuck[sp->nr_stuck++].pages = pages;
}

static void release_stuck(struct pool *p)
{
	struct hm_spill *sp = spill_of(p);
	unsigned int i = 0;

	while (i < sp->nr_stuck) {
		const uint64_t bytes = bytes_of(p, sp->stuck[i].pages);

		if (hm_provider_release_handle(p->provider, sp->stuck[i].handle, bytes)) {
			i++;
			continue;
		}
		hm_pool_unhold(p, bytes);
		sp->stuck[i] = sp->stuck[--sp->nr_stuck];
	}
}

void hm_spill_release_memory(struct pool *p, uint64_t handle, uint32_t pages)
{
	const uint64_t bytes = bytes_of(p, pages);
	int err = hm_retry_once(hm_provider_release_handle(p->provider, handle, bytes));

	pthread_mutex_lock(&p->lock);
	p->calls++;
	if (err)
		keep_stuck(p, handle, pages);
	else
		hm_pool_unhold(p, bytes);
	pthread_mutex_unlock(&p->lock);
}

/* Free memory of the pool makes room under max= and on the device. */
int hm_spill_make_memory(struct pool *p, uint32_t pages, bool shared, uint64_t *handle)
{
	const uint64_t bytes = bytes_of(p, pages);
	unsigned int try;
	int err = -ENOMEM;

	for (try = 0; try < 2 && err == -ENOMEM; try++) {
		pthread_mutex_lock(&p->lock);
		if (try || hm_pool_may_hold(p, bytes))
			hm_vmm_give_back(p, bytes);
		hm_tags_lock(p->tags);
		err = hm_pool_may_hold(p, bytes);
		if (!err)
			hm_pool_hold(p, bytes);
		hm_tags_unlock(p->tags);
		p->calls++;
		pthread_mutex_unlock(&p->lock);
		if (err)
			continue;
		err = shared ? hm_provider_create_shared(p->provider, bytes, handle) :
			hm_provider_create_handle(p->provider, bytes, true, handle);
		if (err) {
			pthread_mutex_lock(&p->lock);
			hm_pool_unhold(p, bytes);
			pthread_mutex_unlock(&p->lock);
		}
	}
	return err;
}

/* One handle. Without the lock, in the device's context. */

static uint64_t job_addr(const struct pool *p, const struct job *j)
{
	return page_addr(vmm_of(p), j->page);
}

static uint64_t stage_addr(const struct pool *p, const struct job *j)
{
	return part_at(spill_of(p), j->part)->addr + bytes_of(p, j->pages);
}

static int stage_unmap(struct pool *p, const struct job *j)
{
	struct host_part *part = part_at(spill_of(p), j->part);
	int err = hm_retry_once(p->provider->ops->unmap(p->provider, stage_addr(p, j),
							bytes_of(p, j->pages)));

	part->staged = err;
	return err;
}

/* Device memory of a fetch, behind the part. */
static int stage_map(struct pool *p, struct job *j)
{
	struct host_part *part = part_at(spill_of(p), j->part);
	int err = part->staged ? stage_unmap(p, j) : 0;

	if (err)
		return err;
	err = hm_spill_make_memory(p, j->pages, false, &j->device);
	if (err)
		return err;
	err = p->provider->ops->map(p->provider, stage_addr(p, j), bytes_of(p, j->pages),
				    j->device);
	if (!err)
		return 0;
	part->staged = err == -EUCLEAN;
	hm_spill_release_memory(p, j->device, j->pages);
	return err == -EUCLEAN ? -EIO : err;
}

static int event_get(struct hm_spill *sp, const struct hm_driver *d, CUevent *event)
{
	CUresult res;

	if (sp->nr_events) {
		*event = sp->events[--sp->nr_events];
		return 0;
	}
	res = d->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
	return res ? hm_driver_error(d, "cuEventCreate", res) : 0;
}

static void event_put(struct hm_spill *sp, const struct hm_driver *d, CUevent event)
{
	CUevent *more = realloc(sp->events, (sp->nr_events + 1) * sizeof(*more));

	if (!more) {
		hm_retry_once(d->cuEventDestroy(event));
		return;
	}
	sp->events = more;
	sp->events[sp->nr_events++] = event;
}

/* After an error no copy is under way. */
static int job_copy(struct pool *p, struct job *j, bool spill)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_spill *sp = spill_of(p);
	const uint64_t host = part_at(sp, j->part)->addr;
	CUstream stream = spill ? sp->out : sp->in;
	CUresult res;
	int err;

	err = event_get(sp, d, &j->event);
	if (err)
		return err;
	res = d->cuMemcpyAsync(spill ? host : stage_addr(p, j), spill ? job_addr(p, j) : host,
			       bytes_of(p, j->pages), stream);
	if (res) {
		event_put(sp, d, j->event);
		return hm_driver_error(d, "cuMemcpyAsync", res);
	}
	res = d->cuEventRecord(j->event, stream);
	if (!res)
		return 0;
	hm_retry_once(d->cuStreamSynchronize(stream));
	event_put(sp, d, j->event);
	return hm_driver_error(d, "cuEventRecord", res);
}

/* Gives up the new memory, which is mapped at no address of the block. */
static void job_cancel(struct pool *p, struct job *j, bool spill)
{
	j->state = JOB_NONE;
	if (spill) {
		pthread_mutex_lock(&p->lock);
		hm_part_put(p, j->part);
		pthread_mutex_unlock(&p->lock);
		return;
	}
	stage_unmap(p, j);
	hm_spill_release_memory(p, j->device, j->pages);
}

static int job_start(struct pool *p, struct job *j, bool spill)
{
	int err;

	if (spill) {
		pthread_mutex_lock(&p->lock);
		err = hm_part_get(p, j->pages, &j->part);
		pthread_mutex_unlock(&p->lock);
	} else {
		err = stage_map(p, j);
	}
	if (err)
		return err;
	err = job_copy(p, j, spill);
	if (err)
		job_cancel(p, j, spill);
	else
		j->state = JOB_COPYING;
	return err;
}

static uint64_t memory_of(const struct pool *p, const struct job *j, bool host)
{
	return host ? part_at(spill_of(p), j->part)->handle : j->device;
}

/*
 * @j's address has no memory that can be used. The block counts as spilled: what is torn of
 * it is never reused. @half: the driver did not unmap what has no access.
 */
static void tear(struct pool *p, const struct job *j, bool half)
{
	struct vmm *v = vmm_of(p);

	pthread_mutex_lock(&p->lock);
	handle_at(v, j->handle)->flags |= HANDLE_TORN;
	mapping_at(v, handle_at(v, j->handle)->mapping)->half = half;
	pthread_mutex_unlock(&p->lock);
}

/* @j's address gets the memory of @host, or none. */
static void map_again(struct pool *p, const struct job *j, bool host)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	const uint64_t addr = job_addr(p, j), bytes = bytes_of(p, j->pages);
	bool half = false;
	unsigned int try;
	int err = -EIO;

	for (try = 0; try < TRIES && err && !half; try++) {
		err = ops->map(p->provider, addr, bytes, memory_of(p, j, host));
		if (err == -EUCLEAN)
			half = hm_retry_once(ops->unmap(p->provider, addr, bytes));
	}
	if (err)
		tear(p, j, half);
}

/* @j's address gets its new memory. After an error it has the old one. */
static int job_map(struct pool *p, struct job *j, bool spill)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	const uint64_t addr = job_addr(p, j), bytes = bytes_of(p, j->pages);
	int err;

	err = ops->unmap(p->provider, addr, bytes);
	if (err)
		return err;
	err = ops->map(p->provider, addr, bytes, memory_of(p, j, spill));
	if (!err)
		return 0;
	if (err == -EUCLEAN && hm_retry_once(ops->unmap(p->provider, addr, bytes)))
		tear(p, j, true);
	else
		map_again(p, j, !spill);
	return err == -EUCLEAN ? -EIO : err;
}

/* Waits for the copy: nothing is behind it that could keep it for long. */
static void job_end(struct pool *p, struct move *mv, struct job *j)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_spill *sp = spill_of(p);
	CUresult res;

	if (j->state != JOB_COPYING)
		return;
	res = hm_retry_once(d->cuEventSynchronize(j->event));
	if (res) {
		/* Both memories are about to be somebody's again. */
		hm_retry_once(d->cuStreamSynchronize(mv->spill ? sp->out : sp->in));
		if (!mv->err)
			mv->err = hm_driver_error(d, "cuEventSynchronize", res);
	}
	event_put(sp, d, j->event);
	if (!mv->err)
		mv->err = job_map(p, j, mv->spill);
	if (mv->err)
		job_cancel(p, j, mv->spill);
	else
		j->state = JOB_MAPPED;
}

/* What a block has. */

static uint32_t handle_id(const struct pool *p, uint32_t page)
{
	return mapping_at(vmm_of(p), vmm_of(p)->map[page])->handle;
}

struct handle *hm_spill_next_handle(const struct pool *p, const struct block *b,
				    uint32_t *page, uint32_t *at)
{
	const struct vmm *v = vmm_of(p);
	const struct mapping *m;

	if (*page > page_of(v, block_end(b) - 1))
		return NULL;
	m = mapping_at(v, v->map[*page]);
	*at = m->page;
	*page = m->page + handle_at(v, m->handle)->pages;
	return handle_at(v, m->handle);
}

bool hm_spill_is_whole(const struct pool *p, const struct block *b, uint32_t page)
{
	const struct vmm *v = vmm_of(p);
	const struct mapping *m = mapping_at(v, v->map[page]);

	return page_addr(v, m->page) >= b->addr &&
	       page_addr(v, m->page + handle_at(v, m->handle)->pages) <= block_end(b);
}

/* A block that has moved, or not. */

/* The handle of @j has its new memory. With the lock. */
static void job_commit(struct pool *p, struct job *j, bool spill)
{
	struct hm_spill *sp = spill_of(p);
	struct handle *h = handle_at(vmm_of(p), j->handle);
	const uint64_t bytes = bytes_of(p, j->pages);

	h->flags &= ~HANDLE_SHARED;
	if (spill) {
		h->handle = part_at(sp, j->part)->handle;
		h->host = j->part;
		h->flags |= HANDLE_HOST;
		sp->out_total += bytes;
	} else {
		h->handle = j->device;
		h->host = 0;
		h->flags &= ~HANDLE_HOST;
		sp->in_total += bytes;
	}
	p->calls += 3;
}

/* The old memory is nobody's. Without the lock. */
static void job_release_old(struct pool *p, struct job *j, bool spill)
{
	if (spill) {
		hm_spill_release_memory(p, j->device, j->pages);
		return;
	}
	stage_unmap(p, j);
	pthread_mutex_lock(&p->lock);
	hm_part_put(p, j->part);
	pthread_mutex_unlock(&p->lock);
}

/* What the driver does not unmap has moved: it is left as it is. */
static void job_undo(struct pool *p, struct job *j, bool spill)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	unsigned int try;
	int err = -EIO;

	for (try = 0; try < TRIES && err; try++)
		err = ops->unmap(p->provider, job_addr(p, j), bytes_of(p, j->pages));
	if (err)
		return;
	map_again(p, j, !spill);
	job_cancel(p, j, spill);
}

/* What the block of the entry @id has now. With the lock, which it may release. */
static void update_block(struct pool *p, const struct move *mv, uint32_t id)
{
	struct hm_spill *sp = spill_of(p);
	struct movable *m = movable_at(sp, id);
	struct block *b = block_at(p, m->block);
	uint32_t page = first_page(vmm_of(p), b), at, flags = 0;
	const struct handle *h;

	while ((h = hm_spill_next_handle(p, b, &page, &at))) {
		flags |= h->flags;
		hm_pool_step(p, LOOK_WORK);
	}
	if (!(flags & HANDLE_HOST))
		m->spilled_at = 0;
	else if ((mv->spill && !mv->err) || !m->spilled_at)
		m->spilled_at = ++sp->moves;
	/* What was torn must not be reused either. */
	__atomic_store_n(&b->flags, flags & (HANDLE_HOST | HANDLE_TORN) ?
			 b->flags | BLOCK_SPILLED : b->flags & ~BLOCK_SPILLED,
			 __ATOMIC_RELEASE);
}

/* All jobs have ended. Returns the bytes that moved. */
static uint64_t move_settle(struct pool *p, struct move *mv)
{
	uint64_t moved = 0;
	unsigned int i;

	for (i = 0; i < mv->started && mv->err; i++)
		if (mv->jobs[i].state == JOB_MAPPED)
			job_undo(p, &mv->jobs[i], mv->spill);
	pthread_mutex_lock(&p->lock);
	p->work = 0;
	for (i = 0; i < mv->started; i++) {
		if (mv->jobs[i].state == JOB_MAPPED)
			job_commit(p, &mv->jobs[i], mv->spill);
		hm_pool_step(p, LOOK_WORK);
	}
	update_block(p, mv, mv->movable);
	for (i = 0; i < mv->nr_sharers; i++)
		update_block(p, mv, mv->sharers[i]);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < mv->started; i++) {
		if (mv->jobs[i].state != JOB_MAPPED)
			continue;
		moved += bytes_of(p, mv->jobs[i].pages);
		job_release_old(p, &mv->jobs[i], mv->spill);
	}
	return moved;
}

/* What moves of a block. */

static int busy(const struct block *b, const char *reason)
{
	return hm_error(-EBUSY, "spill: block %p stays: %s", (void *)(uintptr_t)b->addr, reason);
}

static int not_movable(const struct block *b)
{
	return busy(b, "it is not movable: allocate it with HETMEM_ALLOC_MOVABLE");
}

/* Whether memory of @b has an alias. */
static bool is_lent(const struct pool *p, const struct block *b)
{
	uint32_t page = first_page(vmm_of(p), b), at;
	const struct handle *h;

	while ((h = hm_spill_next_handle(p, b, &page, &at)))
		if (h->flags & HANDLE_LENT)
			return true;
	return false;
}

int hm_spill_check(struct pool *p, const struct block *b, struct pool_stream **s)
{
	*s = hm_block_owner(p, b);
	if (p->asleep)
		return hm_pool_asleep();
	if (!(b->flags & BLOCK_MOVABLE))
		return not_movable(b);
	if (b->flags & BLOCK_USED)
		return busy(b, "it was recorded on another stream");
	if (p->provider->devices & (p->provider->devices - 1))
		return busy(b, "peers map the pool");
	if (movable_of(spill_of(p), b)->pinned)
		return busy(b, "it is pinned");
	if (is_lent(p, b))
		return busy(b, "it has an alias, or memory beside it");
	if (p->order.nr_captured)
		return busy(b, "a capture is open");
	if ((*s)->s.lost)
		return busy(b, "its stream was destroyed without hetmem_stream_retire()");
	if ((*s)->s.index && (!(*s)->s.handle || (*s)->s.handle == HETMEM_STREAM_LEGACY) &&
	    !p->opt.single_launcher)
		return busy(b, "its stream is the legacy one, which needs launcher=single");
	return 0;
}

static void add_job(struct move *mv, const struct pool *p, struct handle *h, uint32_t page)
{
	h->flags |= HANDLE_MOVES;
	mv->jobs[mv->nr++] = (struct job){
		.handle = handle_id(p, page), .page = page,
		.pages = h->pages, .part = h->host, .device = mv->spill ? h->handle : 0,
	};
}

/* Memory of @h, which @b has with others, is free again if it is where it is used. */
static void release_held(struct pool *p, const struct block *b, const struct handle *h,
			 uint32_t page)
{
	if (!(h->flags & (HANDLE_HOST | HANDLE_TORN)) && !hm_spill_is_whole(p, b, page))
		hm_sharers_release(p, b, page);
}

/* With the lock. Blocks are freed now if that was asked for meanwhile. */
static void move_free(struct pool *p, struct move *mv)
{
	struct hm_spill *sp = spill_of(p);
	const struct block *b = block_at(p, movable_at(sp, mv->movable)->block);
	unsigned int i;

	for (i = 0; i < mv->nr; i++) {
		struct handle *h = handle_at(vmm_of(p), mv->jobs[i].handle);

		h->flags &= ~HANDLE_MOVES;
		release_held(p, b, h, mv->jobs[i].page);
	}
	for (i = 0; i < mv->nr_sharers; i++)
		movable_at(sp, mv->sharers[i])->joined--;
	movable_at(sp, mv->movable)->move = NULL;
	movable_at(sp, mv->movable)->begun = false;
	for (i = 0; i < mv->nr_sharers; i++)
		hm_movable_ended(p, movable_at(sp, mv->sharers[i]));
	hm_movable_ended(p, movable_at(sp, mv->movable));
	free(mv->sharers);
	free(mv);
}

/* A handle without a mapping gets the memory that it has. */
static int mend(struct pool *p, struct handle *h, uint32_t page)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	struct mapping *m = mapping_at(vmm_of(p), h->mapping);
	const uint64_t addr = page_addr(vmm_of(p), page), bytes = bytes_of(p, h->pages);
	int err;

	if (!(h->flags & HANDLE_TORN))
		return 0;
	err = m->half ? ops->unmap(p->provider, addr, bytes) : 0;
	if (err)
		return err;
	err = ops->map(p->provider, addr, bytes, h->handle);
	m->half = err == -EUCLEAN;
	if (err)
		return err == -EUCLEAN ? -EIO : err;
	h->flags &= ~HANDLE_TORN;
	return 0;
}

/* Whether the handle at @page, which @b has with others, can join @mv. May release the lock. */
static int ask_sharers(struct pool *p, const struct pool_stream *s, const struct block *b,
		       const struct move *mv, uint32_t page, uint32_t *nr)
{
	int priority, err = hm_sharers_ask(p, s, b, page, nr, &priority);

	if (err == -EAGAIN && !mv->by_priority) {
		hm_pool_flush(p);
		err = hm_sharers_ask(p, s, b, page, nr, &priority);
	}
	if (err == -EAGAIN)
		return busy(b, "it shares a handle with cached blocks");
	if (!err && mv->by_priority && mv->spill &&
	    priority > movable_at(spill_of(p), mv->movable)->priority)
		return busy(b, "it shares a handle with a block of a higher priority");
	return err;
}

/* The handle @h at @page moves with the blocks that have it; -EBUSY: it stays. */
static int add_shared(struct pool *p, const struct pool_stream *s, const struct block *b,
		      struct move *mv, struct handle *h, uint32_t page)
{
	uint32_t nr, *more;
	int err = ask_sharers(p, s, b, mv, page, &nr);

	if (!err)
		err = mend(p, h, page);
	if (!err && !hm_vmm_unalias_handle(p, handle_id(p, page)))
		err = busy(b, "its memory is in use at another address, too");
	if (err)
		return err;
	if (!(h->flags & HANDLE_HOST) != mv->spill) {
		release_held(p, b, h, page);
		return 0;
	}
	more = realloc(mv->sharers, (mv->nr_sharers + nr) * sizeof(*more));
	if (!more)
		return no_memory();
	mv->sharers = more;
	err = hm_sharers_join(p, b, page, mv->sharers, &mv->nr_sharers);
	if (!err)
		add_job(mv, p, h, page);
	return err;
}

static int add_whole(struct pool *p, const struct block *b, struct move *mv, struct handle *h,
		     uint32_t page)
{
	int err = mend(p, h, page);

	if (!err && !hm_vmm_unalias_handle(p, handle_id(p, page)))
		err = busy(b, "its memory is in use at another address, too");
	if (!err && !(h->flags & HANDLE_HOST) == mv->spill)
		add_job(mv, p, h, page);
	return err;
}

/*
 * The handles of @b that move. Releases the lock: the block has its move, and stays. -EBUSY:
 * none can move, or a program fetches the block, and one cannot come back.
 */
static int plan_jobs(struct pool *p, const struct pool_stream *s, const struct block *b,
		     struct move *mv)
{
	uint32_t page = first_page(vmm_of(p), b), at;
	bool there = false, stays = false;
	struct handle *h;
	int err = 0;

	/* The block may grow. */
	while (!err && mv->nr < mv->room && (h = hm_spill_next_handle(p, b, &page, &at))) {
		const bool is_there = !(h->flags & HANDLE_HOST) != mv->spill;

		if (hm_spill_is_whole(p, b, at))
			err = add_whole(p, b, mv, h, at);
		else if (!mv->begun && !(h->flags & HANDLE_MOVES) &&
			 (!is_there || h->flags & HANDLE_TORN))
			err = add_shared(p, s, b, mv, h, at);
		there |= is_there;
		if (err == -EBUSY && (mv->spill || mv->by_priority) &&
		    !hm_spill_is_whole(p, b, at)) {
			stays = true;
			err = 0;
		}
		hm_pool_step(p, LOOK_WORK);
	}
	return !err && stays && !there && !mv->nr ? -EBUSY : err;
}

/* A move of the block of the entry @id, which stays from now on; move_plan() follows. */
static int move_make(struct pool *p, uint32_t id, bool spill, struct move **out)
{
	struct movable *m = movable_at(spill_of(p), id);
	const struct block *b = block_at(p, m->block);
	const uint32_t room = end_page(vmm_of(p), b) - first_page(vmm_of(p), b);
	struct move *mv = calloc(1, sizeof(*mv) + room * sizeof(mv->jobs[0]));

	if (!mv)
		return no_memory();
	mv->movable = id;
	mv->spill = spill;
	mv->room = room;
	m->move = mv;
	*out = mv;
	return 0;
}

/* Its jobs: NULL, and 0, if nothing of it has to move. Releases the lock. */
static int move_plan(struct pool *p, const struct pool_stream *s, struct move **mv)
{
	const struct movable *m = movable_at(spill_of(p), (*mv)->movable);
	int err = plan_jobs(p, s, block_at(p, m->block), *mv);

	if (!err && (*mv)->nr)
		return 0;
	move_free(p, *mv);
	*mv = NULL;
	return err;
}

/* The first job of @mv from @i on that is no neighbour of the one before it. */
static unsigned int next_range(const struct pool *p, const struct move *mv, unsigned int i,
			       struct told *range)
{
	*range = (struct told){ page_addr(vmm_of(p), mv->jobs[i].page), 0 };
	do
		range->bytes += bytes_of(p, mv->jobs[i++].pages);
	while (i < mv->nr && mv->jobs[i - 1].page + mv->jobs[i - 1].pages == mv->jobs[i].page);
	return i;
}

/* Observers. With pool->sleep_lock only. */

#define CHANGES	(HETMEM_REMAP_BUFFER_ID | HETMEM_REMAP_IPC | HETMEM_REMAP_DMABUF)

void hm_spill_observe_one(struct pool *p, enum hetmem_remap_cause cause, uint64_t addr,
			uint64_t bytes, bool after, int err)
{
	const struct hm_spill *sp = spill_of(p);
	const bool moves = cause == HETMEM_REMAP_SPILL || cause == HETMEM_REMAP_FETCH;
	const struct hetmem_remap remap = {
		.size = sizeof(remap), .ptr = (void *)(uintptr_t)addr, .bytes = bytes,
		.cause = cause, .changes = CHANGES | (moves ? HETMEM_REMAP_MEMORY_TYPE : 0),
		.after = after, .error = err,
	};
	unsigned int i;

	for (i = 0; i < sp->nr_observers; i++)
		sp->observers[i].fn(&remap, sp->observers[i].arg);
}

static void observe_move(struct pool *p, const struct move *mv, bool after)
{
	struct told range;
	unsigned int i;

	for (i = 0; i < mv->nr;) {
		i = next_range(p, mv, i, &range);
		hm_spill_observe_one(p, mv->spill ? HETMEM_REMAP_SPILL : HETMEM_REMAP_FETCH, range.addr,
			    range.bytes, after, after ? mv->err : 0);
	}
}

int hm_spill_observe(struct pool *p, const struct hm_ctl_observe *arg)
{
	struct hm_spill *sp = spill_of(p);
	struct observer *more;
	unsigned int i;
	int err = hm_pool_lock_moves(p);

	if (err)
		return err;
	if (arg->add) {
		more = realloc(sp->observers, (sp->nr_observers + 1) * sizeof(*more));
		if (more) {
			sp->observers = more;
			sp->observers[sp->nr_observers++] = (struct observer){ arg->fn, arg->arg };
		}
		err = more ? 0 : no_memory();
	} else {
		for (i = 0; i < sp->nr_observers; i++)
			if (sp->observers[i].fn == arg->fn && sp->observers[i].arg == arg->arg)
				break;
		if (i == sp->nr_observers)
			err = hm_error(-EINVAL, "off_remap: that function was not added with that argument");
		else
			memmove(&sp->observers[i], &sp->observers[i + 1],
				(--sp->nr_observers - i) * sizeof(*sp->observers));
	}
	hm_pool_unlock_moves(p);
	return err;
}

int hm_vmm_copy_observers(struct hetmem_resource *from, struct hetmem_resource *to)
{
	struct pool *p = to_pool(from);
	unsigned int i;
	int err = hm_pool_lock_moves(p);

	if (err)
		return err;
	for (i = 0; i < spill_of(p)->nr_observers && !err; i++) {
		const struct hm_ctl_observe arg = {
			.fn = spill_of(p)->observers[i].fn, .arg = spill_of(p)->observers[i].arg,
			.add = true,
		};

		err = hm_spill_observe(to_pool(to), &arg);
	}
	hm_pool_unlock_moves(p);
	return err;
}

void hm_spill_tell(struct pool *p, enum hetmem_remap_cause cause, bool after, int err)
{
	struct hm_spill *sp = spill_of(p);
	size_t i;

	if (!sp->nr_observers)
		return;
	if (!after)
		hm_spill_find_told(p, cause == HETMEM_REMAP_SLEEP);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < sp->nr_told; i++)
		hm_spill_observe_one(p, cause, sp->told[i].addr, sp->told[i].bytes, after, err);
	pthread_mutex_lock(&p->lock);
}

/* Several blocks, one after the other, their copies in one row. */

static int make_streams(struct hm_spill *sp, const struct hm_driver *d)
{
	CUstream *streams[] = { &sp->out, &sp->in };
	CUresult res;
	int i;

	for (i = 0; i < 2; i++) {
		if (*streams[i])
			continue;
		res = d->cuStreamCreate(streams[i], CU_STREAM_NON_BLOCKING);
		if (res) {
			*streams[i] = NULL;
			return hm_driver_error(d, "cuStreamCreate", res);
		}
	}
	return 0;
}

/* A row of moves, of whose jobs up to DEPTH are copied at one time. */
struct row {
	struct move **moves;
	size_t nr;
	size_t at;		/* the one whose job ends next */
	unsigned int in_flight;
};

/* Ends the oldest job that was started. */
static void row_end_one(struct pool *p, struct row *row)
{
	struct move *mv;

	while (row->at < row->nr) {
		mv = row->moves[row->at];
		if (mv->ended < mv->started) {
			job_end(p, mv, &mv->jobs[mv->ended++]);
			row->in_flight--;
			return;
		}
		row->at++;
	}
}

static void row_run(struct pool *p, struct row *row)
{
	size_t i;

	for (i = 0; i < row->nr; i++) {
		struct move *mv = row->moves[i];

		while (mv->started < mv->nr && !mv->err) {
			int err = job_start(p, &mv->jobs[mv->started], mv->spill);

			if (err) {
				mv->err = mv->err ? mv->err : err;
				break;
			}
			mv->started++;
			if (++row->in_flight == DEPTH)
				row_end_one(p, row);
		}
	}
	while (row->in_flight)
		row_end_one(p, row);
}

/* Check mode watches the addresses of a move. In the device's context. */

static void watch(struct pool *p, const struct pool_stream *s, const struct move *mv)
{
	const hetmem_stream stream = s->s.retired ? HETMEM_STREAM_HOST : hm_stream_handle(&s->s);
	const struct hm_spill *sp = spill_of(p);
	struct told range;
	unsigned int i;

	for (i = 0; i < mv->nr;) {
		i = next_range(p, mv, i, &range);
		hm_check_move_begin(p->res.hm, (void *)(uintptr_t)range.addr, range.bytes,
				    stream, mv->spill ? sp->out : sp->in, !mv->begun);
	}
}

static void unwatch(struct pool *p, const struct move *mv)
{
	struct told range;
	unsigned int i;

	for (i = 0; i < mv->nr;) {
		i = next_range(p, mv, i, &range);
		hm_check_move_end(p->res.hm, (void *)(uintptr_t)range.addr, range.bytes);
	}
}

/* Ends the started jobs of @mv, then @mv. Without the lock. Returns the bytes that moved. */
static uint64_t move_end(struct pool *p, struct move *mv)
{
	uint64_t moved;

	while (mv->ended < mv->started)
		job_end(p, mv, &mv->jobs[mv->ended++]);
	moved = move_settle(p, mv);
	unwatch(p, mv);
	return moved;
}

/* Moves blocks of @s. Without the lock. Returns the first error. */
static int run(struct pool *p, const struct pool_stream *s, struct move **moves, size_t nr,
	       uint64_t *bytes)
{
	struct row row = { .moves = moves, .nr = nr };
	struct hm_context saved;
	size_t i;
	int err;

	err = hm_provider_enter(p->provider, &saved);
	if (err)
		return err;
	err = make_streams(spill_of(p), &p->res.hm->driver);
	for (i = 0; i < nr && !err; i++)
		watch(p, s, moves[i]);
	if (!err) {
		row_run(p, &row);
		for (i = 0; i < nr; i++) {
			*bytes += move_end(p, moves[i]);
			err = err ? err : moves[i]->err;
		}
	}
	hm_context_leave(p->res.hm, &saved);
	return err;
}

int hm_spill_move(struct pool *p, struct pool_stream *s, const uint32_t *ids, size_t nr,
		  bool spill, bool by_priority, uint64_t *bytes)
{
	struct move **moves = malloc((nr ? nr : 1) * sizeof(struct move *));
	size_t i, made = 0, n = 0;
	int err = moves ? 0 : no_memory(), one;
	HM_RANGE(spill ? "spill" : "fetch", 0);

	*bytes = 0;
	/* All of them, before the lock is released: entries of blocks that are freed go. */
	for (i = 0; i < nr && moves; i++) {
		one = move_make(p, ids[i], spill, &moves[made]);
		if (!one)
			moves[made++]->by_priority = by_priority;
		err = err ? err : one;
	}
	for (i = 0; i < made; i++) {
		one = move_plan(p, s, &moves[i]);
		err = err ? err : one;
		if (moves[i])
			moves[n++] = moves[i];
	}
	if (n) {
		int failed;

		pthread_mutex_unlock(&p->lock);
		for (i = 0; i < n; i++)
			observe_move(p, moves[i], false);
		failed = run(p, s, moves, n, bytes);
		for (i = 0; i < n; i++) {
			/* Without a context none of them began. */
			if (failed && !moves[i]->started && !moves[i]->err)
				moves[i]->err = failed;
			observe_move(p, moves[i], true);
		}
		pthread_mutex_lock(&p->lock);
		for (i = 0; i < n; i++)
			move_free(p, moves[i]);
		err = err ? err : failed;
	}
	free(moves);
	return err;
}

/* Moves that are begun, and end later. */

/* The copies come behind what @s has now. In the device's context, with the lock. */
static int order_copies(struct pool *p, struct pool_stream *s, bool spill)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_spill *sp = spill_of(p);
	CUcontext before;
	CUstream here;
	CUevent event;
	CUresult res;
	int err;

	if (!s->s.index || s->s.retired)
		return 0;
	err = hm_stream_check(&p->order, &s->s);
	if (!err)
		err = event_get(sp, d, &event);
	if (err)
		return err;
	err = hm_stream_enter(&p->order, &s->s, &here, &before);
	if (!err) {
		res = d->cuEventRecord(event, here);
		hm_stream_leave(&p->order, &s->s, before);
		if (!res)
			res = d->cuStreamWaitEvent(spill ? sp->out : sp->in, event, 0);
		err = res ? hm_driver_error(d, "cuStreamWaitEvent", res) : 0;
	}
	event_put(sp, d, event);
	return err;
}

/* All copies of @mv. After an error it has ended. Without the lock. */
static int begin(struct pool *p, struct move *mv)
{
	int err = 0;

	while (mv->started < mv->nr && !err) {
		err = job_start(p, &mv->jobs[mv->started], mv->spill);
		mv->started += !err;
	}
	if (!err)
		return 0;
	mv->err = err;
	move_end(p, mv);
	return err;
}

static int move_begin(struct pool *p, struct pool_stream *s, uint32_t id, bool spill)
{
	struct hm_spill *sp = spill_of(p);
	struct hm_context saved;
	struct move *mv;
	int err;

	err = move_make(p, id, spill, &mv);
	if (err)
		return err;
	mv->begun = true;
	movable_at(sp, id)->begun = true;
	s->pins++;
	err = move_plan(p, s, &mv);
	if (err || !mv) {
		s->pins--;
		return err;
	}
	pthread_mutex_unlock(&p->lock);
	observe_move(p, mv, false);
	err = hm_provider_enter(p->provider, &saved);
	if (!err) {
		err = make_streams(sp, &p->res.hm->driver);
		pthread_mutex_lock(&p->lock);
		if (!err)
			err = order_copies(p, s, spill);
		pthread_mutex_unlock(&p->lock);
		if (!err) {
			watch(p, s, mv);
			err = begin(p, mv);
		}
		hm_context_leave(p->res.hm, &saved);
	}
	mv->err = err;
	if (err)
		observe_move(p, mv, true);
	pthread_mutex_lock(&p->lock);
	s->pins--;
	if (err) {
		move_free(p, mv);
	} else {
		mv->next = sp->pending;
		sp->pending = mv;
	}
	return err == -EAGAIN ? -EBUSY : err;
}

/* Copies of one move are in one stream: the last one ends last. */
static bool is_complete(const struct pool *p, const struct move *mv)
{
	return !mv->started || p->res.hm->driver.cuEventQuery(mv->jobs[mv->started - 1].event) !=
		CUDA_ERROR_NOT_READY;
}

/* Ends the pending move @mv. Returns its error. */
static int end_pending(struct pool *p, struct move *mv)
{
	struct hm_spill *sp = spill_of(p);
	struct hm_context saved;
	struct move **link;
	int err;

	for (link = &sp->pending; *link != mv; link = &(*link)->next)
		;
	pthread_mutex_unlock(&p->lock);
	err = hm_provider_enter(p->provider, &saved);
	if (!err) {
		move_end(p, mv);
		hm_context_leave(p->res.hm, &saved);
		observe_move(p, mv, true);
	}
	pthread_mutex_lock(&p->lock);
	if (err)
		return err;
	err = mv->err;
	*link = mv->next;
	move_free(p, mv);
	return err;
}

void hm_spill_end(struct pool *p, bool wait)
{
	struct hm_spill *sp = spill_of(p);
	struct move *mv = sp->pending, *next;

	release_stuck(p);
	for (; mv; mv = next) {
		next = mv->next;
		if (wait || is_complete(p, mv))
			end_pending(p, mv);
	}
}

/* A short one: nothing else is done until what is waited for has ended. */
static void nap(struct pool *p, unsigned int *naps)
{
	*naps = *naps > 2 ? 2 : *naps;
	hm_order_nap(&p->order, naps);
}

/* The copies of the block of the entry @id, if it moves; 0: of all blocks. */
static int wait_for_copies(struct pool *p, uint32_t id)
{
	struct hm_spill *sp = spill_of(p);
	const uint64_t deadline = hm_now() + hm_pool_most_wait(p);
	unsigned int naps = 0;
	struct move *mv;

	for (;;) {
		for (mv = sp->pending; mv; mv = mv->next)
			if ((!id || mv->movable == id) && !is_complete(p, mv))
				break;
		if (!mv)
			return 0;
		if (hm_now() >= deadline)
			return hm_error(-EBUSY, "spill: a copy has not finished after wait=");
		nap(p, &naps);
	}
}

int hm_spill_wait_pending(struct pool *p)
{
	return wait_for_copies(p, 0);
}

int hm_spill_wait(struct pool *p, struct pool_stream *s)
{
	const uint64_t deadline = hm_now() + hm_pool_most_wait(p);
	unsigned int naps = 0;
	uint64_t pos;
	int err;

	if (!s->s.index)
		return 0;
	stream_lock(s);
	pos = hm_stream_next_pos(&s->s);
	stream_unlock(s);
	err = s->s.retired ? 0 : hm_stream_record(&p->order, &s->s);
	while (!err) {
		hm_stream_poll(&p->order, &s->s);
		if (s->s.done >= pos)
			break;
		if (hm_now() >= deadline)
			return hm_error(-EBUSY, "spill: stream %llu has not finished after wait=",
					(unsigned long long)s->s.id);
		nap(p, &naps);
		if (p->asleep)
			return hm_pool_asleep();
	}
	return err == -EAGAIN ? -EBUSY : err;
}

/* What a program asks for. */

static int find_block(struct pool *p, const struct hm_ctl_move *arg, struct block **b)
{
	*b = hm_block_find_live(p, (uintptr_t)arg->ptr);
	if (!*b)
		return hm_error(-EINVAL, "%p is not the beginning of a live block", arg->ptr);
	if (block_is_sparse(*b))
		return hm_error(-EOPNOTSUPP, "%p is a sparse block, which does not move: hetmem_decommit()",
				arg->ptr);
	return 0;
}

static int set_priority(struct pool *p, const struct hm_ctl_move *arg)
{
	struct block *b;
	int err;

	pthread_mutex_lock(&p->lock);
	err = find_block(p, arg, &b);
	if (!err && !(b->flags & BLOCK_MOVABLE))
		err = not_movable(b);
	if (!err)
		movable_of(spill_of(p), b)->priority = arg->priority;
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* With both locks; releases pool->lock. */
static int access_host(struct pool *p, const struct block *b)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	uint32_t page = first_page(vmm_of(p), b), at;
	struct handle *h;
	int err = 0;

	if (!(b->flags & BLOCK_SPILLED))
		return busy(b, "it is not spilled");
	while (!err && (h = hm_spill_next_handle(p, b, &page, &at)))
		if (h->flags & HANDLE_HOST)
			err = ops->access_host(p->provider, page_addr(vmm_of(p), at),
					       bytes_of(p, h->pages));
	return err;
}

static bool has_own_handle(const struct pool *p, const struct block *b)
{
	uint32_t page = first_page(vmm_of(p), b), at;

	while (hm_spill_next_handle(p, b, &page, &at))
		if (hm_spill_is_whole(p, b, at))
			return true;
	return false;
}

/* The block, which may move now; its stream in *@s. */
static int find_movable(struct pool *p, const struct hm_ctl_move *arg, struct block **b,
			struct pool_stream **s)
{
	int err = find_block(p, arg, b);

	if (!err)
		err = hm_spill_check(p, *b, s);
	if (!err && arg->begin && !has_own_handle(p, *b))
		err = busy(*b, "it has no handle of its own, so that only hetmem_spill() and hetmem_fetch() move it");
	return err;
}

/* With pool->lock: waits for what has to be complete before the move is made. */
static int wait_before(struct pool *p, const struct hm_ctl_move *arg)
{
	struct pool_stream *s;
	struct movable *m;
	struct block *b;
	int err = find_movable(p, arg, &b, &s);

	/* Copies cannot be ordered behind a retired stream. */
	if (err || (arg->begin && !s->s.retired))
		return err;
	m = movable_of(spill_of(p), b);
	if (m->move)
		return m->move->begun ? wait_for_copies(p, b->right) : 0;
	s->pins++;
	err = hm_spill_wait(p, s);
	s->pins--;
	return err;
}

/* With both locks; releases pool->lock. */
static int move_one(struct pool *p, const struct hm_ctl_move *arg)
{
	const bool spill = arg->move == HM_MOVE_SPILL;
	struct hm_spill *sp = spill_of(p);
	struct pool_stream *s;
	struct move *mv;
	struct block *b;
	uint64_t bytes;
	uint32_t id;
	int err = find_movable(p, arg, &b, &s);

	mv = err ? NULL : movable_of(sp, b)->move;
	if (mv) {
		const bool same = mv->spill == spill && arg->move != HM_MOVE_HOST_ACCESS;

		/* The other way, or access, only after what is under way. */
		if (!is_complete(p, mv))
			return same && arg->begin ? 0 : busy(b, "it moves");
		err = end_pending(p, mv);
		if (same || err)
			return err;
		err = find_movable(p, arg, &b, &s);
	}
	if (err)
		return err;
	if (arg->move == HM_MOVE_HOST_ACCESS)
		return access_host(p, b);
	id = b->right;
	if (arg->begin)
		return move_begin(p, s, id, spill);
	s->pins++;
	/* Free memory that is complete makes room for what comes back. */
	hm_pool_poll(p);
	err = find_movable(p, arg, &b, &s);
	if (!err && b->right == id)
		err = hm_spill_move(p, s, &id, 1, spill, false, &bytes);
	s->pins--;
	return err;
}

int hm_spill_ctl(struct pool *p, struct hm_ctl_move *arg)
{
	int err;

	if (arg->move == HM_MOVE_ALIAS || arg->move == HM_MOVE_PIN)
		return hm_vmm_make_other(p, arg);
	if (p->provider->ops->device)
		arg->refused = "memory of vmm(stripe=) never moves to the host";
	if (!p->provider->ops->create_host)
		return -EOPNOTSUPP;
	if (arg->move == HM_MOVE_SPILL && hm_has_one_memory(p->res.hm, p->res.device)) {
		arg->refused = HM_ONE_MEMORY;
		return -EOPNOTSUPP;
	}
	if (arg->move == HM_MOVE_PRIORITY)
		return set_priority(p, arg);
	pthread_mutex_lock(&p->lock);
	p->work = 0;
	err = wait_before(p, arg);
	pthread_mutex_unlock(&p->lock);
	if (!err)
		err = hm_pool_lock_moves_within(p, hm_pool_most_wait(p));
	if (err)
		return err;
	p->work = 0;
	err = move_one(p, arg);
	hm_pool_unlock_moves(p);
	return err;
}

/* Made and destroyed. */

int hm_spill_init(struct pool *p, struct hm_spill **out)
{
	struct hm_spill *sp = calloc(1, sizeof(*sp));
	int err;

	if (!sp)
		return no_memory();
	*out = sp;
	err = hm_table_init(&sp->movables, sizeof(struct movable), offsetof(struct movable, next),
			    MAX_MOVABLES);
	return err ? err : hm_parts_init(p);
}

/* What moves have of the driver; the blocks are gone. */
static void stop_moves(struct pool *p)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_spill *sp = spill_of(p);
	struct move *mv;
	unsigned int i;

	if (sp->out)
		hm_retry_once(d->cuStreamSynchronize(sp->out));
	if (sp->in)
		hm_retry_once(d->cuStreamSynchronize(sp->in));
	for (mv = sp->pending; mv; mv = mv->next)
		for (i = mv->ended; i < mv->started; i++) {
			event_put(sp, d, mv->jobs[i].event);
			job_cancel(p, &mv->jobs[i], mv->spill);
		}
	for (i = 0; i < sp->nr_events; i++)
		hm_retry_once(d->cuEventDestroy(sp->events[i]));
	sp->nr_events = 0;
	if (sp->out)
		hm_retry_once(d->cuStreamDestroy(sp->out));
	if (sp->in)
		hm_retry_once(d->cuStreamDestroy(sp->in));
	if (sp->pins)
		hm_retry_once(d->cuStreamDestroy(sp->pins));
}

void hm_spill_stop(struct pool *p, bool forget)
{
	struct hm_spill *sp = spill_of(p);
	struct hm_context saved;
	struct move *mv;

	if (!sp)
		return;
	if (!forget && !hm_retry_once(hm_provider_enter(p->provider, &saved))) {
		hm_pin_reap(p);
		stop_moves(p);
		hm_context_leave(p->res.hm, &saved);
		release_stuck(p);
	}
	while ((mv = sp->pending)) {
		sp->pending = mv->next;
		free(mv->sharers);
		free(mv);
	}
}

void hm_spill_free(struct pool *p, bool forget)
{
	struct hm_spill *sp = spill_of(p);

	if (!sp)
		return;
	hm_parts_free(p, forget);
	hm_table_free(&sp->movables);
	free(sp->stuck);
	free(sp->events);
	free(sp->observers);
	free(sp->told);
	hm_pin_forget(sp);
	free(sp);
}
