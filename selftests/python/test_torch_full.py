# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.torch in full mode: PyTorch itself over the soft driver, without a GPU.

TORCH_SITE is a folder with PyTorch and the headers of CUDA, STAND_INS one that
selftests/python/stand-ins made. Kernels do nothing there, so contents come from copies.
Each test has an interpreter of its own.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

import tap
import test_doc
from hetmem import _library

SITE, STAND_INS = os.environ["TORCH_SITE"], os.environ["STAND_INS"]
START = """
import ctypes, errno, gc, os, pickle, sys, threading, warnings
# The stand-ins lack what PyTorch never calls here.
sys.setdlopenflags(os.RTLD_LAZY)
import torch, hetmem, hetmem.torch as ht
sys.setdlopenflags(os.RTLD_NOW)
from hetmem import _torch_full
_torch_full._prebuilt = lambda torch: None
MIB = 1 << 20
""" + tap.FAILS + """
def empty(size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)
def stats(name, device=0):
    return torch.cuda.memory_stats(device)[name]
"""


def full_environment():
    """Compiled ones are kept for all tests of a run."""
    return {
        "LD_LIBRARY_PATH": f"{STAND_INS}:{os.path.dirname(_library.part('libhetmem-soft.so'))}",
        "LD_PRELOAD": f"{STAND_INS}/libcudart.so.13",
        "PYTHONPATH": os.pathsep.join([SITE, os.environ.get("PYTHONPATH", "")]),
        "XDG_CACHE_HOME": CACHE,
        "HETMEM_LIBRARY": _library.part("libhetmem.so.0"),
        "HETMEM_SOFT_CHECK": "1",
    }


