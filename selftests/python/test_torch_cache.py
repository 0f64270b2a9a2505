# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.torch.KVCache with transformers itself, over the soft driver, without a GPU.

The environment is that of test_torch_full.py, and TRANSFORMERS_SITE, a folder with transformers.
The soft driver's device memory is memory of the process, and kernels of PyTorch for a GPU do
nothing there. So the tensors of sparse() are tensors of the CPU here, over the same blocks: a
model on the CPU computes with them, and its tokens are compared.
"""

import os
import re
import tempfile

import tap
import test_doc
import test_torch_full as full

START = """
import ctypes, errno, gc, math, os, sys, warnings
sys.setdlopenflags(os.RTLD_LAZY)
import torch, hetmem, hetmem.torch as ht
sys.setdlopenflags(os.RTLD_NOW)
from hetmem import _torch_sparse
CUDA = torch.device("cuda", 0)
ht._device = lambda torch, given: CUDA
_torch_sparse._dlpack_device = lambda device: (1, 0)
""" + tap.FAILS
MODEL = """
import transformers
transformers.logging.set_verbosity_error()
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM
MIB, SPEC = 1 << 20, "pool(vmm,max=128M)"
config = Qwen2Config(
    vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    bos_token_id=None, eos_token_id=None, pad_token_id=0)
torch.manual_seed(3)
model = Qwen2ForCausalLM(config).eval()
ROW = 3 * 2 * 2 * 16 * 4        # bytes of a token: layers, keys and values, heads, dim, float
def prompt(batch, tokens):
    torch.manual_seed(batch * 1000 + tokens)
    return torch.randint(1, 211, (batch, tokens))
# The argument had another name in earlier versions.
import inspect
NAME = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
def answer(cache, ids, more, **options):
    with torch.no_grad():
        return model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=more,
            min_new_tokens=more, **{"do_sample": False, **options}, **{NAME: cache})
def states(batch, tokens, heads=2, dim=16, first=0):
    count = batch * heads * tokens * dim
    return torch.arange(first, first + count, dtype=torch.float32).view(batch, heads, tokens, dim)
def same(cache, other):
    for mine, its in zip(cache.layers, other.layers):
        assert mine.get_seq_length() == its.get_seq_length()
        if its.get_seq_length():
            assert torch.equal(mine.keys, its.keys) and torch.equal(mine.values, its.values)
def fill(*caches, batch=3, tokens=5, layers=3):
    for cache in caches:
        for layer in range(layers):
            keys = states(batch, tokens, first=layer)
            cache.update(keys, -keys, layer)
