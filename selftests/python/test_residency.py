# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Where arrays are, as runs, as an array and as a picture."""

import array
import mmap
import re
import xml.etree.ElementTree

import hetmem
import numpy as np
import tap
from hetmem import place as module

PAGE = mmap.PAGESIZE
MIB = 1 << 20


class Tensor:
    """What is used of a tensor of PyTorch."""

    def __init__(self, of):
        self.of = of
        self.shape = of.shape

    def data_ptr(self):
        return self.of.ctypes.data

    def element_size(self):
        return self.of.itemsize

    def stride(self):
        return tuple(stride // self.of.itemsize for stride in self.of.strides)


class OnDevice:
    """What is used of an array of CuPy."""

    def __init__(self, of, strides=None):
        self.__cuda_array_interface__ = {
            "shape": of.shape, "typestr": of.dtype.str, "strides": strides,
            "data": (of.ctypes.data, False), "version": 3}


class Extents(tap.Case):
    def test_arrays(self):
        base = np.zeros((40, 50), np.float64)
        at = base.ctypes.data
        cases = [
            (base, at, 16000), (base[3:5], at + 1200, 800), (base[:, 7], at + 56, 15608),
            (base[::-1, ::-1], at, 16000), (base.T[2:4], at + 16, 15616),
            (base[5, 6], None, 8), (base[:0], at, 0), (np.zeros(()), None, 8),
        ]
        for thing, start, size in cases:
            found = module.extent(thing)
            self.assertEqual(found[1], size)
            if start is not None:
                self.assertEqual(found[0], start)
            if isinstance(thing, np.ndarray) and thing.size:
                self.assertEqual(module.extent(Tensor(thing)), found)
        self.assertEqual(module.extent(OnDevice(base)), (at, 16000))
        self.assertEqual(module.extent(OnDevice(base[::2], base[::2].strides)),
                         (at, 19 * 800 + 400))

    def test_types(self):
        for dtype in ("?", "S5", "U8", "V7", "M8[ns]", "m8", "c16", "O", [("a", "i4")]):
            base = np.zeros(10, dtype)
            expected = (base.ctypes.data, base.nbytes)
            self.assertEqual(module.extent(base), expected, dtype)

    def test_addresses(self):
        with self.assertRaises(ValueError):
            hetmem.residency(-PAGE, PAGE)
        with self.assertRaises(OverflowError):
            hetmem.residency(1 << 64, PAGE)

    def test_buffers(self):
        self.assertEqual(module.extent(b"abc")[1], 3)
        self.assertEqual(module.extent(bytearray(10))[1], 10)
        values = array.array("d", range(100))
        self.assertEqual(module.extent(values), (values.buffer_info()[0], 800))
        view = memoryview(values)[10:50:3]
        self.assertEqual(module.extent(view),
                         (values.buffer_info()[0] + 80, 13 * 24 + 8))
        block = hetmem.resource("device-pool").alloc(1000)
        self.assertEqual(module.extent(block), (block.ptr, 1000))

    def test_others(self):
        for thing in (None, object(), 3.5, [1]):
            with self.assertRaisesRegex(TypeError, "no memory to look at"):
                hetmem.residency(thing)
        self.assertRaises(ValueError, hetmem.residency, 4096, -1)


class Residencies(tap.Case):
    def setUp(self):
        # One touched page, two holes, one touched page, and a hole.
        self.map = mmap.mmap(-1, 5 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.map[0] = self.map[3 * PAGE] = 1

    def test_runs(self):
        found = hetmem.residency(self.map)
        self.assertEqual([(run.kind, (run.end - run.start) // PAGE) for run in found],
                         [("host", 1), ("unknown", 2), ("host", 1), ("unknown", 1)])
        self.assertRegex(found[0].location, r"^(host node|device) \d+")
        self.assertEqual(sorted(found.bytes().values()), [2 * PAGE, 3 * PAGE])
        self.assertEqual(found.start, found[0].start)
        self.assertIn("B unknown", repr(found))

    def test_parts_of_pages_count_in_part(self):
        view = memoryview(self.map)[100:PAGE + 50]
        self.assertEqual(list(hetmem.residency(view).bytes().values()), [PAGE - 100, 50])
        view.release()

    def test_more_runs_than_one_call_has(self):
        pages = 3000
        much = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        much.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, pages, 2):
            much[page * PAGE] = 1
        found = hetmem.residency(much)
        self.assertEqual(len(found), pages)
        self.assertEqual(set(found.bytes().values()), {pages // 2 * PAGE})
        self.assertTrue(all(a.end == b.start for a, b in zip(found, found[1:])))

    def test_unmapped(self):
        found = hetmem.residency(PAGE, 2 * PAGE)
        self.assertEqual([run.kind for run in found], ["unmapped"])
        with self.assertRaises(hetmem.HetmemError):
            hetmem.residency(2 ** 64 - PAGE, 2 * PAGE)

    def test_numpy(self):
        found = np.asarray(hetmem.residency(self.map))
        self.assertEqual(found.dtype.names[:3], ("start", "end", "kind"))
        self.assertEqual((found["end"] - found["start"])[found["kind"] == "host"].sum(),
                         2 * PAGE)
        self.assertEqual(len(np.asarray(hetmem.residency(b"").runs)), 0)
        empty = np.asarray(hetmem.residency(np.zeros(0)))
        self.assertEqual((empty.shape, empty.dtype), ((0,), found.dtype))

    def test_pictures(self):
        for thing in (self.map, np.ones(3 * MIB), np.zeros(0), b"x",
                      hetmem.resource("pool(managed)").alloc(MIB)):
            found = hetmem.residency(thing)
            picture = found._repr_html_()
            root = xml.etree.ElementTree.fromstring(f"<div>{picture}</div>")
            self.assertEqual(len(root.findall(".//tr")), len(found.bytes()))
            width = sum(float(shape.get("width")) * float(shape.get("height"))
                        for shape in root.iter("{http://www.w3.org/2000/svg}rect")
                        if shape.get("fill") != "none")
            self.assertAlmostEqual(width, 600 * 40 if found.size else 0, delta=600)
        picture = hetmem.residency(self.map).svg(width=500, height=10)
        # Five pages, four runs; a column where two of them meet has both colours.
        fills = re.findall(r'width="([\d.]+)" height="[\d.]+" fill="(#\w+)"', picture)
        fills = [(width, fill) for width, fill in fills if float(width) > 10]
        self.assertEqual([round(float(width) / 100) for width, _ in fills], [1, 2, 1, 1])
        self.assertEqual((fills[0][1], fills[1][1]), (fills[2][1], fills[3][1]))
        self.assertNotEqual(fills[0][1], fills[1][1])

    def test_pictures_are_small(self):
        pages = 3000
        much = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        much.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, pages, 2):
            much[page * PAGE] = 1
        self.assertLess(len(hetmem.residency(much)._repr_html_()), 60000)

    def test_names_are_escaped(self):
        run = module.Run(0, 10, "device", 0, "<b>&", 0, "", "driver")
        self.assertNotIn("<b>", module.Residency(0, 10, [run])._repr_html_())


if __name__ == "__main__":
    tap.main()
