/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem demo: the input. A file that was named, or one made of the files
 * below /usr, which every system has.
 */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "demo.h"

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Appends the file @from to @to, at most @room bytes. */
static ssize_t append_file(int to, const char *from, size_t room)
{
	static char buffer[1 << 18];
	int fd = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t copied = 0, n;

	if (fd < 0)
		return 0;
	while (room) {
		n = read(fd, buffer, room < sizeof(buffer) ? room :
			 sizeof(buffer));
		if (n <= 0)
			break;
		if (write(to, buffer, n) != n) {
			copied = -1;
			break;
		}
		copied += n;
		room -= n;
	}
	close(fd);
	return copied;
}

/* A file without a name, of 64 MiB of what is installed, in a fixed order. */
static int make_input(struct demo *demo)
{
	char *const paths[] = { "/usr/bin", "/usr/lib", "/usr/share", NULL };
	size_t size = 0;
	FTSENT *entry;
	int ret = 0;
	FTS *fts;

	demo->fd = memfd_create("hetmem-demo", MFD_CLOEXEC);
	fts = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, by_name);
	if (demo->fd < 0 || !fts) {
		if (fts)
			fts_close(fts);
		return complain(EXIT_FAILED, "demo", "no input: %s",
				strerror(errno));
	}
	while (size < DEMO_MIN_FILE && (entry = fts_read(fts))) {
		ssize_t n;

		if (entry->fts_info != FTS_F)
			continue;
		n = append_file(demo->fd, entry->fts_accpath,
				DEMO_MIN_FILE - size);
		if (n < 0) {
			ret = complain(EXIT_FAILED, "demo",
				       "cannot make the input: %s",
				       strerror(errno));
			break;
		}
		size += n;
	}
	fts_close(fts);
	if (!ret && size < DEMO_MIN_FILE)
		ret = complain(EXIT_USAGE, "demo",
			       "/usr has less than %s to read; type 'hetmem demo --file F' with a larger file",
			       size_text(DEMO_MIN_FILE));
	return ret;
}

int demo_input_open(struct demo *demo)
{
	size_t limit = available_memory() / 8;
	struct stat st;
	int ret;

	if (demo->file) {
		demo->fd = open(demo->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (demo->fd < 0)
			return complain(EXIT_USAGE, "demo",
					"cannot read '%s': %s; type 'hetmem demo --file F'",
					demo->file, strerror(errno));
	} else {
		ret = make_input(demo);
		if (ret)
			return ret;
	}
	if (fstat(demo->fd, &st) || !S_ISREG(st.st_mode))
		return complain(EXIT_USAGE, "demo",
				"'%s' is not a file; type 'hetmem demo --file F'",
				demo->file);
	if ((size_t)st.st_size < DEMO_MIN_FILE)
		return complain(EXIT_USAGE, "demo",
				"'%s' has %s, the demonstration needs %s; type 'hetmem demo --file F' with a larger file",
				demo->file, size_text(st.st_size),
				size_text(DEMO_MIN_FILE));
	/* Several times in memory, and mostly on the device at once. */
	if (limit > demo->capacity)
		limit = demo->capacity;
	if (limit < DEMO_MIN_FILE)
		limit = DEMO_MIN_FILE;
	demo->size = (size_t)st.st_size < limit ? (size_t)st.st_size : limit;
	demo->mapped = (demo->size + DEMO_HUGE - 1) & -DEMO_HUGE;
	/* Neither page-aligned nor in whole pages. */
	demo->change = demo->size / 4 * 3 + 8;
	demo->change_size = demo->size / 8;
	demo->change_size -= demo->change_size % 8;
	return 0;
}

/*
 * Brings [@start, @start + @size) of @piece, which is at @at in the input, to
 * what it is after the change.
 */
static void apply_change(const struct demo *demo, char *piece, size_t at,
			 size_t size)
{
	size_t from = demo->change, to = demo->change + demo->change_size;

	if (from < at)
		from = at;
	if (to > at + size)
		to = at + size;
	if (from < to)
		memset(piece + (from - at), DEMO_VALUE, to - from);
}

/* The sums are of what read() brought, not of what memory holds later. */
int demo_input_read(struct demo *demo)
{
	struct digest *sum = digest_new(), *changed = NULL;
	char *piece = xcalloc(DEMO_PIECE, 1);
	double begin, copying = 0;
	size_t at = 0;
	int ret = 0;

	demo_step("reads %s into hetmem memory", size_text(demo->size));
	while (at < demo->size) {
		size_t want = demo->size - at;
		ssize_t n;

		if (want > DEMO_PIECE)
			want = DEMO_PIECE;
		n = pread(demo->fd, piece, want, at);
		if (n <= 0) {
			ret = demo_fail("the input cannot be read: %s",
					n ? strerror(errno) :
					"it became shorter");
			break;
		}
		begin = now();
		memcpy(demo->data + at, piece, n);
		copying += now() - begin;
		/* Until the change both sums have seen the same. */
		if (!changed && at + n > demo->change)
			changed = digest_copy(sum);
		digest_add(sum, piece, n);
		if (changed) {
			apply_change(demo, piece, at, n);
			digest_add(changed, piece, n);
		}
		at += n;
		demo_progress(at, demo->size);
	}
	digest_end(sum, demo->sum);
	if (changed)
		digest_end(changed, demo->changed_sum);
	free(piece);
	if (!ret) {
		demo_done("SHA-256 %.12s...", demo->sum);
		demo_speed(demo, "first touch and copy", demo->size, copying);
	}
	return ret;
}
