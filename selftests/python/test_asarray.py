# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.cupy.asarray() and hetmem.numpy.asarray(), and the functions that CuPy calls
for every array, with CuPy itself over the soft driver. CUPY_SITE is the folder of CuPy.

There are no kernels: work of the device is a host function of a stream.
"""

import os
import sys
import textwrap

import framework
import tap
import test_doc

HERE = os.path.dirname(os.path.abspath(__file__))

PROLOGUE = f"""
import ctypes, errno, gc, os, subprocess, sys, threading, time, weakref
sys.path.insert(0, {HERE!r})
sys.path.append({os.environ["CUPY_SITE"]!r})
import soft_cupy, cupy, numpy as np, hetmem, hetmem.cupy as hc, hetmem.numpy as hn
from hetmem import _share
MIB = 1 << 20
{tap.FAILS}
class Work:
    '''Work on a stream, until end().'''
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def __init__(self, stream, result=lambda: None):
        self.go, self.done = threading.Event(), threading.Event()
        self.function = self.kind(lambda _: (self.go.wait(), result(), self.done.set()))
        soft_cupy._call("cuLaunchHostFunc", soft_cupy.p(stream.ptr), self.function, soft_cupy.p(0))
    def end(self):
        self.go.set()

def shared(make, spec="unified"):
    with hn.using(spec, least=1): return make()

def copies():
    found = [call for call in soft_cupy.calls if call[0].startswith("memcpy")]
    soft_cupy.calls.clear()
    return len(found)

def collect():
    gc.collect(); _share._poll()
