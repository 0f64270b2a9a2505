# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""python -m hetmem.trace: snapshots of PyTorch become recordings, and nothing in them runs."""

import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import tempfile

import tap
from hetmem import trace

MIB = 1 << 20
AT = 0x7f0000000000


def entry(action, at, size, time, stream=0, **more):
    return {"action": action, "addr": at, "size": size, "stream": stream, "time_us": time,
            "frames": [{"name": "f", "filename": "f.py", "line": 3}], **more}


def segment(at, blocks, device=0, stream=0):
    """@blocks: state and size, and what else there is."""
    made = []
    for state, size, *more in blocks:
        made.append({"state": state, "size": size, "frames": [], **(more[0] if more else {})})
    return {"address": at, "device": device, "stream": stream, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "blocks": made,
            "total_size": sum(block["size"] for block in made)}


def snapshot():
    """Two blocks are older than the recording; one of them is freed in it."""
    a, b, c, old, older = (AT + i * 32 * MIB for i in range(5))
    return {
        "segments": [
            segment(a, [("inactive", 2 * MIB, {"address": a}),
                        ("active_allocated", 512, {"address": a + 2 * MIB,
                                                   "requested_size": 500})]),
            segment(b, [("active_allocated", 4 * MIB, {"requested_size": 4 * MIB - 7})], stream=1),
            segment(older, [("inactive", MIB), ("active_allocated", 2 * MIB),
                            ("active_pending_free", MIB)], stream=99),
            segment(AT * 2, [("active_allocated", MIB)], device=1),
        ],
        "device_traces": [[
            entry("segment_alloc", a, 20 * MIB, 1000),
            entry("alloc", a, 2 * MIB, 1005),
            entry("alloc", b, 4 * MIB - 7, 1006, 1),
            entry("free_requested", old, 3 * MIB, 1010, 99),
            entry("oom", 0, 1 << 40, 1011, device_free=77),
            entry("free_completed", old, 3 * MIB, 1012, 99),
            entry("free_requested", a, 2 * MIB, 1020),
            entry("free_completed", a, 2 * MIB, 1021),
            entry("alloc", a, MIB, 1022, 0x55550000),
            # A history that skips requests.
            entry("free_completed", a, MIB, 1030, 0x55550000),
            entry("snapshot", 0, 0, 1031),
        ], [entry("snapshot", 0, 0, 1031)]],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }


LINES = f"""\
Thread,Time,Action,Pointer,Size,Stream
0,0,allocate,{AT + 2 * MIB:#x},500,0
0,0,allocate,{AT + 96 * MIB:#x},{3 * MIB},99
0,0,allocate,{AT + 129 * MIB:#x},{2 * MIB},99
0,0,allocate,{AT:#x},{2 * MIB},0
0,1,allocate,{AT + 32 * MIB:#x},{4 * MIB - 7},0
0,5,free,{AT + 96 * MIB:#x},{3 * MIB},99
0,6,allocate failure,0x0,{1 << 40},0
0,15,free,{AT:#x},{2 * MIB},0
0,17,allocate,{AT:#x},{MIB},{0x55550000}
0,25,free,{AT:#x},{MIB},{0x55550000}
"""


def run(*arguments, data=None, folder=None):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, input=data, check=False)


