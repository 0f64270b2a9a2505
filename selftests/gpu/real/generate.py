# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Serving: transformers' generate() with random weights in the shape of a 1.5 B model.

Requests differ in batch, prompt and answer, and the KV caches grow by
concatenation. @check is the sum of all tokens.
"""
import random
import time


def run(torch, device, tiny):
    import transformers

    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=1000 if tiny else 32000,
        hidden_size=64 if tiny else 1536,
        intermediate_size=128 if tiny else 8960,
        num_hidden_layers=2 if tiny else 12,
        num_attention_heads=4 if tiny else 12,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("cuda"):
        model = transformers.Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    rng = random.Random(11)
    prompts = (5, 9) if tiny else (16, 77, 300, 901, 2048, 3500)
    left, tokens, check, times = (4 if tiny else 160), 0, 0, []
    while left:
        batch = min(left, rng.choice((1, 2, 4, 8, 16)))
        prompt, answer = rng.choice(prompts), rng.choice((4, 12, 24))
        random_tokens = torch.Generator().manual_seed(left)
        ids = torch.randint(
            1, config.vocab_size, (batch, prompt), generator=random_tokens
        ).cuda()
        begun = time.monotonic()
        with torch.no_grad():
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=answer,
                min_new_tokens=answer,
                do_sample=False,
            )
        check += int(made.sum())
        times.append(time.monotonic() - begun)
        device.look()
        left -= batch
        tokens += batch * answer
    times.sort()
    return {
        "check": check,
        "ms": round(1e3 * times[len(times) // 2], 1),
        "tokens": tokens,
    }