"""


def environment():
    made = full.full_environment()
    made["PYTHONPATH"] = os.pathsep.join([made["PYTHONPATH"], os.environ["TRANSFORMERS_SITE"]])
    return {**made, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}


class KVCache(tap.Case):
    def run_code(self, code):
        """@code, which has the usual names, succeeds in silence."""
        self.silent(START + MODEL + tap.textwrap.dedent(code), **environment())

    def test_tokens(self):
        """generate() gives DynamicCache's tokens, in memory of the tokens there are."""
        self.run_code("""
            for share in (True, False):
                cache = ht.KVCache(config, spec=SPEC, share=share)
                assert isinstance(cache, transformers.Cache) and len(cache) == 3
                for batch, tokens, more in ((1, 5, 4), (3, 40, 20), (2, 7, 1), (3, 200, 30)):
                    ids = prompt(batch, tokens)
                    mine = answer(cache, ids, more)
                    theirs = DynamicCache(config=config)
                    assert torch.equal(mine, answer(theirs, ids, more)), (batch, tokens)
                    same(cache, theirs)
                    length = cache.get_seq_length()
                    assert length == tokens + more - 1
                    wanted = math.ceil(length * batch * ROW / (1 if share else 3) / 2 / MIB)
                    assert cache.nbytes == wanted * 2 * MIB * (1 if share else 3)
                    # Nothing is contiguous but the last dimension, and nothing was copied.
                    layer = cache.layers[1]
                    assert layer.keys.shape == (batch, 2, length, 16) == layer.values.shape
                    assert layer.keys.stride(3) == 1
                    cache.reset()
                    assert cache.get_seq_length() == 0 == cache.nbytes
            # A conversation: the cache keeps what it has.
            cache, theirs, ids = ht.KVCache(config, spec=SPEC), DynamicCache(config=config), prompt(2, 9)
            for turn in range(3):
                mine = answer(cache, ids, 5)
                assert torch.equal(mine, answer(theirs, ids, 5))
                ids = torch.cat([mine, prompt(2, 3)], dim=1)
            same(cache, theirs)
            # Beams are reordered, and searched from one prompt.
            for cache in (ht.KVCache(config, spec=SPEC),):
                ids = prompt(2, 12)
                assert torch.equal(answer(cache, ids, 10, num_beams=3),
                                   answer(DynamicCache(config=config), ids, 10, num_beams=3))
            """)

    def test_grows_in_place(self):
        """No old token moves, requests reuse parked memory without a VMM call."""
        self.run_code("""
            cache = ht.KVCache(config, max_tokens=100000, spec=SPEC)
            layer = cache.layers[0]
            where = set()
            for step in range(40):
                keys = states(4, 257, first=step)
                for index in range(3):
                    got, _ = cache.update(keys + index, keys - index, index)
                where.add(layer.keys.data_ptr())
                assert got.shape[2] == 257 * (step + 1)
                assert torch.equal(got[:, :, -257:], keys + 2)
            assert len(where) == 1
            assert torch.equal(cache.layers[2].values[:, :, :257], states(4, 257) - 2)
            used = 40 * 257 * 4 * ROW
            pool = layer._store.rows.resource
            assert cache.nbytes == math.ceil(used / 2 / MIB) * 2 * MIB == pool.stats().requested
            assert pool.stats().reserved == cache.nbytes
            # Other requests of that batch: the parked range serves them whole.
            del layer, got, _
            def request(steps):
                for step in range(steps):
                    for index in range(3):
                        cache.update(keys, keys, index)
                cache.reset()
                gc.collect()
            request(40)
            calls, held = pool.stats().driver_calls, pool.stats().reserved
            for steps in (40, 3, 17, 40): request(steps)
            assert pool.stats().driver_calls == calls and pool.stats().reserved == held
            # Copies are of new tokens only.
            copied = []
            real = torch.Tensor.copy_
            torch.Tensor.copy_ = lambda to, source, *a, **k: (
                copied.append(source.numel()), real(to, source, *a, **k))[1]
            request(10)
            torch.Tensor.copy_ = real
            assert sum(copied) == 10 * 3 * 2 * keys.numel(), sum(copied)
            """)

    def test_operations(self):
        """Each function of a cache does what DynamicCache's does."""
        self.run_code("""
            def pair(**options):
                made = ht.KVCache(config, spec=SPEC, **options), DynamicCache(config=config)
                fill(*made)
                same(*made)
                return made
            for share in (True, False):
                mine, its = pair(share=share)
                assert mine.get_mask_sizes(4, 1) == its.get_mask_sizes(4, 1)
                assert not mine.is_compileable and mine.is_sliding == [False] * 3
                assert mine.layers[0].get_max_length() == -1 == mine.layers[0].get_max_cache_shape()
                for number in (0, -1, -3):
                    for cache in (mine, its): cache.crop(number)
                    same(mine, its)
                mine.crop(-7)
                same(mine, its)
                fill(mine, its, tokens=2)
                mine.crop(2)
                its.crop(-1)
                same(mine, its)
                mine, its = pair(share=share)
                for cache in (mine, its): cache.reorder_cache(torch.tensor([2, 0, 0]))
                same(mine, its)
                for cache in (mine, its): cache.batch_repeat_interleave(2)
                same(mine, its)
                fill(mine, its, batch=6, tokens=3)
                for cache in (mine, its): cache.batch_select_indices(torch.tensor([5, 1]))
                same(mine, its)
                for cache in (mine, its):
                    cache.batch_select_indices(torch.tensor([False, True]))
                fill(mine, its, batch=1)
                same(mine, its)
                for cache in (mine, its): cache.reset()
                assert mine.get_seq_length() == 0 == its.get_seq_length()
                fill(mine, its, batch=2)
                same(mine, its)
                live = mine.layers[0]._store.rows.resource.stats().live
                del mine, cache
                gc.collect()
            # An empty cache.
            mine = ht.KVCache(config, spec=SPEC)
            for work in (mine.reset, lambda: mine.crop(-1), lambda: mine.batch_repeat_interleave(2),
                         lambda: mine.reorder_cache(torch.tensor([0]))):
                work()
            assert mine.get_seq_length() == 0 == mine.nbytes
            # Half an answer of a model: lengths differ, and memory is for the longest one.
            mine, its = pair()
            for cache in (mine, its): cache.update(states(3, 9), states(3, 9), 0)
            same(mine, its)
            mine.crop(-1), its.crop(-1)
            same(mine, its)
            """)

    def test_bad_input(self):
        self.run_code("""
            for most in (0, -1, 1.5, "8", True):
                fails(ValueError, lambda: ht.KVCache(config, most), "max_tokens=")
            sliding = Qwen2Config(num_hidden_layers=4, use_sliding_window=True, sliding_window=8,
                                  max_window_layers=2, num_attention_heads=4, hidden_size=64)
            fails(ValueError, lambda: ht.KVCache(sliding), "DynamicSlidingWindowLayer",
                  "layer 2", "Use DynamicCache")
            hybrid = transformers.Qwen3NextConfig(num_hidden_layers=4)
            fails(ValueError, lambda: ht.KVCache(hybrid), "Linear", "full attention only")
            cache = ht.KVCache(config, 8, spec=SPEC)
            fill(cache)
            for batch in (2, 4):
                fails(ValueError, lambda: fill(cache, batch=batch), "batch of 3", "reset()")
            fails(ValueError, lambda: fill(cache), "10 tokens", "max_tokens=")
            assert [layer.get_seq_length() for layer in cache.layers] == [5] * 3
            fill(cache, tokens=3)
            for change in (lambda: cache.batch_select_indices(torch.tensor([7])),
                           lambda: cache.batch_repeat_interleave(-1)):
                fails((IndexError, RuntimeError), change)
                assert [layer.get_seq_length() for layer in cache.layers] == [8] * 3
            # Layers that differ.
            def unlike(cache):
                for index, (heads, dim) in enumerate([(2, 16), (1, 16), (2, 32)]):
                    keys = states(2, 4, heads, dim)
                    cache.update(keys, keys[..., :8], index)
            fails(ValueError, lambda: unlike(ht.KVCache(config, spec=SPEC)), "layer 1", "share=False")
            cache = ht.KVCache(config, spec=SPEC, share=False)
            unlike(cache)
            assert [layer.values.shape[3] for layer in cache.layers] == [8, 8, 8]
            assert torch.equal(cache.layers[2].keys, states(2, 4, 2, 32))
            # No memory: an error, and the tokens that there were.
            cache = ht.KVCache(config, max_tokens=1 << 20, spec="pool(vmm,max=8M)")
            keys = states(3, 2000)
            def add():
                for index in range(3): cache.update(keys, keys, index)
            add()
            fails(torch.OutOfMemoryError, lambda: [add() for _ in range(3)])
            length = cache.layers[2].get_seq_length()
            assert cache.layers[0].get_seq_length() == length
            assert torch.equal(cache.layers[2].keys[:, :, -2000:], keys)
            fails(AttributeError, lambda: ht.Nothing)
            """)

    def test_page(self):
        """The page's block, on the CPU."""
        found = [code for code, _ in test_doc.python("python", test_doc.CACHE)]
        self.assertEqual(len(found), 1)
        expected = dict(test_doc.python("python", test_doc.CACHE))[found[0]]
        result = tap.child(START + "import transformers\n" +
                           re.sub(r'"cuda"', '"cpu"', found[0]), **environment())
        self.assertEqual((result.stderr, result.returncode), ("", 0))
        self.assertEqual(result.stdout, expected)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as full.CACHE:
        os.chmod(full.CACHE, 0o700)
        tap.main()
