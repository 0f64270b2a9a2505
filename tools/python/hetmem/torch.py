# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""PyTorch on hetmem.

    import hetmem.torch
    hetmem.torch.enable()

Call enable() before the first use of CUDA. All device memory of PyTorch is hetmem's
then. enable() returns the mode:

"full": PyTorch has what it has with its own allocator: torch.cuda.OutOfMemoryError,
statistics, snapshots, CUDA graphs, torch.cuda.MemPool.

"plain": where full mode cannot be had; reason() has the reason. An allocation that
fails raises RuntimeError ("CUDA out of memory. ..."). PyTorch refuses, with an error:
torch.cuda.memory_stats() and what is made of it, snapshots, CUDA graphs,
torch.cuda.MemPool, sharing tensors between processes, and
torch.backends.cudnn.benchmark. resource(device).stats() has the statistics.

spill() is enable() for training in less device memory than the program needs.

pool() needs no enable(): it gives PyTorch's own allocator memory of hetmem for a
part of a program, to sleep and wake by its tag.

region() needs enable(): tensors of a part of a program get a tag, to sleep and wake by.

sparse() makes tensors of addresses first, whose memory is committed later. KVCache is a
cache for transformers' generate() that grows in place. They need no enable().

pin() makes page-locked tensors of their exact size. It needs no enable().

unified(), empty() and to_unified() make tensors that the CPU and devices use; move()
changes their device without a copy. They need no enable().
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import re
import runpy
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Union

from . import _abi, _library, _process, _torch_conf, _torch_full
from ._library import HetmemError, OutOfMemoryError
from ._log import LOGGER
from ._sparse import shape_of
from ._torch_pin import pin, pinned_resource
from ._torch_sparse import Sparse
from ._torch_unified import (
    _device,
    cpu,
    cuda,
    empty,
    full,
    is_unified,
    move,
    record_stream,
    to_unified,
    unified,
    unified_resource,
    zeros,
)
from .core import Resource, Stats, Stream, default
from .place import extent

if TYPE_CHECKING:
    from ._torch_cache import KVCache  # noqa: F401

__all__ = [
    "Pool",
    "Sparse",
    "cpu",
    "cuda",
    "empty",
    "enable",
    "enabled",
    "full",
    "is_unified",
    "main",
    "move",
    "move_in",
    "move_out",
    "parked",
    "pin",
    "pinned_resource",
    "pool",
    "priority",
    "reason",
    "record_stream",
    "region",
    "resource",
    "sleep",
    "snapshot",
    "snapshot_at_oom",
    "sparse",
    "spill",
    "stats",
    "to_unified",
    "unified",
    "unified_resource",
    "wake",
    "zeros",
]

Size = Union[int, str]

_MIB = 1 << 20
_lock = threading.Lock()
_mode: str | None = None
_reason: str | None = None


def _torch() -> Any:
    torch = importlib.import_module("torch")
    if not getattr(torch.version, "cuda", None):
        raise HetmemError(
            errno.EOPNOTSUPP,
            f"PyTorch {torch.__version__} is built without CUDA: "
            "install a build with CUDA",
        )
    return torch


def _is_alike(spec: str | None, mode: str) -> bool:
    """Whether enable() was called with these before, or `import torch` called it."""
    return _mode is not None and mode in ("auto", _mode) and _process.is_chosen(spec)


def _refuse_late(torch: Any) -> None:
    if _mode is not None:
        raise HetmemError(
            errno.EALREADY,
            f"hetmem.torch is enabled already, in mode {_mode} with the spec "
            f"{_process.chosen()}: a process has one. Remove this call, or choose by "
            "HETMEM_TORCH and HETMEM_RESOURCE",
        )
    if torch.cuda.is_initialized():
        raise HetmemError(
            errno.EBUSY,
            "PyTorch has initialized CUDA: call hetmem.torch.enable() before the "
            "first use of CUDA, or run: python -m hetmem.torch SCRIPT",
        )


