# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""A process that stands between the runner and one test.

It is the subreaper of everything that the test starts, so that it finds all of it, and adds up
its CPU time. It ends all of it when the test has ended, or when the runner closes its pipe. A
runner that is killed closes the pipe, too. The test's temporary files lie in a directory of
their own, which goes with the test.
"""

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Seconds from SIGTERM to SIGKILL: a test removes what it has mounted or locked.
GRACE = 10
# Seconds from the first SIGKILL until a process that does not end is given up.
PATIENCE = 60

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants():
    """PID to name of all processes below this one that are no zombies."""
    parent, name = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                text = stat.read()
        except OSError:
            continue
        # The name may contain anything.
        state, ppid = text[text.rindex(")") + 1 :].split()[:2]
        parent[int(entry)] = int(ppid)
        if state not in "ZX":
            name[int(entry)] = text[text.index("(") + 1 : text.rindex(")")]
    found = {}
    for pid in name:
        above = pid
        while above in parent and above != os.getpid():
            above = parent[above]
        if above == os.getpid() and pid != os.getpid():
            found[pid] = name[pid]
    return found


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def end_all(grace):
    """Ends every process below this one; returns those that do not end."""
    told = set()
    start = time.monotonic()
    while True:
        reap()
        left = descendants()
        passed = time.monotonic() - start
        if not left or passed > grace + PATIENCE:
            return left
        for pid in left:
            if passed >= grace:
                send(pid, signal.SIGKILL)
            elif pid not in told:
                told.add(pid)
                send(pid, signal.SIGTERM)
                send(pid, signal.SIGCONT)
        time.sleep(0.05)


def remove(directory):
    """Removes a directory, and what is still mounted below it."""
    directory = os.path.realpath(directory)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        mounts = [line.split()[4].replace("\\040", " ") for line in lines]
    for mount in sorted(mounts, reverse=True):
        if mount.startswith(directory + "/"):
            subprocess.run(["umount", "-l", mount], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", "--one-file-system", directory], check=False)
    try:
        # The last test removes the directory of the run.
        os.rmdir(os.path.dirname(directory))
    except OSError:
        pass


def start(command, environment, log):
    """The test, in a session of its own: it may signal its process group."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.closerange(3, 1 << 16)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def supervise(command, environment, log, tmp, control, result):
    """Runs a command. Writes what became of it to @result; never returns."""
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    stopped = []
    for number in STOPPING:
        signal.signal(number, lambda number, _: stopped.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)

    begin = time.monotonic()
    os.makedirs(tmp, exist_ok=True)
    # Tests run programs as other users.
    os.chmod(tmp, 0o1777)
    os.chmod(os.path.dirname(tmp), 0o755)
    pid = start(command, {**environment, "TMPDIR": tmp}, log)
    status = None
    while status is None and not stopped:
        ready = select.select([wake, control], [], [])[0]
        if control in ready:
            break
        os.read(wake, 4096)
        # An orphan is reaped here, too, which adds its time.
        try:
            while True:
                ended, how = os.waitpid(-1, os.WNOHANG)
                if ended == 0:
                    break
                if ended == pid:
                    status = os.waitstatus_to_exitcode(how)
        except ChildProcessError:
            break
    left = sorted(set(descendants().values())) if status is not None else []
    stuck = end_all(GRACE)
    remove(tmp)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "status": status,
        "cpu": used.ru_utime + used.ru_stime,
        "wall": time.monotonic() - begin,
        "left": left,
        "stuck": sorted(set(stuck.values())),
    }
    try:
        os.write(result, json.dumps(report).encode())
    except OSError:
        pass
    os._exit(0)
