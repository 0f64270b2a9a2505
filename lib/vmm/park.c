// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Parked contents: see park.h. The file of park=PATH is in park_file.c. */
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "platform/platform.h"
#include "provider/regions.h"
#include "vmm/park.h"
#include "vmm/park_file.h"
#include "vmm/sparse.h"

/*
 * A piece of host memory. On an H200's host, registering this much takes some 1.2 ms,
 * during which other calls of the driver wait.
 */
#define PIECE_BYTES	((uint64_t)64 << 20)
#define PIECE_UNIT	((uint64_t)2 << 20)
/* Memory between two blocks that is copied with them: a copy takes microseconds. */
#define MAX_GAP		((uint64_t)64 << 10)
/* Of the host's available memory, by default: what is kept for the next sleep. */
#define KEEP_SHARE	4
/* Instructions of a look at a block or a handle, about. */
#define LOOK_WORK	64

struct piece {
	void *ptr;
	uint64_t bytes;
};

/**
 * struct hm_park - see park.h
 * @provider: of the pieces
 * @stream: of the copies
 * @pieces: contents fill one after the other
 * @held: bytes of pieces; read without pool->sleep_lock too
 * @keep: of these after a wake
 * @kept: pieces from before the last sleep
 * @spans: by address
 * @bytes: of spans
 * @file: has the contents, with park=PATH; @in_file: bytes of these, as @held
 * @is_used: contents are saved
 */
struct hm_park {
	struct hm_provider *provider;
	CUstream stream;
	struct piece *pieces;
	unsigned int nr_pieces;
	unsigned int piece_room;
	uint64_t held;
	uint64_t keep;
	unsigned int kept;
	struct hm_span *spans;
	size_t nr_spans;
	size_t span_room;
	uint64_t bytes;
	struct hm_park_file *file;
	uint64_t in_file;
	bool is_used;
};

static int no_host_memory(void)
{
	return hm_error(-ENOMEM, "sleep: no host memory");
}

/* What is to be saved. */

static int add_span(struct hm_park *park, uint64_t addr, uint64_t end)
{
	size_t room = park->span_room ? 2 * park->span_room : 64;
	struct hm_span *spans;

	if (park->nr_spans == park->span_room) {
		spans = realloc(park->spans, room * sizeof(*spans));
		if (!spans)
			return no_host_memory();
		park->spans = spans;
		park->span_room = room;
	}
	park->spans[park->nr_spans++] = (struct hm_span){ .addr = addr, .bytes = end - addr };
	return 0;
}

static bool stays(const struct handle *h)
{
	return h->flags & (HANDLE_PINNED | HANDLE_HOST | HANDLE_TORN);
}

/*
 * The parts of the live block @b whose handles a sleep takes. May release the lock: a block
 * that is freed then is no longer one.
 */
static int add_block(struct pool *p, const struct block *b, struct hm_park *park)
{
	const struct vmm *v = vmm_of(p);
	/* Check mode knows of the bytes that were requested. */
	const uint64_t addr = b->addr, end = block_end(b) - (p->res.hm->check ? b->slack : 0);
	uint64_t at = addr, next;
	int err = 0;

	while (at < end && !err && block_state(b) == BLOCK_LIVE && b->addr == addr) {
		const uint32_t page = page_of(v, at);
		const struct mapping *m = mapping_at(v, v->map[page]);
		const struct handle *h = handle_at(v, m->handle);

		if (hm_vmm_is_apart(v, page)) {
			at = page_addr(v, page + hm_vmm_apart(v, page));
			continue;
		}
		next = page_addr(v, m->page + h->pages);
		if (next > end)
			next = end;
		if (!stays(h))
			err = add_span(park, at, next);
		at = next;
		hm_pool_step(p, LOOK_WORK);
	}
	return err;
}

