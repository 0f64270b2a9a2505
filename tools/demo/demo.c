/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem demo: a file's contents go to a device and back, are read and
 * changed there, and are verified at every turn.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "demo.h"
#include "options.h"

static int help(void)
{
	puts("Usage: hetmem demo [--file F] [--device N] [--no-color]\n"
	     "Sends the contents of a file to a device and back, lets the device read all and\n"
	     "change part of it, fills the device twice over, verifies every byte, and says\n"
	     "what moved, how fast, and what the kernel counted.\n\n"
	     "  --file F     input of at least 64 MiB (made from the files of /usr)\n"
	     "  --device N   the driver's device (0)\n"
	     "  --no-color   maps without colour\n\n"
	     "Needs a device that ordinary memory can move to: 'hetmem doctor' says whether\n"
	     "there is one. 'make demo' runs this in a virtual machine that has.");
	return EXIT_OK;
}

/* 0, an exit status, or -1 for help. */
static int parse(struct demo *demo, int argc, char **argv)
{
	char *rest;
	long device;
	int c;

	while ((c = next_option("demo", argc, argv)) != -1) {
		switch (c) {
		case 'f':
			demo->file = optarg;
			break;
		case 'd':
			errno = 0;
			device = strtol(optarg, &rest, 10);
			if (*optarg < '0' || *optarg > '9' || *rest || errno ||
			    device >= HM_MAX_DEVICES)
				return usage_error("demo", "'%s' is not the number of a device",
						   optarg);
			demo->device = device;
			break;
		case 'n':
			demo->colour = COLOUR_NEVER;
			break;
		case 'h':
			return -1;
		default:
			return option_error("demo", c, argv);
		}
	}
	if (optind < argc)
		return usage_error("demo", "'%s' is not an option",
				   argv[optind]);
	return 0;
}

/* With a GPU, or with the soft driver: that has the module's emulated device. */
static int open_library(struct demo *demo)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft",
	};
	int err = hetmem_open(&demo->hm, NULL);

	if (err || hetmem_device_count(demo->hm) || getenv("HETMEM_DRIVER"))
		return err;
	hetmem_close(demo->hm);
	demo->hm = NULL;
	return hetmem_open(&demo->hm, &params);
}

/* Opens the library and the device, or says why this machine cannot. */
static int prepare(struct demo *demo)
{
	const struct hm_kmod *kmod;
	struct hetmem_feature feature;
	unsigned int i;
	CUresult result;
	int ret;

	ret = open_library(demo);
	if (ret)
		return complain(EXIT_USAGE, "demo", "%s; type 'hetmem doctor'",
				hetmem_last_error());
	ret = hetmem_feature(demo->hm, HETMEM_FEATURE_MIGRATION, &feature);
	if (ret || !feature.available)
		return complain(EXIT_USAGE, "demo",
				"memory cannot move on this machine (%s); type 'make demo' for a virtual machine where it can",
				ret ? hetmem_last_error() : feature.reason);
	if (demo->device >= hetmem_device_count(demo->hm))
		return usage_error("demo", "there is no device %d, only %d of them",
				   demo->device,
				   hetmem_device_count(demo->hm));
	demo->props.size = sizeof(demo->props);
	if (hetmem_device_props(demo->hm, demo->device, &demo->props))
		return complain(EXIT_FAILED, "demo", "%s",
				hetmem_last_error());
	demo->capacity = demo->props.total;
	kmod = hetmem_kmod(demo->hm);
	for (i = 0; kmod && i < kmod->nr_devices; i++)
		if ((int)kmod->devices[i].id == demo->props.module_id)
			demo->capacity = kmod->devices[i].capacity;

	demo->driver = hetmem_driver_table(demo->hm);
	result = demo->driver->cuDeviceGet(&demo->handle, demo->device);
	if (result == CUDA_SUCCESS)
		result = demo->driver->cuDevicePrimaryCtxRetain(&demo->ctx,
								demo->handle);
	if (result == CUDA_SUCCESS)
		result = demo->driver->cuCtxSetCurrent(demo->ctx);
	if (result == CUDA_SUCCESS)
		result = demo->driver->cuStreamCreate(&demo->stream,
						      CU_STREAM_NON_BLOCKING);
	if (result != CUDA_SUCCESS)
		return complain(EXIT_FAILED, "demo", "device %d: %s",
				demo->device,
				hm_cuda_name(demo->driver, result));
	return 0;
}

