# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Runs units, a number at a time, each under a supervisor of its own."""

import collections
import contextlib
import json
import os
import selectors
import signal
import tempfile
import time

import supervisor

# A unit that took no longer than this is quick: quick ones run first.
QUICK = 5


class History:
    """What is known of earlier runs: the CPU time of each unit, and how often it failed."""

    def __init__(self, path):
        self.path = path
        self.units = {}
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as text:
            units = json.load(text)
            self.units = {name: dict(entry) for name, entry in units.items()}

    def cpu(self, unit):
        return self.units.get(unit.name, {}).get("cpu")

    def failures(self, unit):
        return self.units.get(unit.name, {}).get("failures", 0)

    def last_failed(self):
        return [name for name, entry in self.units.items() if entry.get("failed")]

    def add(self, unit, cpu, failed):
        """Old failures count for less with each run."""
        entry = self.units.setdefault(unit.name, {})
        if not failed:
            entry["cpu"] = round(cpu, 2)
        entry["failures"] = round(entry.get("failures", 0) * 0.8 + failed, 3)
        entry["failed"] = failed
        self.save()

    def save(self):
        new = f"{self.path}.{os.getpid()}"
        with open(new, "w", encoding="utf-8") as text:
            json.dump(self.units, text, indent=0, sort_keys=True)
        os.replace(new, self.path)


def ordered(units, history):
    """Units that failed before come first, then quick ones, then the others, the longest first.

    The units of a lane run one at a time: each is as long as all of them. A unit comes before
    the units that wait for it.
    """
    expected = {}
    lanes = collections.Counter()
    for unit in units:
        cpu = history.cpu(unit)
        if cpu is None:
            siblings = sum(1 for other in units if other.stage is unit.stage)
            cpu = unit.stage.budget / siblings
        expected[unit.name] = cpu
        lanes[unit.lane] += cpu

    def key(unit):
        cpu = expected[unit.name]
        if cpu <= QUICK:
            return (-history.failures(unit), False, cpu, 0)
        return (-history.failures(unit), True, -lanes[unit.lane] if unit.lane else -cpu, -cpu)

    keys = {unit.name: key(unit) for unit in units}
    for unit in units:
        for name in unit.after:
            if name in keys:
                keys[name] = min(keys[name], keys[unit.name])
    return sorted(units, key=lambda unit: keys[unit.name])


class Stopped(Exception):
    """A signal, the time limit, or the end of the process that waits for this one."""


class Pool:
    def __init__(self, slots, logs, environment, lock):
        self.slots = slots
        self.logs = logs
        self.environment = environment
        self.lock = lock
        self.running = {}
        self.selector = selectors.DefaultSelector()
        self.why = None
        self.parent = os.getppid()
        self.tmp = None

    def stop(self, why):
        if self.why is None:
            self.why = why

    def watch(self, with_parent):
        """A signal only says so: units end in order, in the loop."""
        wake, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        self.selector.register(wake, selectors.EVENT_READ, None)
        for number in supervisor.STOPPING:
            signal.signal(number, lambda number, _: self.stop(signal.Signals(number).name))
        if not with_parent:
            return
        supervisor.prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self.parent:
            self.stop("the end of its parent")

    def launch(self, unit):
        if self.tmp is None or not os.path.isdir(self.tmp):
            self.tmp = tempfile.mkdtemp(prefix="hetmem-check.")
        log = os.path.join(self.logs, unit.name.replace("/", "-") + ".log")
        tmp = os.path.join(self.tmp, unit.name.replace("/", "-").replace(":", "-"))
        control, hold = os.pipe2(os.O_CLOEXEC)
        result, report = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                # The lock stays: the next run waits until everything of this one has ended.
                keep = {0, 1, 2, control, report, self.lock}
                for fd in map(int, os.listdir("/proc/self/fd")):
                    if fd not in keep:
                        with contextlib.suppress(OSError):
                            os.close(fd)
                supervisor.supervise(unit.command, {**self.environment, **unit.environment}, log, tmp, control, report)
            finally:
                os._exit(1)
        os.close(control)
        os.close(report)
        self.selector.register(result, selectors.EVENT_READ, (unit, pid, hold, log))
        self.running[unit.name] = (unit, hold)

    def finished(self, fd, data):
        unit, pid, hold, log = data
        text = b""
        while part := os.read(fd, 65536):
            text += part
        self.selector.unregister(fd)
        os.close(fd)
        # It is closed already if the run was stopped.
        if self.running.pop(unit.name)[1] is not None:
            os.close(hold)
        os.waitpid(pid, 0)
        report = {"status": None, "cpu": 0.0, "wall": 0.0, "left": [], "stuck": []}
        if text:
            report = json.loads(text)
        with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as lines:
            return unit, report, lines.readlines(), log
        return unit, report, [], log

    def run(self, units, until, done):
        """Runs @units in their order. @done(unit, report, lines, log) after each; it returns
        whether units that come after this one may run. Raises Stopped."""
        waiting = list(units)
        blocked = set()
        names = {unit.name for unit in units}
        complete = set()
        ended = False
        while waiting or self.running:
            if self.why is None and time.monotonic() > until:
                self.stop("its time limit")
            if self.why is not None and not ended:
                ended = True
                waiting = []
                for _, hold in self.running.values():
                    os.close(hold)
                self.running = {name: (unit, None) for name, (unit, _) in self.running.items()}
                if not self.running:
                    break
            for unit in list(waiting):
                if len(self.running) >= self.slots:
                    break
                after = unit.after & names
                if after & blocked:
                    waiting.remove(unit)
                    blocked.add(unit.name)
                    done(unit, None, [], None)
                    continue
                if not after <= complete:
                    continue
                if unit.lane and any(other.lane == unit.lane for other, _ in self.running.values()):
                    continue
                waiting.remove(unit)
                self.launch(unit)
            if not self.running:
                continue
            for key, _ in self.selector.select(max(0.1, min(until - time.monotonic(), 60)) if not ended else None):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(key.fd, 4096)
                    continue
                unit, report, lines, log = self.finished(key.fd, key.data)
                if report["status"] is None and ended:
                    continue
                complete.add(unit.name)
                if not done(unit, report, lines, log):
                    blocked.add(unit.name)
        if self.why is not None:
            raise Stopped(self.why)
