/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Reading the kernel's log, and what in it is a complaint. */
#ifndef KLOG_H
#define KLOG_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOG_SIZE	(1 << 20)

static int kmsg = -1;
static char klog[LOG_SIZE];
static size_t klog_len;

/* What the kernel writes when something is wrong. */
static const char * const bad[] = {
	"WARNING", "BUG:", "kernel BUG", "KASAN:", "UBSAN:", "KCSAN:", "KFENCE:",
	"Oops", "general protection", "unable to handle", "Kernel panic",
	"possible recursive", "circular lock", "inconsistent lock state",
	"possible irq lock inversion", "bad unlock balance", "held lock freed",
	"lock held when returning", "Invalid wait context", "sleeping function",
	"scheduling while atomic", "suspicious RCU", "RCU used illegally",
	"rcu: INFO", "self-detected stall", "detected stalls", "soft lockup",
	"hard LOCKUP", "hung_task", "blocked for more than", "Bad page",
	"Bad rss-counter", "non-zero pgtables_bytes", "refcount_t:",
	"list_add corruption", "list_del corruption", "page dumped because",
	"Objects remaining", "Slab cache still has objects", "ODEBUG:",
	"DEBUG_LOCKS_WARN_ON", "Trying to vfree", "stack segment",
	"new suspected memory leaks", "deprecated workqueue",
};

/* What was written before `dmesg -C`, somebody has read. */
static int open_log(void)
{
	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return kmsg < 0 || lseek(kmsg, 0, SEEK_DATA) < 0 ? -1 : 0;
}

/* A record holds its line breaks as "\\x0a". */
static void unescape(char *text)
{
	char *p;

	while ((p = strstr(text, "\\x0a"))) {
		*p = '\n';
		memmove(p + 1, p + 4, strlen(p + 4) + 1);
		text = p;
	}
}

/*
 * The kernel's log since the last call, into klog. Records are
 * "priority,sequence,time,flags;text" and continuation lines that begin with a space.
 * Returns the first bad line, or NULL.
 */
static const char *read_log(void)
{
	static char record[16384];
	const char *text, *found = NULL;
	size_t len, i;
	ssize_t n;

	klog_len = 0;
	for (;;) {
		n = read(kmsg, record, sizeof(record) - 1);
		if (n < 0 && errno == EPIPE)
			n = snprintf(record, sizeof(record),
				     ";WARNING: lines of the kernel log were lost\n");
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		record[n] = '\0';
		text = strchr(record, ';');
		text = text ? text + 1 : record;
		len = strcspn(text, "\n") + 1;
		if (klog_len + len + 1 > sizeof(klog))
			klog_len = 0;
		memcpy(klog + klog_len, text, len - 1);
		klog[klog_len + len - 1] = '\n';
		klog[klog_len + len] = '\0';
		unescape(klog + klog_len);
		for (i = 0; !found && i < sizeof(bad) / sizeof(bad[0]); i++)
			if (strstr(klog + klog_len, bad[i]))
				found = klog + klog_len;
		klog_len += strlen(klog + klog_len);
	}
	return found;
}

#endif