def _enable_plain(torch: Any) -> None:
    path, shim = _library.shim()
    memory = torch.cuda.memory
    allocator = memory.CUDAPluggableAllocator(
        path, "hetmem_plain_alloc", "hetmem_torch_free"
    )
    hooks = allocator.allocator()
    library = _library.library()
    for setter, owner, name in (
        ("set_init_fn", library, "hetmem_torch_init"),
        ("set_reset_fn", library, "hetmem_torch_reset"),
        ("set_record_stream_fn", shim, "hetmem_plain_record_stream"),
        ("set_base_alloc_fn", library, "hetmem_torch_base_alloc"),
        ("set_begin_allocate_to_pool", shim, "hetmem_plain_begin_pool"),
    ):
        getattr(hooks, setter)(_library.address(owner, name))
    memory.change_current_allocator(allocator)


_NO_GRAPHS = (
    'plain mode has no CUDA graphs: torch.compile(mode="reduce-overhead") and '
    '"max-autotune" fail. Call hetmem.torch.enable(mode="full"), or use '
    '"max-autotune-no-cudagraphs"'
)


def _wants_graphs() -> bool:
    """Whether torch.compile() makes CUDA graphs by default, as far as is known now."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        return bool(config.triton.cudagraphs)
    return os.environ.get("TORCHINDUCTOR_CUDAGRAPHS") == "1"


def _enable_some(torch: Any, mode: str) -> tuple[str, str | None]:
    """The mode that was taken, and the reason if it is not full."""
    reason = 'enable(mode="plain") asked for it'
    if mode != "plain":
        try:
            _torch_full.enable(torch, again=mode == "full")
            return "full", None
        except HetmemError as error:
            # Another mode helps only where PyTorch has not refused.
            if mode == "full" or error.errno != errno.EOPNOTSUPP:
                raise
            reason = str(error.strerror)
    _enable_plain(torch)
    return "plain", reason


def enable(spec: str | None = None, mode: str = "auto") -> str:
    """Makes hetmem the allocator of PyTorch in this process. Returns the mode.

    @spec: what device memory is made of; None: HETMEM_RESOURCE of the environment,
    else "device-pool". Where it says no device, each device has its own resource.
    @mode: "full", "plain", or "auto": full, and plain where full cannot be had.

    A second call with the same spec and mode changes nothing. Processes that this one
    starts have PyTorch's own allocator, unless they call enable() or HETMEM_TORCH of
    the environment is the mode: then `import torch` enables hetmem in them.

    The first call in full mode compiles a part of the package for the installed
    PyTorch, which takes up to a minute, and keeps it in ~/.cache/hetmem.
    """
    global _mode, _reason
    if mode not in ("auto", "plain", "full"):
        raise ValueError(f"no mode {mode!r}: there are auto, plain and full")
    torch = _torch()
    with _lock:
        if _is_alike(spec, mode):
            return str(_mode)
        _refuse_late(torch)
        with _process.choosing(spec):
            _mode, _reason = _enable_some(torch, mode)
    if _mode == "plain" and mode == "auto":
        LOGGER.warning("PyTorch allocates from hetmem, in plain mode: %s", _reason)
    else:
        LOGGER.info("PyTorch allocates from hetmem, in %s mode", _mode)
    ignored = _torch_conf.without_effect()
    if ignored:
        warnings.warn(
            "hetmem.torch: these options of PYTORCH_CUDA_ALLOC_CONF have no effect: "
            f"{ignored}",
            RuntimeWarning,
            stacklevel=2,
        )
    if _mode == "plain" and _wants_graphs():
        warnings.warn(f"hetmem.torch: {_NO_GRAPHS}", RuntimeWarning, stacklevel=2)
    if _mode == "plain" and torch.backends.cudnn.benchmark:
        warnings.warn(
            "hetmem.torch: plain mode cannot do torch.backends.cudnn.benchmark: "
            "set it to False",
            RuntimeWarning,
            stacklevel=2,
        )
    return _mode


_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?([Ee]\+?[0-9]+)?[ \t]*[A-Za-z]*%?")


def _size(name: str, parameter: str, given: Size) -> str:
    """@given as the spec has it: bytes, a size like "16G", or a percentage."""
    text = str(given)
    good = isinstance(given, (int, str)) and not isinstance(given, bool)
    # Nothing but one value gets into the spec.
    good = good and _SIZE.fullmatch(text) is not None
    if good:
        try:
            _process.check_spec(f"pool(vmm,{parameter}={text})")
        except HetmemError:
            good = False
    if not good:
        share = ', or "60%"' if parameter == "max" else ""
        raise ValueError(
            f"{name}={given!r}: give a number of bytes above 0, "
            f'a size like "16G"{share}'
        )
    return text


def _half_of_the_host() -> int:
    half = _process.host_memory() // 2 // _MIB * _MIB
    if not half:
        raise HetmemError(
            errno.ENOMEM,
            "how much memory the host has left is not known, or it is nothing: "
            "call hetmem.torch.spill() with host=",
        )
    return half


class Spilling(str):
    """The mode that spill() took. As a context manager it ends the limit.

    At the end of the block the limit is what it was before that spill(): none, after
    the first one. hetmem stays the allocator. Memory in the host comes back when an
    allocation finds room, or by move_in().
    """

    _before: str

    def __enter__(self) -> Spilling:
        return self

    def __exit__(self, *_: object) -> None:
        with _spill_lock:
            _set_limit(self._before)


# The texts of host=, movable= and limit= since the first spill().
_spilling: dict[str, str] = {}
_spill_lock = threading.RLock()


def _spill_spec(limit: str) -> str:
    values = "" if limit == "100%" else f"max={limit},"
    return (
        f"pool(vmm,{values}spill={_spilling['host']},"
        f"movable={_spilling['movable']},launcher=single)"
    )


def _used_devices(torch: Any) -> list[int]:
    """Those that PyTorch uses. To ask the resource of another one would open it."""
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return [n for n in range(count) if torch._C._cuda_hasPrimaryContext(n)]


def _set_limit(limit: str) -> None:
    """On each device: those that PyTorch uses, and those that it begins to use."""
    changed = []
    try:
        for device in _used_devices(_torch()):
            resource = _process.resource(device)
            resource.set("max", limit)
            changed.append(resource)
        _process.change(_spill_spec(limit))
    except BaseException:
        for resource in changed:
            resource.set("max", _spilling["limit"])
        raise
    _spilling["limit"] = limit


def _spill_first(limit: str, host: str | None, movable: str | None, mode: str) -> None:
    _spilling["host"] = host or str(_half_of_the_host())
    _spilling["movable"] = movable or str(8 * _MIB)
    try:
        enable(_spill_spec(limit), mode)
    except BaseException:
        _spilling.clear()
        raise
    _spilling["limit"] = limit


def _spill_again(host: str | None, movable: str | None, mode: str) -> None:
    """Refuses what a later spill() cannot change."""
    for name, value, now in (
        ("host", host, _spilling["host"]),
        ("movable", movable, _spilling["movable"]),
        ("mode", None if mode == "auto" else mode, _mode),
    ):
        if value is not None and value != now:
            raise HetmemError(
                errno.EALREADY,
                f"spill() was called with {name}={now}: only limit= can change",
            )


def spill(
    limit: Size | None = None,
    host: Size | None = None,
    movable: Size | None = None,
    mode: str = "auto",
) -> Spilling:
    """enable() with a pool that moves large tensors to the host when it is full.

    Call it before the first use of CUDA. It is an alternative to offloading of
    activations: the program does not change. Returns the mode, as enable() does; the
    result is also a context manager, whose end lifts the limit. Later calls change the
    limit, from the next allocation on.

    @limit: most device memory: bytes, a size like "6G", or "60%" of the device;
    None: the whole device.
    @host: most page-locked host memory for tensors of one device. None: half of what
    the host has left at the first call. That is the least of MemAvailable and of what
    the cgroups of the process allow, less HETMEM_RESERVE. Pass it if several devices or
    processes spill.
    @movable: tensors of so many bytes or more move. None: 8 MiB.

    The spec is pool(vmm,max=,spill=,movable=,launcher=single). launcher=single is a
    promise of the program, which a move relies on:
    - All uses of a movable tensor are on the stream that it was allocated on, or
      joined into that stream by events before the next allocation on it.
    - While one thread allocates or frees, no other thread gives that stream work.
    A training loop on PyTorch's default stream keeps it. Tensors of other streams,
    tensors with Tensor.record_stream(), and memory of CUDA graphs do not move.
    A program that breaks the promise loses data.
    """
    most = "100%" if limit is None else _size("limit", "max", limit)
    in_host = None if host is None else _size("host", "spill", host)
    least = None if movable is None else _size("movable", "movable", movable)
    with _spill_lock:
        before = _spilling.get("limit", "100%")
        if _spilling:
            _spill_again(in_host, least, mode)
            _set_limit(most)
        else:
            _spill_first(most, in_host, least, mode)
    made = Spilling(_mode)
    made._before = before
    return made


def enabled() -> str | None:
    """Returns the mode of enable(); None: PyTorch has its own allocator."""
    return _mode


def reason() -> str | None:
    """Returns why the mode is plain; None: it is not."""
    return _reason


def resource(device: int = 0) -> Resource:
    """Returns the resource behind PyTorch on @device, after enable()."""
    if _mode is None:
        raise HetmemError(errno.EINVAL, "call hetmem.torch.enable() before")
    return _process.resource(device)


def stats(device: int = 0) -> Stats:
    """Returns the statistics of resource(), in both modes: bytes that are requested,
    held, parked and spilled, and counts."""
    return resource(device).stats()


def _block(tensor: Any) -> tuple[Resource, int]:
    """The resource of a tensor's memory, and the address of its block."""
    if not hasattr(tensor, "untyped_storage"):
        raise TypeError(f"{type(tensor).__name__} is no tensor of PyTorch")
    if not tensor.is_cuda:
        raise ValueError(f"the tensor is on {tensor.device}: only device memory moves")
    ptr = int(tensor.untyped_storage().data_ptr())
    if not ptr:
        raise ValueError("the tensor has no memory")
    return resource(int(tensor.get_device())), ptr