class Full(tap.Case):
    def run_code(self, code, **environment):
        """@code, which has the usual names, succeeds in silence after enable()."""
        self.run_before(
            'assert ht.enable(SPEC, mode="full") == "full" == ht.enabled()\n'
            "assert ht.reason() is None\n" + tap.textwrap.dedent(code), **environment)

    def run_before(self, code, **environment):
        spec = environment.pop("SPEC", "pool(vmm,max=200M)")
        self.silent(START + f"SPEC = {spec!r}\n" + tap.textwrap.dedent(code),
                    **{**full_environment(), **environment})

    def test_tensors(self):
        self.run_code("""
            assert not torch.cuda.is_initialized()
            x = torch.arange(1000.).cuda()
            y = x.clone()
            del x
            torch.cuda.synchronize()
            assert torch.equal(y.cpu(), torch.arange(1000.))
            # Nothing has no block, as with PyTorch's own allocator.
            assert torch.empty(0, device="cuda").data_ptr() == 0
            assert torch.cuda.memory.get_allocator_backend() == "hetmem"
            assert ht.resource().stats().live == 1
            """)

    def test_out_of_memory(self):
        self.run_code("""
            kept = torch.arange(1000.).cuda()
            for size in (300 * MIB, 1 << 50):
                error = fails(torch.cuda.OutOfMemoryError, lambda: empty(size),
                              "CUDA out of memory. Tried to allocate ", "GPU 0",
                              "256.00 MiB", "hetmem: alloc of %d bytes" % size)
                # What catches PyTorch's own catches it.
                assert isinstance(error, (RuntimeError, torch.OutOfMemoryError))
            assert torch.equal(kept.cpu(), torch.arange(1000.))
            assert (stats("num_ooms"), stats("num_alloc_retries")) == (2, 2)
            empty(100 * MIB)
            # The limit is reached and left again.
            held = []
            def fill():
                while True: held.append(empty(30 * MIB))
            for _ in range(3):
                fails(torch.OutOfMemoryError, fill)
                assert len(held) == 6
                held.clear()
            called = []
            torch._C._cuda_attach_out_of_memory_observer(lambda *a: called.append(a))
            fails(torch.OutOfMemoryError, lambda: empty(300 * MIB))
            assert called[0][:3] == (0, 300 * MIB, 256 * MIB), called
            """)

    def test_driver_fails(self):
        """An error that is not lack of memory is not called so, and nothing is lost."""
        self.run_code("""
            x = empty(MIB)
            ht.sleep()
            error = fails(RuntimeError, lambda: empty(50 * MIB), "hetmem: alloc: ", "asleep")
            assert not isinstance(error, torch.OutOfMemoryError)
            ht.wake()
            empty(50 * MIB)
            """)

    def test_statistics(self):
        self.run_code("""
            assert torch.cuda.memory_allocated() == 0 == torch.cuda.memory_reserved()
            a = empty(1000)
            b = empty(10 * MIB)
            assert torch.cuda.memory_allocated() == 10 * MIB + 1024
            assert stats("requested_bytes.all.current") == 10 * MIB + 1000
            assert stats("allocated_bytes.small_pool.current") == 1024
            assert stats("allocated_bytes.large_pool.current") == 10 * MIB
            assert stats("allocation.all.current") == 2 == stats("active.all.current")
            assert torch.cuda.memory_reserved() == ht.resource().stats().reserved
            assert stats("segment.all.current") >= 2
            del b
            assert torch.cuda.memory_allocated() == 1024
            assert torch.cuda.max_memory_allocated() == 10 * MIB + 1024
            peak = torch.cuda.max_memory_reserved()
            assert peak >= 12 * MIB
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() < peak == torch.cuda.max_memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            assert torch.cuda.max_memory_allocated() == 1024
            assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
            # A peak since the reset that is lower than the one before.
            c = empty(5 * MIB)
            del c
            torch.cuda.empty_cache()
            assert torch.cuda.max_memory_allocated() == 5 * MIB + 1024
            assert 5 * MIB <= torch.cuda.max_memory_reserved() < peak
            c = empty(30 * MIB)
            assert torch.cuda.max_memory_reserved() >= 30 * MIB
            assert stats("allocated_bytes.all.allocated") == 45 * MIB + 1024
            torch.cuda.reset_accumulated_memory_stats()
            assert stats("allocated_bytes.all.allocated") == 0
            free, total = torch.cuda.mem_get_info()
            assert total == 256 * MIB and free <= 226 * MIB
            # What the driver gave and got back, since the last reset.
            for turn in range(2):
                torch.cuda.reset_accumulated_memory_stats()
                torch.cuda.empty_cache()
                freed = stats("num_device_free")
                x = empty(40 * MIB)
                s = torch.cuda.memory_stats()
                made = s["num_device_alloc"]
                assert made > 0 and s["segment.all.allocated"] == made
                assert s["segment.all.current"] == s["segment.small_pool.current"] + \
                    s["segment.large_pool.current"] >= made
                assert 40 * MIB <= s["reserved_bytes.all.allocated"] < 50 * MIB
                assert s["reserved_bytes.all.current"] == torch.cuda.memory_reserved() == \
                    s["reserved_bytes.small_pool.current"] + s["reserved_bytes.large_pool.current"]
                before = s["reserved_bytes.all.freed"]
                idle = s["inactive_split_bytes.all.current"]
                del x
                assert stats("inactive_split_bytes.all.current") == idle + 40 * MIB
                assert stats("inactive_split.all.current") > 0
                torch.cuda.empty_cache()
                s = torch.cuda.memory_stats()
                assert s["segment.all.freed"] == s["num_device_free"] > freed
                assert 40 * MIB <= s["reserved_bytes.all.freed"] - before < 50 * MIB
            assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
            assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
            """)

    def test_another_is_registered(self):
        """As PyTorch 2.15 does when CUDA is initialized."""
        self.run_code("""
            torch.cuda.init()
            ctypes.CDLL(HELPER).register_another()
            x = empty(MIB)
            assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == MIB
            """.replace("HELPER", repr(helper())))

    def test_trace_of_memory(self):
        """What torch.cuda._sanitizer asks to be told."""
        self.run_code("""
            import torch.cuda._gpu_trace as trace
            seen = []
            x = empty(MIB)
            trace.register_callback_for_memory_allocation(lambda ptr: seen.append((1, ptr)))
            trace.register_callback_for_memory_deallocation(lambda ptr: seen.append((0, ptr)))
            torch._C._activate_gpu_trace()
            y = empty(1000)
            one, other = x.data_ptr(), y.data_ptr()
            del x
            assert seen == [(1, other), (0, one)], seen
            y = y.new_empty(0)
            assert seen == [(1, other), (0, one), (0, other)], seen
            """)

    def test_statistics_open_no_device(self):
        self.run_code("""
            torch.cuda.init()
            for device in (0, 1): assert torch.cuda.memory_allocated(device) == 0
            x = empty(MIB, "cuda:1")
            assert [torch.cuda.memory_allocated(i) for i in (0, 1)] == [0, MIB]
            assert stats("segment.all.current", 0) == 0
            fails(Exception, lambda: torch.cuda.memory_stats(100), "nvalid device")
            """, HETMEM_SOFT_DEVICES="2")

    def test_fraction(self):
        self.run_code("""
            torch.cuda.set_per_process_memory_fraction(0.25)
            assert torch.cuda.get_per_process_memory_fraction() == 0.25
            fails(torch.OutOfMemoryError, lambda: empty(65 * MIB))
            x = empty(60 * MIB)
            torch.cuda.set_per_process_memory_fraction(1.0)
            y = empty(65 * MIB)
            torch.cuda.set_per_process_memory_fraction(0.0)
            assert torch.cuda.get_per_process_memory_fraction() == 0
            fails(torch.OutOfMemoryError, lambda: empty(65 * MIB))
            torch.cuda.set_per_process_memory_fraction(1.0)
            for wrong in (-1.0, 1.5):
                fails((RuntimeError, ValueError),
                      lambda: torch.cuda.set_per_process_memory_fraction(wrong))
            # The limit of the spec stays.
            del x, y
            for fraction, size, more in ((1.0, 190, 210), (0.5, 100, 130), (0.9, 190, 210)):
                torch.cuda.set_per_process_memory_fraction(fraction)
                x = None
                x = empty(size * MIB)
                x = None
                fails(torch.OutOfMemoryError, lambda: empty(more * MIB), "at most")
            # Another limit replaces both.
            ht.resource().set("max", "230M")
            x = None
            x = empty(220 * MIB)
            torch.cuda.set_per_process_memory_fraction(1.0)
            x = None
            x = empty(220 * MIB)
            """)
        self.run_code("""
            error = fails(RuntimeError, lambda: torch.cuda.set_per_process_memory_fraction(0.5),
                          "set_per_process_memory_fraction")
            assert torch.cuda.get_per_process_memory_fraction() == 1
            """, SPEC="device")

    def test_more_than_there_can_be(self):
        self.run_code("""
            fails(torch.OutOfMemoryError, lambda: empty(1 << 60),
                  "CUDA out of memory. Tried to allocate more than 1EB memory")
            assert stats("num_ooms") == 0
            """)

    def test_switched_off(self):
        """The driver's own allocations; each block goes where it came from."""
        self.run_code("""
            held = empty(MIB)
            torch.cuda.caching_allocator_enable(False)
            direct = [empty(MIB) for _ in range(3)]
            del held
            assert stats("allocated_bytes.all.current") == 0
            assert ht.resource().stats().live == 0
            fails(torch.OutOfMemoryError, lambda: empty(1 << 40), "cudaMalloc: ")
            torch.cuda.caching_allocator_enable(True)
            held = empty(2 * MIB)
            del direct
            assert ht.resource().stats().live == 1
            assert stats("allocated_bytes.all.current") == 2 * MIB
            """)

    def test_given_back(self):
        """empty_cache() is in the history, with its traceback if all have one."""
        self.run_code("""
            def unmapped():
                trace = torch.cuda.memory._snapshot()["device_traces"][0]
                return [entry for entry in trace if entry["action"] == "segment_unmap"]
            for context in ("alloc", "all"):
                torch.cuda.empty_cache()
                torch.cuda.memory._record_memory_history(context=context, stacks="python")
                first, kept = empty(64 * MIB), empty(4 * MIB)
                range_ = first.data_ptr(), first.data_ptr() + 64 * MIB
                del first
                before = torch.cuda.memory_reserved()
                torch.cuda.empty_cache()
                torch.cuda.empty_cache()
                given = unmapped()
                assert sum(entry["size"] for entry in given) == \\
                    before - torch.cuda.memory_reserved() > 0, given
                assert all(range_[0] <= entry["addr"] < range_[1] for entry in given)
                assert all(("empty_cache" in str(entry)) == (context == "all")
                           for entry in given)
                torch.cuda.memory._record_memory_history(None)
                del kept
            """)

    def test_segments(self):
        """A tracker gets each change of memory once, before blocks of it."""
        self.run_code("""
            early = empty(3 * MIB)
            library = ctypes.CDLL(HELPER)
            library.track()
            def counted(action): return (ctypes.c_long * 9).in_dll(library, "tracked")[action]
            alloc, free, seg_alloc, seg_free, seg_map, seg_unmap = 0, 1, 3, 4, 5, 6
            before = torch.cuda.memory_reserved()
            x = empty(40 * MIB)
            assert counted(seg_map) == torch.cuda.memory_reserved() - before >= 40 * MIB
            mapped = counted(seg_map)
            del x
            x = empty(20 * MIB)
            assert counted(seg_map) == mapped and counted(alloc) == 60 * MIB
            del x
            torch.cuda.empty_cache()
            assert mapped - counted(seg_unmap) == torch.cuda.memory_reserved() - before
            given = torch.cuda.memory.CUDAPluggableAllocator(HELPER, "counted_alloc", "counted_free")
            pool = torch.cuda.MemPool(given.allocator())
            with torch.cuda.use_mem_pool(pool): y = empty(6 * MIB)
            assert counted(seg_alloc) == 6 * MIB and counted(seg_free) == 0 and counted(seg_map) == mapped
            del y, pool
            assert counted(seg_free) == 6 * MIB
            """.replace("HELPER", repr(helper())))

    def test_snapshot(self):
        self.run_code("""
            kept = empty(3 * MIB)
            held = [(s["address"], s["total_size"]) for s in torch.cuda.memory_snapshot()]
            torch.cuda.memory._record_memory_history(max_entries=8, stacks="python")
            def made_here(): return empty(5 * MIB)
            x = made_here()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream): y = empty(2000)
            del kept
            fails(torch.OutOfMemoryError, lambda: empty(300 * MIB))
            with tempfile.TemporaryDirectory() as folder:
                torch.cuda.memory._dump_snapshot(folder + "/snapshot.pickle")
                with open(folder + "/snapshot.pickle", "rb") as file: made = pickle.load(file)
            mapped = [e for e in made["device_traces"][0] if e["action"] == "segment_map"]
            known = sorted([(e["addr"], e["size"]) for e in mapped] + held)
            for block in (x, y):
                at = block.data_ptr()
                end = at + block.nbytes
                for address, size in known:
                    if address <= at < address + size: at = address + size
                assert at >= end, (known, end - at)
            assert mapped and not any(
                address < e["addr"] + e["size"] and e["addr"] < address + size
                for e in mapped for address, size in held), (mapped, held)
            trace = [e for e in made["device_traces"][0] if e not in mapped]
            assert [entry["action"] for entry in trace] == [
                "alloc", "alloc", "free_requested", "free_completed", "oom"], trace
            assert trace[0]["addr"] == x.data_ptr() and trace[0]["size"] == 5 * MIB
            assert trace[1]["stream"] == stream.cuda_stream
            assert trace[0]["frames"][0]["name"] == "empty", trace[0]["frames"]
            assert any(frame["name"] == "made_here" for frame in trace[0]["frames"])
            assert trace[4]["size"] == 300 * MIB and 0 < trace[4]["device_free"] < 256 * MIB
            times = [entry["time_us"] for entry in trace]
            assert times == sorted(times) and times[0] > 1e15
            for segment in made["segments"]:
                at = segment["address"]
                for block in segment["blocks"]:
                    assert block["address"] == at
                    at += block["size"]
                assert at == segment["address"] + segment["total_size"]
            live = {block["address"]: block for segment in made["segments"]
                    for block in segment["blocks"] if block["state"] == "active_allocated"}
            assert sorted(live) == sorted([x.data_ptr(), y.data_ptr()])
            assert live[x.data_ptr()]["requested_size"] == 5 * MIB
            assert any(frame["name"] == "made_here"
                       for frame in live[x.data_ptr()]["frames"])
            assert sum(s["allocated_size"] for s in made["segments"]) >= 5 * MIB + 2000
            # The oldest entries go first.
            for _ in range(10): empty(100)
            assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == 8
            torch.cuda.memory._record_memory_history(None)
            empty(100)
            assert torch.cuda.memory._snapshot()["device_traces"][0] == []
            assert len(torch.cuda.memory_snapshot()) == len(made["segments"])
            """.replace("kept = empty", "import tempfile\n            kept = empty", 1))

    def test_snapshot_file(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_code(f"""
                from pathlib import Path
                folder = Path({folder!r})
                """ """
                def load(name):
                    with open(folder / name, "rb") as file: return pickle.load(file)
                ht.snapshot(folder / "early")
                assert not torch.cuda.is_initialized() and load("early")["segments"] == []
                torch.cuda.memory._record_memory_history()
                x, y = empty(3 * MIB), empty(5 * MIB)
                del y
                ht.snapshot(str(folder / "made"))
                made = load("made")
                assert isinstance(made["allocator_settings"]["max_split_size"], int)
                assert [entry["action"] for entry in made["device_traces"][0]
                        if entry["action"] != "segment_map"] == [
                    "alloc", "alloc", "free_requested", "free_completed"]
                assert [(block["address"], block["requested_size"])
                        for segment in made["segments"] for block in segment["blocks"]
                        if block["state"] == "active_allocated"] == [(x.data_ptr(), 3 * MIB)]
                from hetmem import trace
                with open(folder / "made", "rb") as file: events = trace.convert(trace.load(file))
                assert [(event.action, event.size) for event in events] == [
                    ("allocate", 3 * MIB), ("allocate", 5 * MIB), ("free", 5 * MIB)], events
                assert events[0].ptr == x.data_ptr() and events[0].stream == 0
                fails(OSError, lambda: ht.snapshot(folder / "none" / "made"))
                (folder / "blocked").mkdir()
                fails(OSError, lambda: ht.snapshot(folder / "blocked"))
                assert sorted(os.listdir(folder)) == ["blocked", "early", "made"]
                """)

    def test_snapshot_at_oom(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_code(f"""
                folder = {folder!r}
                """ """
                def oom(size):
                    fails(torch.OutOfMemoryError, lambda: empty(size), "Tried to allocate")
                def sizes(name):
                    with open(name, "rb") as file: made = pickle.load(file)
                    return [entry["size"] for entry in made["device_traces"][0]
                            if entry["action"] == "oom"]
                os.chdir(folder)
                ht.snapshot_at_oom(None)
                ht.snapshot_at_oom("a")
                os.chdir("/")
                torch.cuda.memory._record_memory_history()
                x = empty(MIB)
                oom(300 * MIB)
                assert sizes(folder + "/a") == [300 * MIB]
                oom(400 * MIB)
                assert sizes(folder + "/a") == [300 * MIB, 400 * MIB]
                ht.snapshot_at_oom(folder + "/b")
                thread = threading.Thread(target=oom, args=(500 * MIB,))
                thread.start(); thread.join()
                assert len(sizes(folder + "/a")) == 2 and len(sizes(folder + "/b")) == 3
                ht.snapshot_at_oom(None)
                oom(600 * MIB)
                assert len(sizes(folder + "/b")) == 3
                # A file that cannot be written changes no error of the program.
                import contextlib, io
                ht.snapshot_at_oom(folder + "/none/a")
                with contextlib.redirect_stderr(io.StringIO()) as text: oom(700 * MIB)
                assert text.getvalue().count("\\n") == 1 and "no snapshot in" in text.getvalue()
                assert sorted(os.listdir(folder)) == ["a", "b"]
                """)

    def test_documented(self):
        """The blocks of Documentation/python.md that test_doc.py has no PyTorch for."""
        found = list(test_doc.python("python", test_doc.FULL))
        self.assertEqual(len(found), 4)
        with tempfile.TemporaryDirectory() as folder:
            for code, expected in found:
                result = tap.child(START + f"os.chdir({folder!r})\n" + code,
                                   "-Xfaulthandler", "-Wdefault", **full_environment())
                self.assertEqual((result.stdout, result.stderr, result.returncode),
                                 (expected, "", 0))
            self.assertEqual(os.listdir(folder), ["snapshot.pickle"])

    def test_spill_block(self):
        self.run_before("""
            source = torch.arange(float(5 * MIB))
            with ht.spill("100M", "1G", movable="2M", mode="full"):
                tensors = [source.cuda() for _ in range(8)]
                assert ht.resource().stats().reserved <= 100 * MIB
            tensors.append(source.cuda())
            assert ht.resource().stats().reserved > 100 * MIB
            with ht.spill("60M"):
                tensors.append(source.cuda())
                assert ht.resource().stats().reserved <= 60 * MIB
            for tensor in tensors: ht.move_in(tensor)
            assert ht.resource().stats().spilled == 0
            assert all(torch.equal(tensor.cpu(), source) for tensor in tensors)
            """)

    def test_spill(self):
        self.run_before("""
            assert ht.spill("100M", "1G", movable="2M", mode="full") == "full"
            source = torch.arange(float(5 * MIB))
            tensors = [source.cuda() for _ in range(8)]
            assert ht.resource().stats().spilled >= 60 * MIB
            assert torch.cuda.memory_allocated() == 160 * MIB
            view = tensors[0][1000:]
            for move in (ht.move_out, ht.move_in, ht.move_out):
                move(view)
                assert all(torch.equal(tensor.cpu(), source) for tensor in tensors)
            ht.priority(view, 3)
            side = torch.cuda.Stream()
            tensors[1].record_stream(side)
            error = fails(hetmem.HetmemError, lambda: ht.move_out(tensors[1]), "stream")
            assert error.errno == errno.EBUSY
            fails(ValueError, lambda: ht.move_out(source), "on cpu")
            fails(ValueError, lambda: ht.move_out(empty(0)), "no memory")
            """)

    def test_record_stream(self):
        """The soft driver's check mode ends the process where memory is reused too early."""
        self.run_code("""
            side = torch.cuda.Stream()
            source = torch.arange(float(MIB))
            for _ in range(20):
                batch = source.cuda()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    used = batch.clone()
                batch.record_stream(side)
                batch[5:].record_stream(side)
                del batch
                again = torch.zeros(MIB).cuda()
                with torch.cuda.stream(side):
                    assert torch.equal(used.cpu(), source)
            # Memory that is not the allocator's is not recorded.
            ctypes_memory = torch.empty(10).pin_memory()
            """)

    def test_regions(self):
        """As torch_memory_saver and the sleep of vLLM use an allocator: by tags."""
        self.run_code("""
            def bytes_of(tensor): return bytes(tensor.cpu().tolist())
            def make(size, seed):
                made = torch.empty(size, dtype=torch.uint8, device="cuda")
                made.copy_(torch.arange(size, dtype=torch.int32).mul_(seed).to(torch.uint8))
                return made
            with ht.region("weights"):
                weights = [make(3 * MIB, 3), make(700, 5)]
                with ht.region("kv_cache", scratch=True):
                    cache = make(20 * MIB, 1)
                # The outer tag is back.
                weights.append(make(5 * MIB, 7))
            other = make(6 * MIB, 9)
            before, addresses = [w.cpu() for w in weights], [w.data_ptr() for w in weights]
            held = ht.stats().reserved
            fails(hetmem.HetmemError, lambda: ht.parked(weights[0]), "is awake")

            ht.sleep("kv_cache")
            assert ht.stats().reserved <= held - 20 * MIB, ht.stats()
            assert ht.stats().parked == 0
            # Others go on, and the tag that sleeps says so.
            assert torch.equal(make(6 * MIB, 9).cpu(), other.cpu())
            ht.sleep("weights")
            assert 8 * MIB < ht.stats().parked <= 10 * MIB, ht.stats().parked
            with ht.region("weights"):
                error = fails(RuntimeError, lambda: make(1, 1), "asleep")
                assert not isinstance(error, torch.OutOfMemoryError)
            # A backup is read while they sleep, with strides and offsets.
            for tensor, was in zip(weights, before):
                assert torch.equal(ht.parked(tensor), was)
            matrix, kept = weights[0][4:4 + 999 * 7].view(999, 7).t(), before[0]
            kept = kept[4:4 + 999 * 7].view(999, 7).t()
            assert ht.parked(matrix).stride() == kept.stride()
            assert torch.equal(ht.parked(matrix), kept)
            assert ht.parked(weights[0][:0]).shape == (0,)
            fails(hetmem.HetmemError, lambda: ht.parked(cache), "without its contents")
            fails(hetmem.HetmemError, lambda: ht.parked(other), "is awake")

            # Twice is once. What nothing has does nothing.
            ht.sleep("weights"); ht.sleep("nobody"); ht.wake("nobody")
            ht.wake("weights")
            assert all(torch.equal(w.cpu(), b) for w, b in zip(weights, before))
            assert [w.data_ptr() for w in weights] == addresses
            ht.wake("kv_cache"); ht.wake("kv_cache")
            cache.copy_(torch.ones(20 * MIB, dtype=torch.uint8))
            assert cache.cpu().sum().item() == 20 * MIB

            # Everything sleeps, and one tag after the other wakes.
            ht.sleep()
            assert ht.stats().reserved == 0
            ht.wake("weights")
            assert torch.equal(weights[2].cpu(), before[2])
            ht.sleep("weights", keep=False)
            assert ht.stats().reserved == 0
            ht.wake()
            assert torch.equal(other.cpu(), make(6 * MIB, 9).cpu())
            assert stats("allocated_bytes.all.current") == torch.cuda.memory_allocated()
            del weights, cache, other, tensor, matrix, error
            gc.collect(); torch.cuda.empty_cache()
            assert ht.stats().live == 0 and torch.cuda.memory_allocated() == 0
            assert ht.stats().reserved == 0 == torch.cuda.memory_reserved()
            """)

    def test_regions_end(self):
        """By errors, in other threads, within pools of graphs and at the limit."""
        self.run_code("""
            class Odd(Exception): pass
            def odd():
                with ht.region("a"):
                    with ht.region("b"): raise Odd
            fails(Odd, odd)
            x = empty(MIB)
            ht.sleep("a"); ht.sleep("b")
            x.cpu(); y = empty(MIB)
            ht.wake()

            for tag in "", "x" * 32:
                fails(hetmem.HetmemError, lambda: ht.region(tag).__enter__(), "tag")
            fails(ValueError, lambda: ht.region("a" + chr(0)).__enter__(), "NUL")
            fails(TypeError, lambda: ht.region(7).__enter__(), "str")

            @ht.region("weights")
            def made(): return empty(4 * MIB)
            seen = []
            def thread():
                seen.append(empty(MIB))
                with ht.region("kv"): seen.append(empty(3 * MIB))
                seen.append(empty(MIB))
            with ht.region("weights"):
                t = threading.Thread(target=thread)
                t.start(); t.join()
                seen.append(empty(2 * MIB))
            seen.append(made())
            before = ht.stats().reserved
            ht.sleep("kv")
            assert 3 * MIB <= ht.stats().parked <= 4 * MIB, ht.stats().parked
            ht.sleep("weights")
            assert 9 * MIB <= ht.stats().parked <= 12 * MIB, ht.stats().parked
            seen[0].cpu(), seen[2].cpu()
            ht.wake()

            # Blocks of a graph's pool have tags, too.
            graph, s = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            static = empty(MIB)
            with torch.cuda.graph(graph):
                with ht.region("graph"):
                    inside = empty(2 * MIB)
                    inside.copy_(inside)
            graph.replay(); torch.cuda.synchronize()
            at = inside.data_ptr()
            ht.sleep("graph")
            assert 2 * MIB <= ht.stats().parked <= 4 * MIB, ht.stats().parked
            ht.wake("graph")
            graph.replay(); torch.cuda.synchronize()
            assert inside.data_ptr() == at
            del inside, graph

            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool), ht.region("pooled"):
                pooled = empty(2 * MIB)
            ht.sleep("pooled")
            assert 2 * MIB <= ht.stats().parked <= 4 * MIB, ht.stats().parked
            ht.wake("pooled")
            del pooled, pool

            # What one tag has free is room for another, and the limit is one.
            del x, y, static, seen
            with ht.region("a"): held = empty(150 * MIB)
            with ht.region("b"):
                fails(torch.OutOfMemoryError, lambda: empty(100 * MIB), "at most")
                del held
                held = empty(150 * MIB)
            del held
            # A limit without room is no reason for a region to fail.
            held = empty(200 * MIB)
            with ht.region("late"):
                fails(torch.OutOfMemoryError, lambda: empty(1))
            del held
            with ht.region("late"): empty(1)
            """)

    def test_regions_elsewhere(self):
        self.run_before("""
            fails(hetmem.HetmemError, lambda: ht.region("a").__enter__(), "enable()")
            """)
        self.run_before("""
            assert ht.enable(SPEC, mode="plain") == "plain"
            with ht.region("a"): x = torch.arange(1000).cuda()
            y = torch.arange(1000).cuda()
            ht.sleep("a")
            assert ht.stats().parked and torch.equal(ht.parked(x), torch.arange(1000))
            assert torch.equal(y.cpu(), torch.arange(1000))
            ht.wake("a")
            assert torch.equal(x.cpu(), torch.arange(1000))
            """)
        self.run_before("""
            ht.enable(SPEC, mode="full")
            error = fails(hetmem.HetmemError, lambda: ht.region("a").__enter__(), "tag")
            assert error.errno == errno.EOPNOTSUPP
            empty(MIB)
            """, SPEC="pool(device)")
        # The resource of a device that nobody uses is not opened.
        self.run_code("""
            with torch.cuda.device(1), ht.region("a"): x = torch.arange(1000).cuda()
            ht.sleep("a")
            assert 8000 <= ht.stats(1).parked <= 2 * MIB, ht.stats(1)
            assert torch.equal(ht.parked(x), torch.arange(1000))
            ht.wake("a")
            assert torch.equal(x.cpu(), torch.arange(1000))
            """, HETMEM_SOFT_DEVICES="3")

    def test_graphs(self):
        self.run_code("""
            source = torch.arange(float(MIB)).cuda()
            graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                inner = torch.empty(MIB, device="cuda").copy_(source)
                out = inner.clone()
                del inner
            pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
            assert tuple(graph.pool()) in pools and (0, 0) in pools, pools
            with torch.cuda.graph(second, pool=graph.pool()):
                late = out.clone()
            assert second.pool() == graph.pool()
            # Others never get what a graph uses.
            others = [torch.full((MIB,), 7.0).cuda() for _ in range(10)]
            for value in (1, 2):
                source.copy_(torch.full((MIB,), float(value)))
                graph.replay()
                second.replay()
                torch.cuda.synchronize()
                assert (late.cpu() == value).all() and (out.cpu() == value).all()
            assert all((other.cpu() == 7).all() for other in others)
            held = torch.cuda.memory_reserved()
            del out, late, graph, second, others
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() < held
            assert {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()} \\
                == {(0, 0)}
            # A capture that fails leaves an allocator that works.
            def wrong():
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    empty(500 * MIB)
            fails(torch.OutOfMemoryError, wrong)
            assert torch.equal(torch.arange(9.).cuda().cpu(), torch.arange(9.))
            """)

    THROWS = """
        import faulthandler
        faulthandler.dump_traceback_later(300, exit=True)  # time: only a hang takes it
        fail = ctypes.c_int.in_dll(ctypes.CDLL("libcudart.so.13"), "fail_capture_info")
        held = [empty(size) for size in (1000, 3 * MIB, 7 * MIB)]
        for turn, size in enumerate((1000, 5 * MIB, 70_000)):
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                graph.capture_begin()
                x = empty(size)
                fail.value = 1
                with torch.cuda.stream(torch.cuda.default_stream()):
                    error = fails(RuntimeError, lambda: empty(size))
                    assert not isinstance(error, torch.OutOfMemoryError), error
                    # A free goes on.
                    held.pop()
                fail.value = 0
                y = empty(size)
                graph.capture_end()
            assert x.data_ptr() != y.data_ptr()
            del x, y, graph
        assert torch.cuda.memory_allocated() == 0
        z = torch.arange(9.).cuda()
        assert torch.equal(z.cpu(), torch.arange(9.))
        """

    def test_filter_throws(self):
        """An exception of PyTorch's filter goes to the program, as natively."""
        self.run_before(self.THROWS)
        self.run_code(self.THROWS)

    def test_graph_trees(self):
        """What torch.compile(mode="reduce-overhead") calls."""
        self.run_code("""
            C = torch._C
            pool = torch.cuda.graph_pool_handle()
            stream = torch.cuda.Stream()
            def capture(work):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream): made = work()
                return graph, made
            source = torch.arange(1000.).cuda()
            first, (a, b) = capture(lambda: (source.clone(), source.clone()))
            address = a.data_ptr()
            live = [a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()]
            assert C._cuda_checkPoolLiveAllocations(0, pool, set(live))
            assert not C._cuda_checkPoolLiveAllocations(0, pool, {live[0]})
            assert not C._cuda_checkPoolLiveAllocations(0, pool, {live[0], live[1], 4096})
            saved = C._cuda_getCheckpointState(0, pool)
            del a
            second, c = capture(lambda: source[:100].clone())
            allocated = torch.cuda.memory_allocated()
            # c goes, although its tensor lives; the memory of a comes back.
            storage = C._construct_CUDA_Tensor_From_Storage_And_Metadata
            metadata = {"nbytes": 4000, "data_ptr": address, "size": (1000,), "stride": (1,),
                        "dtype": torch.float32, "device": torch.device("cuda", 0),
                        "storage_offset": 0}
            def alias(address):
                return storage({**metadata, "data_ptr": address},
                               C._construct_storage_from_data_pointer(
                                   address, torch.device("cuda", 0), 4000))
            again, kept = alias(address), alias(b.data_ptr())
            C._cuda_setCheckpointPoolState(
                0, saved, [t.untyped_storage()._cdata for t in (b, c)],
                [t.untyped_storage()._cdata for t in (again, kept)])
            assert C._cuda_checkPoolLiveAllocations(0, pool, set(live))
            assert torch.cuda.memory_allocated() == allocated - 512 + 4096
            # Tensors that are stale free nothing any more.
            del b, c
            assert C._cuda_checkPoolLiveAllocations(0, pool, set(live))
            del again
            assert C._cuda_checkPoolLiveAllocations(0, pool, {live[1]})
            del kept
            assert C._cuda_checkPoolLiveAllocations(0, pool, set())
            first.replay(); torch.cuda.synchronize()
            fails(RuntimeError, lambda: C._cuda_checkPoolLiveAllocations(0, (0, 99), set()),
                  "no such pool")
            """)

    def test_mem_pool(self):
        self.run_code("""
            pool = torch.cuda.MemPool()
            assert pool.use_count() == 1 and pool.snapshot() == []
            with torch.cuda.use_mem_pool(pool):
                assert pool.use_count() == 2
                inside = empty(3 * MIB)
            outside = empty(3 * MIB)
            assert pool.use_count() == 1
            segments = pool.snapshot()
            assert [tuple(s["segment_pool_id"]) for s in segments] == [pool.id]
            assert sum(s["allocated_size"] for s in segments) == 3 * MIB
            del inside
            more = empty(3 * MIB)
            assert sum(s["allocated_size"] for s in pool.snapshot()) == 0
            # A thread's pool is the thread's.
            def other(): made.append(empty(MIB))
            made = []
            with torch.cuda.use_mem_pool(pool):
                thread = threading.Thread(target=other)
                thread.start(); thread.join()
            assert sum(s["allocated_size"] for s in pool.snapshot()) == 0
            with torch.cuda.use_mem_pool(pool): kept = empty(2 * MIB)
            del pool
            kept.copy_(torch.ones(2 * MIB, dtype=torch.uint8))
            assert (kept.cpu() == 1).all()
            fails(hetmem.HetmemError, ht.pool, "torch.cuda.MemPool")
            """)

    LIMITED = """
        # 200 of 256 MiB, natively, too.
        torch.cuda.set_per_process_memory_fraction(200 / 256)
        counters = ctypes.CDLL(HELPER)
        def count(name): return ctypes.c_long.in_dll(counters, name).value
        given = torch.cuda.memory.CUDAPluggableAllocator(HELPER, "counted_alloc", "counted_free")
        def within(pool, *sizes):
            with torch.cuda.use_mem_pool(pool): return [empty(size) for size in sizes]
        def segments(pool):
            return sorted(len(s["blocks"]) for s in pool.snapshot())
        """

    def equal(self, code, **environment):
        """@code succeeds natively, and in full mode."""
        code = tap.textwrap.dedent(self.LIMITED).replace("HELPER", repr(helper())) + \
            tap.textwrap.dedent(code)
        self.run_before(code, **environment)
        self.run_code(code, **environment)

    def test_pool_at_oom(self):
        """use_on_oom=True: what is free in the pool serves others, when there is no more."""
        self.equal("""
            for size in (80 * MIB, 33 * MIB + 512):
                unused, used = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
                full = empty(200 * MIB - 2 * 82 * MIB)
                other = within(unused, 80 * MIB)
                mine = within(used, 80 * MIB)
                address = mine[0].data_ptr()
                ooms = stats("num_ooms")
                fails(torch.OutOfMemoryError, lambda: empty(size))
                del mine, other
                first = empty(size - 20 * MIB)
                assert first.data_ptr() == address
                fails(torch.OutOfMemoryError, lambda: empty(79 * MIB))
                # One that is in a pool has its own only.
                with torch.cuda.use_mem_pool(unused):
                    fails(torch.OutOfMemoryError, lambda: empty(90 * MIB))
                del first
                again = empty(70 * MIB)
                assert again.data_ptr() == address and stats("num_ooms") == ooms + 3
                del used, unused, again, full
                torch.cuda.empty_cache()
                assert torch.cuda.memory_reserved() == 0
            """)

    def test_pool_without_splits(self):
        """no_split=True: a segment has one block."""
        self.equal("""
            torch.cuda.empty_cache()
            pool = torch.cuda.MemPool(no_split=True)
            kept = empty(3 * MIB)
            made = within(pool, 1000, MIB, 3 * MIB, 5 * MIB + 3, 30 * MIB, 7)
            assert segments(pool) == [1] * 6
            assert all(s["total_size"] % (2 * MIB) == 0 for s in pool.snapshot())
            large, small = made[4].data_ptr(), made[0].data_ptr()
            del made[4], made[0]
            more = within(pool, 25 * MIB, 600)
            assert [x.data_ptr() for x in more] == [large, small] and segments(pool) == [1] * 6
            torch.cuda.synchronize()
            del made, more, pool
            torch.cuda.empty_cache()
            assert torch.cuda.memory_allocated() == 3 * MIB
            assert torch.cuda.memory_reserved() < 30 * MIB
            graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool(no_split=True)
            source = torch.arange(5000.).cuda()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=pool.id):
                inner = source.clone(); out = inner.clone(); del inner
            others = [torch.full((5000,), 7.0).cuda() for _ in range(20)]
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out.cpu(), torch.arange(5000.)) and segments(pool) == [1, 1]
            """)

    def test_pool_with_an_allocator(self):
        self.equal("""
            torch.cuda.empty_cache()
            pool = torch.cuda.MemPool(given.allocator())
            assert pool.use_count() == 1 and count("allocs") == 0 == len(pool.snapshot())
            x = within(pool, MIB)
            assert count("allocs") == 1 and segments(pool) == [2]
            outside = empty(MIB)
            assert count("allocs") == 1
            x += within(pool, MIB)
            assert segments(pool) == [2]
            x += within(pool, MIB, 12 * MIB)
            assert count("allocs") == 3 and len(pool.snapshot()) == 3
            assert [tuple(s["segment_pool_id"]) for s in pool.snapshot()] == [pool.id] * 3
            assert torch.cuda.memory_allocated() == 16 * MIB
            assert torch.cuda.memory_reserved() >= count("bytes") + MIB
            # All of it is a tensor's that outlives the pool.
            side = torch.cuda.Stream()
            x[0].record_stream(side)
            source = torch.arange(MIB, dtype=torch.uint8)
            x[0].copy_(source); x[1][MIB // 2:].copy_(source[MIB // 2:])
            address = x[3].data_ptr()
            del x[3]
            assert within(pool, 12 * MIB)[0].data_ptr() == address and count("allocs") == 3
            torch.cuda.empty_cache()
            assert count("frees") == 0
            torch.cuda.synchronize()
            del x[2], pool
            assert count("frees") == 2
            assert torch.equal(x[0].cpu(), source)
            assert torch.equal(x[1].cpu()[MIB // 2:], source[MIB // 2:])
            del x
            torch.cuda.empty_cache()
            assert count("bytes") == 0 and count("frees") == 3
            assert torch.cuda.memory_allocated() == MIB
            # Both options; a pool in threads; a pool of a graph.
            pool = torch.cuda.MemPool(given.allocator(), no_split=True, use_on_oom=True)
            x = within(pool, 100, 3 * MIB, 100)
            assert segments(pool) == [1] * 3 and count("allocs") == 6
            del x
            made, turn = [], threading.Lock()
            def work(size):
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    for i in range(30):
                        # Natively one thread at a time begins a pool.
                        with turn: made.extend(within(pool, size + i))
                        made.pop(0)
            made += within(pool, *[100] * 4)
            threads = [threading.Thread(target=work, args=(n * 300_000,)) for n in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert len(made) == 4 and set(segments(pool)) == {1}
            made.clear()
            torch.cuda.synchronize()
            graph, source = torch.cuda.CUDAGraph(), torch.arange(1000.).cuda()
            torch.cuda.synchronize()
            shared = torch.cuda.MemPool(given.allocator())
            with torch.cuda.graph(graph, pool=shared.id): out = source.clone()
            del pool
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out.cpu(), torch.arange(1000.)) and count("bytes") > 0
            del graph, out, shared
            torch.cuda.empty_cache()
            assert count("bytes") == 0 and count("allocs") == count("frees")
            # An allocator that has nothing.
            fail = ctypes.c_int.in_dll(counters, "fail")
            pool = torch.cuda.MemPool(given.allocator())
            for failure in (1, 0):
                fail.value = failure
                if failure: fails(torch.OutOfMemoryError, lambda: within(pool, MIB), "memory")
                else: x = within(pool, MIB)
            """)
        # One that allocates from this very allocator, as t_pools of a program might.
        self.run_code("""
            own = torch.cuda.memory.CUDAPluggableAllocator(
                os.environ["HETMEM_LIBRARY"], "hetmem_torch_alloc", "hetmem_torch_free")
            pool = torch.cuda.MemPool(own.allocator())
            with torch.cuda.use_mem_pool(pool): x = [empty(5 * MIB) for _ in range(4)]
            assert ht.resource().stats().live == 4 and torch.cuda.memory_allocated() == 20 * MIB
            x.clear()
            del pool
            torch.cuda.empty_cache()
            assert ht.resource().stats().live == 0 == torch.cuda.memory_reserved()
            # A forked child drops what it inherits.
            pool = torch.cuda.MemPool(own.allocator())
            with torch.cuda.use_mem_pool(pool): x = empty(5 * MIB)
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            else:
                del x, pool
                os._exit(0)
            sys.keep = x, pool
            """)

    def test_end_of_a_mem_pool(self):
        """Its memory goes to the driver; what others cached stays, as natively."""
        code = """
            from itertools import product
            def reserved(): return torch.cuda.memory_reserved()
            for cached, size in product((80, 7), (1000, 4 * MIB, 90 * MIB)):
                torch.cuda.empty_cache()
                kept = empty(3 * MIB)
                x = empty(cached * MIB)
                del x
                before = reserved()
                pool = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(pool):
                    y, z = empty(size), empty(size // 2)
                    del z
                    side = torch.cuda.Stream()
                    y.record_stream(side)
                del y, pool
                assert reserved() == before, (cached, size, before, reserved())
                # A tensor that outlives its pool keeps its memory.
                pool = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(pool): y = empty(MIB)
                del pool
                y.copy_(torch.ones(MIB, dtype=torch.uint8))
                others = [empty(MIB) for _ in range(20)]
                for other in others: other.copy_(torch.zeros(MIB, dtype=torch.uint8))
                assert (y.cpu() == 1).all()
                del y, others, kept, other
            # The end of a graph leaves all of it cached.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph): z = empty(4 * MIB)
            x = empty(80 * MIB)
            del x
            before = reserved()
            del z, graph
            assert reserved() == before
            torch.cuda.empty_cache()
            assert reserved() == 0
            """
        self.run_before(code)
        self.run_code(code)
        # A graph that shares a pool keeps its memory after the pool's end.
        self.run_code("""
            source = torch.arange(float(MIB)).cuda()
            pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool.id): out = source.clone()
            del pool
            torch.cuda.empty_cache()
            others = [torch.full((MIB,), 7.0).cuda() for _ in range(10)]
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out.cpu(), source.cpu())
            assert all((other.cpu() == 7).all() for other in others)
            """)
        self.run_code("""
            torch.cuda.memory._record_memory_history()
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool): x = empty(4 * MIB)
            range_ = x.data_ptr(), x.data_ptr() + 4 * MIB
            del x, pool
            trace = torch.cuda.memory._snapshot()["device_traces"][0]
            given = [entry for entry in trace if entry["action"] == "segment_unmap"]
            assert sum(entry["size"] for entry in given) == 4 * MIB, given
            assert all(range_[0] <= entry["addr"] < range_[1] for entry in given)
            """)

    def test_peers(self):
        self.run_code("""
            x = torch.arange(1000.).to("cuda:0")
            y = x.to("cuda:1")
            assert torch.equal(y.cpu(), torch.arange(1000.))
            assert y.device.index == 1
            z = torch.empty(1000, device="cuda:0").copy_(y)
            assert torch.equal(z.cpu(), torch.arange(1000.))
            """, SPEC="pool(vmm(peers=0/1))", HETMEM_SOFT_DEVICES="2")
        self.run_code("""
            x = torch.arange(1000.).to("cuda:0")
            # Before a kernel reads what is not mapped for its device.
            for _ in range(2):
                fails(RuntimeError, lambda: x.to("cuda:1"), "peers=0/1")
            assert torch.equal(x.cpu().to("cuda:1").cpu(), torch.arange(1000.))
            """, SPEC="pool(vmm)", HETMEM_SOFT_DEVICES="2")

    def test_cache_info(self):
        """What torch.backends.cudnn.benchmark asks, by the C++ virtual."""
        self.run_code("""
            x = empty(20 * MIB)
            del x
            library = ctypes.CDLL(HELPER)
            library.cache_info.restype = ctypes.c_size_t
            assert 20 * MIB <= library.cache_info(0, 1) <= 256 * MIB
            assert library.cache_info(0, 0) >= 200 * MIB
            assert library.history() == 0
            """.replace("HELPER", repr(helper())))

    def test_other_processes(self):
        self.run_code("""
            # Any process may take the memory, as where kernel.yama.ptrace_scope is 0.
            ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_long(-1), 0, 0, 0)
            x = torch.arange(1000.).cuda()[10:]
            shared = x.untyped_storage()._share_cuda_()
            assert b"hetmem %d " % os.getpid() in shared[1], shared
            again = x.untyped_storage()._share_cuda_()
            assert (again[1], again[3]) == (shared[1], shared[3])
            code = CHILD + '''
            ht.enable(SPEC, mode="full")
            torch.cuda.init()
            both = pickle.loads(bytes.fromhex(sys.argv[1]))
            shared = both[0]
            made = [torch.UntypedStorage._new_shared_cuda(*one) for one in both]
            tensor, same = [torch.empty(0, device="cuda").set_(one, 10, (990,))
                            for one in made]
            assert torch.equal(tensor.cpu(), torch.arange(10., 1000.)), tensor
            tensor.copy_(torch.full((990,), 5.0))
            torch.cuda.synchronize()
            assert (same.cpu() == 5).all()
            del made, tensor, same
            wrong = list(shared)
            wrong[1] = shared[1].replace(b"hetmem", b"other.")
            fails(RuntimeError, lambda: torch.UntypedStorage._new_shared_cuda(*wrong))
            '''
            import subprocess, textwrap
            subprocess.run([sys.executable, "-c", textwrap.dedent(code),
                            pickle.dumps([shared, again]).hex()], check=True)
            assert (x.cpu() == 5).all()
            # Its files are closed with it.
            files = len(os.listdir("/proc/self/fd"))
            del x
            torch.cuda.ipc_collect()
            assert len(os.listdir("/proc/self/fd")) < files
            """.replace("CHILD", repr(START + 'SPEC = "pool(vmm,max=64M)"\n')),
            SPEC="pool(vmm(export=fd),max=64M)")
        self.run_code("""
            x = torch.arange(1000.).cuda()
            for _ in range(2):
                fails(RuntimeError, x.untyped_storage()._share_cuda_, "export=fd")
            """)

    def test_import_enables(self):
        """HETMEM_TORCH in the environment."""
        for mode, backend in (("full", "hetmem"), ("auto", "hetmem"), ("plain", "pluggable"),
                              ("", "native")):
            self.run_before(f"""
                assert torch.cuda.memory.get_allocator_backend() == {backend!r}
                assert not torch.cuda.is_initialized()
                x = torch.arange(1000.).cuda()
                assert torch.equal(x.cpu(), torch.arange(1000.))
                if {bool(mode)}: assert ht.enable() and ht.resource().spec == SPEC
                """, HETMEM_TORCH=mode, HETMEM_RESOURCE="pool(vmm,max=200M)")
        # Nothing breaks the import.
        for mode, spec in (("fast", "device-pool"), ("full", "pool(vm)")):
            result = tap.child(
                START + "assert torch.cuda.memory.get_allocator_backend() == 'native'\n"
                "assert ht.enabled() is None; torch.empty(10, device='cuda')",
                **full_environment(), HETMEM_TORCH=mode, HETMEM_RESOURCE=spec)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"RuntimeWarning: HETMEM_TORCH={mode}", result.stderr)

    SPAWN = """
        import sys, torch, torch.multiprocessing as mp
        def child(sent, answers):
            tensor = sent.get()
            answers.put((torch.cuda.memory.get_allocator_backend(), tensor.cpu().sum().item()))
            del tensor
            sent.get()
        if __name__ == "__main__":
            context = mp.get_context("spawn")
            sent, answers = context.Queue(), context.Queue()
            process = context.Process(target=child, args=(sent, answers))
            process.start()
            tensor = torch.ones(70_000).cuda()
            sent.put(tensor)
            print(*answers.get())
            sent.put(None)
            process.join()
            sys.exit(process.exitcode)
        """

    WORKER = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        tensor = torch.ones(1000).cuda().cpu()
        dist.all_reduce(tensor)
        with open(f"{os.environ['OUT']}.{dist.get_rank()}", "w") as file:
            print(torch.cuda.memory.get_allocator_backend(), tensor.sum().item(), file=file)
        dist.destroy_process_group()
        """

    def run_script(self, script, *command, **environment):
        """The output of @command with the path of @script as its last argument."""
        with tempfile.TemporaryDirectory() as folder:
            given = full_environment()
            # The stand-ins lack what PyTorch never calls here, also in children.
            for name, text in (("script.py", tap.textwrap.dedent(script)), (
                    "sitecustomize.py", "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            given["PYTHONPATH"] = os.pathsep.join([folder, given["PYTHONPATH"]])
            out = os.path.join(folder, "out")
            result = subprocess.run(
                [sys.executable, *command, os.path.join(folder, "script.py")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                env={**os.environ, **given, "OUT": out, **environment},
                timeout=900)  # time: only a child that hangs takes it
            self.assertEqual(result.returncode, 0, result.stderr)
            written = []
            for name in sorted(os.listdir(folder)):
                if name.startswith("out."):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        written.append(file.read())
            return result.stdout + "".join(written)

    def test_spawned_children(self):
        """They have hetmem, and take tensors of their parent."""
        spec = "pool(vmm(export=fd),max=64M)"
        self.assertEqual(
            self.run_script(self.SPAWN, "-m", "hetmem.torch", "--spec", spec, "--mode", "full"),
            "hetmem 70000.0\n")
        self.assertEqual(
            self.run_script(self.SPAWN, HETMEM_TORCH="full", HETMEM_RESOURCE=spec),
            "hetmem 70000.0\n")

    def test_torchrun(self):
        self.assertEqual(
            self.run_script(self.WORKER, "-m", "torch.distributed.run", "--standalone",
                            "--nproc-per-node", "2", HETMEM_TORCH="full", OMP_NUM_THREADS="1",
                            HETMEM_RESOURCE="pool(vmm,max=64M)"),
            "hetmem 2000.0\n" * 2)

    def test_threads(self):
        self.run_code("""
            def work():
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    for i in range(300):
                        kept.append(empty(1000 * (i % 50 + 1)))
                        if len(kept) > 20: kept.pop()
            kept = []
            threads = [threading.Thread(target=work) for _ in range(4)]
            torch.cuda.memory._record_memory_history()
            for thread in threads: thread.start()
            for _ in range(5): torch.cuda.memory._snapshot(); torch.cuda.memory_stats()
            for thread in threads: thread.join()
            kept.clear()
            gc.collect()
            assert torch.cuda.memory_allocated() == 0 == ht.resource().stats().live
            """)

    def test_too_late_and_twice(self):
        self.run_before("""
            torch.empty(10, device="cuda")
            error = fails(hetmem.HetmemError, lambda: ht.enable(mode="full"), "before the first")
            assert error.errno == errno.EBUSY and ht.enabled() is None
            """)
        self.run_code("""
            error = fails(hetmem.HetmemError, lambda: ht.enable("pool(vmm)"),
                          "enabled already, in mode full")
            assert error.errno == errno.EALREADY
            x = empty(10)
            assert ht.enable() == "full" == ht.enable(SPEC, mode="full")
            del x
            assert ht.resource().stats().live == 0
            """)

    def test_wrong_spec(self):
        """Refused before anything is compiled or changed."""
        with tempfile.TemporaryDirectory() as folder:
            self.run_before("""
                fails(hetmem.HetmemError, lambda: ht.enable("pool(vm)", mode="full"), "spec")
                assert ht.enabled() is None and not os.listdir(os.environ["XDG_CACHE_HOME"])
                x = torch.empty(10, device="cuda")
                assert torch.cuda.memory.get_allocator_backend() == "native"
                """, XDG_CACHE_HOME=folder)

    def test_end_of_the_interpreter(self):
        self.run_code("""
            sys.keep = [empty(MIB) for _ in range(10)]
            tensor = empty(10); tensor.cycle = tensor
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool): sys.inside = empty(MIB)
            sys.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(sys.graph): sys.out = sys.keep[0].clone()
            torch.cuda.memory._record_memory_history()
            sys.more = empty(100)
            """)

    def test_fork(self):
        self.run_code("""
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            else:
                assert empty(MIB).numel() == MIB and ht.resource().stats().live == 0
            """)

    INHERITED = """
        torch.cuda.init()
        kept = [empty(size) for size in (1000, 5 * MIB, 70_000)]
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool): kept.append(empty(2 * MIB))
        done = threading.Event()
        def work():
            while not done.is_set(): empty(1000 + len(kept))
        threads = [threading.Thread(target=work) for _ in range(BUSY)]
        for thread in threads: thread.start()
        for _ in range(10):
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            else:
                del pool
                kept.clear()
                gc.collect()
                os._exit(0)
        class Set(torch.utils.data.Dataset):
            def __init__(self): self.inherited = empty(MIB)
            def __len__(self): return 6
            def __getitem__(self, i):
                self.inherited = None
                return torch.ones(2) * i
        loader = torch.utils.data.DataLoader(Set(), num_workers=2, multiprocessing_context="fork")
        assert sum(batch.sum().item() for batch in loader) == 30
        done.set()
        for thread in threads: thread.join()
        assert len(kept) == 4 and kept[1].cpu().numel() == 5 * MIB
        """

    def test_inherited_tensors(self):
        """A forked child and workers of a DataLoader drop them in silence, as natively."""
        # PyTorch's own allocator hangs if another thread has its lock at the fork.
        self.run_before(self.INHERITED.replace("BUSY", "0"))
        self.run_code(self.INHERITED.replace("BUSY", "2"))

    def test_options_of_pytorch(self):
        """PYTORCH_CUDA_ALLOC_CONF: what has no effect is named once."""
        code = """
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                for _ in range(3): ht.enable(SPEC, mode=MODE)
            texts = [str(w.message) for w in seen if "ALLOC_CONF" in str(w.message)]
            assert len(texts) == bool(NAMES), texts
            for name in NAMES: assert name in texts[0], texts
            for name in SILENT: assert not any(name in text for text in texts), texts
            x = empty(30 * MIB)
            """
        for conf, names, silent in (
                ("max_split_size_mb:64,garbage_collection_threshold:0.8",
                 ("max_split_size_mb", "garbage_collection_threshold (use max=", "decay="), ()),
                ("expandable_segments:True,backend:native", (), ("backend",)),
                ("pinned_use_cuda_host_register:True,pinned_num_register_threads:8", (), ()),
                ("roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:False",
                 ("roundup_power2_divisions", "expandable_segments"), ("256", ">")),
                ("", (), ())):
            for mode in ("full", "plain"):
                self.run_before(code.replace("NAMES", repr(names)).replace("SILENT", repr(silent))
                                .replace("MODE", repr(mode)), PYTORCH_CUDA_ALLOC_CONF=conf)

    def test_graphs_in_plain_mode(self):
        """What torch.compile(mode="reduce-overhead") calls: the error names the way out."""
        self.run_before("""
            warnings.simplefilter("ignore", DeprecationWarning)
            assert ht.enable(SPEC, mode="plain") == "plain"
            x = torch.arange(1000.).cuda()
            f = torch.compile(lambda x: x.clone(), backend="cudagraphs")
            with torch.no_grad():
                fails(RuntimeError, lambda: [f(x) for _ in range(3)], 'mode="full"',
                      "max-autotune-no-cudagraphs")
            assert torch.equal(x.clone().cpu(), torch.arange(1000.))
            """, TORCH_LOGS="-all")
        self.run_before("""
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                ht.enable(SPEC, mode="plain")
            assert [w for w in seen if 'mode="full"' in str(w.message)]
            """, TORCHINDUCTOR_CUDAGRAPHS="1")
        self.run_code("", TORCHINDUCTOR_CUDAGRAPHS="1")

    def test_auto(self):
        self.run_before("""
            assert ht.enable() == "full"
            """)
        # One that came with the package is taken before a compiler is looked for.
        with tempfile.TemporaryDirectory() as folder:
            self.run_before("""
                made = _torch_full.find(torch, False)._name
                os.environ["PATH"] = ""
                _torch_full._prebuilt = lambda torch: made
                assert ht.enable(mode="full") == "full"
                """, XDG_CACHE_HOME=folder)
            self.run_before("""
                torch.__version__ = "2.12.0+cu130"
                _torch_full._prebuilt = lambda torch: MADE
                os.environ["PATH"] = ""
                fails(hetmem.HetmemError, lambda: ht.enable(mode="full"), "not 2.12.0", "g++")
                """.replace("MADE", "sorted(__import__('glob').glob("
                            "os.environ['XDG_CACHE_HOME'] + '/hetmem/torch/*.so'))[0]"),
                XDG_CACHE_HOME=folder)
        # Without a compiler there is plain mode, which says why.
        with tempfile.TemporaryDirectory() as folder:
            self.run_before("""
                assert ht.enable() == "plain"
                assert "install g++" in ht.reason(), ht.reason()
                x = torch.arange(10.).cuda()
                fails(RuntimeError, lambda: torch.empty(1 << 40, device="cuda"),
                      "CUDA out of memory. hetmem: ")
                """, XDG_CACHE_HOME=folder, PATH="/nonexistent")
            self.run_before("""
                error = fails(hetmem.HetmemError, lambda: ht.enable(mode="full"), "g++")
                assert error.errno == errno.EOPNOTSUPP and ht.enabled() is None
                """, XDG_CACHE_HOME=folder, PATH="/nonexistent")
            self.run_before("""
                os.chmod(os.environ["XDG_CACHE_HOME"] + "/hetmem/torch", 0o777)
                assert ht.enable() == "plain" and "others can write" in ht.reason()
                """, XDG_CACHE_HOME=folder)

    def test_compiler_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            compiler = os.path.join(folder, "c++")
            with open(compiler, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\necho run >>"$0.runs"\necho "x.h:1: error: nothing works"\nexit 1\n')
            os.chmod(compiler, 0o755)
            for _ in range(2):
                self.run_before("""
                    assert ht.enable() == "plain" and "nothing works" in ht.reason()
                    """, XDG_CACHE_HOME=folder, CXX=compiler)
            # It is not run at each start, but where full mode is asked for.
            with open(compiler + ".runs", encoding="utf-8") as file:
                self.assertEqual(len(file.readlines()), 1)
            self.run_before("""
                fails(hetmem.HetmemError, lambda: ht.enable(mode="full"), "nothing works")
                """, XDG_CACHE_HOME=folder, CXX=compiler)
            with open(compiler + ".runs", encoding="utf-8") as file:
                self.assertEqual(len(file.readlines()), 2)

    def test_without_the_compilers_headers(self):
        """PyTorch's own dependencies lack crt/host_defines.h; the package has what is needed."""
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(SITE):
                os.symlink(os.path.join(SITE, name), os.path.join(folder, name))
            for up in ("nvidia", "nvidia/cu13", "nvidia/cu13/include"):
                path = os.path.join(folder, up)
                if os.path.islink(path):
                    os.unlink(path)
                os.mkdir(path)
                for name in os.listdir(os.path.join(SITE, up)):
                    if name not in ("crt", "cu13", "include"):
                        os.symlink(os.path.join(SITE, up, name), os.path.join(path, name))
            os.unlink(os.path.join(folder, "torch"))
            os.mkdir(os.path.join(folder, "torch"))
            for name in ("include", "lib"):
                os.symlink(os.path.join(SITE, "torch", name),
                           os.path.join(folder, "torch", name))
            self.run_before(f"""
                from hetmem import _torch_full
                torch.__file__ = {folder!r} + "/torch/__init__.py"
                os.environ.pop("CUDA_HOME", None)
                path = _torch_full.find(torch, True)._name
                assert path.startswith(os.environ["XDG_CACHE_HOME"]), path
                ctypes.CDLL(path)
                """, XDG_CACHE_HOME=folder)


