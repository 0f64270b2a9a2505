# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The interfaces of torch_memory_saver and of vLLM's CuMemAllocator, over hetmem.torch.

    from hetmem.compat import torch_memory_saver        # or CuMemAllocator

Or, for programs that import the other package, before they do:

    hetmem.compat.install("torch_memory_saver")         # or "vllm"

Each name below is one of the other project, and does what it does there. A part of a
program gets a hetmem.torch.pool(), or in hook mode "preload" a hetmem.torch.region().
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple, Union

from . import torch as _ht
from ._library import HetmemError, OutOfMemoryError
from ._torch_unified import _error, _torch

_DEFAULT_TAG = "default"
_PEERS = ("torch_memory_saver", "vllm")


class _Key(NamedTuple):
    """Properties that the tensors of one pool share. @directory has backup files."""

    tag: str
    backup: bool
    directory: str | None
    device: int


def _all(
    keys: Iterable[Any], work: Callable[[Any], None], undo: Callable[[Any], None]
) -> None:
    """Does @work for all of @keys, or undoes what was done."""
    done: list[Any] = []
    try:
        for key in keys:
            work(key)
            done.append(key)
    except BaseException as error:
        for key in reversed(done):
            with contextlib.suppress(HetmemError):
                undo(key)
        if isinstance(error, OutOfMemoryError):
            # The other projects raise RuntimeError, which PyTorch's error is.
            raise _error(_torch(), -errno.ENOMEM) from error
        raise


class _Pools:
    """Pools over PyTorch's own allocator, by tag. All of a call sleep, or none."""

    def __init__(self) -> None:
        self._pools: dict[_Key, _ht.Pool] = {}
        # Those that sleep, and whether they keep their contents.
        self._asleep: dict[_Key, bool] = {}
        self._retain = False

    def _make(self, key: _Key) -> _ht.Pool:
        spec = "device-pool"
        if key.directory or self._retain:
            park = f'"{key.directory}"' if key.directory else "keep"
            spec = f'pool(vmm(device={key.device}),tag="{key.tag}",park={park})'
        # It warns of backward(), whose memory the other projects lack, too.
        with _torch().no_grad():
            return _ht.pool(spec, key.tag, key.device)

    @contextlib.contextmanager
    def use(self, key: _Key) -> Iterator[None]:
        """Tensors of this thread are of the pool @key meanwhile."""
        if key in self._asleep:
            raise HetmemError(
                errno.EBUSY, f"the tag {key.tag} is paused: resume it before"
            )
        if key not in self._pools:
            self._pools[key] = self._make(key)
        with self._pools[key].use():
            yield

    def sleep(self, keep: Callable[[_Key], bool], tags: set[str] | None = None) -> None:
        """Pools of @tags sleep, None: all. Those that sleep already stay asleep."""

        def one(key: _Key) -> None:
            self._pools[key].sleep(keep(key))
            self._asleep[key] = keep(key)

        found = [
            key
            for key in self._pools
            if key not in self._asleep and (tags is None or key.tag in tags)
        ]
        _all(found, one, self._wake_one)

    def _wake_one(self, key: _Key) -> None:
        self._pools[key].wake()
        del self._asleep[key]

    def wake(self, tags: set[str] | None = None) -> None:
        """Pools of @tags wake, None: all. Without memory for one none of them does."""
        found = [key for key in self._asleep if tags is None or key.tag in tags]
        before = dict(self._asleep)

        def again(key: _Key) -> None:
            self._pools[key].sleep(before[key])
            self._asleep[key] = before[key]

        _all(found, self._wake_one, again)

    def retain(self, keep: bool) -> None:
        """Host memory of a backup stays for the next one."""
        if keep != self._retain and self._pools:
            raise HetmemError(
                errno.EOPNOTSUPP,
                "retain_cpu_backup is of pools that are made later: set it before the "
                "first region",
            )
        self._retain = keep

    def requested(self) -> int:
        """Bytes of all pools, also of those that sleep."""
        return sum(pool.resource.stats().requested for pool in self._pools.values())


