/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem top: what `hetmem status` shows, again and again, with keys.
 *
 * Nothing but printable ASCII is drawn, in bold and reverse: no colours, no line characters.
 * A signal only sets a flag, so that the terminal is put back before the program ends by it.
 * What a key asks of a process is done by a child that runs `hetmem pullback` or `hetmem
 * prefetch`: the screen goes on, and the key can be taken back.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "options.h"
#include "sample.h"
#include "util.h"

#define INTERVAL	2
#define MAX_INTERVAL	3600

/* For --help, and for the key ?. */
static const char keys_text[] =
	"  up, down, k, j      another process\n"
	"  s                   sort by the next column\n"
	"  /                   only names that contain a text; empty: all\n"
	"  b                   pull its memory back to the host, after y\n"
	"  p                   prefetch its memory to a device, after y\n"
	"  space               look now\n"
	"  ?                   these keys\n"
	"  q                   end\n";

static int help(void)
{
	printf("Usage: hetmem top [OPTION]...\n"
	       "Shows what 'hetmem status' shows, again and again.\n\n"
	       "  --interval SECONDS  between two looks (%d)\n"
	       "  --sort COLUMN       pid, name, device, host, moves or thrash (device)\n\n"
	       "Keys:\n%s", INTERVAL, keys_text);
	return EXIT_OK;
}

enum column { BY_PID, BY_NAME, BY_DEVICE, BY_HOST, BY_MOVES, BY_THRASH, NR_COLUMNS };

static const char *const column_names[NR_COLUMNS] = {
	"pid", "name", "device", "host", "moves", "thrash",
};

/* 0, or the exit status; -1 for help. */
static int parse(long *interval, enum column *sort, int argc, char **argv)
{
	int c;

	while ((c = next_option("top", argc, argv)) != -1) {
		switch (c) {
		case 'i':
			if (!parse_number(optarg, 1, MAX_INTERVAL, interval))
				return usage_error("top", "'%s' is not a time from 1 to %d seconds",
						   optarg, MAX_INTERVAL);
			break;
		case 's':
			for (*sort = 0; *sort < NR_COLUMNS; ++*sort)
				if (!strcmp(optarg, column_names[*sort]))
					break;
			if (*sort == NR_COLUMNS)
				return usage_error("top", "'%s' is not pid, name, device, host, moves or thrash",
						   optarg);
			break;
		case 'h':
			return -1;
		default:
			return option_error("top", c, argv);
		}
	}
	if (optind < argc)
		return usage_error("top", "'%s' is not an option", argv[optind]);
	return 0;
}

#ifdef HAVE_NCURSES
#include <curses.h>
#include <term.h>

/* Seconds that a look may take: keys wait for it. */
#define BUDGET		1
#define FILTER_LEN	32
#define MESSAGE_LEN	512
/* A child is asked for its end so often a second. */
#define POLL_MS		100
#define ESCAPE		27

extern char **environ;

/**
 * struct row - a process as it is drawn
 * @process: of the last sample
 */
struct row {
	const struct sample_process *process;
	struct sample_moves moves;
};

/**
 * struct top - the screen
 * @rows: those that the filter leaves, sorted
 * @selected, @started: the process, see struct sample_process; 0: none
 * @first: row at the top of the list
 * @editing: the filter is being typed
 * @helping: the keys are shown until the next key
 * @asking: what y does: 'b', 'p' or 0
 * @child: it does that now, or 0; @output: of it
 */
struct top {
	long interval;
	enum column sort;
	struct sample before, now;
	struct row *rows;
	unsigned int nr_rows, first;
	pid_t selected;
	uint64_t started;
	char filter[FILTER_LEN];
	bool editing;
	bool helping;
	int asking;
	pid_t child;
	int output;
	char message[MESSAGE_LEN];
};

static volatile sig_atomic_t ended_by;

static void on_signal(int sig)
{
	ended_by = sig;
}

/* The rows. */

static enum column sorted_by;

static int compare(double x, double y)
{
	return (x < y) - (x > y);
}

