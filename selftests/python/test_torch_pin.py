# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.torch.pin(): PyTorch itself over the soft driver, without a GPU.

The environment is that of test_torch_full.py.
"""

import os
import tempfile

import tap
import test_torch_full as full


class Pin(tap.Case):
    def run_code(self, code):
        """@code, which has the usual names, succeeds in silence."""
        self.silent(full.START + tap.textwrap.dedent(code), **full.full_environment())

    def test_exact(self):
        """It pins what was asked for, in pages, and the copy is equal in all."""
        self.run_code("""
            pool = ht.pinned_resource()
            assert pool.stats().reserved == 0
            for size in (21390950, 9 * MIB + 1, 2 * MIB):
                made = ht.pin(size)
                assert (made.numel(), made.dtype, made.device.type) == (size, torch.uint8, "cpu")
                assert size <= pool.stats().reserved <= size + 4096 + (0 if size > 2 * MIB else 2 * MIB)
                made[:] = 3
                del made
                pool.trim()
                assert pool.stats().reserved == 0
            for tensor in (torch.arange(300000.), torch.arange(24).view(2, 3, 4).permute(2, 0, 1),
                           torch.ones(3, requires_grad=True), torch.empty(0), torch.tensor(5),
                           torch.arange(10)[::2], torch.zeros(3, 0, 2, dtype=torch.bfloat16)):
                made = ht.pin(tensor)
                assert torch.equal(made, tensor) and made.dtype == tensor.dtype
                assert made.stride() == torch.empty_like(tensor).stride()
                assert not made.requires_grad
                assert tensor.numel() == 0 or made.data_ptr() != tensor.data_ptr()
            """)

    def test_lives_as_long_as_a_tensor(self):
        self.run_code("""
            pool = ht.pinned_resource()
            made = ht.pin(torch.arange(MIB))
            part = made[5:9]
            del made
            gc.collect()
            assert pool.stats().live == 1 and part.tolist() == [5, 6, 7, 8]
            # A device has the same memory, and a stream that uses it is recorded.
            there = ht.cuda(part)
            assert there.is_cuda and there.data_ptr() == part.data_ptr()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                copy = torch.empty(4, dtype=torch.int64, device="cuda")
                copy.copy_(part, non_blocking=True)
            ht.record_stream(part, stream)
            del part, there
            gc.collect()
            assert pool.stats().live == 0
            stream.synchronize()
            assert copy.tolist() == [5, 6, 7, 8]
            source = torch.arange(MIB).cuda()
            back = ht.pin(source)
            assert torch.equal(back, torch.arange(MIB)) and back.device.type == "cpu"
            """)

    def test_bad_input(self):
        self.run_code("""
            for what in (-1, True): fails(ValueError, lambda: ht.pin(what), "number of bytes")
            for what in (1.5, "8", None, [1]): fails(TypeError, lambda: ht.pin(what))
            fails(ValueError, lambda: ht.pin(torch.eye(3).to_sparse()), "dense")
            fails(torch.OutOfMemoryError, lambda: ht.pin(1 << 50))
            fails(hetmem.HetmemError, lambda: ht.pinned_resource(9))
            assert ht.pin(5).numel() == 5
            """)

    def test_fork(self):
        self.run_code("""
            made = ht.pin(torch.arange(1000))
            pid = os.fork()
            if not pid:
                other = ht.pin(torch.arange(10))
                del made, other
                gc.collect()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert made.sum() == 499500
            """)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
