// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Random programs against a small model of what every resource promises: contents of
 * blocks, no overlap, alignment, order (the soft driver's check mode), exact counters,
 * limits, all or nothing after an error, and nothing left at the end.
 *
 * Programs run in child processes, since check mode aborts a process. A program that fails
 * is shortened while it fails in the same way, and printed as text that -p replays. The
 * files of corpus/ are such programs of past failures; they run first.
 */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <time.h>

#include "model/play.h"

/* Programs of a row. ThreadSanitizer takes twenty times as long, AddressSanitizer eight times. */
#if defined(__SANITIZE_THREAD__)
#define PROGRAMS	2
#elif defined(__SANITIZE_ADDRESS__)
#define PROGRAMS	4
#else
#define PROGRAMS	16
#endif

/* Rows of the model alone: blocks that the pool moves by itself, and a limit on parking. */
static const struct row more_rows[] = {
	{ "pool(vmm,handle=2M,max=40M,spill=64M,wait=100ms)", 0, 0 },
	{ "pool(vmm,max=64M,spill=64M,movable=2M,wait=100ms,launcher=single)", 0, 0 },
	{ "pool(vmm,handle=4M,max_host=8M,park=release)", 0, 0 },
	{ "pool(vmm,handle=2M,park=/var/tmp)", 0, 0 },
	{ "pool(vmm,decay=1ms,cache=64K,min=8M)", 0, 0 },
};

#define NR_MORE		(sizeof(more_rows) / sizeof(more_rows[0]))
#define ALL_ROWS	(NR_ROWS + NR_MORE)

static const struct row *row_at(size_t i)
{
	return i < NR_ROWS ? &rows[i] : &more_rows[i - NR_ROWS];
}

/* Files of this run, all without a name once they are open. */
static int output, program_fd;
static char self[4096];
/* Ends at the first failure, and shortens nothing: for mutants. */
static bool quick;

static int temporary(void)
{
	char path[] = "/tmp/hetmem-model-XXXXXX";
	int fd = mkstemp(path);

	need(fd >= 0, "a file in /tmp");
	unlink(path);
	return fd;
}

/* Puts @p into program_fd, which children inherit. */
static void put_program(const struct program *p)
{
	FILE *f;

	need(!ftruncate(program_fd, 0), "an empty file");
	lseek(program_fd, 0, SEEK_SET);
	f = fdopen(dup(program_fd), "w");
	model_print(f, p);
	fclose(f);
}

/*
 * Runs this program with @args in a child. Returns the way in which it failed, "" if it did
 * not. @last: the number after the last "PROGRAM" that it printed.
 */
static const char *in_process(const char *const *args, long *last)
{
	static char text[1 << 16], way[128];
	char *line, *save = NULL;
	int status;
	ssize_t n;
	pid_t pid;

	need(!ftruncate(output, 0), "an empty file");
	lseek(output, 0, SEEK_SET);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		dup2(output, STDOUT_FILENO);
		dup2(output, STDERR_FILENO);
		alarm(300); /* time: a child that hangs ends, and that is a failure */
		execv(self, (char *const *)args);
		_exit(127);
	}
	need(pid > 0 && waitpid(pid, &status, 0) == pid, "a child");
	way[0] = '\0';
	if (WIFSIGNALED(status))
		snprintf(way, sizeof(way), "signal %d", WTERMSIG(status));
	else if (WEXITSTATUS(status))
		snprintf(way, sizeof(way), "exit status %d", WEXITSTATUS(status));
	n = lseek(output, 0, SEEK_END);
	n = pread(output, text, sizeof(text) - 1,
		  n > (ssize_t)sizeof(text) - 1 ? n - (ssize_t)sizeof(text) + 1 : 0);
	text[n > 0 ? n : 0] = '\0';
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (last)
			sscanf(line, "PROGRAM %ld", last);
		if (!strncmp(line, "FAIL ", 5))
			snprintf(way, sizeof(way), "%.*s", (int)strcspn(line + 5, ":"), line + 5);
	}
	return way;
}

/* What the last child said, without the names of its programs. */
static void print_output(void)
{
	static char text[1 << 14];
	char *line, *save = NULL;
	ssize_t n = pread(output, text, sizeof(text) - 1, 0);
	unsigned int lines = 0;

	text[n > 0 ? n : 0] = '\0';
	for (line = strtok_r(text, "\n", &save); line && lines < 30;
	     line = strtok_r(NULL, "\n", &save))
		if (strncmp(line, "PROGRAM ", 8)) {
			printf("# %s\n", line);
			lines++;
		}
}

