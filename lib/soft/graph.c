// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's graphs: tasks, each with those that it depends on. A launch
 * gives all of them to one stream, in an order that the dependencies allow. The
 * next launch takes another order. HETMEM_SOFT_SEED determines the orders, so a
 * run can be repeated. Launches of one executable are ordered, whatever streams
 * they are on.
 *
 * For check mode the tasks are cut into branches: chains in which each depends
 * on the one before. A node's clock is that of the launch and of all it depends
 * on. At the end the stream is ordered after all branches.
 *
 * Memory that was allocated while capturing is a node: addresses that belong
 * to the graph, and memory behind them from a launch until it is freed, be it
 * in the same graph, in another one, or by cuMemFreeAsync() after the launch.
 * As any other memory here it is there earlier than promised, when the launch
 * is given; it goes in stream order. While it is there the graph cannot be
 * launched again, unless it frees it itself or was instantiated to.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "soft/soft.h"

#define AUTO_FREE_ON_LAUNCH	1	/* of cuda.h's flags of an executable */

struct CUgraph_st *hm_soft_graph_new(struct CUgraph_st **list)
{
	struct CUgraph_st *g = calloc(1, sizeof(*g));

	if (g) {
		g->next = *list;
		*list = g;
	}
	return g;
}

void hm_soft_front_free(struct soft_front *front)
{
	free(front->nodes);
	*front = (struct soft_front){ 0 };
}

bool hm_soft_front_join(struct soft_front *front, const struct soft_front *with)
{
	unsigned int i, j, *more;

	if (!with->nr)
		return true;
	more = realloc(front->nodes,
		       ((size_t)front->nr + with->nr) * sizeof(*more));
	if (!more)
		return false;
	front->nodes = more;
	for (i = 0; i < with->nr; i++) {
		for (j = 0; j < front->nr; j++)
			if (more[j] == with->nodes[i])
				break;
		if (j == front->nr)
			more[front->nr++] = with->nodes[i];
	}
	return true;
}

void hm_soft_graph_append(struct CUgraph_st *g, struct soft_task *task)
{
	task->number = g->nr++;
	if (g->last)
		g->last->next = task;
	else
		g->first = task;
	g->last = task;
}

static bool allocates(const struct soft_task *task)
{
	return task->node && !task->run;
}

void hm_soft_graph_free(struct CUgraph_st **list, struct CUgraph_st *g)
{
	const bool exec = list == &hm_soft_world->execs;
	struct soft_task *task;

	while (*list != g)
		list = &(*list)->next;
	*list = g->next;
	while ((task = g->first)) {
		g->first = task->next;
		if (exec && allocates(task))
			task->node->execs--;
		hm_soft_task_put(task);
	}
	hm_soft_task_put(g->done);
	hm_check_clock_free(&g->clock);
	while (g->actors && g->nr_branches)
		hm_check_clock_free(&g->actors[--g->nr_branches].clock);
	free(g->actors);
	free(g);
}

void hm_soft_free_graphs(struct soft_world *w)
{
	hm_soft_free_captures(w);
	while (w->graphs) {
		if (w->debug)
			hm_soft_leak("graph", (uintptr_t)w->graphs, 0);
		hm_soft_graph_free(&w->graphs, w->graphs);
	}
	while (w->execs) {
		if (w->debug)
			hm_soft_leak("executable graph", (uintptr_t)w->execs,
				     0);
		hm_soft_graph_free(&w->execs, w->execs);
	}
}

static bool is_graph(const struct CUgraph_st *list, const void *g)
{
	for (; list; list = list->next)
		if (list == g)
			return true;
	return false;
}

void hm_soft_node_put(struct soft_node *node)
{
	if (!node || --node->refs)
		return;
	hm_range_erase(&hm_soft_world->nodes, &node->range);
	munmap((void *)node->range.start,
	       node->range.end - node->range.start);
	free(node);
}

