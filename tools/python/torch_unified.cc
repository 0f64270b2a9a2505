// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Unified memory for tensors (hetmem._torch_unified): part of libhetmem-torch.so.
 *
 * PyTorch takes memory by DLPack, as a managed tensor with a deleter. The deleter is here,
 * and not in Python: PyTorch calls it on any thread, without the interpreter's lock, and
 * after the end of the interpreter.
 *
 * A block is memory of a resource, or memory that PyTorch's allocator got from hetmem. Each
 * storage of PyTorch on a block is a view, and the last view frees the block. A view keeps the
 * block itself, not the storage that it was made from: Tensor.share_memory_() replaces the
 * memory of a storage.
 *
 * A table has the blocks by their address. A block leaves the table before it is freed, so
 * two entries never have one address. Exception: a forked child can get memory at the address
 * of a parent's block that it does not have. The later block replaces the entry, and the
 * end of the earlier one leaves it alone. One lock protects the table and the counts. It is
 * never held during a call of the library or of PyTorch. The table is never destroyed: tensors
 * are freed after main() has returned.
 */
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <pthread.h>

#include <hetmem.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/* DLPack's DLManagedTensor. */
struct dl_tensor {
	void *data;
	std::int32_t device_type;
	std::int32_t device;
	std::int32_t ndim;
	std::uint8_t dtype;
	std::uint8_t bits;
	std::uint16_t lanes;
	std::int64_t *shape;
	std::int64_t *strides;
	std::uint64_t byte_offset;
};

struct dl_managed {
	dl_tensor tensor;
	void *context;
	void (*deleter)(dl_managed *);
};

constexpr std::uint8_t dl_uint = 1;

/*
 * @views: how many there are
 * @res, @stream: whose it is, and the stream to free on; or
 * @owner: PyTorch's, which has the memory
 */
struct block {
	char *ptr;
	std::size_t bytes;
	std::size_t views;
	struct hetmem_resource *res;
	hetmem_stream stream;
	dl_managed *owner;
};

struct view {
	dl_managed managed;
	std::int64_t bytes;
	block *of;
};

struct table {
	std::mutex lock;
	std::map<std::uintptr_t, block *> blocks;

	static void before_fork()
	{
		get().lock.lock();
	}

	static void after_fork()
	{
		get().lock.unlock();
	}

	static table &get()
	{
		static table *made = [] {
			table *t = new table;

			pthread_atfork(before_fork, after_fork, after_fork);
			return t;
		}();

		return *made;
	}
};

std::uintptr_t number(const void *ptr)
{
	return reinterpret_cast<std::uintptr_t>(ptr);
}

/* With the lock. The block around @ptr, or NULL. */
block *find(table &t, const void *ptr)
{
	auto found = t.blocks.upper_bound(number(ptr));

	if (found == t.blocks.begin())
		return nullptr;
	block *b = (--found)->second;

	return number(ptr) - found->first < b->bytes ? b : nullptr;
}

void free_block(block *b)
{
	int err = 0;

	if (b->owner && b->owner->deleter)
		b->owner->deleter(b->owner);
	else if (b->res)
		err = hetmem_free(b->res, b->ptr, 0, b->stream);
	/* A forked child has none of a device's memory. At the end the driver can be gone. */
	if (err && err != -EOWNERDEAD && err != -EIO)
		std::fprintf(stderr, "hetmem: free: %s\n", hetmem_last_error());
	delete b;
}

void free_view(dl_managed *managed)
{
	std::unique_ptr<view> v(static_cast<view *>(managed->context));
	block *b = v->of;

	{
		table &t = table::get();
		std::lock_guard<std::mutex> guard(t.lock);

		if (--b->views)
			return;
		auto found = t.blocks.find(number(b->ptr));

		if (found != t.blocks.end() && found->second == b)
			t.blocks.erase(found);
	}
	free_block(b);
}

/* A view without a block. */
std::unique_ptr<view> make_view(void *ptr, std::size_t bytes, int device_type, int device)
{
	auto v = std::make_unique<view>();

	v->bytes = static_cast<std::int64_t>(bytes);
	v->managed = { { ptr, device_type, device, 1, dl_uint, 8, 1, &v->bytes, nullptr, 0 },
		       v.get(), free_view };
	return v;
}

/* With the lock. */
void *attach(std::unique_ptr<view> v, block *b)
{
	v->of = b;
	b->views++;
	return &v.release()->managed;
}

} /* namespace */

/*
 * Makes *@made, a DLManagedTensor of the @bytes at @ptr, which @res allocated: a view on a
 * device of DLPack. The last view frees the block on @free_stream. @res must live as long as the
 * process. After an error the caller has the block. Errors: -ENOMEM.
 */