def _on_block(name: str, tensor: Any, value: int) -> None:
    """Calls Resource.@name for the block of @tensor. An error tells what to do."""
    owner, ptr = _block(tensor)
    try:
        getattr(owner, name)(ptr, value)
    except HetmemError as error:
        text, hint = str(error.strerror), ""
        if error.errno == errno.EINVAL:
            hint = "; the tensor's memory is not of hetmem: move a copy of it"
        elif error.errno == errno.EOPNOTSUPP:
            hint = "; call hetmem.torch.spill() instead of enable()"
        elif "HETMEM_ALLOC_MOVABLE" in text:
            hint = ", or call hetmem.torch.spill() with a lower movable="
        raise type(error)(error.errno, text + hint) from None


def parked(tensor: Any) -> Any:
    """A CPU tensor with the contents of @tensor, while these sleep. It stays asleep.

    @tensor: of the memory of enable(), of a pool() or of sparse(). HetmemError with
    errno.ENODATA: it is awake, or sleeps without its contents.
    """
    torch = _torch()
    if not tensor.numel():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    # Not the whole storage: a sparse tensor has memory only in parts.
    start, size = extent(tensor)
    owners = [
        *(member.resource for member in _pools),
        *(owner for owner, _ in _apart.values()),
    ]
    if _mode is not None:
        owners.append(_block(tensor)[0])
    data = None
    for owner in owners:
        try:
            data = owner.parked_read(start, size)
            break
        except HetmemError as error:
            if error.errno != errno.EINVAL:
                raise
    if data is None:
        raise HetmemError(errno.EINVAL, "the tensor's memory is not of hetmem")
    kept = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(kept, 0, tensor.size(), tensor.stride())