def helper():
    """A library that calls what no Python function of PyTorch reaches."""
    path = os.path.join(CACHE, "helper.so")
    if not os.path.exists(path):
        source = path[:-2] + "cc"
        with open(source, "w", encoding="utf-8") as file:
            file.write("""
                #include <atomic>
                #include <map>
                #include <mutex>
                #include <c10/cuda/CUDACachingAllocator.h>
                namespace base = c10::cuda::CUDACachingAllocator;
                extern "C" std::size_t cache_info(int device, std::size_t at_least)
                {
                    base::get()->cacheInfo(device, &at_least);
                    return at_least;
                }
                extern "C" { std::atomic<long> allocs, frees, bytes; int fail; }
                static std::mutex lock;
                static std::map<void *, std::size_t> sizes;
                extern "C" void *counted_alloc(std::size_t size, int, void *)
                {
                    void *p;
                    if (fail || cudaMalloc(&p, size)) return nullptr;
                    std::lock_guard<std::mutex> guard(lock);
                    allocs++; bytes += size; sizes[p] = size;
                    return p;
                }
                extern "C" void counted_free(void *p, std::size_t, int, void *)
                {
                    {
                        std::lock_guard<std::mutex> guard(lock);
                        frees++; bytes -= sizes[p]; sizes.erase(p);
                    }
                    cudaFree(p);
                }
                extern "C" { long tracked[9]; }
                extern "C" void track()
                {
                    base::get()->attachAllocatorTraceTracker([](const base::TraceEntry &entry) {
                        tracked[entry.action_] += entry.size_;
                    });
                }
                extern "C" int history() { return base::get()->isHistoryEnabled(); }
                extern "C" void register_another()
                {
                    c10::SetAllocator(c10::kCUDA, c10::GetAllocator(c10::kCPU), 0);
                }
                """)
        subprocess.run(
            ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", "-w",
             "-isystem", f"{SITE}/torch/include", "-isystem", f"{SITE}/nvidia/cu13/include",
             "-o", path, source, f"{SITE}/torch/lib/libc10_cuda.so",
             f"{SITE}/torch/lib/libc10.so", f"{STAND_INS}/libcudart.so.13"], check=True)
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as CACHE:
        os.chmod(CACHE, 0o700)
        tap.main()