static int by_column(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	const struct sample_process *p = x->process, *q = y->process;
	int order = 0;
	bool known;

	switch (sorted_by) {
	case BY_NAME:
		order = strcmp(p->name, q->name);
		break;
	case BY_DEVICE:
		order = compare(sample_on_device(p) + sample_on_gpus(p, &known),
				sample_on_device(q) + sample_on_gpus(q, &known));
		break;
	case BY_HOST:
		order = compare(sample_on_host(p), sample_on_host(q));
		break;
	case BY_MOVES:
		order = compare(x->moves.to_device + x->moves.to_host,
				y->moves.to_device + y->moves.to_host);
		break;
	case BY_THRASH:
		order = compare(p->thrashed, q->thrashed);
		break;
	default:
		break;
	}
	return order ? order : (p->pid > q->pid) - (p->pid < q->pid);
}

static void make_rows(struct top *t)
{
	const double seconds = t->now.time - t->before.time;
	unsigned int i;

	free(t->rows);
	t->rows = xcalloc(t->now.nr, sizeof(*t->rows));
	t->nr_rows = 0;
	for (i = 0; i < t->now.nr; i++) {
		const struct sample_process *p = &t->now.processes[i];

		if (*t->filter && !strstr(p->name, t->filter))
			continue;
		t->rows[t->nr_rows++] = (struct row){
			.process = p,
			.moves = sample_moves(sample_find(&t->before, p), p, seconds),
		};
	}
	sorted_by = t->sort;
	if (t->nr_rows)
		qsort(t->rows, t->nr_rows, sizeof(*t->rows), by_column);
}

/* The selected row; the first one where that process is not shown any more. */
static unsigned int find_selected(struct top *t)
{
	unsigned int i;

	for (i = 0; i < t->nr_rows; i++)
		if (t->rows[i].process->pid == t->selected &&
		    t->rows[i].process->started == t->started)
			return i;
	return 0;
}

static void look(struct top *t)
{
	sample_free(&t->before);
	t->before = t->now;
	if (sample_take(&t->now, NULL, 0, BUDGET))
		snprintf(t->message, sizeof(t->message), "/proc cannot be read");
	make_rows(t);
}

static void select_row(struct top *t, unsigned int row)
{
	if (row >= t->nr_rows)
		return;
	t->selected = t->rows[row].process->pid;
	t->started = t->rows[row].process->started;
}

/* The screen. */

printf_like(2, 3)
static void draw_line(int y, const char *fmt, ...)
{
	char raw[MESSAGE_LEN], line[4 * MESSAGE_LEN];
	va_list ap;

	if (y < 0 || y >= LINES)
		return;
	va_start(ap, fmt);
	vsnprintf(raw, sizeof(raw), fmt, ap);
	va_end(ap);
	mvaddnstr(y, 0, escape(line, sizeof(line), raw), COLS);
}

static const char *rate(double bytes, bool known)
{
	return !known ? "-" : bytes > 0 ? size_text(bytes) : "0";
}

/* "1.2 GiB", "-", with a + where NVML does not know all of it. */
static const char *gpu_text(const struct sample_process *p)
{
	static char text[32];
	bool known;
	const uint64_t bytes = sample_on_gpus(p, &known);

	if (!p->nr_gpus)
		return "-";
	snprintf(text, sizeof(text), "%s%s", size_text(bytes), known ? "" : "+");
	return text;
}

/* @gpus: there is a column of them. */
static void draw_row(int y, const struct row *row, bool gpus, bool selected)
{
	const struct sample_process *p = row->process;
	const bool known = row->moves.source != SOURCE_NONE;
	const bool seen = p->residency != SOURCE_NONE;
	char thrash[32], hints[16];

	snprintf(thrash, sizeof(thrash), "%" PRIu64, p->thrashed);
	snprintf(hints, sizeof(hints), "%u", p->waiting);
	if (selected)
		attron(A_REVERSE);
	draw_line(y, "%7d %-16.16s %*s%s%10s %10s%c %10s %10s %-9s %6s %5s %5u", p->pid, p->name,
		  gpus ? 10 : 0, gpus ? gpu_text(p) : "", gpus ? " " : "",
		  seen && !p->other ? size_text(sample_on_device(p)) : "-",
		  seen ? size_text(sample_on_host(p)) : "-", p->partial ? '+' : ' ',
		  rate(row->moves.to_device, known), rate(row->moves.to_host, known),
		  sample_source_name(row->moves.source), p->all_ranges ? thrash : "-",
		  p->executor ? hints : "-", p->nr_pools);
	if (selected)
		attroff(A_REVERSE);
}

