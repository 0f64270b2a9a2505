/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Replays recordings through a pool of hetmem and through two resources of RMM
 * in one process: us, RMM, RMM, us, after a round that does not count. The
 * rules are those of `hetmem replay`: one thread, recorded order, idle streams,
 * two passes over each new resource.
 *
 * The output is JSON with the members that Documentation/replay.md lists.
 * `peer` and `peer_version` name RMM's resource; its figures are the members
 * with `peer_` before their names. The resources:
 *
 *   rmm-pool-tuned	pool_memory_resource over cuda_memory_resource. Its initial
 *			and maximum size (`peer_initial`) is the first of 1.00,
 *			1.02, 1.05, ... times the requested peak with which no
 *			allocation fails. No pass includes making it.
 *   rmm-async		cuda_async_memory_resource as it is by default
 *
 * Two things differ from `hetmem replay`. Only allocations and frees are
 * replayed: RMM has no other calls. Blocks of no stream are on the first one.
 */
#include <getopt.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <rmm/aligned.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

#include <hetmem.h>

extern "C" {
#include "replay/trace.h"
}

namespace {

constexpr char help[] =
	"Usage: replay_rmm [--spec SPEC]... FILE...\n"
	"Replays recordings through SPEC (device-pool) beside RMM, as JSON.\n";

[[noreturn]] void stop(int status, const std::string &why)
{
	fprintf(stderr, "replay_rmm: %s\n", why.c_str());
	exit(status);
}

void check(cudaError_t error, const char *what)
{
	if (error != cudaSuccess)
		throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

uint64_t now()
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

/* A recording, and where its blocks are while it is replayed. */
struct World {
	const replay_trace &trace;
	std::vector<replay_step> steps;	/* allocations and frees */
	std::vector<size_t> sizes;	/* by block */
	std::vector<cudaStream_t> streams;
	std::vector<void *> ptrs;	/* by block, nullptr: not live */

	explicit World(const replay_trace &t) : trace(t), sizes(t.blocks), ptrs(t.blocks)
	{
		for (size_t i = 0; i < t.nr; i++) {
			replay_step s = t.steps[i];

			if (s.op > REPLAY_FREE)
				continue;
			if (s.stream >= t.streams)
				s.stream = 0;
			/* cuMemAllocAsync() and RMM know no block of 0 bytes. */
			s.size = s.size ? s.size : 1;
			sizes[s.block] = s.size;
			steps.push_back(s);
		}
		streams.resize(t.streams ? t.streams : 1);
		for (cudaStream_t &stream : streams)
			check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
			      "cudaStreamCreateWithFlags");
	}
	World(const World &) = delete;
	World &operator=(const World &) = delete;
	~World()
	{
		for (cudaStream_t stream : streams)
			cudaStreamDestroy(stream);
	}
};

/* All resources have these functions. allocate() returns nullptr if it fails. */
class Hetmem {
	hetmem_resource *res;

public:
	Hetmem(hetmem *hm, const char *spec)
	{
		if (hetmem_resource_create(hm, spec, &res))
			throw std::runtime_error(std::string(spec) + ": " + hetmem_last_error());
	}
	Hetmem(const Hetmem &) = delete;
	Hetmem &operator=(const Hetmem &) = delete;
	~Hetmem()
	{
		hetmem_resource_destroy(res);
	}
	void *allocate(size_t size, cudaStream_t stream)
	{
		void *ptr;

		return hetmem_alloc(res, size, 0, stream, &ptr) ? nullptr : ptr;
	}
	void deallocate(void *ptr, size_t size, cudaStream_t stream)
	{
		hetmem_free(res, ptr, size, stream);
	}
	void settle()
	{
		hetmem_poll(res);
	}
	uint64_t reserved_peak()
	{
		struct hetmem_resource_stats stats = {};

		stats.size = sizeof(stats);
		if (hetmem_resource_stats(res, &stats))
			throw std::runtime_error(hetmem_last_error());
		return stats.reserved_peak;
	}
};

/* The calls use the resource's own type: RMM's fastest way in. */
template <class Resource> class Rmm {
protected:
	Resource mr;

public:
	template <class... Args> explicit Rmm(Args... args) : mr(args...) {}

	void *allocate(size_t size, cudaStream_t stream)
	{
		try {
			return mr.allocate(cuda::stream_ref{stream}, size, rmm::CUDA_ALLOCATION_ALIGNMENT);
		} catch (const std::bad_alloc &) {
			return nullptr;
		}
	}
	void deallocate(void *ptr, size_t size, cudaStream_t stream)
	{
		mr.deallocate(cuda::stream_ref{stream}, ptr, size, rmm::CUDA_ALLOCATION_ALIGNMENT);
	}
	void settle() {}
};

/* It never grows, so that the memory that it holds is known. */
class RmmPool : public Rmm<rmm::mr::pool_memory_resource> {
public:
	explicit RmmPool(size_t size) : Rmm(rmm::mr::cuda_memory_resource{}, size, std::optional(size)) {}