def priority(tensor: Any, priority: int) -> None:
    """Tensors of the lowest priority leave the device first. It is 0 at first.

    Tensors that share their memory have one priority. For memory that may not move it
    raises HetmemError with errno.EBUSY.
    """
    if not -(1 << 31) <= priority < 1 << 31:
        raise ValueError(f"priority {priority} is not a number of 32 bits")
    _on_block("priority", tensor, priority)


def move_out(tensor: Any, wait: bool = True) -> None:
    """Moves the memory of @tensor to the host. Its address stays.

    Kernels can use the tensor there, over the bus. Without @wait the move only
    begins: call move_out() with @wait before the next use. Errors are HetmemError:
    - EBUSY: the memory may not move, or its stream is not done; the text has the reason
    - ENOMEM: no host memory, or more than host= of spill()
    - EINVAL: the memory is not of hetmem
    - EOPNOTSUPP: the spec has no memory that moves: call spill() instead of enable()
    """
    _on_block("spill", tensor, wait)


def move_in(tensor: Any, wait: bool = True) -> None:
    """Moves the memory of @tensor back to the device. See move_out().

    ENOMEM: the device, or the limit, has no room.
    """
    _on_block("fetch", tensor, wait)


def _with_snapshots() -> Any:
    """PyTorch, in full mode."""
    if _mode is None:
        raise HetmemError(errno.EINVAL, "call hetmem.torch.enable() before")
    if _mode != "full":
        raise HetmemError(
            errno.EOPNOTSUPP,
            f"PyTorch has no snapshots in plain mode ({_reason}): call "
            'hetmem.torch.enable(mode="full"), or record the allocations for '
            'hetmem replay: enable("log(device-pool,file=trace.csv)")',
        )
    return _torch()


