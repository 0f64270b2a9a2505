# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.keep: a block that one process hands over, and another one maps."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile

import tap

import hetmem
import hetmem.keep
from hetmem import _command

MIB = 1 << 20
COMMAND = _command.command()

# A worker, which ends before its block is used.
WORKER = """
import ctypes, hetmem, hetmem.keep, sys
pool = hetmem.resource("pool(vmm(export=fd))")
block = pool.alloc(3 * 2**20)
ctypes.memset(block.ptr, 42, block.size)
with hetmem.keep.Keeper(sys.argv[1]) as keeper:
    keeper.keep(block, "weights")
"""


class Keep(tap.Case):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "socket")
        self.keeper = subprocess.Popen(
            [COMMAND, "keep", "--socket", self.path], stdout=subprocess.PIPE, text=True
        )
        self.assertIn(self.path, self.keeper.stdout.readline())

    def tearDown(self):
        self.keeper.terminate()
        self.assertEqual(self.keeper.wait(), 0)
        self.keeper.stdout.close()
        shutil.rmtree(self.folder)

    def test_worker_after_worker(self):
        subprocess.run([sys.executable, "-c", WORKER, self.path], check=True)
        keeper = hetmem.keep.Keeper(self.path)
        (entry,) = keeper
        self.assertEqual((entry.name, entry.bytes, entry.users), ("weights", 4 * MIB, 0))
        self.assertEqual((entry.uid, entry.mode), (os.geteuid(), 0o600))
        with keeper.map("weights") as kept:
            self.assertEqual(kept.size, 4 * MIB)
            self.assertEqual(ctypes.string_at(kept.ptr, 3 * MIB), b"*" * (3 * MIB))
            self.assertEqual(kept.__cuda_array_interface__["data"], (kept.ptr, False))
            self.assertEqual([e.users for e in keeper], [1])
        with self.assertRaises(ValueError):
            kept.__cuda_array_interface__
        keeper.drop("weights")
        self.assertEqual(list(keeper), [])
        for call in keeper.map, keeper.drop:
            with self.assertRaises(hetmem.HetmemError) as caught:
                call("weights")
            self.assertEqual(caught.exception.errno, errno.ENOENT)
        keeper.close()
        keeper.close()
        with self.assertRaises(ValueError):
            keeper.drop("x")

    def test_errors(self):
        with hetmem.keep.Keeper(self.path) as keeper:
            block = hetmem.resource("pool(vmm)").alloc(2 * MIB)
            with self.assertRaises(hetmem.HetmemError) as caught:
                keeper.keep(block, "x")
            self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
            with self.assertRaises(hetmem.HetmemError) as caught:
                keeper.keep(block, "x y")
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            block.free()
        with self.assertRaises(hetmem.HetmemError) as caught:
            hetmem.keep.Keeper(self.path + "-none")
        self.assertEqual(caught.exception.errno, errno.ENOENT)


tap.main()
