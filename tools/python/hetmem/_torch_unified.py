# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Unified tensors: storage that the CPU and devices use, for hetmem.torch.

A unified tensor is an ordinary tensor whose storage is a block of the resource
"unified". PyTorch takes the block by DLPack, with a deleter of libhetmem-torch.so. So
unified tensors need no allocator of PyTorch: they are the same in both modes, and
without enable().

A view of another device is another storage on the same block, made by DLPack, too.
The last storage frees the block.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import threading
import warnings
import weakref
from typing import Any, Callable

from . import _abi, _library, _process, _threads
from ._library import HetmemError
from .core import Resource, Stream, StreamLike, default, stream_handle
from .place import extent

_NAME, _TAKEN = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")
# DLDeviceType
_CPU, _CUDA = 1, 2


def _function(name: str, result: Any, *arguments: Any) -> Any:
    made = getattr(ctypes.pythonapi, name)
    made.restype, made.argtypes = result, arguments
    return made


_new_capsule = _function("PyCapsule_New", ctypes.py_object, _abi.P, _abi.P, _abi.P)
_capsule_pointer = _function("PyCapsule_GetPointer", _abi.P, ctypes.py_object, _abi.P)
_is_capsule = _function("PyCapsule_IsValid", _abi.INT, ctypes.py_object, _abi.P)
_name_capsule = _function("PyCapsule_SetName", _abi.INT, ctypes.py_object, _abi.P)
_lock = threading.Lock()
_loaded: Any = None
# By device; and by address, those of a parent of fork() too.
_resources: dict[int, Resource] = {}
_by_pointer: dict[int, Resource] = {}


def _forget() -> None:
    """A forked child makes its own resources, and begins with unified(False)."""
    global _lock
    _lock = threading.Lock()
    _resources.clear()
    if _is_on():
        _set(False)


os.register_at_fork(after_in_child=_forget)


def _shim() -> Any:
    global _loaded
    if _loaded is None:
        _, shim = _library.shim()
        p, size, number = _abi.P, _abi.SIZE, _abi.INT
        for name, arguments in (
            ("make", [p, size, p, p, number, number, p]),
            ("own", [p, p, size, p, number, number, p]),
            ("view", [p, size, number, number, p]),
            ("adopt", [p, number, number, p]),
            ("drop", [p]),
            ("find", [p, p, p]),
        ):
            getattr(shim, f"hetmem_unified_{name}").argtypes = arguments
        _loaded = shim
    return _loaded


def _torch() -> Any:
    return importlib.import_module("torch")


def unified_resource(device: int = 0) -> Resource:
    """Returns the resource of the unified tensors that are made on @device.

    Tensors that are made on the CPU are of PyTorch's current device.
    """
    with _lock:
        if device not in _resources:
            library = default()
            count = library.device_count
            if count and not 0 <= device < count:
                raise HetmemError(
                    errno.ENODEV, f"no device {device}: this machine has {count}"
                )
            made = library.resource(f"unified(device={device})" if count else "unified")
            # Storages are freed later than the interpreter's objects.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            _resources[device] = _by_pointer[made.pointer] = made
        return _resources[device]


def _error(torch: Any, code: int) -> HetmemError:
    """The exception for @code. Without memory it is one of PyTorch's, too."""
    error = _library.error(code)
    if code != -errno.ENOMEM:
        return error
    own: Any = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    kind: Any = type("OutOfMemoryError", (_library.OutOfMemoryError, own), {})
    return kind(error.errno, f"out of memory: {error.strerror}")  # type: ignore[no-any-return]


def _device(torch: Any, given: Any) -> Any:
    """@given as a device of PyTorch with an index. It exists."""
    if isinstance(given, torch.dtype):
        raise TypeError(
            "move() changes only the device: call Tensor.to() for another dtype"
        )
    if given is None or isinstance(given, (bool, float)):
        raise TypeError(f'{given!r} is no device: give one like "cpu" or "cuda:0"')
    device = torch.device(given)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(
            f'unified memory has no device {device}: give one like "cpu" or "cuda:0"'
        )
    if not getattr(torch.version, "cuda", None):
        raise HetmemError(
            errno.EOPNOTSUPP,
            f"PyTorch {torch.__version__} is built without CUDA: "
            "install a build with CUDA",
        )
    count = torch.cuda.device_count()
    if not count:
        raise HetmemError(errno.ENODEV, f"no device {device}: PyTorch finds no GPU")
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    if not 0 <= index < count:
        raise HetmemError(errno.ENODEV, f"no device {device}: PyTorch has {count}")
    return torch.device("cuda", index)


