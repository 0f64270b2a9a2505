# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The runner of all tests. selftests/run-tests prepares the machine and starts it."""

import argparse
import copy
import fcntl
import os
import re
import signal
import subprocess
import sys
import time

import folders
import pool
import supervisor
import table
import tap

STATE = "build/log"
STAGES = "selftests/stages"

# Seconds of the clock after which a run is ended. A test has limits of its own; this is for a
# test that sleeps for ever. A machine with a load of 8 is given this time, too.
LIMIT = {"check": 5400, "long": 7200, "nightly": 36000}

# A stage that takes so many times its budget fails in CI, unless all stages do: then the
# machine is slow.
FAR_BEYOND = 3

# The name of the second run of a test.
AGAIN = ":again"

SEED = re.compile(r"\bseed[ =:]+(\d+)", re.IGNORECASE)


def usage(text):
    print(f"run-tests: {text}", file=sys.stderr)
    sys.exit(2)


def arguments():
    parser = argparse.ArgumentParser(prog="run-tests", description="runs the tests")
    parser.add_argument("-t", "--tier", choices=table.TIERS, default="check")
    parser.add_argument("-f", "--folder", action="append", default=[], help="a folder of sources, or auto")
    parser.add_argument("-s", "--seed", help="the seed of randomized tests and of samples")
    parser.add_argument("-b", "--busy", type=int, default=0, metavar="N", help="each test twice, beside N busy processes")
    parser.add_argument("-l", "--list", action="store_true", help="prints the tests and runs none")
    parser.add_argument("--with-parent", action="store_true", help="ends with its parent, which is make")
    parser.add_argument("--stages", default=os.environ.get("HETMEM_TEST_STAGES") or STAGES, help="another table of stages")
    parser.add_argument("--state", default=os.environ.get("HETMEM_TEST_STATE") or STATE, help="where logs are kept")
    parser.add_argument("pattern", nargs="*", help="a part of the name of a test or stage, or failed")
    return parser.parse_args()


def default_seed():
    """The same for all runs on one commit: check and check-long share a sample."""
    command = ["git", "-c", f"safe.directory={os.getcwd()}", "rev-parse", "--short=7", "HEAD"]
    try:
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout, 16) % 100000
    except (OSError, subprocess.CalledProcessError, ValueError):
        # A tarball.
        return 1


def matching(units, pattern, history):
    if pattern == "failed":
        return set(history.last_failed())
    if pattern.endswith(".t"):
        # The whole name of a script.
        return {pattern[:-2]} & set(units)
    if "/" in pattern or ":" in pattern:
        # The whole name of a program, or a part of some names.
        if pattern in units:
            return {pattern}
        return {name for name in units if pattern in name}
    return {name for name, unit in units.items() if pattern in unit.stage.name or ("/" not in name and pattern in name)}


def choose(options, units, history):
    if options.folder:
        found = set()
        for folder in options.folder:
            found |= folders.choose(folder, units)
        if not found:
            usage(f"no test belongs to {' '.join(options.folder)}: name a folder such as lib/pool, kernel/track, tools/map, or auto")
        return found
    if options.pattern:
        found = set()
        for pattern in options.pattern:
            found |= matching(units, pattern, history) & set(units)
        if not found and options.pattern == ["failed"]:
            print("run-tests: nothing failed in the last run")
            sys.exit(0)
        if not found:
            print(f"run-tests: no test is named like '{' '.join(options.pattern)}'; there are:", file=sys.stderr)
            for name in sorted(name for name in units if "/" not in name):
                print(f"  {name}", file=sys.stderr)
            sys.exit(2)
        return found
    packages = os.environ.get("PACKAGES") != "no"
    chosen = set()
    for name, unit in units.items():
        if unit.stage.tier != options.tier:
            continue
        if unit.needs_root and (os.getuid() != 0 or not packages):
            print(f"left out: {name}, " + ("which needs root" if packages else "as PACKAGES=no says"))
            continue
        chosen.add(name)
    return chosen


