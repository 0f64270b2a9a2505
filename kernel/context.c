// SPDX-License-Identifier: GPL-2.0
/*
 * A context: one open file of /dev/hetmem, and what users may have.
 *
 * Lifetime. A context belongs to the opener's address space (notifier.c),
 * which keeps the mm_struct, not the memory: a process can exit while another
 * one holds its file. Looking at the memory takes mmget_not_zero() for as long.
 * Closing takes the context out of its address space first; afterwards no
 * notification, device report or hint finds it.
 *
 * Quota. All kernel memory whose size a user chooses is charged to a user and to
 * a sum over all users, besides the memory cgroup. Charged is the size that the
 * allocator takes. A user in a namespace counts as the owner of the namespace, so
 * subuids give nobody more. No user can use up the sum for others:
 *  - a user grows only while it holds at most what is still free;
 *  - an eighth of the sum is for callers with CAP_SYS_RESOURCE;
 *  - the first HETMEM_USER_FLOOR bytes of each user ignore the sum.
 *
 * Locking. hetmem_users_lock, a spinlock, protects the table of users; opening
 * and closing take it. Charging takes no lock.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/pid_namespace.h>
#include <linux/user_namespace.h>
#include <linux/vmalloc.h>

#include "device.h"
#include "range.h"
#include "trace.h"

/* A user's first context, a small ring, and some ranges. */
#define HETMEM_USER_FLOOR	(128 << 10)

static DEFINE_SPINLOCK(hetmem_users_lock);
static DEFINE_HASHTABLE(hetmem_users, 6);
atomic64_t hetmem_total_bytes;

/*
 * The user that current counts as: its effective uid, or, in a user namespace, the
 * owner of the ancestor that is directly below the initial one.
 */
kuid_t hetmem_current_user(void)
{
	const struct user_namespace *ns = current_user_ns();

	if (ns == &init_user_ns)
		return current_euid();
	while (ns->parent != &init_user_ns)
		ns = ns->parent;
	return ns->owner;
}

/* Current's entry, which has one context more; or NULL: no memory. */
static struct hetmem_user *user_get(void)
{
	const kuid_t uid = hetmem_current_user();
	struct hetmem_user *user, *new;

	new = kzalloc(sizeof(*new), HETMEM_GFP);
	if (!new)
		return NULL;
	new->uid = uid;
	new->nr_contexts = 1;
	guard(spinlock)(&hetmem_users_lock);
	hash_for_each_possible(hetmem_users, user, node, __kuid_val(uid)) {
		if (uid_eq(user->uid, uid)) {
			user->nr_contexts++;
			kfree(new);
			return user;
		}
	}
	hash_add(hetmem_users, &new->node, __kuid_val(uid));
	return new;
}

static void user_put(struct hetmem_user *user)
{
	guard(spinlock)(&hetmem_users_lock);
	if (--user->nr_contexts)
		return;
	hash_del(&user->node);
	kfree(user);
}

/* Adds @nr to @sum, unless it would exceed @max, even for a moment. */
static bool add_bounded(atomic64_t *sum, s64 nr, s64 max)
{
	s64 old = atomic64_read(sum);

	do {
		if (old + nr > max)
			return false;
	} while (!atomic64_try_cmpxchg(sum, &old, old + nr));
	return true;
}

/* Likewise, but a caller with @cap may exceed @max. */
bool hetmem_add_capped(atomic64_t *sum, s64 nr, s64 max, int cap)
{
	if (add_bounded(sum, nr, max))
		return true;
	if (!ns_capable_noaudit(&init_user_ns, cap))
		return false;
	atomic64_add(nr, sum);
	return true;
}

/* What hetmem_alloc() takes for @bytes: two pages or more come from vmalloc. */
static size_t alloc_size(size_t bytes)
{
	return bytes < 2 * PAGE_SIZE ? kmalloc_size_roundup(bytes) : PAGE_ALIGN(bytes);
}

/**
 * hetmem_charge - charge an allocation to a user
 * @user: the user
 * @bytes: as for hetmem_alloc(); hetmem_account() gives them back
 *
 * For a caller with CAP_SYS_RESOURCE only the sum over all users counts.
 *
 * Return: 0, or -EDQUOT.
 */
int hetmem_charge(struct hetmem_user *user, size_t bytes)
{
	const s64 user_max = (s64)READ_ONCE(hetmem_user_kb) << 10;
	const s64 max = (s64)READ_ONCE(hetmem_total_kb) << 10;
	s64 used;

	bytes = alloc_size(bytes);
	/* The user first: a user over its own cap must not take from the common one. */
	if (!hetmem_add_capped(&user->bytes, bytes, user_max, CAP_SYS_RESOURCE)) {
		trace_hetmem_limit_hit("user_kb", user_max >> 10);
		return -EDQUOT;
	}
	used = atomic64_read(&user->bytes);
	if (add_bounded(&hetmem_total_bytes, bytes,
			used <= HETMEM_USER_FLOOR ? S64_MAX : max - max / 8 - used) ||
	    (ns_capable_noaudit(&init_user_ns, CAP_SYS_RESOURCE) &&
	     add_bounded(&hetmem_total_bytes, bytes, max)))
		return 0;
	atomic64_sub(bytes, &user->bytes);
	trace_hetmem_limit_hit("total_kb", max >> 10);
	return -EDQUOT;
}

/* Charges an allocation whatever the caps are, or, with @sign -1, gives it back. */
void hetmem_account(struct hetmem_user *user, size_t bytes, int sign)
{
	const s64 size = sign * (s64)alloc_size(bytes);

	atomic64_add(size, &user->bytes);
	atomic64_add(size, &hetmem_total_bytes);
}

