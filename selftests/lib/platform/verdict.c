// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The verdict about each kind of device, the evidence for it, and what contradicts,
 * on machines that the soft driver plays. Also several kinds in one machine, threads
 * that ask, a forked child, and arguments that must be refused.
 */
#include <sys/wait.h>

#include "platform/machine.h"

/* A node that this machine does not have. */
#define NO_NODE		"900"

struct row {
	const char *machine;
	int kind;
	bool pageable, moves, managed, concurrent;
	const char *contradiction;	/* the only one; NULL: none */
};

static const struct row rows[] = {
	{ "none", HETMEM_PLATFORM_NONE, false, false, false, false, NULL },
	{ "managed", HETMEM_PLATFORM_MANAGED, false, false, true, true, NULL },
	{ "hmm", HETMEM_PLATFORM_HMM, true, true, true, true, NULL },
	{ "ats node=0", HETMEM_PLATFORM_ATS, true, true, true, true, NULL },
	{ "ats", HETMEM_PLATFORM_ATS, true, true, true, true, NULL },
	{ "cdmm", HETMEM_PLATFORM_CDMM, true, false, true, true, NULL },
	{ "integrated", HETMEM_PLATFORM_INTEGRATED, true, false, true, true, NULL },
	/* As a Jetson: one memory, of which managed memory is used in turns. */
	{ "integrated driver.pageable=no driver.host_tables=no driver.concurrent=no nvml.library=no",
	  HETMEM_PLATFORM_INTEGRATED, false, false, true, false, NULL },
	/* Managed memory that CPU and device use in turns is not shared. */
	{ "managed driver.concurrent=no", HETMEM_PLATFORM_NONE,
	  false, false, true, false, NULL },

	/* Nobody knows, or NVML is not there: the rest decides. */
	{ "hmm nvml.library=no", HETMEM_PLATFORM_HMM, true, true, true, true, NULL },
	{ "hmm nvml.addressing=fails", HETMEM_PLATFORM_HMM, true, true, true, true,
	  NULL },
	{ "hmm driver.pageable=fails nvml.library=no", HETMEM_PLATFORM_MANAGED,
	  false, false, true, true, NULL },
	{ "hmm driver.host_tables=fails", HETMEM_PLATFORM_HMM,
	  true, true, true, true, NULL },
	{ "cdmm driver.integrated=fails", HETMEM_PLATFORM_CDMM,
	  true, false, true, true, NULL },
	{ "managed driver.concurrent=fails", HETMEM_PLATFORM_NONE,
	  false, false, true, false, NULL },
	{ "ats node=0 kernel.node_memory=fails kernel.node_cpus=fails",
	  HETMEM_PLATFORM_ATS, true, true, true, true, NULL },
	/* A driver that is too old for nodes: NVML's word counts. */
	{ "ats driver.node=fails nvml.node=0 kernel.node_cpus=no",
	  HETMEM_PLATFORM_ATS, true, true, true, true, NULL },
	{ "ats driver.node=fails nvml.library=no", HETMEM_PLATFORM_CDMM,
	  true, false, true, true, NULL },

	/* One contradiction each. */
	{ "managed nvml.addressing=ats", HETMEM_PLATFORM_MANAGED,
	  false, false, true, true,
	  "NVML says: addressing mode ATS; the driver's attributes say none" },
	{ "managed nvml.addressing=hmm", HETMEM_PLATFORM_MANAGED,
	  false, false, true, true,
	  "NVML says: addressing mode HMM; the driver's attributes say none" },
	{ "hmm nvml.addressing=none", HETMEM_PLATFORM_HMM, true, true, true, true,
	  "NVML says: addressing mode none; the driver's attributes say HMM" },
	{ "cdmm nvml.addressing=hmm", HETMEM_PLATFORM_CDMM,
	  true, false, true, true,
	  "NVML says: addressing mode HMM; the driver's attributes say ATS" },
	{ "cdmm nvml.node=3", HETMEM_PLATFORM_CDMM, true, false, true, true,
	  "NVML says: its memory is node 3; the driver says: none" },
	{ "ats node=0 nvml.node=3", HETMEM_PLATFORM_ATS, true, true, true, true,
	  "NVML says: its memory is node 3; the driver says: node 0" },
	{ "ats node=" NO_NODE, HETMEM_PLATFORM_CDMM, true, false, true, true,
	  "its memory is said to be node " NO_NODE ", which the kernel does not have" },
	{ "ats node=0 kernel.node_online=no", HETMEM_PLATFORM_CDMM,
	  true, false, true, true,
	  "its memory is said to be node 0, which the kernel does not have" },
	{ "ats node=0 kernel.node_memory=0", HETMEM_PLATFORM_CDMM,
	  true, false, true, true,
	  "its memory is said to be node 0, which has no memory" },
	{ "ats node=0 kernel.node_cpus=yes", HETMEM_PLATFORM_ATS,
	  true, true, true, true,
	  "its memory is said to be node 0, which has CPUs: that is the host's" },
	{ "hmm kernel.device_private=no", HETMEM_PLATFORM_HMM,
	  true, true, true, true,
	  "the driver says HMM, but this kernel has no CONFIG_DEVICE_PRIVATE" },
	{ "hmm host_node=" NO_NODE, HETMEM_PLATFORM_HMM, true, true, true, true,
	  "its nearest node is said to be " NO_NODE ", which the kernel does not have" },
	{ "managed driver.host_tables=yes", HETMEM_PLATFORM_MANAGED,
	  false, false, true, true,
	  "the driver says: uses the CPU's page tables, but no pageable access" },
	{ "hmm driver.concurrent=no", HETMEM_PLATFORM_HMM, true, true, true, false,
	  "the driver says: pageable access, but no concurrent managed access" },
	{ "managed driver.managed=no", HETMEM_PLATFORM_MANAGED,
	  false, false, false, true,
	  "the driver says: concurrent managed access, but no managed memory" },
	{ "hmm driver.node=0 nvml.node=0 kernel.node_cpus=no",
	  HETMEM_PLATFORM_HMM, true, true, true, true,
	  "the driver says: its memory is node 0, but it does not use the CPU's page tables" },

	/* Not contradictions. */
	{ "integrated node=0 kernel.node_cpus=yes", HETMEM_PLATFORM_INTEGRATED,
	  true, false, true, true, NULL },
	{ "managed kernel.device_private=no", HETMEM_PLATFORM_MANAGED,
	  false, false, true, true, NULL },
	{ "ats node=0 kernel.device_private=no", HETMEM_PLATFORM_ATS,
	  true, true, true, true, NULL },
};

