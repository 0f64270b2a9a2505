# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""PYTORCH_CUDA_ALLOC_CONF: the options that hetmem has no use for.

PyTorch reads them for its own allocator. A program must not believe that they work.
"""

from __future__ import annotations

import os
import re

# PyTorch's allocator of page-locked host memory reads these, with any other allocator.
_OF_THE_HOST = "pinned_"

_INSTEAD = {
    "max_split_size_mb": "handles are mapped again for other sizes",
    "garbage_collection_threshold": "use max= and decay= of the spec",
    "per_process_memory_fraction": "use max= of the spec",
    "backend": "hetmem is the allocator",
    "expandable_segments": "memory is always mapped at addresses of its own",
}


def _options(text: str) -> dict[str, str]:
    """The values by name. A value can be a list in brackets, which has commas."""
    found = re.findall(r"([A-Za-z0-9_]+)\s*:\s*(\[[^]]*\]|[^,\[\]]*)", text)
    return {name: value.strip() for name, value in found}


def without_effect() -> str | None:
    """Names the options that have no effect; None: the environment has none."""
    # The first has precedence in PyTorch, and the second is its older name.
    text = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get(
        "PYTORCH_CUDA_ALLOC_CONF", ""
    )
    named = []
    for name, value in _options(text).items():
        if name.startswith(_OF_THE_HOST) or (name, value.lower()) in (
            ("expandable_segments", "true"),
            ("backend", "native"),
        ):
            continue
        hint = _INSTEAD.get(name)
        named.append(f"{name} ({hint})" if hint else name)
    return ", ".join(named) or None
