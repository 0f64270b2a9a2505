// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks sent by UCX between two processes, on one GPU or two: contents and rates.
 *
 * A pair of processes is started for each spec. Each process has a block, and sends it to the
 * other in each way (put, tag, stream) and in both directions. The receiver compares the
 * contents of every transfer. A failure ends the pair alone: the next spec gets a new one.
 * "make transports" fetches UCX and builds this program.
 *
 * usage: ucx [--driver NAME] [--junk] [--one-gpu] MIB[,MIB...] ROUNDS SPEC...
 *
 * The pair sends a block of each size. The first round is one transfer, and its time includes
 * the registration. A later round is a batch, so that the time of a short message is its own.
 *
 * %d in a SPEC becomes the process's device. --junk allocates and frees other blocks first, so
 * that a pool's block lies in several handles. --one-gpu: both processes use device 0, as they
 * do where there is one GPU. SPECs of host memory need no GPU.
 */
#include <dlfcn.h>
#include <errno.h>
#include <hetmem.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { LIMIT = 40, JUNK = 96, SEGMENTS = 1024, SIZES = 16 };	/* LIMIT: seconds of one wait */
enum { BATCH = 64, BATCH_BYTES = 256 << 20 };			/* most of one round */
enum { ODD_MOST = 64 << 20 };		/* odd sizes are sent from a block of at most so much */

enum way { PUT, TAG, STREAM, WAYS };
static const char *const way_names[WAYS] = { "put", "tag", "stream" };

static struct {
	int me, in, out, device;
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h ep;
	bool gpu, one_gpu;
	int (*to_host)(void *host, unsigned long long from, size_t size);
	int (*to_device)(unsigned long long to, const void *host, size_t size);
	int (*synchronize)(void);
} self;

static _Noreturn void die(const char *what, const char *why)
{
	printf("  process %d: %s: %s\n", self.me, what, why);
	fflush(stdout);
	_exit(1);
}

static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		die(what, ucs_status_string(status));
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void tell(const void *data, size_t size)
{
	if (write(self.out, data, size) != (ssize_t)size)
		die("write", strerror(errno));
}

/* Progresses UCX while the peer has said nothing. */
static void hear(void *data, size_t size)
{
	struct pollfd in = { .fd = self.in, .events = POLLIN };
	double end = now() + LIMIT;
	char *to = data;

	while (size) {
		ssize_t n;

		while (poll(&in, 1, 0) == 0) {
			if (self.worker)
				ucp_worker_progress(self.worker);
			if (now() > end)
				die("the peer", "no answer in time");
		}
		n = read(self.in, to, size);
		if (n <= 0)
			die("the peer", "it has ended");
		to += n;
		size -= (size_t)n;
	}
}

/* Both processes are here. */
static void meet(void)
{
	char c = 'm';

	tell(&c, 1);
	hear(&c, 1);
}

static void finish(void *request, const char *what)
{
	double end = now() + LIMIT;
	ucs_status_t status;

	if (!request)
		return;
	if (UCS_PTR_IS_ERR(request))
		die(what, ucs_status_string(UCS_PTR_STATUS(request)));
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		ucp_worker_progress(self.worker);
		if (now() > end)
			die(what, "not complete in time");
	}
	must(status, what);
	ucp_request_free(request);
}

/* Makes the device's primary context current, and finds how to copy. False: there is no GPU. */
static bool use_device(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned int), (*get)(int *, int), (*retain)(void **, int), (*set)(void *);
	int (*count)(int *), n = 0, d;

	if (!lib)
		return false;
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&count = dlsym(lib, "cuDeviceGetCount");
	*(void **)&get = dlsym(lib, "cuDeviceGet");
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&set = dlsym(lib, "cuCtxSetCurrent");
	*(void **)&self.to_host = dlsym(lib, "cuMemcpyDtoH_v2");
	*(void **)&self.to_device = dlsym(lib, "cuMemcpyHtoD_v2");
	*(void **)&self.synchronize = dlsym(lib, "cuCtxSynchronize");
	if (!init || !count || !get || !retain || !set || !self.to_host || !self.to_device ||
	    !self.synchronize || init(0) || count(&n) || n < 1)
		return false;
	self.device = n > 1 && !self.one_gpu ? self.me : 0;
	if (get(&d, self.device) || retain(&context, d) || set(context))
		die("CUDA", "no context");
	return true;
}

static void fill(void *block, const uint32_t *host, size_t size)
{
	if (!self.gpu)
		memcpy(block, host, size);
	else if (self.to_device((uintptr_t)block, host, size) || self.synchronize())
		die("copy to the device", "it failed");
}

static void fetch(uint32_t *host, const void *block, size_t size)
{
	if (!self.gpu)
		memcpy(host, block, size);
	else if (self.to_host(host, (uintptr_t)block, size))
		die("copy from the device", "it failed");
}

