// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A table of live blocks by address, for adaptors that must know more of a
 * block than its upstream tells: open addressing in shards, each with a
 * lock. Entries are moved up when one is taken out, so that there are no
 * tombstones and a table that empties is as good as new.
 *
 * All tables are in a list, so that fork() can hold their locks: the list's,
 * then the owner's of each table, the newest first, as owners call their
 * upstream with it, then those of its shards. Locks of pools and of the driver
 * are taken under an owner's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "resource/adaptor.h"
#include "resource/pool.h"

/* The thread sanitizer knows of 64 locks that are held, and fork holds all. */
#ifdef __SANITIZE_THREAD__
#define SHARDS		4
#else
#define SHARDS		64
#endif
#define FIRST_ROOM	16

struct shard {
	pthread_mutex_t lock;
	size_t nr;
	size_t room;		/* a power of two, or 0 */
	struct hm_known *entries;
} __attribute__((aligned(64)));

struct hm_blocks {
	struct shard shards[SHARDS];
	pthread_mutex_t lock;
	struct hm_blocks *next;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t list_once = PTHREAD_ONCE_INIT;
static struct hm_blocks *list;

static void before_fork(void)
{
	struct hm_blocks *b;
	int i;

	pthread_mutex_lock(&list_lock);
	for (b = list; b; b = b->next) {
		pthread_mutex_lock(&b->lock);
		for (i = 0; i < SHARDS; i++)
			pthread_mutex_lock(&b->shards[i].lock);
	}
}

static void after_fork(void)
{
	struct hm_blocks *b;
	int i;

	for (b = list; b; b = b->next) {
		for (i = 0; i < SHARDS; i++)
			pthread_mutex_unlock(&b->shards[i].lock);
		pthread_mutex_unlock(&b->lock);
	}
	pthread_mutex_unlock(&list_lock);
}

/* Handlers that are there later run first: those of pools are there before. */
static void watch_fork(void)
{
	hm_pool_fork_watch();
	pthread_atfork(before_fork, after_fork, after_fork);
}

/* Fibonacci hashing: blocks are aligned, so the low bits say nothing. */
static uint64_t hash(const void *ptr)
{
	return ((uintptr_t)ptr >> 4) * 0x9e3779b97f4a7c15ULL;
}

static struct shard *shard_of(struct hm_blocks *b, const void *ptr)
{
	return &b->shards[(hash(ptr) >> 58) % SHARDS];
}

static size_t home(const struct shard *s, const void *ptr)
{
	return (hash(ptr) >> 16) & (s->room - 1);
}

/* Where @ptr is, or the empty place where it would be. */
static size_t probe(const struct shard *s, const void *ptr)
{
	size_t i = home(s, ptr);

	while (s->entries[i].ptr && s->entries[i].ptr != ptr)
		i = (i + 1) & (s->room - 1);
	return i;
}

static int grow(struct shard *s)
{
	struct shard larger = { .room = s->room ? 2 * s->room : FIRST_ROOM };
	size_t i;

	larger.entries = calloc(larger.room, sizeof(*larger.entries));
	if (!larger.entries)
		return -ENOMEM;
	for (i = 0; i < s->room; i++)
		if (s->entries[i].ptr)
			larger.entries[probe(&larger, s->entries[i].ptr)] =
				s->entries[i];
	free(s->entries);
	s->entries = larger.entries;
	s->room = larger.room;
	return 0;
}

int hm_blocks_add(struct hm_blocks *b, const struct hm_known *known)
{
	struct shard *s = shard_of(b, known->ptr);
	int err = 0;

	pthread_mutex_lock(&s->lock);
	if (4 * (s->nr + 1) > 3 * s->room)
		err = grow(s);
	if (!err) {
		s->entries[probe(s, known->ptr)] = *known;
		s->nr++;
	}
	pthread_mutex_unlock(&s->lock);
	return err ? hm_error(err, "no host memory to know a block by") : 0;
}

/* Empties place @hole and moves up what was pushed behind it. */
static void erase(struct shard *s, size_t hole)
{
	size_t mask = s->room - 1, i = hole;

	for (;;) {
		i = (i + 1) & mask;
		if (!s->entries[i].ptr)
			break;
		/* What is at home between the hole and here stays. */
		if (((i - home(s, s->entries[i].ptr)) & mask) <
		    ((i - hole) & mask))
			continue;
		s->entries[hole] = s->entries[i];
		hole = i;
	}
	s->entries[hole].ptr = NULL;
	s->nr--;
}

int hm_blocks_take(struct hm_blocks *b, const void *ptr, size_t size,
		   struct hm_known *known)
{
	struct shard *s = shard_of(b, ptr);
	int err = -ENOENT;
	size_t i;

