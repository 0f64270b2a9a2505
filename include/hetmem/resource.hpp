/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem for C++17 and later: resources of a spec as objects. Header only; link with
 * -lhetmem. The namespace is hm: `hetmem` is a struct of the C interface.
 *
 *	hm::device_resource pool{"pool(vmm,max=80%)"};
 *	rmm::mr::set_current_device_resource(pool);	// RMM 26.06 and later
 *
 *	hm::host_resource pages{"pool(pinned)"};
 *	hm::pmr_resource memory{pages};
 *	std::pmr::vector<float> values{&memory};
 *
 * Where <cuda/memory_resource> (CCCL) is found, the resources satisfy cuda::mr::resource,
 * with cuda::mr::device_accessible and cuda::mr::host_accessible as their class says. Define
 * HETMEM_NO_CUDA_MR to leave that out.
 */
#ifndef HETMEM_RESOURCE_HPP
#define HETMEM_RESOURCE_HPP

#include <hetmem.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <system_error>

#if !defined(HETMEM_NO_CUDA_MR) && __has_include(<cuda/memory_resource>)
#include <cuda/memory_resource>
#define HETMEM_HAS_CUDA_MR 1
#endif

namespace hm {

/* An error of the library: code() has the errno, what() the library's text. */
class error : public std::system_error {
public:
	error(int err, const std::string &what)
		: std::system_error{-err, std::generic_category(), what} {}
};

/* There is no memory. Caught as std::bad_alloc; what() has the library's text. */
class out_of_memory : public std::bad_alloc {
public:
	explicit out_of_memory(const std::string &what)
		: what_{std::make_shared<const std::string>(what)} {}
	const char *what() const noexcept override { return what_->c_str(); }

private:
	/* A copy of an exception must not throw. */
	std::shared_ptr<const std::string> what_;
};

class pmr_resource;

namespace detail {

inline void check(int err)
{
	if (err == -ENOMEM)
		throw out_of_memory{hetmem_last_error()};
	if (err)
		throw error{err, hetmem_last_error()};
}

/* A stream of CCCL (get()), of RMM (value()), or the driver's own handle. */
template <class Stream>
auto handle_of(const Stream &stream, int) -> decltype(stream.get(), hetmem_stream{})
{
	return reinterpret_cast<hetmem_stream>(stream.get());
}

template <class Stream>
auto handle_of(const Stream &stream, long) -> decltype(stream.value(), hetmem_stream{})
{
	return reinterpret_cast<hetmem_stream>(stream.value());
}

inline hetmem_stream handle_of(hetmem_stream stream, int) { return stream; }

/* The tag and the flags of allocations. A copy of a resource must not throw. */
struct tagging {
	std::shared_ptr<const std::string> tag;
	unsigned int flags = 0;
};

inline void *allocate(hetmem_resource *res, const tagging &tags, std::size_t bytes,
		      std::size_t alignment, hetmem_stream stream)
{
	void *ptr = nullptr;

	if (!tags.tag) {
		check(hetmem_alloc(res, bytes, alignment, stream, &ptr));
		return ptr;
	}
	struct hetmem_alloc_params params{};

	params.size = sizeof(params);
	params.bytes = bytes;
	params.align = alignment;
	params.stream = stream;
	params.flags = tags.flags;
	params.tag = tags.tag->c_str();
	check(hetmem_alloc_with(res, &params, &ptr));
	return ptr;
}

} // namespace detail

/*
 * The library, opened. Copies share it; the last one closes it. A program needs no object of
 * this class unless it gives parameters: resources open the library by themselves.
 */
class library {
public:
	explicit library(const struct hetmem_params *params = nullptr)
	{
		struct hetmem *hm = nullptr;

		detail::check(hetmem_open(&hm, params));
		hm_ = std::shared_ptr<struct hetmem>{hm, hetmem_close};
	}
	struct hetmem *get() const noexcept { return hm_.get(); }

private:
	std::shared_ptr<struct hetmem> hm_;
};

/*
 * The resource of a spec. Copies share it, and compare equal; the last one destroys it. Its
 * memory must have been freed by then. All members may be called from any thread.
 *
 * @Host, @Device: who can use its memory: the constructor throws -EINVAL if the spec's
 * memory is not for them. Which device, says the spec.
 */
template <bool Host, bool Device>
class basic_resource {
public:
	explicit basic_resource(const std::string &spec, library hm = library{})
	{
		hetmem_resource *res = nullptr;

		detail::check(hetmem_resource_create(hm.get(), spec.c_str(), &res));
		/* The library is open as long as the resource is there. */
		res_ = std::shared_ptr<hetmem_resource>{
			res, [hm](hetmem_resource *r) { hetmem_resource_destroy(r); }};
		check_access(spec);
	}

	/* Borrows @res, which its owner destroys later. */
	explicit basic_resource(hetmem_resource *res)
		: res_{res, [](hetmem_resource *) {}}
	{
		check_access("the resource");
	}