static struct soft_node *find_node(uintptr_t addr)
{
	struct hm_range *r = hm_range_find(&hm_soft_world->nodes, addr, 1);

	return r && r->start == addr ? (struct soft_node *)r : NULL;
}

static struct soft_node *new_node(struct CUctx_st *ctx, size_t size)
{
	const size_t mask = hm_soft_world->page_size - 1;
	struct soft_node *node = calloc(1, sizeof(*node));
	size_t len = (size + mask) & ~mask;
	void *p;

	if (!node)
		return NULL;
	p = mmap(NULL, len, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		goto fail;
	node->range.start = (uintptr_t)p;
	node->range.end = node->range.start + len;
	node->size = size;
	node->ctx = ctx;
	node->refs = 1;
	if (!hm_range_insert(&hm_soft_world->nodes, &node->range))
		return node;
	munmap(p, len);
fail:
	free(node);
	return NULL;
}

CUresult hm_soft_graph_alloc(struct CUstream_st *s, size_t size,
			     CUdeviceptr *ptr)
{
	struct soft_task *task;

	if (hm_soft_capture_broken(s))
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*ptr = 0;
	if (!size)
		return CUDA_SUCCESS;
	if (size > s->ctx->capacity)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->node = new_node(s->ctx, size);
	if (!task->node) {
		hm_soft_task_put(task);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = task->node->range.start;
	return hm_soft_capture_task(s, task);
}

/* In its place in the stream: the memory goes, the addresses stay. */
static CUresult run_free(struct CUctx_st *ctx, struct soft_task *task)
{
	struct soft_node *node = task->node;

	(void)ctx;
	hm_soft_lock();
	if (node->memory && !--node->live)
		hm_soft_drop_memory(node->memory);
	hm_soft_unlock();
	return CUDA_SUCCESS;
}

static bool frees(const struct CUgraph_st *g, const struct soft_node *node)
{
	const struct soft_task *task;

	for (task = g->first; task; task = task->next)
		if (task->node == node && task->run)
			return true;
	return false;
}

CUresult hm_soft_graph_mem_free(struct CUstream_st *s, uintptr_t ptr)
{
	struct soft_node *node = find_node(ptr);
	struct soft_task *task;

	if (hm_soft_capture_broken(s))
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!node || frees(hm_soft_capture_graph(s), node))
		return CUDA_ERROR_INVALID_VALUE;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->run = run_free;
	task->always = true;
	task->node = node;
	node->refs++;
	return hm_soft_capture_task(s, task);
}

/* What @task does, once more. */
static struct soft_task *copy_task(const struct soft_task *task)
{
	struct soft_task *copy = hm_soft_task();
	size_t size = task->nr_ranges * sizeof(*task->ranges);

	if (!copy)
		return NULL;
	copy->always = task->always;
	copy->run = task->run;
	copy->delay = task->delay;
	copy->dst = task->dst;
	copy->src = task->src;
	copy->size = task->size;
	copy->value = task->value;
	copy->fn = task->fn;
	copy->what = task->what;
	copy->uses_dst = task->uses_dst;
	copy->uses_src = task->uses_src;
	if (size) {
		copy->ranges = malloc(size);
		if (!copy->ranges) {
			hm_soft_task_put(copy);
			return NULL;
		}
		memcpy(copy->ranges, task->ranges, size);
		copy->nr_ranges = task->nr_ranges;
	}
	copy->node = task->node;
	if (copy->node)
		copy->node->refs++;
	return copy;
}

/* There is one executable at a time of what allocates. */
static bool is_taken(const struct CUgraph_st *g)
{
	const struct soft_task *task;

	for (task = g->first; task; task = task->next)
		if (allocates(task) && task->node->execs)
			return true;
	return false;
}

/* What an executable has and a graph has not. False: no memory. */
static bool add_branches(struct CUgraph_st *g)
{
	unsigned int *branch_of = malloc(((size_t)g->nr + 1) * 2 * sizeof(int));
	unsigned int *tail = branch_of + g->nr;
	struct soft_task *task;
	unsigned int i;

	if (!branch_of)
		return false;
	for (task = g->first; task; task = task->next) {
		task->branch = g->nr_branches;
		for (i = 0; i < task->after.nr; i++) {
			unsigned int before = task->after.nodes[i];

			if (tail[branch_of[before]] == before)
				task->branch = branch_of[before];
		}
		g->nr_branches += task->branch == g->nr_branches;
		branch_of[task->number] = task->branch;
		tail[task->branch] = task->number;
	}
	free(branch_of);
	g->actors = calloc(g->nr_branches + 1, sizeof(*g->actors));
	if (!g->actors)
		return false;
	for (i = 0; i < g->nr_branches; i++)
		hm_check_actor(&g->actors[i], g->id, i + 1);
	return true;
}

static CUresult instantiate(struct CUgraph_st *graph, bool auto_free,
			    struct CUgraph_st **exec)
{
	struct soft_world *w = hm_soft_world;
	struct soft_task *task, *copy;
	struct CUgraph_st *g;