static const char *play_once(const struct program *p)
{
	char path[64];
	const char *const args[] = { self, "-p", path, NULL };

	put_program(p);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", program_fd);
	return in_process(args, NULL);
}

/* Whether @p fails in @way. A program with threads gets several chances. */
static bool still_fails(const struct program *p, const char *way)
{
	unsigned int tries = p->threads > 1 ? 8 : 1;

	while (tries--)
		if (!strcmp(play_once(p), way))
			return true;
	return false;
}

static void cut(struct program *p, unsigned int from, unsigned int nr)
{
	memmove(&p->ops[from], &p->ops[from + nr], (p->nr - from - nr) * sizeof(p->ops[0]));
	p->nr -= nr;
}

static bool try_program(struct program *p, const struct program *shorter, const char *way)
{
	if (!still_fails(shorter, way))
		return false;
	*p = *shorter;
	return true;
}

/* Removes halves, quarters and so on down to single operations. */
static bool remove_chunks(struct program *p, const char *way)
{
	static struct program shorter;
	unsigned int size, at;
	bool better = false;

	for (size = p->nr / 2; size; size /= 2) {
		for (at = 0; at + size <= p->nr;) {
			shorter = *p;
			cut(&shorter, at, size);
			if (try_program(p, &shorter, way))
				better = true;
			else
				at += size;
		}
	}
	return better;
}

/* Simpler members of each operation. */
static void simplify(struct program *p, const char *way)
{
	static const size_t sizes[] = { 512, 4096, 65536, 1 << 20, 2 << 20, 4 << 20 };
	static struct program other;
	unsigned int i, k;

	for (i = 0; i < p->nr; i++) {
		other = *p;
		other.ops[i].fail = other.ops[i].nth = 0;
		if (p->ops[i].fail)
			try_program(p, &other, way);
		other = *p;
		other.ops[i].x = 0;
		if (p->ops[i].x && !try_program(p, &other, way)) {
			other.ops[i].x = p->ops[i].x % 16;
			if (p->ops[i].x > 15)
				try_program(p, &other, way);
		}
		other = *p;
		other.ops[i].other = 0;
		if (p->ops[i].other)
			try_program(p, &other, way);
		other = *p;
		other.ops[i].stream = 0;
		if (p->ops[i].stream)
			try_program(p, &other, way);
		for (k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
			other = *p;
			other.ops[i].size = sizes[k];
			if (p->ops[i].size == sizes[k] ||
			    (p->ops[i].size > sizes[k] && try_program(p, &other, way)))
				break;
		}
	}
}

static void shrink(struct program *p, const char *way)
{
	static struct program one;
	unsigned int i;

	if (p->threads > 1) {
		one = *p;
		one.threads = 1;
		for (i = 0; i < one.nr; i++)
			one.ops[i].thread = 0;
		try_program(p, &one, way);
	}
	while (remove_chunks(p, way))
		;
	simplify(p, way);
	remove_chunks(p, way);
}

/* @p failed: shortens and prints it. */
static void report(struct program *p)
{
	char way[128];
	unsigned int tries;

	way[0] = '\0';
	for (tries = 0; tries < (p->threads > 1 ? 20 : 3) && !way[0]; tries++)
		snprintf(way, sizeof(way), "%s", play_once(p));
	if (!way[0]) {
		printf("# alone it does not fail\n");
		model_print(stdout, p);
		return;
	}
	print_output();
	printf("# fails: %s; %u operations\n", way, p->nr);
	fflush(stdout);
	shrink(p, way);
	if (!still_fails(p, way))
		printf("# the short program fails only sometimes\n");
	print_output();
	printf("# the program, for a file that -p replays:\n");
	model_print(stdout, p);
	fflush(stdout);
}

/* Seeds of programs are far apart, for each row and number of threads. */
static uint64_t seed_of(uint64_t first, size_t row_nr, long nr, unsigned int threads)
{
	return ((first * 131 + row_nr) * 31 + threads) * 1000003 + nr;
}

static void batch(size_t row_nr, uint64_t first, long from, long to, unsigned int threads)
{
	const struct row *r = row_at(row_nr);
	const int fd = temporary();

	for (; from < to; from++) {
		printf("PROGRAM %ld\n", from);
		fflush(stdout);
		model_generate(&program, r->spec, r->largest,
			       seed_of(first, row_nr, from, threads), threads);
		play(fd);
	}
}

