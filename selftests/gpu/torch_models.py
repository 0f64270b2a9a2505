# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The models that the programs beside this file train: GPT-2 and ResNet-50."""


def make_gpt2(torch, options):
    """A GPT-2 of options.layers, width, heads, words and longest."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, width = x.shape
            q, k, v = (
                part.view(batch, length, self.heads, -1).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).split(width, dim=2))
            y = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
            y = nn.functional.gelu(self.up(self.norm2(x)))
            return x + self.down(y)

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            width = options.width
            self.tokens = nn.Embedding(options.words, width)
            self.places = nn.Embedding(options.longest, width)
            self.blocks = nn.ModuleList(
                Block(width, options.heads) for _ in range(options.layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, options.words, bias=False)
            self.head.weight = self.tokens.weight
            nn.init.normal_(self.tokens.weight, std=0.02)

        def forward(self, tokens):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.tokens(tokens) + self.places(places)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt2()


def make_resnet(torch, classes=1000, width=64, depths=(3, 4, 6, 3)):
    """ResNet-50, or a smaller one of the same kind."""
    nn = torch.nn

    class Bottleneck(nn.Module):
        def __init__(self, before, inner, stride):
            super().__init__()
            after = 4 * inner
            self.body = nn.Sequential(
                nn.Conv2d(before, inner, 1, bias=False),
                nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
                nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                nn.Conv2d(inner, after, 1, bias=False),
                nn.BatchNorm2d(after))
            self.skip = nn.Identity()
            if stride > 1 or before != after:
                self.skip = nn.Sequential(
                    nn.Conv2d(before, after, 1, stride, bias=False),
                    nn.BatchNorm2d(after))

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.skip(x))

    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False),
              nn.BatchNorm2d(width), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, depth in enumerate(depths):
        inner = width << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(before, inner, stride))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(before, classes))
