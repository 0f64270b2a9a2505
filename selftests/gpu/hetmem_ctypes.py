# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""libhetmem and the Driver API through ctypes, for programs beside this file.

Library opens libhetmem and makes resources. Driver has the calls of the
Driver API that the programs use, of libcuda.so.1 or of the soft driver,
whichever libhetmem uses. Contents fills memory with a pattern and counts the
words that differ from it, on the device. Child is a process of the same
program that answers messages. A call that fails raises Failed.
"""
import argparse
import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
LIBRARY = os.path.join(TOP, "build", "libhetmem.so")
MIB = 1 << 20
GIB = 1 << 30

sys.path.insert(0, os.path.join(TOP, "tools", "python"))
import hetmem  # noqa: E402
from hetmem import _abi, _library, _process  # noqa: E402

MOVABLE, KEEP = _abi.ALLOC_MOVABLE, _abi.ALLOC_KEEP
SLEEP_DISCARD, SLEEP_KEEP = _abi.SLEEP_DISCARD, _abi.SLEEP_KEEP


_P, _S, _I, _U = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                  ctypes.c_uint)


class Failed(Exception):
    """A call failed: its name, its result and the text."""

    def __init__(self, what, code, text):
        super().__init__(f"{what}: {text}" + (f" ({code})" if code else ""))
        self.what = what
        self.code = code
        self.text = text


@contextlib.contextmanager
def failing(what):
    """Errors of the package become Failed."""
    try:
        yield
    except hetmem.HetmemError as error:
        raise Failed(what, -error.errno, error.strerror) from None


def load(path=LIBRARY):
    """libhetmem with the types of its functions: the package's from now on."""
    os.environ["HETMEM_LIBRARY"] = os.path.abspath(path)
    with failing("load"):
        return _library.library()


class Resource:
    """A resource. Close it before its library."""

    def __init__(self, made):
        self.made = made

    def alloc(self, size, stream=None, flags=0, priority=0):
        with failing("hetmem_alloc_with"):
            return self.made.allocate(
                size, stream or 0, movable=bool(flags & MOVABLE),
                keep=bool(flags & KEEP), priority=priority)

    def free(self, ptr, stream=None):
        with failing("hetmem_free"):
            self.made.deallocate(ptr, stream=stream or 0)

    def spill(self, ptr):
        with failing("hetmem_spill"):
            self.made.spill(ptr)

    def fetch(self, ptr):
        with failing("hetmem_fetch"):
            self.made.fetch(ptr)

    def spill_async(self, ptr):
        with failing("hetmem_spill_async"):
            self.made.spill(ptr, wait=False)

    def fetch_async(self, ptr):
        with failing("hetmem_fetch_async"):
            self.made.fetch(ptr, wait=False)

    def priority(self, ptr, priority):
        with failing("hetmem_priority"):
            self.made.priority(ptr, priority)

    def sleep(self, flags=SLEEP_KEEP):
        with failing("hetmem_sleep"):
            self.made.sleep(keep=flags == SLEEP_KEEP)

    def wake(self):
        with failing("hetmem_wake"):
            self.made.wake()

    def poll(self):
        with failing("hetmem_poll"):
            self.made.poll()

    def trim(self, keep=0):
        with failing("hetmem_trim"):
            self.made.trim(keep)

    def retire(self, stream):
        with failing("hetmem_stream_retire"):
            self.made.retire(stream or 0)

    def stats(self):
        with failing("hetmem_resource_stats"):
            return dataclasses.asdict(self.made.stats())

    def on_remap(self, function):
        """Calls @function with a dict for each call of hetmem_on_remap()."""
        def call(remap):
            function({**dataclasses.asdict(remap), "after": int(remap.after),
                      "changes": list(remap.changes)})

        self.calls = {**getattr(self, "calls", {}), function: call}
        with failing("hetmem_on_remap"):
            self.made.on_remap(call)

    def off_remap(self, function):
        with failing("hetmem_off_remap"):
            self.made.off_remap(self.calls.pop(function))

    def close(self):
        """The number of blocks that were still allocated."""
        if self.made.closed:
            return 0
        with failing("hetmem_resource_destroy"):
            return self.made.close()