static int by_addr(const void *a, const void *b)
{
	const struct hm_span *x = a, *y = b;

	return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* Nobody allocates meanwhile; what is freed while the lock is released is saved in vain. */
static int find_spans(struct pool *p, struct hm_park *park)
{
	uint32_t id;
	int err = 0;

	park->nr_spans = 0;
	for (id = 1; id < p->blocks.nr && !err; id++) {
		const struct block *b = block_at(p, id);

		if (block_state(b) == BLOCK_LIVE)
			err = add_block(p, b, park);
		hm_pool_step(p, LOOK_WORK);
	}
	return err;
}

/* Whether the memory between two spans can be copied with them. To check mode it is free. */
static bool is_near(const struct pool *p, const struct hm_span *a, uint64_t addr)
{
	const struct vmm *v = vmm_of(p);
	const uint64_t end = a->addr + a->bytes;
	const struct mapping *m = mapping_at(v, v->map[page_of(v, end - 1)]);

	return addr == end ||
		(!p->res.hm->check && addr - end <= MAX_GAP &&
		 addr <= page_addr(v, m->page + handle_at(v, m->handle)->pages));
}

/* Spans that are near become one. Only a sleep and a wake change mappings now. */
static void join_spans(const struct pool *p, struct hm_park *park)
{
	struct hm_span *last = park->spans, *s;
	size_t i;

	park->bytes = 0;
	if (park->nr_spans)
		qsort(park->spans, park->nr_spans, sizeof(*park->spans), by_addr);
	for (i = 1; i < park->nr_spans; i++) {
		s = &park->spans[i];
		if (is_near(p, last, s->addr))
			last->bytes = s->addr + s->bytes - last->addr;
		else
			*++last = *s;
	}
	park->nr_spans = park->nr_spans ? last - park->spans + 1 : 0;
	for (i = 0; i < park->nr_spans; i++) {
		park->spans[i].at = park->bytes;
		park->bytes += park->spans[i].bytes;
	}
}

/* Host memory. */

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + PIECE_UNIT - 1) & ~(PIECE_UNIT - 1);
}

static int no_room(const struct hm_park *park, uint64_t most, const char *reason)
{
	return hm_error(-ENOMEM, "sleep: %llu bytes of contents do not fit: at most %llu (%s)",
			(unsigned long long)round_up(park->bytes), (unsigned long long)most,
			reason);
}

/* Before anything is made. */
static int has_room(const struct pool *p, const struct hm_park *park)
{
	uint64_t most = p->opt.max_host ? p->opt.max_host : UINT64_MAX;
	const uint64_t available = hm_host_usable(p->res.hm);
	const uint64_t others = hm_tags_parked(p);
	const char *reason = "max_host=";

	/* Tags share max_host=. Available memory is what all have left. */
	if (p->opt.max_host)
		most = most > others ? most - others : 0;
	if (available != HETMEM_MEMORY_UNKNOWN && available + park->held < most) {
		most = available + park->held;
		reason = "what the host has left, less its reserve";
	}
	return round_up(park->bytes) <= most ? 0 : no_room(park, most, reason);
}

/* A piece for up to @bytes more. Lock not held. */
static int add_piece(struct hm_park *park, uint64_t bytes)
{
	const unsigned int room = park->piece_room ? 2 * park->piece_room : 16;
	struct piece *pieces, *piece;
	int err;

	if (park->nr_pieces == park->piece_room) {
		pieces = realloc(park->pieces, room * sizeof(*pieces));
		if (!pieces)
			return no_host_memory();
		park->pieces = pieces;
		park->piece_room = room;
	}
	piece = &park->pieces[park->nr_pieces];
	piece->bytes = bytes < PIECE_BYTES ? round_up(bytes) : PIECE_BYTES;
	err = hm_provider_alloc_region(park->provider, piece->bytes, HETMEM_STREAM_HOST,
				       &piece->ptr);
	if (err)
		return err;
	park->nr_pieces++;
	__atomic_store_n(&park->held, park->held + piece->bytes, __ATOMIC_RELAXED);
	return 0;
}

/* The last piece goes back. Lock not held. */
static int drop_piece(struct hm_park *park)
{
	const struct piece *piece = &park->pieces[park->nr_pieces - 1];
	int err = hm_provider_free_region(park->provider, piece->ptr, piece->bytes,
					  HETMEM_STREAM_HOST);

	if (err)
		return err;
	__atomic_store_n(&park->held, park->held - piece->bytes, __ATOMIC_RELAXED);
	park->nr_pieces--;
	return 0;
}

