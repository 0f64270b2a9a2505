/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench transport: blocks that UCX sends between two processes, on two GPUs, on one, or in
 * host memory.
 *
 * A pair of processes is started for each spec, so a failure ends one pair alone. Each process has
 * a block of each size and sends it to the other by put, tag and stream. The receiver clears its
 * block, and compares all bytes of the first transfer and of the last one. Messages of 0 bytes, of
 * 1 byte, and of 3 bytes more than the block's first part are compared with the bytes after them.
 *
 * This process does not open the driver: CUDA does not survive a fork.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc.h"
#include "bench.h"
#include "driver/hetmem.h"
#include "options.h"
#include "spec/spec.h"
#include "ucx.h"
#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

#define MIB	((size_t)1 << 20)
/* Seconds that a process waits for its peer or for one transfer. */
#define LIMIT	30
/* Transfers that are timed together: so many, or as many as take so many seconds. */
#define BATCH		64
#define BATCH_SECONDS	0.02
#define BATCHES		2
/* Odd sizes are sent from blocks of at most so much. */
#define ODD_BYTES	(64 * MIB)
#define PARTS		4096

enum way { PUT, TAG, STREAM, WAYS };
static const char *const way_names[WAYS] = { "put", "tag", "stream" };

/* One way from one process to the other. */
struct transfer {
	double first, best;	/* seconds of the first transfer, with registration; of the best */
	uint64_t wrong;		/* bytes */
};

/* A pair reports this for each size. @error: why the pair ended. */
struct result {
	size_t size;
	size_t parts;
	bool soft;
	struct transfer ways[WAYS][2];	/* by the sender */
	char error[256];
};

struct row {
	const char *spec;
	struct result r;
};

/* One of the two processes. */
static struct {
	int me, in, out, report;
	const struct hm_driver *drv;	/* NULL: there is no device */
	struct ucx ucx;
	void *context, *worker, *ep;
} self;

static _Noreturn void die(const char *what, const char *why)
{
	struct result r = { 0 };
	ssize_t n;

	snprintf(r.error, sizeof(r.error), "%s: %s", what, why);
	n = write(self.report, &r, sizeof(r));
	_exit(n == (ssize_t)sizeof(r) ? 1 : 2);
}

static void must(int status, const char *what)
{
	if (status)
		die(what, self.ucx.status_string(status));
}

/* "": opened. Otherwise the reason. */
static const char *open_ucx(struct ucx *ucx)
{
	void *lib = dlopen("libucp.so.0", RTLD_NOW);

	if (!lib)
		return dlerror();
#define X(type, name, args)						\
	*(void **)&ucx->name = dlsym(lib, "ucp_" #name);		\
	if (!ucx->name)							\
		return dlerror();
	UCX_CALLS(X)
#undef X
	*(void **)&ucx->status_string = dlsym(lib, "ucs_status_string");
	return ucx->status_string ? "" : dlerror();
}

static void tell(const void *data, size_t size)
{
	if (write(self.out, data, size) != (ssize_t)size)
		die("the peer", strerror(errno));
}

/* Progresses UCX until the peer has sent @size bytes. */
static void hear(void *data, size_t size)
{
	struct pollfd in = { .fd = self.in, .events = POLLIN };
	const double end = now() + LIMIT;
	char *to = data;

	while (size) {
		ssize_t n;

		while (!poll(&in, 1, 0)) {
			if (self.worker)
				self.ucx.worker_progress(self.worker);
			if (now() > end)
				die("the peer", "no answer in time");
		}
		n = read(self.in, to, size);
		if (n <= 0)
			die("the peer", "it has ended");
		to += n;
		size -= n;
	}
}

/* Returns when both processes are here. */
static void meet(void)
{
	char c = 'm';

	tell(&c, 1);
	hear(&c, 1);
}

static void finish(void *request, const char *what)
{
	const double end = now() + LIMIT;
	int status;

	if ((uintptr_t)request >= (uintptr_t)UCX_LAST_ERROR)
		must((int)(intptr_t)request, what);
	if (!request)
		return;
	while ((status = self.ucx.request_check_status(request)) == UCX_INPROGRESS) {
		self.ucx.worker_progress(self.worker);
		if (now() > end)
			die(what, "not complete in time");
	}
	must(status, what);
	self.ucx.request_free(request);
}

static void copy(void *to, const void *from, size_t size)
{
	if (!self.drv)
		memcpy(to, from, size);
	else if (self.drv->cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, size, NULL) ||
		 self.drv->cuStreamSynchronize(NULL))
		die("cuMemcpyAsync", "the driver failed");
}