class _Regions:
    """Regions of PyTorch's memory after enable(), by tag."""

    def __init__(self) -> None:
        self._tags: dict[str, bool] = {}

    @contextlib.contextmanager
    def use(self, key: _Key) -> Iterator[None]:
        """Tensors of this thread have the tag of @key meanwhile."""
        if key.directory:
            raise HetmemError(
                errno.EOPNOTSUPP,
                'regions have no backup in files: set hook_mode = "torch", or '
                "park= of the spec",
            )
        self._tags.setdefault(key.tag, False)
        with _ht.region(key.tag, scratch=not key.backup):
            yield

    def sleep(self, _: Any, tags: set[str] | None = None) -> None:
        """Regions of @tags sleep. Those without a backup are scratch memory."""
        _all(self._found(False, tags), self._sleep_one, self._wake_one)

    def wake(self, tags: set[str] | None = None) -> None:
        """Regions of @tags wake. Without memory for one none of them does."""
        _all(self._found(True, tags), self._wake_one, self._sleep_one)

    def _found(self, asleep: bool, tags: set[str] | None) -> list[str]:
        return [
            tag
            for tag, now in self._tags.items()
            if now == asleep and (tags is None or tag in tags)
        ]

    def _sleep_one(self, tag: str) -> None:
        _ht.sleep(tag)
        self._tags[tag] = True

    def _wake_one(self, tag: str) -> None:
        _ht.wake(tag)
        self._tags[tag] = False

    def retain(self, keep: bool) -> None:
        """It is the spec's: one pool has all tags."""
        if keep:
            raise HetmemError(
                errno.EOPNOTSUPP,
                "retain_cpu_backup: write park=keep in the spec of enable()",
            )


Backup = Union[str, None]


class TorchMemorySaver:
    """torch_memory_saver.TorchMemorySaver of version 0.0.10."""

    def __init__(self) -> None:
        self._hook_mode: str | None = None
        self._impl: _Pools | _Regions | None = None
        self._retain = False
        self._directory = os.environ.get("TMS_DISK_BACKUP_DIR")
        self._lock = threading.RLock()
        # Pools of disable(), by device. PyTorch aborts if one ends in a region.
        self._outside: dict[int, Any] = {}

    def _begun(self) -> _Pools | _Regions:
        with self._lock:
            if self._impl is None:
                mode = self._hook_mode or ("preload" if _ht.enabled() else "torch")
                if mode == "preload" and _ht.enabled() is None:
                    _ht.enable()
                self._impl = _Regions() if mode == "preload" else _Pools()
            return self._impl

    @staticmethod
    def _check_backend(backup: bool, backend: Backup) -> None:
        if backend is not None and not backup:
            raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
        if backend not in (None, "pinned", "mmap"):
            raise ValueError(f'no cpu_backup_backend {backend!r}: "pinned" or "mmap"')

    def _key(self, tag: str, backup: bool, disk: bool) -> _Key:
        if backup and disk:
            raise AssertionError(
                "enable_cpu_backup and enable_disk_backup are mutually exclusive"
            )
        if disk and not self._directory:
            raise HetmemError(
                errno.EINVAL,
                "no directory: call set_disk_backup_dir(), or set TMS_DISK_BACKUP_DIR",
            )
        if not tag or '"' in tag:
            raise ValueError(f"tag={tag!r}: give a name without quotes")
        device = int(_torch().cuda.current_device())
        return _Key(tag, backup or disk, self._directory if disk else None, device)

    @contextlib.contextmanager
    def region(
        self,
        tag: str = _DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: Backup = None,
    ) -> Iterator[None]:
        """Tensors of this thread can be paused by @tag.

        @cpu_backup_backend: both kinds are page-locked memory here.
        """
        self._check_backend(enable_cpu_backup, cpu_backup_backend)
        owner = self._begun()
        key = self._key(tag, enable_cpu_backup, enable_disk_backup)
        with owner.use(key):
            yield

    @contextlib.contextmanager
    def cuda_graph(  # noqa: PLR0917
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: Backup = None,
    ) -> Iterator[None]:
        """torch.cuda.graph() whose memory can be paused. Hook mode "preload" has it."""
        self._check_backend(enable_cpu_backup, cpu_backup_backend)
        owner = self._begun()
        if not isinstance(owner, _Regions):
            raise AssertionError(
                'graphs are paused only with hook_mode = "preload": all memory is '
                "hetmem's then"
            )
        key = self._key(tag, enable_cpu_backup, False)
        # The first memory of a tag is made before the capture.
        with (
            owner.use(key),
            _torch().cuda.graph(
                cuda_graph,
                pool=pool,
                stream=stream,
                capture_error_mode=capture_error_mode,
            ),
        ):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Tensors that are made in a region are not paused."""
        torch = _torch()
        if isinstance(self._begun(), _Regions):
            outer = _ht._region.tag, _ht._region.flags
            _ht._choose_region(None, 0)
            try:
                yield
            finally:
                _ht._choose_region(*outer)
            return
        device = int(torch.cuda.current_device())
        if device not in self._outside:
            self._outside[device] = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._outside[device], device):
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of @tag back, of all regions without one."""
        self._begun().sleep(lambda key: key.backup, None if tag is None else {tag})

    def resume(self, tag: str | None = None) -> None:
        """Gives the tensors of @tag memory at their addresses, those with a backup
        their contents."""
        self._begun().wake(None if tag is None else {tag})

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> str:
        """ "torch": pools over PyTorch's own allocator; "preload": regions of
        hetmem.torch.enable(). The other project cannot be asked for it."""
        raise AttributeError("hook_mode")

    @hook_mode.setter
    def hook_mode(self, hook_mode: str) -> None:
        if hook_mode not in ("preload", "torch"):
            raise ValueError(f'no hook_mode {hook_mode!r}: "preload" or "torch"')
        if self._impl is not None:
            raise AssertionError("Cannot configure after initialization")
        self._hook_mode = hook_mode

    @property
    def memory_margin_bytes(self) -> int:
        """Only a setter in the other project, too."""
        raise NotImplementedError("Only setter is supported")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        raise NotImplementedError(
            "memory_margin_bytes: bound the memory by max= of the spec, or by "
            "hetmem.torch.resource().set('max', ...)"
        )

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether host memory of a backup stays for the next one."""
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._begun().retain(bool(value))
        self._retain = bool(value)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """A CPU tensor with the backup of @x, which is paused; None: there is none.

        @zero_copy: it is a copy all the same.
        """
        if not x.is_cuda or not x.is_contiguous():
            raise AssertionError(f"{x.device=} {x.shape=} {x.stride()=}")
        try:
            return _ht.parked(x)
        except HetmemError as error:
            if error.errno in (errno.ENODATA, errno.EINVAL):
                return None
            raise

    def set_disk_backup_dir(self, path: str) -> None:
        """The directory of enable_disk_backup, which is made if there is none."""
        if '"' in path:
            raise ValueError("the name of the directory has no quotes")
        os.makedirs(path, exist_ok=True)
        self._directory = path


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes that start meanwhile have hetmem's memory, for hook mode "preload"."""
    before = os.environ.get("HETMEM_TORCH")
    os.environ["HETMEM_TORCH"] = "full"
    try:
        yield
    finally:
        del os.environ["HETMEM_TORCH"]
        if before is not None:
            os.environ["HETMEM_TORCH"] = before