static void connect_peer(void)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_STREAM };
	ucp_worker_params_t worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_ep_params_t ep = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	size_t length, peer_length;
	ucp_address_t *address;
	void *peer;

	must(ucp_init(&params, NULL, &self.context), "ucp_init");
	must(ucp_worker_create(self.context, &worker, &self.worker), "ucp_worker_create");
	must(ucp_worker_get_address(self.worker, &address, &length), "ucp_worker_get_address");
	tell(&length, sizeof(length));
	tell(address, length);
	hear(&peer_length, sizeof(peer_length));
	peer = malloc(peer_length);
	if (!peer)
		die("malloc", strerror(errno));
	hear(peer, peer_length);
	ep.address = peer;
	must(ucp_ep_create(self.worker, &ep, &self.ep), "ucp_ep_create");
	free(peer);
	ucp_worker_release_address(self.worker, address);
}

/* A put needs the receiver's key: it registers the block, and the sender unpacks the key. */
struct key {
	ucp_mem_h mem;
	ucp_rkey_h rkey;
	uint64_t address;
};

static void give_key(struct key *key, void *block, size_t size)
{
	ucp_mem_map_params_t params = { .address = block, .length = size,
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH };
	void *packed;
	size_t length;

	must(ucp_mem_map(self.context, &params, &key->mem), "ucp_mem_map");
	must(ucp_rkey_pack(self.context, key->mem, &packed, &length), "ucp_rkey_pack");
	key->address = (uintptr_t)block;
	tell(&key->address, sizeof(key->address));
	tell(&length, sizeof(length));
	tell(packed, length);
	ucp_rkey_buffer_release(packed);
}

static void take_key(struct key *key)
{
	size_t length;
	void *packed;

	hear(&key->address, sizeof(key->address));
	hear(&length, sizeof(length));
	packed = malloc(length);
	if (!packed)
		die("malloc", strerror(errno));
	hear(packed, length);
	must(ucp_ep_rkey_unpack(self.ep, packed, &key->rkey), "ucp_ep_rkey_unpack");
	free(packed);
}

/* Every put has arrived. */
static void flush(void)
{
	ucp_request_param_t param = { 0 };

	finish(ucp_ep_flush_nbx(self.ep, &param), "flush");
}

static void exchange_key(bool sends, struct key *key, void *block, size_t size)
{
	if (sends)
		take_key(key);
	else
		give_key(key, block, size);
}

/* The sender's first: the receiver's registration must outlive it. */
static void drop_key(struct key *key)
{
	if (key->rkey)
		ucp_rkey_destroy(key->rkey);
	meet();
	if (key->mem)
		must(ucp_mem_unmap(self.context, key->mem), "ucp_mem_unmap");
}

static void move(enum way way, bool sends, void *block, size_t size, const struct key *key)
{
	ucp_request_param_t param = { 0 };
	size_t length;

	switch (way) {
	case PUT:
		if (!sends)
			return;
		finish(ucp_put_nbx(self.ep, block, size, key->address, key->rkey, &param), "put");
		return;
	case TAG:
		if (sends)
			finish(ucp_tag_send_nbx(self.ep, block, size, 1, &param), "tag send");
		else
			finish(ucp_tag_recv_nbx(self.worker, block, size, 1, ~0ull, &param),
			       "tag receive");
		return;
	default:
		if (sends) {
			finish(ucp_stream_send_nbx(self.ep, block, size, &param), "stream send");
			return;
		}
		param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
		param.flags = UCP_STREAM_RECV_FLAG_WAITALL;
		finish(ucp_stream_recv_nbx(self.ep, block, size, &length, &param),
		       "stream receive");
	}
}

static uint32_t word_at(size_t i, uint32_t seed)
{
	return (uint32_t)i * 2654435761u + seed;
}

/*
 * Transfers of one way in one direction. The first and the last round are compared, and so is
 * each between them that has less than BATCH_BYTES. Process 1 reports the first and the best.
 */
