# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What hetmem.cupy uses of CuPy's C functions: capsules, whose names are the types."""

import ctypes
import os

import cupy

_I, _P = ctypes.c_int, ctypes.c_ssize_t
_of_device = ctypes.PYFUNCTYPE(_P, _I)(lambda device: cupy.cuda.get_current_stream().ptr)
_of_current = ctypes.PYFUNCTYPE(_P)(lambda: cupy.cuda.get_current_stream().ptr)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_TYPES = b"intptr_t (int)", b"intptr_t (void)"


def _capsule(function, name):
    return _new(ctypes.cast(function, ctypes.c_void_p), name, None)


_all = {"get_stream_ptr": _capsule(_of_device, _TYPES[0]),
        "get_current_stream_ptr": _capsule(_of_current, _TYPES[1])}
# Which of them this version has.
__pyx_capi__ = {name: _all[name]
                for name in os.environ.get("FAKE_CUPY_STREAMS", " ".join(_all)).split()}