class Library:
    """libhetmem, opened. Its driver is that of HETMEM_DRIVER."""

    def __init__(self, path=LIBRARY):
        self.path = os.path.abspath(path)
        load(path)
        with failing("hetmem_open"):
            self.made = hetmem.Library()
        self.driver_name = self.made.driver
        if self.driver_name == "none":
            raise Failed("hetmem_open", 0, "there is no device; for a trial "
                         "without one set HETMEM_DRIVER=soft")

    def resource(self, spec):
        with failing("hetmem_resource_create " + spec):
            return Resource(self.made.resource(spec))

    def close(self):
        self.made.close()


def torch_resource(library, device=0):
    """The resource behind CUDAPluggableAllocator."""
    with failing("hetmem_torch_resource"):
        return Resource(_process.resource(device))


class Driver:
    """The Driver API on device 0, with its primary context current."""

    VERSION = 12000

    def __init__(self, library):
        # Closing the library would end its driver.
        self.library = library
        self.soft = library.driver_name == "soft"
        path = "libcuda.so.1"
        if self.soft:
            path = os.path.join(os.path.dirname(library.path),
                                "libhetmem-soft.so")
        self.cuda = ctypes.CDLL(path)
        self.found = {}
        self.call("cuInit", _U(0))
        device, context = _I(), _P()
        self.call("cuDeviceGet", ctypes.byref(device), _I(0))
        self.device = device.value
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.context = context
        self.enter()

    def enter(self):
        """Makes the context current in the calling thread."""
        self.call("cuCtxSetCurrent", self.context)

    def function(self, name):
        """A function of the driver, or None if it has none."""
        if name not in self.found:
            at, status = _P(), _I()
            failed = self.cuda.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(at), _I(self.VERSION),
                ctypes.c_uint64(0), ctypes.byref(status))
            self.found[name] = None if failed or not at.value else \
                ctypes.CFUNCTYPE(_I)(at.value)
        return self.found[name]

    def result(self, name, *arguments):
        """The CUresult of a call. Arguments are ctypes objects, or None."""
        function = self.function(name)
        if not function:
            return 801      # CUDA_ERROR_NOT_SUPPORTED
        # Without argtypes each argument goes as the type that it has.
        return function(*arguments)

    def call(self, name, *arguments):
        code = self.result(name, *arguments)
        if code:
            raise Failed(name, code, self.error(code))

    def error(self, code):
        text = ctypes.c_char_p()
        function = self.function("cuGetErrorName")
        if function and not function(_I(code), ctypes.byref(text)) \
                and text.value:
            return text.value.decode()
        return "error of the driver"

    def mem_info(self):
        free, total = _S(), _S()
        self.call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def alloc(self, size):
        ptr = ctypes.c_uint64()
        self.call("cuMemAlloc", ctypes.byref(ptr), _S(size))
        return ptr.value

    def free(self, ptr):
        self.call("cuMemFree", ctypes.c_uint64(ptr))

    def host_alloc(self, size):
        ptr = _P()
        self.call("cuMemHostAlloc", ctypes.byref(ptr), _S(size), _U(0))
        return ptr.value

    def host_free(self, ptr):
        self.call("cuMemFreeHost", _P(ptr))

    def stream(self):
        """A stream that the legacy one does not wait for."""
        stream = _P()
        self.call("cuStreamCreate", ctypes.byref(stream), _U(1))
        return stream.value

    def stream_destroy(self, stream):
        self.call("cuStreamDestroy", _P(stream))

    def synchronize(self, stream=None):
        self.call("cuStreamSynchronize", _P(stream))

    def copy(self, to, of, size, stream=None):
        self.call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(of),
                  _S(size), _P(stream))

    def to_host(self, ptr, size, stream=None):
        """The bytes at @ptr, after the work of the stream."""
        into = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync", into, ctypes.c_uint64(ptr), _S(size),
                  _P(stream))
        self.synchronize(stream)
        return into.raw

    def set_bytes(self, ptr, value, size, stream=None):
        self.call("cuMemsetD8Async", ctypes.c_uint64(ptr),
                  ctypes.c_ubyte(value), _S(size), _P(stream))

    def attribute(self, ptr, which, kind=ctypes.c_uint64):
        """An attribute of a pointer, or the name of the error."""
        value = kind()
        code = self.result("cuPointerGetAttribute", ctypes.byref(value),
                           _I(which), ctypes.c_uint64(ptr))
        return self.error(code) if code else value.value