def _dump(torch: Any, path: str) -> None:
    """Makes @path, or leaves what is there."""
    part = f"{path}.{os.getpid()}-{threading.get_ident()}.part"
    try:
        torch.cuda.memory._dump_snapshot(part)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def snapshot(file: str | os.PathLike[str]) -> None:
    """Writes what torch.cuda.memory._dump_snapshot() does, for full mode only.

    pytorch.org/memory_viz shows it. It has the events of the past only if
    torch.cuda.memory._record_memory_history() was called before them.
    python -m hetmem.trace makes a recording for hetmem replay of it.
    """
    _dump(_with_snapshots(), os.fspath(file))


_oom_file: str | None = None
_observed = False


def _at_oom(*_: object) -> None:
    """PyTorch calls it before it raises torch.cuda.OutOfMemoryError."""
    path = _oom_file
    if path is None:
        return
    try:
        _dump(_torch(), path)
    except Exception as error:
        # The program gets its own error, not this one.
        print(f"hetmem.torch: no snapshot in {path}: {error}", file=sys.stderr)


def snapshot_at_oom(file: str | os.PathLike[str] | None) -> None:
    """Calls snapshot(file) at each torch.cuda.OutOfMemoryError, before it is raised.

    The file has the last one. Another call changes the file; None ends it. If the file
    cannot be written, stderr has the reason, and the program gets its error unchanged.
    """
    global _oom_file, _observed
    torch = _with_snapshots()
    path = None if file is None else os.path.abspath(os.fspath(file))
    with _lock:
        # PyTorch cannot detach an observer.
        if not _observed and path is not None:
            torch._C._cuda_attach_out_of_memory_observer(_at_oom)
            _observed = True
        _oom_file = path


