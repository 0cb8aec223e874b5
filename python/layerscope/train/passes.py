"""Forward passes under a policy: with an adapter on decode rows, whose prompts run the base weights, or on all rows."""

import contextlib

import torch
from transformers import DynamicCache

from . import policy as masks


def blocks(model):
    """The layers of a causal language model of transformers, with or without an adapter around it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    inner = base.model if hasattr(base, "model") else getattr(base, base.base_model_prefix)
    for name in ("layers", "h"):
        if hasattr(inner, name):
            return getattr(inner, name)
    raise ValueError(f"{type(base).__name__}: no layers are found in it")


def windows(model):
    """The sliding window of each layer, or None."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]


def kv_heads(model):
    """KV heads of each layer."""
    config = model.config.get_text_config()
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


@contextlib.contextmanager
def masked(model, mask_of):
    """Each layer gets the mask that `mask_of(layer)` returns."""
    def hook(layer):
        def before(module, args, kwargs):
            return args, {**kwargs, "attention_mask": mask_of(layer)}
        return before
    hooks = [block.register_forward_pre_hook(hook(layer), with_kwargs=True) for layer, block in enumerate(blocks(model))]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


class Passes:
    """Runs batches. `flex` takes block masks, for models that were loaded with `attn_implementation="flex_attention"`."""

    def __init__(self, model, rows, flex=False, wrapped=None):
        # What is called: the model, or what accelerate has made of it.
        self.model, self.wrapped, self.rows, self.flex = model, wrapped or model, rows, flex
        self.windows = windows(model)
        heads = kv_heads(model)
        self.heads = {"kv_heads": heads, "of_each": model.config.get_text_config().num_attention_heads // heads}

    def base(self):
        return self.model.disable_adapter() if hasattr(self.model, "disable_adapter") else contextlib.nullcontext()

    def run(self, policy, tokens, queries, keys, real, prompt_len, **others):
        made = {}

        def mask_of(layer):
            kind = (policy.kind(layer), self.windows[layer])
            if kind not in made:
                # Heads differ where a set is kept alone.
                heads = self.heads if policy.kept and layer < policy.cutoff else {}
                if self.flex:
                    made[kind] = masks.blocks(policy.sees(layer, prompt_len.flatten()[0]), queries, keys, real, self.windows[layer], **heads)
                else:
                    made[kind] = masks.dense(policy.sees(layer, prompt_len), queries, keys, real, self.windows[layer], self.dtype(), **heads)
            return made[kind]

        with masked(self.model, mask_of):
            return self.wrapped(input_ids=tokens, position_ids=queries, **others)

    def dtype(self):
        return next(self.model.parameters()).dtype

    def prompts(self, batch, full):
        """Keys and values of the prompts under the base weights."""
        positions = torch.arange(batch.prompt.shape[1], device=batch.prompt.device).expand(batch.prompt.shape)
        with torch.no_grad(), self.base():
            # Without the config, so that layers with a window keep what lies behind it: masks say what is read.
            return self.run(full, batch.prompt, positions, positions, batch.prompt_real, batch.prompt_len,
                            past_key_values=DynamicCache(), use_cache=True).past_key_values

    def logits(self, batch, policy, full):
        """Logits [B, N, V] of the decode rows under a policy, with the adapter."""
        prompt = torch.arange(batch.prompt.shape[1], device=batch.prompt.device).expand(batch.prompt.shape)
        keys = torch.cat([prompt, batch.positions], 1)
        real = torch.cat([batch.prompt_real, batch.decode_real], 1)
        if self.rows == "decode":
            cache = self.prompts(batch, full)
            return self.run(policy, batch.decode, batch.positions, keys, real, batch.prompt_len, past_key_values=cache,
                            use_cache=True).logits
        tokens = torch.cat([batch.prompt, batch.decode], 1)
        logits = self.run(policy, tokens, keys, keys, real, batch.prompt_len, use_cache=False).logits
        return logits[:, batch.prompt.shape[1]:]

    @torch.no_grad()
    def teacher(self, batch, full):
        """Logits of the decode rows of the model without the adapter at full depth."""
        with self.base():
            return Passes(self.model, "all", self.flex, self.wrapped).logits(batch, full, full)


def loss(teacher, student, batch, sft=0.0):
    """Mean over decode rows of (1 − sft)·KL(full ‖ adapted) + sft·cross-entropy, and the mean KL, nats."""
    full, own = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    real = batch.decode_real
    kl = (full.exp() * (full - own)).sum(-1)[real]
    nll = -own.gather(-1, batch.targets[..., None])[..., 0][real]
    return ((1 - sft) * kl + sft * nll).mean(), kl.mean().detach()
