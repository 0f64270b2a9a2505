// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The choice of unified on each machine, and its reason; over=; wrong options;
 * registered memory in a forked child. The soft driver emulates the machines; a
 * descriptor that answers nothing stands for the module.
 */
#include <fcntl.h>
#include <sys/wait.h>

#include "platform/machine.h"

#define HOST	HETMEM_STREAM_HOST

static char text[8192];

/* @is: how the line begins; @why: a part of it. */
static void stands_for(struct hetmem *hm, const char *spec, const char *is,
		       const char *why)
{
	int err = hetmem_resource_explain(hm, spec, text, sizeof(text));

	if (!ok(!err && !strncmp(text, is, strlen(is)) && strstr(text, why),
		"%s: %s", spec, is))
		printf("# %d: %s%s\n", err, text, err ? hetmem_last_error() : "");
}

static void refused(struct hetmem *hm, const char *spec, int want,
		    const char *why)
{
	struct hetmem_resource *res = NULL;
	int err = hetmem_resource_explain(hm, spec, text, sizeof(text));

	if (!ok(err == want && !*text && strstr(hetmem_last_error(), why),
		"%s: explain: %d", spec, want))
		printf("# %d: %s\n", err, hetmem_last_error());
	err = hetmem_resource_create(hm, spec, &res);
	if (!ok(err == want && !res && strstr(hetmem_last_error(), why),
		"%s: create: %d", spec, want))
		printf("# %d: %s\n", err, hetmem_last_error());
	if (!err)
		hetmem_resource_destroy(res);
}

/* Can be made and used by @stream; the stats of one block of 1 MiB. */
static void works(struct hetmem *hm, const char *machine, const char *spec,
		  hetmem_stream stream)
{
	struct hetmem_resource *res = NULL;
	char *p = NULL;
	int err;

	err = hetmem_resource_create(hm, spec, &res);
	if (!err)
		err = hetmem_alloc(res, 1 << 20, 0, stream, (void **)&p);
	if (!ok(!err, "%s: %s works", machine, spec)) {
		printf("# %d: %s\n", err, hetmem_last_error());
		return;
	}
	p[0] = p[(1 << 20) - 1] = 1;
	hetmem_free(res, p, 1 << 20, stream);
	is(hetmem_resource_destroy(res), 0, "%s: %s: nothing live", machine, spec);
}

static void machines(void)
{
	static const struct {
		const char *machine;
		bool module;
		const char *is;
		const char *why;
	} rows[] = {
		{ "ats node=0", false, "unified is classes(system(device=0)): ",
		  "device 0 (ATS): " },
		{ "cdmm", false, "unified is classes(system(device=0)): ",
		  "device 0 (CDMM): " },
		{ "integrated", false, "unified is classes(system(device=0)): ",
		  "one memory" },
		{ "hmm", true, "unified is headroom(classes(system(device=0))): ",
		  "hetmem.ko knows" },
		{ "hmm", false, "unified is headroom(classes(managed(device=0))): ",
		  "without hetmem.ko" },
		{ "hmm driver.managed=no driver.concurrent=no", false,
		  "unified is headroom(classes(system(device=0))): ", "no managed memory" },
		{ "managed", false, "unified is classes(managed(device=0)): ",
		  "device 0 (managed): " },
		{ "managed", true, "unified is classes(managed(device=0)): ",
		  "device 0 (managed): " },
		{ "integrated driver.pageable=no", false,
		  "unified is classes(managed(device=0)): ", "integrated" },
		{ "none", false, "unified is classes(registered(device=0)): ",
		  "device 0 (none): " },
		{ "managed driver.concurrent=no", false,
		  "unified is classes(registered(device=0)): ", "registered" },
	};
	struct hetmem *hm;
	size_t i;
	int fd;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		hm = open_machine(rows[i].machine);
		need(hm, "%s: %s", rows[i].machine, hetmem_last_error());
		fd = hm->kmod.fd;
		if (rows[i].module)
			hm->kmod.fd = open("/dev/null", O_RDWR);
		stands_for(hm, "unified", rows[i].is, rows[i].why);
		works(hm, rows[i].machine, "unified", HOST);
		works(hm, rows[i].machine, "unified", NULL);
		if (rows[i].module)
			close(hm->kmod.fd);
		hm->kmod.fd = fd;
		hetmem_close(hm);
	}
}

