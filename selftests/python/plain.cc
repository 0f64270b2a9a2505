// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Calls the shim of plain mode as PyTorch does: exceptions pass through functions that are
 * compiled apart and are caught by their standard base.
 *
 * usage: plain SHIM [refused | used LIBCUDA]	what becomes of a second device
 */
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <stdexcept>
#include <utility>

using alloc_fn = void *(std::size_t, int, void *);
using free_fn = void(void *, std::size_t, int, void *);
using begin_fn = void(int, std::pair<unsigned long long, unsigned long long>,
		      std::function<bool(void *)>);

static int count;

static void ok(bool good, const char *what)
{
	std::printf("%sok %d - %s\n", good ? "" : "not ", ++count, what);
}

template <class T> static T *find(void *shim, const char *name)
{
	void *symbol = dlsym(shim, name);

	if (!symbol) {
		std::printf("Bail out! no %s\n", name);
		std::exit(1);
	}
	return reinterpret_cast<T *>(symbol);
}

static std::string caught(const std::function<void()> &call)
{
	try {
		call();
	} catch (const std::exception &e) {
		std::printf("# %s\n", e.what());
		return e.what();
	}
	return "";
}

/* Where blocks of one device come before those of another. */
static void second_device(const std::function<alloc_fn> &alloc,
			  const std::function<free_fn> &free, bool refused)
{
	std::string text;
	void *first = alloc(1 << 20, 1, nullptr), *second = nullptr;

	ok(first, "a block of device 1");
	for (int i = 0; i < 2; i++) {
		text = caught([&] { second = alloc(1 << 20, 0, nullptr); });
		if (refused)
			ok(text.find("plain mode") != std::string::npos && !second &&
			   text.find("peers=0/1") != std::string::npos, "device 0 is refused");
		else
			ok(text.empty() && second, "a block of device 0");
		if (second)
			free(second, 1 << 20, 0, nullptr);
		second = nullptr;
	}
	/* As torch.empty(0) of device 0, which unified tensors begin with. */
	text = caught([&] { second = alloc(0, 0, nullptr); });
	ok(text.empty(), "0 bytes of device 0");
	free(second, 0, 0, nullptr);
	free(first, 1 << 20, 1, nullptr);
	first = alloc(1 << 20, 1, nullptr);
	ok(first, "device 1 goes on");
	free(first, 1 << 20, 1, nullptr);
}

int main(int argc, char **argv)
{
	void *shim = dlopen(argv[1], RTLD_NOW);

	if (!shim) {
		std::printf("Bail out! %s\n", dlerror());
		return 1;
	}
	/* As an object of PyTorch's own: std::function around the address. */
	std::function<alloc_fn> alloc = find<alloc_fn>(shim, "hetmem_plain_alloc");
	std::function<free_fn> free = find<free_fn>(shim, "hetmem_torch_free");
	std::function<begin_fn> begin = find<begin_fn>(shim, "hetmem_plain_begin_pool");
	std::string text;
	void *p;

	if (argc > 3) {
		if (!dlopen(argv[3], RTLD_NOW))
			std::printf("Bail out! %s\n", dlerror());
		second_device(alloc, free, !std::strcmp(argv[2], "refused"));
		std::printf("1..%d\n", count);
		return 0;
	}
	p = alloc(1 << 20, 0, nullptr);
	ok(p, "a block");
	text = caught([&] { alloc(std::size_t(1) << 50, 0, nullptr); });
	ok(text.find("CUDA out of memory. hetmem: ") == 0, "no memory is an exception");
	ok(text.find("1125899906842624 bytes") != std::string::npos, "with the library's text");
	text = caught([&] { alloc(1, 60, nullptr); });
	ok(text.find("hetmem: ") == 0, "no device is one that is not out of memory");
	text = caught([&] { begin(0, { 1, 0 }, [](void *) { return true; }); });
	ok(text.find("plain mode has no CUDA graphs") != std::string::npos,
	   "the begin of a pool is refused");
	free(p, 1 << 20, 0, nullptr);
	p = alloc(1 << 20, 0, nullptr);
	ok(p, "it goes on");
	free(p, 1 << 20, 0, nullptr);

	std::function<alloc_fn> slot = find<alloc_fn>(shim, "hetmem_plain_alloc_03");
	text = caught([&] { p = slot(100, 0, nullptr); });
	ok(text.empty() && !p, "a slot without a resource has no memory");
	std::printf("1..%d\n", count);
	return 0;
}
