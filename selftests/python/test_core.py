# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Libraries, resources and blocks over the soft driver."""

import ast
import contextlib
import copy
import ctypes
import errno
import gc
import importlib.metadata
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import weakref

import hetmem
import tap
from hetmem import _library

MIB = 1 << 20


@contextlib.contextmanager
def environment(**values):
    old = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Libraries(tap.Case):
    def test_driver(self):
        with hetmem.Library("soft") as library:
            self.assertEqual(library.driver, "soft")
            self.assertEqual(library.device_count, 1)
            device = library.device(0)
            self.assertEqual((device.vmm, device.total), (True, 256 * MIB))
            self.assertIn("device", [f.name for f in library.features() if f.available])
            self.assertTrue(all(f.reason for f in library.features()))
            self.assertEqual(len(library.features()), 9)
            self.assertIn("pool(vmm", library.explain("device-pool"))
            self.assertEqual(library.explain("pool(host)"), "")
        with self.assertRaises(ValueError):
            library.device(0)
        library.close()

    def test_errors(self):
        with self.assertRaises(hetmem.HetmemError) as caught:
            hetmem.Library("metal")
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.assertIn('no driver "metal"', caught.exception.strerror)
        with hetmem.Library("soft") as library:
            with self.assertRaises(hetmem.HetmemError) as caught:
                library.device(7)
            self.assertEqual(caught.exception.errno, errno.ENODEV)
            with self.assertRaises(hetmem.HetmemError) as caught:
                library.resource("stats(pool(vmm(device=0),mx=90%))")
            self.assertIn("pool has no parameter 'mx'", str(caught.exception))
            with self.assertRaises(hetmem.HetmemError) as caught:
                library.resource("device-pool(device=3)")
            self.assertEqual(caught.exception.errno, errno.ENODEV)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual(again.errno, errno.ENODEV)
        self.assertEqual(type(again), hetmem.HetmemError)

    def test_close_while_used(self):
        library = hetmem.Library("soft")
        resource = library.resource("device-pool")
        block = resource.alloc(MIB)
        library.close()
        self.assertTrue(resource.closed)
        for call in (resource.stats, resource.poll, block.free, resource.close,
                     lambda: library.resource()):
            self.assertRaises(ValueError, call)
        del block, resource

    def test_collected_without_close(self):
        library = hetmem.Library("soft")
        handle = weakref.ref(library._handle)
        resource = library.resource("device-pool")
        block = resource.alloc(MIB)
        del library, resource
        gc.collect()
        self.assertEqual(block.resource.stats().live, 1)
        del block
        gc.collect()
        self.assertIsNone(handle())

    def test_environment(self):
        with environment(HETMEM_RESOURCE="stats(pool(host))"):
            self.assertEqual(hetmem.resource().spec, "stats(pool(host))")
        with environment(HETMEM_RESOURCE="stats("):
            with self.assertRaises(hetmem.HetmemError) as caught:
                hetmem.resource()
            self.assertIn("HETMEM_RESOURCE", str(caught.exception))

    def test_library_that_cannot_be_loaded(self):
        with self.assertRaises(hetmem.HetmemError) as caught:
            _library.load("/nonexistent/libhetmem.so.0")
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertIn("HETMEM_LIBRARY", str(caught.exception))
        # libc has none of the functions: so does a library of an older version.
        with self.assertRaises(hetmem.HetmemError) as caught:
            _library.load("libc.so.6")
        self.assertEqual(caught.exception.errno, errno.ENOSYS)
        self.assertIn("older than the Python package", str(caught.exception))

    def test_import_needs_nothing(self):
        self.silent("import hetmem, sys; print(hetmem.__version__)\n"
                    "assert 'numpy' not in sys.modules",
                    hetmem.__version__ + "\n", HETMEM_LIBRARY="/nonexistent")

    def test_version(self):
        with open(f"{tap.TOP}/Makefile", encoding="utf-8") as file:
            found = re.search(r"^VERSION\s*= (\S+)", file.read(), re.MULTILINE)
        self.assertEqual(hetmem.__version__, found[1])
        if hetmem.__file__.startswith(tap.TOP):
            return
        self.assertEqual(importlib.metadata.version("hetmem"), found[1])