	pthread_mutex_lock(&s->lock);
	if (s->room) {
		i = probe(s, ptr);
		if (s->entries[i].ptr) {
			*known = s->entries[i];
			err = size && size != known->size ? -EINVAL : 0;
			if (!err)
				erase(s, i);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return err;
}

int hm_blocks_take_freed(struct hm_blocks *b, const char *name,
			 const void *ptr, size_t size, struct hm_known *known)
{
	int err = hm_blocks_take(b, ptr, size, known);

	if (err == -ENOENT)
		return hm_error(-EINVAL, "free: %p is not allocated from this %s",
				ptr, name);
	if (err)
		return hm_error(err, "free: %p has %zu bytes, not %zu", ptr,
				known->size, size);
	return 0;
}

bool hm_blocks_find(struct hm_blocks *b, const void *ptr,
		    struct hm_known *known)
{
	struct shard *s = shard_of(b, ptr);
	bool found = false;
	size_t i;

	pthread_mutex_lock(&s->lock);
	if (s->room) {
		i = probe(s, ptr);
		found = s->entries[i].ptr;
		if (found)
			*known = s->entries[i];
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

bool hm_blocks_update(struct hm_blocks *b, const void *ptr, size_t size,
		      uintptr_t bits, struct hm_known *was)
{
	struct shard *s = shard_of(b, ptr);
	struct hm_known *known;
	bool found = false;

	pthread_mutex_lock(&s->lock);
	if (s->room) {
		known = &s->entries[probe(s, ptr)];
		found = known->ptr;
		if (found) {
			*was = *known;
			known->extra |= bits;
			if (known->size < size)
				known->size = size;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

void hm_blocks_update_all(struct hm_blocks *b, uintptr_t set, uintptr_t clear)
{
	struct shard *s;
	size_t i;

	for (s = b->shards; s < b->shards + SHARDS; s++) {
		pthread_mutex_lock(&s->lock);
		for (i = 0; i < s->room; i++) {
			s->entries[i].extra |= set;
			s->entries[i].extra &= ~clear;
		}
		pthread_mutex_unlock(&s->lock);
	}
}

void hm_blocks_lock(struct hm_blocks *b)
{
	pthread_mutex_lock(&b->lock);
}

void hm_blocks_unlock(struct hm_blocks *b)
{
	pthread_mutex_unlock(&b->lock);
}

size_t hm_blocks_bytes(struct hm_blocks *b)
{
	size_t bytes = sizeof(*b);
	int i;

	for (i = 0; i < SHARDS; i++) {
		pthread_mutex_lock(&b->shards[i].lock);
		bytes += b->shards[i].room * sizeof(struct hm_known);
		pthread_mutex_unlock(&b->shards[i].lock);
	}
	return bytes;
}

struct hm_blocks *hm_blocks_new(void)
{
	struct hm_blocks *b;
	int i;

	pthread_once(&list_once, watch_fork);
	b = aligned_alloc(64, sizeof(*b));
	if (!b) {
		hm_error(-ENOMEM, "no host memory for a table of blocks");
		return NULL;
	}
	memset(b, 0, sizeof(*b));
	pthread_mutex_init(&b->lock, NULL);
	for (i = 0; i < SHARDS; i++)
		pthread_mutex_init(&b->shards[i].lock, NULL);
	pthread_mutex_lock(&list_lock);
	b->next = list;
	list = b;
	pthread_mutex_unlock(&list_lock);
	return b;
}

void hm_blocks_free(struct hm_blocks *b,
		    void (*each)(const struct hm_known *known, void *arg),
		    void *arg)
{
	struct hm_blocks **p;
	size_t i, j;

	if (!b)
		return;
	pthread_mutex_lock(&list_lock);
	for (p = &list; *p; p = &(*p)->next) {
		if (*p == b) {
			*p = b->next;
			break;
		}
	}
	pthread_mutex_unlock(&list_lock);
	for (i = 0; i < SHARDS; i++) {
		struct shard *s = &b->shards[i];

		for (j = 0; each && j < s->room; j++)
			if (s->entries[j].ptr)
				each(&s->entries[j], arg);
		free(s->entries);
		pthread_mutex_destroy(&s->lock);
	}
	pthread_mutex_destroy(&b->lock);
	free(b);
}