	if (!is_graph(w->graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_taken(graph))
		return CUDA_ERROR_NOT_SUPPORTED;
	g = hm_soft_graph_new(&w->execs);
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->auto_free = auto_free;
	g->id = ++w->next_id;
	for (task = graph->first; task; task = task->next) {
		copy = copy_task(task);
		if (!copy)
			goto fail;
		if (allocates(copy))
			copy->node->execs++;
		hm_soft_graph_append(g, copy);
		if (!hm_soft_front_join(&copy->after, &task->after))
			goto fail;
	}
	if (!add_branches(g))
		goto fail;
	*exec = g;
	return CUDA_SUCCESS;
fail:
	hm_soft_graph_free(&w->execs, g);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult graph_instantiate(CUgraphExec *exec, CUgraph graph,
				  unsigned long long flags)
{
	struct CUgraph_st *g;
	CUresult res;

	SOFT_ENTER(cuGraphInstantiateWithFlags);
	if (flags & ~(unsigned long long)AUTO_FREE_ON_LAUNCH)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	res = hm_soft_unsafe();
	if (!res)
		res = instantiate(graph, flags & AUTO_FREE_ON_LAUNCH, &g);
	hm_soft_unlock();
	if (!res)
		*exec = (CUgraphExec)g;
	return res;
}

/*
 * Whether the memory of every node is as this launch needs it. *@wait: a free
 * that is under way is all that is in the way.
 */
static CUresult look_at_nodes(const struct CUgraph_st *g, bool *wait)
{
	const struct soft_task *task, *before;

	*wait = false;
	for (task = g->first; task; task = task->next) {
		const struct soft_node *node = task->node;

		if (!node)
			continue;
		if (allocates(task) && node->memory) {
			if (frees(g, node))
				continue;
			if (node->memory->freeing)
				*wait = true;
			else if (!g->auto_free)
				return CUDA_ERROR_INVALID_VALUE;
			continue;
		}
		if (allocates(task))
			continue;
		for (before = g->first; before != task; before = before->next)
			if (before->node == node)
				break;
		if (before == task && (!node->memory || node->memory->freeing))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult make_memory(struct soft_node *node)
{
	const size_t len = node->range.end - node->range.start;
	struct soft_world *w = hm_soft_world;
	struct soft_memory *m;

	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (hm_soft_charge(node->ctx, len)) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->range = node->range;
	m->size = node->size;
	m->kind = SOFT_DEVICE;
	m->ctx = node->ctx;
	m->id = ++w->next_id;
	m->node = node;
	if (hm_range_insert(&w->memory, &m->range)) {
		hm_soft_uncharge(node->ctx, len);
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	node->memory = m;
	node->refs++;
	if (!mprotect((void *)m->range.start, len, PROT_READ | PROT_WRITE))
		return CUDA_SUCCESS;
	hm_soft_drop_memory(m);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fill_node(const struct CUgraph_st *g, struct soft_node *node)
{
	CUresult res = CUDA_SUCCESS;

	node->fresh = !node->memory;
	if (node->fresh)
		res = make_memory(node);
	if (!res && (node->fresh || frees(g, node)))
		node->live++;
	return res;
}

static void empty_node(const struct CUgraph_st *g, struct soft_node *node)
{
	if (node->fresh)
		hm_soft_drop_memory(node->memory);
	else if (frees(g, node))
		node->live--;
}

/* Memory for all nodes that have none, or for none of them. */
static CUresult fill_nodes(const struct CUgraph_st *g)
{
	struct soft_task *task, *undo;
	CUresult res;

	for (task = g->first; task; task = task->next) {
		res = allocates(task) ? fill_node(g, task->node) :
			CUDA_SUCCESS;
		if (!res)
			continue;
		for (undo = g->first; undo != task; undo = undo->next)
			if (allocates(undo))
				empty_node(g, undo->node);
		return res;
	}
	return CUDA_SUCCESS;
}

static CUresult prepare(const struct CUgraph_st *g)
{
	bool wait, waited = false;
	CUresult res;

	for (;;) {
		if (!is_graph(hm_soft_world->execs, g))
			return CUDA_ERROR_INVALID_VALUE;
		res = look_at_nodes(g, &wait);
		if (!res && !wait)
			res = fill_nodes(g);
		if (waited || (!wait && res != CUDA_ERROR_OUT_OF_MEMORY))
			return res;
		hm_soft_drain(NULL);
		waited = true;
	}
}

/* A task and the time by which it is done, as drawn. */
struct turn {
	double time;
	struct soft_task *task;
};

/**
 * struct launch - of an executable, on a stream
 * @turns: its tasks in the order of this launch
 * @clocks: of nodes that are submitted, for check mode
 */
struct launch {
	struct CUgraph_st *g;
	struct CUstream_st *s;
	struct turn *turns;
	struct soft_clock *clocks;
};

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static int by_turn(const void *a, const void *b)
{
	const struct turn *x = a, *y = b;

	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	return x->task->number < y->task->number ? -1 : 1;
}

/*
 * Each takes a random time and begins when all that it depends on is done. Each
 * branch has a random speed, so that a long one can be done before a short one
 * begins. Every order that the dependencies allow is possible.
 */
static void draw_order(struct launch *l)
{
	const uint64_t seed = hm_soft_world->seed;
	uint64_t draw, takes, slow;
	struct soft_task *task;
	struct turn *turn;
	unsigned int i;

	draw = mix(mix(mix(seed) + l->g->id) + l->g->launches);
	for (task = l->g->first; task; task = task->next) {
		turn = &l->turns[task->number];
		turn->task = task;
		for (i = 0; i < task->after.nr; i++) {
			const struct turn *before =
				&l->turns[task->after.nodes[i]];

			if (turn->time < before->time)
				turn->time = before->time;
		}
		takes = mix(draw + task->number) >> 40;
		slow = mix(~draw + task->branch) % 12;
		if (seed)
			turn->time += (takes + 1) * (double)(1UL << slow);
	}
	qsort(l->turns, l->g->nr, sizeof(*l->turns), by_turn);
}

static void end_launch(struct launch *l)
{
	unsigned int i;

	for (i = 0; l->clocks && i < l->g->nr; i++)
		hm_check_clock_free(&l->clocks[i]);
	free(l->clocks);
	free(l->turns);
}

/* The point where it begins, ordered after the previous launch. */
static CUresult begin_launch(struct launch *l, struct CUgraph_st *g,
			     struct CUstream_st *s, uint64_t delay)
{
	struct soft_task *point = hm_soft_task();
	CUresult res;

	*l = (struct launch){ .g = g, .s = s };
	l->turns = calloc((size_t)g->nr + 1, sizeof(*l->turns));
	l->clocks = calloc((size_t)g->nr + 1, sizeof(*l->clocks));
	if (!point || !l->turns || !l->clocks) {
		hm_soft_task_put(point);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	point->delay = delay;
	res = hm_soft_submit(s, point, g->done, NULL);
	if (res)
		return res;
	hm_check_join(&s->actor.clock, &g->clock);
	draw_order(l);
	g->launches++;
	return CUDA_SUCCESS;
}

static CUresult submit(struct launch *l, struct soft_task *task)
{
	struct soft_actor *actor = &l->g->actors[task->branch];
	struct soft_memory *m = task->node ? task->node->memory : NULL;
	struct soft_task *copy = copy_task(task);
	const char *what = "cuMemAllocAsync";
	CUresult res;
	unsigned int i;

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->actor = actor;
	hm_check_join(&actor->clock, &l->s->actor.clock);
	for (i = 0; i < task->after.nr; i++)
		hm_check_join(&actor->clock, &l->clocks[task->after.nodes[i]]);
	if (m && task->run) {
		what = "cuMemFreeAsync";
		m->freeing = true;
		hm_check_gone(m, actor, what);
	}
	res = hm_soft_submit(l->s, copy, NULL, NULL);
	if (res)
		return res;
	/* No other branch may use it without an order to this node. */
	if (m)
		hm_check_use(actor, m->range.start,
			     m->range.end - m->range.start, what, true);
	hm_check_join(&l->clocks[task->number], &actor->clock);
	return CUDA_SUCCESS;
}

/* Also of one that failed in the middle: what was submitted counts. */
static void finish_launch(struct launch *l)
{
	struct CUgraph_st *g = l->g;
	unsigned int i;

	for (i = 0; i < g->nr_branches; i++)
		hm_check_join(&l->s->actor.clock, &g->actors[i].clock);
	hm_check_join(&g->clock, &l->s->actor.clock);
	hm_soft_task_put(g->done);
	g->done = l->s->tail;
	if (g->done)
		g->done->refs++;
}

static CUresult launch(struct CUgraph_st *g, struct CUstream_st *s,
		       uint64_t delay)
{
	struct launch l;
	CUresult res = begin_launch(&l, g, s, delay);
	unsigned int i;

	if (!res) {
		for (i = 0; i < g->nr && !res; i++)
			res = submit(&l, l.turns[i].task);
		finish_launch(&l);
	}
	end_launch(&l);
	return res;
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream)
{
	struct CUgraph_st *g = (struct CUgraph_st *)exec;
	struct CUstream_st *s;
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuGraphLaunch, &delay);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = hm_soft_capture_never(s);
	if (s && !res)
		res = prepare(g);
	if (s && !res)
		res = launch(g, s, delay);
	hm_soft_unlock();
	return res;
}

static CUresult graph_exec_destroy(CUgraphExec exec)
{
	struct soft_world *w = hm_soft_world;
	CUresult res;

	SOFT_ENTER(cuGraphExecDestroy);
	hm_soft_lock();
	res = hm_soft_unsafe();
	if (!res && !is_graph(w->execs, exec))
		res = CUDA_ERROR_INVALID_VALUE;
	if (!res)
		hm_soft_graph_free(&w->execs, (struct CUgraph_st *)exec);
	hm_soft_unlock();
	return res;
}

static CUresult graph_destroy(CUgraph graph)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;

	SOFT_ENTER(cuGraphDestroy);
	hm_soft_lock();
	if (is_graph(hm_soft_world->graphs, graph)) {
		hm_soft_graph_free(&hm_soft_world->graphs, graph);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_graph(struct hm_api *d)
{
	d->cuGraphInstantiateWithFlags = graph_instantiate;
	d->cuGraphLaunch = graph_launch;
	d->cuGraphExecDestroy = graph_exec_destroy;
	d->cuGraphDestroy = graph_destroy;
}
