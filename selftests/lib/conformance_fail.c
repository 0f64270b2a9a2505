// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Every driver call that a resource makes fails once, in turn: the nth call of
 * each name, for each n. Whatever fails says so and changes nothing: what was
 * not freed is freed by a second try, the resource goes on, and nothing is
 * left when it is destroyed. An argument: only rows that contain it.
 */
#include <fcntl.h>

#include "conformance.h"
#include "failing_calls.h"

/* Beyond this the same path is taken again. */
#define MOST	6

/* The same path over one provider as over another; the slow ones are left out. */
static bool is_run(const struct row *r)
{
	static const char *const left_out[] = {
		"pool(vmm,streams=retired)", "pool(vmm,max=24M,wait=100ms)",
		"retry(", "align(", "stats(pool", "device-pool", "unified", "stats(limit(guard",
	};
	size_t i;

	for (i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
		if (!strncmp(r->spec, left_out[i], strlen(left_out[i])))
			return false;
	return !(r->flags & CPU_ONLY);
}

/* What the library writes on stderr goes here. */
static int stderr_file;

struct held {
	void *p;
	size_t size;
	hetmem_stream stream;
};

/* What fails once succeeds when it is tried again. */
static void must_free(struct held *h, hetmem_stream s)
{
	int err;

	if (!h->p)
		return;
	err = hetmem_free(res, h->p, h->size, s);
	if (err)
		same(hetmem_free(res, h->p, h->size, s), 0);
	h->p = NULL;
}

static void get(struct held *h, size_t size, hetmem_stream s)
{
	h->p = NULL;
	h->size = size;
	h->stream = s;
	if (hetmem_alloc(res, size, 0, s, &h->p))
		expect(!h->p && strlen(hetmem_last_error()) > 5);
}

/* Fresh memory, reuse, other streams, what is recorded, trim and again. */
static void work_on(void)
{
	static const size_t sizes[] = { 1000, 300000, 2200000, 100, 500000 };
	struct held held[10];
	size_t freed, i;
	int round;

	for (round = 0; round < 2; round++) {
		for (i = 0; i < 10; i++) {
			size_t size = sizes[i % 5];

			if (row->largest && size > row->largest)
				size = row->largest;
			get(&held[i], size, streams[i % 3]);
		}
		for (i = 0; i < 10; i += 2) {
			if (held[i].p && i % 4 == 0)
				hetmem_record_stream(res, held[i].p,
						     streams[(i + 1) % 3]);
			must_free(&held[i], held[i].stream);
		}
		for (i = 0; i < 10; i += 2)
			get(&held[i], held[i].size, streams[(i + 1) % 3]);
		hetmem_poll(res);
		for (i = 0; i < 10; i++)
			must_free(&held[i], i == 3 ? HETMEM_STREAM_UNKNOWN :
				  held[i].stream);
		drv->cuStreamSynchronize(streams[0]);
		drv->cuStreamSynchronize(streams[1]);
		drv->cuStreamSynchronize(streams[2]);
		/* What devices had goes to the host, and back. */
		get(&held[0], held[2].size, HETMEM_STREAM_HOST);
		must_free(&held[0], HETMEM_STREAM_HOST);
		get(&held[0], held[2].size, streams[0]);
		must_free(&held[0], streams[0]);
		drv->cuStreamSynchronize(streams[0]);
		hetmem_trim(res, 0, &freed);
	}
}

static void usable(void)
{
	struct held h;

	get(&h, 2000, streams[0]);
	expect(h.p);
	must_free(&h, streams[0]);
}

/*
 * Runs with the @nth call of @call failing. Returns how many calls of that
 * name there were; < 0: the resource could not be made, which is right.
 */
static long run_failing(const char *call, unsigned int nth)
{
	long made;
	int err;

	if (!same(soft_rules(failing_rule(call, nth), NULL), 0))
		return 0;
	err = hetmem_resource_create(hm, row->spec, &res);
	if (!err)
		work_on();
	made = failing_made(call, nth);
	soft_rules(NULL, NULL);
	if (err) {
		expect(made >= nth);
		same(hetmem_resource_create(hm, row->spec, &res), 0);
	}
	usable();
	same(hetmem_resource_destroy(res), 0);
	return made;
}

/* Leaks, that the library tells on stderr when it is closed. */
static bool nothing_leaks(int fd)
{
	char text[2048];
	ssize_t n = tap_stderr_of(close_driver, fd, text, sizeof(text));

	if (n <= 0)
		return n == 0;
	printf("# %s", text);
	return false;
}

static long run_opened(const char *call, unsigned int nth)
{
	long made;

	open_driver("soft");
	made = run_failing(call, nth);
	expect(nothing_leaks(stderr_file));
	return made;
}

static void run_call(const char *call)
{
	unsigned int nth;
	long made = 0;

	failures = 0;
	for (nth = 1; nth <= MOST && !failures; nth++) {
		made = run_opened(call, nth);
		if (made < nth)
			break;
	}
	ok(nth > 1 && !failures, "%s: %s fails, %u of %ld", row->spec, call, nth - 1, made);
}

static void run_calls(void)
{
	size_t i;

	failures = 0;
	count_made(from)
		run_opened(NULL, from);
	ok(!failures, "%s: no call fails", row->spec);
	for (i = 0; i < NR_CALLS; i++)
		if (is_made[i])
			run_call(calls[i]);
}

int main(int argc, char **argv)
{
	char path[] = "/tmp/hetmem-fail-XXXXXX";

	stderr_file = mkstemp(path);
	unlink(path);
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	for (row = rows; row < rows + NR_ROWS; row++) {
		if (argc > 1 ? !strstr(row->spec, argv[1]) : !is_run(row))
			continue;
		run_calls();
	}
	return tap_end();
}
