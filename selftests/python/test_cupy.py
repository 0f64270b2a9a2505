# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.cupy with what it uses of CuPy played by fakes/cupy.py."""

import framework
import tap


class CuPy(framework.Case):
    """With the functions in C, and CuPy's of today."""

    imports = "import cupy, hetmem.cupy as hc"
    streams = "get_stream_ptr get_current_stream_ptr"

    def run_code(self, code, **environment):
        super().run_code(code, FAKE_CUPY_STREAMS=self.streams, **environment)

    def test_functions(self):
        self.run_code(f"""
            hc.enable("stats(pool(vmm,max=64M))")
            alloc, free = hc._functions()
            assert (type(alloc) is type(len)) == {bool(self.streams)}, alloc
            cupy._local.stream = 2
            ptr = alloc(1000, 0)
            assert ptr % 512 == 0 and hc.resource().stats().requested == 1000
            assert free(ptr, 0) is None and hc.resource().stats().live == 0
            for bad in ((), (1,), (1, 2, 3)):
                fails(TypeError, lambda: alloc(*bad))
                fails(TypeError, lambda: free(*bad))
            for device in (-1, 7):
                error = fails(hetmem.HetmemError, lambda: alloc(1, device))
                assert error.errno == errno.ENODEV
            fails(cupy.OutOfMemoryError, lambda: alloc(1 << 50, 0))
            for _ in range(3000): free(alloc(1000, 0), 0)
            assert hc.resource().stats().live == 0
            """)

    def test_arrays(self):
        self.run_code("""
            before = cupy.cuda.get_allocator()
            assert not hc.enabled()
            fails(hetmem.HetmemError, hc.resource, "enable()")
            hc.enable("stats(pool(vmm,max=64M))")
            array, none = cupy.empty(MIB), cupy.empty(0)
            assert hc.enabled() and hc.resource().stats().requested == MIB
            assert array.data.ptr % 512 == 0 == none.data.ptr
            hc.disable()
            assert cupy.cuda.get_allocator() is before
            assert hc.resource().stats().live == 1
            del array
            assert hc.resource().stats().live == 0
            hc.disable()
            hc.enable("stats(pool(vmm,max=64M))")
            """)

    def test_out_of_memory(self):
        self.run_code("""
            hc.enable("pool(vmm,max=8M)")
            kept = cupy.empty(4 * MIB)
            error = fails(cupy.OutOfMemoryError, lambda: cupy.empty(16 * MIB),
                          "16,777,216", "so far: 4,194,304")
            assert isinstance(error.__cause__, hetmem.OutOfMemoryError)
            assert "16777216 bytes" in str(error.__cause__)
            cupy.empty(2 * MIB)
            cupy.cuda.device = 7
            error = fails(hetmem.HetmemError, lambda: cupy.empty(1))
            assert error.errno == errno.ENODEV
            for device in (7, -1):
                error = fails(hetmem.HetmemError, lambda: hc.resource(device))
                assert error.errno == errno.ENODEV
            fails(OverflowError, lambda: hc.resource(1 << 32))
            """)

    def test_devices_and_streams(self):
        self.run_code("""
            hc.enable()
            arrays = []
            for cupy.cuda.device in (0, 1):
                for cupy._local.stream in (0, 1, 2): arrays.append(cupy.empty(MIB))
            assert hc.resource(0).stats().live == hc.resource(1).stats().live == 3
            for array in arrays: hc.record(array, 1)
            arrays.clear()
            array = None
            assert hc.resource(0).stats().live == hc.resource(1).stats().live == 0
            """, HETMEM_SOFT_DEVICES="2")

    def test_twice_and_wrong(self):
        self.run_code("""
            fails(hetmem.HetmemError, lambda: hc.enable("pool(vm)"), "no resource")
            assert not hc.enabled() and "HETMEM_RESOURCE" not in os.environ
            hc.enable()
            assert fails(hetmem.HetmemError, hc.enable).errno == errno.EALREADY
            hc.disable()
            with hc.using():
                fails(ValueError, hc.enable, "using_allocator")
                assert not hc.enabled()
                cupy.empty(100)
            """)
        self.silent("""
            import hetmem.cupy
            try: hetmem.cupy.enable()
            except ImportError: print("no cupy")
            """, "no cupy\n")

    def test_one_spec_for_the_process(self):
        self.run_code("""
            import torch, hetmem.torch as ht
            hc.enable("pool(vmm,max=64M)")
            error = fails(hetmem.HetmemError, lambda: ht.enable("pool(vmm)"), "max=64M")
            assert error.errno == errno.EBUSY and ht.enabled() is None
            ht.enable()
            tensor, array = torch.empty(MIB), cupy.empty(MIB)
            assert ht.resource().stats().live == 2
            assert ht.resource().pointer == hc.resource().pointer
            """)

    def test_threads(self):
        self.run_code("""
            hc.enable()
            def work():
                for i in range(500): cupy.empty(1000 + i)
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            stats = hc.resource().stats()
            assert (stats.live, stats.allocs) == (0, 2000), stats
            with hc.using():
                own = []
                def work():
                    own.append(cupy.cuda.get_allocator())
                thread = threading.Thread(target=work); thread.start(); thread.join()
            assert own == [cupy.cuda.get_allocator()]
            """)

    def test_end_of_the_interpreter(self):
        self.run_code("""
            hc.enable()
            sys.keep = [cupy.empty(MIB) for _ in range(10)]
            array = cupy.empty(10); array.cycle = array
            """)


class Older(CuPy):
    """With CuPy's function of older versions."""

    streams = "get_current_stream_ptr"


class Slow(CuPy):
    """Through ctypes."""

    streams = ""


if __name__ == "__main__":
    tap.main()
