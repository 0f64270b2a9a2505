// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/caller.h"
#include "libktest/base.h"

#include <linux/capability.h>

const char *const callers[NR_CALLERS] = {
	"owner", "root", "CAP_SYS_PTRACE", "CAP_SYS_NICE", "same user",
	"other user", "root of a user namespace",
};

int become(enum caller who)
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

void become_or_exit(enum caller who)
{
	int ret = become(who);

	if (who == USERNS_ROOT && ret)
		_exit(0);
	CHILD_CHECK(!ret);
}
