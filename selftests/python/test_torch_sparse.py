# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.torch.sparse(): PyTorch itself over the soft driver, without a GPU.

The environment is that of test_torch_full.py. Kernels do nothing there, so contents come from
copies of contiguous rows. Check mode ends the process where memory that is not committed is used.
"""

import os
import tempfile

import tap
import test_torch_full as full

MODES = {
    "native": "",
    "plain": 'assert ht.enable("pool(vmm,max=64M)", mode="plain") == "plain"\n',
    "full": 'assert ht.enable("pool(vmm,max=64M)", mode="full") == "full"\n',
}
NAMES = """
SPEC = None if MODE != "native" else "pool(vmm,max=64M)"
def sparse(shape, dtype=torch.uint8, **options):
    return ht.sparse(shape, dtype, **{"spec": SPEC, **options})
def numbers(count, first=0):
    return torch.arange(first, first + count, dtype=torch.int32)
def live(resource):
    gc.collect()
    return resource.stats().live
"""


class Sparse(tap.Case):
    def run_code(self, code, modes=MODES, **environment):
        """@code, which has the usual names, succeeds in silence."""
        for mode in modes:
            with self.subTest(mode=mode):
                text = f"MODE = {mode!r}\n" + MODES[mode] + NAMES + tap.textwrap.dedent(code)
                self.silent(full.START + text, **{**full.full_environment(), **environment})

    def test_rows(self):
        """Memory follows the number of rows, and contents and addresses stay."""
        self.run_code("""
            made = sparse((1024, 8, 1024), torch.int32)      # 32 KiB a row, 64 rows a unit
            pool, whole = made.resource, made.tensor
            assert isinstance(made, ht.Sparse) and whole.is_cuda
            assert whole.shape == (1024, 8, 1024) and whole.is_contiguous()
            assert whole.dtype == torch.int32
            stats = pool.stats()
            assert (stats.requested, stats.addresses) == (0, 32 * MIB) == (made.nbytes, 32 * MIB)
            first = made.commit(64)
            assert (made.rows, made.nbytes, pool.stats().requested) == (64, 2 * MIB, 2 * MIB)
            assert first.shape == (64, 8, 1024) and first.data_ptr() == whole.data_ptr()
            first.copy_(numbers(64 * 8192).view(64, 8, 1024))
            more = made.commit(65)
            assert more.data_ptr() == first.data_ptr() and made.nbytes == 4 * MIB
            more[64].copy_(numbers(8192, 7).view(8, 1024))
            assert torch.equal(first.cpu().view(-1), numbers(64 * 8192))
            assert torch.equal(more[64].cpu().view(-1), numbers(8192, 7))
            # Within a unit nothing is called, and nothing is given back.
            calls = pool.stats().driver_calls
            for rows in (65, 128, 100, 66):
                assert made.commit(rows).shape[0] == rows == made.rows
            assert pool.stats().driver_calls == calls and made.nbytes == 4 * MIB
            # The first rows keep their memory when later ones lose theirs.
            made.commit(1)
            assert (made.nbytes, pool.stats().requested) == (2 * MIB, 2 * MIB)
            assert torch.equal(first.cpu().view(-1), numbers(64 * 8192))
            assert made.commit(0).shape[0] == 0 == pool.stats().requested
            # Parked units serve the same rows without a call of the VMM interface.
            held = pool.stats().reserved
            made.commit(128)
            assert pool.stats().reserved == held
            made.commit(1024)
            assert pool.stats().requested == 32 * MIB == made.nbytes
            """)

    def test_parked_without_calls(self):
        """Rows that come and go in a steady state call nothing."""
        self.run_code("""
            made = sparse(32 * MIB)
            def turn():
                for rows in (MIB, 5 * MIB, 9 * MIB, 3 * MIB, 0):
                    made.commit(rows)
            turn()
            calls = made.resource.stats().driver_calls
            for _ in range(20): turn()
            assert made.resource.stats().driver_calls == calls
            """)

    def test_dimensions(self):
        """Any dimension is outermost in memory; the others keep their order."""
        self.run_code("""
            for dim in (0, 1, 2, -1):
                made = sparse((4, 64, 4096), torch.float16, dim=dim)
                whole, index = made.tensor, dim % 3
                assert whole.shape == (4, 64, 4096) and made.dim == index
                others = [i for i in range(3) if i != index]
                dense = whole.permute(index, *others)
                assert dense.is_contiguous()
                part = made.commit(2)
                assert part.shape[index] == 2
                row = numbers(dense[0].numel()).to(torch.float16).view(dense[0].shape)
                part.select(index, 1).copy_(row)
                assert torch.equal(part.select(index, 1).cpu(), row)
                del made, whole, dense, part
            """)

    def test_lives_as_long_as_a_tensor(self):
        self.run_code("""
            made = sparse(16 * MIB)
            pool = made.resource
            before = live(pool) - 1
            part = made.commit(4 * MIB)[MIB:2 * MIB]
            part.copy_(torch.full((MIB,), 5, dtype=torch.uint8))
            del made
            assert live(pool) == before + 1 and (part.cpu() == 5).all()
            del part
            assert live(pool) == before and pool.stats().requested == 0
            # The next one of this size finds the memory of the last one in place.
            calls = pool.stats().driver_calls
            again = sparse(16 * MIB)
            again.commit(4 * MIB)
            # Plain mode's pool has seen two streams: it records events.
            assert pool.stats().driver_calls == calls or MODE == "plain"
            again = None
            pool.trim()
            assert pool.stats().reserved == 0 == pool.stats().addresses
            """)

    def test_units(self):
        """unit= of the pool, and the end of a block within a unit."""
        self.run_code("""
            for spec, unit in (("pool(vmm,unit=2M)", 2), ("pool(vmm,unit=6M)", 6),
                               ("binning(pool(vmm),pool(vmm,unit=16M),at=1M)", 16)):
                made = sparse((33, MIB), spec=spec)
                for rows in (1, 5, 6, 7, 32, 33):
                    made.commit(rows)
                    assert made.nbytes == -(-rows // unit) * unit * MIB, (spec, rows)
                    assert made.resource.stats().requested == made.nbytes
                del made
            small = sparse(1000, spec="pool(vmm,unit=64M)")
            assert small.commit(1000).numel() == 1000
            """, modes=["native"])

    def test_bad_input(self):
        self.run_code("""
            for shape in ((), (0,), (3, 0), (-1,), -1):
                fails(ValueError, lambda: sparse(shape), "max_shape=")
            fails(TypeError, lambda: sparse((1.5,)))
            for dim in (2, -3):
                fails(ValueError, lambda: sparse((2, 2), dim=dim), "2 dimensions")
            fails(TypeError, lambda: sparse(1, "float16"), "torch.float16")
            fails(ValueError, lambda: sparse(1, device="cpu"), "no CUDA device")
            fails(hetmem.HetmemError, lambda: sparse(1, device="cuda:7"))
            fails(hetmem.HetmemError, lambda: sparse(1, spec="pool(device)"))
            fails(hetmem.HetmemError, lambda: sparse(1, spec="nonsense"))
            for size in (1 << 62, 1 << 63):
                fails(torch.OutOfMemoryError, lambda: sparse(size))
            fails((OverflowError, RuntimeError), lambda: sparse((1 << 62, 1 << 62)))
            made = sparse((8, MIB))
            for rows in (-1, 9):
                fails(ValueError, lambda: made.commit(rows), "max_shape has 8")
            fails(TypeError, lambda: made.commit(1.5))
            assert made.rows == 0 == made.nbytes
            # Only its device can use the memory.
            part = made.commit(1)
            assert not ht.is_unified(part)
            for call in (ht.cpu, ht.cuda, lambda t: ht.move(t, "cpu")):
                fails(hetmem.HetmemError, lambda: call(part), "not unified")
            """)

    def test_out_of_memory(self):
        """An error changes nothing, and is PyTorch's, too."""
        self.run_code("""
            made = sparse((128, MIB))
            made.commit(10).copy_(torch.full((10, MIB), 3, dtype=torch.uint8))
            error = fails(torch.OutOfMemoryError, lambda: made.commit(100), "out of memory")
            assert isinstance(error, hetmem.OutOfMemoryError)
            assert (made.rows, made.nbytes) == (10, 10 * MIB)
            assert (made.tensor[:10].cpu() == 3).all()
            made.commit(12)
            """)

    def test_memory_of_pytorch(self):
        """What PyTorch's own allocator has free serves a commit."""
        self.run_code("""
            held = [empty(20 * MIB) for _ in range(8)]
            del held
            made = ht.sparse((200, MIB), torch.uint8, spec="pool(vmm)")
            made.commit(150)
            """, modes=["native"])

    def test_full_mode_is_one_memory(self):
        self.run_code("""
            made = ht.sparse((64, MIB), torch.uint8)
            assert made.resource.pointer == ht.resource().pointer
            made.commit(40)
            fails(RuntimeError, lambda: empty(30 * MIB), "out of memory")
            # Parked units serve PyTorch's tensors, and the other way round.
            made.commit(2)
            other = empty(30 * MIB)
            fails(torch.OutOfMemoryError, lambda: made.commit(40))
            del other
            made.commit(60)
            """, modes=["full", "plain"])

    def test_streams(self):
        """A commit is ordered after the last use elsewhere, and records its stream."""
        self.run_code("""
            made = sparse((16, MIB))
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                made.commit(8).copy_(torch.full((8, MIB), 9, dtype=torch.uint8))
                made.commit(0)
            other = sparse((16, MIB))
            other.commit(8).copy_(torch.full((8, MIB), 4, dtype=torch.uint8))
            torch.cuda.synchronize()
            assert (other.tensor[:8].cpu() == 4).all()
            if MODE != "native":
                other.tensor.record_stream(side)
            del made, other
            torch.cuda.synchronize()
            """)

    def test_capture(self):
        self.run_code("""
            made = sparse((16, MIB))
            part = made.commit(2)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                error = fails(hetmem.HetmemError, lambda: made.commit(8), "before the capture")
                assert error.errno == errno.EBUSY
                assert made.commit(1).shape[0] == 1
                fails(hetmem.HetmemError, lambda: sparse(1), "before the capture")
                part[0].copy_(part[1])
            graph.replay()
            torch.cuda.synchronize()
            """, modes=["native", "full"])

    def test_sleep(self):
        """The memory sleeps by its tag, with and without contents."""
        self.run_code("""
            fails(hetmem.HetmemError, lambda: ht.sleep("kv")) if MODE == "native" else None
            made = ht.sparse((16, MIB), torch.uint8, tag="kv")
            assert ht.sparse(MIB, torch.uint8, tag="kv").resource.pointer == made.resource.pointer
            kept = torch.arange(4 * MIB, dtype=torch.int32).view(torch.uint8).view(16, MIB)
            part = made.commit(16)
            part.copy_(kept)
            ht.sleep("kv")
            assert made.resource.stats().reserved == 0
            assert torch.equal(ht.parked(part[3:5]), kept[3:5])
            error = fails(hetmem.HetmemError, lambda: made.commit(1))
            assert error.errno == errno.EBUSY and made.rows == 16
            ht.wake("kv")
            assert torch.equal(part.cpu(), kept)
            made.commit(4)
            ht.sleep("kv", keep=False)
            error = fails(hetmem.HetmemError, lambda: ht.parked(part[:1]))
            assert error.errno == errno.ENODATA
            ht.wake()
            assert made.resource.stats().requested == 4 * MIB
            made.commit(6)
            ht.sleep()
            assert made.resource.stats().reserved == 0
            ht.wake()
            """)

    def test_region(self):
        """A region has no part in it: sparse blocks have no tags of their own."""
        self.run_code("""
            with ht.region("kv", scratch=True):
                made = ht.sparse((16, MIB), torch.uint8)
            part = made.commit(4)
            part.copy_(torch.full((4, MIB), 6, dtype=torch.uint8))
            ht.sleep("kv")
            made.commit(8)
            ht.wake("kv")
            ht.sleep()
            assert ht.stats().parked >= 8 * MIB
            ht.wake()
            assert (part.cpu() == 6).all()
            """, modes=["plain", "full"])

    def test_many(self):
        """Blocks of addresses cost no memory."""
        self.run_code("""
            made = [sparse((1024, MIB)) for _ in range(20)]
            pool = made[0].resource
            assert pool.stats().requested == 0 and pool.stats().addresses == 20 << 30
            for one in made:
                one.commit(8)
                one.commit(0)
            assert pool.stats().reserved <= 64 * MIB
            assert len({one.tensor.data_ptr() for one in made}) == 20
            assert "0 of 1024" in repr(made[0])
            """)

    def test_threads(self):
        """Threads that commit one tensor end with the number of one of them."""
        self.run_code("""
            made = sparse((32, MIB))
            def work(seed):
                for i in range(200):
                    made.commit((seed * 7 + i * 5) % 33)
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            made.commit(32)
            assert made.nbytes == 32 * MIB == made.resource.stats().requested
            """)

    def test_fork(self):
        """A child that drops an inherited tensor is silent, and can make none on the device."""
        self.run_code("""
            made = sparse((16, MIB))
            part = made.commit(4)
            pid = os.fork()
            if not pid:
                del made, part
                gc.collect()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            part.cpu()
            made.commit(8)
            """)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