static struct hm_park *make(struct pool *p)
{
	struct hm_park *park = calloc(1, sizeof(*park));

	if (park && hm_registered_provider(p->res.hm, p->res.device, NULL, &park->provider) &&
	    (!p->opt.park_dir || hm_host_provider(p->res.hm, &park->provider))) {
		free(park);
		return NULL;
	}
	if (!park)
		no_host_memory();
	return park;
}

/* Copies. The lock is not held; in the device's context. */

uint64_t hm_park_same_state(const struct vmm *v, uint64_t addr, uint64_t bytes, bool *mapped)
{
	const uint32_t first = page_of(v, addr), last = page_of(v, addr + bytes - 1);
	uint32_t page = first;

	*mapped = v->map[first];
	while (page <= last && !v->map[page] == !*mapped)
		page++;
	return page > last ? bytes : page_addr(v, page) - addr;
}

/* All spans, or as many as can be copied. */
static int copy_spans(struct pool *p, struct hm_park *park, bool save)
{
	const struct hm_driver *d = &p->res.hm->driver;
	uint64_t in = 0, done, bytes, left = park->bytes, host, device;
	unsigned int at = 0;
	CUresult res;
	bool mapped;
	size_t i;
	int err;

	for (i = 0; i < park->nr_spans; i++) {
		const struct hm_span *s = &park->spans[i];

		for (done = 0; done < s->bytes; done += bytes) {
			if (at < park->nr_pieces && in == park->pieces[at].bytes) {
				at++;
				in = 0;
			}
			if (at == park->nr_pieces) {
				err = add_piece(park, left);
				if (err == -ENOMEM)
					no_room(park, park->held, "the host gives no more");
				if (err)
					return err;
			}
			bytes = park->pieces[at].bytes - in;
			if (bytes > s->bytes - done)
				bytes = s->bytes - done;
			host = (uintptr_t)park->pieces[at].ptr + in;
			device = s->addr + done;
			bytes = hm_park_same_state(vmm_of(p), device, bytes, &mapped);
			res = !mapped ? CUDA_SUCCESS :
				d->cuMemcpyAsync(save ? host : device, save ? device : host, bytes,
						 park->stream);
			if (res)
				return hm_driver_error(d, "cuMemcpyAsync", res);
			in += bytes;
			left -= bytes;
		}
	}
	return 0;
}

CUresult hm_park_finish(const struct hm_driver *d, CUstream stream)
{
	CUresult res = hm_retry_once(d->cuStreamSynchronize(stream));

	return res ? d->cuCtxSynchronize() : res;
}

static int make_stream(struct hm_park *park, const struct hm_driver *d)
{
	CUresult res = park->stream ? CUDA_SUCCESS :
		d->cuStreamCreate(&park->stream, CU_STREAM_NON_BLOCKING);

	if (!res)
		return 0;
	park->stream = NULL;
	return hm_driver_error(d, "cuStreamCreate", res);
}

/* Copies both ways end before this returns, after an error too. */
static int transfer(struct pool *p, struct hm_park *park, bool save)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_context saved;
	CUresult res;
	int err;

	err = hm_provider_enter(p->provider, &saved);
	if (err)
		return err;
	err = make_stream(park, d);
	if (!err) {
		hm_check_parks(p->res.hm, park->stream, true);
		err = copy_spans(p, park, save);
		hm_check_parks(p->res.hm, park->stream, false);
		res = hm_park_finish(d, park->stream);
		if (res && !err)
			err = hm_driver_error(d, "cuStreamSynchronize", res);
	}
	hm_context_leave(p->res.hm, &saved);
	return err;
}

static struct hm_contents contents_of(const struct hm_park *park)
{
	return (struct hm_contents){
		.staging = park->provider, .spans = park->spans, .nr = park->nr_spans,
		.bytes = park->bytes,
	};
}