static void clear(void *block, size_t size)
{
	if (!self.drv)
		memset(block, 0xee, size);
	else if (self.drv->cuMemsetD8Async((uintptr_t)block, 0xee, size, NULL) ||
		 self.drv->cuStreamSynchronize(NULL))
		die("cuMemsetD8Async", "the driver failed");
}

static void connect_peer(void)
{
	const struct ucx_params params = {
		.mask = UCX_FEATURES, .features = UCX_TAG | UCX_RMA | UCX_STREAM,
	};
	const struct ucx_worker_params worker = { 0 };
	struct ucx_ep_params ep = { .mask = UCX_REMOTE_ADDRESS };
	unsigned int major, minor, release;
	size_t length, peer_length;
	void *address, *peer;

	self.ucx.get_version(&major, &minor, &release);
	must(self.ucx.init_version(major, minor, &params, NULL, &self.context), "ucp_init");
	must(self.ucx.worker_create(self.context, &worker, &self.worker), "ucp_worker_create");
	must(self.ucx.worker_get_address(self.worker, &address, &length),
	     "ucp_worker_get_address");
	tell(&length, sizeof(length));
	tell(address, length);
	hear(&peer_length, sizeof(peer_length));
	peer = xcalloc(1, peer_length);
	hear(peer, peer_length);
	ep.address = peer;
	must(self.ucx.ep_create(self.worker, &ep, &self.ep), "ucp_ep_create");
	free(peer);
	self.ucx.worker_release_address(self.worker, address);
}

/* A put needs the receiver's key: the receiver registers the block, the sender unpacks the key. */
struct key {
	void *mem, *rkey;
	uint64_t address;
};

static void give_key(struct key *key, void *block, size_t size)
{
	const struct ucx_map_params params = {
		.mask = UCX_MAP_ADDRESS | UCX_MAP_LENGTH, .address = block, .length = size,
	};
	size_t length;
	void *packed;

	must(self.ucx.mem_map(self.context, &params, &key->mem), "ucp_mem_map");
	must(self.ucx.rkey_pack(self.context, key->mem, &packed, &length), "ucp_rkey_pack");
	key->address = (uintptr_t)block;
	tell(&key->address, sizeof(key->address));
	tell(&length, sizeof(length));
	tell(packed, length);
	self.ucx.rkey_buffer_release(packed);
}

static void take_key(struct key *key)
{
	size_t length;
	void *packed;

	hear(&key->address, sizeof(key->address));
	hear(&length, sizeof(length));
	packed = xcalloc(1, length);
	hear(packed, length);
	must(self.ucx.ep_rkey_unpack(self.ep, packed, &key->rkey), "ucp_ep_rkey_unpack");
	free(packed);
}

/* The sender's first: the registration outlives the key. */
static void drop_key(struct key *key)
{
	if (key->rkey)
		self.ucx.rkey_destroy(key->rkey);
	meet();
	if (key->mem)
		must(self.ucx.mem_unmap(self.context, key->mem), "ucp_mem_unmap");
}

