/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The files of /sys/class/misc/hetmem/, and whether they are as documented. */
#ifndef LIBKTEST_SYSFS_H
#define LIBKTEST_SYSFS_H

#include "libktest/base.h"

#define SYSFS	"/sys/class/misc/hetmem/"
#define STATS	SYSFS "stats/"

/* Files below SYSFS; reading and writing as read_long() and write(2) say. */
long sysfs_read(const char *name);
int sysfs_write(const char *name, const char *text);
int sysfs_set(const char *name, long value);

/* Contexts that there are, whoever's. */
long nr_contexts(void);

/*
 * What is there beside Documentation/ABI/testing, which the virtual machine
 * has in /vm/abi, or whoever runs a test by hand names in $HETMEM_ABI: every
 * file there is is documented and every documented one is there, readable and
 * writable as it says, with one value in it unless it is said to be empty at first.
 *
 * Return: how many things are wrong, or a negative errno. Unless @all is set,
 * of what there is once for each device there may be none.
 */
int abi_compare(bool all);

#endif