/* Zeroed memory of the user's, to be freed by hetmem_free(); or ERR_PTR. */
void *hetmem_alloc(struct hetmem_user *user, size_t bytes)
{
	void *memory;
	int ret;

	ret = hetmem_charge(user, bytes);
	if (ret)
		return ERR_PTR(ret);
	if (bytes < 2 * PAGE_SIZE)
		memory = kzalloc(bytes, HETMEM_GFP);
	else
		memory = __vmalloc(bytes, HETMEM_GFP | __GFP_ZERO);
	if (!memory) {
		hetmem_account(user, bytes, -1);
		return ERR_PTR(-ENOMEM);
	}
	return memory;
}

void hetmem_free(struct hetmem_user *user, void *memory, size_t bytes)
{
	kvfree(memory);
	hetmem_account(user, bytes, -1);
}

struct hetmem_context *hetmem_context_open(void)
{
	struct hetmem_context *ctx;
	struct hetmem_user *user;
	int ret;

	if (!current->mm)
		return ERR_PTR(-EINVAL);
	user = user_get();
	if (!user)
		return ERR_PTR(-ENOMEM);
	ctx = hetmem_alloc(user, sizeof(*ctx));
	ret = PTR_ERR_OR_ZERO(ctx);
	if (ret)
		goto put_user;
	ctx->user = user;
	ctx->uid = current_euid();
	mutex_init(&ctx->refresh);
	init_waitqueue_head(&ctx->wait);
	INIT_LIST_HEAD(&ctx->hints);
	INIT_LIST_HEAD(&ctx->parked);
	hetmem_pin_open(ctx);
	hetmem_job_open(ctx);
	ctx->opener = get_pid(task_tgid(current));
	ctx->thrash = hetmem_alloc(user, hetmem_thrash_bytes);
	ret = PTR_ERR_OR_ZERO(ctx->thrash);
	if (ret)
		goto free;
	ret = hetmem_mm_attach(ctx);
	if (ret)
		goto free_thrash;
	hetmem_total_add(contexts, 1);
	return ctx;

free_thrash:
	hetmem_free(user, ctx->thrash, hetmem_thrash_bytes);
free:
	put_pid(ctx->opener);
	hetmem_free(user, ctx, sizeof(*ctx));
put_user:
	user_put(user);
	return ERR_PTR(ret);
}

int hetmem_context_close(struct inode *inode, struct file *file)
{
	struct hetmem_context *ctx = file->private_data;
	struct hetmem_user *user = ctx->user;

	hetmem_job_close(ctx);
	hetmem_mm_detach(ctx);
	hetmem_pin_close(ctx);
	hetmem_range_del_all(ctx);
	hetmem_ring_free(ctx);
	hetmem_free(user, ctx->thrash, hetmem_thrash_bytes);
	hetmem_mm_put(ctx->hm);
	put_pid(ctx->opener);
	hetmem_free(user, ctx, sizeof(*ctx));
	user_put(user);
	hetmem_total_add(contexts, -1);
	return 0;
}

/* The opener, as @ns numbers it; 0 if it is not visible there or is gone. */
pid_t hetmem_context_pid(const struct hetmem_context *ctx, struct pid_namespace *ns)
{
	guard(rcu)();
	/* A struct pid that is held keeps a number that others may get. */
	return pid_task(ctx->opener, PIDTYPE_TGID) ? pid_nr_ns(ctx->opener, ns) : 0;
}

/* HETMEM_IOC_INFO */
int hetmem_info(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_info *cmd = arg;
	struct {
		struct hetmem_device_info devices[HETMEM_MAX_DEVICES];
		struct hetmem_pool_info pools[HETMEM_MAX_POOLS];
	} *info;
	unsigned int nr_devices, nr_pools;
	int ret;

	ret = hetmem_check_array(cmd->nr_devices, cmd->device_size, sizeof(info->devices[0]));
	if (!ret)
		ret = hetmem_check_array(cmd->nr_pools, cmd->pool_size, sizeof(info->pools[0]));
	if (ret)
		return ret;
	info = kzalloc(sizeof(*info), HETMEM_GFP);
	if (!info)
		return -ENOMEM;

	cmd->version = HETMEM_VERSION;
	cmd->block_shift = HETMEM_BLOCK_SHIFT;
	cmd->features = IS_ENABLED(CONFIG_DEVICE_PRIVATE) ? HETMEM_FEATURE_DEVICE_PRIVATE : 0;
	cmd->max_bytes = (u64)READ_ONCE(hetmem_user_kb) << 10;
	cmd->used_bytes = atomic64_read(&ctx->user->bytes);
	cmd->nr_ranges = READ_ONCE(ctx->nr_ranges);
	nr_devices = hetmem_device_list(info->devices);
	nr_pools = hetmem_foreign_list(ctx, info->pools);
	/* With nothing locked: writing can take as long as the caller likes. */
	ret = hetmem_copy_array(cmd->devices, cmd->device_size, 0, info->devices,
				sizeof(info->devices[0]), min(nr_devices, cmd->nr_devices));
	if (!ret)
		ret = hetmem_copy_array(cmd->pools, cmd->pool_size, 0, info->pools,
					sizeof(info->pools[0]), min(nr_pools, cmd->nr_pools));
	cmd->nr_devices = nr_devices;
	cmd->nr_pools = nr_pools;
	kfree(info);
	return ret;
}

/* HETMEM_IOC_ALLOW */
int hetmem_allow(struct hetmem_context *ctx, void *arg)
{
	const u32 allowed = ((struct hetmem_cmd_allow *)arg)->allowed;

	if (allowed & ~(HETMEM_SHAREABLE | HETMEM_ALLOW_HINTS))
		return -EINVAL;
	WRITE_ONCE(ctx->allowed, allowed);
	return 0;
}