static void move(enum way way, bool sends, void *block, size_t size, const struct key *key)
{
	struct ucx_request param = { 0 };
	const struct ucx *u = &self.ucx;
	size_t length;

	if (way == PUT) {
		if (sends)
			finish(u->put_nbx(self.ep, block, size, key->address, key->rkey, &param),
			       "put");
	} else if (way == TAG && sends) {
		finish(u->tag_send_nbx(self.ep, block, size, 1, &param), "tag send");
	} else if (way == TAG) {
		finish(u->tag_recv_nbx(self.worker, block, size, 1, ~0ull, &param), "tag receive");
	} else if (sends) {
		finish(u->stream_send_nbx(self.ep, block, size, &param), "stream send");
	} else {
		param.mask = UCX_FLAGS;
		param.flags = UCX_WAIT_ALL;
		finish(u->stream_recv_nbx(self.ep, block, size, &length, &param),
		       "stream receive");
	}
}

/* After this every put has arrived. */
static void flush(void)
{
	struct ucx_request param = { 0 };

	finish(self.ucx.ep_flush_nbx(self.ep, &param), "flush");
}

/* @nr transfers, in seconds of one. Both processes return after the last one has arrived. */
static double timed(enum way way, bool sends, void *block, size_t size, struct key *key, int nr)
{
	double at;
	int i;

	meet();
	at = now();
	if (way == PUT && sends && !key->rkey)
		take_key(key);
	else if (way == PUT && !sends && !key->mem)
		give_key(key, block, size);
	for (i = 0; i < nr; i++)
		move(way, sends, block, size, key);
	if (way == PUT && sends)
		flush();
	meet();
	return (now() - at) / nr;
}

/*
 * Both processes have @pattern, of the largest size and a word more. Process 1 sends it from the
 * second word on. @back is room for a copy of the received block.
 */
struct contents {
	unsigned char *pattern, *back;
};

static const unsigned char *sent_by(const struct contents *c, int sender)
{
	return c->pattern + sender * sizeof(uint32_t);
}

static uint64_t count_wrong(const unsigned char *a, const unsigned char *b, size_t size)
{
	uint64_t wrong = 0;
	size_t i;

	if (!memcmp(a, b, size))
		return 0;
	for (i = 0; i < size; i++)
		wrong += a[i] != b[i];
	return wrong;
}

static uint64_t compare(const struct contents *c, int sender, const void *block, size_t size)
{
	copy(c->back, block, size);
	return count_wrong(c->back, sent_by(c, sender), size);
}

/* The sender decides: its clock starts before a transfer can, and stops after its end. */
static int agree(bool sends, int nr)
{
	if (sends)
		tell(&nr, sizeof(nr));
	else
		hear(&nr, sizeof(nr));
	return nr;
}

static void run_way(enum way way, int sender, void *block, size_t size, const struct contents *c,
		    struct transfer *t)
{
	const bool sends = self.me == sender;
	struct key key = { 0 };
	double seconds;
	int i, nr;

	if (sends)
		copy(block, sent_by(c, sender), size);
	else
		clear(block, size);
	t->first = t->best = timed(way, sends, block, size, &key, 1);
	t->wrong = sends ? 0 : compare(c, sender, block, size);
	if (agree(sends, t->first < 0.5))
		t->best = timed(way, sends, block, size, &key, 1);
	nr = t->best < BATCH_SECONDS / BATCH ? BATCH : BATCH_SECONDS / t->best;
	nr = agree(sends, nr);
	for (i = 0; i < BATCHES && nr; i++) {
		if (!sends && i == BATCHES - 1)
			clear(block, size);
		seconds = timed(way, sends, block, size, &key, nr);
		if (seconds < t->best)
			t->best = seconds;
	}
	if (!sends && nr)
		t->wrong += compare(c, sender, block, size);
	drop_key(&key);
}