static void draw_module(const struct top *t)
{
	const struct sample_module *m = &t->now.module, *was = &t->before.module;
	const double seconds = t->now.time - t->before.time;

	if (m->loaded)
		draw_line(0, "module: to devices %s/s, to the host %s/s; thrashed %" PRIu64
			  ", hints %" PRIu64 ", pinned %s",
			  rate(sample_rate(was->to_device, m->to_device, seconds), was->loaded),
			  rate(sample_rate(was->to_host, m->to_host, seconds), was->loaded),
			  m->thrashed, m->hints, size_text(m->pinned));
	else
		draw_line(0, "hetmem.ko is not loaded: no device's pages, moves or hints");
}

static void draw_gpu(int y, unsigned int index, const struct gpu *gpu)
{
	if (gpu->known)
		draw_line(y, "GPU %u (%s): %s of %s used", index, gpu->name, size_text(gpu->used),
			  size_text(gpu->total));
	else
		draw_line(y, "GPU %u (%s): its memory is not known", index, gpu->name);
}

/* From line @y on, before the last one. */
static void draw_pools(int y, const struct sample_process *p)
{
	unsigned int i;

	if (!p)
		return;
	if (y < LINES - 1)
		draw_line(y++, "%s", "");
	if (p->nr_pools && y < LINES - 1) {
		attron(A_BOLD);
		draw_line(y++, "%7s %-16s %10s %10s %10s %8s %10s %10s", "POOL", "OF",
			  "REQUESTED", "HELD", "LIMIT", "FAILED", "SPILLED", "TAG");
		attroff(A_BOLD);
	}
	for (i = 0; i < p->nr_pools && y < LINES - 1; i++, y++) {
		const struct hm_published_pool *pool = &p->pools[i];

		draw_line(y, "%7" PRIu64 " %-13.13s %2d %10s %10s %10s %8" PRIu64 " %10s %10s",
			  pool->number, pool->provider, pool->device, size_text(pool->requested),
			  size_text(pool->reserved), pool->max ? size_text(pool->max) : "-",
			  pool->failed, size_text(pool->spilled), *pool->tag ? pool->tag : "-");
	}
}

static void draw_foot(const struct top *t)
{
	if (t->editing)
		draw_line(LINES - 1, "only names that contain: %s_", t->filter);
	else if (t->asking)
		draw_line(LINES - 1, t->asking == 'b' ?
			  "pull all memory of process %d back to the host? y or n" :
			  "prefetch the memory of process %d to device 0? y or n", t->selected);
	else if (t->child)
		draw_line(LINES - 1, "working on process %d; escape ends that", t->selected);
	else if (*t->message)
		draw_line(LINES - 1, "%s", t->message);
	else
		draw_line(LINES - 1, "sort: %s%s%s  s sort  / filter  b pull back  p prefetch  ? keys  q end",
			  column_names[t->sort], *t->filter ? "  only: " : "", t->filter);
}

static void draw_keys(void)
{
	const char *line = keys_text;
	int y = 0;

	erase();
	for (; *line && y < LINES; line += strcspn(line, "\n") + 1)
		draw_line(y++, "%.*s", (int)strcspn(line, "\n"), line);
	if (y < LINES)
		draw_line(LINES - 1, "any key: back");
	refresh();
}

