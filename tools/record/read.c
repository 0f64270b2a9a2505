/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Reads a recording, see report.h. Nothing in the file is trusted. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/hetmem.h>

#include "report.h"
#include "util.h"

#define ADDRESSES	(1ULL << 63)
/* Cells of the same addresses; the recorder makes 8 at most. */
#define GROUP_MOST	16

/* 0, or a negative errno; -ENODATA: the file is shorter. */
static int read_at(const struct reader *r, void *to, size_t len, uint64_t at)
{
	size_t done = 0;
	ssize_t n;

	while (done < len) {
		n = pread(r->fd, (char *)to + done, len - done, at + done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -ENODATA;
		done += n;
	}
	return 0;
}

/* Why the header cannot be used, or NULL. */
static const char *check_header(const struct record_header *h)
{
	if (memcmp(h->magic, RECORD_MAGIC, sizeof(h->magic)))
		return "is not a recording; 'hetmem record' makes one";
	if (h->version != RECORD_VERSION)
		return "is a recording of another version of hetmem; use that one";
	if (h->crc != record_crc(0, h, offsetof(struct record_header, crc)) ||
	    h->size != sizeof(*h) || h->page_size < 4096 || h->page_size > (1 << 20) ||
	    h->page_size & (h->page_size - 1))
		return "has a damaged header; nothing of it can be read";
	return NULL;
}

int reader_open(struct reader *r, const char *command, const char *path)
{
	const char *wrong = NULL;
	struct stat st;
	int err;

	memset(r, 0, sizeof(*r));
	r->command = command;
	r->path = path;
	r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (r->fd < 0)
		return complain(EXIT_USAGE, command, "cannot read '%s': %s; give a file of 'hetmem record'",
				path, strerror(errno));
	if (fstat(r->fd, &st) || !S_ISREG(st.st_mode)) {
		wrong = "is no regular file; give a file of 'hetmem record'";
	} else {
		err = read_at(r, &r->header, sizeof(r->header), 0);
		if (err == -ENODATA)
			wrong = "is too short for a recording; 'hetmem record' makes one";
		else if (err)
			wrong = "cannot be read";
		else
			wrong = check_header(&r->header);
		r->size = st.st_size;
		r->limit = r->size < RECORD_MOST ? r->size : RECORD_MOST;
	}
	if (wrong) {
		close(r->fd);
		r->fd = -1;
		return complain(EXIT_USAGE, command, "'%s' %s", path, wrong);
	}
	r->payload = xcalloc(1, RECORD_PAYLOAD);
	reader_rewind(r);
	return 0;
}

void reader_close(struct reader *r)
{
	if (r->fd >= 0)
		close(r->fd);
	free(r->payload);
}

void reader_rewind(struct reader *r)
{
	r->at = sizeof(r->header);
	r->sequence = 0;
	r->damage = NULL;
}

static bool check_cells(const struct reader *r, const struct record_sample *s)
{
	const uint64_t page = r->header.page_size;
	const struct record_cell *c = reader_cells(r), *last = NULL;
	unsigned int group = 0;
	uint64_t pages = 0;
	uint32_t i;

	if (s->nr_cells != (r->frame.length - sizeof(*s)) / sizeof(*c) ||
	    s->from > s->to || s->to > ADDRESSES || (s->from | s->to) % page ||
	    (s->flags & RECORD_SAME && s->nr_cells))
		return false;
	for (i = 0; i < s->nr_cells; i++, last = c++) {
		if (c->start >= c->end || c->start < s->from || c->end > s->to ||
		    (c->start | c->end) % page)
			return false;
		if (last && c->start == last->start && c->end == last->end)
			pages += c->pages;
		else if (!last || c->start >= last->end)
			pages = c->pages, group = 0;
		else
			return false;
		/* The second test keeps the sum from overflowing. */
		if (++group > GROUP_MOST || c->pages > ADDRESSES / page || pages > (c->end - c->start) / page)
			return false;
	}
	return true;
}

/* Whether the payload is what its type says; types of later versions are. */
static bool check_payload(const struct reader *r)
{
	const struct record_process *p = (void *)r->payload;
	const struct record_event *e = (void *)r->payload;

	switch (r->frame.type) {
	case RECORD_PROCESS:
		return r->frame.length >= sizeof(*p) && memchr(p->name, 0, sizeof(p->name));
	case RECORD_SAMPLE:
		return r->frame.length >= sizeof(struct record_sample) &&
			check_cells(r, (void *)r->payload);
	case RECORD_EVENT:
		return r->frame.length >= sizeof(*e) && e->start <= e->end;
	case RECORD_END:
		return r->frame.length >= sizeof(struct record_end);
	default:
		return true;
	}
}

static bool stop(struct reader *r, const char *why)
{
	r->damage = why;
	return false;
}

bool reader_next(struct reader *r)
{
	struct record_frame *f = &r->frame;
	uint32_t crc;

	if (r->at == r->size)
		return false;
	if (r->at > r->limit || r->limit - r->at < sizeof(*f))
		return stop(r, r->limit < r->size ? "more than 1 GiB" : "cut off");
	if (read_at(r, f, sizeof(*f), r->at))
		return stop(r, "cut off");
	if (f->length > RECORD_PAYLOAD || f->length % 8 || f->length < 8)
		return stop(r, "damaged");
	if (r->limit - r->at - sizeof(*f) < f->length ||
	    read_at(r, r->payload, f->length, r->at + sizeof(*f)))
		return stop(r, r->limit < r->size ? "more than 1 GiB" : "cut off");
	crc = record_crc(0, f, offsetof(struct record_frame, crc));
	if (f->crc != record_crc(crc, r->payload, f->length) || f->sequence != r->sequence ||
	    !check_payload(r))
		return stop(r, "damaged");
	r->at += sizeof(*f) + f->length;
	r->sequence++;
	return true;
}