/* Odd sizes. The bytes after a message keep their contents. */
static void run_odd(enum way way, int sender, void *block, size_t size, size_t part,
		    const struct contents *c, struct transfer *t)
{
	const size_t lengths[] = { 0, 1, part + 3 < size ? part + 3 : size - 1 };
	const bool sends = self.me == sender;
	struct key key = { 0 };
	size_t i, k;

	if (sends)
		copy(block, sent_by(c, sender), size);
	if (way == PUT && sends)
		take_key(&key);
	else if (way == PUT)
		give_key(&key, block, size);
	for (i = 0; i < ARRAY_SIZE(lengths); i++) {
		const size_t length = agree(sends, lengths[i]);

		/* A stream has no empty messages. */
		if (!length && way == STREAM)
			continue;
		if (!sends)
			clear(block, size);
		meet();
		move(way, sends, block, length, &key);
		if (sends && way == PUT)
			flush();
		meet();
		if (sends)
			continue;
		copy(c->back, block, size);
		t->wrong += count_wrong(c->back, sent_by(c, sender), length);
		for (k = length; k < size; k++)
			t->wrong += c->back[k] != 0xee;
	}
	drop_key(&key);
}

/* Process 1 reports. It has the times of those that it sent, and the wrong bytes of the others. */
static void share(struct result *r)
{
	struct transfer theirs;
	int way, sender;

	for (way = 0; way < WAYS; way++) {
		for (sender = 0; sender < 2; sender++) {
			struct transfer *t = &r->ways[way][sender];

			if (!self.me) {
				tell(t, sizeof(*t));
				continue;
			}
			hear(&theirs, sizeof(theirs));
			t->wrong += theirs.wrong;
			if (!sender) {
				t->first = theirs.first;
				t->best = theirs.best;
			}
		}
	}
}

static void run_size(struct hetmem_resource *res, size_t size, const struct contents *c, bool soft)
{
	static struct hetmem_segment segments[PARTS];
	struct result r = { .size = size, .parts = 1, .soft = soft };
	int way, sender;
	ssize_t parts;
	void *block;

	if (hetmem_alloc(res, size, 0, HETMEM_STREAM_LEGACY, &block))
		die("hetmem_alloc", hetmem_last_error());
	parts = hetmem_segments(res, block, size, segments, PARTS);
	if (parts > 0)
		r.parts = parts;
	for (way = 0; way < WAYS; way++)
		for (sender = 0; sender < 2; sender++)
			run_way(way, sender, block, size, c, &r.ways[way][sender]);
	for (way = 0; way < WAYS && size <= ODD_BYTES; way++)
		for (sender = 0; sender < 2; sender++)
			run_odd(way, sender, block, size,
				parts > 0 ? segments[0].length : size, c, &r.ways[way][sender]);
	share(&r);
	if (self.me && write(self.report, &r, sizeof(r)) != (ssize_t)sizeof(r))
		_exit(2);
	hetmem_free(res, block, size, HETMEM_STREAM_LEGACY);
}

static void make_contents(struct hetmem *hm, size_t size, struct contents *c)
{
	const char *spec = self.drv ? "pinned" : "system";
	struct hetmem_resource *res;
	void *pattern, *back;
	uint32_t *word;
	size_t i;

	if (hetmem_resource_create(hm, spec, &res) ||
	    hetmem_alloc(res, size + sizeof(*word), 0, HETMEM_STREAM_HOST, &pattern) ||
	    hetmem_alloc(res, size, 0, HETMEM_STREAM_HOST, &back))
		die(spec, hetmem_last_error());
	word = pattern;
	for (i = 0; i <= size / sizeof(*word); i++)
		word[i] = (uint32_t)i * UINT32_C(2654435761);
	c->pattern = pattern;
	c->back = back;
}

/* The parent sets this before it starts a pair. */
struct plan {
	const char *driver;
	const char *spec;
	size_t sizes[8];
	int nr;
};