class Pool:
    """Memory of hetmem for a part of a program; see pool()."""

    def __init__(self, torch: Any, spec: str, tag: str | None, device: int) -> None:
        self.tag = tag
        self.device = device
        path, shim = _library.shim()
        resource = default().resource(_with_tag(spec, tag, device))
        if not resource.access().devices >= {device}:
            raise HetmemError(
                errno.EINVAL, f"device {device} cannot use all memory of {spec}"
            )
        number = _next_slot(shim)
        shim.hetmem_plain_set_slot.argtypes = [_abi.INT, _abi.INT, _abi.P]
        _library.check(shim.hetmem_plain_set_slot(number, device, resource.pointer))
        # torch frees segments when its statics go, later than this module.
        resource._keep()
        self.resource = resource
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            path, f"hetmem_plain_alloc_{number:02x}", f"hetmem_plain_free_{number:02x}"
        )
        self.mem_pool = torch.cuda.MemPool(self._allocator.allocator())
        self._torch = torch

    @contextlib.contextmanager
    def use(self) -> Iterator[Pool]:
        """Tensors that this thread makes meanwhile are of the pool."""
        with self._torch.cuda.use_mem_pool(self.mem_pool, self.device):
            yield self

    def sleep(self, keep: bool = True) -> None:
        """Gives the device memory back. With @keep the contents wait on the host."""
        self._torch.cuda.synchronize(self.device)
        self.resource.sleep(keep=keep)

    def wake(self, wait: float = 0) -> None:
        """Gives the tensors of the pool memory again, at their addresses. Waits up
        to @wait seconds for room."""
        self.resource.wake(wait=wait)


_pools: list[Pool] = []
_slots = 0


def _next_slot(shim: Any) -> int:
    global _slots
    if _slots >= shim.hetmem_plain_slots():
        raise HetmemError(
            errno.ENOSPC, f"a process has {_slots} pools at most: use one again"
        )
    _slots += 1
    return _slots - 1


def _with_tag(spec: str, tag: str | None, device: int) -> str:
    """@spec as a pool of @device with @tag."""
    if spec == "device-pool":
        more = "" if tag is None else f',tag="{tag}"'
        return f"device-pool(device={device}{more})"
    if tag is not None and "tag=" not in spec:
        raise HetmemError(
            errno.EINVAL,
            f"{spec} has no tag=: write it there, as in pool(vmm,tag={tag})",
        )
    return spec


def pool(
    spec: str = "device-pool", tag: str | None = None, device: int | None = None
) -> Pool:
    """Makes a pool for a part of a program, such as its weights or its KV cache.

        weights = hetmem.torch.pool(tag="weights")
        with weights.use():
            model = make_model()
        weights.sleep(); weights.wake()

    It is a torch.cuda.MemPool above hetmem. MemPool looks at the thread: blocks
    that autograd's backward threads allocate are not of the pool, so pool() warns
    while gradients are enabled.
    """
    torch = _torch()
    if _mode is not None:
        raise HetmemError(
            errno.EOPNOTSUPP,
            "PyTorch has no pools of other resources after enable(): use pool() "
            "without enable(), or torch.cuda.MemPool in full mode",
        )
    ordinal = torch.cuda.current_device() if device is None else device
    with _lock:
        made = Pool(torch, spec, tag, ordinal)
        _pools.append(made)
    if torch.is_grad_enabled():
        warnings.warn(
            "hetmem.torch: memory that backward() allocates is not of the pool; "
            "make it below torch.no_grad() if there is no backward()",
            RuntimeWarning,
            stacklevel=2,
        )
    return made


class _Region(threading.local):
    """The tag and the flags of a thread."""

    tag: bytes | None = None
    flags = 0


_region = _Region()
# Tags with memory: tag, flags and device.
_first: set[tuple[bytes, int, int]] = set()


def _choose_region(tag: bytes | None, flags: int) -> None:
    _library.check(_library.library().hetmem_torch_region(tag, flags))
    _region.tag, _region.flags = tag, flags