"""

MACHINES = ("none", "managed", "hmm", "ats", "cdmm", "integrated")


class Case(tap.Case):
    def run_code(self, code, expected="", **environment):
        self.silent(PROLOGUE + textwrap.dedent(code), expected, **environment)


class ToCupy(Case):
    def test_same_memory(self):
        """On every machine the memory of unified is used without a copy, both ways."""
        for machine in MACHINES:
            with self.subTest(machine=machine):
                self.run_code("""
                    a = shared(lambda: np.arange(5000.0))
                    assert hc.why_copy(a) == ""
                    copies()
                    g = hc.asarray(a, copy=False)
                    assert (g.data.ptr, g.shape, g.dtype) == (a.ctypes.data, (5000,), a.dtype)
                    assert hn.why_copy(g) == ""
                    b = hn.asarray(g, copy=False)
                    assert copies() == 0
                    assert b.ctypes.data == a.ctypes.data and b.flags.writeable
                    b[3] = 7
                    assert a[3] == 7 and float(cupy.asnumpy(g[3])) == 7
                    hc.enable("unified")
                    g = cupy.empty((30, 20), np.int32)
                    copies()
                    b = hn.asarray(g, copy=False)
                    b[:] = 5
                    assert copies() == 0 and b.shape == (30, 20)
                    assert (cupy.asnumpy(g) == 5).all() and hc.asarray(g, copy=False) is g
                    """, HETMEM_SOFT_MACHINE=machine)

    def test_memory_of_others(self):
        """Memory of malloc() is used where the device uses all memory, else copied."""
        for machine in MACHINES:
            everything = machine not in ("none", "managed")
            with self.subTest(machine=machine):
                self.run_code(f"""
                    a = np.arange(5000.0)
                    copies()
                    if {everything}:
                        assert hc.why_copy(a) == ""
                        assert hc.asarray(a).data.ptr == a.ctypes.data and copies() == 0
                    else:
                        assert "device 0 cannot use the memory" in hc.why_copy(a)
                        fails(ValueError, lambda: hc.asarray(a, copy=False), "hetmem.unify()")
                        g = hc.asarray(a)
                        assert g.data.ptr != a.ctypes.data and copies() == 1
                        assert (cupy.asnumpy(g) == a).all()
                    """, HETMEM_SOFT_MACHINE=machine)

    def test_registered_and_pinned(self):
        self.run_code("""
            for a in (shared(lambda: np.ones(1000), "pool(registered)"),
                      np.frombuffer(cupy.cuda.alloc_pinned_memory(8000), np.float64)):
                a.flags.writeable or fail
                g = hc.asarray(a, copy=False)
                assert g.data.ptr == a.ctypes.data
                assert hn.asarray(g, copy=False).ctypes.data == a.ctypes.data
            # The end of this one is not registered.
            a = np.zeros(1 << 20, np.uint8)
            start = -a.ctypes.data % 4096
            a = a[start:start + 8 * 4096]
            soft_cupy._call("cuMemHostRegister", soft_cupy.p(a.ctypes.data),
                            ctypes.c_size_t(4 * 4096), ctypes.c_uint(0))
            assert hc.why_copy(a[:4 * 4096]) == "" != hc.why_copy(a)
            """, HETMEM_SOFT_MACHINE="managed")

    def test_no_concurrent_access(self):
        self.run_code("""
            a = shared(lambda: np.arange(1000), "pool(managed)")
            soft_cupy.runtime.deviceGetAttribute = lambda attribute, device: 0
            assert "at one time" in hc.why_copy(a)
            cupy.cuda.set_allocator(
                cupy.cuda.PythonFunctionAllocator(lambda *_: a.ctypes.data, print).malloc)
            assert "at one time" in hn.why_copy(cupy.ndarray((10,), np.int64,
                cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(a.ctypes.data, 80, a), 0)))
            """)

    def test_copy(self):
        self.run_code("""
            a = shared(lambda: np.arange(100))
            g = hc.asarray(a, copy=True)
            assert g.data.ptr != a.ctypes.data and (cupy.asnumpy(g) == a).all()
            h = hc.asarray(a)
            b = hn.asarray(h, copy=True)
            assert b.ctypes.data != a.ctypes.data and (b == a).all()
            b = hn.asarray(a, copy=True)
            assert b.ctypes.data != a.ctypes.data and hn.asarray(a, copy=False) is a
            # Device memory: a copy, unless it is refused.
            hc.enable("device-pool")
            g = cupy.asarray(a)
            assert "the CPU cannot use" in hn.why_copy(g)
            fails(ValueError, lambda: hn.asarray(g, copy=False), "without a copy", "unify()")
            assert (hn.asarray(g) == a).all()
            # Lists are copied.
            assert "list has no memory" in hc.why_copy([1, 2]) == hn.why_copy([1, 2])
            for asarray in (hc.asarray, hn.asarray):
                fails(ValueError, lambda: asarray([1, 2], copy=False), "list")
                assert asarray([1, 2]).shape == (2,)
            assert hn.why_copy(a) == hc.why_copy(g) == hc.why_copy(bytearray(5)) == ""
            """, HETMEM_SOFT_MACHINE="hmm")

    def test_read_only(self):
        self.run_code("""
            a = shared(lambda: np.arange(100))
            for r in (a.view(), np.broadcast_to(a[:1], (10,)), np.frombuffer(b"12345678")):
                r.flags.writeable = False
                fails(ValueError, lambda: hc.asarray(r, copy=False), "read-only")
                g = hc.asarray(r)
                assert g.data.ptr != r.ctypes.data and (cupy.asnumpy(g) == r).all()
                assert not r.flags.writeable
            """)

    def test_strides(self):
        self.run_code("""
            a = shared(lambda: np.arange(24 * 100).reshape(4, 6, 100))
            for view in (a[1:3, ::2], a[::-1, :, ::-3], a.T, a[2, 3], a[0, 0, 5],
                         a[:, :0], np.lib.stride_tricks.as_strided(a, (50, 7), (8, 8)),
                         a[np.newaxis, :, 2:3, 7]):
                if view.shape == (): view = a[0, 0, 5:6].reshape(())
                g = hc.asarray(view, copy=False)
                assert g.shape == view.shape, (g.shape, view.shape)
                if not view.size: continue
                assert g.strides == view.strides
                assert g.data.ptr == view.ctypes.data
                b = hn.asarray(g, copy=False)
                assert b.strides == view.strides and (b == view).all()
                memory = g.data.mem
                low, high = np.lib.array_utils.byte_bounds(view)
                assert (memory.ptr, memory.size) == (low, high - low)
            """)

    def test_alignment(self):
        self.run_code("""
            raw = shared(lambda: np.zeros(1000, np.uint8))
            good = [raw[8:88].view("f8"), raw[16:96].view("c16"), raw[1:11].view("i1"),
                    raw[:80].view("f8")[::3]]
            bad = [raw[1:81].view("f8"), raw[8:88].view("c16"), raw[2:82].view("i4"),
                   raw[:90].view([("a", "i2"), ("b", "f8")])["b"]]
            for a in good: assert hc.why_copy(a) == "", a.dtype
            for a in bad:
                assert "multiple of its size" in hc.why_copy(a), a.dtype
                assert (cupy.asnumpy(hc.asarray(a)) == a).all()
            """)

    def test_types(self):
        self.run_code("""
            for kind in "?bBhHiIlLqQefdFD":
                a = shared(lambda: np.ones(100, kind))
                g = hc.asarray(a, copy=False)
                assert g.dtype == a.dtype == hn.asarray(g, copy=False).dtype
                if a.dtype.itemsize == 1: continue
                swapped = a.astype(a.dtype.newbyteorder())
                fails(ValueError, lambda: hc.asarray(swapped, copy=False), "byte order")
                g = hc.asarray(swapped)
                assert g.dtype == a.dtype and (cupy.asnumpy(g) == a).all()
                assert hc.asarray(swapped[:0]).dtype == a.dtype
            for kind in (object, "S3", "U3", "M8[s]", "m8[s]", "g", "G",
                         [("a", object), ("b", "i4")]):
                a = shared(lambda: np.zeros(100, kind))
                for call in (hc.asarray, hc.why_copy, lambda a: hc.asarray(a, copy=False)):
                    fails(TypeError, lambda: call(a), "CuPy has no arrays of")
                fails(TypeError, lambda: hc.asarray(a[:0]), "CuPy has no arrays of")
            fails(TypeError, lambda: hc.asarray(np.ma.array([1, 2])), "filled()")
            assert isinstance(hn.asarray(np.ma.array([1, 2])), np.ma.MaskedArray)
            fails(TypeError, lambda: hc.asarray(object()), "object")
            # Structures, where CuPy has them.
            record = np.dtype([("a", "<i4"), ("b", "<f4")])
            a = shared(lambda: np.zeros(100, record))
            try: cupy.empty(1, record)
            except (TypeError, ValueError): fails(TypeError, lambda: hc.asarray(a))
            else:
                b = hn.asarray(hc.asarray(a, copy=False), copy=False)
                assert b.dtype == record and b.ctypes.data == a.ctypes.data
            """)

    def test_sizes(self):
        self.run_code("""
            for shape in ((0,), (3, 0), (0, 0, 5)):
                for a in (np.empty(shape), shared(lambda: np.empty(shape))):
                    g = hc.asarray(a, copy=False)
                    b = hn.asarray(g, copy=False)
                    assert g.shape == b.shape == shape and g.dtype == b.dtype == a.dtype
            read_only = np.empty(0); read_only.flags.writeable = False
            assert hc.asarray(read_only, copy=False).size == 0
            a = shared(lambda: np.array(5.0))
            if hc.why_copy(a) == "":
                assert hn.asarray(hc.asarray(a, copy=False), copy=False)[()] == 5
            with hetmem.unify(least=1):
                big = np.zeros(64 * MIB, np.uint8)
            assert hc.asarray(big, copy=False).nbytes == 64 * MIB
            """)


class Lifetime(Case):
    def test_views_keep_memory(self):
        self.run_code("""
            with hn.using("pool(managed)", least=1) as pool: a = np.arange(MIB)
            g = hc.asarray(a)[10:20].reshape(2, 5).T
            address = a.ctypes.data
            del a; collect()
            assert pool.stats().live == 1 and g.data.ptr == address + 80
            b = hn.asarray(g)[1]
            del g; collect()
            assert pool.stats().live == 1 and list(b) == [11, 16]
            g = hc.asarray(b)
            del b; collect()
            assert pool.stats().live == 1
            del g; collect()
            assert pool.stats().live == 0 and not _share._pending and not _share._lost

            hc.enable("pool(managed)")
            g = cupy.empty(MIB, np.uint8)
            b = hn.asarray(g)[5:]
            hc.disable()
            del g; collect()
            assert hc.resource().stats().live == 1
            b[:] = 3
            del b; collect()
            assert hc.resource().stats().live == 0
            """)

    def test_memory_waits_for_the_stream(self):
        """CuPy drops its array while the device works: NumPy frees nothing before its end."""
        for stream in ("cupy.cuda.Stream.null", "cupy.cuda.Stream(non_blocking=True)"):
            self.run_code(f"""
                with hn.using("pool(managed)", least=1) as pool: a = np.arange(MIB)
                stream = {stream}
                with stream: g = hc.asarray(a)
                last = weakref.ref(g.data.mem._owner.array)
                work = Work(stream)
                del a, g; collect()
                assert pool.stats().live == 1 and len(_share._pending) == 1
                work.end(); stream.synchronize(); collect()
                assert pool.stats().live == 0 and not _share._pending, last()
                # With nothing to wait for it is free at once.
                with hn.using("pool(managed)", least=1): a = np.arange(MIB)
                with stream: g = hc.asarray(a)
                del a, g
                assert pool.stats().live == 0
                """)

    def test_stream_argument_and_record(self):
        self.run_code("""
            one, two = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            with hn.using("pool(managed)", least=1) as pool: a = np.arange(MIB)
            g = hc.asarray(a, stream=one)
            hc.record(g[5:], two)
            hc.record(g, two.ptr)
            assert len(g.data.mem._owner.streams) == 2
            first, second = Work(one), Work(two)
            del a, g; collect()
            first.end(); one.synchronize(); collect()
            assert pool.stats().live == 1
            second.end(); two.synchronize(); collect()
            assert pool.stats().live == 0
            # A stream lives until then.
            with hn.using("pool(managed)", least=1): a = np.arange(MIB)
            stream = cupy.cuda.Stream(non_blocking=True)
            g = hc.asarray(a, stream=stream)
            work = Work(stream)
            del stream, a, g; collect()
            assert pool.stats().live == 1
            work.end(); work.done.wait()
            while _share._pending: _share._poll()
            assert pool.stats().live == 0
            for bad in (hetmem.Stream.HOST, hetmem.Stream.UNKNOWN, -5):
                fails(ValueError, lambda: hc.asarray(np.ones(5), stream=bad), "no stream")
            fails(TypeError, lambda: hc.asarray(np.ones(5), stream="x"), "no stream")
            for good in (0, 1, hetmem.Stream.LEGACY):
                hc.asarray(np.ones(5), stream=good)
            """)

    def test_not_more_than_some(self):
        """The host does not run ahead of the device without an end."""
        self.run_code("""
            stream = cupy.cuda.Stream(non_blocking=True)
            with hn.using("pool(managed)", least=400) as pool:
                works = []
                def later():
                    for work in works: work.end()
                for i in range(_share._MOST_PENDING):
                    works.append(Work(stream)); hc.asarray(np.ones(100), stream=stream)
                assert len(_share._pending) == _share._MOST_PENDING
                thread = threading.Timer(0.2, later); thread.start()
                works.append(Work(stream)); works[-1].end()
                for i in range(5): hc.asarray(np.ones(100), stream=stream)
            assert len(_share._pending) <= _share._MOST_PENDING
            thread.join(); stream.synchronize(); collect()
            assert pool.stats().live == 0
            """)

    def test_to_numpy_waits(self):
        """The CPU reads what the device wrote."""
        self.run_code("""
            hc.enable("pool(managed)")
            g = cupy.empty(8, np.uint8)
            view = hn.asarray(g); view[:] = 0
            # time: how long the device works
            def write(): time.sleep(0.05); ctypes.memset(g.data.ptr, 9, 8)
            stream = cupy.cuda.Stream(non_blocking=True)
            for ask in (lambda: hn.asarray(g, stream=stream),
                        lambda: hn.asarray(g, stream=stream.ptr),
                        lambda: hn.asarray(g, stream=stream, copy=True)):
                work = Work(stream, write)
                work.end()
                assert list(ask()) == [9] * 8 and work.done.is_set()
                view[:] = 0
            with stream:
                work = Work(stream, write); work.end()
                assert list(hn.asarray(g)) == [9] * 8
            """)

    def test_prefetch(self):
        self.run_code("""
            def prefetches():
                found = [call for call in soft_cupy.calls if call[0] == "memPrefetchAsync"]
                soft_cupy.calls.clear()
                return found
            a = shared(lambda: np.arange(1000))
            g = hc.asarray(a, prefetch=True)
            assert prefetches() == [("memPrefetchAsync", 8000, 0)]
            hn.asarray(g[10:20], prefetch=True)
            assert prefetches() == [("memPrefetchAsync", 80, -1)]
            hn.asarray(g); hc.asarray(a)
            # Memory that does not move, and a copy.
            p = shared(lambda: np.arange(1000), "pool(registered)")
            hc.asarray(p, prefetch=True); hc.asarray(np.ones(9), prefetch=True)
            assert prefetches() == []
            # A hint: no error.
            def refuse(*_): raise soft_cupy.runtime.CUDARuntimeError(801)
            soft_cupy.runtime.memPrefetchAsync = refuse
            hc.asarray(a, prefetch=True)
            """, HETMEM_SOFT_MACHINE="managed")

    def test_threads(self):
        self.run_code("""
            errors = []
            with hn.using("pool(managed)", least=400) as pool: pass
            def work(i):
                try:
                    with hn.using("pool(managed)", least=400):
                        for k in range(100):
                            a = np.full(100 + k, i)
                            with cupy.cuda.Stream(non_blocking=True):
                                b = hn.asarray(hc.asarray(a, copy=False), copy=False)
                            assert (b == i).all()
                except BaseException as error: errors.append(error)
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            while _share._pending: _share._poll()
            assert not errors and pool.stats().live == 0, (errors, pool.stats())
            """)

    def test_capture(self):
        """While a stream is captured nothing is asked, and the memory stays."""
        self.run_code("""
            with hn.using("pool(managed)", least=1) as pool: a = np.arange(MIB)
            stream = cupy.cuda.Stream(non_blocking=True)
            g = hc.asarray(a, stream=stream)
            # The driver refuses the question.
            class Captured:
                ptr = stream.ptr
                @property
                def done(self): raise soft_cupy.runtime.CUDARuntimeError(900)
            g.data.mem._owner.streams[:] = [Captured()]
            del a, g; collect()
            assert pool.stats().live == 1 and len(_share._lost) == 1
            """)

    def test_fork(self):
        self.run_code("""
            with hn.using("pool(managed)", least=1): a, b = np.arange(MIB), np.arange(MIB)
            stream = cupy.cuda.Stream(non_blocking=True)
            g, h = hc.asarray(a, stream=stream), hc.asarray(b)
            work = Work(stream)
            del a, g
            assert len(_share._pending) == 1
            pid = os.fork()
            if not pid:
                del h; gc.collect(); _share._poll()
                assert not _share._pending
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            work.end(); stream.synchronize(); collect()
            assert not _share._pending
            """)

    def test_end_of_the_interpreter(self):
        self.run_code("""
            with hn.using("unified", least=1): a, b = np.arange(MIB), np.arange(MIB)
            stream = cupy.cuda.Stream(non_blocking=True)
            sys.keep = [hc.asarray(a), hn.asarray(hc.asarray(b)), hc.asarray(b, stream=stream)]
            # Without Python, which is at its end before the work is.
            soft_cupy.memcpy_async(a.ctypes.data, b.ctypes.data, 8, 4, stream.ptr)
            hc.asarray(a, stream=stream)
            assert len(_share._pending) == 1
            """, HETMEM_SOFT_DELAY="cuMemcpyAsync:3s")

    def test_two_devices(self):
        self.run_code("""
            a = shared(lambda: np.arange(1000.0))
            with cupy.cuda.Device(1):
                g = hc.asarray(a, copy=False)
                assert g.device.id == 1
            assert hn.asarray(g).ctypes.data == a.ctypes.data
            del g; gc.collect()
            assert not _share._lost and cupy.cuda.runtime.getDevice() == 0
            """, HETMEM_SOFT_DEVICES="2")

    def test_blocks(self):
        self.run_code("""
            block = hetmem.resource("pool(managed)").alloc(800)
            g = hc.asarray(block, copy=False).view(np.float64)
            g_ptr = g.data.ptr
            assert g_ptr == block.ptr == hn.asarray(block, copy=False).ctypes.data
            block = hetmem.resource("device-pool").alloc(800)
            g = hc.asarray(block, copy=False)
            assert g.data.ptr == block.ptr
            fails(ValueError, lambda: hn.asarray(block, copy=False), "cannot use the memory")
            assert hn.asarray(block).shape == (800,)
            """, HETMEM_SOFT_MACHINE="managed")


class Documentation(Case):
    def test_blocks(self):
        count = 0
        for page in test_doc.PAGES:
            for code, expected in [*test_doc.python(page, test_doc.ASARRAY),
                                   *test_doc.python(page, test_doc.SPARSE)]:
                with self.subTest(code=code):
                    result = framework.run(
                        [sys.executable, "-c", PROLOGUE.replace("hetmem.cupy as hc", "hetmem")
                         + code], environment={"HETMEM_SOFT_MACHINE": "managed"}, fakes=False)
                    self.assertEqual((result.stderr, result.returncode), ("", 0))
                    self.assertEqual(result.stdout, expected)
                count += 1
        self.assertGreater(count, 1)


class Calls(Case):
    """The functions that PythonFunctionAllocator calls."""

    def test_in_c(self):
        self.run_code("""
            hc.enable("stats(pool(vmm,max=64M))")
            alloc, free = hc._functions()
            assert type(alloc) is type(free) is type(len), (alloc, free)
            ptr = alloc(1000, 0)
            assert ptr % 512 == 0 and hc.resource().stats().requested == 1000
            assert free(ptr, 0) is None and hc.resource().stats().live == 0
            before = sys.getrefcount(None)
            for _ in range(1000): free(alloc(1000, 0), 0)
            assert abs(sys.getrefcount(None) - before) < 100 or sys.version_info >= (3, 12)
            for bad in ((), (1,), (1, 2, 3)):
                fails(TypeError, lambda: alloc(*bad), "two arguments")
                fails(TypeError, lambda: free(*bad), "two arguments")
            fails(TypeError, lambda: alloc("x", 0))
            fails(TypeError, lambda: alloc(1, "x"))
            fails(TypeError, lambda: alloc(1.5, 0))
            fails(TypeError, lambda: free("x", 0))
            fails(OverflowError, lambda: alloc(-1, 0))
            fails(OverflowError, lambda: alloc(1 << 64, 0))
            fails(OverflowError, lambda: alloc(1, 1 << 70))
            for device in (-1, 1, 63, 64, 1 << 31, 1 << 40):
                error = fails(hetmem.HetmemError, lambda: alloc(1, device))
                assert error.errno == errno.ENODEV, (device, error)
            error = fails(cupy.cuda.memory.OutOfMemoryError, lambda: alloc((1 << 64) - 1, 0))
            assert hc.resource().stats().live == 0
            """)

    def test_arrays(self):
        self.run_code("""
            hc.enable("stats(pool(vmm,max=8M))")
            kept = cupy.empty(4 * MIB, np.uint8)
            error = fails(cupy.cuda.memory.OutOfMemoryError,
                          lambda: cupy.empty(16 * MIB, np.uint8),
                          "16,777,216", "so far: 4,194,304")
            assert isinstance(error.__cause__, hetmem.OutOfMemoryError)
            assert "16777216 bytes" in str(error.__cause__)
            array = cupy.empty(2 * MIB, np.uint8)
            assert hc.resource().stats().live == 2
            del array, kept
            assert hc.resource().stats().live == 0
            """)

    def test_the_stream_is_the_current_one(self):
        """As the functions by ctypes have it: by thread, by device, and the null stream."""
        self.run_code("""
            hc.enable()
            lib, seen = hetmem._library.library(), []
            expected = []
            def both():
                seen.append(stream_of())
                expected.append(cupy.cuda.get_current_stream().ptr)
            # A stream's own function, as C calls it.
            address = hc._streams()[0]
            call = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(address)
            older = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(hc._streams()[1])
            def stream_of():
                device = cupy.cuda.runtime.getDevice()
                assert call(device) == older()
                return call(device)
            both()
            with cupy.cuda.Stream(non_blocking=True) as a:
                both()
                with cupy.cuda.Device(1): both()
                with cupy.cuda.Device(1), cupy.cuda.Stream() as b: both()
                thread = threading.Thread(target=both); thread.start(); thread.join()
                both()
            both()
            with cupy.cuda.Stream.ptds: both()
            assert seen == expected and len(set(seen)) == 4, (seen, expected)
            """, HETMEM_SOFT_DEVICES="2")

    def test_blocks_are_of_the_stream(self):
        """Memory that was freed on a busy stream serves that stream only."""
        self.run_code("""
            hc.enable("pool(vmm,max=64M)")
            one, two = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            with one:
                work = Work(one)
                first = cupy.empty(MIB).data.ptr
            with two: assert cupy.empty(MIB).data.ptr != first
            with one: assert cupy.empty(MIB).data.ptr == first
            work.end(); one.synchronize()
            """)

    def test_per_thread_default_stream(self):
        self.run_code("""
            hc.enable()
            address = hc._streams()[0]
            assert ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(address)(0) == 2
            cupy.empty(100)
            """, CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1")

    def test_fallback(self):
        """Without the part in C, or without CuPy's functions, ctypes does it."""
        self.run_code("""
            from hetmem import _library
            import cupy_backends.cuda.stream as backend
            exported = backend.__pyx_capi__
            def both():
                alloc, free = hc._functions()
                free(alloc(1000, 0), 0)
                return type(alloc) is type(len)
            assert both()
            only = dict(exported); del only["get_stream_ptr"]
            for change, fast in (({}, False), (only, True), (None, False),
                                 ({"get_stream_ptr": exported["is_ptds_enabled"]}, False)):
                exported_before = dict(exported)
                exported.clear(); exported.update(change or {})
                assert both() == fast, change
                exported.update(exported_before)
            part = _library.part
            def missing(name): raise hetmem.HetmemError(errno.ENOENT, name)
            _library.part = missing
            assert not both()
            _library.part = lambda name: "/dev/null"
            assert not both()
            _library.part = part
            assert both()
            """)

    def test_python_runs_meanwhile(self):
        """An allocation that the driver makes wait does not stop other threads."""
        self.run_code("""
            hc.enable("pool(vmm)")
            alloc, free = hc._functions()
            free(alloc(1000, 0), 0)
            count = [0]
            def work():
                while True: count[0] += 1; time.sleep(0.001)  # time: the pace of counting
            threading.Thread(target=work, daemon=True).start()
            while not count[0]: time.sleep(0.001)
            # From here on no thread runs unless this one lets it.
            sys.setswitchinterval(1000)
            # On a busy machine the other one may come late: then wait once more.
            for _ in range(10):
                before = count[0]; alloc(64 * MIB, 0); after = count[0]
                if after > before: break
            sys.setswitchinterval(0.005)
            assert after > before
            """, HETMEM_SOFT_DELAY="cuMemCreate:300ms")

    def test_threads(self):
        self.run_code("""
            hc.enable("stats(device-pool)")
            def work():
                with cupy.cuda.Stream(non_blocking=True):
                    for i in range(500): cupy.empty(1000 + i, np.uint8)
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            stats = hc.resource().stats()
            assert (stats.live, stats.allocs) == (0, 2000), stats
            """)

    def test_end_of_the_interpreter(self):
        self.run_code("""
            hc.enable()
            sys.keep = [cupy.empty(MIB) for _ in range(10)]
            class Cycle: pass
            cycle = Cycle(); cycle.self = cycle; cycle.array = cupy.empty(10)
            def work():
                while True: cupy.empty(1000)
            for _ in range(3): threading.Thread(target=work, daemon=True).start()
            """)


