// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * PyTorch's allocator in full mode (hetmem.torch): a class that does over libhetmem what
 * PyTorch's own caching allocator does. It is compiled for one minor version of PyTorch, with
 * that version's headers. It has no Python ABI: one binary is for all versions of Python.
 *
 * libhetmem keeps the memory. This file has a table of live blocks, because the library does
 * not know of PyTorch's statistics, tracebacks and devices. One lock protects the table,
 * the statistics and the trace. The lock is never held during a call of the library, of
 * CUDA, or of a function that PyTorch passed: a traceback takes the GIL, and a thread with
 * the GIL can be waiting for the lock.
 *
 * A block leaves the table before it is freed and enters it after it was allocated, so two
 * entries never have one address. The allocator is never destroyed: PyTorch frees what its
 * statics hold after main() has returned.
 */
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/version.h>

#include <hetmem.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace base = c10::cuda::CUDACachingAllocator;

using c10::DeviceIndex;
using c10::MempoolId_t;
using base::BlockInfo;
using base::DeviceStats;
using base::RecordContext;
using base::SegmentInfo;
using base::TraceEntry;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using traceback = std::shared_ptr<c10::GatheredContext>;

constexpr int max_devices = 64;
/* Larger blocks are of the large pool, in PyTorch and in libhetmem. */
constexpr std::size_t most_small = 1 << 20;

std::size_t rounded(std::size_t size)
{
	return (size + HETMEM_ALIGNMENT - 1) / HETMEM_ALIGNMENT * HETMEM_ALIGNMENT;
}

std::string in_units(std::size_t bytes)
{
	const char *const units[] = { "bytes", "KiB", "MiB", "GiB" };
	double value = static_cast<double>(bytes);
	char text[40];
	int i = 0;

	for (; value >= 1024 && i < 3; i++)
		value /= 1024;
	std::snprintf(text, sizeof(text), i ? "%.2f %s" : "%.0f %s", value, units[i]);
	return text;
}

/* The streams that PyTorch has no handle for: those of the library become 0. */
cudaStream_t torch_stream(hetmem_stream stream)
{
	if (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN ||
	    stream == HETMEM_STREAM_LEGACY)
		return nullptr;
	return static_cast<cudaStream_t>(stream);
}

/* Memory that other processes can map. Its files are open as long as the block lives. */
struct exported {
	std::vector<int> files;
	std::string handle;

	~exported()
	{
		for (int file : files)
			close(file);
	}
};

/* The memory of a torch.cuda.MemPool(allocator): a pool over that allocator. */
struct own_memory {
	std::shared_ptr<base::CUDAAllocator> from;
	DeviceIndex device;
	struct hetmem *hm = nullptr;
	struct hetmem_resource *res = nullptr;
	std::string name;
	MempoolId_t pool;
	/* What the allocator gave, by address. */
	std::mutex lock;
	std::map<std::uintptr_t, std::size_t> regions;

	~own_memory();
	std::uintptr_t region_of(const void *ptr);
};

struct live_block {
	std::size_t size;
	DeviceIndex device;
	cudaStream_t stream;
	MempoolId_t pool;
	traceback context;
	std::shared_ptr<exported> shared;
	/* What it is of; null: the device's resource. */
	std::shared_ptr<own_memory> own;
};

/* What PyTorch passes to begin a pool, and the pool. */
struct filter {
	std::function<bool(cudaStream_t)> wants;
	MempoolId_t pool;
};

/* The pool of the calling thread's last allocation. */
thread_local MempoolId_t chosen_pool;

/*
 * The first exception of a callback that the library called on this thread. The library is
 * C, and an exception that passes its frames leaves its locks held. So callbacks keep the
 * exception here and return an error; the caller of the library calls rethrow(). A plain
 * pointer costs allocations one load, and outlives the thread's destructors.
 */
thread_local std::exception_ptr *kept;

/* Returns the value of @fn, or -ECANCELED if it throws. */
template <class F> int keep_exception(F fn) noexcept
{
	try {
		return fn();
	} catch (...) {
		/* Without host memory the error has no exception, and fail() makes one. */
		if (!kept)
			kept = new (std::nothrow) std::exception_ptr(std::current_exception());
		return -ECANCELED;
	}
}

void drop_exception()
{
	if (C10_UNLIKELY(kept != nullptr))
		delete std::exchange(kept, nullptr);
}

void rethrow()
{
	std::exception_ptr thrown;

	if (C10_LIKELY(!kept))
		return;
	thrown = *kept;
	drop_exception();
	std::rethrow_exception(thrown);
}

/* The allocator of a pool is at work on this thread. What it allocates here is of no pool. */
thread_local bool in_allocator;

struct allocator_guard {
	allocator_guard() { in_allocator = true; }
	~allocator_guard() { in_allocator = false; }
};

int ask(void *data, hetmem_stream stream)
{
	const filter *f = static_cast<filter *>(data);

	if (in_allocator)
		return 0;
	return keep_exception([&] {
		if (!f->wants(static_cast<cudaStream_t>(stream)))
			return 0;
		chosen_pool = f->pool;
		return 1;
	});
}

struct checkpoint : base::AllocatorState {
	struct hetmem_checkpoint *saved = nullptr;
	MempoolId_t pool;

	~checkpoint() override
	{
		hetmem_checkpoint_free(saved);
	}
};

/* For a walk: the largest free block that is no private pool's, in *@data. */
int find_largest(void *data, const struct hetmem_walk_segment *segment,
		 const struct hetmem_walk_block *block)
{
	std::size_t *largest = static_cast<std::size_t *>(data);

	if (!segment->private_pool && block->state != HETMEM_BLOCK_LIVE &&
	    block->state != HETMEM_BLOCK_PENDING)
		*largest = std::max(*largest, block->bytes);
	return 0;
}

constexpr std::size_t one_exabyte = std::size_t(1) << 60;

struct device_state {
	DeviceStats stats;
	std::deque<TraceEntry> trace;
	double fraction = 1;
	bool used = false;
	/* The library's peak at the last reset, and the largest sample since then. */
	std::uint64_t reset_reserved = 0;
	std::int64_t sampled_reserved = 0, sampled_peak = 0;
	/* What was made and given back: of pools that ended; in all at the last reset. */
	struct hetmem_sums ended = {}, reset = {};
};

/* Memory that is held. @own: a region that a pool's allocator gave, not mapped handles. */
struct held_range {
	std::size_t address, end;
	hetmem_stream stream;
	bool own;
};

class allocator final : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
public:
	allocator();

	c10::DataPtr allocate(std::size_t size) override;
	c10::DeleterFnPtr raw_deleter() const override;
	void *raw_alloc(std::size_t size) override;
	void *raw_alloc_with_stream(std::size_t size, cudaStream_t stream) override;
	void raw_delete(void *ptr) override;
	void init(int device_count) override;
	std::string name() override;
	void enable(bool value) override;
	bool isEnabled() const override;

	void emptyCache(MempoolId_t pool) override;
	void cacheInfo(DeviceIndex device, std::size_t *largest) override;
	void *getBaseAllocation(void *ptr, std::size_t *size) override;
	void recordStream(const c10::DataPtr &ptr, c10::cuda::CUDAStream stream) override;
	double getMemoryFraction(DeviceIndex device) override;
	void setMemoryFraction(double fraction, DeviceIndex device) override;
	std::vector<base::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override;

	DeviceStats getDeviceStats(DeviceIndex device) override;
	void resetAccumulatedStats(DeviceIndex device) override;
	void resetPeakStats(DeviceIndex device) override;
	base::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override;
	bool isHistoryEnabled() override;
	void recordHistory(bool enabled, base::CreateContextFn recorder, std::size_t most,
			   RecordContext when, bool clear,
			   const std::vector<std::string> &skip) override;
	void recordAnnotation(
		const std::vector<std::pair<std::string, std::string>> &metadata) override;
	void pushCompileContext(std::string &context) override;
	void popCompileContext() override;
	void setUserMetadata(const std::string &metadata) override;
	std::string getUserMetadata() override;
	void attachOutOfMemoryObserver(base::OutOfMemoryObserver observer) override;
	void attachAllocatorTraceTracker(base::AllocatorTraceTracker tracker) override;

	void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
				 std::function<bool(cudaStream_t)> wants) override;
	void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
	void releasePool(DeviceIndex device, MempoolId_t pool) override;
	int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
	void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
				std::shared_ptr<base::CUDAAllocator> other) override;
	void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override;
	void setNoSplit(DeviceIndex device, MempoolId_t pool) override;
	bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
				      const std::unordered_set<void *> &expected) override;
	std::shared_ptr<base::AllocatorState> getCheckpointState(DeviceIndex device,
								 MempoolId_t pool) override;
	base::CheckpointDelta setCheckpointPoolState(
		DeviceIndex device, std::shared_ptr<base::AllocatorState> state) override;

	base::ShareableHandle shareIpcHandle(void *ptr) override;
	std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
	void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
	cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
				std::size_t count, cudaStream_t stream, bool p2p) override;

	bool release(void *ptr);
	void hold_for_fork();

	/* Virtual functions of PyTorch 2.15; before, nobody calls them. */
	virtual bool supportsUserMetadata();
	virtual traceback getContextForPointer(const void *ptr);

	void pool_ended(DeviceIndex device, MempoolId_t pool);
	void count_ended(const own_memory &memory);
	void set_allocator(DeviceIndex device, MempoolId_t pool,
			   std::shared_ptr<base::CUDAAllocator> from);