static void judge(const struct row *r)
{
	struct hetmem *hm = open_machine(r->machine);
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem_platform p;
	const char *line;

	need(hm, "%s: %s", r->machine, hetmem_last_error());
	p = platform_of(hm, 0);
	ok(p.kind == r->kind, "%s: %s", r->machine, hetmem_platform_name(p.kind));
	ok(p.pageable == r->pageable && p.moves == r->moves &&
	   p.managed == r->managed && p.concurrent == r->concurrent,
	   "%s: what follows: %d %d %d %d", r->machine, p.pageable, p.moves,
	   p.managed, p.concurrent);
	ok(r->kind == HETMEM_PLATFORM_ATS ? p.node >= 0 : p.node == -1,
	   "%s: its node is %d", r->machine, p.node);
	need(!hetmem_device_props(hm, 0, &props), "properties");
	ok(props.platform == p.kind && props.managed == p.concurrent,
	   "%s: the properties have the same", r->machine);
	line = hetmem_contradiction(hm, 0, 0);
	ok(r->contradiction ? line && !strcmp(line, r->contradiction) : !line,
	   "%s: contradicts: %s", r->machine, line ? line : "nothing");
	line = hetmem_contradiction(hm, 0, 1);
	ok(!line, "%s: nothing else: %s", r->machine, line ? line : "");
	hetmem_close(hm);
}

static void several_contradictions(void)
{
	struct hetmem *hm = open_machine("managed driver.host_tables=yes driver.managed=no nvml.addressing=ats nvml.node=3 driver.node=" NO_NODE);
	unsigned int nr = 0;

	need(hm, "opens");
	while (hetmem_contradiction(hm, 0, nr)) {
		printf("# %s\n", hetmem_contradiction(hm, 0, nr));
		nr++;
	}
	is(nr, 5, "five contradictions are five lines");
	hetmem_close(hm);
}