static void over(void)
{
	struct hetmem *hm = open_machine("hmm; managed; none");

	need(hm, "opens: %s", hetmem_last_error());
	stands_for(hm, "unified(over=system)",
		   "unified is headroom(classes(system(device=0))): ",
		   "over=system; with headroom\n");
	refused(hm, "unified(device=1,over=system)", -EOPNOTSUPP,
		"device 1 (managed) cannot use system memory: leave out over=");
	refused(hm, "stats(unified(over=system,device=2))", -EOPNOTSUPP, "over=host");
	works(hm, "three devices", "unified(over=system)", NULL);
	stands_for(hm, "unified(over=system,headroom=off)",
		   "unified is classes(system(device=0)): ", "over=system\n");
	refused(hm, "unified(headroom=off,keep=1M)", -EINVAL,
		"character 27, at \"1M)\": keep= has no effect with headroom=off");
	refused(hm, "stats(unified(keep=1%, headroom=off))", -EINVAL,
		"character 20, at \"1%, headroom=off))\": keep=");
	stands_for(hm, "unified(keep=5%,max=1G)",
		   "unified is headroom(classes(managed(device=0),max=\"1G\"),keep=\"5%\"): ",
		   "; with headroom\n");
	stands_for(hm, "unified(device=1,headroom=on)",
		   "unified is headroom(classes(managed(device=1))): ", "; with headroom\n");
	stands_for(hm, "unified(device=1,keep=64M)",
		   "unified is headroom(classes(managed(device=1)),keep=\"64M\"): ",
		   "; with headroom\n");
	stands_for(hm, "unified(device=1,agent=aggressive)",
		   "unified is classes(managed(device=1)): ",
		   "; agent= has no effect without hetmem.ko\n");
	stands_for(hm, "unified(device=1)",
		   "unified is classes(managed(device=1)): ", "device 1 (managed): ");
	stands_for(hm, "unified(device=2)",
		   "unified is classes(registered(device=2)): ", "device 2 (none): ");
	stands_for(hm, "unified(device=1,over=registered,fork=copy,max=50%)",
		   "unified is classes(registered(device=1,fork=\"copy\"),max=\"50%\"): ",
		   "over=registered\n");
	stands_for(hm, "unified(over=host,max=1G,node=0)",
		   "unified is classes(host,max=\"1G\"): ",
		   "over=host; node= has no effect over host\n");
	stands_for(hm, "stats(fallback(device-pool,unified(over=managed)))",
		   "device-pool is pool(vmm(device=0)): device 0 has virtual",
		   "\nunified is headroom(classes(managed(device=0))): over=managed; with headroom\n");
	stands_for(hm, "pool(host)", "", "");
	is(strlen(text), 0, "a spec without names: nothing");
	works(hm, "three devices", "unified(over=host)", HOST);
	works(hm, "three devices", "unified(device=1,keep=1%,agent=conservative)", HOST);
	is(hetmem_agent_stats(hm, &(struct hetmem_agent_stats){
		.size = sizeof(struct hetmem_agent_stats) }), -ENOENT,
	   "no agent without hetmem.ko");
	works(hm, "three devices", "unified(over=registered,fork=copy,node=0)",
	      HOST);
	works(hm, "three devices", "unified(device=1,over=registered)", HOST);
	refused(hm, "unified(device=3)", -ENODEV, "there are 3");
	refused(hm, "unified(device=3,over=managed)", -ENODEV, "there are 3");
	refused(hm, "unified(over=pinned)", -EINVAL, "over");
	refused(hm, "unified(fork=yes)", -EINVAL, "fork");
	refused(hm, "unified(agent=yes)", -EINVAL, "agent");
	refused(hm, "unified(headroom=1G)", -EINVAL, "headroom");
	refused(hm, "unified(keep=-1)", -EINVAL, "keep");
	refused(hm, "unified(node=x)", -EINVAL, "node");
	is(hetmem_resource_create(hm, "unified(over=registered,node=900)",
				  &(struct hetmem_resource *){ NULL }),
	   -EINVAL, "no such node");
	is(hetmem_resource_create(hm, "unified(device=2,over=managed)",
				  &(struct hetmem_resource *){ NULL }),
	   -EOPNOTSUPP, "over what the device does not have");
	is(hetmem_resource_explain(hm, "unified", text, 10), -ENOSPC,
	   "too few bytes");
	is(text[0], 0, "and no text");
	is(hetmem_resource_explain(NULL, "unified", text, 10), -EINVAL, "hm");
	is(hetmem_resource_explain(hm, "unified", NULL, 10), -EINVAL, "text");
	is(hetmem_resource_explain(hm, "unified", text, 0), -EINVAL, "len");
	hetmem_close(hm);

	hm = open_machine("managed driver.concurrent=no driver.registered=no");
	need(hm, "opens: %s", hetmem_last_error());
	refused(hm, "unified", -EOPNOTSUPP, "over=host");
	works(hm, "nothing shared", "unified(over=host)", HOST);
	hetmem_close(hm);
}

