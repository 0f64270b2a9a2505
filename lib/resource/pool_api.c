// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What programs ask of pools alone: room to grow, memory that stays, sleep,
 * captures, export. Every stack forwards it to the pool below.
 */
#include <errno.h>

#include "resource/resource.h"

static int ctl(struct hetmem_resource *res, const char *what, enum hm_ctl op,
	       void *arg)
{
	int err;

	if (!res)
		return hm_error(-EINVAL, "%s: res is NULL", what);
	err = res->ops->ctl(res, op, arg);
	if (err == -EOPNOTSUPP)
		hm_error(err, "%s: %s cannot", what, res->ops->name);
	return err;
}

int hetmem_alloc_reserve(struct hetmem_resource *res, size_t size,
			 size_t reserve, hetmem_stream stream, void **ptr)
{
	struct hm_ctl_reserve arg = {
		.size = size, .reserve = reserve, .stream = stream,
	};
	int err;

	if (!ptr || !size || reserve < size || stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "alloc_reserve: %s", !ptr ?
				"ptr is NULL" : !size ? "size is 0" :
				reserve < size ? "reserve is less than size" :
				"memory is for a stream that is known");
	err = ctl(res, "alloc_reserve", HM_CTL_RESERVE, &arg);
	if (!err)
		*ptr = arg.ptr;
	return err;
}

int hetmem_pin_comm(struct hetmem_resource *res, void *ptr)
{
	struct hm_ctl_stream arg = { .ptr = ptr };

	if (!ptr)
		return hm_error(-EINVAL, "pin_comm: ptr is NULL");
	return ctl(res, "pin_comm", HM_CTL_PIN_COMM, &arg);
}

int hetmem_sleep(struct hetmem_resource *res, const char *tag)
{
	return ctl(res, "sleep", HM_CTL_SLEEP, (void *)tag);
}

int hetmem_wake(struct hetmem_resource *res, const char *tag)
{
	return ctl(res, "wake", HM_CTL_WAKE, (void *)tag);
}

int hetmem_capture_begin(struct hetmem_resource *res, hetmem_stream stream,
			 uint64_t id)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	return ctl(res, "capture_begin", HM_CTL_CAPTURE_BEGIN, &arg);
}

int hetmem_capture_end(struct hetmem_resource *res, hetmem_stream stream,
		       uint64_t id)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	return ctl(res, "capture_end", HM_CTL_CAPTURE_END, &arg);
}

int hetmem_capture_release(struct hetmem_resource *res, hetmem_stream stream,
			   uint64_t id)
{
	struct hm_ctl_capture arg = { .stream = stream, .id = id };

	return ctl(res, "capture_release", HM_CTL_CAPTURE_RELEASE, &arg);
}

ssize_t hetmem_export(struct hetmem_resource *res, void *ptr, int *fds,
		      struct hetmem_segment *segments, size_t nr)
{
	struct hm_ctl_export arg = {
		.ptr = ptr, .fds = fds, .segments = segments, .nr = nr,
	};
	int err;

	if (!ptr || (nr && (!fds || !segments)))
		return hm_error(-EINVAL, "export: %s is NULL", !ptr ? "ptr" :
				!fds ? "fds" : "segments");
	err = ctl(res, "export", HM_CTL_EXPORT, &arg);
	return err ? err : (ssize_t)arg.nr;
}