	/*
	 * The same resource, equal to this one. Its allocations get @tag, with which
	 * hetmem_sleep() and hetmem_wake() find them; see struct hetmem_alloc_params.
	 * @scratch: nobody needs the contents across a sleep.
	 */
	[[nodiscard]] basic_resource tagged(const std::string &tag, bool scratch = false) const
	{
		basic_resource made{*this};

		if (tag.find('\0') != std::string::npos)
			throw error{-EINVAL, "the tag has a NUL character"};
		made.tags_ = {std::make_shared<const std::string>(tag),
			      scratch ? HETMEM_ALLOC_SCRATCH : 0};
		return made;
	}

	/*
	 * At least @bytes for use on @stream and what is ordered behind it. Throws
	 * out_of_memory, error.
	 */
	template <class Stream>
	[[nodiscard]] void *allocate(const Stream &stream, std::size_t bytes,
				     std::size_t alignment = HETMEM_ALIGNMENT)
	{
		return make(bytes, alignment, detail::handle_of(stream, 0));
	}

	/* @stream is ordered behind all uses of @ptr. Does not wait. */
	template <class Stream>
	void deallocate(const Stream &stream, void *ptr, std::size_t bytes,
			std::size_t = HETMEM_ALIGNMENT) noexcept
	{
		hetmem_free(get(), ptr, bytes, detail::handle_of(stream, 0));
	}

	/* Memory that all streams may use at once. */
	[[nodiscard]] void *allocate_sync(std::size_t bytes,
					  std::size_t alignment = HETMEM_ALIGNMENT)
	{
		return make(bytes, alignment, HETMEM_STREAM_HOST);
	}

	/* All uses of @ptr are complete. */
	void deallocate_sync(void *ptr, std::size_t bytes,
			     std::size_t = HETMEM_ALIGNMENT) noexcept
	{
		hetmem_free(get(), ptr, bytes, HETMEM_STREAM_HOST);
	}

	/* For the functions of <hetmem.h>. */
	hetmem_resource *get() const noexcept { return res_.get(); }

	bool operator==(const basic_resource &other) const noexcept
	{
		return get() == other.get();
	}
	bool operator!=(const basic_resource &other) const noexcept { return !(*this == other); }

#ifdef HETMEM_HAS_CUDA_MR
	template <bool D = Device, std::enable_if_t<D, int> = 0>
	friend void get_property(const basic_resource &, cuda::mr::device_accessible) noexcept {}
	template <bool H = Host, std::enable_if_t<H, int> = 0>
	friend void get_property(const basic_resource &, cuda::mr::host_accessible) noexcept {}
#endif

private:
	void check_access(const std::string &what) const
	{
		struct hetmem_access access{};

		access.size = sizeof(access);
		detail::check(hetmem_resource_access(get(), &access));
		if ((Host && !access.host) || (Device && !access.devices))
			throw error{-EINVAL, what + ": its memory is not for " +
				    (Host && !access.host ? "the CPU" : "a device")};
	}

	void *make(std::size_t bytes, std::size_t alignment, hetmem_stream stream)
	{
		return detail::allocate(get(), tags_, bytes, alignment, stream);
	}

	friend class pmr_resource;

	std::shared_ptr<hetmem_resource> res_;
	detail::tagging tags_;
};

using device_resource = basic_resource<false, true>;
using host_resource = basic_resource<true, false>;
using host_device_resource = basic_resource<true, true>;

/*
 * A std::pmr resource over memory that the CPU can use. What it frees is used by the CPU at
 * once: the program orders the device's uses before.
 */
class pmr_resource final : public std::pmr::memory_resource {
public:
	template <bool Device>
	explicit pmr_resource(const basic_resource<true, Device> &upstream)
		: res_{upstream.get()}, tags_{upstream.tags_},
		  keep_{std::make_shared<basic_resource<true, Device>>(upstream)} {}

private:
	void *do_allocate(std::size_t bytes, std::size_t alignment) override
	{
		return detail::allocate(res_, tags_, bytes, alignment, HETMEM_STREAM_HOST);
	}

	void do_deallocate(void *ptr, std::size_t bytes, std::size_t) override
	{
		hetmem_free(res_, ptr, bytes, HETMEM_STREAM_HOST);
	}

	bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
	{
		const auto *one = dynamic_cast<const pmr_resource *>(&other);

		return one && one->res_ == res_;
	}

	hetmem_resource *res_;
	detail::tagging tags_;
	std::shared_ptr<void> keep_;
};

#ifdef HETMEM_HAS_CUDA_MR
static_assert(cuda::mr::resource_with<device_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<host_device_resource, cuda::mr::device_accessible,
				      cuda::mr::host_accessible>);
static_assert(!cuda::mr::resource_with<device_resource, cuda::mr::host_accessible>);
static_assert(!cuda::mr::resource_with<host_resource, cuda::mr::device_accessible>);
#endif

} // namespace hm

#endif /* HETMEM_RESOURCE_HPP */