static _Noreturn void process(const struct plan *plan)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = plan->driver, .module_path = "",
	};
	struct hetmem_resource *res;
	struct hm_context saved;
	struct contents c;
	size_t largest = 0;
	struct hetmem *hm;
	const char *why;
	int i, device;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (i = 0; i < plan->nr; i++)
		largest = plan->sizes[i] > largest ? plan->sizes[i] : largest;
	if (hetmem_open(&hm, &params))
		die("hetmem_open", hetmem_last_error());
	device = self.me && hm->nr_devices > 1;
	if (hm->nr_devices) {
		self.drv = hetmem_driver_table(hm);
		if (hm_context_enter(hm, device, &saved))
			die("a context", hetmem_last_error());
	}
	why = open_ucx(&self.ucx);
	if (*why)
		die("UCX", why);
	if (hm_resource_create_on(hm, plan->spec, device, &res))
		die(plan->spec, hetmem_last_error());
	connect_peer();
	make_contents(hm, largest, &c);
	/* The connection is made before the first transfer that is timed. */
	move(TAG, !self.me, c.back, 4096, NULL);
	move(TAG, self.me, c.back, 4096, NULL);
	for (i = 0; i < plan->nr; i++)
		run_size(res, plan->sizes[i], &c, hm->soft);
	meet();
	_exit(0);
}

/* The parent. */

/* Both have ended after this: each wait of theirs is bounded. */
static bool ended_well(const pid_t pids[2])
{
	bool good = true;
	int i, status;

	for (i = 0; i < 2; i++) {
		pid_t pid;

		do
			pid = waitpid(pids[i], &status, 0);
		while (pid < 0 && errno == EINTR);
		good &= pid == pids[i] && WIFEXITED(status) && !WEXITSTATUS(status);
	}
	return good;
}

static void start(const struct plan *plan, int me, const int ends[3][2], pid_t *pid)
{
	fflush(stdout);
	*pid = fork();
	if (*pid)
		return;
	self.me = me;
	self.in = ends[!me][0];
	self.out = ends[me][1];
	self.report = ends[2][1];
	/* The end of the peer ends what the pipe from it has. */
	close(ends[!me][1]);
	close(ends[me][0]);
	close(ends[2][0]);
	process(plan);
}

/* Runs a pair, and appends a row for each size. False: the pair failed. */
static bool run_pair(const struct plan *plan, struct row **rows, size_t *nr)
{
	int ends[3][2], i, made = 0, sizes = 0;
	pid_t pids[2] = { -1, -1 };
	struct row row = { .spec = plan->spec };
	bool good = false, failed = false;

	while (made < 3 && !pipe(ends[made]))
		made++;
	for (i = 0; i < 2 && made == 3; i++)
		start(plan, i, (const int (*)[2])ends, &pids[i]);
	for (i = 0; i < made; i++) {
		close(ends[i][1]);
		if (i < 2)
			close(ends[i][0]);
	}
	if (made < 3 || pids[0] < 0 || pids[1] < 0) {
		complain(EXIT_FAILED, "bench", "no pair of processes: %s", strerror(errno));
	} else {
		while (read(ends[2][0], &row.r, sizeof(row.r)) == (ssize_t)sizeof(row.r)) {
			/* The first error is the reason: the peer then ends, too. */
			if (*row.r.error) {
				if (!failed)
					complain(EXIT_FAILED, "bench", "%s: %s", plan->spec,
						 row.r.error);
				failed = true;
				continue;
			}
			sizes++;
			*rows = xrealloc_array(*rows, *nr + 1, sizeof(**rows));
			(*rows)[(*nr)++] = row;
		}
		good = ended_well(pids) && !failed && sizes == plan->nr;
	}
	if (made == 3)
		close(ends[2][0]);
	return good;
}

static double rate(size_t size, const struct transfer *t)
{
	return size / t->best / 1e9;
}

/* The first spec is the peer of the others. */
static const struct row *peer_of(const struct row *rows, size_t nr, const struct row *row)
{
	size_t i;

	for (i = 0; i < nr; i++)
		if (!strcmp(rows[i].spec, rows[0].spec) && rows[i].r.size == row->r.size)
			return &rows[i];
	return NULL;
}

/* The least rate of all ways and directions beside the peer's, and the most of first uses. */
static void beside(const struct row *row, const struct row *peer, double *slowest, double *first)
{
	int way, sender;

	*slowest = -1;
	*first = -1;
	for (way = 0; way < WAYS && peer; way++) {
		for (sender = 0; sender < 2; sender++) {
			const struct transfer *t = &row->r.ways[way][sender];
			const struct transfer *p = &peer->r.ways[way][sender];

			if (*slowest < 0 || p->best / t->best < *slowest)
				*slowest = p->best / t->best;
			if (t->first / p->first > *first)
				*first = t->first / p->first;
		}
	}
}

