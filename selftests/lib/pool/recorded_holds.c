// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How long a recorded program holds the pool's lock: the basic blocks that the library executes
 * in a row without a call of the driver. Each recording is replayed twice in one pool.
 *
 * The longest row is of a growth of gnn, which moves 248 handles: 13,200 blocks of some five
 * instructions, with gcc 12. MOST leaves a fifth more, as compilers differ. The longest one of
 * the other recordings was 9,300. Documentation/pool.md has both.
 *
 *	recorded_holds [RECORDING]...
 */
#include "holds.h"
#include "recording.h"

#define MOST		15800
#define MOST_OF_OTHERS	11200

/* Those that take less time. */
static const char *const recordings[] = { "gnn", "serve", "table", "training", "workers" };

static void work(const void *arg)
{
	const struct replay_trace *t = arg;
	const size_t nr = t->nr;
	struct replay r;
	size_t i;

	open_soft("");
	replay_begin(&r, t);
	need(!hetmem_resource_create(hm, "device-pool", &pool), "a pool: %s", hetmem_last_error());
	r.res = pool;
	watch();
	for (i = 0; i < 2 * nr; i++) {
		replay_step(&r, &t->steps[i % nr]);
		if (i % nr == nr - 1)
			replay_free_rest(&r, t);
	}
	unwatch();
	replay_end(&r, t);
}

static void one(const char *path)
{
	struct replay_trace *t = replay_trace_read(path);
	struct counted *c = counted;
	bool ended;

	need(t, "%s is read", path);
	*c = (struct counted){ 0 };
	ended = in_child(work, t);
	ok(ended && c->all && c->stretch <= (strcmp(t->name, "gnn") ? MOST_OF_OTHERS : MOST),
	   "%s: at most %lu basic blocks in a row, %lu with %lu calls of the driver; %lu times, in all %lu",
	   t->name, c->stretch, c->longest, c->longest_calls, c->holds, c->all);
	replay_trace_free(t);
}

int main(int argc, char **argv)
{
	char dir[4096], path[4096 + 32];
	size_t i;

	setenv("HETMEM_SOFT_MEMORY", "200G", 1);
	need(library_counts(), "the library counts its basic blocks");
	counted = shared_memory(sizeof(*counted));
	for (i = 1; i < (size_t)argc; i++)
		one(argv[i]);
	if (argc < 2)
		find_recordings(dir, sizeof(dir));
	for (i = 0; argc < 2 && i < sizeof(recordings) / sizeof(*recordings); i++) {
		snprintf(path, sizeof(path), "%s/%s.csv.gz", dir, recordings[i]);
		one(path);
	}
	return tap_end();
}
