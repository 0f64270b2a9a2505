# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem: memory that CPU and GPU share, for Python.

import hetmem needs neither a GPU nor a framework. The library is loaded by the
first call that needs it.

    hetmem.torch    PyTorch on hetmem
    hetmem.cupy     CuPy on hetmem
    hetmem.numpy    large arrays of NumPy on hetmem
    hetmem.numba    Numba's arrays on hetmem
    hetmem.keep     blocks that "hetmem keep" holds by name
    hetmem.trace    memory snapshots of PyTorch as recordings for hetmem replay
"""

from ._doctor import doctor
from ._library import HetmemError, OutOfMemoryError
from ._unify import Unified, unify
from .core import (
    Access,
    Alias,
    Block,
    Counter,
    Counters,
    Counting,
    Device,
    Feature,
    Library,
    MemoryFigure,
    MemoryInfo,
    Pressure,
    Reclaimed,
    Remap,
    Replica,
    Resource,
    Stats,
    Stream,
    current,
    default,
    log,
    memory_info,
    reclaim,
    resource,
    use,
)
from .place import Residency, residency

__version__ = "0.1.0"

__all__ = [
    "Access",
    "Alias",
    "Block",
    "Counter",
    "Counters",
    "Counting",
    "Device",
    "Feature",
    "HetmemError",
    "Library",
    "MemoryFigure",
    "MemoryInfo",
    "OutOfMemoryError",
    "Pressure",
    "Reclaimed",
    "Remap",
    "Replica",
    "Residency",
    "Resource",
    "Stats",
    "Stream",
    "Unified",
    "current",
    "default",
    "doctor",
    "log",
    "memory_info",
    "reclaim",
    "residency",
    "resource",
    "unify",
    "use",
]