class Resources(tap.Case):
    def test_stats(self):
        with hetmem.resource("device-pool") as pool:
            block = pool.alloc(MIB)
            stats = pool.stats()
            self.assertEqual((stats.live, stats.requested, stats.allocs), (1, MIB, 1))
            self.assertGreaterEqual(stats.reserved, MIB)
            block.free()
            self.assertEqual(pool.stats().live, 0)
            self.assertGreaterEqual(pool.trim(), MIB)
            self.assertEqual(pool.stats().reserved, 0)
            pool.poll()

    def test_close_counts_blocks(self):
        pool = hetmem.resource("pool(host)")
        block = pool.alloc(100)
        self.assertEqual(pool.close(), 1)
        self.assertTrue(pool.closed)
        self.assertRaises(ValueError, pool.close)
        self.assertRaises(ValueError, block.memoryview)
        del block

    def test_block_lives_as_long_as_it_is_used(self):
        pool = hetmem.resource("pool(host)")
        block = pool.alloc(1000)
        view = block.memoryview()
        self.assertEqual(len(view), 1000)
        view[:3] = b"abc"
        part = view[1:3]
        del block, view
        self.assertEqual((bytes(part), pool.stats().live), (b"bc", 1))
        del part
        gc.collect()
        self.assertEqual(pool.stats().live, 0)

    def test_free_twice(self):
        pool = hetmem.resource("pool(host)")
        with pool.alloc(10) as block:
            block.free()
            self.assertRaises(ValueError, block.free)
        with pool.alloc(10) as block:
            self.assertEqual(pool.stats().live, 1)
        self.assertEqual(pool.stats().live, 0)
        self.assertIn("free", repr(block))

    def test_free_by_threads(self):
        """One of many threads that free a block does it."""
        pool = hetmem.resource("pool(host)")
        for _ in range(20):
            block, freed, start = pool.alloc(64), [], threading.Barrier(4)

            def free(block=block, freed=freed, start=start):
                start.wait()
                with contextlib.suppress(ValueError):
                    block.free()
                    freed.append(1)

            threads = [threading.Thread(target=free) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(freed), 1)
        self.assertEqual(pool.stats().frees, 20)

    def test_free_of_another_pointer(self):
        pool = hetmem.resource("pool(host)")
        with self.assertRaises(hetmem.HetmemError) as caught:
            pool.deallocate(0x1234)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        ptr = pool.allocate(100)
        self.assertRaises(hetmem.HetmemError, pool.deallocate, ptr, 101 * MIB)
        pool.deallocate(ptr, 100)

    def test_out_of_memory(self):
        pool = hetmem.resource("pool(vmm,max=4M)")
        with self.assertRaises(hetmem.OutOfMemoryError) as caught:
            pool.alloc(5 * MIB)
        for kind in (hetmem.HetmemError, MemoryError, OSError):
            self.assertIsInstance(caught.exception, kind)
        self.assertEqual(caught.exception.errno, errno.ENOMEM)
        self.assertIn("bytes", caught.exception.strerror)
        self.assertEqual(pool.stats().failed, 1)
        pool.set("max", "8M")
        pool.alloc(5 * MIB).free()
        self.assertRaises(hetmem.HetmemError, pool.set, "colour", "red")

    def test_bad_arguments(self):
        pool = hetmem.resource("pool(host)")
        self.assertRaises(ValueError, pool.alloc, -1)
        self.assertRaises(ValueError, pool.alloc, 1, align=-8)
        self.assertRaises(hetmem.HetmemError, pool.alloc, 1, align=3)
        self.assertRaises(ValueError, pool.alloc, 1, placement="moon")
        self.assertRaises(TypeError, pool.alloc, 1, object())
        self.assertRaises(TypeError, pool.alloc, 1.5)
        # C has 64 bits: what is left of 2**65 is 0.
        for size in (1 << 64, 1 << 65, (1 << 64) + 100):
            for call in (pool.alloc, pool.trim, lambda n: pool.alloc(8, align=n),
                         lambda n: pool.alloc(8, reserve=n), lambda n: pool.alloc(8, n),
                         lambda n: pool.deallocate(n), lambda n: pool.deallocate(8, n),
                         lambda n: pool.record(n, 0), pool.retire):
                self.assertRaises(OverflowError, call, size)
        self.assertRaises(hetmem.OutOfMemoryError, pool.alloc, (1 << 64) - 1)
        self.assertEqual(pool.stats().live, 0)
        self.assertEqual(pool.alloc(0).size, 0)

    def test_nul(self):
        """A string of C ends there; nothing is done for what is before."""
        pool = hetmem.resource("pool(host,max=8M)")
        for call in (hetmem.resource, hetmem.default().explain, pool.sleep, pool.wake,
                     lambda text: pool.set("max", text), lambda text: pool.set(text, "1M"),
                     lambda text: hetmem.Library(text), lambda text: hetmem.Library("soft", text)):
            with self.assertRaises(ValueError) as caught:
                call("4M\0x")
            self.assertIn("NUL", str(caught.exception))
        for call in (hetmem.resource, hetmem.default().explain, pool.sleep, pool.wake):
            with self.assertRaisesRegex(TypeError, "bytes, not str"):
                call(b"4M")
        pool.alloc(6 * MIB).free()

    def test_streams(self):
        class Torch:
            cuda_stream = 1

        class CuPy:
            ptr = 1

        class Core:
            def __cuda_stream__(self):
                return (0, 1)

        pool = hetmem.resource("device-pool")
        for stream in (0, 1, hetmem.Stream.LEGACY, Torch(), CuPy(), Core()):
            block = pool.alloc(100, stream)
            block.record(hetmem.Stream.PER_THREAD)
            block.free(stream)
        pool.retire(hetmem.Stream.PER_THREAD)
        self.assertEqual(pool.stats().live, 0)

    def test_access(self):
        self.assertEqual(hetmem.resource("pool(host)").access(),
                         hetmem.Access(True, True, frozenset(), frozenset(), 0))
        for spec, unit in (("pool(vmm)", 2), ("pool(vmm,unit=6M)", 6), ("pool(device)", 0),
                           ("guard(pool(vmm))", 0), ("pool(vmm(export=fd))", 0),
                           ("fallback(pool(vmm,unit=4M),pool(vmm,unit=6M))", 12)):
            self.assertEqual(hetmem.resource(spec).access().unit, unit * MIB, spec)
        self.assertEqual(hetmem.resource("device-pool").access().devices, {0})
        with self.assertRaises(BufferError):
            hetmem.resource("device-pool").alloc(10).memoryview()
        managed = hetmem.resource("pool(managed)").alloc(100)
        self.assertEqual(managed.__array_interface__["data"], (managed.ptr, False))
        self.assertEqual(managed.__cuda_array_interface__["shape"], (100,))
        self.assertFalse(hasattr(hetmem.resource("device-pool").alloc(1),
                                 "__array_interface__"))

    def test_counters(self):
        pool = hetmem.resource("stats(device-pool)")
        with pool.alloc(10), pool.counters() as outer:
            with pool.counters() as inner:
                block = pool.alloc(MIB)
                self.assertEqual(inner.bytes.value, MIB)
                block.free()
            pool.alloc(5).free()
            self.assertEqual(inner.bytes, hetmem.Counter(0, MIB, MIB))
        self.assertEqual((outer.blocks.total, outer.bytes.total), (2, MIB + 5))
        # A value can fall below that of the push.
        block = pool.alloc(100)
        with pool.counters() as below:
            block.free()
        self.assertEqual(below.bytes.value, -100)
        with self.assertRaises(hetmem.HetmemError) as caught:
            with hetmem.resource("device-pool").counters():
                self.fail("there is no stats()")
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)

    def test_counters_after_an_exception(self):
        pool = hetmem.resource("stats(pool(host))")
        with self.assertRaises(KeyError):
            with pool.counters() as counting:
                pool.alloc(10).free()
                raise KeyError
        self.assertEqual(counting.bytes.total, 10)

    def test_current(self):
        before = hetmem.current().pointer
        with hetmem.use("stats(device-pool)") as outer:
            self.assertEqual(hetmem.current().pointer, outer.pointer)
            with hetmem.use("pool(vmm,max=8M)") as inner:
                self.assertEqual(hetmem.current().pointer, inner.pointer)
            self.assertTrue(inner.closed)
            self.assertEqual(hetmem.current().pointer, outer.pointer)
            with hetmem.use("stats(pool(host))", device=-1) as host:
                self.assertEqual(hetmem.current(-1).pointer, host.pointer)
        self.assertEqual(hetmem.current().pointer, before)
        self.assertEqual(hetmem.current().close(), 0)
        hetmem.current().alloc(10).free()
        self.assertRaises(hetmem.HetmemError, hetmem.current, 9)

    def test_current_is_closed(self):
        with hetmem.Library("soft") as library:
            first = library.resource("pool(host)")
            second = library.resource("pool(host)")
            with first.as_current():
                borrowed = library.current()
                self.assertEqual(borrowed.pointer, first.pointer)
                with second.as_current():
                    first.close()
                    self.assertEqual(library.current().pointer, second.pointer)
                self.assertTrue(borrowed.closed)
                with self.assertRaisesRegex(ValueError, "closed"):
                    borrowed.stats()
                library.current().alloc(1).free()
            with second.as_current():
                second.close()
                library.current().alloc(1).free()
            with library.resource("pool(host)").as_current(-1):
                library.close()

    def test_no_copies(self):
        with hetmem.Library("soft") as library, library.resource("pool(host)") as res:
            block = res.alloc(1)
            for thing in (library, res, block):
                for call in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.assertRaisesRegex(TypeError, "copied or pickled"):
                        call(thing)
            block.free()
            self.assertEqual(res.stats().live, 0)

    def test_wide_numbers(self):
        with hetmem.Library("soft") as library, library.resource("pool(vmm)") as res:
            block = res.alloc(4 * MIB, movable=True)
            for wide in (1 << 32, -(1 << 32)):
                for call in (
                    library.device, library.current, block.priority,
                    lambda n: res.priority(block.ptr, n),
                    lambda n: res.alloc(1, priority=n),
                    lambda n: res.as_current(n).__enter__(),
                ):
                    with self.assertRaisesRegex(OverflowError, "32 bits"):
                        call(wide)
            with self.assertRaises(ValueError):
                res.log_edge("record", -1)
            with self.assertRaises(OverflowError):
                res.log_edge("record", 1 << 64)
            block.free()

    def test_log(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a trace.csv")
            with hetmem.log(path, full=True) as pool:
                pool.alloc(4096).free()
                pool.log_edge("sync", 0, 1)
            self.assertRaises(ValueError, pool.log_edge, "jump", 0)
            with open(path, encoding="ascii") as file:
                lines = file.read().splitlines()
        self.assertEqual(sum(",allocate,0x" in line for line in lines), 1)
        self.assertEqual(sum(",free,0x" in line for line in lines), 1)
        with self.assertRaises(ValueError):
            with hetmem.log('a"b'):
                self.fail("a name with a quote")

    def test_sleep(self):
        pool = hetmem.resource("pool(vmm,tag=weights)")
        block = pool.alloc(4 * MIB)
        pool.sleep("kv")
        self.assertGreater(pool.stats().reserved, 0)
        pool.sleep("weights")
        self.assertEqual((pool.stats().reserved, pool.stats().parked), (0, 4 * MIB))
        with self.assertRaises(hetmem.HetmemError) as caught:
            pool.alloc(1)
        self.assertEqual(caught.exception.errno, errno.EBUSY)
        pool.wake("weights")
        self.assertEqual(pool.stats().reserved, 4 * MIB)
        block.free()
        pool.sleep(keep=False)
        pool.wake()

    def test_tags_of_blocks(self):
        pool = hetmem.resource("pool(vmm,park=release)")
        kept = pool.alloc(4 * MIB, tag="weights")
        cache = pool.alloc(6 * MIB, tag="kv", scratch=True)
        plain = pool.alloc(2 * MIB)
        held = pool.stats().reserved
        self.assertEqual((pool.stats("weights").live, pool.stats("kv").requested), (1, 6 * MIB))
        with self.assertRaises(hetmem.HetmemError) as caught:
            pool.stats("none")
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        pool.sleep("kv")
        self.assertEqual((pool.stats().reserved, pool.stats().parked), (held - 6 * MIB, 0))
        pool.sleep("weights")
        self.assertEqual(pool.stats().parked, 4 * MIB)
        with self.assertRaises(hetmem.HetmemError) as caught:
            pool.alloc(1, tag="weights")
        self.assertEqual(caught.exception.errno, errno.EBUSY)
        pool.alloc(1).free()
        pool.wake("weights")
        pool.wake("kv")
        self.assertGreaterEqual(pool.stats().reserved, held)
        self.assertEqual(pool.stats().parked, 0)
        for tag in "", "x" * 32:
            with self.assertRaises(hetmem.HetmemError) as caught:
                pool.alloc(1, tag=tag)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(hetmem.HetmemError) as caught:
            hetmem.resource("pool(host)").alloc(1, tag="t")
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
        for block in kept, cache, plain:
            block.free()
        self.assertEqual(pool.stats().live, 0)

    def test_parked_read(self):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            for park in "release", "keep", folder:
                pool = hetmem.resource(f"pool(vmm,park={park})")
                block = pool.alloc(3 * MIB + 5)
                contents = random.Random(park).randbytes(block.size)
                ctypes.memmove(block.ptr, contents, block.size)
                with self.assertRaisesRegex(hetmem.HetmemError, "is awake") as caught:
                    block.parked()
                self.assertEqual(caught.exception.errno, errno.ENODATA)
                pool.sleep()
                self.assertEqual(block.parked(), contents)
                self.assertEqual(block.parked(MIB - 3), contents[MIB - 3:])
                self.assertEqual(block.parked(4097, 70000), contents[4097:74097])
                self.assertEqual(block.parked(block.size), b"")
                self.assertEqual(pool.parked_read(block.ptr + 7, 9), contents[7:16])
                for wrong in (-1,), (0, -1), (1, block.size), (block.size + 1,):
                    with self.assertRaisesRegex(ValueError, "are not in"):
                        block.parked(*wrong)
                with self.assertRaises(hetmem.HetmemError) as caught:
                    pool.parked_read(block.ptr, block.size + 1)
                self.assertEqual(caught.exception.errno, errno.EINVAL)
                pool.wake()
                self.assertEqual(ctypes.string_at(block.ptr, block.size), contents)
                pool.sleep(keep=False)
                with self.assertRaisesRegex(hetmem.HetmemError, "without its contents"):
                    block.parked()
                pool.wake()
                block.free()
                with self.assertRaises(ValueError):
                    block.parked()

    def test_wake_waits(self):
        self.silent("""
            import threading, time, hetmem
            MIB = 1 << 20
            pool = hetmem.resource("pool(vmm)")
            other = hetmem.resource("pool(vmm)")
            block = pool.alloc(40 * MIB)
            pool.sleep()
            taken = other.alloc(30 * MIB)
            began = time.monotonic()
            try: pool.wake(wait=0.6)
            except hetmem.OutOfMemoryError: pass
            else: raise AssertionError("woke without room")
            assert time.monotonic() - began >= 0.6
            assert (pool.stats().reserved, pool.stats().parked) == (0, 40 * MIB)
            for wait in -1, float("nan"):
                try: pool.wake(wait=wait)
                except ValueError: pass
                else: raise AssertionError(wait)
            thread = threading.Thread(target=lambda: pool.wake(wait=float("inf")))
            thread.start()
            taken.free()
            other.close()
            thread.join()
            assert pool.stats().reserved == 40 * MIB
            block.free()
        """, HETMEM_SOFT_MEMORY="64M")

    def test_spill(self):
        pool = hetmem.resource("pool(vmm,spill=64M,launcher=single)")
        block = pool.alloc(8 * MIB, movable=True, priority=2)
        events = []
        pool.on_remap(events.append)
        self.assertRaises(ValueError, pool.on_remap, events.append)
        block.spill()
        self.assertEqual(pool.stats().spilled, 8 * MIB)
        block.host_access()
        block.fetch()
        self.assertEqual(pool.stats().spilled, 0)
        block.priority(-1)
        self.assertEqual([(e.cause, e.after, e.error) for e in events],
                         [("spill", False, 0), ("spill", True, 0),
                          ("fetch", False, 0), ("fetch", True, 0)])
        self.assertEqual((events[0].ptr, events[0].bytes), (block.ptr, 8 * MIB))
        self.assertIn("MEMORY_TYPE", events[0].changes)
        pool.off_remap(events.append)
        self.assertRaises(ValueError, pool.off_remap, events.append)
        block.spill(wait=False)
        block.fetch()
        self.assertEqual(len(events), 4)
        kept = pool.alloc(2 * MIB, keep=True)
        with self.assertRaises(hetmem.HetmemError) as caught:
            kept.spill()
        self.assertEqual(caught.exception.errno, errno.EBUSY)

    def test_pressure(self):
        pool = hetmem.resource("watermark(pool(vmm,max=64M),at=50%,every=0s)")
        told, cache = [], []

        def collect(pressure):
            told.append(pressure)
            cache.clear()
            # In a function there is no call of it.
            pool.alloc(20 * MIB).free()

        def fail(_):
            told.append(None)
            raise ValueError("ignored")

        before = hetmem.memory_info(0).pressures
        pool.on_pressure(collect)
        cache.append(pool.alloc(32 * MIB))
        self.assertEqual(told, [])
        block = pool.alloc(30 * MIB)
        self.assertEqual(told, [hetmem.Pressure(30 * MIB, 32 * MIB, 32 * MIB)])
        self.assertEqual((cache, pool.stats().pressures), ([], 1))
        self.assertEqual(hetmem.memory_info(0).pressures, before + 1)
        pool.on_pressure(fail)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            other = pool.alloc(20 * MIB)
        finally:
            sys.unraisablehook = hook
        self.assertEqual(len(told), 2)
        pool.on_pressure(None)
        other.free()
        pool.trim()
        pool.alloc(20 * MIB).free()
        pool.on_pressure(collect)
        pool.on_pressure(collect)
        pool.trim()
        pool.alloc(20 * MIB).free()
        self.assertEqual(len(told), 3)
        block.free()
        with self.assertRaises(hetmem.HetmemError) as caught:
            hetmem.resource("pool(vmm)").on_pressure(collect)
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)

    def test_pressure_of_a_collector(self):
        pool = hetmem.resource("watermark(pool(vmm,max=64M),at=90%,every=0s)")
        pool.on_pressure(lambda _: gc.collect())
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                # Nothing but a collector frees it.
                cycle = [pool.alloc(20 * MIB)]
                cycle.append(cycle)
            del cycle
        finally:
            gc.enable()
        stats = pool.stats()
        self.assertEqual(stats.allocs, 20)
        self.assertGreaterEqual(stats.pressures, 5)
        self.assertLessEqual(stats.reserved_peak, 0.9 * 64 * MIB)

    def test_grow(self):
        block = hetmem.resource("pool(vmm)").alloc(MIB, reserve=64 * MIB)
        block.grow(32 * MIB)
        self.assertEqual((block.size, block.resource.stats().requested),
                         (32 * MIB, 32 * MIB))

    def test_shrink(self):
        block = hetmem.resource("pool(vmm)").alloc(48 * MIB, reserve=64 * MIB)
        address = block.ptr
        block.shrink(8 * MIB)
        block.resource.trim()
        stats = block.resource.stats()
        self.assertEqual((block.ptr, block.size, stats.requested), (address, 8 * MIB, 8 * MIB))
        self.assertLessEqual(stats.reserved, 10 * MIB)
        block.grow(64 * MIB)
        with self.assertRaises(hetmem.HetmemError) as caught:
            block.shrink(0)
        self.assertEqual((block.size, caught.exception.errno), (64 * MIB, errno.EINVAL))

    def test_give_back(self):
        pool = hetmem.resource("pool(vmm,handle=2M)")
        block = pool.alloc(48 * MIB)
        address = block.ptr
        block.give_back(10 * MIB, 20 * MIB)
        pool.trim()
        self.assertEqual((block.ptr, block.size, pool.stats().reserved),
                         (address, 48 * MIB, 28 * MIB))
        for offset, length in (0, 48 * MIB), (-1, MIB), (MIB, -1), (40 * MIB, 9 * MIB):
            with self.assertRaises(ValueError):
                block.give_back(offset, length)
        block.free()
        pool.trim()
        self.assertEqual(pool.stats().reserved, 0)

    def test_sparse(self):
        pool = hetmem.resource("pool(vmm,unit=2M)")
        unit, size = 2 * MIB, 81 * MIB
        block = pool.alloc(size, sparse=True)
        stats = pool.stats()
        self.assertEqual((stats.requested, stats.reserved, stats.addresses), (0, 0, 82 * MIB))
        self.assertEqual(block.committed(), [])
        block.commit(0, 2 * unit)
        block.commit(2 * unit, unit)
        self.assertEqual(block.committed(), [(0, 3 * unit)])
        # The range of the last unit may end with the block. The unit is whole.
        block.commit(80 * MIB, MIB)
        self.assertEqual(block.committed(), [(0, 3 * unit), (80 * MIB, unit)])
        for offset, length, error in [
            (unit, unit, errno.EEXIST), (MIB, unit, errno.EINVAL), (4 * unit, MIB, errno.EINVAL),
            (80 * MIB, 2 * unit, errno.EINVAL), (size + MIB, unit, errno.EINVAL),
        ]:
            with self.assertRaises(hetmem.HetmemError) as caught:
                block.commit(offset, length)
            self.assertEqual(caught.exception.errno, error, (offset, length))
        with self.assertRaises(hetmem.HetmemError) as caught:
            block.decommit(2 * unit, 2 * unit)
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        for offset, length in (-1, unit), (0, -unit):
            for call in block.commit, block.decommit:
                with self.assertRaises(ValueError):
                    call(offset, length)
        self.assertEqual(block.committed(), [(0, 3 * unit), (80 * MIB, unit)])
        self.assertEqual(pool.stats().requested, 4 * unit)
        # Parked units serve the same addresses without a call of the driver.
        block.decommit(0, 3 * unit)
        calls = pool.stats().driver_calls
        block.commit(0, 3 * unit)
        self.assertEqual(pool.stats().driver_calls, calls)
        # More ranges than the first array has room for.
        block.decommit(0, 3 * unit)
        even = [(offset, unit) for offset in range(0, 80 * MIB, 2 * unit)]
        for part in even:
            block.commit(*part)
        self.assertEqual(block.committed(), [*even, (80 * MIB, unit)])
        block.free()
        for call in block.committed, lambda: block.commit(0, unit):
            with self.assertRaises(ValueError):
                call()
        pool.trim()
        stats = pool.stats()
        self.assertEqual((stats.requested, stats.reserved, stats.addresses), (0, 0, 0))

    def test_ring(self):
        """A ring is one memory at two addresses, of the device or of the host."""
        for spec, size in (("pool(vmm)", 2 * MIB), ("pool(registered)", 4096)):
            with self.subTest(spec=spec):
                pool = hetmem.resource(spec)
                block = pool.alloc(size, ring=True)
                both = (ctypes.c_ubyte * (2 * size)).from_address(block.ptr)
                both[size + 1] = 5
                self.assertEqual(both[1], 5)
                self.assertEqual(pool.stats().requested, size)
                block.free()
        with self.assertRaises(hetmem.HetmemError) as caught:
            pool.alloc(size + 1, ring=True)
        self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_alias(self):
        """A second address of a block: the same memory, until it is freed."""
        pool = hetmem.resource("pool(vmm)")
        block = pool.alloc(4 * MIB)
        with block.alias() as other, block.alias(MIB, read_only=True) as third:
            ctypes.memset(other.ptr, 9, 4 * MIB)
            self.assertEqual(ctypes.string_at(block.ptr + 3 * MIB, 2), b"\x09\x09")
            self.assertEqual(ctypes.string_at(third.ptr, 2), b"\x09\x09")
            self.assertEqual((third.size, pool.stats().requested), (MIB, 4 * MIB))
            self.assertIn("4194304 bytes>", repr(other))
        with self.assertRaises(ValueError):
            other.free()
        with self.assertRaises(hetmem.HetmemError) as caught:
            block.alias(5 * MIB)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        block.free()
        with self.assertRaises(ValueError):
            block.alias()

    def test_replica(self):
        """Copies on other devices: refreshed together, freed alone or with the block."""
        self.silent('''
            import ctypes, errno, hetmem
            pool = hetmem.resource("pool(vmm)")
            block = pool.alloc(3 << 20)
            one, two = block.replicate(1), block.replicate(2)
            ctypes.memset(block.ptr, 5, block.size)
            block.refresh()
            print(one.device, two.size, pool.stats().replicas, repr(one)[:16])
            try:
                block.replicate(1)
            except hetmem.HetmemError as error:
                print(error.errno == errno.EEXIST)
            with one:
                pass
            del two
            with block.replicate(1) as one:
                block.refresh()
            three = block.replicate(2)
            try:
                block.free()
            except hetmem.HetmemError as error:
                print(error.strerror)
            block.free(hetmem.Stream.LEGACY)
            try:
                three.free()
            except ValueError as error:
                print(error, repr(three)[-6:])
            pool.close()
            ''', HETMEM_SOFT_DEVICES="3", expected=
            "1 3145728 8388608 <hetmem.Replica \nTrue\n"
            "free: the block has replicas: give the stream of their last use\n"
            "the replica is free  free>\n")

    def test_not_sparse(self):
        with hetmem.resource("pool(vmm)").alloc(4 * MIB) as block:
            for call in (lambda: block.commit(0, 2 * MIB), lambda: block.decommit(0, 2 * MIB),
                         block.committed):
                with self.assertRaises(hetmem.HetmemError) as caught:
                    call()
                self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(hetmem.HetmemError) as caught:
            hetmem.resource("pool(host)").alloc(4 * MIB, sparse=True)
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)


