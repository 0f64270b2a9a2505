// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The machine that the soft driver plays: HETMEM_SOFT_MACHINE, a description or,
 * if it begins with "/" or ".", the file that has it. A line, or what is between
 * two semicolons, is a device:
 *
 *	KIND [NAME=VALUE]...	# comment
 *
 * KIND is one of the kinds below. NAME is "memory" (bytes of the device), "node"
 * (of its memory: driver.node and nvml.node), "host_node", or a fact of
 * platform/detect.c, as "nvml.addressing": its value then, or "fails". Facts of the
 * module cannot be played. Without a description the devices of hetmem_emu.ko have
 * HMM; where there is none, one device has managed memory only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/nvml.h"
#include "soft/soft.h"

#define VARIABLE	"HETMEM_SOFT_MACHINE"
#define DEFAULT_MEMORY	((size_t)256 << 20)
#define MAX_FILE	((size_t)64 << 10)

/* What each kind answers; an ATS device also has a node. */
static const struct soft_kind_row {
	const char *name;
	int kind;
	int mode;
	bool integrated, pageable, host_tables, managed, direct;
} kinds[] = {
	{ "none", HETMEM_PLATFORM_NONE, HM_MODE_NONE,
	  false, false, false, false, false },
	{ "managed", HETMEM_PLATFORM_MANAGED, HM_MODE_NONE,
	  false, false, false, true, false },
	{ "hmm", HETMEM_PLATFORM_HMM, HM_MODE_HMM,
	  false, true, false, true, false },
	{ "ats", HETMEM_PLATFORM_ATS, HM_MODE_ATS,
	  false, true, true, true, true },
	{ "cdmm", HETMEM_PLATFORM_CDMM, HM_MODE_ATS,
	  false, true, true, true, true },
	{ "integrated", HETMEM_PLATFORM_INTEGRATED, HM_MODE_ATS,
	  true, true, true, true, true },
};

#define KINDS	"none, managed, hmm, ats, cdmm or integrated"

/* A device's line while it is read; @given: bit of each fact that it names. */
struct line {
	struct CUctx_st *dev;
	uint32_t given;
	bool memory;
	bool node;
};

_Static_assert(HM_FACT_NR <= 32, "bits of struct line");

bool hm_soft_says(const struct CUctx_st *dev, enum hm_fact_id id)
{
	return !dev->facts[id].fails && dev->facts[id].value > 0;
}

static void play(struct CUctx_st *dev, enum hm_fact_id id, int64_t value)
{
	dev->facts[id] = (struct soft_fact){ .played = true, .value = value };
}

static void play_failure(struct CUctx_st *dev, enum hm_fact_id id)
{
	dev->facts[id] = (struct soft_fact){ .played = true, .fails = true };
}

static void become(struct CUctx_st *dev, const struct soft_kind_row *row)
{
	memset(dev->facts, 0, sizeof(dev->facts));
	dev->kind = row->kind;
	dev->emu = -1;
	dev->module_id = -1;
	play(dev, HM_FACT_INTEGRATED, row->integrated);
	play(dev, HM_FACT_PAGEABLE, row->pageable);
	play(dev, HM_FACT_HOST_TABLES, row->host_tables);
	play(dev, HM_FACT_MANAGED, row->managed);
	play(dev, HM_FACT_CONCURRENT, row->managed);
	play(dev, HM_FACT_DIRECT, row->direct);
	play(dev, HM_FACT_REGISTERS, 1);
	play(dev, HM_FACT_REGISTERED, 1);
	play(dev, HM_FACT_NODE, -1);
	play(dev, HM_FACT_HOST_NODE, -1);
	play(dev, HM_FACT_NVML, 1);
	play(dev, HM_FACT_NVML_MODE, row->mode);
	play_failure(dev, HM_FACT_NVML_NODE);
	if (row->kind == HETMEM_PLATFORM_HMM)
		play(dev, HM_FACT_DEVICE_PRIVATE, 1);
}