class Sparse(Case):
    """hetmem.cupy.sparse(): memory that is committed later."""

    def test_rows(self):
        for enable in ("", 'hc.enable("pool(vmm,max=64M)")'):
            with self.subTest(enable=enable):
                self.run_code(f"""
                    {enable}
                    spec = None if hc.enabled() else "pool(vmm,max=64M)"
                    made = hc.sparse((1024, 8, 1024), np.int32, spec=spec)
                    array, pool = made.array, made.resource
                    assert array.shape == (1024, 8, 1024) and array.flags.c_contiguous
                    assert pool.stats().requested == 0 == made.nbytes
                    first = made.commit(64)
                    assert (made.rows, made.nbytes, first.shape) == (64, 2 * MIB, (64, 8, 1024))
                    data = np.arange(64 * 8192, dtype=np.int32).reshape(64, 8, 1024)
                    first.set(data)
                    more = made.commit(65)
                    assert more.data.ptr == first.data.ptr == array.data.ptr
                    assert made.nbytes == 4 * MIB and (cupy.asnumpy(first) == data).all()
                    calls = pool.stats().driver_calls
                    for rows in (128, 70, 0, 128): made.commit(rows)
                    assert pool.stats().driver_calls == calls
                    fails(hetmem.OutOfMemoryError, lambda: hc.sparse(
                        (200, MIB), np.uint8, spec=spec).commit(100))
                    stream = cupy.cuda.Stream()
                    hc.record(more, stream)
                    del made, array, first
                    gc.collect()
                    assert pool.stats().live == 1
                    del more
                    gc.collect()
                    assert pool.stats().live == 0
                    """)

    def test_dimensions_and_bad_input(self):
        self.run_code("""
            made = hc.sparse((4, 64, 4096), np.float16, dim=1)
            part = made.commit(3)
            assert part.shape == (4, 3, 4096) and part.strides == (8192, 32768, 2)
            assert made.array.transpose(1, 0, 2).flags.c_contiguous
            fails(ValueError, lambda: made.commit(65), "max_shape has 64")
            fails(ValueError, lambda: hc.sparse((0, 1)), "max_shape=")
            fails(ValueError, lambda: hc.sparse(4, dim=1), "1 dimensions")
            fails(TypeError, lambda: hc.sparse(4, "nonsense"))
            fails(hetmem.HetmemError, lambda: hc.sparse(4, spec="pool(device)"))
            """)


if __name__ == "__main__":
    tap.main()
