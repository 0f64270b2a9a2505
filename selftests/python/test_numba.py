# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.numba, with Numba itself over the soft driver. NUMBA_SITE is the folder of Numba,
LIBCUDA is libcuda.c as a library. There is no compiler of kernels."""

import os
import sys
import textwrap

import framework
import tap
import test_doc

PROLOGUE = f"""
import ctypes, errno, gc, os, sys, threading
sys.path.append({os.environ["NUMBA_SITE"]!r})
os.environ["NUMBA_CUDA_DRIVER"] = {os.environ["LIBCUDA"]!r}
import hetmem
hetmem.default()
import numpy as np
from numba import cuda
MIB = 1 << 20
{tap.FAILS}"""


class Numba(tap.Case):
    def run_code(self, code, **environment):
        self.silent(PROLOGUE + textwrap.dedent(code), **environment)

    def test_arrays(self):
        self.run_code("""
            import hetmem.numba as hb
            fails(hetmem.HetmemError, hb.resource, "enable()")
            assert not hb.enabled()
            hb.enable("stats(pool(vmm,max=64M))")
            a = np.arange(MIB // 8)
            d = cuda.to_device(a)
            assert hb.enabled() and (d.copy_to_host() == a).all()
            stats = hb.resource().stats()
            assert (stats.live, stats.requested) == (1, MIB)
            assert d.device_ctypes_pointer.value % 512 == 0
            part = d[10:20]
            del d; gc.collect()
            assert hb.resource().stats().live == 1 and list(part.copy_to_host()) == list(a[10:20])
            del part; gc.collect()
            assert hb.resource().stats().live == 0
            # Host memory is Numba's own.
            with cuda.pinned(a): pass
            p = cuda.pinned_array(100)
            assert hb.resource().stats().live == 0 and cuda.device_array(0).size == 0
            """)

    def test_by_the_environment(self):
        self.run_code("""
            d = cuda.device_array(1000)
            import hetmem.numba as hb
            assert hb.enabled() and hb.resource().stats().live == 1
            assert fails(hetmem.HetmemError, hb.enable).errno == errno.EALREADY
            """, NUMBA_CUDA_MEMORY_MANAGER="hetmem.numba", HETMEM_RESOURCE="pool(vmm)")

    def test_late_twice_and_wrong(self):
        self.run_code("""
            import hetmem.numba as hb
            fails(hetmem.HetmemError, lambda: hb.enable("pool(vm)"), "no resource")
            assert not hb.enabled() and "HETMEM_RESOURCE" not in os.environ
            hb.enable("pool(vmm)")
            assert fails(hetmem.HetmemError, hb.enable, "already").errno == errno.EALREADY
            """)
        self.run_code("""
            d = cuda.device_array(10)
            import hetmem.numba as hb
            error = fails(hetmem.HetmemError, hb.enable, "before the first use of CUDA")
            assert error.errno == errno.EBUSY and not hb.enabled()
            """)

    def test_out_of_memory(self):
        self.run_code("""
            import hetmem.numba as hb
            hb.enable("pool(vmm,max=8M)")
            kept = cuda.device_array(4 * MIB, np.uint8)
            error = fails(MemoryError, lambda: cuda.device_array(16 * MIB, np.uint8),
                          "16777216 bytes")
            assert isinstance(error, hetmem.OutOfMemoryError)
            cuda.device_array(2 * MIB, np.uint8)
            gc.collect()
            assert hb.resource().stats().live == 1
            # Numba's host memory, which is freed late, is freed before the second try.
            cleared = []
            manager = cuda.current_context().memory_manager
            manager.deallocations.clear = lambda: cleared.append(1)
            fails(MemoryError, lambda: cuda.device_array(16 * MIB, np.uint8))
            assert cleared == [1]
            """)

    def test_memory_info(self):
        self.run_code("""
            import hetmem.numba as hb
            hb.enable("pool(vmm,max=64M)")
            context = cuda.current_context()
            d = cuda.device_array(8 * MIB, np.uint8)
            free, total = context.get_memory_info()
            assert total == 256 * MIB and free == total - 8 * MIB, free
            del d; gc.collect()
            # What the pool keeps is free, too.
            assert context.get_memory_info().free == total
            """)

    def test_ipc(self):
        self.run_code("""
            import hetmem.numba as hb
            hb.enable("pool(vmm)")
            d = cuda.device_array(10)
            error = fails(hetmem.HetmemError, d.get_ipc_handle, "no IPC handle",
                          'enable("pool(device)")')
            assert error.errno == errno.EOPNOTSUPP
            assert isinstance(error.__cause__, cuda.cudadrv.driver.CudaAPIError)
            """)

    def test_reset(self):
        """What a reset has freed is not freed again, whoever has the address then."""
        self.run_code("""
            import hetmem.numba as hb
            hb.enable("pool(vmm,max=64M)")
            old = cuda.device_array(MIB, np.uint8)
            address = old.device_ctypes_pointer.value
            cuda.current_context().reset()
            assert (hb.resource().stats().live, hb.resource().stats().reserved) == (0, 0)
            new = [cuda.device_array(MIB, np.uint8) for _ in range(3)]
            del old; gc.collect()
            assert hb.resource().stats().live == 3
            del new; gc.collect()
            assert hb.resource().stats().live == 0
            cuda.current_context().reset()
            """)

    def test_free_waits_for_all_streams(self):
        """Memory that any stream still uses is nobody's."""
        self.run_code("""
            import hetmem.numba as hb
            hb.enable("pool(vmm,max=4M)")
            stream = cuda.stream()
            kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
            go = threading.Event()
            wait = kind(lambda _: go.wait())
            lib = ctypes.CDLL(os.environ["NUMBA_CUDA_DRIVER"])
            first = cuda.device_array(MIB, np.uint8)
            address = first.device_ctypes_pointer.value
            assert lib.cuLaunchHostFunc(ctypes.c_void_p(stream.handle.value), wait, None) == 0
            del first; gc.collect()
            second = cuda.device_array(MIB, np.uint8)
            assert second.device_ctypes_pointer.value != address
            go.set(); stream.synchronize()
            # Then it is somebody's again: the limit is four of them.
            more = [cuda.device_array(MIB, np.uint8) for _ in range(3)]
            assert hb.resource().stats().live == 4
            """)

    def test_one_spec_for_the_process(self):
        self.run_code("""
            from hetmem import _process
            with _process.choosing("pool(vmm,max=1G)"): pass
            import hetmem.numba as hb
            error = fails(hetmem.HetmemError, lambda: hb.enable("pool(vmm)"), "uses pool")
            assert error.errno == errno.EBUSY and not hb.enabled()
            hb.enable()
            """)

    def test_fork_and_end(self):
        self.run_code("""
            import hetmem.numba as hb
            hb.enable("pool(vmm)")
            sys.keep = [cuda.device_array(100) for _ in range(5)]
            d = cuda.device_array(100)
            pid = os.fork()
            if not pid:
                del d; sys.keep = None; gc.collect()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0 and hb.resource().stats().live == 6
            class Cycle: pass
            cycle = Cycle(); cycle.self = cycle; cycle.array = d
            """)

    def test_without_numba(self):
        self.silent("""
            try: import hetmem.numba
            except ImportError as error: print("no", error.name)
            """, "no numba\n")

    def test_documentation(self):
        """The blocks of the page run."""
        count = 0
        for code, expected in test_doc.python("numba", test_doc.NUMBA):
            with self.subTest(code=code):
                result = framework.run([sys.executable, "-c", PROLOGUE + code])
                self.assertEqual((result.stderr, result.returncode), ("", 0))
                self.assertEqual(result.stdout, expected)
            count += 1
        self.assertGreater(count, 1)


if __name__ == "__main__":
    tap.main()
