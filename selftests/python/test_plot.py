# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Pictures of residency by matplotlib, and what happens without it."""

import os
import sys
import tempfile

import tap
from hetmem import place

os.environ["MPLBACKEND"] = "agg"
CONFIG = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
os.environ["MPLCONFIGDIR"] = CONFIG.name

from matplotlib import pyplot  # noqa: E402

MIB = 1 << 20


def run(start, end, kind="host", index=0):
    return place.Run(start=start, end=end, kind=kind, index=index, location=f"{kind} {index}",
                     order=0, why="", source="module")


class Plot(tap.Case):
    def bars(self, axes):
        """Bytes by location, from the areas of the bars."""
        found = {}
        for bar in axes.containers:
            found[bar.get_label()] = sum(
                part.get_width() * part.get_height() for part in bar) * MIB
        return {name: round(size) for name, size in found.items()}

    def test_shares(self):
        start = 1 << 40
        where = place.Residency(start, 8 * MIB, [
            run(start - MIB, start + MIB), run(start + MIB, start + 5 * MIB, "device", 1),
            run(start + 5 * MIB, start + 6 * MIB), run(start + 6 * MIB, start + 9 * MIB, "zero")])
        axes = where.plot()
        found = self.bars(axes)
        self.assertEqual(sorted(found), ["device 1", "host 0", "zero 0"])
        for name, size in where.bytes().items():
            self.assertLess(abs(found[name] - size), MIB // 10)
        self.assertEqual(sum(found.values()), 8 * MIB)
        self.assertEqual(axes.get_xlim(), (0, 8))
        self.assertEqual([text.get_text() for text in axes.get_legend().get_texts()], sorted(found))
        pyplot.close("all")

    def test_given_axes(self):
        _, axes = pyplot.subplots()
        where = place.Residency(4096, 8192, [run(4096, 8192), run(8192, 12288, "device")])
        self.assertIs(where.plot(axes), axes)
        self.assertEqual(self.bars(axes), {"host 0": 4096, "device 0": 4096})
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            axes.figure.savefig(file.name)
            self.assertGreater(os.path.getsize(file.name), 1000)
        pyplot.close("all")

    def test_nothing(self):
        axes = place.Residency(4096, 0, []).plot()
        self.assertEqual((self.bars(axes), axes.get_legend()), ({}, None))
        pyplot.close("all")

    def test_without(self):
        before, sys.modules["matplotlib.pyplot"] = sys.modules["matplotlib.pyplot"], None
        try:
            with self.assertRaisesRegex(ImportError, "needs matplotlib.*svg"):
                place.Residency(0, 4096, [run(0, 4096)]).plot()
        finally:
            sys.modules["matplotlib.pyplot"] = before


if __name__ == "__main__":
    tap.main()