/* To where park= says. */
static int save(struct pool *p, struct hm_park *park)
{
	const struct hm_contents c = contents_of(park);
	int err;

	if (!p->opt.park_dir) {
		err = has_room(p, park);
		return err ? err : transfer(p, park, true);
	}
	err = c.bytes ? hm_park_file_save(p, &c, &park->file) : 0;
	if (!err)
		__atomic_store_n(&park->in_file, c.bytes, __ATOMIC_RELAXED);
	return err;
}

static int load(struct pool *p, struct hm_park *park)
{
	const struct hm_contents c = contents_of(park);

	if (!p->opt.park_dir)
		return transfer(p, park, false);
	return park->file ? hm_park_file_load(p, &c, park->file) : 0;
}

int hm_park_save(struct pool *p, struct hm_park **out)
{
	struct hm_park *park = *out ? *out : make(p);
	int err;

	if (!park)
		return -ENOMEM;
	*out = park;
	park->kept = park->nr_pieces;
	vmm_of(p)->copying = true;
	err = find_spans(p, park);
	pthread_mutex_unlock(&p->lock);
	if (!err) {
		join_spans(p, park);
		err = save(p, park);
	}
	while (err && park->nr_pieces > park->kept && !hm_retry_once(drop_piece(park)))
		;
	pthread_mutex_lock(&p->lock);
	vmm_of(p)->copying = false;
	park->is_used = !err;
	return err;
}

/* The span that has @addr; or NULL, and *@next is where the next one begins. */
static const struct hm_span *span_around(const struct hm_park *park, uint64_t addr,
					 uint64_t *next)
{
	size_t low = 0, high = park->nr_spans, mid;

	/* Spans before @low begin at @addr or before it, the others behind it. */
	while (low < high) {
		mid = low + (high - low) / 2;
		if (park->spans[mid].addr <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	*next = low < park->nr_spans ? park->spans[low].addr : UINT64_MAX;
	if (!low || addr - park->spans[low - 1].addr >= park->spans[low - 1].bytes)
		return NULL;
	return &park->spans[low - 1];
}

/* Pieces fill one after the other. */
static void read_pieces(const struct hm_park *park, uint64_t at, uint64_t bytes, char *to)
{
	const struct piece *piece = park->pieces;
	uint64_t n;

	for (; at >= piece->bytes; piece++)
		at -= piece->bytes;
	for (; bytes; piece++, at = 0) {
		n = piece->bytes - at < bytes ? piece->bytes - at : bytes;
		memcpy(to, (char *)piece->ptr + at, n);
		to += n;
		bytes -= n;
	}
}

/*
 * Bytes from @addr on that are in one handle which the sleep left in place; 0: the addresses
 * have no memory. With the lock.
 */
static uint64_t in_place(const struct pool *p, uint64_t addr)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t page = page_of(v, addr);
	const struct mapping *m;
	const struct handle *h;

	if (!v->map[page] || hm_vmm_is_apart(v, page))
		return 0;
	m = mapping_at(v, v->map[page]);
	h = handle_at(v, m->handle);
	if (h->flags & (HANDLE_ASLEEP | HANDLE_TORN))
		return 0;
	return page_addr(v, m->page + h->pages) - addr;
}

static int read_in_place(struct pool *p, struct hm_park *park, uint64_t addr, uint64_t bytes,
			 void *to)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_context saved;
	CUresult res, sync;
	int err;

	err = hm_provider_enter(p->provider, &saved);
	if (err)
		return err;
	err = make_stream(park, d);
	if (!err) {
		hm_check_parks(p->res.hm, park->stream, true);
		res = d->cuMemcpyAsync((uintptr_t)to, addr, bytes, park->stream);
		hm_check_parks(p->res.hm, park->stream, false);
		sync = hm_park_finish(d, park->stream);
		if (res || sync)
			err = hm_driver_error(d, res ? "cuMemcpyAsync" : "cuStreamSynchronize",
					      res ? res : sync);
	}
	hm_context_leave(p->res.hm, &saved);
	return err;
}