	uint64_t reserved_peak()
	{
		return mr.pool_size();
	}
};

class RmmAsync : public Rmm<rmm::mr::cuda_async_memory_resource> {
public:
	uint64_t reserved_peak()
	{
		uint64_t bytes = 0;

		check(cudaMemPoolGetAttribute(mr.pool_handle(), cudaMemPoolAttrReservedMemHigh, &bytes),
		      "cudaMemPoolGetAttribute");
		return bytes;
	}
};

/*
 * Executes all steps; then frees the remaining blocks and waits for the device.
 * Returns the nanoseconds of the steps and, in *@failures, how many allocations
 * failed.
 */
template <class Resource> uint64_t pass(World &world, Resource &resource, uint64_t *failures)
{
	void **ptrs = world.ptrs.data();
	const cudaStream_t *streams = world.streams.data();
	uint64_t failed = 0;
	const uint64_t start = now();

	for (const replay_step &s : world.steps) {
		if (s.op == REPLAY_ALLOC) {
			ptrs[s.block] = resource.allocate(s.size, streams[s.stream]);
			failed += !ptrs[s.block];
		} else if (ptrs[s.block]) {
			resource.deallocate(ptrs[s.block], s.size, streams[s.stream]);
			ptrs[s.block] = nullptr;
		}
	}
	const uint64_t ns = now() - start;

	for (size_t i = 0; i < world.ptrs.size(); i++) {
		if (!ptrs[i])
			continue;
		resource.deallocate(ptrs[i], world.sizes[i], streams[0]);
		ptrs[i] = nullptr;
	}
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	resource.settle();
	*failures = failed;
	return ns;
}

/* What one side took. Times are means of the rounds that were taken. */
struct Taken {
	double ms[2] = {};		/* first and second pass */
	uint64_t reserved = 0;
	uint64_t failures = 0;		/* of the pass with most */
};

constexpr int rounds = 2;

template <class Make> Taken two_passes(World &world, Make make)
{
	Taken taken;
	auto resource = make();

	for (double &ms : taken.ms) {
		uint64_t failures;

		ms = pass(world, *resource, &failures) / 1e6;
		taken.failures = std::max(taken.failures, failures);
	}
	taken.reserved = resource->reserved_peak();
	return taken;
}

void add(Taken &sum, const Taken &one)
{
	for (int i = 0; i < 2; i++)
		sum.ms[i] += one.ms[i] / rounds;
	sum.reserved = std::max(sum.reserved, one.reserved);
	sum.failures = std::max(sum.failures, one.failures);
}

/* The first round does not count: it warms the driver up for both. */
template <class Ours, class Theirs>
void measure(World &world, Ours ours, Theirs theirs, Taken &us, Taken &peer)
{
	two_passes(world, ours);
	two_passes(world, theirs);
	add(us, two_passes(world, ours));
	add(peer, two_passes(world, theirs));
	add(peer, two_passes(world, theirs));
	add(us, two_passes(world, ours));
}

/* The least size of a pool that never grows with which nothing fails. */
size_t tuned_size(World &world)
{
	static const int percents[] = { 100, 102, 105, 110, 115, 120, 125, 130, 140, 150, 175, 200, 250, 300, 400 };
	constexpr size_t unit = 2 << 20;

	for (int percent : percents) {
		const size_t size = (world.trace.peak_requested / 100.0 * percent + unit - 1) / unit;
		const auto make = [=] { return std::make_unique<RmmPool>(size * unit); };

		if (!two_passes(world, make).failures)
			return size * unit;
	}
	throw std::runtime_error("rmm-pool-tuned: allocations fail in a pool of 4 times the peak");
}

std::string quoted(const std::string &text)
{
	std::string out = "\"";

	for (unsigned char c : text) {
		char escaped[8];

		snprintf(escaped, sizeof(escaped), c < ' ' || c > '~' || c == '"' || c == '\\' ? "\\u%04x" : "%c", c);
		out += escaped;
	}
	return out + "\"";
}

void print_side(const char *prefix, const World &world, const Taken &taken)
{
	printf("    \"%sns_per_event\":%.4f,\n", prefix, taken.ms[1] * 1e6 / world.steps.size());
	printf("    \"%sfirst_pass_ms\":%.4f,\n", prefix, taken.ms[0]);
	printf("    \"%ssecond_pass_ms\":%.4f,\n", prefix, taken.ms[1]);
	printf("    \"%speak_reserved\":%ju,\n", prefix, uintmax_t(taken.reserved));
	/* Less than the peak was live if allocations failed. */
	if (taken.failures)
		printf("    \"%sratio\":null,\n", prefix);
	else
		printf("    \"%sratio\":%.4f,\n", prefix, double(taken.reserved) / world.trace.peak_requested);
	printf("    \"%sfailures\":%ju,\n", prefix, uintmax_t(taken.failures));
}

struct Output {
	bool begun = false;