static uint64_t wrong_of(const struct result *r)
{
	uint64_t wrong = 0;
	int way;

	for (way = 0; way < WAYS; way++)
		wrong += r->ways[way][0].wrong + r->ways[way][1].wrong;
	return wrong;
}

static void print_table(const struct row *rows, size_t nr)
{
	static const struct table_column columns[] = {
		{ "SPEC", false }, { "MIB", true }, { "PARTS", true }, { "PUT", true },
		{ "TAG", true }, { "STREAM", true }, { "FIRST PUT", true }, { "FIRST TAG", true },
		{ "RATE", true }, { "FIRST", true }, { "CONTENTS", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	char cells[ARRAY_SIZE(columns)][64];
	const char *texts[ARRAY_SIZE(columns)];
	double slowest, first;
	size_t i, c;
	int way;

	puts("GB/s from process 0 to 1 and from 1 to 0; ms of the first use, the slower one.\n"
	     "RATE and FIRST: the worst of all ways beside those of the first spec.\n");
	for (i = 0; i < nr; i++) {
		const struct result *r = &rows[i].r;

		beside(&rows[i], peer_of(rows, nr, &rows[i]), &slowest, &first);
		snprintf(cells[1], sizeof(cells[1]), "%zu", r->size / MIB);
		snprintf(cells[2], sizeof(cells[2]), "%zu", r->parts);
		for (way = 0; way < WAYS; way++)
			snprintf(cells[3 + way], sizeof(cells[0]), "%.3g/%.3g",
				 rate(r->size, &r->ways[way][0]), rate(r->size, &r->ways[way][1]));
		for (way = 0; way < STREAM; way++)
			snprintf(cells[6 + way], sizeof(cells[0]), "%.2f",
				 1e3 * (r->ways[way][0].first > r->ways[way][1].first ?
					r->ways[way][0].first : r->ways[way][1].first));
		snprintf(cells[8], sizeof(cells[8]), slowest < 0 ? "-" : "%.2f", slowest);
		snprintf(cells[9], sizeof(cells[9]), first < 0 ? "-" : "%.2f", first);
		snprintf(cells[10], sizeof(cells[10]), "%s", wrong_of(r) ? "WRONG" : "right");
		for (c = 1; c < ARRAY_SIZE(columns); c++)
			texts[c] = cells[c];
		texts[0] = rows[i].spec;
		table_row(table, texts);
	}
	table_print(table);
}

#ifdef HAVE_JSON_C
static struct json_object *figure(double value)
{
	return json_figure(value, "%.4g");
}

static struct json_object *json_row(const struct row *row, const struct row *peer, int way,
				    int sender)
{
	const struct transfer *t = &row->r.ways[way][sender];
	const struct transfer *p = peer ? &peer->r.ways[way][sender] : NULL;
	struct json_object *object = json_object_new_object();

	json_object_object_add(object, "spec", json_text(row->spec));
	json_object_object_add(object, "bytes", json_count(row->r.size));
	json_object_object_add(object, "parts", json_count(row->r.parts));
	json_object_object_add(object, "way", json_text(way_names[way]));
	json_object_object_add(object, "from", json_object_new_int(sender));
	json_object_object_add(object, "gb_s", figure(rate(row->r.size, t)));
	json_object_object_add(object, "first_ms", figure(t->first * 1e3));
	json_object_object_add(object, "peer", json_text(p ? peer->spec : NULL));
	json_object_object_add(object, "rate_ratio", figure(p ? p->best / t->best : -1));
	json_object_object_add(object, "first_ratio", figure(p ? t->first / p->first : -1));
	json_object_object_add(object, "wrong_bytes", json_count(t->wrong));
	if (row->r.soft)
		json_object_object_add(object, "times_why", json_text(SOFT_TIMES));
	return object;
}

static void print_json(const struct row *rows, size_t nr)
{
	struct json_object *array = json_object_new_array();
	int way, sender;
	size_t i;

	for (i = 0; i < nr; i++)
		for (way = 0; way < WAYS; way++)
			for (sender = 0; sender < 2; sender++)
				json_object_array_add(array, json_row(&rows[i],
						peer_of(rows, nr, &rows[i]), way, sender));
	puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PRETTY));
	json_object_put(array);
}
#else
static void print_json(const struct row *rows, size_t nr)
{
	(void)rows;
	(void)nr;
}
#endif