/*
 * What a child sees of a block: 1 its bytes, 0 nothing is mapped there. Of a @pool no call
 * works.
 */
static int seen_by_child(const char *p, struct hetmem_resource *res, bool pool)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	int fds[2], status;
	pid_t pid;
	void *q;

	need(!pipe(fds), "a pipe");
	pid = fork();
	if (!pid) {
		if (hetmem_alloc(res, 100, 0, HOST, &q) != -EOWNERDEAD ||
		    hetmem_free(res, (void *)p, 0, HOST) != -EOWNERDEAD ||
		    hetmem_trim(res, 0, NULL) != -EOWNERDEAD ||
		    hetmem_poll(res) != -EOWNERDEAD ||
		    hetmem_stream_retire(res, HETMEM_STREAM_LEGACY) != -EOWNERDEAD ||
		    (pool && hetmem_resource_stats(res, &stats) != -EOWNERDEAD))
			_exit(9);
		/* The kernel reads the byte: -EFAULT, not SIGSEGV. */
		if (write(fds[1], p, 1) != 1)
			_exit(errno == EFAULT ? 0 : 8);
		/* A sanitizer may have mapped memory of its own there. */
		_exit(*p == 7);
	}
	waitpid(pid, &status, 0);
	close(fds[0]);
	close(fds[1]);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void forks(void)
{
	static const struct {
		const char *spec;
		int seen;
	} rows[] = {
		{ "registered", 0 },
		{ "registered(fork=copy)", 1 },
		{ "unified", 0 },
		{ "unified(fork=copy)", 1 },
		{ "pinned", 1 },
	};
	struct hetmem *hm = open_machine("none");
	struct hetmem_resource *res;
	size_t i;
	char *p;

	need(hm, "opens: %s", hetmem_last_error());
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		need(!hetmem_resource_create(hm, rows[i].spec, &res) &&
		     !hetmem_alloc(res, 3 << 20, 0, HOST, (void **)&p), "%s: %s",
		     rows[i].spec, hetmem_last_error());
		memset(p, 7, 3 << 20);
		is(seen_by_child(p, res, strstr(rows[i].spec, "unified")), rows[i].seen, "%s: a child %s",
		   rows[i].spec, rows[i].seen ? "has a copy" : "has it not");
		is(p[5], 7, "%s: the parent still has it", rows[i].spec);
		is(hetmem_free(res, p, 0, HOST), 0, "%s: free", rows[i].spec);
		hetmem_resource_destroy(res);
	}
	hetmem_close(hm);
}

int main(void)
{
	machines();
	over();
	forks();
	return tap_end();
}