static void evidence(void)
{
	static const struct {
		const char *source, *what, *value;
	} want[] = {
		{ "driver", "integrated", "no" },
		{ "driver", "pageable", "yes" },
		{ "driver", "host_tables", "yes" },
		{ "driver", "managed", "yes" },
		{ "driver", "concurrent", "yes" },
		{ "driver", "direct", "unknown: CUDA_ERROR_INVALID_VALUE" },
		{ "driver", "registers", "no" },
		{ "driver", "registered", "yes" },
		{ "driver", "node", "0" },
		{ "driver", "host_node", "none" },
		{ "nvml", "library", "yes" },
		{ "nvml", "addressing", "unknown: not supported" },
		{ "nvml", "node", "0" },
		{ "kernel", "node_online", "yes" },
		{ "kernel", "node_memory", "96 GiB" },
		{ "kernel", "node_cpus", "unknown: as it is played" },
		{ "kernel", "device_private", "yes" },
		{ "module", "loaded", "no" },
		{ "module", "device", "none" },
	};
	const unsigned int nr = sizeof(want) / sizeof(want[0]);
	struct hetmem *hm = open_machine("ats node=0 driver.direct=fails driver.registers=no nvml.addressing=fails kernel.node_memory=96G kernel.node_cpus=fails kernel.device_private=yes");
	struct hetmem_evidence e = { .size = sizeof(e) };
	unsigned int i;

	need(hm, "opens: %s", hetmem_last_error());
	for (i = 0; i < nr; i++)
		if (!ok(!hetmem_evidence(hm, 0, i, &e) &&
			!strcmp(e.source, want[i].source) &&
			!strcmp(e.what, want[i].what) &&
			!strcmp(e.value, want[i].value), "%s.%s is %s",
			want[i].source, want[i].what, want[i].value))
			printf("# %s.%s is %s\n", e.source, e.what, e.value);
	is(hetmem_evidence(hm, 0, nr, &e), -ENOENT, "that is all");
	is(platform_of(hm, 0).registers, 0, "the verdict has it");
	hetmem_close(hm);

	hm = open_machine("hmm nvml.library=no");
	need(hm, "opens");
	ok(!strcmp(evidence_of(hm, 0, "nvml", "library"), "no") &&
	   strstr(evidence_of(hm, 0, "nvml", "addressing"), "libnvidia-ml.so.1"),
	   "NVML is missing: %s", evidence_of(hm, 0, "nvml", "addressing"));
	hetmem_close(hm);
}

/* This machine's own node 0, where nothing is played. */
static void real_node(void)
{
	struct hetmem *hm = open_machine("cdmm driver.node=0");

	need(hm, "opens");
	ok(!strcmp(evidence_of(hm, 0, "kernel", "node_online"), "yes"),
	   "node 0 is there");
	if (access("/sys/devices/system/node/node0", F_OK))
		printf("# SKIP no sysfs\n");
	else
		ok(strstr(evidence_of(hm, 0, "kernel", "node_memory"), "iB") &&
		   !strcmp(evidence_of(hm, 0, "kernel", "node_cpus"), "yes"),
		   "it has memory, %s, and CPUs",
		   evidence_of(hm, 0, "kernel", "node_memory"));
	hetmem_close(hm);
}

/* The nth attribute fails, whichever it is: no crash, and a verdict. */
static void failing_attributes(void)
{
	char rule[64];
	struct hetmem *hm;
	int i, none = 0, other = 0;

	for (i = 1; i <= 16; i++) {
		snprintf(rule, sizeof(rule),
			 "cuDeviceGetAttribute:%d=CUDA_ERROR_UNKNOWN", i);
		setenv("HETMEM_SOFT_FAIL", rule, 1);
		hm = open_machine("ats node=0");
		need(hm, "opens: %s", hetmem_last_error());
		if (platform_of(hm, 0).kind == HETMEM_PLATFORM_ATS)
			other++;
		else
			none++;
		hetmem_close(hm);
	}
	ok(none >= 2 && other >= 8, "of 16 attributes %d change the verdict", none);
	setenv("HETMEM_SOFT_FAIL", "cuDeviceGetAttribute:*=CUDA_ERROR_UNKNOWN", 1);
	hm = open_machine("ats node=0");
	need(hm, "opens: %s", hetmem_last_error());
	/* NVML knows the node, and the driver nothing. */
	is(platform_of(hm, 0).kind, HETMEM_PLATFORM_NONE, "all fail: none");
	ok(!strcmp(evidence_of(hm, 0, "driver", "pageable"),
		   "unknown: CUDA_ERROR_UNKNOWN"), "and the evidence tells");
	hetmem_close(hm);
	setenv("HETMEM_SOFT_FAIL", "cuDeviceGetUuid:*", 1);
	hm = open_machine("ats node=0");
	need(hm, "opens: %s", hetmem_last_error());
	is(platform_of(hm, 0).kind, HETMEM_PLATFORM_ATS, "no UUID: NVML is not asked");
	ok(strstr(evidence_of(hm, 0, "nvml", "node"), "UUID"), "and the evidence tells");
	hetmem_close(hm);
	unsetenv("HETMEM_SOFT_FAIL");
}

static struct hetmem *mixed;

static const int mixed_kinds[] = {
	HETMEM_PLATFORM_HMM, HETMEM_PLATFORM_ATS, HETMEM_PLATFORM_CDMM,
	HETMEM_PLATFORM_INTEGRATED, HETMEM_PLATFORM_MANAGED, HETMEM_PLATFORM_NONE,
};

