#!/usr/bin/env python3
"""What fits on which card: the longest prompt of well-known models, as docs/gpu.md shows it.

    python3 docs/fits.py --table                    # the table
    python3 docs/fits.py --need 32768 [CUTOFF]      # GB that a prompt of so many tokens takes, model by model

A prompt of p tokens with N new ones takes, in bytes,

    weights + ((p - 1 - a)·c + (a + N)·L)·b + r·w + 8·V + unpacked + 0.3e9

with L layers of which the prompt runs through c (c = L: the full model), a anchors, b = 4 · KV heads · head size bytes of a
token's keys and values in bf16 at one layer, r = min(p, 8192) rows that go through a layer at once, each of
w = 4·(6·d + 4·q + 4·kv + 3·ff) bytes (hidden size, width of queries, of keys, of the MLP, in f32), two rows of V logits,
256 MiB for unpacking where weights are quantised, and 0.3 GB for CUDA and cuBLAS.
"""

import sys
from dataclasses import dataclass

# Sizes by which cards are sold, in 1e9 bytes; they have some 7 % more, which displays and others may take.
CARDS = [8, 12, 16, 24, 48, 80, 141]
NEW_TOKENS = 128


@dataclass(frozen=True)
class Model:
    """Architecture numbers, and the GB of its weights."""

    name: str
    weights: str
    gigabytes: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    context: int


def model(name, sizes, *numbers):
    return [Model(name, weights, gigabytes, *numbers) for weights, gigabytes in sizes.items()]


# Parameters times two for bf16; for Q4_K_M the size of files in use.
MODELS = [
    *model("SmolLM2 135M", {"bf16": 0.269, "Q4_K_M": 0.105}, 30, 576, 9, 3, 64, 1536, 49_152, 8_192),
    *model("Llama 3.2 1B", {"bf16": 2.47, "Q4_K_M": 0.81}, 16, 2048, 32, 8, 64, 8192, 128_256, 131_072),
    *model("Llama 3.1 8B", {"bf16": 16.06, "Q4_K_M": 4.92}, 32, 4096, 32, 8, 128, 14336, 128_256, 131_072),
    *model("Qwen 2.5 7B", {"bf16": 15.23, "Q4_K_M": 4.68}, 28, 3584, 28, 4, 128, 18944, 152_064, 131_072),
    *model("Llama 3.1 70B", {"Q4_K_M": 42.5}, 80, 8192, 64, 8, 128, 28672, 128_256, 131_072),
]


def need(one, prompt, cutoff, anchors):
    """Bytes for a prompt of so many tokens that runs through `cutoff` layers."""
    token_layer = 4 * one.kv_heads * one.head_dim
    kept = max(prompt - 1 - anchors, 0) * cutoff + (anchors + NEW_TOKENS) * one.layers
    widths = 6 * one.hidden + 4 * (one.heads + one.kv_heads) * one.head_dim + 3 * one.feed_forward
    activations = 4 * widths * min(prompt, 8_192) + 8 * one.vocab
    unpacked = 0 if one.weights == "bf16" else 256 << 20
    return one.gigabytes * 1e9 + kept * token_layer + activations + unpacked + 0.3e9


def three_quarters(one):
    """SPEED's cutoff in the table."""
    return -(-3 * one.layers // 4)


def longest(one, card, cutoff, anchors):
    """Tokens of the longest prompt that fits, none being 0, at most the model's context less the new tokens."""
    low, high = 0, one.context - NEW_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if need(one, middle, cutoff, anchors) <= card * 1e9:
            low = middle
        else:
            high = middle - 1
    return low


def tokens(one, count):
    if count >= one.context - NEW_TOKENS:
        return "all"
    return f"{count / 1024:.0f}K" if count >= 10_240 else f"{count / 1024:.1f}K"


def cell(one, card):
    full = longest(one, card, one.layers, 0)
    cut = longest(one, card, three_quarters(one), 1)
    if cut < 256:
        return "–"
    words = [tokens(one, full) if full >= 256 else "–", tokens(one, cut)]
    return words[0] if words[0] == words[1] else " → ".join(words)


def table():
    """Rows of GitHub Markdown."""
    head = ["model (context)", "weights", "`speed`", *(f"{card} GB" for card in CARDS)]
    rows = [
        [f"{one.name} ({one.context // 1024}K)", f"{one.weights}, {one.gigabytes:.3g} GB",
         f"{three_quarters(one)} of {one.layers}", *(cell(one, card) for card in CARDS)]
        for one in MODELS
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def main():
    arguments = sys.argv[1:]
    if arguments == ["--table"]:
        print(table())
    elif len(arguments) in (2, 3) and arguments[0] == "--need":
        for one in MODELS:
            cutoff = min(int(arguments[2]), one.layers) if len(arguments) == 3 else one.layers
            print(f"{one.name:14} {one.weights:7} {need(one, int(arguments[1]), cutoff, int(cutoff < one.layers)) / 1e9:7.2f} GB")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