private:
	void *get(std::size_t size, DeviceIndex device, cudaStream_t stream);
	void *get_at_oom(std::size_t size, DeviceIndex device, cudaStream_t stream);
	std::shared_ptr<own_memory> own_of(DeviceIndex device, MempoolId_t pool);
	std::vector<std::shared_ptr<own_memory>> all_own(DeviceIndex device);
	struct hetmem_resource *pool_resource(DeviceIndex device, MempoolId_t pool);
	void *own_base(void *ptr, std::size_t *size);
	bool record_own(void *ptr, cudaStream_t stream);
	void count_held(DeviceIndex device, struct hetmem_resource_stats *held,
			struct hetmem_sums *sums);
	std::vector<DeviceIndex> used_devices();
	template <class F> void giving_back(const std::vector<DeviceIndex> &devices, F fn);
	std::vector<held_range> held(DeviceIndex device);
	void report_segments(DeviceIndex device, const traceback &context);
	bool is_new_memory(DeviceIndex device, std::size_t address, std::size_t size);
	void begin_segments();
	void *get_uncached(std::size_t size, DeviceIndex device, cudaStream_t stream);
	bool release_uncached(void *ptr);
	[[noreturn]] void out_of_memory(std::size_t size, DeviceIndex device,
					cudaStream_t stream, traceback context,
					const std::string &reason);
	device_state &state(DeviceIndex device);
	struct hetmem_resource *resource(DeviceIndex device);
	traceback gather(RecordContext least);
	void insert(void *ptr, const live_block &block);
	bool remove(void *ptr, live_block *block);
	void report_removed(void *ptr, const live_block &block);
	void forget(void *ptr);
	void record(TraceEntry::Action action, DeviceIndex device, std::size_t address,
		    std::size_t size, cudaStream_t stream, MempoolId_t pool,
		    traceback context);
	void report(void *ptr, std::int64_t size, DeviceIndex device);
	void track(const TraceEntry &entry);
	std::uint64_t private_pool(DeviceIndex device, MempoolId_t pool);
	struct hetmem *library();

	std::mutex lock;
	std::unordered_map<void *, live_block> blocks;
	/* From cudaMalloc(), while the allocator was off. */
	std::unordered_set<void *> uncached;
	std::atomic<bool> enabled{ true }, any_uncached{ false };
	std::vector<std::unique_ptr<device_state>> states;
	/* The numbers that the library has for PyTorch's pools. */
	std::map<std::pair<DeviceIndex, std::uint64_t>, MempoolId_t> pools;
	/* Pools with an allocator of their own, and all memory of such pools that is held. */
	std::map<std::pair<DeviceIndex, MempoolId_t>, std::shared_ptr<own_memory>> own;
	std::vector<std::weak_ptr<own_memory>> held_own;
	std::atomic<bool> any_own{ false };
	/* Those that serve others when there is no memory. */
	std::vector<std::pair<DeviceIndex, MempoolId_t>> at_oom;

	std::atomic<bool> recording{ false };
	std::atomic<base::CreateContextFn> recorder{ nullptr };
	std::atomic<RecordContext> record_when{ RecordContext::NEVER };
	std::size_t most_entries = 1;
	std::unordered_set<int> skipped;
	std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations;
	std::string user_metadata;
	c10::ApproximateClockToUnixTimeConverter clock;
	std::vector<base::OutOfMemoryObserver> observers;
	std::vector<base::AllocatorTraceTracker> trackers;
	std::atomic<bool> tracked{ false };
	/* Protects the memory that the trace and the trackers know, by device. Taken before @lock. */
	std::mutex segments_lock;
	std::array<std::vector<held_range>, max_devices> segments;

	std::mutex import_lock;
	struct hetmem *hm = nullptr;
	std::map<std::string, std::weak_ptr<void>> imports;
};

/* Never destroyed. */
allocator *the_allocator;

/* A forked child drops tensors that it inherits: no thread may have left it the lock. */
void allocator::hold_for_fork()
{
	pthread_atfork([] { the_allocator->lock.lock(); }, [] { the_allocator->lock.unlock(); },
		       [] { the_allocator->lock.unlock(); });
}

/* Records a use of a unified tensor. Returns 0: the memory is not one's. */
using record_fn = int(void *ptr, hetmem_stream stream);
std::atomic<record_fn *> record_unified;

thread_local std::vector<std::string> compile_contexts;

/* PyTorch calls it in destructors, where an exception would end the process. */
void delete_block(void *ptr)
{
	try {
		if (ptr && !the_allocator->release(ptr))
			std::fprintf(stderr, "hetmem: free: %p is not allocated\n", ptr);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "hetmem: free: %s\n", e.what());
	} catch (...) {
		std::fprintf(stderr, "hetmem: free: unknown exception\n");
	}
}

/* Throws PyTorch's exception for @err of a call of the library. */
[[noreturn]] void fail(const char *what)
{
	const std::string text = hetmem_last_error();

	TORCH_CHECK(false, "hetmem: ", what, ": ", text);
	std::abort();
}

void check(long err, const char *what)
{
	if (err < 0)
		fail(what);
}

allocator::allocator() :
	CUDAPluggableAllocator(
		[](std::size_t size, int device, cudaStream_t stream) -> void * {
			void *ptr;

			check(hetmem_torch_try_alloc(size, device, stream, &ptr), "alloc");
			return ptr;
		},
		[](void *ptr, std::size_t size, int device, cudaStream_t stream) {
			hetmem_torch_free(ptr, size, device, stream);
		})
{
}

std::string allocator::name()
{
	return "hetmem";
}

void allocator::init(int device_count)
{
	hetmem_torch_init(device_count);
	{
		std::lock_guard<std::mutex> guard(lock);

		while (states.size() < static_cast<std::size_t>(std::max(device_count, 0)))
			states.push_back(std::make_unique<device_state>());
	}
	initialized_ = true;
}

/* With the lock, as remove() and record(). */
device_state &allocator::state(DeviceIndex device)
{
	TORCH_CHECK(device >= 0 && device < max_devices, "Invalid device ", int(device));
	while (states.size() <= static_cast<std::size_t>(device))
		states.push_back(std::make_unique<device_state>());
	return *states[device];
}

std::vector<DeviceIndex> allocator::used_devices()
{
	std::lock_guard<std::mutex> guard(lock);
	std::vector<DeviceIndex> used;

	for (std::size_t i = 0; i < states.size(); i++)
		if (states[i]->used)
			used.push_back(static_cast<DeviceIndex>(i));
	return used;
}

struct hetmem_resource *allocator::resource(DeviceIndex device)
{
	struct hetmem_resource *res = hetmem_torch_resource(device);

	if (!res)
		fail("device");
	return res;
}

std::uint64_t allocator::private_pool(DeviceIndex device, MempoolId_t pool)
{
	return hetmem_torch_private_pool(device, pool.first, pool.second);
}

/*
 * Memory of a torch.cuda.MemPool(allocator): a resource over that allocator, which the pool
 * and all of its blocks keep.
 */

int own_alloc(void *data, std::size_t size, void **ptr)
{
	own_memory *memory = static_cast<own_memory *>(data);

	return keep_exception([&] {
		c10::cuda::CUDAGuard guard(memory->device);
		allocator_guard at_work;

		*ptr = memory->from->raw_alloc(size);
		if (!*ptr)
			return -ENOMEM;
		std::lock_guard<std::mutex> guarded(memory->lock);

		memory->regions[reinterpret_cast<std::uintptr_t>(*ptr)] = size;
		return 0;
	});
}

int own_free(void *data, void *ptr, std::size_t)
{
	own_memory *memory = static_cast<own_memory *>(data);

	{
		std::lock_guard<std::mutex> guard(memory->lock);

		memory->regions.erase(reinterpret_cast<std::uintptr_t>(ptr));
	}
	try {
		c10::cuda::CUDAGuard guard(memory->device);
		allocator_guard at_work;

		memory->from->raw_delete(ptr);
	} catch (...) {
		/* The allocator has forgotten it, or keeps it: another call changes nothing. */
	}
	return 0;
}

own_memory::~own_memory()
{
	if (res) {
		the_allocator->count_ended(*this);
		hetmem_resource_destroy(res);
	}
	if (!name.empty())
		hetmem_provider_unregister(hm, name.c_str());
}