EXPORT int hetmem_unified_own(struct hetmem_resource *res, void *ptr, std::size_t bytes,
			      hetmem_stream free_stream, int device_type, int device,
			      void **made)
{
	try {
		auto b = std::make_unique<block>();
		auto v = make_view(ptr, bytes, device_type, device);
		table &t = table::get();

		*b = { static_cast<char *>(ptr), bytes, 0, res, free_stream, nullptr };
		std::lock_guard<std::mutex> guard(t.lock);

		t.blocks.insert_or_assign(number(ptr), b.get());
		*made = attach(std::move(v), b.release());
	} catch (const std::exception &) {
		return -ENOMEM;
	}
	return 0;
}

/*
 * Allocates @bytes of @res on @stream for hetmem_unified_own(). The free takes effect when the
 * uses on @stream and on recorded streams are complete. Errors: those of hetmem_alloc().
 */
EXPORT int hetmem_unified_make(struct hetmem_resource *res, std::size_t bytes,
			       hetmem_stream stream, hetmem_stream free_stream,
			       int device_type, int device, void **made)
{
	void *ptr;
	int err = hetmem_alloc(res, bytes, 0, stream, &ptr);

	if (err)
		return err;
	err = hetmem_unified_own(res, ptr, bytes, free_stream, device_type, device, made);
	if (err)
		hetmem_free(res, ptr, bytes, free_stream);
	return err;
}

/*
 * Another view of @bytes at @ptr, which a tensor of the caller keeps. Errors:
 * -ENOENT: no block is there;
 * -ENOMEM.
 */
EXPORT int hetmem_unified_view(void *ptr, std::size_t bytes, int device_type, int device,
			       void **made)
{
	try {
		auto v = make_view(ptr, bytes, device_type, device);
		table &t = table::get();
		std::lock_guard<std::mutex> guard(t.lock);
		block *b = find(t, ptr);

		if (!b)
			return -ENOENT;
		*made = attach(std::move(v), b);
	} catch (const std::exception &) {
		return -ENOMEM;
	}
	return 0;
}

/*
 * A view of memory that has no block: @owner is PyTorch's DLManagedTensor of its bytes. Returns
 * 1 if @owner is the block's from now on; 0: another thread was first, and the caller keeps
 * @owner. Errors: -ENOMEM.
 */
EXPORT int hetmem_unified_adopt(void *owner, int device_type, int device, void **made)
{
	dl_managed *managed = static_cast<dl_managed *>(owner);
	void *ptr = managed->tensor.data;
	const std::size_t bytes = static_cast<std::size_t>(managed->tensor.shape[0]);

	try {
		auto b = std::make_unique<block>();
		auto v = make_view(ptr, bytes, device_type, device);
		table &t = table::get();

		*b = { static_cast<char *>(ptr), bytes, 0, nullptr, nullptr, managed };
		std::lock_guard<std::mutex> guard(t.lock);
		block *known = find(t, ptr);

		if (!known)
			t.blocks.insert_or_assign(number(ptr), b.get());
		*made = attach(std::move(v), known ? known : b.release());
		return !known;
	} catch (const std::exception &) {
		return -ENOMEM;
	}
}

/* Frees a view that PyTorch did not take. */
EXPORT void hetmem_unified_drop(void *made)
{
	free_view(static_cast<dl_managed *>(made));
}

/*
 * Returns 1 if @ptr is in a block, else 0. Then *@first is where the block begins, and *@res its
 * resource, or NULL if PyTorch's allocator has the memory.
 */
EXPORT int hetmem_unified_find(void *ptr, void **first, struct hetmem_resource **res)
{
	table &t = table::get();
	std::lock_guard<std::mutex> guard(t.lock);
	const block *b = find(t, ptr);

	if (!b)
		return 0;
	*first = b->ptr;
	*res = b->res;
	return 1;
}

/*
 * Tensor.record_stream() in both modes. The caller has a tensor of @ptr. Returns 0: the memory
 * is no unified tensor's.
 */
EXPORT int hetmem_unified_record(void *ptr, hetmem_stream stream)
{
	struct hetmem_resource *res = nullptr;
	void *first;

	if (!ptr || !hetmem_unified_find(ptr, &first, &res))
		return 0;
	if (!res) {
		hetmem_torch_record_stream(first, stream);
		return 1;
	}
	int err = hetmem_record_stream(res, first, stream);

	if (err)
		std::fprintf(stderr, "hetmem: record_stream: %s\n", err == -EBUSY ?
			     "the stream is captured: keep the tensor as long as the graph" :
			     hetmem_last_error());
	return 1;
}

/* For CUDAPluggableAllocator, in plain mode. */
EXPORT void hetmem_plain_record_stream(void *ptr, hetmem_stream stream)
{
	if (!hetmem_unified_record(ptr, stream))
		hetmem_torch_record_stream(ptr, stream);
}
