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
 * torch.cuda.MemPool takes functions without an argument of its own. A slot is a pair of
 * functions with resources that a program chooses; torch's allocator looks at what these
 * return.
 */
#include <cerrno>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include <hetmem.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/* As many as there are SLOT()s. */
constexpr int slots = 16;
constexpr int devices = 64;

class failure : public std::exception {
public:
	explicit failure(int err) :
		text(std::string(err == -ENOMEM ? "CUDA out of memory. " : "") +
		     "hetmem: " + hetmem_last_error())
	{
	}

	explicit failure(const char *what) : text(what) {}

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

} /* namespace */

/* For torch.cuda.memory.CUDAPluggableAllocator. */
EXPORT void *hetmem_plain_alloc(std::size_t size, int device, hetmem_stream stream)
{
	void *ptr;
	int err = hetmem_torch_try_alloc(size, device, stream, &ptr);

	if (err)
		throw failure(err);
	return ptr;
}

/* Its hook for captured graphs and torch.cuda.use_mem_pool(). */
EXPORT void hetmem_plain_begin_pool(int, std::pair<unsigned long long, unsigned long long>,
				    std::function<bool(hetmem_stream)>)
{
	throw failure("hetmem: plain mode has no CUDA graphs and no memory pools: run this part "
		      "with PyTorch's own allocator");
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
		return slot_alloc(number, size, device, stream);		\
	}									\
	EXPORT void hetmem_plain_free_##number(void *ptr, std::size_t,		\
					       int device, hetmem_stream stream) \
	{									\
		slot_free(number, ptr, device, stream);				\
	}

SLOT(0) SLOT(1) SLOT(2) SLOT(3) SLOT(4) SLOT(5) SLOT(6) SLOT(7)
SLOT(8) SLOT(9) SLOT(10) SLOT(11) SLOT(12) SLOT(13) SLOT(14) SLOT(15)