torch_memory_saver = TorchMemorySaver()


class CuMemAllocator:
    """vllm.device_allocator.cumem.CuMemAllocator: one object for the process.

    It needs PyTorch's own allocator: after hetmem.torch.enable() use region().
    """

    instance: CuMemAllocator | None = None
    default_tag: str = _DEFAULT_TAG

    def __init__(self) -> None:
        self.current_tag = CuMemAllocator.default_tag
        self._pools = _Pools()

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """Returns the object of the process."""
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Tensors of this thread are of the pool of @tag meanwhile."""
        name = CuMemAllocator.default_tag if tag is None else tag
        if not isinstance(name, str):
            raise AssertionError(f"tag={tag!r}: give a str")
        device, outer = int(_torch().cuda.current_device()), self.current_tag
        self.current_tag = name
        try:
            with self._pools.use(_Key(name, True, None, device)):
                yield
        finally:
            self.current_tag = outer

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """All pools sleep. Those of @offload_tags keep their contents; None: the
        default tag's."""
        if offload_tags is None:
            offload_tags = (CuMemAllocator.default_tag,)
        kept = (offload_tags,) if isinstance(offload_tags, str) else offload_tags
        if not isinstance(kept, tuple):
            raise AssertionError(f"offload_tags={offload_tags!r}: give a tuple")
        gc.collect()
        _torch().cuda.empty_cache()
        self._pools.sleep(lambda key: key.tag in kept)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Pools of @tags wake; None: all."""
        self._pools.wake(None if tags is None else set(tags))

    def get_current_usage(self) -> int:
        """Bytes of all pools."""
        return self._pools.requested()


def install(name: str) -> None:
    """Programs that import @name get what is here: "torch_memory_saver" or "vllm".

    Call it before they do. HetmemError, EBUSY: torch_memory_saver is imported already.
    vLLM has to be installed: only its class CuMemAllocator is replaced.
    """
    if name not in _PEERS:
        raise ValueError(f"no peer {name!r}: there are {', '.join(_PEERS)}")
    if name == "vllm":
        module: Any = importlib.import_module("vllm.device_allocator.cumem")
        module.CuMemAllocator = CuMemAllocator
        module.cumem_available = True
        return
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "torch_memory_saver", None) is not (
        torch_memory_saver
    ):
        raise HetmemError(
            errno.EBUSY,
            "torch_memory_saver is imported already: call install() before that",
        )
    made: Any = types.ModuleType(name, __doc__)
    # Its other modules, such as testing_utils, where it is installed, too.
    found = importlib.util.find_spec(name) if loaded is None else loaded.__spec__
    made.__spec__ = found
    made.__path__ = list(getattr(found, "submodule_search_locations", None) or ())
    made.torch_memory_saver = torch_memory_saver
    made.TorchMemorySaver = TorchMemorySaver
    made.configure_subprocess = configure_subprocess
    sys.modules[name] = made
