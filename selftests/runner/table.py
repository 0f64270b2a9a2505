# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The units of work that selftests/stages describes."""

import fnmatch
import os
import re
import zlib

TIERS = ("check", "long", "nightly")
SANITIZERS = {
    "plain": ("build", ""),
    "asan": ("build/asan", "address,undefined"),
    "tsan": ("build/tsan", "thread"),
}
# One of so many programs that sample: names runs.
SAMPLE = 4

# A program of the library is ended when it used so many CPU seconds.
PROGRAM_LIMIT = 600

# Programs that say nothing under a sanitizer: their instructions are not the library's there.
ONLY_PLAIN = ("steps", "bounded", "sparse_steps")
# Programs without any thread, which compile libraries.
NO_THREADS = ("cuda_*", "nvml_*")
# Programs for which the library makes threads, beside those that make threads themselves.
HAS_THREADS = ("lib/place/*", "lib/provider/*", "lib/vmm/park*", "lib/cuda/*")
MAKES_THREADS = re.compile(r"\b(pthread_create|in_threads)\(")
INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# The interceptor guesses where a thread-local block of a library that was loaded later begins:
# a wrong guess ends the search for leaks by SIGSEGV. Such blocks are searched without it.
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:"
    "intercept_tls_get_addr=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "atexit_sleep_ms=0",
}

SEEDED = re.compile(r"seed = .*strtoull?\(argv\[1\]|first = argc > 1 \? strtoull\(argv\[1\]")


class TableError(Exception):
    pass


class Stage:
    def __init__(self, name, tier, budget, lane, words):
        self.name = name
        self.tier = tier
        self.budget = budget
        self.lane = lane
        self.words = words


class Unit:
    """One test. @kind is tap (it writes TAP), program (a skipped test of it failed), or command."""

    def __init__(self, name, stage, command, kind, lane=None):
        self.name = name
        self.stage = stage
        self.command = command
        self.kind = kind
        self.lane = lane
        self.after = set()
        self.environment = {}
        self.source = None
        self.sanitizer = None
        self.seeded = False
        self.needs_root = False
        # What make must have built, in which configuration.
        self.targets = []


def read_stages(path):
    stages = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if line[0].isspace():
                # The tests of a stage go on in lines that begin with a blank.
                if not stages:
                    raise TableError(f"{path}:{number}: no stage before this line")
                stages[-1].words += words
                continue
            if len(words) < 4 or words[1] not in TIERS or not words[2].isdigit():
                raise TableError(f"{path}:{number}: use: STAGE TIER BUDGET LANE TESTS")
            lane = None if words[3] == "-" else words[3]
            stages.append(Stage(words[0], words[1], int(words[2]), lane, words[4:]))
    names = [stage.name for stage in stages]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"{path}: stage {name} is there twice")
    return stages


def sources():
    """Programs of the library and of the soft driver that run on the host: lib/pool/order."""
    found = []
    for top in ("selftests/lib", "selftests/soft"):
        for folder, _, files in os.walk(top):
            for file in files:
                if file.endswith(".c") and not file.startswith(("vm_", "gpu_")):
                    found.append(os.path.join(folder, file)[len("selftests/") : -2])
    return sorted(found)


def program(source, sanitizer, stage):
    build, _ = SANITIZERS[sanitizer]
    name = source if sanitizer == "plain" else f"{sanitizer}/{source}"
    path = f"{build}/selftests/{source}"
    # By the clock ten times that, half an hour at most: one may sleep for ever.
    command = ["bash", "-c", f'ulimit -S -t {PROGRAM_LIMIT} && exec timeout -k 10 1800 "$@"', "program", path]
    unit = Unit(name, stage, command, "program", stage.lane)
    unit.source = source
    unit.sanitizer = sanitizer
    unit.targets = [path]
    with open(f"selftests/{source}.c", encoding="utf-8") as text:
        unit.seeded = bool(SEEDED.search(text.read()))
    return unit


def makes_threads(source):
    """The program, or a header of the tests that it includes, or the library for it."""
    if any(fnmatch.fnmatch(source, name) for name in HAS_THREADS):
        return True
    seen, left = set(), [f"selftests/{source}.c"]
    while left:
        path = left.pop()
        seen.add(path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if MAKES_THREADS.search(text):
            return True
        for name in INCLUDED.findall(text):
            for folder in (os.path.dirname(path), "selftests/lib", "selftests/soft"):
                header = os.path.normpath(os.path.join(folder, name))
                if header not in seen and os.path.exists(header):
                    left.append(header)
    return False


def runs_under(source, sanitizer):
    base = os.path.basename(source)
    if sanitizer != "plain" and base in ONLY_PLAIN:
        return False
    return sanitizer != "tsan" or not any(fnmatch.fnmatch(base, name) for name in NO_THREADS)


def picked(name, seed):
    return zlib.crc32(f"{seed} {name}".encode()) % SAMPLE == 0


def script(path, stage):
    unit = Unit(os.path.basename(path)[:-2], stage, [path], "tap", stage.lane)
    with open(path, encoding="utf-8") as text:
        body = text.read()
    for kernel in re.findall(r"^kernel=(\S+)", body, re.MULTILINE):
        unit.after.add(f"kernel:{kernel}")
        unit.targets = ["vm-tests"]
    return unit


def expand(stage, seed):
    """The units that a stage names, wherever else they are named."""
    units = []
    for word in stage.words:
        sample, threads = word.startswith("sample:"), word.startswith("threads:")
        kind, _, rest = word.removeprefix("sample:").removeprefix("threads:").partition(":")
        if kind in SANITIZERS and rest:
            found = [source for source in sources() if fnmatch.fnmatch(source, rest)]
            if not found:
                raise TableError(f"stage {stage.name}: no program {rest}")
            for source in found:
                unit = program(source, kind, stage)
                if not runs_under(source, kind) or (sample and not picked(unit.name, seed)):
                    continue
                if not threads or makes_threads(source):
                    units.append(unit)
        elif kind == "kernel" and rest:
            units.append(Unit(word, stage, ["selftests/vm/kernel", rest], "command", stage.lane))
        elif kind in ("run", "root", "tap") and rest:
            command = rest.split(",")
            name = "run:" + command[0].removeprefix("selftests/").replace("/", "-")
            unit = Unit(name, stage, command, "tap" if kind == "tap" else "command", stage.lane)
            unit.needs_root = kind == "root"
            units.append(unit)
        elif word.endswith(".t"):
            # runner.t fails if a script is in no stage, or a stage names one that is not there.
            found = sorted(name for name in os.listdir("selftests/t") if fnmatch.fnmatch(name, word))
            units += [script(f"selftests/t/{name}", stage) for name in found]
        else:
            raise TableError(f"stage {stage.name}: cannot read '{word}'")
    return units


def read(path, seed):
    """The stages, and every unit in the first stage that names it."""
    stages = read_stages(path)
    units = {}
    for stage in stages:
        for unit in expand(stage, seed):
            units.setdefault(unit.name, unit)
    return stages, units
