# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Training: a Llama of random weights, 953 M parameters, in bfloat16.

Activations are checkpointed, and batches differ in number and length. @check
is the sum of all losses.
"""
import random
import time


def run(torch, device, tiny, steps=40):
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=1000 if tiny else 32000,
        hidden_size=64 if tiny else 2048,
        intermediate_size=128 if tiny else 5632,
        num_hidden_layers=2 if tiny else 16,
        num_attention_heads=4 if tiny else 16,
        num_key_value_heads=4 if tiny else 16,
        max_position_embeddings=4096,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not tiny)
    rng = random.Random(5)
    lengths = (8, 12) if tiny else (512, 768, 1100, 1536, 2048)
    times, losses, early = [], [], 0
    for step in range(4 if tiny else steps):
        shape = (rng.choice((2, 4, 6)), rng.choice(lengths))
        tokens = torch.randint(
            0, config.vocab_size, shape, generator=torch.Generator().manual_seed(step)
        ).cuda()
        torch.cuda.synchronize()
        begun = time.monotonic()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - begun)
        losses.append(loss.item())
        device.look()
        if step == 199:
            early = device.peak_mib()
    warm = sorted(times[len(times) // 8 :])
    row = {"check": sum(losses), "ms": round(1e3 * warm[len(warm) // 2], 1)}
    if early:
        row["peak_mib_after_200"] = early
    return row