static unsigned long transfers(enum way way, int sender, void *block, uint32_t *host, size_t size,
			       int rounds)
{
	bool sends = self.me == sender;
	double times[2] = { 0 }, t;	/* the first and the best */
	unsigned long bad = 0;
	struct key key = { 0 };
	int batch = size > BATCH_BYTES ? 1 : (int)(BATCH_BYTES / size);

	if (batch > BATCH)
		batch = BATCH;
	for (int r = 0; r < rounds; r++) {
		uint32_t seed = (uint32_t)(r + way * 1000 + sender * 100000);
		bool compare = r == 0 || r == rounds - 1 || size < BATCH_BYTES;

		if (compare) {
			for (size_t i = 0; i < size / 4; i++)
				host[i] = sends ? word_at(i, seed) : 0xeeeeeeee;
			fill(block, host, size);
		}
		meet();
		t = now();
		if (!r && way == PUT)
			exchange_key(sends, &key, block, size);
		for (int i = 0; i < (r ? batch : 1); i++)
			move(way, sends, block, size, &key);
		if (sends && way == PUT)
			flush();
		meet();
		t = (now() - t) / (r ? batch : 1);
		if (!r)
			times[0] = t;
		if (r <= 1 || t < times[1])
			times[1] = t;
		if (sends || !compare)
			continue;
		fetch(host, block, size);
		for (size_t i = 0; i < size / 4; i++)
			bad += host[i] != word_at(i, seed);
	}
	drop_key(&key);
	/*
	 * The receiver counts wrong words. The sender's clock counts: it starts before the transfer
	 * can start, and stops after the receiver has all of it. The receiver's can start too late.
	 */
	if (!sends) {
		tell(&bad, sizeof(bad));
		hear(times, sizeof(times));
	} else {
		tell(times, sizeof(times));
		hear(&bad, sizeof(bad));
	}
	if (self.me)
		printf("  %5zu MiB %-6s %s %9.2f GB/s, first %9.3f ms, %s\n", size >> 20,
		       way_names[way], sender ? "1 to 0" : "0 to 1",
		       (double)size / times[1] / 1e9, times[0] * 1e3, bad ? "WRONG" : "right");
	fflush(stdout);
	return bad;
}

/* Other blocks, so that the pool has free memory in parts of handles. */
static void junk(struct hetmem_resource *res, size_t largest)
{
	const size_t unit = largest / 256 > 16384 ? largest / 256 : 16384;

	static void *blocks[JUNK];
	static size_t sizes[JUNK];
	unsigned int seed = 7;

	for (int i = 0; i < JUNK; i++) {
		sizes[i] = (size_t)(1 + rand_r(&seed) % 24) * unit;
		if (hetmem_alloc(res, sizes[i], 0, NULL, &blocks[i]))
			die("hetmem_alloc", hetmem_last_error());
	}
	for (int i = 0; i < JUNK; i += 2)
		if (hetmem_free(res, blocks[i], sizes[i], NULL))
			die("hetmem_free", hetmem_last_error());
}

/*
 * Messages of no byte, of one byte, and of three bytes more than the first part. The bytes after
 * a message must keep their contents. Returns the number of wrong bytes.
 */
static unsigned long odd(enum way way, int sender, void *block, uint8_t *host, size_t size,
			 size_t part)
{
	const size_t lengths[] = { 0, 1, part + 3 < size ? part + 3 : size - 1 };
	bool sends = self.me == sender;
	struct key key = { 0 };
	unsigned long bad = 0, theirs = 0;

	if (way == PUT)
		exchange_key(sends, &key, block, size);
	for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
		size_t length = lengths[n], all;

		/* The processes' blocks can have different parts. */
		if (sends)
			tell(&length, sizeof(length));
		else
			hear(&length, sizeof(length));
		all = length + 64 < size ? length + 64 : size;
		for (size_t i = 0; i < all; i++)
			host[i] = sends ? (uint8_t)(i * 7 + n + (size_t)way) : 0xee;
		fill(block, (uint32_t *)host, all);
		meet();
		/* A stream has no empty messages. */
		if (length || way != STREAM)
			move(way, sends, block, length, &key);
		if (sends && way == PUT)
			flush();
		meet();
		if (sends)
			continue;
		fetch((uint32_t *)host, block, all);
		for (size_t i = 0; i < all; i++)
			bad += host[i] != (i < length ? (uint8_t)(i * 7 + n + (size_t)way) : 0xee);
	}
	drop_key(&key);
	if (sends) {
		hear(&theirs, sizeof(theirs));
		bad = theirs;
	} else {
		tell(&bad, sizeof(bad));
	}
	if (self.me)
		printf("  %5zu MiB %-6s %s odd sizes, %s\n", size >> 20, way_names[way],
		       sender ? "1 to 0" : "0 to 1", bad ? "WRONG" : "right");
	fflush(stdout);
	return bad;
}