# All kernels go over all words: word i, at %rd8, is (i + seed) times a
# constant, modulo 2^64, in %rd7. BODY is done for each.
KERNEL = """
.visible .entry NAME(.param .u64 at, .param .u64 words, .param .u64 seed,
                     .param .u64 count)
{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<11>;

    ld.param.u64 %rd1, [at];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [words];
    ld.param.u64 %rd3, [seed];
    ld.param.u64 %rd9, [count];
    cvta.to.global.u64 %rd9, %rd9;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd4, %r1, %r2;
    cvt.u64.u32 %rd5, %r3;
    add.u64 %rd4, %rd4, %rd5;
    mul.wide.u32 %rd6, %r4, %r2;
NAME_next:
    setp.ge.u64 %p1, %rd4, %rd2;
    @%p1 bra NAME_done;
    add.u64 %rd7, %rd4, %rd3;
    mul.lo.u64 %rd7, %rd7, 0x9E3779B97F4A7C15;
    shl.b64 %rd8, %rd4, 3;
    add.u64 %rd8, %rd1, %rd8;
    BODY
    add.u64 %rd4, %rd4, %rd6;
    bra NAME_next;
NAME_done:
    ret;
}
"""
BODIES = {
    "hetmem_fill": "st.global.u64 [%rd8], %rd7;",
    "hetmem_differ": """ld.global.u64 %rd10, [%rd8];
    setp.ne.u64 %p2, %rd10, %rd7;
    @%p2 red.global.add.u64 [%rd9], 1;""",
}
PTX = ".version 7.0\n.target sm_70\n.address_size 64\n" + "".join(
    KERNEL.replace("NAME", name).replace("BODY", body)
    for name, body in BODIES.items())