class Trace(tap.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def convert(self, data, *options):
        """The command's result for a pickle, or for what is to be one."""
        if not isinstance(data, bytes):
            data = pickle.dumps(data)
        with open(self.path("snapshot.pickle"), "wb") as file:
            file.write(data)
        return run("-m", "hetmem.trace", "snapshot.pickle", *options, folder=self.folder)

    def refused(self, data, *texts, options=()):
        """One line on stderr, and nothing else."""
        result = self.convert(data, *options)
        self.assertEqual((result.returncode, result.stdout), (2, b""), result.stderr)
        self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
        self.assertTrue(result.stderr.isascii() and b"\x1b" not in result.stderr)
        self.assertIn(b"python -m hetmem.trace: ", result.stderr)
        for text in texts:
            self.assertIn(text.encode(), result.stderr)

    def bad(self, data, *texts):
        """Likewise, without a process for it."""
        if not isinstance(data, bytes):
            data = pickle.dumps(data)
        with self.assertRaises(trace.BadSnapshot) as caught:
            trace.convert(trace.load(io.BytesIO(data)))
        for text in texts:
            self.assertIn(text, str(caught.exception))

    def test_lines(self):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            result = self.convert(pickle.dumps(snapshot(), protocol))
            self.assertEqual((result.stdout.decode(), result.stderr), (LINES, b""))
        result = self.convert(snapshot(), "-o", "trace.csv")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))
        with open(self.path("trace.csv"), encoding="ascii") as file:
            self.assertEqual(file.read(), LINES)

    def test_replay(self):
        lines = self.convert(snapshot()).stdout
        result = run("-m", "hetmem", "replay", "--driver", "soft", "--memory", "--json",
                     "--spec", "pool(vmm)", "-", data=lines)
        self.assertEqual((result.stderr, result.returncode), (b"", 0))
        (found,) = json.loads(result.stdout)
        # The first three and the two after them are live at once.
        self.assertEqual(found["peak_requested"],
                         500 + 3 * MIB + 2 * MIB + 2 * MIB + 4 * MIB - 7)
        self.assertEqual(found["failures"], 0)

    def test_devices(self):
        made = snapshot()
        made["device_traces"][1].append(entry("alloc", AT * 3, MIB, 5))
        self.refused(made, "devices 0, 1: choose one by --device")
        self.assertEqual(self.convert(made, "--device", "0").stdout.decode(), LINES)
        lines = self.convert(made, "--device", "1").stdout.decode().splitlines()[1:]
        self.assertEqual(lines, [f"0,0,allocate,{AT * 2:#x},{MIB},0",
                                 f"0,0,allocate,{AT * 3:#x},{MIB},0"])
        for device in ("2", "-1"):
            self.refused(made, "no events of device " + device, options=("--device", device))

    def test_old_versions(self):
        """Without times."""
        made = snapshot()
        for each in made["device_traces"][0]:
            del each["time_us"]
        self.assertEqual([event.time for event in trace.convert(made)],
                         [0, 0, 0, 0, 1, 2, 3, 5, 7, 8])

    def test_nothing_runs(self):
        class Runs:
            def __init__(self, function, *arguments):
                self.what = function, arguments

            def __reduce__(self):
                return self.what

        mark = self.path("ran")
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            for bad in (Runs(os.mkdir, mark), Runs(eval, f"open({mark!r}, 'w')"),
                        Runs(os.system, f"touch {mark}"), Runs(exec, "print(1)")):
                self.bad(pickle.dumps({**snapshot(), "more": bad}, protocol), "refers to")
            self.bad(pickle.dumps({**snapshot(), "more": [trace.Event]}, protocol),
                     "refers to hetmem.trace.Event")
        self.bad(b"(S'touch ran'\nios\nsystem\n.", "refers to os.system")
        self.bad(b"cbuiltins\ngetattr\n.", "refers to builtins.getattr")
        self.refused(b"cos\nsystem\n(S'touch ran'\ntR.", "refers to os.system")
        # Names that would write on a terminal.
        self.refused(b"cos\n\x1b[31m\xc3\xa4\n.", r"\x1b[31m")
        self.bad(b"Pid\n.", "UnpicklingError")
        self.assertEqual(os.listdir(self.folder), ["snapshot.pickle"])

    def test_memory_is_bounded(self):
        """Where Python keeps a table for it, this index takes 2 GiB."""
        self.refused(b"\x80\x02Nr" + struct.pack("<I", 1 << 27) + b".")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(peak, 3 << 19)

    def test_no_pickle(self):
        good = pickle.dumps(snapshot())
        for bad in (b"", b"x", b"PK\x03\x04", b"\x80\x05", good[:-1], good[: len(good) // 2],
                    b"\x80\xff.", b".", b"0.", b"I1\n"):
            self.bad(bad, "it is no pickle")
        self.refused(good[:-1], "it is no pickle")
        for bad in (None, 3, [], "text", {}, {"device_traces": {}}, [snapshot()]):
            self.bad(bad, "the snapshot has no list device_traces")

    def test_damaged(self):
        for change, text in (
            (lambda s: s.update(device_traces=[3]), "device_traces[0] is no list"),
            (lambda s: s.update(device_traces=[]), "_record_memory_history()"),
            (lambda s: s["device_traces"][0].clear(), "_record_memory_history()"),
            (lambda s: s["device_traces"][0].insert(1, 5), "device_traces[0][1] has no action"),
            (lambda s: s["device_traces"][0][5].pop("action"), "device_traces[0][5] has no"),
            (lambda s: s.pop("segments"), "no list segments"),
            (lambda s: s.update(segments=[7]), "segments[0] has no list blocks"),
            (lambda s: s["segments"][0]["blocks"].append(7), "segments[0].blocks[2] is no block"),
            (lambda s: s["segments"][0]["blocks"][1].update(size=-1), "blocks[1] has no size"),
            (lambda s: s["segments"][0].update(address=(1 << 64) - 1), "no address"),
        ):
            made = snapshot()
            change(made)
            if text == "no address":
                del made["segments"][0]["blocks"][1]["address"]
            self.bad(made, text)
        for name in ("addr", "size", "stream", "time_us"):
            for wrong in (-1, 1 << 64, "5", 5.0, True, None, [5]):
                made = snapshot()
                made["device_traces"][0][2][name] = wrong
                self.bad(made, f"device_traces[0][2] has no {name} ")

    def test_files(self):
        for arguments in (("none.pickle",), (".",)):
            result = run("-m", "hetmem.trace", *arguments, folder=self.folder)
            self.assertEqual((result.returncode, result.stdout), (2, b""))
            self.assertEqual(result.stderr.count(b"\n"), 1)
        self.refused(snapshot(), "none/trace.csv", options=("-o", "none/trace.csv"))
        # What is there stays if the snapshot is bad.
        with open(self.path("trace.csv"), "w", encoding="ascii") as file:
            file.write("before")
        self.refused([], options=("-o", "trace.csv"))
        self.assertEqual(os.path.getsize(self.path("trace.csv")), 6)
        self.assertEqual(run("-m", "hetmem.trace").returncode, 2)
        self.assertIn(b"usage: python -m hetmem.trace",
                      run("-m", "hetmem.trace", "--help").stdout)

    def test_load(self):
        self.assertEqual(trace.load(io.BytesIO(pickle.dumps(snapshot()))), snapshot())
        self.assertEqual(len(trace.convert(snapshot())), 10)


if __name__ == "__main__":
    tap.main()