def _make_first(tag: bytes, flags: int, device: int) -> None:
    """Refuses a resource without tags here, not in each allocation."""
    if (tag, flags, device) in _first:
        return
    # Without memory the program's allocation fails, and has PyTorch's error.
    with contextlib.suppress(OutOfMemoryError):
        resource(device).alloc(
            1, Stream.HOST, tag=tag.decode(), scratch=bool(flags)
        ).free(Stream.HOST)
    _first.add((tag, flags, device))


@contextlib.contextmanager
def region(tag: str, scratch: bool = False) -> Iterator[None]:
    """Tensors that this thread makes in the block get @tag, for sleep() and wake().

        with hetmem.torch.region("weights"):
            model = make_model()
        with hetmem.torch.region("kv_cache", scratch=True):
            cache = make_cache()
        hetmem.torch.sleep("weights"); hetmem.torch.sleep("kv_cache")

    @scratch: nobody needs the contents after a sleep. They are never copied.

    Call enable() before. In a region inside a region the inner tag counts. A region
    is of its thread: memory that autograd's threads allocate in backward() has no tag.
    If the spec has no tags, it raises HetmemError with errno.EOPNOTSUPP.
    """
    if _mode is None:
        raise HetmemError(errno.EINVAL, "call hetmem.torch.enable() before")
    name, flags = _library.text(tag), _abi.ALLOC_SCRATCH if scratch else 0
    outer = _region.tag, _region.flags
    _make_first(name, flags, _torch().cuda.current_device())
    _choose_region(name, flags)
    try:
        yield
    finally:
        _choose_region(*outer)


# Resources of sparse() that are not PyTorch's, by spec and device, with their tags.
_apart: dict[tuple[str, int], tuple[Resource, str | None]] = {}


def _apart_resource(spec: str | None, tag: str | None, device: int) -> Resource:
    """A resource that sparse tensors share: they outlive this module."""
    text = _with_tag(spec or "device-pool", tag, device)
    with _lock:
        if (text, device) not in _apart:
            made = default().resource(text)
            if not made.access().devices >= {device}:
                raise HetmemError(
                    errno.EINVAL, f"device {device} cannot use all memory of {spec}"
                )
            made._keep()
            _apart[text, device] = made, tag
        return _apart[text, device][0]


# A forked child makes its own.
os.register_at_fork(after_in_child=_apart.clear)


def sparse(
    max_shape: int | Iterable[int],
    dtype: Any = None,
    *,
    dim: int = 0,
    device: Any = None,
    spec: str | None = None,
    tag: str | None = None,
) -> Sparse:
    """Makes a tensor of @max_shape that has addresses and no memory yet.

        cache = hetmem.torch.sparse((4096, 8, 128), torch.bfloat16)
        keys = cache.commit(100)            # the tensor of the first 100 rows
        keys = cache.commit(101)            # the same memory, and one row more

    commit(n) makes memory for the first n indices of @dim, in units of the pool (2 MiB,
    or unit= of @spec). It copies nothing: views and addresses stay valid. A use of what
    is not committed is an error, which can crash. Only @dim is outermost in memory;
    the others are contiguous in their order.

    @dtype: None: PyTorch's default.
    @device: None: the current CUDA device.
    @spec: a pool over vmm(), one for all tensors with this spec. None: PyTorch's memory
    after enable(), else "device-pool".
    @tag: a pool with this tag for sleep() and wake(), one for all tensors with it. A
    @spec has it, too. The tag of a region() does not count.

    The last tensor of this memory frees it, after the work on the streams of
    commit(). Call record_stream() of the tensor for others, which needs enable().
    """
    shape, outer = shape_of(max_shape, dim)
    return _sparse(shape, dtype, dim=outer, device=device, spec=spec, tag=tag)


