/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The time that this virtual machine really had: the host counts it (clock.sh) and
 * writes it, in milliseconds and in digits, to the memory of the PCI device that qemu
 * calls ivshmem. Elsewhere it is the time of day.
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PCI_DEVICES	"/sys/bus/pci/devices"
#define CLOCK_DIGITS	16

static const volatile char *host_clock;

/* One file of a PCI device; 0 if it cannot be read. */
static unsigned int pci_value(const char *device, const char *file)
{
	unsigned int value = 0;
	char path[320];
	FILE *f;

	snprintf(path, sizeof(path), PCI_DEVICES "/%s/%s", device, file);
	f = fopen(path, "r");
	if (f) {
		if (fscanf(f, "%x", &value) != 1)
			value = 0;
		fclose(f);
	}
	return value;
}

/* Needs root; what is forked later can read it without. */
static void open_clock(void)
{
	struct dirent *e;
	char path[320];
	void *memory;
	DIR *devices;
	int fd;

	devices = opendir(PCI_DEVICES);
	while (devices && (e = readdir(devices))) {
		if (pci_value(e->d_name, "vendor") != 0x1af4 ||
		    pci_value(e->d_name, "device") != 0x1110)
			continue;
		snprintf(path, sizeof(path), PCI_DEVICES "/%s/resource2", e->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		if (memory != MAP_FAILED)
			host_clock = memory;
		close(fd);
	}
	if (devices)
		closedir(devices);
}

/* Reads until two times are the same: the host may be writing. */
static long read_clock(void)
{
	long last, ms = -1;
	int i;

	do {
		last = ms;
		ms = 0;
		for (i = 0; i < CLOCK_DIGITS && host_clock[i]; i++)
			ms = ms * 10 + host_clock[i] - '0';
	} while (ms != last);
	return ms;
}

/* Milliseconds, from no particular moment on. */
static long clock_ms(void)
{
	struct timespec ts;

	if (host_clock)
		return read_clock();
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000L + ts.tv_nsec / 1000000;
}

#endif