/* The beginning of the region that has @ptr; 0: none. */
std::uintptr_t own_memory::region_of(const void *ptr)
{
	std::lock_guard<std::mutex> guard(lock);
	auto after = regions.upper_bound(reinterpret_cast<std::uintptr_t>(ptr));

	return after == regions.begin() ? 0 : std::prev(after)->first;
}

std::shared_ptr<own_memory> make_own(struct hetmem *hm, DeviceIndex device, MempoolId_t pool,
				     std::shared_ptr<base::CUDAAllocator> from)
{
	static std::atomic<unsigned int> nr;
	auto memory = std::make_shared<own_memory>();
	struct hetmem_provider provider = {};
	const std::string name = "torch" + std::to_string(nr++);

	memory->from = std::move(from);
	memory->device = device;
	memory->pool = pool;
	memory->hm = hm;
	provider.size = sizeof(provider);
	provider.version = HETMEM_PROVIDER_VERSION;
	provider.device = device;
	provider.granularity = HETMEM_ALIGNMENT;
	provider.alloc = own_alloc;
	provider.free = own_free;
	check(hetmem_provider_register(hm, name.c_str(), &provider, memory.get()),
	      "allocator of a pool");
	memory->name = name;
	check(hetmem_resource_create(hm, ("pool(custom(name=" + name + "))").c_str(),
				     &memory->res),
	      "allocator of a pool");
	return memory;
}

/* Null: the pool is of the device's resource. */
std::shared_ptr<own_memory> allocator::own_of(DeviceIndex device, MempoolId_t pool)
{
	if (C10_LIKELY(!any_own))
		return nullptr;
	std::lock_guard<std::mutex> guard(lock);
	auto found = own.find({ device, pool });

	return found == own.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<own_memory>> allocator::all_own(DeviceIndex device)
{
	std::vector<std::shared_ptr<own_memory>> all;

	if (C10_LIKELY(!any_own))
		return all;
	std::lock_guard<std::mutex> guard(lock);

	for (const auto &one : held_own)
		if (auto memory = one.lock())
			all.push_back(std::move(memory));
	all.erase(std::remove_if(all.begin(), all.end(),
				 [=](const auto &one) { return one->device != device; }),
		  all.end());
	return all;
}

struct hetmem_resource *allocator::pool_resource(DeviceIndex device, MempoolId_t pool)
{
	const std::shared_ptr<own_memory> memory = own_of(device, pool);

	return memory ? memory->res : resource(device);
}

/*
 * Allocation.
 */

traceback allocator::gather(RecordContext least)
{
	base::CreateContextFn fn = recorder.load();

	return fn && record_when.load() >= least ? fn() : nullptr;
}

void for_sizes(std::size_t size, StatArray &array, std::size_t amount, bool more)
{
	for (std::size_t i : { std::size_t(0), size <= most_small ? std::size_t(1) : 2 }) {
		if (more)
			array[i].increase(amount);
		else
			array[i].decrease(amount);
	}
}

void count(DeviceStats &stats, std::size_t size, bool more)
{
	for_sizes(size, stats.allocation, 1, more);
	for_sizes(size, stats.allocated_bytes, rounded(size), more);
	for_sizes(size, stats.requested_bytes, size, more);
}

void allocator::insert(void *ptr, const live_block &block)
{
	std::int64_t reserved = -1;
	bool sample;

	{
		std::lock_guard<std::mutex> guard(lock);
		device_state &s = state(block.device);

		s.used = true;
		blocks.insert_or_assign(ptr, block);
		count(s.stats, block.size, true);
		/* After a reset, new memory is made where more is allocated than before. */
		sample = s.reset_reserved &&
			 s.stats.allocated_bytes[0].current > s.sampled_peak;
		if (sample)
			s.sampled_peak = s.stats.allocated_bytes[0].current;
	}
	if (sample) {
		struct hetmem_resource_stats stats = {};

		stats.size = sizeof(stats);
		if (!hetmem_resource_stats(hetmem_torch_resource(block.device), &stats))
			reserved = static_cast<std::int64_t>(stats.reserved);
		std::lock_guard<std::mutex> guard(lock);
		device_state &s = state(block.device);

		s.sampled_reserved = std::max(s.sampled_reserved, reserved);
	}
	if (C10_UNLIKELY(recording || tracked)) {
		const auto address = reinterpret_cast<std::size_t>(ptr);

		if (is_new_memory(block.device, address, block.size))
			report_segments(block.device, block.context);
		record(TraceEntry::ALLOC, block.device, address, block.size, block.stream,
		       block.pool, block.context);
	}
	if (c10::memoryProfilingEnabled())
		report(ptr, static_cast<std::int64_t>(block.size), block.device);
}

bool allocator::remove(void *ptr, live_block *block)
{
	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = blocks.find(ptr);

		if (found == blocks.end())
			return false;
		*block = std::move(found->second);
		blocks.erase(found);
		count(state(block->device).stats, block->size, false);
	}
	return true;
}

/* Notifies the trace, the trackers and the profiler. These can throw. */
void allocator::report_removed(void *ptr, const live_block &block)
{
	if (recording || tracked) {
		traceback context = gather(RecordContext::ALL);

		/* When the streams are done with it is not known here. */
		for (auto action : { TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED })
			record(action, block.device, reinterpret_cast<std::size_t>(ptr),
			       block.size, block.stream, block.pool,
			       context ? context : block.context);
	}
	if (c10::memoryProfilingEnabled())
		report(ptr, -static_cast<std::int64_t>(block.size), block.device);
}

/* For torch.profiler(profile_memory=True). */
void allocator::report(void *ptr, std::int64_t size, DeviceIndex device)
{
	struct hetmem_resource_stats stats = {};
	std::int64_t allocated;

	stats.size = sizeof(stats);
	hetmem_resource_stats(hetmem_torch_resource(device), &stats);
	{
		std::lock_guard<std::mutex> guard(lock);

		allocated = state(device).stats.allocated_bytes[0].current;
	}
	c10::reportMemoryUsageToProfiler(ptr, size, static_cast<std::size_t>(allocated),
					 stats.reserved, c10::Device(c10::kCUDA, device));
}

