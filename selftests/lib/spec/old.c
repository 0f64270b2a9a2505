// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Parameters that the next version refuses: each still works, and one line on stderr names
 * what to do instead, once in a process, whatever threads and specs give it.
 */
#include <pthread.h>
#include <stdio.h>

#include "by_spec.h"

#define THREADS	8

static const char *spec;
static char text[4096];
static int out;

static void *make_and_destroy(void *arg)
{
	struct hetmem_resource *res;

	if (!hetmem_resource_create(hm, spec, &res))
		hetmem_resource_destroy(res);
	return arg;
}

static void by_threads(void)
{
	pthread_t id[THREADS];
	int i;

	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&id[i], NULL, make_and_destroy, NULL), "a thread");
	for (i = 0; i < THREADS; i++)
		need(!pthread_join(id[i], NULL), "its end");
	make_and_destroy(NULL);
}

static void warns(const char *of, const char *line)
{
	spec = of;
	need(tap_stderr_of(by_threads, out, text, sizeof(text)) >= 0, "stderr");
	ok(!strcmp(text, line), "%s: %s", spec, *line ? "one warning" : "no warning");
	/* It is accepted all the same. */
	hetmem_resource_destroy(make(spec));
}

int main(void)
{
	FILE *file = tmpfile();

	need(file, "a file");
	out = fileno(file);
	open_soft("");
	warns("pool(vmm)", "");
	warns("device-pool", "");
	warns("pool(async)", "");
	warns("pool(registered)", "");
	warns("pool(vmm,reuse=order)",
	      "hetmem: spec: the next version refuses reuse= of pool: give max=: at that limit streams wait for each other\n");
	warns("classes(pinned,reuse=new)", "");
	warns("stats(pool(vmm,check=on))",
	      "hetmem: spec: the next version refuses check= of pool: put a guard around the pool: it finds blocks that are freed twice\n");
	/* An error has its own text. */
	spec = "pool(pinned(threads=1,node=1000))";
	need(tap_stderr_of(by_threads, out, text, sizeof(text)) >= 0, "stderr");
	is(strlen(text), 0, "no warning of what was not made");
	warns("pool(pinned(threads=1))",
	      "hetmem: spec: the next version refuses threads= of pinned: leave it out: the library chooses their number\n");
	warns("fallback(async(threshold=64M),registered(threads=2))",
	      "hetmem: spec: the next version refuses threshold= of async: call hetmem_trim(): it gives memory back\n");
	fclose(file);
	close_soft();
	return tap_end();
}
