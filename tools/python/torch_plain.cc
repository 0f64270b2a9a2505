// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What PyTorch loads in plain mode (hetmem.torch). It has no header of PyTorch and no Python
 * ABI: one binary is for all versions.
 *
 * CUDAPluggableAllocator does not look at what its allocation function returns, but passes
 * exceptions on: so the one here throws. A captured graph would need private pools that
 * torch refuses to allocators of this kind later: the hook of their beginning refuses at
 * once, before the capture begins.
 *
 * torch copies between two devices by a kernel of one, and asks no allocator of this kind
 * before: such a kernel ends the process where it cannot use the memory. So the second device
 * of a process is refused before its first block, unless the spec maps the memory for both.
 *
 * torch.cuda.MemPool takes functions without an argument of its own. A slot is a pair of
 * functions with resources that a program chooses; torch's allocator looks at what these
 * return.
 */
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include <hetmem.h>
#include <hetmem/framework.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/* As many as there are SLOT()s: two digits of 16. */
constexpr int slots = 256;
constexpr int devices = 64;

class failure : public std::exception {
public:
	explicit failure(int err) :
		text(std::string(err == -ENOMEM ? "CUDA out of memory. " : "") +
		     "hetmem: " + hetmem_last_error())
	{
	}

	explicit failure(std::string what) : text(std::move(what)) {}

	const char *what() const noexcept override
	{
		return text.c_str();
	}

private:
	std::string text;
};

struct hetmem_resource *slot[slots][devices];

struct hetmem_resource *resource_of(int number, int device)
{
	if (device < 0 || device >= devices)
		return nullptr;
	return __atomic_load_n(&slot[number][device], __ATOMIC_ACQUIRE);
}

/* torch raises its own error for NULL. */
void *slot_alloc(int number, std::size_t size, int device, hetmem_stream stream)
{
	struct hetmem_resource *res = resource_of(number, device);
	void *ptr;

	return res && !hetmem_alloc(res, size, 0, stream, &ptr) ? ptr : nullptr;
}

void slot_free(int number, void *ptr, int device, hetmem_stream stream)
{
	struct hetmem_resource *res = resource_of(number, device);

	if (res && ptr)
		hetmem_free(res, ptr, 0, stream);
}

/* Devices that have blocks here: each can use the memory of the others. */
std::atomic<std::uint64_t> used;
std::mutex adding;

/* Whether torch copies from @other by a kernel of @device. */
bool copies_by_kernel(int device, int other)
{
	/* torch has loaded the driver, in which devices have torch's numbers. */
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	auto ask = driver ? reinterpret_cast<int (*)(int *, int, int)>(
		dlsym(driver, "cuDeviceCanAccessPeer")) : nullptr;
	int can = 0;

	return ask && !ask(&can, device, other) && can;
}

bool reaches(int device, int other)
{
	struct hetmem_resource *res = hetmem_torch_resource(other);
	struct hetmem_access access = {};

	access.size = sizeof(access);
	return res && !hetmem_resource_access(res, &access) && access.devices >> device & 1;
}

void add_device(int device)
{
	std::lock_guard<std::mutex> lock(adding);
	std::uint64_t before = used.load(std::memory_order_relaxed);

	for (int other = 0; other < devices; other++) {
		if (other == device || !(before >> other & 1))
			continue;
		for (auto [one, two] : { std::pair(device, other), std::pair(other, device) })
			if (!reaches(one, two) && copies_by_kernel(one, two))
				throw failure("hetmem: plain mode: device " + std::to_string(one) +
					      " cannot use the memory of device " +
					      std::to_string(two) + ", and a copy would end the "
					      "process: use full mode, or a process for each device, "
					      "or name the devices in the spec, as in "
					      "hetmem.torch.enable(\"pool(vmm(peers=" +
					      std::to_string(std::min(one, two)) + "/" +
					      std::to_string(std::max(one, two)) + "))\")");
	}
	used.store(before | std::uint64_t(1) << device, std::memory_order_release);
}

} /* namespace */

/* For torch.cuda.memory.CUDAPluggableAllocator. */
EXPORT void *hetmem_plain_alloc(std::size_t size, int device, hetmem_stream stream)
{
	void *ptr;
	int err;

	/* No kernel reads a tensor without elements. try_alloc() refuses a device that there is not. */
	if (size && device >= 0 && device < devices &&
	    !(used.load(std::memory_order_acquire) >> device & 1) && hetmem_torch_resource(device))
		add_device(device);
	err = hetmem_torch_try_alloc(size, device, stream, &ptr);
	if (err)
		throw failure(err);
	return ptr;
}

/* Its hook for captured graphs and torch.cuda.use_mem_pool(). */
EXPORT void hetmem_plain_begin_pool(int, std::pair<unsigned long long, unsigned long long>,
				    std::function<bool(hetmem_stream)>)
{
	throw failure("hetmem: plain mode has no CUDA graphs and no memory pools, and so no "
		      "torch.compile(mode=\"reduce-overhead\"): call "
		      "hetmem.torch.enable(mode=\"full\"), or compile with "
		      "mode=\"max-autotune-no-cudagraphs\"");
}

/* The number of slots. */
EXPORT int hetmem_plain_slots()
{
	return slots;
}

/* Puts @res into a slot, for a device. It must live as long as the process. */
EXPORT int hetmem_plain_set_slot(int number, int device, struct hetmem_resource *res)
{
	if (number < 0 || number >= slots || device < 0 || device >= devices)
		return -EINVAL;
	__atomic_store_n(&slot[number][device], res, __ATOMIC_RELEASE);
	return 0;
}

#define SLOT(number)								\
	EXPORT void *hetmem_plain_alloc_##number(std::size_t size, int device,	\
						 hetmem_stream stream)		\
	{									\
		return slot_alloc(0x##number, size, device, stream);		\
	}									\
	EXPORT void hetmem_plain_free_##number(void *ptr, std::size_t,		\
					       int device, hetmem_stream stream) \
	{									\
		slot_free(0x##number, ptr, device, stream);				\
	}

#define SLOTS(high)								\
	SLOT(high##0) SLOT(high##1) SLOT(high##2) SLOT(high##3)			\
	SLOT(high##4) SLOT(high##5) SLOT(high##6) SLOT(high##7)			\
	SLOT(high##8) SLOT(high##9) SLOT(high##a) SLOT(high##b)			\
	SLOT(high##c) SLOT(high##d) SLOT(high##e) SLOT(high##f)

SLOTS(0) SLOTS(1) SLOTS(2) SLOTS(3) SLOTS(4) SLOTS(5) SLOTS(6) SLOTS(7)
SLOTS(8) SLOTS(9) SLOTS(a) SLOTS(b) SLOTS(c) SLOTS(d) SLOTS(e) SLOTS(f)