static void draw(struct top *t)
{
	const unsigned int selected = find_selected(t);
	/* The list has what is left by head and foot, half of it if there are pools. */
	const unsigned int nr_gpus = t->now.gpus.nr;
	int room, y = 1;
	unsigned int i;

	erase();
	draw_module(t);
	/* Half of the screen at most is for GPUs. */
	for (i = 0; i < nr_gpus && y < LINES / 2 - 1; i++)
		draw_gpu(y++, i, &t->now.gpus.gpus[i]);
	attron(A_BOLD);
	draw_line(y++, "%7s %-16s %*s%s%10s %10s  %10s %10s %-9s %6s %5s %5s", "PID", "NAME",
		  nr_gpus ? 10 : 0, nr_gpus ? "GPU" : "", nr_gpus ? " " : "", "ON DEVICE",
		  "ON HOST", "TO DEV/S", "TO HOST/S", "SOURCE", "THRASH", "HINTS", "POOLS");
	attroff(A_BOLD);
	room = LINES - 2 - y;
	if (t->nr_rows && t->rows[selected].process->nr_pools && room > 8)
		room /= 2;
	if (room < 1)
		room = 1;
	/* After a larger screen or fewer processes nothing is left empty. */
	if (t->first + room > t->nr_rows)
		t->first = t->nr_rows > (unsigned int)room ? t->nr_rows - room : 0;
	if (selected < t->first)
		t->first = selected;
	if (selected >= t->first + room)
		t->first = selected - room + 1;
	for (i = t->first; i < t->nr_rows && i - t->first < (unsigned int)room; i++)
		draw_row(y++, &t->rows[i], nr_gpus, i == selected);
	if (!t->nr_rows)
		draw_line(y++, *t->filter ? "no process has such a name" : "no process uses hetmem");
	draw_pools(y, t->nr_rows ? t->rows[selected].process : NULL);
	if (t->now.hidden || t->now.left_out)
		draw_line(LINES - 2, "%u processes of other users, %u left out", t->now.hidden,
			  t->now.left_out);
	draw_foot(t);
	refresh();
}

/* What a key asks of a process. */