/* Asked in a process of its own, which may open the driver. */
static bool has_device(const char *driver)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = driver, .module_path = "",
	};
	struct hetmem *hm;
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(hetmem_open(&hm, &params) || hm->soft || !hm->nr_devices);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return pid > 0 && WIFEXITED(status) && !WEXITSTATUS(status);
}

int bench_transport(int argc, char **argv)
{
	static const char *const on_gpu[] = {
		"device", "device-pool", "async", "pool(vmm,comm=on)", "pool(vmm(export=fd))",
		"pool(vmm,comm=on,handle=2M)", "pool(vmm,comm=on,handle=16M)",
		"pool(vmm,comm=on,handle=64M)", "pool(vmm,comm=on,handle=256M)",
		"pool(vmm,comm=on,handle=1G)", "pool(vmm,handle=2M)", "pool(vmm,handle=64M)",
		"pool(vmm,handle=1G)", "fixed(pool(vmm),size=1G,count=1,comm=on)", NULL,
	};
	static const char *const on_host[] = { "system", "host", "pool(host)", NULL };
	static const size_t gpu_sizes[] = { 1, 16, 128, 1024 }, host_sizes[] = { 1, 5 };
	struct bench_options o = { 0 };
	struct row *rows = NULL;
	struct plan plan = { 0 };
	bool gpu, good = true, right = true;
	size_t nr = 0, i;
	struct ucx ucx;
	const char *why;
	int status = bench_parse(&o, argc, argv,
		"Usage: hetmem bench transport [--spec SPEC]... [--size MIB] [--driver DRIVER]\n"
		"                              [--json]\n"
		"Blocks that UCX sends between two processes, each with its own GPU, with the\n"
		"only one, or in host memory: by put, tag and stream, in both directions, with\n"
		"contents compared. Rates and first uses are beside those of the first spec.\n"
		"LD_LIBRARY_PATH is where libucp.so.0 of UCX is, if the system has none. By\n"
		"default 1, 16, 128 and 1024 MiB are sent, without a GPU 1 and 5 MiB.");

	if (status >= 0)
		return status;
	why = open_ucx(&ucx);
	if (*why)
		return complain(EXIT_FAILED, "bench", "transport: UCX is needed: %s", why);
	gpu = has_device(o.driver);
	if (!o.nr_specs)
		for (i = 0; (gpu ? on_gpu : on_host)[i]; i++)
			o.specs[o.nr_specs++] = (gpu ? on_gpu : on_host)[i];
	plan.driver = o.driver;
	plan.nr = o.size ? 1 : gpu ? ARRAY_SIZE(gpu_sizes) : ARRAY_SIZE(host_sizes);
	for (i = 0; i < (size_t)plan.nr; i++)
		plan.sizes[i] = o.size ? o.size : (gpu ? gpu_sizes : host_sizes)[i] * MIB;
	for (i = 0; i < (size_t)o.nr_specs; i++) {
		plan.spec = o.specs[i];
		good &= run_pair(&plan, &rows, &nr);
	}
	for (i = 0; i < nr; i++)
		right &= !wrong_of(&rows[i].r);
	if (o.json) {
		print_json(rows, nr);
	} else if (nr) {
		if (rows[0].r.soft)
			puts(SOFT_TIMES ".\n");
		print_table(rows, nr);
	}
	free(rows);
	return good && right ? EXIT_OK : EXIT_FAILED;
}