	void row(const World &world, const char *spec, const char *peer, size_t initial, const Taken &us,
		 const Taken &them)
	{
		printf("%s\n  {\n    \"trace\":%s,\n    \"spec\":%s,\n    \"driver\":\"cuda\",\n    \"events\":%zu,\n",
		       begun ? "," : "[", quoted(world.trace.name).c_str(), quoted(spec).c_str(), world.steps.size());
		print_side("", world, us);
		printf("    \"peer\":\"%s\",\n    \"peer_version\":\"%d.%02d.%d\",\n", peer, RMM_VERSION_MAJOR,
		       RMM_VERSION_MINOR, RMM_VERSION_PATCH);
		print_side("peer_", world, them);
		if (initial)
			printf("    \"peer_initial\":%zu,\n", initial);
		printf("    \"peak_requested\":%ju\n  }", uintmax_t(world.trace.peak_requested));
		begun = true;
	}
	void end()
	{
		puts(begun ? "\n]" : "[\n]");
	}
};

void replay(hetmem *hm, const replay_trace &trace, const char *spec, Output &output)
{
	World world(trace);
	const auto ours = [=] { return std::make_unique<Hetmem>(hm, spec); };
	Taken us, peer;

	const size_t size = tuned_size(world);
	measure(world, ours, [=] { return std::make_unique<RmmPool>(size); }, us, peer);
	output.row(world, spec, "rmm-pool-tuned", size, us, peer);

	us = peer = Taken();
	measure(world, ours, [] { return std::make_unique<RmmAsync>(); }, us, peer);
	output.row(world, spec, "rmm-async", 0, us, peer);
}

std::vector<const char *> parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "spec", required_argument, nullptr, 's' },
		{ "help", no_argument, nullptr, 'h' },
		{ nullptr, 0, nullptr, 0 },
	};
	std::vector<const char *> specs;
	int c;

	while ((c = getopt_long(argc, argv, "h", longs, nullptr)) != -1) {
		if (c == 's') {
			specs.push_back(optarg);
		} else if (c == 'h') {
			fputs(help, stdout);
			exit(0);
		} else {
			exit(2);
		}
	}
	if (optind == argc)
		stop(2, "which trace? Type: replay_rmm --help");
	if (specs.empty())
		specs.push_back("device-pool");
	return specs;
}

} // namespace

int main(int argc, char **argv)
{
	const std::vector<const char *> specs = parse(argc, argv);
	struct hetmem_params params = {};
	hetmem *hm = nullptr;
	Output output;
	int status = 0, devices = 0;

	const cudaError_t error = cudaGetDeviceCount(&devices);
	if (error != cudaSuccess)
		stop(2, std::string("no CUDA device: ") + cudaGetErrorString(error));
	if (!devices)
		stop(2, "no CUDA device: the driver has none");
	params.size = sizeof(params);
	params.driver = "cuda";
	params.module_path = "";
	if (hetmem_open(&hm, &params))
		stop(1, hetmem_last_error());
	for (; optind < argc; optind++) {
		replay_trace *trace = replay_trace_read(argv[optind]);

		try {
			for (size_t i = 0; trace && i < specs.size(); i++)
				replay(hm, *trace, specs[i], output);
		} catch (const std::exception &e) {
			fprintf(stderr, "replay_rmm: %s: %s\n", argv[optind], e.what());
			status = 1;
		}
		status = trace ? status : 1;
		replay_trace_free(trace);
	}
	output.end();
	hetmem_close(hm);
	return status;
}
