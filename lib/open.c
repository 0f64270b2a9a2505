// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Opening and closing the library, and fork().
 *
 * A forked child has the parent's memory and nothing else: no thread of the
 * driver, no context of the module. A generation that goes up in the child
 * tells it apart at no cost. The locks of every open library are held across
 * fork(), so that the child finds whole trees and free locks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static unsigned int generation;
static struct hetmem *all_open;

unsigned int hm_generation(void)
{
	return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

void hm_fork_lock(void)
{
	pthread_mutex_lock(&fork_lock);
}

void hm_fork_unlock(void)
{
	pthread_mutex_unlock(&fork_lock);
}

static void before_fork(void)
{
	struct hetmem *hm;

	hm_fork_lock();
	for (hm = all_open; hm; hm = hm->next)
		pthread_mutex_lock(&hm->lock);
}

static void after_fork(void)
{
	struct hetmem *hm;

	for (hm = all_open; hm; hm = hm->next)
		pthread_mutex_unlock(&hm->lock);
	hm_fork_unlock();
}

/* Of a resource that was being made by another thread nothing comes here. */
static void in_child(void)
{
	struct hetmem *hm;

	__atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
	for (hm = all_open; hm; hm = hm->next)
		pthread_mutex_init(&hm->making, NULL);
	after_fork();
}

static void watch_fork(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

int hm_check_owner(struct hetmem *hm)
{
	if (hm_unlikely(hm->generation != hm_generation()))
		return hm_error(-EOWNERDEAD, "this is a forked child: open the library again");
	return 0;
}

enum choice { CHOICE_CUDA, CHOICE_SOFT, CHOICE_ANY };

static int choose(const struct hetmem_params *params, enum choice *choice)
{
	const char *name = params ? params->driver : NULL;

	if (!name)
		name = getenv("HETMEM_DRIVER");
	if (!name || !*name)
		*choice = CHOICE_ANY;
	else if (!strcmp(name, "cuda"))
		*choice = CHOICE_CUDA;
	else if (!strcmp(name, "soft"))
		*choice = CHOICE_SOFT;
	else
		return hm_error(-EINVAL, "no driver \"%s\": there are \"cuda\" and \"soft\"",
				name);
	return 0;
}

/* @cuda: why there is no CUDA, or what it is. */
static int open_driver(struct hetmem *hm, enum choice choice,
		       const char *module_path, char *cuda, bool *has_cuda)
{
	char reason[HM_REASON_LEN];
	int err;

	*has_cuda = false;
	if (choice == CHOICE_SOFT) {
		snprintf(cuda, HM_REASON_LEN,
			 "not looked for: the soft driver was asked for");
	} else {
		err = hm_cuda_open(&hm->driver, cuda, HM_REASON_LEN);
		*has_cuda = !err;
		if (!err)
			return 0;
		if (choice == CHOICE_CUDA)
			return hm_error(-ENODEV, "driver \"cuda\": %s", cuda);
	}
	err = hm_soft_open(&hm->driver, module_path, reason, sizeof(reason));
	if (err)
		return hm_error(err, "driver \"soft\": %s", reason);
	hm->soft = true;
	return 0;
}

static void free_hetmem(struct hetmem *hm)
{
	hm_kmod_close(&hm->kmod);
	pthread_mutex_destroy(&hm->making);
	pthread_mutex_destroy(&hm->lock);
	free(hm);
}

int hetmem_open(struct hetmem **out, const struct hetmem_params *params)
{
	char cuda[HM_REASON_LEN], module[HM_REASON_LEN];
	const char *module_path = NULL;
	enum choice choice = CHOICE_ANY;
	struct hetmem *hm;
	bool has_cuda;
	int err;

	if (!out)
		return hm_error(-EINVAL, "open: hm is NULL");
	if (params && params->size < sizeof(*params))
		return hm_error(-EINVAL, "open: params->size is %zu, set it to sizeof(struct hetmem_params)",
				params->size);
	err = choose(params, &choice);
	if (err)
		return err;
	pthread_once(&fork_once, watch_fork);
	hm = calloc(1, sizeof(*hm));
	if (!hm)
		return hm_error(-ENOMEM, "open: no memory");
	pthread_mutex_init(&hm->lock, NULL);
	pthread_mutex_init(&hm->making, NULL);
	hm->generation = hm_generation();
	hm->page_size = sysconf(_SC_PAGESIZE);
	if (params)
		module_path = params->module_path;

	hm_kmod_open(&hm->kmod, module_path, module, sizeof(module));
	err = open_driver(hm, choice, module_path, cuda, &has_cuda);
	if (err)
		goto fail;
	err = hm_probe_devices(hm);
	if (err)
		goto fail_driver;
	hm_probe_features(hm, cuda, has_cuda, module);

	hm_fork_lock();
	hm->next = all_open;
	all_open = hm;
	hm_fork_unlock();
	*out = hm;
	return 0;

fail_driver:
	if (hm->soft)
		hm_soft_close();
fail:
	free_hetmem(hm);
	return err;
}

static void close_driver(struct hetmem *hm)
{
	int i;

	for (i = 0; i < hm->nr_devices; i++)
		if (hm->devices[i].ctx)
			hm->driver.cuDevicePrimaryCtxRelease(
				hm->devices[i].handle);
	if (hm->soft)
		hm_soft_close();
}

void hetmem_close(struct hetmem *hm)
{
	struct hetmem **p;

	if (!hm)
		return;
	hm_current_close(hm);
	hm_fork_lock();
	for (p = &all_open; *p; p = &(*p)->next) {
		if (*p == hm) {
			*p = hm->next;
			break;
		}
	}
	hm_fork_unlock();
	if (hm->generation == hm_generation())
		close_driver(hm);
	hm_system_forget(hm);
	free_hetmem(hm);
}

const struct hm_driver *hetmem_driver_table(struct hetmem *hm)
{
	return &hm->driver;
}

const struct hm_kmod *hetmem_kmod(struct hetmem *hm)
{
	return &hm->kmod;
}