class Reports(tap.Case):
    """What a program can ask, and what it is told."""

    def test_reclaim(self):
        idle = """
import hetmem, os, sys
library = hetmem.Library("soft")
pool = library.resource("pool(vmm)")
pool.alloc(32 << 20).free()
print("ready", flush=True)
while not sys.stdin.closed and not os.read(0, 1):
    pass
"""
        env = dict(os.environ, HETMEM_AGENT="off")
        other = subprocess.Popen(
            [sys.executable, "-c", idle],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(other.stdout.readline(), "ready\n")
        # time: only an agent that does not answer takes it
        given = hetmem.reclaim(timeout=60)
        self.assertGreaterEqual(given.given[other.pid], 30 * MIB)
        self.assertNotIn(other.pid, given.silent)
        self.assertGreaterEqual(given.bytes, given.given[other.pid])
        other.communicate("x")
        self.assertEqual(other.returncode, 0)
        with self.assertRaises(hetmem.HetmemError):
            hetmem.reclaim(device=99)
        with self.assertRaises(ValueError):
            hetmem.reclaim(-1)

    def test_memory_info(self):
        with hetmem.Library("soft") as library:
            info = library.memory_info(0, reserve=0)
            # Another test can have left memory to the collector.
            free = info.figures["driver"].bytes
            self.assertEqual((info.total, info.usable, info.reserve), (256 * MIB, free, 0))
            self.assertGreater(free, 128 * MIB)
            self.assertEqual(info.least, "driver")
            self.assertEqual(set(info.figures), {"driver", "module", "node", "host", "cgroup", "cache"})
            self.assertTrue(info.figures["driver"].counts)
            self.assertIsNone(info.figures["module"].bytes)
            self.assertTrue(info.figures["module"].source)
            self.assertEqual(library.memory_info(0, reserve=5 * MIB).usable, free - 5 * MIB)
            with library.resource("pool(vmm)") as pool, pool.alloc(10 * MIB):
                held = pool.stats().reserved
                self.assertEqual(library.memory_info(0, 0).usable, free - held)
            with self.assertRaises(hetmem.HetmemError) as caught:
                library.memory_info(7)
            self.assertEqual(caught.exception.errno, errno.ENODEV)
            with self.assertRaises(ValueError):
                library.memory_info(0, reserve=-1)
        host = hetmem.memory_info(-1)
        self.assertGreater(host.usable, 0)
        self.assertLess(host.usable, host.total)
        self.assertIn(host.least, ("host", "cgroup"))

    def test_doctor(self):
        with environment(HETMEM_DRIVER="soft"):
            found = hetmem.doctor()
            self.assertEqual(set(found), {"uses", "checks", "devices", "missing", "memory_moves"})
            works = {use["use"]: use["works"] for use in found["uses"]}
            self.assertTrue(works["pytorch"])
            self.assertEqual(hetmem.doctor("pytorch")["uses"][2]["required"], True)
            hetmem.doctor(["pools", "sleep"])
            with self.assertRaises(hetmem.HetmemError) as caught:
                hetmem.doctor(["pools", "hmm"])
            self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
            self.assertIn("hmm: ", caught.exception.strerror)
            for bad in ("nonsense", ["pools", "x y"]):
                with self.assertRaises(ValueError) as caught:
                    hetmem.doctor(bad)
                self.assertIn("is not one of pools", str(caught.exception))

    def test_logging(self):
        with self.assertLogs("hetmem", "DEBUG") as logs:
            with hetmem.resource("pool(vmm,max=16M,tag=kv)") as pool:
                block = pool.alloc(MIB)
                pool.sleep("kv")
                pool.wake("kv")
                with self.assertRaises(hetmem.OutOfMemoryError):
                    pool.alloc(64 * MIB)
                block.free()
        told = [(record.levelname, record.getMessage()) for record in logs.records]
        spec = "pool(vmm,max=16M,tag=kv)"
        self.assertEqual(told[0], ("DEBUG", f"made {spec}"))
        self.assertRegex(told[1][1], re.escape(f"{spec} sleeps, tag kv: ") + r"[0-9.]+ ms$")
        self.assertRegex(told[2][1], re.escape(f"{spec} is awake, tag kv: ") + r"[0-9.]+ ms$")
        self.assertEqual([level for level, _ in told[1:]], ["INFO", "INFO", "DEBUG", "WARNING", "DEBUG"])
        self.assertIn("ENOMEM", told[3][1])
        self.assertIn(f"{spec}: no memory for {64 * MIB} bytes: ", told[4][1])
        self.assertEqual(told[5][1], f"closed {spec}: 0 blocks were live")

    def test_logging_is_silent(self):
        self.silent("""
            import hetmem
            try: hetmem.resource("pool(vmm)").alloc(1 << 40)
            except hetmem.OutOfMemoryError: pass
        """)

    def test_help(self):
        """Each public function, class and method says what it does, by itself.

        Setters do not: help() shows what the property says.
        """
        count, wrong = 0, []
        folder = os.path.dirname(hetmem.__file__)
        for name in sorted(os.listdir(folder)):
            # These modules have public functions of others.
            shown = ("__init__.py", "__main__.py", "_doctor.py", "_torch_unified.py", "_unify.py")
            if not name.endswith(".py") or name.startswith("_") and name not in shown:
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                tree = ast.parse(file.read())
            for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
                if getattr(owner, "name", "").startswith("_"):
                    continue
                for node in owner.body:
                    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                        continue
                    if any(getattr(by, "attr", "") == "setter" for by in node.decorator_list):
                        continue
                    count += 1
                    text = ast.get_docstring(node) or ""
                    first = text.split("\n\n")[0]
                    if len(first.split()) < 4 or not re.search(r"[.\])]$", first) or re.search(r"[a-z]\(\) of ", first):
                        if owner is tree:
                            wrong.append(f"{name}: {node.name}: {first!r}")
                        elif not first:
                            wrong.append(f"{name}: {owner.name}.{node.name}")
        self.assertEqual(wrong, [])
        self.assertGreater(count, 100)


class Ends(tap.Case):
    """The end of the interpreter and fork(): no crash, no message."""

    def test_live_objects(self):
        for spec in ("device-pool", "stats(pool(host))", "pool(managed)", "unified"):
            self.silent(f"""
                import hetmem, sys
                pool = hetmem.resource("{spec}")
                blocks = [pool.alloc(1 << 16) for _ in range(100)]
                sys.keep = blocks
                class Cycle: pass
                cycle = Cycle(); cycle.self = cycle; cycle.block = pool.alloc(10)
                own = hetmem.Library("soft"); other = own.resource("device-pool")
                block = other.alloc(100)
                """)

    def test_use_is_open(self):
        self.silent("""
            import hetmem
            use = hetmem.use("device-pool"); pool = use.__enter__()
            block = pool.alloc(10)
            """)

    def test_threads_that_work(self):
        self.silent("""
            import hetmem, threading, time
            pool = hetmem.resource("device-pool")
            def work():
                while True:
                    with pool.alloc(1000): pass
            for _ in range(4): threading.Thread(target=work, daemon=True).start()
            while pool.stats().allocs < 1000: time.sleep(0.01)
            """)

    def test_callbacks_are_set(self):
        self.silent("""
            import hetmem
            pool = hetmem.resource("pool(vmm)")
            pool.on_remap(print)
            block = pool.alloc(1 << 21)
            """)

    def test_fork_device(self):
        pool = hetmem.resource("device-pool")
        block = pool.alloc(MIB)

        def work():
            nonlocal block
            with self.assertRaises(hetmem.HetmemError) as caught:
                pool.alloc(10)
            self.assertEqual(caught.exception.errno, errno.EOWNERDEAD)
            block = None
            gc.collect()
            # The child's own library is another one; it has host memory.
            with hetmem.resource("pool(host)") as own:
                own.alloc(10).free()
                self.assertEqual(own.stats().allocs, 1)

        self.fork(work)
        self.assertEqual(pool.stats().live, 1)
        block.free()

    def test_fork_host(self):
        pool = hetmem.resource("pool(host)")
        block = pool.alloc(100)
        view = block.memoryview()
        view[0] = 1

        def work():
            self.assertEqual(view[0], 1)
            view[0] = 2
            pool.alloc(10).free()

        self.fork(work)
        self.assertEqual(view[0], 1)

    def test_fork_ends_silently(self):
        self.silent("""
            import hetmem, os
            pool = hetmem.resource("device-pool"); block = pool.alloc(100)
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            """)


if __name__ == "__main__":
    tap.main()