def _strided(torch: Any, tensor: Any) -> None:
    """Refuses what is no tensor with memory of its own in strides."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{type(tensor).__name__} is no tensor of PyTorch")
    # Classes with functions of their own, such as FakeTensor.
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ValueError(f"a tensor of class {kind.__name__} has no memory of its own")
    if tensor.layout != torch.strided or getattr(tensor, "is_nested", False):
        raise ValueError(
            f"a tensor of layout {tensor.layout} is no unified tensor: "
            "make it dense by Tensor.to_dense()"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"the tensor is on {tensor.device}, which is no CPU and no GPU"
        )
    if tensor.is_quantized:
        raise ValueError("the tensor is quantized: use Tensor.int_repr()")


class _Home:
    """Whose the storage of a tensor is."""

    def __init__(self, resource: Resource, first: int, allocator: bool) -> None:
        self.resource = resource
        self.first = first
        self.allocator = allocator

    def record(self, stream: int) -> None:
        if self.allocator:
            _library.library().hetmem_torch_record_stream(self.first, stream)
        else:
            self.resource.record(self.first, stream)


def _home(tensor: Any) -> _Home | None:
    """None: the CPU and devices cannot both use the memory, as far as is known."""
    ptr = tensor.untyped_storage().data_ptr()
    if not ptr:
        return None
    first, res = _abi.P(), _abi.P()
    known = _shim().hetmem_unified_find(ptr, ctypes.byref(first), ctypes.byref(res))
    if known and res.value in _by_pointer:
        return _Home(_by_pointer[res.value], first.value or 0, False)
    if known and res.value:
        # A sparse tensor: only its device can use it.
        return None
    # Memory of enable("unified").
    base = _library.library().hetmem_torch_base_alloc(ptr, None)
    if base:
        resource = _process.resource(tensor.get_device() if tensor.is_cuda else 0)
        if resource.access().host:
            return _Home(resource, base, True)
    return None


def _unified(torch: Any, tensor: Any) -> _Home:
    """The home of a tensor whose device can be changed."""
    _strided(torch, tensor)
    home = _home(tensor)
    if home is None:
        raise HetmemError(
            errno.EINVAL,
            "the tensor's memory is not unified: call to_unified() before, "
            "or copy it by Tensor.to()",
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            "the tensor is conjugated or negated when it is read: "
            "call Tensor.resolve_conj() and Tensor.resolve_neg() before"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "autograd does not see a view of another device: call Tensor.detach() "
            "before, use torch.no_grad(), or copy by Tensor.to()"
        )
    return home


def is_unified(tensor: Any) -> bool:
    """Returns whether cpu(), cuda() and move() can take @tensor."""
    torch = _torch()
    try:
        _strided(torch, tensor)
    except ValueError:
        return False
    return _home(tensor) is not None


def _current(torch: Any, device: Any) -> Any:
    """The current stream of @device, which is not captured."""
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise HetmemError(
                errno.EBUSY,
                "the stream is captured: make unified tensors and their views before "
                "the capture, and keep them as long as the graph",
            )
        return torch.cuda.current_stream(device)


def _shaped(torch: Any, storage: Any, like: Any, device: Any) -> Any:
    """@storage, which begins like that of @like, with its shape and strides."""
    made = torch.empty(0, dtype=like.dtype, device=device)
    return made.set_(storage, like.storage_offset(), like.size(), like.stride())


def _block(torch: Any, size: int, device: Any) -> Any:
    """A new storage of @size bytes."""
    cuda = device.type == "cuda"
    if cuda:
        index = device.index
    else:
        index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    resource = unified_resource(index)
    access = resource.access()
    if cuda and index not in access.devices:
        raise HetmemError(
            errno.EOPNOTSUPP,
            f"{device} cannot use unified memory: see `hetmem doctor`",
        )
    stream = _current(torch, device).cuda_stream if cuda else Stream.HOST
    freed_on = Stream.UNKNOWN if access.some_devices else Stream.HOST
    made = _abi.P()
    # A tensor without elements has a storage, too, which tells whose it is.
    code = _shim().hetmem_unified_make(
        resource.pointer,
        max(size, 1),
        int(stream),
        int(freed_on),
        _CUDA if cuda else _CPU,
        index if cuda else 0,
        ctypes.byref(made),
    )
    if code:
        raise _error(torch, code)
    return _taken(torch, made)


def _taken(torch: Any, made: _abi.P) -> Any:
    """A view of a block as a storage."""
    capsule = _new_capsule(made, _NAME, None)
    try:
        return torch.utils.dlpack.from_dlpack(capsule).untyped_storage()
    finally:
        # PyTorch renames a capsule that it has taken.
        if _is_capsule(capsule, _NAME):
            _shim().hetmem_unified_drop(made)


def _view(torch: Any, storage: Any, device: Any) -> Any:
    """The memory of @storage as a storage of @device."""
    where = (_CUDA if device.type == "cuda" else _CPU), device.index or 0
    made = _abi.P()
    shim = _shim()
    code = shim.hetmem_unified_view(
        storage.data_ptr(), storage.nbytes(), *where, ctypes.byref(made)
    )
    if code == -errno.ENOENT:
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        capsule = torch.utils.dlpack.to_dlpack(whole)
        code = shim.hetmem_unified_adopt(
            _capsule_pointer(capsule, _NAME), *where, ctypes.byref(made)
        )
        if code > 0:
            _name_capsule(capsule, _TAKEN)
    if code < 0:
        raise MemoryError("no host memory for a view")
    return _taken(torch, made)


def _new(torch: Any, like: Any, device: Any) -> Any:
    """A unified tensor with the shape, the dtype and the strides of @like."""
    size = 0
    if like.numel():
        last = sum((n - 1) * step for n, step in zip(like.shape, like.stride()))
        size = (last + 1) * like.element_size()
    with torch._C.DisableTorchFunction():
        return _shaped(torch, _block(torch, size, device), like, device)


def _seen(torch: Any, tensor: Any, device: Any, home: _Home) -> Any:
    """The memory of @tensor as a tensor of @device."""
    if device.type == "cuda":
        if device.index not in home.resource.access().devices:
            raise HetmemError(
                errno.EOPNOTSUPP, f"{device} cannot use the tensor's memory: copy it"
            )
        home.record(_current(torch, device).cuda_stream)
    if tensor.device == device:
        return tensor.detach() if tensor.requires_grad else tensor
    with torch._C.DisableTorchFunction():
        storage = _view(torch, tensor.untyped_storage(), device)
        return _shaped(torch, storage, tensor, device)


def to_unified(tensor: Any) -> Any:
    """Returns @tensor in unified memory, on its device: itself if it is there, else a
    copy.

    Autograd records the copy. For a parameter: p.data = to_unified(p.data).
    """
    torch = _torch()
    _strided(torch, tensor)
    if _home(tensor) is not None:
        return tensor
    made = _new(torch, torch.empty_like(tensor, device="meta"), tensor.device)
    with torch._C.DisableTorchFunction():
        return made.copy_(tensor)


def cpu(tensor: Any, non_blocking: bool = False) -> Any:
    """Returns the memory of a unified tensor as a tensor of the CPU, without a copy.

    Waits until the work so far on the current stream of the tensor's device is
    complete. With @non_blocking it does not: synchronize that stream before the CPU
    uses the tensor.
    """
    torch = _torch()
    home = _unified(torch, tensor)
    if tensor.is_cuda and not non_blocking:
        _current(torch, tensor.device).synchronize()
    return _seen(torch, tensor, torch.device("cpu"), home)


def cuda(tensor: Any, device: Any = "cuda") -> Any:
    """Returns the memory of a unified tensor as a tensor of @device, without a copy.

    Use it on the stream that is current at the call. Call record_stream() for others.
    """
    torch = _torch()
    home = _unified(torch, tensor)
    target = _device(torch, device)
    if target.type != "cuda":
        raise ValueError(f"{target} is no CUDA device: call cpu()")
    return _seen(torch, tensor, target, home)


def _location(device: Any) -> int:
    if device.type == "cuda":
        return _abi.DEVICE << 16 | int(device.index)
    return _abi.HOST << 16 | _abi.NODE_ANY


def move(
    tensor: Any, device: Any, non_blocking: bool = False, copy: bool = False
) -> Any:
    """Moves the memory of a unified tensor to @device. Returns a tensor of @device.

    It is Tensor.to() without the copy: both tensors have one memory. Earlier work on
    the current stream of the tensor's device comes before the move, and later work on
    the current stream of @device after it. Without @non_blocking the call waits for the
    move. Where nothing can move the memory, it is used where it is.

    @copy: Tensor.to(device, copy=True), for any tensor.

    Errors are HetmemError:
    - EINVAL: the memory is not unified
    - ENODEV: no such device
    - EOPNOTSUPP: the device cannot use the memory
    - EBUSY: the stream is captured
    - ENOMEM: there is no room on the device
    ValueError: the tensor requires grad (call Tensor.detach() before), is sparse, or is
    conjugated.
    """
    torch = _torch()
    if copy:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{type(tensor).__name__} is no tensor of PyTorch")
        target = _device(torch, device)
        return tensor.to(target, non_blocking=non_blocking, copy=True)
    home = _unified(torch, tensor)
    target = _device(torch, device)
    if target.type == "cuda" and target.index not in home.resource.access().devices:
        raise HetmemError(
            errno.EOPNOTSUPP, f"{target} cannot use the tensor's memory: copy it"
        )
    stream = int(Stream.HOST)
    on = next((d for d in (target, tensor.device) if d.type == "cuda"), None)
    if on is not None:
        current = _current(torch, on)
        if tensor.is_cuda and tensor.device != on:
            current.wait_stream(_current(torch, tensor.device))
        stream = int(current.cuda_stream)
    start, size = extent(tensor)
    if size:
        code = _library.library().hetmem_move(
            default().pointer,
            start,
            size,
            _location(target),
            stream,
            _abi.NONBLOCKING if non_blocking else 0,
            None,
        )
        if code:
            raise _error(torch, code)
    return _seen(torch, tensor, target, home)


def record_stream(tensor: Any, stream: StreamLike) -> None:
    """Reports that @stream uses @tensor: its memory is used again after that.

    Tensor.record_stream() has no effect on unified tensors without enable().
    """
    torch = _torch()
    _strided(torch, tensor)
    home = _home(tensor)
    if home is None:
        raise HetmemError(
            errno.EINVAL,
            "the tensor's memory is not unified: call Tensor.record_stream()",
        )
    home.record(stream_handle(stream))


# Of the functions that make tensors: where the value is that fills them.
_FILLED = {
    "empty": None,
    "empty_strided": None,
    "empty_like": None,
    "new_empty": None,
    "new_empty_strided": None,
    "zeros": 0,
    "zeros_like": 0,
    "new_zeros": 0,
    "ones": 1,
    "ones_like": 1,
    "new_ones": 1,
    "full": "fill_value",
    "full_like": "fill_value",
    "new_full": "fill_value",
}
# Their result is copied.
_COPIED = (
    "arange",
    "eye",
    "linspace",
    "logspace",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "range",
    "tensor",
    "new_tensor",
)


def _fill_value(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if "fill_value" in options:
        return options["fill_value"]
    return args[2 if name == "new_full" else 1]


def _make(
    torch: Any,
    function: Any,
    name: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """What @function of _FILLED returns, in unified memory. None: that cannot be."""
    given = dict(options)
    grad = bool(given.pop("requires_grad", False))
    if given.pop("pin_memory", False) or given.get("out") is not None:
        return None
    if given.get("names") is not None:
        return None
    device = given.pop("device", None)
    if device is None and name.startswith("new_"):
        device = args[0].device
    if device is None and name.endswith("_like"):
        device = (args[0] if args else given["input"]).device
    if device is None:
        device = torch.get_default_device()
    target = torch.device(device)
    if target.type not in ("cpu", "cuda"):
        return None
    with torch._C.DisableTorchFunction():
        like = function(*args, **given, device="meta")
        # Under FakeTensorMode, as in torch.compile(), no tensor has memory.
        if like.layout != torch.strided or type(like) is not torch.Tensor:
            return None
        made = _new(torch, like, _device(torch, target))
        value = _FILLED[name]
        if value == "fill_value":
            made.fill_(_fill_value(name, args, given))
        elif value is not None:
            # With a kernel of its own only where that is needed.
            made.fill_(value) if value else made.zero_()
        return made.requires_grad_(grad) if grad else made


def _explicit(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    torch = _torch()
    function = getattr(torch, name)
    if not options.pop("unified", True):
        return function(*args, **options)
    made = _make(torch, function, name, args, options)
    if made is None:
        raise ValueError(
            "no unified tensor: leave out pin_memory=, out=, names= and layout= of "
            f"torch.{name}(), and give a device that is the CPU or a GPU"
        )
    return made


def empty(*size: Any, unified: bool = True, **options: Any) -> Any:
    """Makes a tensor as torch.empty() does, in unified memory, with its options."""
    return _explicit("empty", size, {**options, "unified": unified})


def zeros(*size: Any, unified: bool = True, **options: Any) -> Any:
    """Makes a tensor of zeros, in unified memory, as torch.zeros() does."""
    return _explicit("zeros", size, {**options, "unified": unified})


def full(size: Any, fill_value: Any, *, unified: bool = True, **options: Any) -> Any:
    """Makes a tensor of one value, in unified memory, as torch.full() does."""
    return _explicit("full", (size, fill_value), {**options, "unified": unified})


def _functions(torch: Any) -> dict[Any, str]:
    """The functions that make tensors, with their names."""
    found = {}
    for name in (*_FILLED, *_COPIED):
        owner = torch.Tensor if name.startswith("new_") else torch
        function = getattr(owner, name, None)
        if function is not None:
            found[function] = name
    return found


_local = threading.local()
_threads_on: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_mode: Any = None


def _is_on() -> bool:
    return getattr(_local, "on", False)


def _make_mode(torch: Any) -> Any:
    """A torch.overrides.TorchFunctionMode. Without one PyTorch calls nothing here."""
    functions = _functions(torch)

    def handle(
        _: Any, function: Any, types: Any, args: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        name = functions.get(function)
        if name is None or torch.compiler.is_compiling():
            return function(*args, **options)
        if name in _FILLED:
            made = _make(torch, function, name, args, options)
            if made is not None:
                return made
        result = function(*args, **options)
        if name in _FILLED or options.get("out") is not None:
            return result
        return _copied(torch, result)

    return type(
        "Unified", (torch.overrides.TorchFunctionMode,), {"__torch_function__": handle}
    )()


def _copied(torch: Any, tensor: Any) -> Any:
    try:
        _strided(torch, tensor)
    except ValueError:
        return tensor
    if tensor.device.type == "cpu" and tensor.is_pinned():
        return tensor
    made = to_unified(tensor.detach())
    return made.requires_grad_() if tensor.requires_grad else made


def _set(on: bool) -> None:
    """unified() of the calling thread."""
    global _mode
    torch = _torch()
    overrides = torch.overrides
    if on and _mode is None:
        _mode = _make_mode(torch)
    default_device = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    default_device = getattr(default_device, "device_context", None)
    modes = [overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    modes.reverse()
    if _mode in modes:
        modes.remove(_mode)
    if on:
        # Below the others: each of them takes off the uppermost at its end. Exception:
        # PyTorch looks for the mode of torch.set_default_device() at the bottom.
        lowest = bool(modes) and modes[0] is default_device
        modes.insert(int(lowest), _mode)
    for mode in modes:
        overrides._push_mode(mode)
    _local.on = on
    _note(on)


def _note(on: bool) -> None:
    """Threads inherit only while unified() holds for one."""
    thread = threading.current_thread()
    with _lock:
        _threads_on.discard(thread)
        if on:
            _threads_on.add(thread)
        if any(other.is_alive() for other in _threads_on):
            _threads.inherit(_heritage)
        else:
            _threads.disinherit(_heritage)


def _heritage() -> Callable[[], None] | None:
    """A thread begins as the one that starts it."""
    return (lambda: _set(True)) if _is_on() else None


class unified:
    """Makes new tensors unified, from the call on. unified(False) ends that.

    As a statement it lasts until the next call; at the end of a with block, and at
    undo(), it is as before the call. It holds for the calling thread, and for
    threading.Threads that a thread starts for which it holds: these keep it. It warns
    about threads that run already. Threads that C code starts, as for backward(), and
    forked children begin without it.

    New tensors are those of the functions that make tensors from nothing, such as
    torch.empty(), torch.zeros_like(), Tensor.new_full(), torch.randn() and
    torch.tensor(), on the CPU and on devices, also in modules of torch.nn. Results of
    operations, and of Tensor.to(), get PyTorch's memory. enable("unified") makes
    all memory of devices unified.
    """

    def __init__(self, on: bool = True) -> None:
        self._thread = threading.get_ident()
        self._before: bool | None = _is_on()
        if on:
            # What cannot work fails here, and not at the first tensor.
            unified_resource(0)
            _shim()
        _set(bool(on))
        others = threading.active_count() - 1
        if on and not self._before and others > 0:
            warnings.warn(
                f"hetmem.torch: unified() is not for {others} other threads, which run "
                "already: call it before they start",
                RuntimeWarning,
                stacklevel=2,
            )

    def undo(self) -> None:
        """Restores what was before the call."""
        if self._thread != threading.get_ident():
            raise RuntimeError("undo unified() in the thread that called it")
        before, self._before = self._before, None
        if before is not None:
            _set(before)

    def __enter__(self) -> unified:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()
