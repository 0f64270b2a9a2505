/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The file that a recording goes to, see record.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "record.h"
#include "util.h"

/* For the frames that are few and must find room: programs, the end. */
#define RESERVE		8192

static int cannot(const struct record_file *file, const char *what)
{
	return complain(EXIT_USAGE, "record", "'%s' %s; name another file with %s", file->path, what,
			file->option);
}

/* 0, or an exit status: whether the open file may be replaced. */
static int check_replace(struct record_file *file)
{
	struct stat st;

	if (fstat(file->fd, &st) || !S_ISREG(st.st_mode))
		return cannot(file, "is no regular file");
	if (st.st_uid != geteuid())
		return cannot(file, "belongs to another user");
	if (st.st_nlink != 1)
		return cannot(file, "has several names or none");
	return 0;
}

int record_file_open(struct record_file *file, const char *option, const char *path, bool force,
		     uint64_t max)
{
	const int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	int status = 0;

	*file = (struct record_file){ .path = path, .option = option, .max = max };
	file->fd = open(path, flags | O_CREAT | O_EXCL, 0600);
	file->created = file->fd >= 0;
	if (file->fd < 0 && errno == EEXIST) {
		if (!force)
			return cannot(file, "exists: --force replaces it");
		file->fd = open(path, flags);
		if (file->fd < 0 && errno == ELOOP)
			return cannot(file, "is a symbolic link");
		file->replace = true;
	}
	if (file->fd < 0)
		return complain(EXIT_USAGE, "record", "cannot create '%s': %s; name another file with %s",
				path, strerror(errno), option);
	if (file->replace)
		status = check_replace(file);
	if (!status && flock(file->fd, LOCK_EX | LOCK_NB))
		status = cannot(file, "is being recorded to");
	if (status) {
		close(file->fd);
		file->fd = -1;
	}
	return status;
}

/* All of it or nothing. 0 or an exit status. */
static int append(struct record_file *file, struct iovec *parts, int nr)
{
	size_t len = 0;
	ssize_t n;
	int i, err;

	for (i = 0; i < nr; i++)
		len += parts[i].iov_len;
	do
		n = writev(file->fd, parts, nr);
	while (n < 0 && errno == EINTR);
	if (n == (ssize_t)len) {
		file->used += len;
		return 0;
	}
	err = n < 0 ? errno : ENOSPC;
	/* Readers accept a cut end; this makes it a clean one. */
	if (n > 0 && ftruncate(file->fd, file->used))
		err = errno;
	return complain(EXIT_FAILED, "record", "cannot write to '%s': %s; 'hetmem report' shows what was recorded before",
			file->path, strerror(err));
}

/* Bytes that samples may take. */
static uint64_t samples_most(const struct record_file *file)
{
	return file->max - RESERVE - file->max / 4;
}

int record_file_replace(struct record_file *file)
{
	if (file->replace && (fchmod(file->fd, 0600) || ftruncate(file->fd, 0)))
		return complain(EXIT_FAILED, "record", "cannot replace '%s': %s", file->path,
				strerror(errno));
	return 0;
}

int record_file_begin(struct record_file *file, const struct record_header *header)
{
	struct iovec part = { (void *)header, sizeof(*header) };
	const int status = record_file_replace(file);

	if (status)
		return status;
	file->interval_ms = header->interval_ms;
	file->half = samples_most(file) / 2;
	return append(file, &part, 1);
}

/* Whether there is room for @len bytes of it. */
static bool has_room(struct record_file *file, enum record_type type, uint64_t len)
{
	const uint64_t samples = file->used - file->events;
	const bool fits = file->used + len + sizeof(struct record_end) +
		sizeof(struct record_frame) <= file->max;

	switch (type) {
	case RECORD_EVENT:
		if (!fits || file->events + len > file->max / 4) {
			file->dropped++;
			return false;
		}
		file->events += len;
		return true;
	case RECORD_SAMPLE:
		if (!fits || samples + len > samples_most(file)) {
			file->skipped++;
			return false;
		}
		while (samples + len > file->half && file->interval_ms < UINT32_MAX / 2) {
			file->interval_ms *= 2;
			file->half += (samples_most(file) - file->half) / 2 + 1;
		}
		return true;
	case RECORD_END:
		return true;
	default:
		return fits;
	}
}

int record_file_add(struct record_file *file, enum record_type type, const void *head,
		    size_t head_len, const void *rest, size_t rest_len)
{
	struct record_frame frame = {
		.type = type, .length = head_len + rest_len, .sequence = file->sequence,
	};
	struct iovec parts[] = {
		{ &frame, sizeof(frame) }, { (void *)head, head_len }, { (void *)rest, rest_len },
	};
	int status;

	if (!has_room(file, type, sizeof(frame) + frame.length))
		return 0;
	frame.crc = record_crc(0, &frame, offsetof(struct record_frame, crc));
	frame.crc = record_crc(frame.crc, head, head_len);
	frame.crc = record_crc(frame.crc, rest, rest_len);
	status = append(file, parts, rest_len ? 3 : 2);
	if (!status)
		file->sequence++;
	return status;
}

void record_file_close(struct record_file *file, bool keep)
{
	if (file->fd < 0)
		return;
	if (!keep && file->created)
		unlink(file->path);
	close(file->fd);
	file->fd = -1;
}