/* Objects of PyTorch that keep device memory after their last use: of other processes. */
bool free_for_others()
{
	bool freed = false;

	for (const std::string &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
		freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
	return freed;
}

/*
 * torch.cuda.caching_allocator_enable(False): each allocation is the driver's, for tools that
 * watch it, and counts nowhere.
 */
void allocator::enable(bool value)
{
	enabled = value;
}

bool allocator::isEnabled() const
{
	return enabled;
}

void *allocator::get_uncached(std::size_t size, DeviceIndex device, cudaStream_t stream)
{
	c10::cuda::CUDAGuard guard(device);
	void *ptr = nullptr;
	const cudaError_t err = cudaMalloc(&ptr, size);

	if (err) {
		(void)cudaGetLastError();
		out_of_memory(size, device, stream, nullptr,
			      std::string("cudaMalloc: ") + cudaGetErrorString(err));
	}
	try {
		std::lock_guard<std::mutex> guarded(lock);

		uncached.insert(ptr);
		any_uncached = true;
	} catch (...) {
		cudaFree(ptr);
		throw;
	}
	return ptr;
}

/* False: @ptr is not one of them. */
bool allocator::release_uncached(void *ptr)
{
	if (!any_uncached)
		return false;
	{
		std::lock_guard<std::mutex> guard(lock);

		if (!uncached.erase(ptr))
			return false;
	}
	/* At the end of a process the driver may have gone. */
	if (cudaFree(ptr))
		(void)cudaGetLastError();
	return true;
}

/* A filter that throws is ignored: the library then frees on an unknown stream. */
void give_back(void *ptr, const live_block &block)
{
	int err = 0;

	/* Blocks of private pools are freed on the stream of their allocation. */
	if (C10_UNLIKELY(block.own != nullptr))
		err = hetmem_free(block.own->res, ptr, block.size, HETMEM_STREAM_UNKNOWN);
	else
		hetmem_torch_free(ptr, block.size, block.device, block.stream);
	/* A forked child has no such memory, and at the end of a process the driver may go first. */
	if (err && err != -EOWNERDEAD && err != -EIO)
		std::fprintf(stderr, "hetmem: free: %s\n", hetmem_last_error());
	drop_exception();
}

/* Takes @ptr out of the table, without any callback. */
void allocator::forget(void *ptr)
{
	live_block block;
	std::lock_guard<std::mutex> guard(lock);
	auto found = blocks.find(ptr);

	if (found == blocks.end())
		return;
	block = std::move(found->second);
	blocks.erase(found);
	count(state(block.device).stats, block.size, false);
}

/* From a pool with use_on_oom, if the allocation is of no pool; or null. */
void *allocator::get_at_oom(std::size_t size, DeviceIndex device, cudaStream_t stream)
{
	std::vector<std::pair<DeviceIndex, MempoolId_t>> able;
	void *ptr;

	if (chosen_pool != MempoolId_t{ 0, 0 })
		return nullptr;
	{
		std::lock_guard<std::mutex> guard(lock);

		able = at_oom;
	}
	for (const auto &[of, pool] : able) {
		if (of != device || hetmem_torch_pool_alloc(device, pool.first, pool.second,
							    size, stream, &ptr))
			continue;
		chosen_pool = pool;
		return ptr;
	}
	/* An allocator of a pool that threw has no memory, either. */
	drop_exception();
	return nullptr;
}

void *allocator::get(std::size_t size, DeviceIndex device, cudaStream_t stream)
{
	const traceback context = gather(RecordContext::STATE);
	void *ptr = nullptr;
	int err;

	/* PyTorch's own allocator refuses what no device has with these words. */
	TORCH_CHECK_WITH(OutOfMemoryError, size < one_exabyte,
			 "CUDA out of memory. Tried to allocate more than 1EB memory.");
	if (C10_UNLIKELY(!enabled))
		return get_uncached(size, device, stream);
	chosen_pool = { 0, 0 };
	drop_exception();
	err = hetmem_torch_try_alloc(size, device, stream, &ptr);
	if (C10_UNLIKELY(err == -ENOMEM)) {
		const std::string reason = hetmem_last_error();

		ptr = get_at_oom(size, device, stream);
		if (!ptr) {
			std::lock_guard<std::mutex> guard(lock);

			state(device).stats.num_alloc_retries++;
		}
		if (!ptr && (!free_for_others() ||
			     hetmem_torch_try_alloc(size, device, stream, &ptr))) {
			rethrow();
			out_of_memory(size, device, stream, context, reason);
		}
	} else if (err) {
		rethrow();
		fail("alloc");
	}
	const live_block block = { size, device, stream, chosen_pool, context, nullptr,
				   own_of(device, chosen_pool) };

	try {
		insert(ptr, block);
		if (const auto *interpreter = c10::impl::GPUTrace::get_trace();
		    C10_UNLIKELY(interpreter))
			(*interpreter)->trace_gpu_memory_allocation(
				c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
	} catch (...) {
		/* A tracker or a traceback threw. The caller never gets the block. */
		forget(ptr);
		give_back(ptr, block);
		throw;
	}
	return ptr;
}

void allocator::out_of_memory(std::size_t size, DeviceIndex device, cudaStream_t stream,
			      traceback context, const std::string &reason)
{
	std::size_t room = 0, total = 0, limit;
	std::vector<base::OutOfMemoryObserver> called;
	std::int64_t allocated;
	double fraction;

	{
		c10::cuda::OptionalCUDAGuard guard;

		guard.set_index(device);
		if (cudaMemGetInfo(&room, &total))
			(void)cudaGetLastError();
	}
	{
		std::lock_guard<std::mutex> guard(lock);
		device_state &s = state(device);

		s.stats.num_ooms++;
		allocated = s.stats.allocated_bytes[0].current;
		fraction = s.fraction;
		called = observers;
	}
	limit = static_cast<std::size_t>(fraction * static_cast<double>(total));
	record(TraceEntry::OOM, device, room, size, stream, chosen_pool, std::move(context));
	c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(size),
					 static_cast<std::size_t>(allocated), 0,
					 c10::Device(c10::kCUDA, device));
	for (const auto &observer : called)
		observer(device, size, limit, room);
	TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
			 in_units(size), ". GPU ", int(device), " has a total capacity of ",
			 in_units(total), " of which ", in_units(room), " is free. ",
			 in_units(static_cast<std::size_t>(allocated)),
			 " is allocated by PyTorch. hetmem: ", reason);
	std::abort();
}

c10::DataPtr allocator::allocate(std::size_t size)
{
	DeviceIndex device;
	void *ptr = nullptr;

	C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
	/* PyTorch's own allocator has no block for 0 bytes, either. */
	if (size)
		ptr = get(size, device, c10::cuda::getCurrentCUDAStream(device));
	return { ptr, ptr, &delete_block, c10::Device(c10::kCUDA, device) };
}

c10::DeleterFnPtr allocator::raw_deleter() const
{
	return &delete_block;
}

void *allocator::raw_alloc_with_stream(std::size_t size, cudaStream_t stream)
{
	DeviceIndex device;

	C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
	return size ? get(size, device, stream) : nullptr;
}

void *allocator::raw_alloc(std::size_t size)
{
	DeviceIndex device;

	C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
	return size ? get(size, device, c10::cuda::getCurrentCUDAStream(device)) : nullptr;
}

bool allocator::release(void *ptr)
{
	live_block block;

	if (!remove(ptr, &block))
		return release_uncached(ptr);
	try {
		report_removed(ptr, block);
		if (const auto *interpreter = c10::impl::GPUTrace::get_trace();
		    C10_UNLIKELY(interpreter))
			(*interpreter)->trace_gpu_memory_deallocation(
				c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
	} catch (...) {
		give_back(ptr, block);
		throw;
	}
	give_back(ptr, block);
	return true;
}

void allocator::raw_delete(void *ptr)
{
	TORCH_CHECK(!ptr || release(ptr), "invalid device pointer: ", ptr);
}

/*
 * The cache.
 */

int add_range(void *data, const struct hetmem_walk_segment *segment)
{
	const auto base = reinterpret_cast<std::size_t>(segment->base);

	return keep_exception([&] {
		static_cast<std::vector<held_range> *>(data)->push_back(
			{ base, base + segment->bytes, nullptr, false });
		return 0;
	});
}

int add_stream(void *data, const struct hetmem_walk_segment *,
	       const struct hetmem_walk_block *block)
{
	static_cast<std::vector<held_range> *>(data)->back().stream = block->stream;
	return 0;
}

/* What is held for @device, by address. */
std::vector<held_range> allocator::held(DeviceIndex device)
{
	std::vector<held_range> ranges;
	struct hetmem_walk walk = {};

	walk.size = sizeof(walk);
	walk.segment = add_range;
	walk.block = add_stream;
	walk.data = &ranges;
	/* A resource without a pool holds nothing. */
	drop_exception();
	if (hetmem_walk(resource(device), &walk))
		ranges.clear();
	for (const auto &memory : all_own(device)) {
		const std::size_t first = ranges.size();

		hetmem_walk(memory->res, &walk);
		for (std::size_t i = first; i < ranges.size(); i++)
			ranges[i].own = true;
	}
	rethrow();
	std::sort(ranges.begin(), ranges.end(), [](const held_range &a, const held_range &b) {
		return a.address < b.address;
	});
	return ranges;
}

/* Calls @fn for the parts of @ranges that @others do not have. Both are by address. */
template <class F>
void for_missing(const std::vector<held_range> &ranges, const std::vector<held_range> &others, F fn)
{
	auto other = others.begin();

	for (const held_range &range : ranges) {
		std::size_t at = range.address;

		while (other != others.end() && other->end <= at)
			++other;
		for (auto kept = other; at < range.end; ++kept) {
			const bool last = kept == others.end() || kept->address >= range.end;
			const std::size_t end = last ? range.end : kept->address;

			if (end > at)
				fn(range, at, end - at);
			if (last)
				break;
			at = kept->end;
		}
	}
}

/*
 * Reports to the trace and the trackers which memory came and went since the last call for
 * @device. Memory that was held before the first listener came is never reported as new.
 */
void allocator::report_segments(DeviceIndex device, const traceback &context)
{
	std::vector<std::pair<TraceEntry::Action, held_range>> changes;

	{
		std::lock_guard<std::mutex> guard(segments_lock);
		std::vector<held_range> now = held(device), &before = segments[device];

		for_missing(before, now, [&](const held_range &of, std::size_t at, std::size_t size) {
			changes.push_back({ of.own ? TraceEntry::SEGMENT_FREE :
						     TraceEntry::SEGMENT_UNMAP,
					    { at, at + size, of.stream, of.own } });
		});
		for_missing(now, before, [&](const held_range &of, std::size_t at, std::size_t size) {
			changes.push_back({ of.own ? TraceEntry::SEGMENT_ALLOC :
						     TraceEntry::SEGMENT_MAP,
					    { at, at + size, of.stream, of.own } });
		});
		before = std::move(now);
	}
	for (const auto &[action, range] : changes)
		record(action, device, range.address, range.end - range.address,
		       torch_stream(range.stream), { 0, 0 }, context);
}

/* Whether a new block has memory that was not reported. */
bool allocator::is_new_memory(DeviceIndex device, std::size_t address, std::size_t size)
{
	std::lock_guard<std::mutex> guard(segments_lock);
	const std::vector<held_range> &known = segments[device];
	auto range = std::upper_bound(known.begin(), known.end(), address,
				      [](std::size_t at, const held_range &one) {
					      return at < one.end;
				      });

	/* Neighbours can be ranges of their own. */
	for (; range != known.end() && range->address <= address; ++range) {
		if (range->end >= address + size)
			return false;
		size -= range->end - address;
		address = range->end;
	}
	return true;
}

/* Changes are reported from now on: the first listener comes. */
void allocator::begin_segments()
{
	for (DeviceIndex device : used_devices()) {
		std::lock_guard<std::mutex> guard(segments_lock);

		segments[device] = held(device);
	}
}

/* @fn gives back memory of @devices: the trace and the trackers get the ranges. */
template <class F> void allocator::giving_back(const std::vector<DeviceIndex> &devices, F fn)
{
	const bool watched = recording || tracked;
	traceback context;

	if (C10_UNLIKELY(watched)) {
		context = gather(RecordContext::ALL);
		for (DeviceIndex device : devices)
			report_segments(device, context);
	}
	fn();
	if (C10_UNLIKELY(watched))
		for (DeviceIndex device : devices)
			report_segments(device, context);
}

/* The number of a torch.cuda.MemPool. Those of graphs have another form. */
bool is_of_program(MempoolId_t pool)
{
	return !pool.first && pool.second;
}

/*
 * The end of a torch.cuda.MemPool calls it with the pool, after its release. Memory of the
 * pool went to the driver with the last release. A pool that graphs still use keeps it.
 */
void allocator::emptyCache(MempoolId_t pool)
{
	if (!pool.first && !pool.second)
		giving_back(used_devices(), hetmem_torch_reset);
}

void allocator::cacheInfo(DeviceIndex device, std::size_t *largest)
{
	struct hetmem_walk walk = {};
	std::size_t free = 0;

	if (!*largest) {
		c10::cuda::CUDAGuard guard(device);
		std::size_t total;

		C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
	}
	walk.size = sizeof(walk);
	walk.block = find_largest;
	walk.data = &free;
	/* A resource without a pool caches nothing. */
	hetmem_walk(resource(device), &walk);
	*largest = std::max(*largest, free);
}

/* The live block around an address. */
struct around {
	const char *ptr;
	void *first;
	std::size_t size;
};

int find_around(void *data, const struct hetmem_walk_segment *,
		const struct hetmem_walk_block *block)
{
	around *a = static_cast<around *>(data);
	const char *first = static_cast<char *>(block->ptr);

	if (block->state != HETMEM_BLOCK_LIVE || a->ptr < first ||
	    a->ptr >= first + block->bytes)
		return 0;
	a->first = block->ptr;
	a->size = block->requested;
	return 1;
}

/* Of a pool with an allocator of its own, or null. */
void *allocator::own_base(void *ptr, std::size_t *size)
{
	struct hetmem_walk walk = {};
	around found = { static_cast<char *>(ptr), nullptr, 0 };

	walk.size = sizeof(walk);
	walk.block = find_around;
	walk.data = &found;
	for (DeviceIndex device : used_devices())
		for (const auto &memory : all_own(device))
			if (hetmem_walk(memory->res, &walk) == 1) {
				if (size)
					*size = found.size;
				return found.first;
			}
	return nullptr;
}

void *allocator::getBaseAllocation(void *ptr, std::size_t *size)
{
	void *first = any_own ? own_base(ptr, size) : nullptr;

	if (!first)
		first = hetmem_torch_base_alloc(ptr, size);
	TORCH_CHECK(first, "invalid device pointer: ", ptr);
	return first;
}

/* False: @ptr is of the device's resource. */
bool allocator::record_own(void *ptr, cudaStream_t stream)
{
	std::shared_ptr<own_memory> memory;

	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = blocks.find(ptr);

		if (found != blocks.end())
			memory = found->second.own;
	}
	if (memory && hetmem_record_stream(memory->res, ptr, stream))
		std::fprintf(stderr, "hetmem: record_stream: %s\n", hetmem_last_error());
	return memory != nullptr;
}

