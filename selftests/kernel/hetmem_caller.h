/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The kinds of caller that permissions tell apart, and how a process becomes
 * one of them.
 */
#ifndef HETMEM_CALLER_H
#define HETMEM_CALLER_H

#include "hetmem_test.h"

#include <linux/capability.h>

#define OWNER_UID	1000
#define OTHER_UID	1001

/* The owner first; the others are in another address space. */
enum caller {
	OWNER, ROOT, ONLY_PTRACE, ONLY_NICE, SAME_USER, OTHER_USER,
	USERNS_ROOT, NR_CALLERS
};

static const char *const callers[] __attribute__((unused)) = {
	"owner", "root", "CAP_SYS_PTRACE", "CAP_SYS_NICE", "same user",
	"other user", "root of a user namespace",
};

/* In a child that is root so far, for good. */
HELPER int become(enum caller who)
{
	uint64_t caps = who == ONLY_PTRACE ? 1ULL << CAP_SYS_PTRACE :
			who == ONLY_NICE ? 1ULL << CAP_SYS_NICE : 0;
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3,
	};
	struct __user_cap_data_struct data[2] = {
		{ .effective = caps, .permitted = caps },
	};
	uid_t uid = who == OWNER || who == SAME_USER ? OWNER_UID : OTHER_UID;

	if (who == ROOT)
		return 0;
	if (prctl(PR_SET_KEEPCAPS, 1) || setresgid(uid, uid, uid) ||
	    setresuid(uid, uid, uid) || syscall(SYS_capset, &head, data))
		return -errno;
	if (who == USERNS_ROOT && unshare(CLONE_NEWUSER))
		return -errno;
	return 0;
}

/* Where users may have no namespaces there is nothing to try. */
HELPER void become_or_exit(enum caller who)
{
	int ret = become(who);

	if (who == USERNS_ROOT && ret)
		_exit(0);
	CHILD_CHECK(!ret);
}

#endif /* HETMEM_CALLER_H */
