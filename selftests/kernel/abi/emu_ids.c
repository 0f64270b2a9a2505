// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The number of a device is not given to the next one: whoever remembers it does not
 * mean another device after the driver was loaded anew.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/modules.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#define ROUNDS	3

FIXTURE(ids)
{
	struct module emu;
	char *p;
	size_t size;
};

FIXTURE_SETUP(ids)
{
	self->emu.name = "hetmem_emu";
	module_params(&self->emu);
	self->size = 16 * page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(ids)
{
	if (!module_loaded("hetmem_emu"))
		EXPECT_EQ(0, module_load(&self->emu));
	munmap(self->p, self->size);
}

static bool in_sysfs(uint32_t loc)
{
	char name[64];

	snprintf(name, sizeof(name), "devices/%u/used", HETMEM_LOC_INDEX(loc));
	return sysfs_read(name) >= 0;
}

/* Whether INFO lists it. */
static bool listed(int fd, uint32_t loc)
{
	struct hetmem_device_info devices[32];
	struct hetmem_cmd_info info = {
		.size = sizeof(info), .devices = (uintptr_t)devices,
		.device_size = sizeof(devices[0]), .nr_devices = 32,
	};
	unsigned int i;

	if (hm_ioctl(fd, HETMEM_IOC_INFO, &info))
		return false;
	for (i = 0; i < info.nr_devices; i++) {
		if (devices[i].id == HETMEM_LOC_INDEX(loc))
			return true;
	}
	return false;
}

TEST_F(ids, not_given_again)
{
	uint32_t loc[2 * (ROUNDS + 1)];
	struct hetmem_cmd_migrate cmd;
	int round, i, j, nr = 2;
	struct ring r;

	/* One who has bound a device that goes. */
	ASSERT_EQ(0, emu_locations(loc));
	ASSERT_LE(0, executor_open(&r, loc[0], 16));
	for (round = 0; round < ROUNDS; round++, nr += 2) {
		ASSERT_EQ(0, module_unload("hetmem_emu"));
		for (i = 0; i < nr; i++)
			EXPECT_FALSE(in_sysfs(loc[i]));
		ASSERT_EQ(0, module_load(&self->emu));
		ASSERT_EQ(0, emu_locations(loc + nr));
		for (i = nr; i < nr + 2; i++) {
			for (j = 0; j < i; j++)
				EXPECT_NE(loc[j], loc[i]);
			EXPECT_TRUE(in_sysfs(loc[i]));
			EXPECT_TRUE(listed(r.fd, loc[i]));
			/* What was bound to the old one is not the new one's. */
			EXPECT_EQ(-ENXIO, hm_hint(r.fd, self->p, self->size,
						  loc[i], 1000, NULL));
			EXPECT_EQ(NR(self->size), to_device(r.fd,
				  &(struct emu){ .loc = loc[i] }, self->p,
				  self->size));
			EXPECT_EQ(NR(self->size), to_host(r.fd, self->p,
							  self->size));
		}
		for (i = 0; i < nr; i++) {
			EXPECT_FALSE(in_sysfs(loc[i]));
			EXPECT_FALSE(listed(r.fd, loc[i]));
			EXPECT_EQ(-ENODEV, hm_migrate(r.fd, self->p, self->size,
						      loc[i], &cmd));
		}
	}
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	ring_close(&r);
	close(r.fd);
}

TEST_HARNESS_MAIN