void allocator::recordStream(const c10::DataPtr &ptr, c10::cuda::CUDAStream stream)
{
	auto unified = record_unified.load();

	if (!ptr.get())
		return;
	/* Memory of another library, or of another process, is none of ours. */
	if (ptr.get_deleter() == &delete_block) {
		if (!any_own || !record_own(ptr.get(), stream.stream()))
			hetmem_torch_record_stream(ptr.get(), stream.stream());
	} else if (unified) {
		unified(ptr.get(), stream.stream());
	}
}

double allocator::getMemoryFraction(DeviceIndex device)
{
	std::lock_guard<std::mutex> guard(lock);

	return state(device).fraction;
}

void allocator::setMemoryFraction(double fraction, DeviceIndex device)
{
	std::size_t room, total;

	TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction,
		    ". Please set it from 0 to 1");
	{
		c10::cuda::CUDAGuard guard(device);

		C10_CUDA_CHECK(cudaMemGetInfo(&room, &total));
	}
	const double most = fraction * static_cast<double>(total);

	check(hetmem_torch_set_limit(device, static_cast<std::uint64_t>(most)),
	      "set_per_process_memory_fraction");
	std::lock_guard<std::mutex> guard(lock);

	state(device).fraction = fraction;
}

std::vector<base::StreamSegmentSize> allocator::getExpandableSegmentSizes(DeviceIndex)
{
	return {};
}

/*
 * Statistics.
 */

/* @now in a stat that is up to date as often as it is asked for: changes between are lost. */
void sampled(Stat &stat, std::uint64_t now)
{
	const std::int64_t more = static_cast<std::int64_t>(now) - stat.current;

	stat.current += more;
	stat.peak = std::max(stat.peak, stat.current);
	stat.allocated += std::max<std::int64_t>(more, 0);
	stat.freed += std::max<std::int64_t>(-more, 0);
}

void sampled(StatArray &array, const std::uint64_t now[2])
{
	sampled(array[0], now[0] + now[1]);
	sampled(array[1], now[0]);
	sampled(array[2], now[1]);
}

void add_sums(struct hetmem_sums *sums, const struct hetmem_sums &more)
{
	sums->made += more.made;
	sums->made_bytes += more.made_bytes;
	sums->given_back += more.given_back;
	sums->given_back_bytes += more.given_back_bytes;
	for (int i = 0; i < 2; i++) {
		sums->held[i] += more.held[i];
		sums->held_bytes[i] += more.held_bytes[i];
		sums->pending[i] += more.pending[i];
		sums->pending_bytes[i] += more.pending_bytes[i];
		sums->free[i] += more.free[i];
	}
}

/* A resource without a pool has no sums. */
struct hetmem_sums sums_of(struct hetmem_resource *res)
{
	struct hetmem_sums sums = {};

	sums.size = sizeof(sums);
	return hetmem_pool_sums(res, &sums) ? hetmem_sums{} : sums;
}

std::int64_t since(std::uint64_t now, std::uint64_t then)
{
	return static_cast<std::int64_t>(now - then);
}

/* Bytes that are held and of no block. Memory of both sizes can share a handle. */
std::array<std::uint64_t, 2> unused(const DeviceStats &stats, const struct hetmem_sums &sums)
{
	std::array<std::uint64_t, 2> bytes;

	for (int i = 0; i < 2; i++) {
		const std::uint64_t live = static_cast<std::uint64_t>(
			stats.allocated_bytes[i + 1].current) + sums.pending_bytes[i];

		bytes[i] = sums.held_bytes[i] - std::min(sums.held_bytes[i], live);
	}
	return bytes;
}

/* The memory of a pool went back to its allocator. */
void allocator::count_ended(const own_memory &memory)
{
	const struct hetmem_sums sums = sums_of(memory.res);
	std::lock_guard<std::mutex> guard(lock);
	struct hetmem_sums &ended = state(memory.device).ended;

	ended.made += sums.made;
	ended.made_bytes += sums.made_bytes;
	ended.given_back += sums.made;
	ended.given_back_bytes += sums.made_bytes;
}

/* Also of pools with an allocator of their own. Their peaks can be of different times. */
void allocator::count_held(DeviceIndex device, struct hetmem_resource_stats *held,
			   struct hetmem_sums *sums)
{
	held->size = sizeof(*held);
	check(hetmem_resource_stats(resource(device), held), "stats");
	*sums = sums_of(resource(device));
	for (const auto &memory : all_own(device)) {
		struct hetmem_resource_stats more = {};

		more.size = sizeof(more);
		if (hetmem_resource_stats(memory->res, &more))
			continue;
		held->reserved += more.reserved;
		held->reserved_peak += more.reserved_peak;
		add_sums(sums, sums_of(memory->res));
	}
}

