# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""CuPy itself over the soft driver, without a GPU: import it before cupy.

CuPy has the CUDA Runtime in it, which wants NVIDIA's driver. Its modules take each
other's C functions from a table of capsules when they are imported. Here those of the
Runtime are replaced: memory, streams, events and copies work. There are no kernels. A call that
fails ends the process.
"""

import ctypes
import os
import traceback

import hetmem

I, P, SIZE = ctypes.c_int, ctypes.c_ssize_t, ctypes.c_size_t

# The soft driver has devices when the library has opened it.
_opened = hetmem.default()
_driver = ctypes.CDLL("libhetmem-soft.so", mode=os.RTLD_NOLOAD)
_current = ctypes.c_int(0)


class SoftError(RuntimeError):
    pass


def cu(name, *arguments):
    """Calls the soft driver in the context of the current device."""
    address, status = ctypes.c_void_p(), I()
    if _driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), I(12080),
                                   ctypes.c_uint64(0), ctypes.byref(status)) or not address:
        raise SoftError(f"the soft driver has no {name}")
    error = ctypes.CFUNCTYPE(I)(address.value)(*arguments)
    if error and (name, error) not in (("cuStreamQuery", 600), ("cuEventQuery", 600)):
        raise SoftError(f"{name}: error {error}")
    return error


_contexts = {}


def _enter():
    device = _current.value
    if device not in _contexts:
        cu("cuInit", 0)
        _contexts[device] = ctypes.c_void_p()
        cu("cuDevicePrimaryCtxRetain", ctypes.byref(_contexts[device]), I(device))
    cu("cuCtxSetCurrent", _contexts[device])


def _call(name, *arguments):
    _enter()
    return cu(name, *arguments)


def _made(name, *arguments):
    handle = ctypes.c_void_p()
    _call(name, ctypes.byref(handle), *arguments)
    return handle.value or 0


def p(value):
    return ctypes.c_void_p(value & 2**64 - 1)


calls = []


def get_device():
    return _current.value


def set_device(device):
    _current.value = device


def get_device_count():
    return _opened.device_count


def device_get_attribute(attribute, device):
    value = I()
    _call("cuDeviceGetAttribute", ctypes.byref(value), I(attribute), I(device))
    return value.value


def pointer_get_attributes(ptr):
    """Of host memory that the driver does not know: type 0, as the Runtime says."""
    kind, managed, device = ctypes.c_uint(), ctypes.c_uint(), I()
    try:
        _call("cuPointerGetAttribute", ctypes.byref(kind), I(2), p(ptr))
    except SoftError:
        return runtime.PointerAttributes(-2, 0, ptr, 0)
    _call("cuPointerGetAttribute", ctypes.byref(managed), I(8), p(ptr))
    _call("cuPointerGetAttribute", ctypes.byref(device), I(9), p(ptr))
    at = ctypes.c_void_p()
    _call("cuPointerGetAttribute", ctypes.byref(at), I(3), p(ptr))
    type_ = 3 if managed.value else kind.value
    host = ptr if type_ != 2 else 0
    return runtime.PointerAttributes(device.value, at.value or 0, host, type_)


def memcpy_async(to, source, size, kind, stream):
    calls.append(("memcpyAsync", size))
    _call("cuMemcpyAsync", p(to), p(source), SIZE(size), p(stream))


def memcpy(to, source, size, kind):
    calls.append(("memcpy", size))
    _call("cuMemcpyAsync", p(to), p(source), SIZE(size), p(0))
    _call("cuStreamSynchronize", p(0))


def mem_prefetch_async(ptr, size, device, stream):
    calls.append(("memPrefetchAsync", size, device))
    # CUmemLocation: a device, or the host.
    location = 2 if device < 0 else 1 | device << 32
    _call("cuMemPrefetchAsync", p(ptr), SIZE(size), ctypes.c_uint64(location),
          ctypes.c_uint(0), p(stream))


def stream_is_capturing(stream):
    status = I()
    _call("cuStreamIsCapturing", p(stream), ctypes.byref(status))
    return status.value


def stream_synchronize(stream):
    calls.append(("streamSynchronize", stream))
    _call("cuStreamSynchronize", p(stream))


def malloc(size):
    return _made("cuMemAlloc", SIZE(size))


def free(ptr):
    _call("cuMemFree", p(ptr))


def host_alloc(size, flags):
    return _made("cuMemHostAlloc", SIZE(size), ctypes.c_uint(flags))


FUNCTIONS = {
    "_ensure_context": (ctypes.py_object, [], _enter),
    "getDevice": (I, [], get_device),
    "setDevice": (ctypes.py_object, [I], set_device),
    "getDeviceCount": (I, [], get_device_count),
    "deviceGetAttribute": (I, [I, I], device_get_attribute),
    "deviceSynchronize": (ctypes.py_object, [], lambda: _call("cuCtxSynchronize")),
    "pointerGetAttributes": (ctypes.py_object, [P], pointer_get_attributes),
    "pointerGetMemoryType": (I, [P], lambda ptr: pointer_get_attributes(ptr).type),
    "memcpy": (ctypes.py_object, [P, P, SIZE, I], memcpy),
    "memcpyAsync": (ctypes.py_object, [P, P, SIZE, I, P], memcpy_async),
    "memPrefetchAsync": (ctypes.py_object, [P, SIZE, I, P], mem_prefetch_async),
    "malloc": (P, [SIZE], malloc),
    "free": (ctypes.py_object, [P], free),
    "hostAlloc": (P, [SIZE, ctypes.c_uint], host_alloc),
    "freeHost": (ctypes.py_object, [P], lambda ptr: _call("cuMemFreeHost", p(ptr))),
    "streamCreateWithFlags": (P, [ctypes.c_uint],
        lambda flags: _made("cuStreamCreate", ctypes.c_uint(flags))),
    "streamCreateWithPriority": (P, [ctypes.c_uint, I],
        lambda flags, priority: _made("cuStreamCreate", ctypes.c_uint(flags))),
    "streamCreate": (P, [], lambda: _made("cuStreamCreate", ctypes.c_uint(0))),
    "streamDestroy": (ctypes.py_object, [P],
        lambda stream: _call("cuStreamDestroy", p(stream))),
    "streamSynchronize": (ctypes.py_object, [P], stream_synchronize),
    "streamIsCapturing": (I, [P], stream_is_capturing),
    "streamQuery": (ctypes.py_object, [P], lambda stream: _call("cuStreamQuery", p(stream))),
    "eventCreateWithFlags": (P, [ctypes.c_uint],
        lambda flags: _made("cuEventCreate", ctypes.c_uint(flags))),
    "eventDestroy": (ctypes.py_object, [P], lambda event: _call("cuEventDestroy", p(event))),
    "eventRecord": (ctypes.py_object, [P, P],
        lambda event, stream: _call("cuEventRecord", p(event), p(stream))),
    "eventQuery": (ctypes.py_object, [P], lambda event: _call("cuEventQuery", p(event))),
    "eventSynchronize": (ctypes.py_object, [P],
        lambda event: _call("cuEventSynchronize", p(event))),
}

import cupy_backends.cuda.api.runtime as runtime  # noqa: E402

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_void_p, [ctypes.py_object]
_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p] * 3
_kept = []


def _replace(name, result, arguments, function):
    before = runtime.__pyx_capi__[name]
    # The last argument of most of them is one of Cython.
    more = [] if name == "_ensure_context" else [I]

    def call(*given):
        # No exception passes a function of ctypes.
        try:
            return function(*given[:len(arguments)])
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    pointer = ctypes.PYFUNCTYPE(result, *arguments, *more)(call)
    _kept.append((before, pointer))
    runtime.__pyx_capi__[name] = _new(
        ctypes.cast(pointer, ctypes.c_void_p), _name(before), None)
    setattr(runtime, name, function)


for _item in FUNCTIONS.items():
    _replace(_item[0], *_item[1])