/* Sends a block of @size in all ways. */
static unsigned long block_of(struct hetmem_resource *res, const char *spec, uint32_t *host,
			      size_t size, int rounds)
{
	static struct hetmem_segment segments[SEGMENTS];
	unsigned long bad = 0;
	double t = now();
	ssize_t parts;
	void *block;

	if (hetmem_alloc(res, size, 0, NULL, &block))
		die("hetmem_alloc", hetmem_last_error());
	t = now() - t;
	parts = hetmem_segments(res, block, size, segments, SEGMENTS);
	if (self.me)
		printf("%s: %zu MiB, %zd parts, allocated in %.3f ms\n", spec, size >> 20,
		       parts < 0 ? 1 : parts, t * 1e3);
	for (int way = 0; way < WAYS; way++)
		for (int sender = 0; sender < 2; sender++)
			bad += transfers(way, sender, block, host, size, rounds);
	for (int way = 0; way < WAYS && size <= ODD_MOST; way++)
		for (int sender = 0; sender < 2; sender++)
			bad += odd(way, sender, block, (uint8_t *)host, size,
				   parts > 0 ? segments[0].length : size);
	return bad;
}

static _Noreturn void process(const char *driver, const char *pattern, const size_t *sizes,
			      int nr_sizes, int rounds, bool fragment)
{
	struct hetmem_params params = { .size = sizeof(params), .driver = driver };
	const char *device = strstr(pattern, "%d");
	struct hetmem_resource *res;
	unsigned long bad = 0;
	size_t largest = 4096;
	struct hetmem *hm;
	uint32_t *host;
	char spec[256];

	for (int i = 0; i < nr_sizes; i++)
		largest = sizes[i] > largest ? sizes[i] : largest;
	host = malloc(largest);
	if (!host)
		die("malloc", strerror(errno));
	snprintf(spec, sizeof(spec), "%s", pattern);
	if (device) {
		self.gpu = use_device();
		if (!self.gpu)
			die(pattern, "no GPU");
		snprintf(spec, sizeof(spec), "%.*s%d%s", (int)(device - pattern), pattern,
			 self.device, device + 2);
	}
	if (hetmem_open(&hm, &params) || hetmem_resource_create(hm, spec, &res))
		die(spec, hetmem_last_error());
	connect_peer();
	/* The connection is made before the first transfer that is timed. */
	memset(host, 0, 4096);
	move(TAG, self.me == 0, host, 4096, NULL);
	move(TAG, self.me == 1, host, 4096, NULL);
	if (fragment)
		junk(res, largest);
	for (int i = 0; i < nr_sizes; i++)
		bad += block_of(res, spec, host, sizes[i], rounds);
	fflush(stdout);
	meet();
	_exit(bad != 0);
}

static int pair(const char *driver, const char *spec, const size_t *sizes, int nr_sizes,
		int rounds, bool fragment)
{
	int a[2], b[2], status, failed = 0;
	pid_t pids[2];

	if (pipe(a) || pipe(b)) {
		perror("pipe");
		return 1;
	}
	fflush(stdout);
	for (int me = 0; me < 2; me++) {
		pids[me] = fork();
		if (pids[me] < 0) {
			perror("fork");
			exit(1);
		}
		if (pids[me])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		self.me = me;
		self.in = me ? a[0] : b[0];
		self.out = me ? b[1] : a[1];
		close(me ? a[1] : b[1]);
		close(me ? b[0] : a[0]);
		process(driver, spec, sizes, nr_sizes, rounds, fragment);
	}
	close(a[0]), close(a[1]), close(b[0]), close(b[1]);
	for (int me = 0; me < 2; me++) {
		if (waitpid(pids[me], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
			failed = 1;
	}
	if (failed)
		printf("%s: FAILED\n", spec);
	return failed;
}

int main(int argc, char **argv)
{
	const char *driver = NULL;
	bool fragment = false;
	int i = 1, failed = 0, nr_sizes = 0, rounds;
	size_t sizes[SIZES];
	char *end;

	for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
		if (!strcmp(argv[i], "--junk"))
			fragment = true;
		else if (!strcmp(argv[i], "--one-gpu"))
			self.one_gpu = true;
		else if (!strcmp(argv[i], "--driver") && i + 1 < argc)
			driver = argv[++i];
		else
			argc = 0;
	}
	if (argc - i < 3) {
		fputs("usage: ucx [--driver NAME] [--junk] [--one-gpu] MIB[,MIB...] ROUNDS SPEC...\n", stderr);
		return 2;
	}
	end = argv[i];
	do {
		unsigned long mib = strtoul(end, &end, 10);

		if ((*end && *end != ',') || mib < 1 || mib > 16384 || nr_sizes == SIZES) {
			fprintf(stderr, "ucx: %s is no list of sizes in MiB\n", argv[i]);
			return 2;
		}
		sizes[nr_sizes++] = mib << 20;
	} while (*end++);
	i++;
	rounds = (int)strtol(argv[i++], &end, 10);
	if (*end || rounds < 1) {
		fprintf(stderr, "ucx: %s is not a number of rounds\n", argv[i - 1]);
		return 2;
	}
	for (; i < argc; i++)
		failed |= pair(driver, argv[i], sizes, nr_sizes, rounds, fragment);
	return failed;
}