DeviceStats allocator::getDeviceStats(DeviceIndex device)
{
	struct hetmem_resource_stats held = {};
	struct hetmem_sums sums = {};
	bool used;

	{
		std::lock_guard<std::mutex> guard(lock);

		used = state(device).used;
	}
	/* To ask makes no resource. */
	if (used)
		count_held(device, &held, &sums);
	std::lock_guard<std::mutex> guard(lock);
	device_state &s = state(device);
	Stat &reserved = s.stats.reserved_bytes[0], &segments = s.stats.segment[0];

	add_sums(&sums, s.ended);
	sampled(s.stats.segment, sums.held);
	sampled(s.stats.inactive_split, sums.free);
	sampled(s.stats.reserved_bytes, sums.held_bytes);
	sampled(s.stats.inactive_split_bytes, unused(s.stats, sums).data());
	/* These are exact, whenever they are asked for. */
	s.stats.num_device_alloc = since(sums.made, s.reset.made);
	s.stats.num_device_free = since(sums.given_back, s.reset.given_back);
	segments.allocated = s.stats.num_device_alloc;
	segments.freed = s.stats.num_device_free;
	reserved.allocated = since(sums.made_bytes, s.reset.made_bytes);
	reserved.freed = since(sums.given_back_bytes, s.reset.given_back_bytes);
	reserved.current = static_cast<std::int64_t>(held.reserved);
	s.sampled_reserved = std::max(s.sampled_reserved, reserved.current);
	reserved.peak = held.reserved_peak > s.reset_reserved ?
				static_cast<std::int64_t>(held.reserved_peak) :
				s.sampled_reserved;
	for (int i = 0; i < 3; i++) {
		const auto more = [&](const std::uint64_t of[2]) {
			return static_cast<std::int64_t>(i ? of[i - 1] : of[0] + of[1]);
		};
		Stat &active = s.stats.active[i], &bytes = s.stats.active_bytes[i];

		active.peak = std::max(active.peak, s.stats.allocation[i].peak);
		bytes.peak = std::max(bytes.peak, s.stats.allocated_bytes[i].peak);
		sampled(active, s.stats.allocation[i].current + more(sums.pending));
		sampled(bytes, s.stats.allocated_bytes[i].current + more(sums.pending_bytes));
		active.allocated = s.stats.allocation[i].allocated;
		active.freed = s.stats.allocation[i].freed;
		bytes.allocated = s.stats.allocated_bytes[i].allocated;
		bytes.freed = s.stats.allocated_bytes[i].freed;
	}
	return s.stats;
}

template <class F> void for_arrays(DeviceStats &stats, F fn)
{
	for (StatArray *array : { &stats.allocation, &stats.segment, &stats.active,
				  &stats.inactive_split, &stats.allocated_bytes,
				  &stats.reserved_bytes, &stats.active_bytes,
				  &stats.inactive_split_bytes, &stats.requested_bytes })
		for (Stat &stat : *array)
			fn(stat);
}

void allocator::resetAccumulatedStats(DeviceIndex device)
{
	const DeviceStats before = getDeviceStats(device);
	std::lock_guard<std::mutex> guard(lock);
	device_state &s = state(device);
	DeviceStats &stats = s.stats;

	s.reset.made += before.num_device_alloc;
	s.reset.given_back += before.num_device_free;
	s.reset.made_bytes += before.reserved_bytes[0].allocated;
	s.reset.given_back_bytes += before.reserved_bytes[0].freed;
	for_arrays(stats, [](Stat &stat) { stat.reset_accumulated(); });
	stats.num_alloc_retries = 0;
	stats.num_ooms = 0;
}

void allocator::resetPeakStats(DeviceIndex device)
{
	struct hetmem_resource_stats held = {};
	struct hetmem_sums sums = {};
	bool used;

	getDeviceStats(device);
	{
		std::lock_guard<std::mutex> guard(lock);

		used = state(device).used;
	}
	if (used)
		count_held(device, &held, &sums);
	std::lock_guard<std::mutex> guard(lock);
	device_state &s = state(device);

	for_arrays(s.stats, [](Stat &stat) { stat.reset_peak(); });
	s.reset_reserved = held.reserved_peak;
	s.sampled_reserved = static_cast<std::int64_t>(held.reserved);
	s.sampled_peak = s.stats.allocated_bytes[0].current;
}

/*
 * Snapshots and the trace.
 */

struct picture {
	std::vector<SegmentInfo> segments;
	/* A block's address, by the order of the blocks. */
	std::vector<std::vector<void *>> addresses;
	DeviceIndex device;
	/* Memory of a pool with an allocator of its own, and the last segment's region. */
	own_memory *own;
	std::uintptr_t region;
};

void add_segment(picture *p, const struct hetmem_walk_segment *from)
{
	SegmentInfo segment;

	if (p->own) {
		const std::uintptr_t region = p->own->region_of(from->base);
		const bool same = !p->segments.empty() && region == p->region;

		/* The pool's blocks, and what it has not used yet, are of one region. */
		p->region = region;
		if (same) {
			p->segments.back().total_size += from->bytes;
			return;
		}
	}
	segment.device = p->device;
	segment.address = reinterpret_cast<std::size_t>(from->base);
	segment.total_size = from->bytes;
	segment.is_large = !from->small;
	/* Neighbouring handles are one segment, which grows and shrinks. */
	segment.is_expandable = !p->own;
	/* The library's number, until the whole picture is there. */
	segment.owner_private_pool_id = { from->private_pool, 0 };
	p->segments.push_back(std::move(segment));
	p->addresses.emplace_back();
}

void add_block(picture *p, const struct hetmem_walk_block *from)
{
	SegmentInfo &segment = p->segments.back();
	BlockInfo block;

	if (segment.blocks.empty())
		segment.stream = torch_stream(from->stream);
	block.size = from->bytes;
	block.requested_size = from->requested;
	block.allocated = from->state == HETMEM_BLOCK_LIVE;
	block.active = block.allocated || from->state == HETMEM_BLOCK_PENDING;
	segment.requested_size += from->requested;
	segment.allocated_size += block.allocated ? from->bytes : 0;
	segment.active_size += block.active ? from->bytes : 0;
	segment.blocks.push_back(std::move(block));
	p->addresses.back().push_back(from->ptr);
}

int picture_segment(void *data, const struct hetmem_walk_segment *from)
{
	return keep_exception([&] {
		add_segment(static_cast<picture *>(data), from);
		return 0;
	});
}

int picture_block(void *data, const struct hetmem_walk_segment *,
		  const struct hetmem_walk_block *from)
{
	return keep_exception([&] {
		add_block(static_cast<picture *>(data), from);
		return 0;
	});
}

base::SnapshotInfo allocator::snapshot(MempoolId_t pool, bool include_traces)
{
	const bool all = !pool.first && !pool.second;
	base::SnapshotInfo info;
	std::size_t nr_devices;

	{
		std::lock_guard<std::mutex> guard(lock);

		nr_devices = states.size();
	}
	for (std::size_t i = 0; i < nr_devices; i++) {
		const DeviceIndex device = static_cast<DeviceIndex>(i);
		struct hetmem_walk walk = {};
		picture made;
		bool used;
		int err;

		{
			std::lock_guard<std::mutex> guard(lock);

			used = states[i]->used;
		}
		walk.size = sizeof(walk);
		walk.private_pool = all || !used ? 0 : private_pool(device, pool);
		walk.segment = picture_segment;
		walk.block = picture_block;
		walk.data = &made;
		made.device = device;
		made.own = nullptr;
		if (!used || (!all && !walk.private_pool))
			continue;
		drop_exception();
		err = hetmem_walk(resource(device), &walk);
		walk.private_pool = 0;
		const std::size_t nr_shared = made.segments.size();

		for (const auto &memory : all_own(device)) {
			made.own = memory.get();
			made.region = 0;
			const std::size_t first = made.segments.size();

			if ((all || memory->pool == pool) && (!err || err == -EOPNOTSUPP))
				err = hetmem_walk(memory->res, &walk);
			for (std::size_t s = first; s < made.segments.size(); s++)
				made.segments[s].owner_private_pool_id = memory->pool;
		}
		rethrow();
		if (err != -EOPNOTSUPP)
			check(err, "snapshot");
		std::lock_guard<std::mutex> guard(lock);

		for (std::size_t s = 0; s < made.segments.size(); s++) {
			SegmentInfo &segment = made.segments[s];
			auto known = pools.find({ device, segment.owner_private_pool_id.first });

			if (s < nr_shared)
				segment.owner_private_pool_id =
					known == pools.end() ? MempoolId_t{ 0, 0 } : known->second;
			for (std::size_t b = 0; b < segment.blocks.size(); b++) {
				auto found = blocks.find(made.addresses[s][b]);

				if (segment.blocks[b].allocated && found != blocks.end())
					segment.blocks[b].context_when_allocated =
						found->second.context;
			}
			info.segments.push_back(std::move(segment));
		}
	}
	const auto converter = clock.makeConverter();
	const auto microseconds = [&](c10::approx_time_t time) {
		return converter(time) / 1000;
	};
	{
		std::lock_guard<std::mutex> guard(lock);

		info.device_traces.resize(nr_devices);
		for (std::size_t i = 0; include_traces && i < nr_devices; i++) {
			for (TraceEntry entry : states[i]->trace) {
				entry.time_.t_ = microseconds(entry.time_.approx_t_);
				info.device_traces[i].push_back(std::move(entry));
			}
		}
		for (auto entry : annotations) {
			entry.time_.t_ = microseconds(entry.time_.approx_t_);
			info.external_annotations.push_back(std::move(entry));
		}
	}
	/* As with PyTorch's own allocator, the next snapshot shows this one. */
	if (include_traces && recording)
		for (std::size_t i = 0; i < nr_devices; i++)
			record(TraceEntry::SNAPSHOT, static_cast<DeviceIndex>(i), 0, 0, nullptr,
			       { 0, 0 }, nullptr);
	info.config_metadata = {};
	return info;
}