/* Up to *@bytes from @addr on: in *@bytes, how many. With both locks; releases pool->lock. */
static int read_next(struct pool *p, struct hm_park *park, uint64_t addr, uint64_t *bytes,
		     void *to)
{
	uint64_t next, most, at;
	const struct hm_span *s = span_around(park, addr, &next);
	int err = 0;

	if (s)
		most = s->addr + s->bytes - addr;
	else
		most = in_place(p, addr);
	if (!most)
		return hm_error(-ENODATA, "parked_read: the block has no memory at %#llx",
				(unsigned long long)addr);
	if (!s && most > next - addr)
		most = next - addr;
	if (*bytes > most)
		*bytes = most;
	pthread_mutex_unlock(&p->lock);
	if (!s) {
		err = read_in_place(p, park, addr, *bytes, to);
	} else {
		at = s->at + (addr - s->addr);
		if (park->file)
			err = hm_park_file_read(p, park->file, at, *bytes, to);
		else
			read_pieces(park, at, *bytes, to);
	}
	pthread_mutex_lock(&p->lock);
	return err;
}

int hm_park_read(struct pool *p, struct hm_park *park, const struct hm_ctl_parked *arg)
{
	uint64_t done, n;
	int err = 0;

	vmm_of(p)->copying = true;
	for (done = 0; done < arg->size && !err; done += n) {
		n = arg->size - done;
		err = read_next(p, park, (uintptr_t)arg->ptr + done, &n, (char *)arg->to + done);
	}
	vmm_of(p)->copying = false;
	return err;
}

static uint64_t to_keep(const struct pool *p)
{
	const uint64_t others = hm_tags_parked(p);
	uint64_t available;

	if (p->opt.park_given)
		return p->opt.park > others ? p->opt.park - others : 0;
	available = hm_host_usable(p->res.hm);
	return available == HETMEM_MEMORY_UNKNOWN ? 0 : available / KEEP_SHARE;
}

int hm_park_load(struct pool *p, struct hm_park *park)
{
	int err;

	vmm_of(p)->copying = true;
	pthread_mutex_unlock(&p->lock);
	err = load(p, park);
	pthread_mutex_lock(&p->lock);
	vmm_of(p)->copying = false;
	return err;
}

void hm_park_end(struct pool *p, struct hm_park *park, bool undo)
{
	vmm_of(p)->copying = true;
	pthread_mutex_unlock(&p->lock);
	hm_park_file_close(park->file);
	park->file = NULL;
	__atomic_store_n(&park->in_file, 0, __ATOMIC_RELAXED);
	park->keep = to_keep(p);
	while (undo && park->nr_pieces > park->kept && !hm_retry_once(drop_piece(park)))
		;
	/* park=release: the host has its memory back when the wake returns. */
	while (p->opt.park_given && !park->keep && park->nr_pieces && !drop_piece(park))
		;
	pthread_mutex_lock(&p->lock);
	vmm_of(p)->copying = false;
	park->is_used = false;
}

bool hm_park_shrink(struct pool *p, struct hm_park *park, bool all)
{
	int err;

	if (!park || park->is_used || !park->nr_pieces ||
	    park->held <= (all ? 0 : park->keep))
		return false;
	pthread_mutex_unlock(&p->lock);
	err = drop_piece(park);
	pthread_mutex_lock(&p->lock);
	return !err;
}

uint64_t hm_park_held(const struct hm_park *park)
{
	return park ? __atomic_load_n(&park->held, __ATOMIC_RELAXED) : 0;
}

uint64_t hm_park_in_file(const struct hm_park *park)
{
	return park ? __atomic_load_n(&park->in_file, __ATOMIC_RELAXED) : 0;
}

void hm_park_free(struct pool *p, struct hm_park *park, bool forget)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_context saved;

	if (!park)
		return;
	while (!forget && park->nr_pieces && !hm_retry_once(drop_piece(park)))
		;
	if (!forget && park->stream && !hm_provider_enter(p->provider, &saved)) {
		hm_retry_once(d->cuStreamDestroy(park->stream));
		hm_context_leave(p->res.hm, &saved);
	}
	hm_park_file_close(park->file);
	park->provider->ops->destroy(park->provider);
	free(park->pieces);
	free(park->spans);
	free(park);
}