def build_units(chosen, stages, slots):
    """What must be built first: with make, once for each configuration."""
    by_name = {stage.name: stage for stage in stages}
    made = {}
    targets = {"build": ["all"], "build/asan": [], "build/tsan": [], "vm": []}
    for unit in chosen:
        for target in unit.targets:
            if target == "vm-tests":
                where = "vm"
            elif unit.sanitizer in (None, "plain"):
                where = "build"
            else:
                where = table.SANITIZERS[unit.sanitizer][0]
            targets[where].append(target)
    if any(unit.sanitizer is None for unit in chosen):
        targets["build"] += ["run-tests", "build/libhetmem-soft.so"]
    for where, names in targets.items():
        if not names:
            continue
        users = [unit for unit in chosen if any(target in names for target in unit.targets)]
        san = next((san for build, san in table.SANITIZERS.values() if build == where and san), None)
        name = {"build": "build", "vm": "build-vm"}.get(where) or f"build-{os.path.basename(where)}"
        stage = by_name.get(name) or (users[0].stage if users else chosen[0].stage)
        command = ["make"]
        if where == "build":
            command.append(f"-j{slots}")
        if san:
            command += [f"SAN={san}", f"{where}/libhetmem.so", f"{where}/libhetmem-soft.so"]
        unit = table.Unit(name, stage, command + sorted(set(names)), "command")
        if where != "build":
            unit.after.add("build")
        made[where] = unit
        for user in users:
            user.after.add(unit.name)
    for unit in chosen:
        if unit.kind != "command" or not unit.name.startswith("kernel:"):
            unit.after.add("build")
    return list(made.values())


def twice(units):
    """Each unit, and once more after that. Builds and kernels are made once."""
    again = []
    for unit in units:
        if unit.kind == "command":
            continue
        other = copy.copy(unit)
        other.name = f"{unit.name}{AGAIN}"
        other.after = unit.after | {unit.name}
        again.append(other)
    return units + again


def spin(number):
    """Keeps a processor busy until this process ends."""
    for _ in range(number):
        if os.fork() == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            supervisor.prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGKILL)
            while True:
                pass


class Report:
    """Prints what happens, and counts it by stage."""

    def __init__(self, total, history, seed, skips_fail):
        self.total = total
        self.history = history
        self.seed = seed
        self.skips_fail = skips_fail
        self.done = 0
        self.passed = 0
        self.failed = 0
        self.failures = []
        self.skipped = []
        self.not_run = []
        self.stages = {}

    def unit(self, unit, report, lines, log):
        self.done += 1
        head = f"[{self.done:3}/{self.total}] {unit.name}"
        if report is None:
            self.not_run.append(unit.name)
            print(f"{head}: not run: it needs a test that failed", flush=True)
            return False
        if unit.kind == "command":
            outcome = tap.judge_command(lines, report["status"])
        else:
            outcome = tap.judge(lines, report["status"], unit.kind == "program")
        if report["stuck"]:
            outcome.faults.append([f"processes that do not end: {' '.join(report['stuck'])}"])
        self.passed += outcome.passed
        self.failed += outcome.failed
        self.skipped += [f"{unit.name}: {text}" for text in outcome.skipped]
        if self.skips_fail and outcome.skipped:
            outcome.faults.append([f"skipped in CI: {text}" for text in outcome.skipped])
            self.failed += 1
        stage = self.stages.setdefault(unit.stage.name, [unit.stage, 0.0, 0.0])
        stage[1] += report["cpu"]
        stage[2] += report["wall"]
        self.history.add(unit, report["cpu"], bool(outcome.faults))
        tests = outcome.passed + outcome.failed + len(outcome.skipped)
        what = f"{tests} test{'s' if tests != 1 else ''}, {report['cpu']:.1f} s of CPU, {report['wall']:.1f} s"
        if outcome.faults:
            print(f"{head}: FAILED: {len(outcome.faults)} of {what}")
            for fault in outcome.faults:
                print("".join(f"    {line}\n" for line in fault), end="")
            print(f"    the whole output is in {log}")
            self.failures.append((unit, outcome.faults))
        else:
            print(f"{head}: {what}")
        if report["left"]:
            print(f"    it left processes behind, which were ended: {' '.join(report['left'])}")
        sys.stdout.flush()
        return not outcome.faults

    def budgets(self, whole):
        """The table of stages. Returns those that are far over their budget.

        The budget of a stage is for all its tests.
        """
        far = []
        if not self.stages:
            return far
        if not whole:
            cpu = sum(cpu for _, cpu, _ in self.stages.values())
            print(f"\n{cpu:.0f} s of CPU")
            return far
        total = sum(cpu for _, cpu, _ in self.stages.values())
        budget = sum(stage.budget for stage, _, _ in self.stages.values())
        slow = max(1, total / budget) if budget else 1
        print(f"\n{'stage':16} {'CPU s':>7} {'budget':>7}")
        for name, (stage, cpu, _) in self.stages.items():
            note = ""
            if stage.budget and cpu > stage.budget * 1.2 + 1:
                note = "  over its budget"
            if stage.budget and cpu > stage.budget * slow * FAR_BEYOND + 10:
                far.append(name)
            print(f"{name:16} {cpu:7.0f} {stage.budget:7}{note}")
        print(f"{'all':16} {total:7.0f} {budget:7}", flush=True)
        return far

    def repeat(self, unit, faults):
        """The command that runs it again, and the seed that it ran with."""
        seed = next((match[1] for fault in faults for line in fault if (match := SEED.search(line))), None)
        if seed is None and unit.seeded:
            seed = self.seed
        said = f" (seed {seed})" if seed is not None else ""
        name = unit.name.removesuffix(AGAIN)
        if unit.command[0].endswith(".t"):
            name += ".t"
        return f"FAILED {unit.name}{said}: make check T={name}" + (f" SEED={seed}" if seed is not None else "")