def _sparse(
    shape: tuple[int, ...],
    dtype: Any,
    *,
    dim: int = 0,
    device: Any = None,
    spec: str | None = None,
    tag: str | None = None,
    size: int = 0,
) -> Sparse:
    """sparse() with at least @size bytes of addresses."""
    torch = _torch()
    kind = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"dtype={dtype!r}: give one of PyTorch, like torch.float16")
    where = _device(torch, "cuda" if device is None else device)
    if where.type != "cuda":
        raise ValueError(f"{where} is no CUDA device: only its memory is sparse")
    if spec is None and tag is None and _mode is not None:
        owner = resource(where.index)
    else:
        owner = _apart_resource(spec, tag, where.index)
    return Sparse(
        torch, owner, shape=shape, dim=dim, dtype=kind, device=where, size=size
    )


def __getattr__(name: str) -> Any:
    """KVCache is a class of transformers, which is imported when it is asked for."""
    if name == "KVCache":
        return importlib.import_module("hetmem._torch_cache").KVCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _tagged(tag: str | None) -> tuple[list[Pool], list[tuple[Resource, int]]]:
    """The pools with @tag, and the resources of sparse() with their devices."""
    found = [pool for pool in _pools if tag is None or pool.tag == tag]
    apart = [
        (owner, key[1])
        for key, (owner, own) in _apart.items()
        if tag is None or own == tag
    ]
    if tag is not None and not found and not apart and _mode is None:
        raise HetmemError(errno.ENOENT, f"no pool has the tag {tag!r}")
    return found, apart


def sleep(tag: str | None = None, keep: bool = True) -> None:
    """Puts the pools, regions and sparse tensors of @tag to sleep; all without one.

    After enable() a sleep without a tag is of all memory of the process.
    """
    pools, apart = _tagged(tag)
    for member in pools:
        member.sleep(keep)
    for owner, device in apart:
        _torch().cuda.synchronize(device)
        owner.sleep(tag, keep)
    if _mode is not None:
        torch = _torch()
        for device in _used_devices(torch):
            torch.cuda.synchronize(device)
            resource(device).sleep(tag, keep)


def wake(tag: str | None = None, wait: float = 0) -> None:
    """Wakes what sleep() put to sleep. Each pool waits up to @wait seconds for room."""
    pools, apart = _tagged(tag)
    for member in pools:
        member.wake(wait)
    for owner, _ in apart:
        owner.wake(tag, wait)
    if _mode is not None:
        for device in _used_devices(_torch()):
            resource(device).wake(tag, wait)


def main(arguments: list[str] | None = None) -> None:
    """Runs a script of PyTorch with memory of hetmem.

    python -m hetmem.torch [--spec SPEC] [--mode MODE] SCRIPT [ARGUMENT...]
    """
    parser = argparse.ArgumentParser(
        prog="python -m hetmem.torch",
        description="Runs a script of PyTorch, unchanged, with memory of hetmem.",
    )
    parser.add_argument("--spec", help="what device memory is made of")
    parser.add_argument(
        "--mode",
        choices=("auto", "plain", "full"),
        default="auto",
        help="auto takes full, and plain where full cannot be had",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="a module")
    parser.add_argument("script")
    parser.add_argument("argument", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not given.module and not os.path.isdir(given.script):
        # Before anything is enabled: a script's own errors keep their traceback.
        try:
            open(given.script, "rb").close()
        except OSError as error:
            sys.exit(f"python -m hetmem.torch: {given.script}: {error.strerror}")
    # The import of torch would enable what the environment says, not the options.
    os.environ.pop("HETMEM_TORCH", None)
    try:
        # Children of the script import torch with this mode and with HETMEM_RESOURCE.
        os.environ["HETMEM_TORCH"] = enable(given.spec, given.mode)
    except (HetmemError, ImportError) as error:
        text = getattr(error, "strerror", None) or error
        sys.exit(f"python -m hetmem.torch: {text}")
    sys.argv = [given.script, *given.argument]
    if given.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(given.script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.script)))
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    # The script imports hetmem.torch, which must be this one.
    importlib.import_module("hetmem.torch").main()