void allocator::record(TraceEntry::Action action, DeviceIndex device, std::size_t address,
		       std::size_t size, cudaStream_t stream, MempoolId_t pool,
		       traceback context)
{
	std::vector<base::AllocatorTraceTracker> called;
	traceback dropped;

	/* Before it, a traceback of an allocation is there for the state alone. */
	if (record_when < RecordContext::ALLOC)
		context = nullptr;
	TraceEntry entry(action, device, address, size, stream, pool,
			 c10::getApproximateTime(), std::move(context),
			 compile_contexts.empty() ? "" : compile_contexts.back());
	{
		std::lock_guard<std::mutex> guard(lock);
		device_state &s = state(device);

		entry.user_metadata_ = user_metadata;
		called = trackers;
		if (recording && !skipped.count(action)) {
			s.trace.push_back(entry);
			if (s.trace.size() > most_entries) {
				dropped = std::move(s.trace.front().context_);
				s.trace.pop_front();
			}
		}
	}
	for (const auto &tracker : called)
		tracker(entry);
}

bool allocator::isHistoryEnabled()
{
	return recording;
}

void allocator::recordHistory(bool enabled, base::CreateContextFn fn, std::size_t most,
			      RecordContext when, bool clear,
			      const std::vector<std::string> &skip)
{
	std::vector<std::deque<TraceEntry>> dropped;
	std::unordered_set<int> skipping;

	TORCH_CHECK(when == RecordContext::NEVER || fn, "no function for tracebacks");
	if (enabled && !recording && !tracked)
		begin_segments();
	for (const std::string &action : skip)
		skipping.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
	std::lock_guard<std::mutex> guard(lock);

	recorder = enabled ? fn : nullptr;
	record_when = enabled ? when : RecordContext::NEVER;
	most_entries = std::max(most, std::size_t(1));
	skipped = std::move(skipping);
	recording = enabled;
	for (auto &s : states) {
		if (!enabled || clear)
			dropped.push_back(std::move(s->trace));
		if (!enabled || clear)
			s->trace.clear();
		while (s->trace.size() > most_entries)
			s->trace.pop_front();
	}
	if (!enabled || clear)
		annotations.clear();
}

void allocator::recordAnnotation(
	const std::vector<std::pair<std::string, std::string>> &metadata)
{
	DeviceIndex device;

	if (!recording)
		return;
	C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
	c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());

	for (const auto &pair : metadata)
		entry.recordUserMetadata(pair.first, pair.second);
	std::lock_guard<std::mutex> guard(lock);

	annotations.push_back(std::move(entry));
	if (annotations.size() > most_entries)
		annotations.pop_front();
}

void allocator::pushCompileContext(std::string &context)
{
	compile_contexts.push_back(context);
}

void allocator::popCompileContext()
{
	if (!compile_contexts.empty())
		compile_contexts.pop_back();
}

void allocator::setUserMetadata(const std::string &metadata)
{
	std::lock_guard<std::mutex> guard(lock);

	user_metadata = metadata;
}

std::string allocator::getUserMetadata()
{
	std::lock_guard<std::mutex> guard(lock);

	return user_metadata;
}

bool allocator::supportsUserMetadata()
{
	return true;
}

traceback allocator::getContextForPointer(const void *ptr)
{
	std::lock_guard<std::mutex> guard(lock);
	auto found = blocks.find(const_cast<void *>(ptr));

	return found == blocks.end() ? nullptr : found->second.context;
}

void allocator::attachOutOfMemoryObserver(base::OutOfMemoryObserver observer)
{
	std::lock_guard<std::mutex> guard(lock);

	observers.push_back(std::move(observer));
}

void allocator::attachAllocatorTraceTracker(base::AllocatorTraceTracker tracker)
{
	if (!recording && !tracked)
		begin_segments();
	std::lock_guard<std::mutex> guard(lock);

	trackers.push_back(std::move(tracker));
	tracked = true;
}

/*
 * Pools of graphs and of torch.cuda.MemPool.
 */

void allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
				    std::function<bool(cudaStream_t)> wants)
{
	auto made = std::make_unique<filter>(filter{ std::move(wants), pool });

	check(hetmem_torch_begin_pool(device, pool.first, pool.second, ask, made.get()),
	      "begin of a pool");
	made.release();
	const std::uint64_t id = private_pool(device, pool);
	std::lock_guard<std::mutex> guard(lock);

	pools[{ device, id }] = pool;
}

void allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool)
{
	delete static_cast<filter *>(hetmem_torch_end_pool(device, pool.first, pool.second));
}

void allocator::releasePool(DeviceIndex device, MempoolId_t pool)
{
	if (!is_of_program(pool)) {
		hetmem_torch_release_pool(device, pool.first, pool.second);
		return;
	}
	giving_back({ device }, [&] {
		hetmem_torch_drop_pool(device, pool.first, pool.second);
	});
	if (!hetmem_torch_pool_refs(device, pool.first, pool.second))
		setUseOnOOM(device, pool, false);
}

int allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool)
{
	return hetmem_torch_pool_refs(device, pool.first, pool.second);
}

void allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
				   std::shared_ptr<base::CUDAAllocator> other)
{
	const bool is_new = !hetmem_torch_pool_refs(device, pool.first, pool.second);

	check(hetmem_torch_retain_pool(device, pool.first, pool.second), "pool");
	/* Memory of this allocator is what a pool has without one. */
	if (is_new && other && other.get() != this)
		set_allocator(device, pool, std::move(other));
	const std::uint64_t id = private_pool(device, pool);
	std::lock_guard<std::mutex> guard(lock);

	pools[{ device, id }] = pool;
}

using pool_name = std::pair<DeviceIndex, MempoolId_t>;

/* After an error the pool is gone. */
void allocator::set_allocator(DeviceIndex device, MempoolId_t pool,
			      std::shared_ptr<base::CUDAAllocator> from)
{
	const auto ended = [](void *data) {
		const std::unique_ptr<pool_name> which(static_cast<pool_name *>(data));

		the_allocator->pool_ended(which->first, which->second);
	};

	try {
		auto memory = make_own(library(), device, pool, std::move(from));
		auto which = std::make_unique<pool_name>(device, pool);

		{
			std::lock_guard<std::mutex> guard(lock);

			held_own.erase(std::remove_if(held_own.begin(), held_own.end(),
						      [](auto &one) { return one.expired(); }),
				       held_own.end());
			held_own.push_back(memory);
			own[*which] = memory;
			state(device).used = true;
			any_own = true;
		}
		check(hetmem_torch_pool_over(device, pool.first, pool.second, memory->res, ended,
					     which.get()),
		      "allocator of a pool");
		which.release();
	} catch (...) {
		pool_ended(device, pool);
		hetmem_torch_release_pool(device, pool.first, pool.second);
		throw;
	}
}

/* Its blocks keep its memory. */
void allocator::pool_ended(DeviceIndex device, MempoolId_t pool)
{
	std::shared_ptr<own_memory> dropped;
	std::lock_guard<std::mutex> guard(lock);
	auto found = own.find({ device, pool });

	if (found == own.end())
		return;
	dropped = std::move(found->second);
	own.erase(found);
}

void allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use)
{
	const pool_name which(device, pool);
	std::lock_guard<std::mutex> guard(lock);

	at_oom.erase(std::remove(at_oom.begin(), at_oom.end(), which), at_oom.end());
	if (use)
		at_oom.push_back(which);
}

void allocator::setNoSplit(DeviceIndex device, MempoolId_t pool)
{
	check(hetmem_torch_pool_flags(device, pool.first, pool.second, HETMEM_ALLOC_WHOLE),
	      "no_split of a pool");
}

bool allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
					 const std::unordered_set<void *> &expected)
{
	const std::uint64_t id = private_pool(device, pool);
	std::vector<void *> live(expected.size() + 1);
	ssize_t nr;

	TORCH_CHECK(id, "hetmem: no such pool");
	nr = hetmem_private_live(pool_resource(device, pool), id, live.data(), live.size());
	check(nr, "live blocks");
	return static_cast<std::size_t>(nr) == expected.size() &&
	       std::all_of(live.begin(), live.begin() + nr,
			   [&](void *ptr) { return expected.count(ptr) > 0; });
}