#define NR_MIXED	(int)(sizeof(mixed_kinds) / sizeof(mixed_kinds[0]))

/* Returns what was wrong. */
static int ask_all(void)
{
	struct hetmem_platform p = { .size = sizeof(p) };
	int i, wrong = 0;

	for (i = 0; i < NR_MIXED; i++) {
		wrong += hetmem_platform(mixed, i, &p) != 0;
		wrong += p.kind != mixed_kinds[i];
		wrong += !!strcmp(evidence_of(mixed, i, "driver", "pageable"),
				  p.pageable ? "yes" : "no");
		wrong += !hetmem_contradiction(mixed, i, 0) != (i != 4);
	}
	return wrong;
}

static void *asks(void *arg)
{
	int i, wrong = 0;

	(void)arg;
	for (i = 0; i < 200; i++)
		wrong += ask_all();
	return (void *)(intptr_t)wrong;
}

/* Children ask what the parent knew, and call no driver. */
static int child(void)
{
	struct hetmem *mine;
	int wrong = ask_all();

	setenv("HETMEM_SOFT_MACHINE", "cdmm", 1);
	mine = open_machine("cdmm");
	wrong += !mine || platform_of(mine, 0).kind != HETMEM_PLATFORM_CDMM;
	wrong += ask_all();
	hetmem_close(mine);
	hetmem_close(mixed);
	return wrong;
}

static void several(void)
{
	pthread_t threads[4];
	int i, wrong = 0, status = -1;
	void *got;
	pid_t pid;

	mixed = open_machine("hmm memory=32M; ats node=0; cdmm\nintegrated # one memory\n"
			     "managed nvml.addressing=hmm; none memory=64M");
	need(mixed, "opens: %s", hetmem_last_error());
	is(hetmem_device_count(mixed), NR_MIXED, "all kinds in one machine");
	is(ask_all(), 0, "each has its verdict, and one a contradiction");
	for (i = 0; i < 4; i++)
		need(!pthread_create(&threads[i], NULL, asks, NULL), "a thread");
	for (i = 0; i < 4; i++) {
		pthread_join(threads[i], &got);
		wrong += (int)(intptr_t)got;
	}
	is(wrong, 0, "threads that ask");
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child());
	waitpid(pid, &status, 0);
	is(status, 0, "a forked child asks, and opens a machine of its own");
	hetmem_close(mixed);
}

static void arguments(void)
{
	struct hetmem *hm = open_machine("hmm");
	struct hetmem_platform p = { .size = sizeof(p) };
	struct hetmem_evidence e = { .size = sizeof(e) };

	need(hm, "opens");
	is(hetmem_platform(NULL, 0, &p), -EINVAL, "no library");
	is(hetmem_platform(hm, 0, NULL), -EINVAL, "nowhere to put it");
	is(hetmem_platform(hm, 1, &p), -ENODEV, "one device too many");
	is(hetmem_platform(hm, -1, &p), -ENODEV, "one too few");
	p.size--;
	p.kind = 77;
	is(hetmem_platform(hm, 0, &p), -EINVAL, "a size too small");
	ok(strstr(hetmem_last_error(), "sizeof(struct hetmem_platform)") &&
	   p.kind == 77, "says what to do, and writes nothing: %s",
	   hetmem_last_error());
	p.size += 65;
	is(hetmem_platform(hm, 0, &p), 0, "a later version's size");
	is(p.size, sizeof(p) + 64, "stays");
	is(hetmem_evidence(NULL, 0, 0, &e), -EINVAL, "no library");
	is(hetmem_evidence(hm, 0, 0, NULL), -EINVAL, "nowhere to put it");
	is(hetmem_evidence(hm, 1, 0, &e), -ENODEV, "one device too many");
	is(hetmem_evidence(hm, 0, UINT32_MAX, &e), -ENOENT, "no such piece");
	e.size = 8;
	is(hetmem_evidence(hm, 0, 0, &e), -EINVAL, "a size too small");
	ok(!hetmem_contradiction(NULL, 0, 0) && !hetmem_contradiction(hm, 1, 0) &&
	   !hetmem_contradiction(hm, -1, 0) &&
	   !hetmem_contradiction(hm, 0, UINT32_MAX), "no contradiction of nobody");
	ok(!strcmp(hetmem_platform_name(HETMEM_PLATFORM_ATS), "ATS") &&
	   !strcmp(hetmem_platform_name(-1), "unknown") &&
	   !strcmp(hetmem_platform_name(99), "unknown"), "names");
	hetmem_close(hm);
}

int main(void)
{
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		judge(&rows[i]);
	several_contradictions();
	evidence();
	real_node();
	failing_attributes();
	several();
	arguments();
	return tap_end();
}
