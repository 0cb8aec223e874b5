"""Prompt files, as `layerscope` reads them: JSON Lines with `id`, `prompt` or `messages`, and perhaps `answer`."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Item:
    id: str
    prompt: list  # tokens, p
    continuation: list  # tokens, N

    @property
    def decode(self):
        """Tokens of the N decode rows: the last of the prompt, and the continuation without its last."""
        return self.prompt[-1:] + self.continuation[:-1]


def read(path, tokenizer, max_new_tokens, continuations=None, generate=None):
    """Items of a prompt file. Continuations are answers, those of a `continuations.json` that `layerscope adapt` wrote, or what
    `generate(tokens, count)` says."""
    known = json.loads(Path(continuations).read_text())["tokens"] if continuations else {}
    items = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
            tokens = encode(prompt, tokenizer)
        except (ValueError, KeyError) as error:
            raise SystemExit(f"{path}, line {number}: {error}") from None
        if prompt.get("answer"):
            after = tokenizer(prompt["answer"], add_special_tokens=False)["input_ids"][:max_new_tokens]
        else:
            after = known.get(prompt["id"]) or generate(tokens, max_new_tokens)
        if len(tokens) >= 2 and len(after) >= 2:
            items.append(Item(prompt["id"], tokens, list(after)))
    if not items:
        raise SystemExit(f"{path} has no prompt that can be used")
    return items


def encode(prompt, tokenizer):
    messages = prompt.get("messages") or [{"role": "user", "content": prompt["prompt"]}]
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    else:
        text = messages[0]["content"]
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer(text)["input_ids"]
    bos = tokenizer.bos_token_id
    # The beginning of a sequence exactly once.
    return whole if plain[:1] != [bos] else plain


@dataclass
class Batch:
    """Sequences padded on the right: first the prompts without their last tokens, [B, P], then the decode rows, [B, N]."""

    prompt: torch.Tensor
    prompt_real: torch.Tensor
    decode: torch.Tensor
    decode_real: torch.Tensor
    positions: torch.Tensor  # of the decode rows
    targets: torch.Tensor  # what each decode row yields
    prompt_len: torch.Tensor  # [B, 1, 1, 1]

    @classmethod
    def of(cls, items, device):
        def padded(rows):
            width = max(map(len, rows))
            tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
            real = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
            return tokens.to(device), real.to(device)

        prompt, prompt_real = padded([item.prompt[:-1] for item in items])
        decode, decode_real = padded([item.decode for item in items])
        targets, _ = padded([item.continuation for item in items])
        first = torch.tensor([[len(item.prompt) - 1] for item in items], device=device)
        positions = first + torch.arange(decode.shape[1], device=device)
        return cls(prompt, prompt_real, decode, decode_real, positions, targets, (first + 1)[:, :, None, None])