std::shared_ptr<base::AllocatorState> allocator::getCheckpointState(DeviceIndex device,
								    MempoolId_t pool)
{
	auto made = std::make_shared<checkpoint>();
	const std::uint64_t id = private_pool(device, pool);

	TORCH_CHECK(id, "hetmem: no such pool");
	made->pool = pool;
	check(hetmem_private_checkpoint(pool_resource(device, pool), id, &made->saved), "checkpoint");
	return made;
}

void add_restored(void *data, const struct hetmem_restored *block)
{
	keep_exception([&] {
		static_cast<std::vector<hetmem_restored> *>(data)->push_back(*block);
		return 0;
	});
}

base::CheckpointDelta allocator::setCheckpointPoolState(
	DeviceIndex device, std::shared_ptr<base::AllocatorState> given)
{
	const auto *saved = dynamic_cast<checkpoint *>(given.get());
	std::vector<hetmem_restored> restored;
	base::CheckpointDelta delta;

	TORCH_CHECK(saved, "hetmem: the checkpoint is another allocator's");
	drop_exception();
	check(hetmem_private_restore(pool_resource(device, saved->pool), saved->saved, add_restored, &restored),
	      "restore");
	rethrow();
	for (const hetmem_restored &block : restored) {
		cudaStream_t stream = torch_stream(block.stream);
		live_block old;

		/* The table has all blocks before a tracker's exception leaves. */
		keep_exception([&] {
			if (block.kind == HETMEM_RESTORED_FREED && remove(block.ptr, &old))
				report_removed(block.ptr, old);
			if (block.kind == HETMEM_RESTORED_ALLOCATED)
				insert(block.ptr, { block.bytes, device, stream, saved->pool,
						    gather(RecordContext::STATE), nullptr,
						    own_of(device, saved->pool) });
			return 0;
		});
		if (block.kind != HETMEM_RESTORED_ALLOCATED)
			delta.ptrs_freed.push_back(block.ptr);
		if (block.kind != HETMEM_RESTORED_FREED)
			delta.dataptrs_allocd.emplace_back(block.ptr, block.ptr, &delete_block,
							   c10::Device(c10::kCUDA, device));
	}
	rethrow();
	return delta;
}

/*
 * Other devices and other processes.
 */

void allocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer)
{
	struct hetmem_access access = {};
	bool reaches;

	access.size = sizeof(access);
	check(hetmem_resource_access(resource(peer), &access), "peer access");
	reaches = access.devices >> device & 1;
	/* PyTorch has noted that access is enabled, and would not ask again. */
	if (!reaches)
		c10::cuda::detail::init_p2p_access_cache(c10::cuda::device_count());
	/* A kernel of PyTorch that reads such memory would end the process. */
	TORCH_CHECK(reaches, "hetmem: device ", int(device),
		    " cannot use the memory of device ", int(peer),
		    ": name the devices in the spec, as in "
		    "hetmem.torch.enable(\"pool(vmm(peers=0/1))\")");
	CUDAPluggableAllocator::enablePeerAccess(device, peer);
}

cudaError_t allocator::memcpyAsync(void *to, int to_device, const void *from, int from_device,
				   std::size_t count, cudaStream_t stream, bool)
{
	if (to_device != from_device)
		return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
	return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
}

/*
 * The handle of shared memory is text: the exporting process, and for each of its files the
 * number and the length. The importing process takes the files by pidfd_getfd(2).
 */

struct hetmem *allocator::library()
{
	if (!hm)
		check(hetmem_open(&hm, nullptr), "open");
	return hm;
}

base::ShareableHandle allocator::shareIpcHandle(void *ptr)
{
	char *first = static_cast<char *>(getBaseAllocation(ptr, nullptr));
	std::vector<struct hetmem_segment> segments(16);
	auto made = std::make_shared<exported>();
	DeviceIndex device;
	ssize_t nr;

	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = blocks.find(first);

		TORCH_CHECK(found != blocks.end(), "invalid device pointer: ", ptr);
		device = found->second.device;
		if (found->second.shared)
			return { static_cast<char *>(ptr) - first,
				 found->second.shared->handle };
	}
	do {
		segments.resize(segments.size() * 4);
		made->files.resize(segments.size());
		nr = hetmem_export(resource(device), first, made->files.data(),
				   segments.data(), segments.size());
	} while (nr == -ENOSPC && segments.size() < 1 << 20);
	made->files.resize(std::max(nr, ssize_t(0)));
	TORCH_CHECK(nr != -EOPNOTSUPP, "hetmem: memory of this spec cannot be shared with other "
		    "processes: call hetmem.torch.enable(\"pool(vmm(export=fd))\")");
	check(nr, "export");
	made->handle = "hetmem " + std::to_string(getpid());
	for (ssize_t i = 0; i < nr; i++)
		made->handle += " " + std::to_string(made->files[i]) + " " +
				std::to_string(segments[i].length);
	std::lock_guard<std::mutex> guard(lock);
	auto found = blocks.find(first);

	if (found != blocks.end())
		found->second.shared = made;
	return { static_cast<char *>(ptr) - first, made->handle };
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open	434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd	438
#endif

struct descriptor {
	int number = -1;

	~descriptor()
	{
		if (number >= 0)
			close(number);
	}
};

std::shared_ptr<void> allocator::getIpcDevPtr(std::string handle)
{
	std::vector<struct hetmem_segment> segments;
	std::deque<descriptor> files;
	std::vector<int> numbers;
	std::size_t offset = 0;
	DeviceIndex device;
	descriptor process;
	int pid, used = 0;
	void *ptr;

	std::lock_guard<std::mutex> guard(import_lock);
	auto known = imports.find(handle);

	if (known != imports.end()) {
		std::shared_ptr<void> alive = known->second.lock();

		if (alive)
			return alive;
	}
	C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
	TORCH_CHECK(std::sscanf(handle.c_str(), "hetmem %d%n", &pid, &used) == 1,
		    "hetmem: the tensor is of a process whose allocator is not hetmem: "
		    "call hetmem.torch.enable() in both");
	process.number = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
	TORCH_CHECK(process.number >= 0, "hetmem: no process ", pid,
		    " that shared the tensor: keep it alive, with the tensor");
	for (const char *at = handle.c_str() + used;;) {
		struct hetmem_segment segment = {};
		int number;

		if (std::sscanf(at, " %d %zu%n", &number, &segment.length, &used) != 2)
			break;
		at += used;
		files.emplace_back();
		files.back().number = static_cast<int>(
			syscall(SYS_pidfd_getfd, process.number, number, 0));
		TORCH_CHECK(files.back().number >= 0, "hetmem: process ", pid,
			    " does not let this one take its memory (",
			    std::strerror(errno), "): set the sysctl "
			    "kernel.yama.ptrace_scope to 0, or let the parent take its child's");
		segment.offset = offset;
		offset += segment.length;
		segments.push_back(segment);
		numbers.push_back(files.back().number);
	}
	check(hetmem_import(library(), device, numbers.data(), segments.data(),
			    segments.size(), &ptr), "import");
	std::shared_ptr<void> made(ptr, [this, device](void *imported) {
		c10::cuda::OptionalCUDAGuard device_guard;

		/* Work of this process that uses it may be under way. */
		device_guard.set_index(device);
		(void)cudaDeviceSynchronize();
		hetmem_import_close(hm, imported);
	});
	imports[handle] = made;
	return made;
}

} /* namespace */

/* The version of PyTorch that this is compiled for. */
EXPORT const char *hetmem_full_version()
{
	return TORCH_VERSION;
}

/* Unified tensors are of libhetmem-torch.so, whose hetmem_unified_record() @fn is. */
EXPORT void hetmem_full_record_unified(record_fn *fn)
{
	record_unified = fn;
}

/*
 * Makes it PyTorch's allocator. Returns 0; else @text, @len bytes, has PyTorch's error, and
 * nothing has changed.
 */
EXPORT int hetmem_full_enable(char *text, std::size_t len)
{
	namespace pluggable = torch::cuda::CUDAPluggableAllocator;

	try {
		if (!the_allocator)
			(the_allocator = new allocator)->hold_for_fork();
		std::shared_ptr<base::CUDAAllocator> shared(the_allocator,
							    [](base::CUDAAllocator *) {});
		pluggable::changeCurrentAllocator(shared);
		/*
		 * For torch.accelerator, which asks for the allocator of a kind of device. The
		 * highest priority: PyTorch 2.15 registers its own allocator again later.
		 */
		c10::SetAllocator(c10::kCUDA, the_allocator, UINT8_MAX);
	} catch (const c10::Error &e) {
		std::snprintf(text, len, "%s", e.what_without_backtrace());
		return -EBUSY;
	} catch (const std::exception &e) {
		std::snprintf(text, len, "%s", e.what());
		return -EBUSY;
	}
	return 0;
}