class Contents:
    """Fills memory with a pattern of a seed, and counts what differs."""

    def __init__(self, driver):
        self.driver = driver
        if driver.soft:
            return
        module = _P()
        driver.call("cuModuleLoadData", ctypes.byref(module),
                    ctypes.c_char_p(PTX.encode()))
        self.kernels = {}
        for name in BODIES:
            kernel = _P()
            driver.call("cuModuleGetFunction", ctypes.byref(kernel), module,
                        ctypes.c_char_p(name.encode()))
            self.kernels[name] = kernel
        self.count = driver.alloc(8)

    def launch(self, name, stream, ptr, size, seed, count=0):
        values = [ctypes.c_uint64(value)
                  for value in (ptr, size // 8, seed, count)]
        params = (_P * len(values))(*(ctypes.addressof(v) for v in values))
        self.driver.call(
            "cuLaunchKernel", self.kernels[name], _U(1024), _U(1), _U(1),
            _U(256), _U(1), _U(1), _U(0), _P(stream), params, None)

    @staticmethod
    def pieces(ptr, size, seed):
        """Of the soft driver: it has no kernels, but copies. The CPU reaches
        no spilled memory."""
        for at in range(0, size, MIB):
            length = min(MIB, size - at)
            pattern = hashlib.shake_128(b"%d %d" % (seed, at))
            yield ptr + at, pattern.digest(length)

    def fill(self, ptr, size, seed, stream=None):
        """@size is a multiple of 8."""
        if not self.driver.soft:
            self.launch("hetmem_fill", stream, ptr, size, seed)
            return
        for at, pattern in self.pieces(ptr, size, seed):
            self.driver.copy(at, ctypes.cast(pattern, _P).value, len(pattern),
                             stream)
            self.driver.synchronize(stream)

    def differ(self, ptr, size, seed, stream=None):
        """Words that differ (soft driver: pieces), once the stream is done."""
        if not self.driver.soft:
            self.driver.set_bytes(self.count, 0, 8, stream)
            self.launch("hetmem_differ", stream, ptr, size, seed, self.count)
            return int.from_bytes(self.driver.to_host(self.count, 8, stream),
                                  "little")
        return sum(self.driver.to_host(at, len(pattern), stream) != pattern
                   for at, pattern in self.pieces(ptr, size, seed))


def process_state(driver=None):
    """What a process holds. Bytes, except of "mappings"; None: not known."""
    state = {"mappings": None}
    status = {}
    try:
        with open("/proc/self/status", encoding="ascii",
                  errors="replace") as lines:
            status = dict(line.split(":", 1) for line in lines)
        with open("/proc/self/maps", "rb") as maps:
            state["mappings"] = sum(1 for _ in maps)
    except (OSError, ValueError):
        pass
    for name in ("VmRSS", "VmPin", "VmLck", "VmSize"):
        found = re.match(r"\s*(\d+) kB", status.get(name, ""))
        state[name] = int(found[1]) << 10 if found else None
    state["host_used"] = host_used()
    state["device_free"] = driver.mem_info()[0] if driver else None
    return state


def meminfo():
    """/proc/meminfo in bytes."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return {name: int(value) << 10 for name, value in re.findall(
            r"^(\w+):\s+(\d+) kB", lines.read(), re.MULTILINE)}


def host_used():
    """Bytes of the machine's memory in use. Some machines grow."""
    info = meminfo()
    if "MemAvailable" not in info:
        return None
    return info["MemTotal"] - info["MemAvailable"]


# What a process may hold more of after many rounds than before.
SLACK = {"mappings": 16, "VmRSS": 32 * MIB, "VmPin": 4 * MIB,
         "VmLck": 4 * MIB, "VmSize": 128 * MIB, "host_used": GIB,
         "device_free": 8 * MIB}


def leaks(before, after):
    """{name: growth} of what grew by more than its slack."""
    found = {}
    for name, slack in SLACK.items():
        if before[name] is None or after[name] is None:
            continue
        growth = after[name] - before[name]
        if name == "device_free":
            growth = -growth
        if growth > slack:
            found[name] = growth
    return found


class Child:
    """A process of this program with --role, that answers JSON lines."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(sys.argv[0]), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, **message):
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass        # hear() gets its last words

    def hear(self, seconds):
        """The next answer. It has "error" if the child failed."""
        line, end = b"", time.monotonic() + seconds
        out = self.process.stdout.fileno()
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise Failed("child", 0, f"no answer in {seconds:.0f} s")
            more = os.read(out, 1 << 20)
            if not more:
                raise Failed("child", self.process.wait(), "it ended")
            line += more
        answer = json.loads(line)
        if "error" in answer:
            raise Failed("child", 0, answer["error"])
        return answer

    def ask(self, seconds=60, **message):
        self.tell(**message)
        return self.hear(seconds)

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(commands):
    """Answers messages {"do": NAME, ...} by commands[NAME](...) until EOF.

    @commands is a function that makes them. If it fails, so does each answer.
    """
    made, failure = {}, None
    try:
        made = commands()
    except Exception as error:
        failure = error
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if failure:
                raise failure
            answer = made[message.pop("do")](**message) or {}
        except Failed as failed:
            answer = {"error": str(failed)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def size(text):
    """An argument in bytes: 512M, 8G, a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:iB)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 512M")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def median(values):
    values = sorted(values)
    half = len(values) // 2
    if not values:
        return None
    return values[half] if len(values) % 2 else \
        (values[half - 1] + values[half]) / 2
