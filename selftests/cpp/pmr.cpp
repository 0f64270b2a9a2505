/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * <hetmem/resource.hpp> without CCCL: resources, errors, and standard containers.
 * Prints TAP; the soft driver plays the device.
 */
#define HETMEM_NO_CUDA_MR
#include <hetmem/resource.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tap.hpp"

static void containers()
{
	hm::host_resource host{"stats(pool(host))"};
	{
		hm::pmr_resource memory{host}, same{host};
		std::pmr::vector<int> numbers{&memory};
		std::pmr::map<int, std::pmr::string> names{&memory};

		for (int i = 0; i < 10000; i++)
			numbers.push_back(i);
		for (int i = 0; i < 100; i++)
			names[i] = std::string(100, 'a' + i % 26);
		ok(live(host.get()) > 100, "containers take memory from it");
		ok(numbers[9999] == 9999 && names[27][0] == 'b', "and keep what they have");
		ok(memory == same, "two of one resource are equal");
		auto *page = memory.allocate(100, 4096);
		ok(reinterpret_cast<std::uintptr_t>(page) % 4096 == 0, "aligned");
		memory.deallocate(page, 100, 4096);
		hm::host_resource other{"host"};
		ok(!(memory == hm::pmr_resource{other}), "of two they are not");
	}
	ok(live(host.get()) == 0, "all is given back");
}

/* A pmr resource, and a copy, keep the resource that they are of. */
static void lifetime()
{
	auto *memory = new hm::pmr_resource{hm::host_resource{"pool(host)"}};
	void *p = memory->allocate(1 << 20);

	static_cast<char *>(p)[0] = 1;
	memory->deallocate(p, 1 << 20);
	delete memory;
	hm::device_resource first{"pool(vmm)"}, second{first};
	ok(first == second && !(first != second), "copies are equal");
	ok(first != hm::device_resource{"pool(vmm)"}, "others are not");
	hm::device_resource borrowed{first.get()};
	void *q = borrowed.allocate(hetmem_stream{}, 1000);
	first.deallocate(hetmem_stream{}, q, 1000);
	ok(live(first.get()) == 0, "borrowed, it is the same");
}

template <class Function>
static int error_of(Function &&function)
{
	try {
		function();
	} catch (const hm::error &e) {
		return e.code().value();
	} catch (const std::bad_alloc &e) {
		return std::string(e.what()).empty() ? -1 : ENOMEM;
	}
	return 0;
}

static void errors()
{
	hm::device_resource small{"limit(pool(vmm),max=1M)"};

	ok(error_of([] { hm::device_resource{"nonsense"}; }) == EINVAL, "no such spec");
	ok(error_of([] { hm::device_resource{"host"}; }) == EINVAL, "not the device's");
	ok(error_of([] { hm::host_resource{"device"}; }) == EINVAL, "not the CPU's");
	ok(error_of([] { hm::host_device_resource{"managed"}; }) == 0, "both's");
	ok(error_of([&] { (void)small.allocate(hetmem_stream{}, 2 << 20); }) == ENOMEM,
	   "out of memory is std::bad_alloc, with a text");
	ok(error_of([&] { (void)small.allocate(hetmem_stream{}, 1, 3); }) == EINVAL,
	   "a bad alignment is an error");
	void *p = small.allocate_sync(1000);
	small.deallocate_sync(p, 1000);
	ok(live(small.get()) == 0, "and it goes on");
}

static struct hetmem_resource_stats stats(const hm::device_resource &res)
{
	struct hetmem_resource_stats made{};

	made.size = sizeof(made);
	hetmem_resource_stats(res.get(), &made);
	return made;
}

static void tags()
{
	constexpr std::size_t mib = 1 << 20;
	hm::device_resource pool{"pool(vmm)"};
	auto weights = pool.tagged("weights"), cache = pool.tagged("kv", true), copy = weights;
	void *plain = pool.allocate(hetmem_stream{}, 4 * mib);
	void *kept = copy.allocate(hetmem_stream{}, 6 * mib);
	auto *synced = static_cast<unsigned char *>(weights.allocate_sync(2 * mib, 4096));
	void *lost = cache.allocate(hetmem_stream{}, 8 * mib);

	ok(pool == weights && weights == cache, "tags make no other resource");
	synced[mib] = 7;
	ok(!hetmem_sleep(pool.get(), "kv", HETMEM_SLEEP_KEEP) && !stats(pool).parked,
	   "scratch is not kept");
	ok(error_of([&] { (void)cache.allocate(hetmem_stream{}, 1); }) == EBUSY, "a tag sleeps");
	ok(!hetmem_sleep(pool.get(), "weights", HETMEM_SLEEP_KEEP), "another, too");
	ok(stats(pool).parked >= 8 * mib && stats(pool).parked < 12 * mib, "its contents are kept");
	pool.deallocate(hetmem_stream{}, pool.allocate(hetmem_stream{}, mib), mib);
	ok(!hetmem_wake(pool.get(), "weights") && !hetmem_wake(pool.get(), "kv"), "they wake");
	ok(synced[mib] == 7, "with contents");
	/* Each copy frees what any has allocated. */
	weights.deallocate(hetmem_stream{}, plain, 4 * mib);
	pool.deallocate(hetmem_stream{}, kept, 6 * mib);
	cache.deallocate_sync(synced, 2 * mib);
	copy.deallocate(hetmem_stream{}, lost, 8 * mib);
	ok(live(pool.get()) == 0, "all is given back");
	for (const char *bad : {"", "a tag of thirty-two characters.."})
		ok(error_of([&] { (void)pool.tagged(bad).allocate_sync(1); }) == EINVAL, "a bad tag");
	ok(error_of([&] { (void)pool.tagged(std::string("a\0b", 3)); }) == EINVAL, "a NUL in it");
	hm::host_resource pages{"pool(host)"};
	hm::pmr_resource memory{pages.tagged("weights")};
	ok(error_of([&] { (void)memory.allocate(1); }) == EOPNOTSUPP, "host memory has no tags");
}

int main()
{
	hm::library library;

	containers();
	lifetime();
	errors();
	tags();
	return tap_end();
}
