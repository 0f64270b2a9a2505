/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * <hetmem/resource.hpp> as the upstream of RMM's own resources. No CUDA runtime is called:
 * the soft driver's streams pass through as handles. Prints TAP.
 */
#include <hetmem/resource.hpp>

#include <cuda/stream_ref>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

#include "tap.hpp"

int main()
{
	cuda::stream_ref stream{static_cast<cudaStream_t>(nullptr)};
	hm::device_resource pool{"pool(vmm)"};
	{
		rmm::device_async_resource_ref ref{pool};
		void *p = ref.allocate(stream, 1 << 20, 256);

		ok(p && live(pool.get()) == 1, "a reference of RMM allocates");
		ref.deallocate(stream, p, 1 << 20, 256);
		ok(live(pool.get()) == 0, "and frees");
	}
	{
		rmm::mr::statistics_resource_adaptor counts{pool};
		void *p = counts.allocate(stream, 3000, 256);

		ok(counts.get_bytes_counter().value == 3000, "its statistics count ours");
		counts.deallocate(stream, p, 3000, 256);
	}
	{
		rmm::mr::limiting_resource_adaptor limit{pool, 1 << 20};
		bool refused = false;

		try {
			(void)limit.allocate(stream, 2 << 20, 256);
		} catch (const std::bad_alloc &) {
			refused = true;
		}
		ok(refused && live(pool.get()) == 0, "its limit is a limit");
	}
	{
		hm::device_resource small{"limit(pool(vmm),max=1M)"};
		rmm::device_async_resource_ref ref{small};
		bool refused = false;

		try {
			(void)ref.allocate(stream, 2 << 20, 256);
		} catch (const std::bad_alloc &) {
			refused = true;
		}
		ok(refused, "our out of memory is std::bad_alloc there");
	}
	cuda::mr::any_resource<cuda::mr::device_accessible> any{pool};
	void *p = any.allocate(stream, 100, 256);
	any.deallocate(stream, p, 100, 256);
	ok(live(pool.get()) == 0, "and in any_resource");
	return tap_end();
}
