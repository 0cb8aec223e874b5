"""Policies that an adapter can be trained for, and the attention masks that they are trained with."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ENDS = re.compile(r"bos|sinks=\d+|window=\d+")
EVERYTHING = "full"


@dataclass(frozen=True)
class Kept:
    """A set of KV heads that keep the prompt, and how many tokens at its two ends the others keep."""

    heads: frozenset  # (layer, KV head)
    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, items, layers, kv_heads):
        """The set of the items of a name behind `keep:`."""
        if items[0].startswith("heads="):
            path = items[0].removeprefix("heads=")
            try:
                found = json.loads(Path(path).read_text())
                shape, heads, searched = [found["layers"], found["kv_heads"]], found["heads"].split("+"), found["policy"].split("keep:")[1].split("+")
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ValueError(f"{path} is no set of KV heads; layerscope recommend --write-heads writes one") from None
            if shape != [layers, kv_heads]:
                raise ValueError(f"{path} is a set of a model with {shape[0]} layers of {shape[1]} KV heads")
            ends = [item for item in items[1:] if ENDS.fullmatch(item)]
            items = [*heads, *items[1:], *([] if ends else filter(ENDS.fullmatch, searched))]
        heads, first, last = set(), 0, 0
        for item in items:
            units = re.fullmatch(r"(\d+)(?:-(\d+)|\.(\d+)(?:-(\d+))?)?", item)
            if units:
                layer, to, head, to_head = (part and int(part) for part in units.groups())
                of_heads = range(kv_heads) if head is None else range(head, (head if to_head is None else to_head) + 1)
                heads |= {(at, one) for at in range(layer, (layer if to is None else to) + 1) for one in of_heads}
            elif item == "bos":
                first = 1
            elif ENDS.fullmatch(item):
                end, tokens = item.split("=")
                first, last = (int(tokens), last) if end == "sinks" else (first, int(tokens))
            elif item != "none":
                raise ValueError(f"{item!r} names no layers, no KV heads and no end of the prompt")
        for layer, head in heads:
            if layer >= layers or head >= kv_heads:
                raise ValueError(f"KV head {head} of layer {layer} is not in a model with {layers} layers of {kv_heads} KV heads")
        return cls(frozenset(heads), first, last)

    def keeps(self, layer, head, key, prompt_len):
        """Whether KV heads keep keys of the prompt, as tensors that broadcast."""
        kept = (key < self.first) | (key >= prompt_len - 1 - self.last)
        for at, one in sorted(self.heads):
            if at == layer:
                kept = kept | (head == one)
        return kept


@dataclass(frozen=True)
class Policy:
    """`speed:C` or `selfonly:C`, with anchors: prompt rows but the anchors end at the entrance of layer C. `keep:SET`, behind `speed:C` or
    not: KV heads that are not in the set keep the ends of the prompt alone."""

    name: str
    cutoff: int  # the number of layers where there is none
    anchors: tuple = ()  # (first, last), ascending
    self_only: bool = False  # whether decode rows from C on read themselves and anchors alone
    kept: Kept | None = None

    @classmethod
    def full(cls, layers):
        return cls(EVERYTHING, layers)

    @classmethod
    def parse(cls, name, layers, kv_heads):
        of_cutoff, joint, of_set = name.partition("keep:")
        kept = Kept.parse(of_set.split("+"), layers, kv_heads) if joint else None
        if kept and not of_cutoff:
            return cls(name, layers, kept=kept)
        found = re.fullmatch(r"(speed|selfonly):(\d+)((?:\+(?:bos|\d+(?:-\d+)?))*)", of_cutoff.removesuffix("+") if kept else name)
        if not found or not 1 <= int(found[2]) < layers or kept and found[1] == "selfonly":
            raise ValueError(f"policy {name!r} has no cutoff between 1 and {layers - 1}, and no set of KV heads; give one such as "
                             f"speed:{layers * 3 // 4}+bos or keep:0-{layers // 2}+bos")
        anchors = []
        for item in filter(None, found[3].split("+")):
            first, _, last = ("0" if item == "bos" else item).partition("-")
            anchors.append((int(first), int(last or first)))
        return cls(name, int(found[2]), tuple(sorted(anchors)), found[1] == "selfonly", kept)

    def others(self, layers):
        """What an adapter meets beside its policy: higher cutoffs, or, beside a set, full depth."""
        if self.kept:
            return [Policy.full(layers)]
        return [replace(self, cutoff=cutoff) for cutoff in range(self.cutoff + 1, layers + 1)]

    def anchor(self, positions):
        """Which positions are anchors."""
        kept = torch.zeros_like(positions, dtype=torch.bool)
        for first, last in self.anchors:
            kept |= (positions >= first) & (positions <= last)
        return kept

    def kind(self, layer):
        """Layers of one kind have the same mask."""
        if layer >= self.cutoff:
            return "cut"
        return frozenset(head for at, head in self.kept.heads if at == layer) if self.kept else EVERYTHING

    def sees(self, layer, prompt_len):
        """Whether a row at one position reads a key at another, at a KV head, as a function of tensors that broadcast.

        Which rows of the prompt exist above the cutoff makes no difference to what decode rows read: they read no others.
        """
        def full(head, query, key):
            return key <= query

        def cut(head, query, key):
            decodes, anchor = query >= prompt_len - 1, self.anchor(key)
            reached = (key == query) if self.self_only else (key >= prompt_len - 1)
            return (key <= query) & ((key == query) | anchor | (decodes & reached))

        def evicted(head, query, key):
            is_prompt = (query < prompt_len - 1) | (key >= prompt_len - 1)
            return (key <= query) & (is_prompt | self.kept.keeps(layer, head, key, prompt_len))

        if layer >= self.cutoff:
            return cut
        return evicted if self.kept else full


def dense(sees, queries, keys, real, window=None, dtype=torch.float32, kv_heads=1, of_each=1):
    """An additive mask [B, KV heads · of each, queries, keys] of positions [B, queries] and [B, keys]; `real` [B, keys] marks keys that are no
    padding. With one KV head it is that of all heads."""
    q, k = queries[:, None, :, None], keys[:, None, None, :]
    heads = torch.arange(kv_heads, device=q.device)[None, :, None, None]
    shown = sees(heads, q, k) & real[:, None, None, :]
    if window is not None:
        shown &= q - k < window
    # Rows of padding read themselves: none is empty.
    shown = shown | ((q == k) & ~shown.any(-1, keepdim=True))
    shown = shown.expand(-1, kv_heads, -1, -1).repeat_interleave(of_each, 1)
    return torch.zeros(shown.shape, dtype=dtype, device=q.device).masked_fill(~shown, torch.finfo(dtype).min)


def blocks(sees, queries, keys, real, window=None, kv_heads=None, of_each=1):
    """The same as a block mask for FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def shown(batch, head, row, column):
        q, k = queries[batch, row], keys[batch, column]
        seen = sees(head // of_each, q, k) & real[batch, column]
        if window is not None:
            seen = seen & (q - k < window)
        return seen

    heads = kv_heads and kv_heads * of_each
    return create_block_mask(shown, queries.shape[0], heads, queries.shape[1], keys.shape[1], device=queries.device)
