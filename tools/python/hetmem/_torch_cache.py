# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.torch.KVCache: a cache for transformers' generate() that grows in place.

A sparse tensor has the keys and values of all layers. Its rows are tokens: for each
layer, a row has the keys and then the values of one token, (batch, heads, dim) each.
Keys of a layer are a view of it, permuted to (batch, heads, tokens, dim). A token more
is a row more, so nothing moves, and a small cache wastes less than one unit of memory.

With share=False each layer has a sparse tensor of its own, with rows of one layer.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._torch_sparse import Sparse

_caches: Any = importlib.import_module("transformers.cache_utils")


class _Shape:
    """Batch, heads, dims, dtype and device, which all tensors of a layer share."""

    def __init__(self, keys: Any, values: Any) -> None:
        self.batch = int(keys.shape[0])
        self.parts = [(int(t.shape[1]), int(t.shape[3])) for t in (keys, values)]
        self.dtype = keys.dtype
        self.device = keys.device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.batch, tuple(self.parts), self.dtype, self.device))

    def elements(self) -> int:
        """Returns the elements that one token takes in a layer."""
        return self.batch * sum(heads * dim for heads, dim in self.parts)


class _Store:
    """The memory of @layers layers of one shape."""

    def __init__(self, cache: KVCache, shape: _Shape, layers: int) -> None:
        self.shape = shape
        # The tokens of each layer. The longest one has memory.
        self.lengths = [0] * layers
        row = shape.elements() * layers
        size = row * cache.max_tokens * shape.dtype.itemsize
        # Caches of other batches find the parked memory of this one: sizes are few.
        self.rows = cache._sparse(
            (cache.max_tokens, row), shape, 1 << (size - 1).bit_length()
        )

    def views(self, layer: int) -> list[Any]:
        """Keys and values of all tokens that there can be."""
        shape, made = self.shape, []
        at = layer * shape.elements()
        for heads, dim in shape.parts:
            width = shape.batch * heads * dim
            part = self.rows.tensor.narrow(1, at, width)
            made.append(part.view(-1, shape.batch, heads, dim).permute(1, 2, 0, 3))
            at += width
        return made

    def set_length(self, layer: int, length: int) -> None:
        """Tokens of @layer: memory is made first, and given back if none needs it."""
        before = self.lengths[layer]
        self.lengths[layer] = length
        most = max(self.lengths)
        if most == self.rows.rows:
            return
        try:
            self.rows._resize(most)
        except BaseException:
            self.lengths[layer] = before
            raise