/* Programs [0, @nr) of row @row_nr. Returns false if one failed. */
static bool run_row(size_t row_nr, uint64_t first, long nr, unsigned int threads)
{
	const struct row *r = row_at(row_nr);
	char row_text[24], seed_text[24], from_text[24], to_text[24], threads_text[24];
	const char *const args[] = { self, "-b", row_text, seed_text, from_text, to_text,
				     threads_text, NULL };
	static struct program failed;
	char way[128];
	long last = 0;

	snprintf(row_text, sizeof(row_text), "%zu", row_nr);
	snprintf(seed_text, sizeof(seed_text), "%" PRIu64, first);
	snprintf(from_text, sizeof(from_text), "%d", 0);
	snprintf(to_text, sizeof(to_text), "%ld", nr);
	snprintf(threads_text, sizeof(threads_text), "%u", threads);
	snprintf(way, sizeof(way), "%s", in_process(args, &last));
	if (ok(!way[0], "%s: %ld programs%s: %s", r->spec, nr, threads > 1 ? " of threads" : "",
	       way[0] ? way : "good"))
		return true;
	printf("# program %ld of seed %" PRIu64 "\n", last, first);
	print_output();
	if (quick)
		return false;
	model_generate(&failed, r->spec, r->largest, seed_of(first, row_nr, last, threads),
		       threads);
	report(&failed);
	return false;
}

/* The folder of this file's corpus, found from the program upwards. */
static bool find_corpus(char *path, size_t size)
{
	char at[4096], *slash;

	snprintf(at, sizeof(at), "%s", self);
	while ((slash = strrchr(at, '/'))) {
		*slash = '\0';
		snprintf(path, size, "%.4000s/selftests/lib/model/corpus", at);
		if (!access(path, R_OK | X_OK))
			return true;
	}
	return false;
}

static void run_corpus(const char *only)
{
	char path[4200], file[8192], line[256];
	const char *const args[] = { self, "-p", file, NULL };
	FILE *names;
	const char *way;

	need(find_corpus(path, sizeof(path)), "selftests/lib/model/corpus is there");
	snprintf(file, sizeof(file), "ls '%s'", path);
	names = popen(file, "r");
	while (names && fgets(line, sizeof(line), names)) {
		line[strcspn(line, "\n")] = '\0';
		snprintf(file, sizeof(file), "%s/%s", path, line);
		if (!strstr(line, ".txt"))
			continue;
		need(model_read(&program, file), "%s is a program", line);
		if (only && !strstr(program.row, only))
			continue;
		way = in_process(args, NULL);
		if (!ok(!*way, "corpus/%s: %s", line, *way ? way : "good"))
			print_output();
	}
	if (names)
		pclose(names);
}

static void usage(void)
{
	fprintf(stderr,
		"usage: model [-s SEED] [-n PROGRAMS] [-t SECONDS] [-r ROW] [SEED]\n"
		"       model -p FILE      replays one program\n"
		"  -s SEED       of the first round (1)\n"
		"  -n PROGRAMS   of each row (a few), and half as many with threads\n"
		"  -t SECONDS    goes on with further seeds until then\n"
		"  -r ROW        only rows that contain this text\n");
	exit(2);
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int replay(const char *path)
{
	if (!model_read(&program, path))
		return 2;
	play(temporary());
	return 0;
}

int main(int argc, char **argv)
{
	const char *only = NULL;
	uint64_t first = 1;
	double until = 0;
	bool good = true;
	long nr = PROGRAMS;
	ssize_t n;
	size_t i;
	int c;

	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	need(n > 0, "/proc/self/exe");
	self[n] = '\0';
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	if (argc == 7 && !strcmp(argv[1], "-b")) {
		batch(strtoul(argv[2], NULL, 10), strtoull(argv[3], NULL, 10), atol(argv[4]),
		      atol(argv[5]), atol(argv[6]));
		return 0;
	}
	while ((c = getopt(argc, argv, "s:n:t:r:p:")) != -1) {
		if (c == 'p')
			return replay(optarg);
		if (c == 's')
			first = strtoull(optarg, NULL, 0);
		else if (c == 'n')
			nr = atol(optarg);
		else if (c == 't')
			until = seconds() + atof(optarg);
		else if (c == 'r')
			only = optarg;
		else
			usage();
	}
	if (optind < argc)
		first = strtoull(argv[optind], NULL, 0);
	output = temporary();
	program_fd = temporary();
	quick = getenv("HETMEM_MODEL_QUICK") != NULL;
	run_corpus(only);
	do {
		printf("# seed %" PRIu64 ": repeat with -s %" PRIu64 " -n %ld\n", first, first, nr);
		for (i = 0; i < ALL_ROWS && (good || !quick); i++) {
			if (only && !strstr(row_at(i)->spec, only))
				continue;
			good &= run_row(i, first, nr, 1);
			good &= run_row(i, first, (nr + 1) / 2, MODEL_THREADS);
		}
		first++;
	} while (good && seconds() < until);
	return tap_end();
}