static void start_child(struct top *t, bool back)
{
	char pid[16];
	char *argv[] = { (char *)"hetmem", (char *)(back ? "pullback" : "prefetch"),
		pid, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t signals;
	int fds[2], err;

	snprintf(pid, sizeof(pid), "%d", t->selected);
	if (pipe2(fds, O_CLOEXEC)) {
		snprintf(t->message, sizeof(t->message), "%s", strerror(errno));
		return;
	}
	sigfillset(&signals);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDERR_FILENO);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigdefault(&attr, &signals);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
	err = posix_spawn(&t->child, "/proc/self/exe", &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	*t->message = '\0';
	t->output = fds[0];
	if (err) {
		t->child = 0;
		close(fds[0]);
		snprintf(t->message, sizeof(t->message), "%s", strerror(err));
	}
}

/* Of the child's line the end is lost if it is very long. */
static void end_child(struct top *t, bool wait)
{
	ssize_t n;

	if (!t->child || waitpid(t->child, NULL, wait ? 0 : WNOHANG) != t->child)
		return;
	n = read(t->output, t->message, sizeof(t->message) - 1);
	t->message[n > 0 ? n : 0] = '\0';
	t->message[strcspn(t->message, "\n")] = '\0';
	close(t->output);
	t->child = 0;
}

static void stop_child(struct top *t)
{
	if (!t->child)
		return;
	kill(t->child, SIGKILL);
	end_child(t, true);
	snprintf(t->message, sizeof(t->message), "stopped: what had begun may go on");
}

/* Is the process on the screen still that one? PIDs are used again. */
static void act(struct top *t, bool back)
{
	struct sample_process was = { .pid = t->selected, .started = t->started };
	struct sample s;
	bool same;

	sample_take(&s, &was.pid, 1, 0);
	same = sample_find(&s, &was) != NULL;
	sample_free(&s);
	if (same)
		start_child(t, back);
	else
		snprintf(t->message, sizeof(t->message), "process %d has ended", was.pid);
}

/* Keys. */

static void edit(struct top *t, int key)
{
	size_t len = strlen(t->filter);

	if (key == '\n' || key == '\r' || key == KEY_ENTER) {
		t->editing = false;
	} else if (key == ESCAPE) {
		t->editing = false;
		*t->filter = '\0';
	} else if (key == KEY_BACKSPACE || key == 127 || key == '\b') {
		if (len)
			t->filter[len - 1] = '\0';
	} else if (key >= 0x20 && key < 0x7f && len + 1 < sizeof(t->filter)) {
		t->filter[len] = key;
		t->filter[len + 1] = '\0';
	}
	make_rows(t);
}

/* False: end. *@again: take a look now. */
static bool press(struct top *t, int key, bool *again)
{
	const unsigned int selected = find_selected(t);

	if (t->helping) {
		t->helping = false;
		return true;
	}
	if (t->editing) {
		edit(t, key);
		return true;
	}
	if (t->asking) {
		if (key == 'y')
			act(t, t->asking == 'b');
		else
			snprintf(t->message, sizeof(t->message), "nothing was done");
		t->asking = 0;
		return true;
	}
	*t->message = '\0';
	switch (key) {
	case 'q':
		return false;
	case KEY_UP:
	case 'k':
		if (selected)
			select_row(t, selected - 1);
		break;
	case KEY_DOWN:
	case 'j':
		select_row(t, selected + 1);
		break;
	case 's':
		t->sort = (t->sort + 1) % NR_COLUMNS;
		make_rows(t);
		break;
	case '/':
		t->editing = true;
		break;
	case 'b':
	case 'p':
		if (!t->child && t->nr_rows) {
			select_row(t, selected);
			t->asking = key;
		}
		break;
	case ESCAPE:
		stop_child(t);
		break;
	case ' ':
		*again = true;
		break;
	case '?':
		t->helping = true;
		break;
	default:
		break;
	}
	return true;
}

/* The terminal of stdin or stdout. */
static bool is_gone(void)
{
	struct pollfd ends[] = {
		{ .fd = STDIN_FILENO, .events = POLLIN }, { .fd = STDOUT_FILENO },
	};

	return poll(ends, ARRAY_SIZE(ends), 0) > 0 &&
	       ((ends[0].revents | ends[1].revents) & (POLLHUP | POLLERR | POLLNVAL));
}

static void run_screen(struct top *t)
{
	double next = 0;
	bool again = true;
	int key;

	while (!ended_by) {
		/* Not while a question is open: rows must not move under it. */
		if ((again || now() >= next) && !t->asking) {
			look(t);
			/* What stood first stays selected when others come before it. */
			select_row(t, find_selected(t));
			next = now() + t->interval;
			again = false;
		}
		end_child(t, false);
		if (t->helping)
			draw_keys();
		else
			draw(t);
		timeout(POLL_MS);
		key = getch();
		if (key == ERR && is_gone())
			break;
		if (key != ERR && key != KEY_RESIZE && !press(t, key, &again))
			break;
	}
	stop_child(t);
}

/* 0, or the exit status of a terminal that cannot be drawn on. */
static int check_terminal(void)
{
	const char *term = getenv("TERM");
	bool can_move = false;
	int err;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		return complain(EXIT_USAGE, "top", "needs a terminal; type 'hetmem status' for the same once");
	if (term && *term && setupterm(term, STDOUT_FILENO, &err) == OK) {
		can_move = cursor_address;
		del_curterm(cur_term);
	}
	if (!can_move)
		return complain(EXIT_USAGE, "top",
				"the terminal '%s' cannot be drawn on; set TERM, or type 'hetmem status'",
				term ? term : "");
	return 0;
}

static int top(long interval, enum column sort)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction action = { .sa_handler = on_signal };
	struct top t = { .interval = interval, .sort = sort };
	int ret = check_terminal();
	SCREEN *screen;
	size_t i;

	if (ret)
		return ret;
	screen = newterm(NULL, stdout, stdin);
	if (!screen)
		return complain(EXIT_USAGE, "top", "the terminal '%s' cannot be drawn on; set TERM, or type 'hetmem status'",
				getenv("TERM"));
	for (i = 0; i < ARRAY_SIZE(signals); i++)
		sigaction(signals[i], &action, NULL);
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	set_escdelay(25);
	run_screen(&t);
	endwin();
	delscreen(screen);
	sample_free(&t.before);
	sample_free(&t.now);
	free(t.rows);
	if (ended_by) {
		fflush(stdout);
		signal(ended_by, SIG_DFL);
		raise(ended_by);
	}
	return EXIT_OK;
}
#else
static int top(long interval, enum column sort)
{
	(void)interval;
	(void)sort;
	return complain(EXIT_USAGE, "top",
			"built without ncurses; type 'apt-get install libncurses-dev' and build again");
}
#endif

int cmd_top(int argc, char **argv)
{
	enum column sort = BY_DEVICE;
	long interval = INTERVAL;
	int ret = parse(&interval, &sort, argc, argv);

	if (ret)
		return ret < 0 ? help() : ret;
	return top(interval, sort);
}