class _Layer(_caches.DynamicLayer):  # type: ignore[misc]
    """A layer of KVCache. @keys and @values are views of its store."""

    def __init__(self, cache: KVCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self._attach(None, 0)

    def _attach(self, store: _Store | None, slot: int) -> None:
        self._store, self._slot = store, slot
        self._all = store.views(slot) if store else []
        self._length = 0
        self.keys = self.values = None
        self.is_initialized = store is not None

    def _show(self, length: int) -> None:
        """@length tokens are in the cache, which have memory."""
        self._length = length
        self.keys, self.values = (t.narrow(2, 0, length) for t in self._all)

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Reserves addresses. transformers calls it."""
        shape = _Shape(key_states, value_states)
        self.dtype, self.device = shape.dtype, shape.device
        self._attach(*self._cache._place(shape, self._index))
        self._show(0)

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Adds tokens. Returns the keys and values of all."""
        if self._store is None:
            self.lazy_initialization(key_states, value_states)
        elif key_states.shape[0] != self._store.shape.batch:
            raise ValueError(
                f"the cache is of a batch of {self._store.shape.batch}, not "
                f"{key_states.shape[0]}: call reset() before another batch"
            )
        start, more = self._length, int(key_states.shape[2])
        self._resize(start + more)
        for whole, new in zip(self._all, (key_states, value_states)):
            whole.narrow(2, start, more).copy_(new)
        return self.keys, self.values

    def _resize(self, length: int) -> None:
        if length > self._cache.max_tokens:
            raise ValueError(
                f"{length} tokens: the cache has addresses for "
                f"{self._cache.max_tokens}: make it with a larger max_tokens="
            )
        assert self._store is not None
        self._store.set_length(self._slot, length)
        self._show(length)

    def get_seq_length(self) -> int:
        """Returns the number of tokens in the layer."""
        return self._length

    def get_max_length(self) -> int:
        """Returns -1: the layer grows."""
        return -1

    # Its name in earlier versions of transformers.
    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        """Forgets the tokens, and gives their memory back."""
        if self._store is not None:
            self._resize(0)
        self._attach(None, 0)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -@tokens_to_remove tokens; above 0: keeps so many."""
        length = self._length
        keep = tokens_to_remove if tokens_to_remove > 0 else length + tokens_to_remove
        if self._store is not None and 0 <= keep < length:
            self._resize(keep)

    def reorder_cache(self, beam_idx: Any) -> None:
        """Reorders the batch, for beam search. It copies the layer."""
        if self._length:
            for whole in self._all:
                tensor = whole.narrow(2, 0, self._length)
                tensor.copy_(tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """KVCache.batch_repeat_interleave() does it for all layers."""
        raise NotImplementedError("call batch_repeat_interleave() of the cache")

    def batch_select_indices(self, indices: Any) -> None:
        """KVCache.batch_select_indices() does it for all layers."""
        raise NotImplementedError("call batch_select_indices() of the cache")


def _layers(config: Any) -> int:
    """How many layers the model has. All of them are ones of full attention."""
    for index, layer in enumerate(_caches.DynamicCache(config=config).layers):
        if type(layer) is not _caches.DynamicLayer:
            raise ValueError(
                f"layer {index} of the model needs a {type(layer).__name__}: KVCache "
                "has layers of full attention only, since others keep no growing "
                "list of tokens. Use DynamicCache"
            )
    return int(config.get_text_config(decoder=True).num_hidden_layers)


class KVCache(_caches.Cache):  # type: ignore[misc]
    """A cache for transformers' generate() that grows in place.

        cache = hetmem.torch.KVCache(model.config, max_tokens=8192)
        model.generate(**inputs, cache=cache)   # older: past_key_values=cache
        cache.reset()

    DynamicCache copies all tokens at each step, into new memory. This one has addresses
    for @max_tokens tokens, and memory for those that there are. It copies only new
    tokens.

    @config: of the model.
    @max_tokens: most tokens of a sequence, prompt included. None: what the model can.
    @share: all layers share units of memory. False: each layer has its own, for models
    whose layers differ in heads, dims or device.
    @spec, @tag: as of sparse().

    After reset() the cache takes a batch of another size. batch_repeat_interleave() and
    batch_select_indices() change the batch: they copy the tokens to a new memory.
    Keys and values are views with strides: a backend that needs contiguous ones has to
    copy. Layers with a sliding window, linear or quantized layers: ValueError.
    """

    def __init__(
        self,
        config: Any,
        max_tokens: int | None = None,
        *,
        share: bool = True,
        spec: str | None = None,
        tag: str | None = None,
    ) -> None:
        number = _layers(config)
        text = config.get_text_config(decoder=True)
        most = text.max_position_embeddings if max_tokens is None else max_tokens
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"max_tokens={max_tokens!r}: give a number above 0")
        self.max_tokens = most
        self._share = share
        self._options = {"spec": spec, "tag": tag}
        self._shared: _Store | None = None
        super().__init__(layers=[_Layer(self, index) for index in range(number)])

    def _sparse(self, shape: tuple[int, int], like: _Shape, size: int) -> Sparse:
        made = importlib.import_module("hetmem.torch")._sparse(
            shape, like.dtype, device=like.device, size=size, **self._options
        )
        assert isinstance(made, Sparse)
        return made

    def _place(self, shape: _Shape, index: int) -> tuple[_Store, int]:
        """The store of layer @index, and its number there."""
        if not self._share:
            return _Store(self, shape, 1), 0
        if self._shared is None:
            self._shared = _Store(self, shape, len(self.layers))
        if self._shared.shape != shape:
            raise ValueError(
                f"layer {index} differs from the first one in batch, heads, dims, "
                "dtype or device: make the cache with share=False"
            )
        return self._shared, index

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache has now: whole units."""
        stores = {id(layer._store): layer._store for layer in self.layers}
        return sum(store.rows.nbytes for store in stores.values() if store)

    def reset(self) -> None:
        """Forgets all tokens. The next ones may have another batch."""
        super().reset()
        self._shared = None

    def _change_batch(self, change: Any) -> None:
        """@change(keys or values) has the new batch. Works, or changes nothing."""
        before = [(layer._store, layer._slot, layer._length) for layer in self.layers]
        shared = self._shared
        self._shared = None
        try:
            for layer in self.layers:
                store, slot, length = layer._store, layer._slot, layer._length
                if store is None:
                    continue
                old = layer.keys, layer.values
                few = [change(t.narrow(2, 0, 0)) for t in old]
                layer.lazy_initialization(*few)
                layer._resize(length)
                for to, source in zip((layer.keys, layer.values), old):
                    to.copy_(change(source))
        except BaseException:
            for layer, (store, slot, length) in zip(self.layers, before):
                layer._attach(store, slot)
                if store is not None:
                    layer._show(length)
            self._shared = shared
            raise

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each sequence of the batch. It copies the tokens."""
        self._change_batch(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Any) -> None:
        """Keeps these sequences of the batch. It copies their tokens."""
        self._change_batch(lambda tensor: tensor[indices, ...])