static int run(struct demo *demo)
{
	uint32_t host = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	uint32_t device = HETMEM_LOC(HETMEM_DEVICE, demo->device);
	size_t half = demo->mapped / 2;
	int ret;

	/* Also of the last huge page what is behind the input. */
	half -= half % DEMO_HUGE;
	ret = demo_input_read(demo);
	if (ret)
		return ret;
	memset(demo->data + demo->size, 0, demo->mapped - demo->size);
	if ((ret = demo_sum(demo, "the file", demo->sum)) ||
	    (ret = demo_map(demo, "before", demo->data, demo->mapped)) ||
	    (ret = demo_prefetch(demo, "prefetch to the device", demo->data,
				 demo->mapped, device, true)) ||
	    (ret = demo_map(demo, "on the device", demo->data,
			    demo->mapped)) ||
	    (ret = demo_device_reads(demo)))
		return ret;

	demo_step("device: overwrites %s", size_text(demo->change_size));
	ret = demo_device_fills(demo, demo->data + demo->change,
				demo->change_size);
	if (ret || (ret = demo_device_waits(demo, "", CUDA_SUCCESS)))
		return ret;
	demo_done("done");

	if ((ret = demo_fault_back(demo, half)) ||
	    (ret = demo_map(demo, "half of it back", demo->data,
			    demo->mapped)) ||
	    (ret = demo_prefetch(demo, "prefetch the rest to the host",
				 demo->data + half, demo->mapped - half, host,
				 true)) ||
	    (ret = demo_map(demo, "after", demo->data, demo->mapped)) ||
	    (ret = demo_sum(demo, "expected with the change",
			    demo->changed_sum)) ||
	    (ret = demo_residency_speed(demo)) ||
	    (ret = demo_oversubscribe(demo)))
		return ret;
	demo_counts(demo, "the file's memory", demo->data);
	demo_summary(demo);
	puts("\nAll contents verified.");
	return 0;
}

int cmd_demo(int argc, char **argv)
{
	struct demo demo = { .fd = -1 };
	char name[256];
	void *data = NULL;
	int ret;

	ret = parse(&demo, argc, argv);
	if (ret)
		return ret < 0 ? help() : ret;
	if (!digest_there())
		return complain(EXIT_USAGE, "demo",
				"built without libmd; type 'apt-get install libmd-dev' and build again");
	demo.page = sysconf(_SC_PAGESIZE);
	ret = prepare(&demo);
	if (!ret)
		ret = demo_input_open(&demo);
	if (ret)
		goto out;
	ret = hetmem_system_alloc(demo.hm, demo.mapped, &data);
	if (ret) {
		ret = complain(EXIT_FAILED, "demo", "%s: %s",
			       size_text(demo.mapped), hetmem_last_error());
		goto out;
	}
	demo.data = data;
	printf("%s of %s to device %d, %s, which has room for %s\n\n",
	       size_text(demo.size),
	       escape(name, sizeof(name), demo.file ? demo.file :
		      "what /usr holds"),
	       demo.device, demo.props.name, size_text(demo.capacity));
	ret = run(&demo);
	hetmem_system_free(demo.hm, data);
out:
	if (demo.stream)
		demo.driver->cuStreamDestroy(demo.stream);
	if (demo.ctx)
		demo.driver->cuDevicePrimaryCtxRelease(demo.handle);
	if (demo.fd >= 0)
		close(demo.fd);
	hetmem_close(demo.hm);
	return ret;
}