def main():
    options = arguments()
    if options.seed is not None and not options.seed.isdigit():
        usage(f"the seed '{options.seed}' is no number")
    os.makedirs(options.state, exist_ok=True)
    lock = os.open(os.path.join(options.state, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not options.list:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("run-tests: waiting for another run in this tree", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)

    sample = int(options.seed) if options.seed is not None else default_seed()
    history = pool.History(os.path.join(options.state, "history.json"))
    try:
        stages, units = table.read(options.stages, sample)
    except (table.TableError, OSError) as error:
        usage(str(error))
    names = choose(options, units, history)
    # A kernel that a test waits for.
    for name in list(names):
        names |= {other for other in units[name].after if other in units} if name in units else set()
    chosen = [units[name] for name in units if name in names]
    if options.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        print("\n".join(unit.name for unit in chosen))
        return 0

    slots = int(os.environ.get("HETMEM_TEST_JOBS") or min(2, len(os.sched_getaffinity(0))))
    chosen += build_units(chosen, stages, slots)
    environment = {**os.environ, **table.ENVIRONMENT}
    if options.seed is not None:
        environment["SEED"] = options.seed
        for unit in chosen:
            if unit.seeded:
                unit.command.append(options.seed)
    if options.busy:
        chosen = twice(chosen)
    limit = int(os.environ.get("HETMEM_TEST_LIMIT") or LIMIT["nightly" if options.busy else options.tier])
    report = Report(len(chosen), history, options.seed, bool(os.environ.get("CI")))
    begin = time.monotonic()
    print(f"{len(chosen)} tests, {slots} at a time, seed {sample}", flush=True)
    spin(options.busy)
    work = pool.Pool(slots, options.state, environment, lock)
    work.watch(options.with_parent)
    stopped = None
    try:
        work.run(pool.ordered(chosen, history), begin + limit, report.unit)
    except pool.Stopped as error:
        stopped = str(error)

    far = report.budgets(not options.folder and not options.pattern and not options.busy)
    if report.skipped:
        print("\nSkipped:")
        for text in report.skipped:
            print(f"  {text}")
    print(f"{time.monotonic() - begin:.0f} s")
    for unit, faults in report.failures:
        print(report.repeat(unit, faults))
    for name in report.not_run:
        print(f"NOT RUN {name}: make check T={name}")
    failed = report.failed + len(report.not_run)
    if far and os.environ.get("CI"):
        for name in far:
            print(f"FAILED stage {name}: more than {FAR_BEYOND} times its budget of CPU time, see Documentation/testing.md")
        failed += len(far)
    if stopped:
        more = "; HETMEM_TEST_LIMIT=SECONDS allows more" if stopped == "its time limit" else ""
        print(f"ENDED by {stopped}: {len(chosen) - report.done} of {len(chosen)} tests had not ended{more}")
        failed += 1
    if report.skipped:
        print(f"{len(report.skipped)} skipped")
    print(f"{report.passed} passed, {failed} failed")
    print(f"Result: {'FAIL' if failed else 'PASS'}", flush=True)
    if stopped and stopped.startswith("SIG"):
        return 130 if stopped == "SIGINT" else 143
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