static const struct soft_kind_row *find_kind(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

/* A node that this machine has, without CPUs if there is one. */
static int some_node(void)
{
	struct hm_platform p;
	const struct hm_fact *cpus = &p.facts[HM_FACT_NODE_CPUS];
	int node, last = 0;

	for (node = 0; node < 1024; node++) {
		if (!hm_numa_has_node(node))
			continue;
		last = node;
		hm_platform_init(&p);
		hm_kernel_facts(&p, node);
		if (cpus->known && !cpus->value)
			break;
	}
	return last;
}

/* -EINVAL: why in @reason, without the line. */
static int set_fact(struct line *line, const char *name, const char *value,
		    char *reason, size_t len)
{
	int64_t number;
	int id;

	for (id = 0; id < HM_FACT_NR; id++) {
		const size_t n = strlen(hm_fact_rows[id].source);

		if (!strncmp(name, hm_fact_rows[id].source, n) &&
		    name[n] == '.' && !strcmp(name + n + 1, hm_fact_rows[id].what))
			break;
	}
	if (id == HM_FACT_NR || id == HM_FACT_MODULE ||
	    id == HM_FACT_MODULE_DEVICE) {
		snprintf(reason, len, "\"%s\": use memory, node, host_node, or a fact as `hetmem doctor` shows them, like driver.pageable",
			 name);
		return -EINVAL;
	}
	if (line->given & 1U << id) {
		snprintf(reason, len, "\"%s\" twice: leave one", name);
		return -EINVAL;
	}
	line->given |= 1U << id;
	if (!strcmp(value, "fails")) {
		play_failure(line->dev, id);
	} else if (hm_fact_parse(id, value, &number)) {
		play(line->dev, id, number);
	} else {
		static const char *const values[] = {
			[HM_FACT_BOOL] = "yes or no",
			[HM_FACT_NUMBER] = "a number or none",
			[HM_FACT_MODE] = "none, hmm or ats",
			[HM_FACT_SIZE] = "a size like 16G",
		};

		snprintf(reason, len, "\"%s=%s\": use %s, or fails", name, value,
			 values[hm_fact_rows[id].type]);
		return -EINVAL;
	}
	return 0;
}

static int set_node(struct line *line, const char *value, char *reason,
		    size_t len)
{
	int64_t node;

	if (line->node) {
		snprintf(reason, len, "\"node\" twice: leave one");
		return -EINVAL;
	}
	if (!hm_fact_parse(HM_FACT_NODE, value, &node)) {
		snprintf(reason, len, "\"node=%s\": use a number or none", value);
		return -EINVAL;
	}
	line->node = true;
	if (!(line->given & 1U << HM_FACT_NODE))
		play(line->dev, HM_FACT_NODE, node);
	if (line->given & 1U << HM_FACT_NVML_NODE)
		return 0;
	if (node < 0)
		play_failure(line->dev, HM_FACT_NVML_NODE);
	else
		play(line->dev, HM_FACT_NVML_NODE, node);
	return 0;
}

static int set_memory(struct line *line, const char *value, char *reason,
		      size_t len)
{
	if (line->memory) {
		snprintf(reason, len, "\"memory\" twice: leave one");
		return -EINVAL;
	}
	line->memory = true;
	if (hm_soft_parse_size(value, &line->dev->capacity))
		return 0;
	snprintf(reason, len, "\"memory=%s\": use a size like 256M", value);
	return -EINVAL;
}

static int read_word(struct line *line, char *word, char *reason, size_t len)
{
	char *value = strchr(word, '=');

	if (!value || value == word || !value[1]) {
		snprintf(reason, len, "\"%s\": use NAME=VALUE", word);
		return -EINVAL;
	}
	*value++ = '\0';
	if (!strcmp(word, "memory"))
		return set_memory(line, value, reason, len);
	if (!strcmp(word, "node"))
		return set_node(line, value, reason, len);
	if (!strcmp(word, "host_node"))
		return set_fact(line, "driver.host_node", value, reason, len);
	return set_fact(line, word, value, reason, len);
}

/* Fills in what the line of an ATS device leaves out. */
static void complete_ats(struct line *line)
{
	struct CUctx_st *dev = line->dev;
	int64_t node;
	char text[16];

	if (!line->node && !(line->given & 1U << HM_FACT_NODE)) {
		snprintf(text, sizeof(text), "%d", some_node());
		set_node(line, text, NULL, 0);
	}
	node = dev->facts[HM_FACT_NODE].value;
	/* A node of this machine plays it, with CPUs or without. */
	if (!(line->given & 1U << HM_FACT_NODE_CPUS) &&
	    !dev->facts[HM_FACT_NODE].fails && hm_numa_has_node((int)node))
		play(dev, HM_FACT_NODE_CPUS, 0);
}

/* One device. 0, or -EINVAL; 1: the text is empty. */
static int read_device(struct soft_world *w, char *text, size_t memory,
		       char *reason, size_t len)
{
	static const char blanks[] = " \t\r";
	const struct soft_kind_row *row;
	struct line line = { 0 };
	char *save = NULL, *word;
	int err = 0;

	word = strtok_r(text, blanks, &save);
	if (!word)
		return 1;
	row = find_kind(word);
	if (!row) {
		snprintf(reason, len, "\"%s\": use " KINDS, word);
		return -EINVAL;
	}
	if (w->nr_devices == SOFT_MAX_DEVICES) {
		snprintf(reason, len, "use at most %d devices", SOFT_MAX_DEVICES);
		return -EINVAL;
	}
	line.dev = &w->devices[w->nr_devices];
	become(line.dev, row);
	line.dev->capacity = memory;
	while (!err && (word = strtok_r(NULL, blanks, &save)))
		err = read_word(&line, word, reason, len);
	if (err)
		return err;
	if (row->kind == HETMEM_PLATFORM_ATS)
		complete_ats(&line);
	w->nr_devices++;
	return 0;
}

/* Ends the device at @text, and returns the text behind it. */
static char *split(char *text, unsigned int *lines)
{
	char *end = text + strcspn(text, "#;\n");

	*lines = 0;
	if (*end == '#') {
		*end++ = '\0';
		end += strcspn(end, "\n");
	}
	if (!*end)
		return end;
	*lines = *end == '\n';
	*end = '\0';
	return end + 1;
}

/* @from: the variable or the file. Changes @text. */
static int read_machine(struct soft_world *w, const char *from, char *text,
			size_t memory, char *reason, size_t len)
{
	unsigned int line = 1, more;
	char why[160], *next;
	int err;

	for (; *text; text = next, line += more) {
		next = split(text, &more);
		err = read_device(w, text, memory, why, sizeof(why));
		if (err < 0) {
			snprintf(reason, len, "%s, line %u: %s", from, line, why);
			return err;
		}
	}
	if (w->nr_devices)
		return 0;
	snprintf(reason, len, "%s describes no device: begin a line with " KINDS,
		 from);
	return -EINVAL;
}

/* The file as a text to be freed, or NULL and why. */
static char *read_file(const char *path, char *reason, size_t len)
{
	FILE *file = fopen(path, "re");
	const char *why = file ? NULL : strerror(errno);
	char *text = file ? malloc(MAX_FILE) : NULL;
	size_t size = 0;

	if (text) {
		size = fread(text, 1, MAX_FILE, file);
		if (ferror(file))
			why = strerror(errno);
		else if (size == MAX_FILE)
			why = "use less than 64 KiB";
		else if (memchr(text, '\0', size))
			why = "use a text, it has a NUL byte";
		else
			text[size] = '\0';
	} else if (file) {
		why = "no memory";
	}
	if (file)
		fclose(file);
	if (!why)
		return text;
	snprintf(reason, len, VARIABLE "=%s: %s", path, why);
	free(text);
	return NULL;
}

static int read_variable(struct soft_world *w, const char *value,
			 size_t memory, char *reason, size_t len)
{
	const bool is_file = *value == '/' || *value == '.';
	char *text = is_file ? read_file(value, reason, len) : strdup(value);
	int err;

	if (!text) {
		if (!is_file)
			snprintf(reason, len, "no memory");
		return is_file ? -EINVAL : -ENOMEM;
	}
	err = read_machine(w, is_file ? value : VARIABLE, text, memory, reason,
			   len);
	free(text);
	return err;
}

/* Devices with HMM move pages where there is an emulated one for them. */
static void take_emus(struct soft_world *w, size_t memory)
{
	int i, nr = 0;

	for (i = 0; i < w->nr_devices && nr < w->nr_emus; i++) {
		struct CUctx_st *dev = &w->devices[i];
		const struct soft_emu *emu = &w->emus[nr];

		if (dev->kind != HETMEM_PLATFORM_HMM)
			continue;
		dev->emu = emu->fd;
		dev->module_id = emu->module_id;
		memcpy(dev->name, emu->name, sizeof(dev->name));
		if (!dev->capacity && !memory)
			dev->capacity = emu->capacity;
		nr++;
	}
}

int hm_soft_machine(struct soft_world *w, int count, size_t memory,
		    char *reason, size_t len)
{
	const char *value = secure_getenv(VARIABLE);
	int err, i;

	if (value && *value) {
		err = read_variable(w, value, memory, reason, len);
		if (err)
			return err;
	} else {
		become(&w->devices[0], find_kind(w->nr_emus ? "hmm" : "managed"));
		w->devices[0].capacity = memory;
		w->nr_devices = 1;
		if (w->nr_emus)
			count = w->nr_emus;
	}
	/* Further ones are like the last. */
	for (i = w->nr_devices; i < count; i++)
		w->devices[i] = w->devices[i - 1];
	if (count >= 0)
		w->nr_devices = count;
	for (i = 0; i < w->nr_devices; i++)
		snprintf(w->devices[i].name, sizeof(w->devices[i].name),
			 "hetmem soft device %d", i);
	take_emus(w, memory);
	for (i = 0; i < w->nr_devices; i++)
		if (!w->devices[i].capacity)
			w->devices[i].capacity = DEFAULT_MEMORY;
	return 0;
}

int hm_soft_host_node(const struct CUctx_st *dev)
{
	const struct soft_world *w = hm_soft_world;
	const struct soft_fact *host = &dev->facts[HM_FACT_HOST_NODE];
	int node, i;

	if (!host->fails && host->value >= 0)
		return (int)host->value;
	/* The first that is no device's. */
	for (node = 0; node < 1024; node++) {
		for (i = 0; i < w->nr_devices; i++)
			if (w->devices[i].kind == HETMEM_PLATFORM_ATS &&
			    w->devices[i].facts[HM_FACT_NODE].value == node)
				break;
		if (i == w->nr_devices && hm_numa_has_node(node))
			return node;
	}
	return 0;
}

bool hm_soft_fact(int ordinal, int id, struct hm_platform *p)
{
	const struct soft_world *w = hm_soft_world;
	const struct soft_fact *fact;

	if (!w || ordinal < 0 || ordinal >= w->nr_devices ||
	    strcmp(hm_fact_rows[id].source, "kernel"))
		return false;
	fact = &w->devices[ordinal].facts[id];
	if (!fact->played)
		return false;
	if (fact->fails)
		hm_fact_unknown(p, id, "as it is played");
	else
		hm_fact_set(p, id, fact->value);
	return true;
}

/* NVML of this machine: a device's handle is its context. */

static int nvml_init(void)
{
	const struct soft_world *w = hm_soft_world;
	int i;

	/* There is one library for all devices. */
	for (i = 0; i < w->nr_devices; i++)
		if (!hm_soft_says(&w->devices[i], HM_FACT_NVML))
			return HM_NVML_ERROR_LIBRARY_NOT_FOUND;
	return HM_NVML_SUCCESS;
}

static int nvml_shutdown(void)
{
	return HM_NVML_SUCCESS;
}

/* As cuDeviceGetUuid(): the ordinal is the last byte. */
static int nvml_get_handle(const char *uuid, void **device)
{
	struct soft_world *w = hm_soft_world;
	const char *last = uuid + strlen(uuid) - 2;
	long ordinal = strlen(uuid) > 4 ? strtol(last, NULL, 16) : -1;

	if (strncmp(uuid, "GPU-", 4) || ordinal < 0 || ordinal >= w->nr_devices)
		return HM_NVML_ERROR_NOT_FOUND;
	*device = &w->devices[ordinal];
	return HM_NVML_SUCCESS;
}

static int nvml_get_mode(void *device, struct hm_nvml_mode *mode)
{
	const struct CUctx_st *dev = device;

	if (dev->facts[HM_FACT_NVML_MODE].fails)
		return HM_NVML_ERROR_NOT_SUPPORTED;
	mode->value = (unsigned int)dev->facts[HM_FACT_NVML_MODE].value;
	return HM_NVML_SUCCESS;
}

static int nvml_get_node(void *device, unsigned int *node)
{
	const struct CUctx_st *dev = device;

	if (dev->facts[HM_FACT_NVML_NODE].fails)
		return HM_NVML_ERROR_NOT_SUPPORTED;
	*node = (unsigned int)dev->facts[HM_FACT_NVML_NODE].value;
	return HM_NVML_SUCCESS;
}

const struct hm_nvml hm_soft_nvml = {
	.nvmlInit_v2 = nvml_init,
	.nvmlShutdown = nvml_shutdown,
	.nvmlDeviceGetHandleByUUID = nvml_get_handle,
	.nvmlDeviceGetAddressingMode = nvml_get_mode,
	.nvmlDeviceGetNumaNodeId = nvml_get_node,
};
