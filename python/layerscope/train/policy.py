"""Policies with a cutoff, and the attention masks that they are trained with."""

import re
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Policy:
    """`speed:C` or `selfonly:C`, with anchors: prompt rows but the anchors end at the entrance of layer C."""

    name: str
    cutoff: int
    anchors: tuple = ()  # (first, last), ascending
    self_only: bool = False  # whether decode rows from C on read themselves and anchors alone

    @classmethod
    def parse(cls, name, layers):
        found = re.fullmatch(r"(speed|selfonly):(\d+)((?:\+(?:bos|\d+(?:-\d+)?))*)", name)
        if not found or not 1 <= int(found[2]) < layers:
            raise ValueError(f"policy {name!r} has no cutoff between 1 and {layers - 1}; give one such as speed:{layers * 3 // 4}+bos")
        anchors = []
        for item in filter(None, found[3].split("+")):
            first, _, last = ("0" if item == "bos" else item).partition("-")
            anchors.append((int(first), int(last or first)))
        return cls(name, int(found[2]), tuple(sorted(anchors)), found[1] == "selfonly")

    def at(self, cutoff):
        """The same with another cutoff."""
        return Policy(self.name, cutoff, self.anchors, self.self_only)

    def anchor(self, positions):
        """Which positions are anchors."""
        kept = torch.zeros_like(positions, dtype=torch.bool)
        for first, last in self.anchors:
            kept |= (positions >= first) & (positions <= last)
        return kept

    def sees(self, layer, prompt_len):
        """Whether a row at one position reads a key at another, as a function of tensors that broadcast.

        Which rows of the prompt exist above the cutoff makes no difference to what decode rows read: they read no others.
        """
        def full(query, key):
            return key <= query

        def cut(query, key):
            decodes, anchor = query >= prompt_len - 1, self.anchor(key)
            reached = (key == query) if self.self_only else (key >= prompt_len - 1)
            return (key <= query) & ((key == query) | anchor | (decodes & reached))

        return cut if layer >= self.cutoff else full


def dense(sees, queries, keys, real, window=None, dtype=torch.float32):
    """An additive mask [B, 1, queries, keys] of positions [B, queries] and [B, keys]; `real` [B, keys] marks keys that are no padding."""
    q, k = queries[:, :, None], keys[:, None, :]
    shown = sees(q, k) & real[:, None, :]
    if window is not None:
        shown &= q - k < window
    # Rows of padding read themselves: none is empty.
    shown |= (q == k) & ~shown.any(-1, keepdim=True)
    return torch.zeros(shown.shape, dtype=dtype, device=q.device).masked_fill(~shown, torch.finfo(dtype).min)[:, None]


def blocks(sees, queries, keys, real, window=None):
    """The same as a block mask for FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def shown(batch, head, row, column):
        q, k = queries[batch, row], keys[batch, column]
        seen = sees(q, k) & real[batch, column]
        if window is not None:
            seen = seen & (q - k < window)
        return seen

    return create_block_mask(shown, queries.shape[0], None, queries.shape[1], keys.shape[1], device=queries.device)
