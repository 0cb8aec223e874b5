"""The PyTorch trainer against goldens of autograd on dense models, and against `layerscope adapt`.

    python3 -m venv ref && ref/bin/pip install torch transformers peft accelerate
    PYTHONPATH=python LAYERSCOPE=target/release/layerscope ref/bin/python -m unittest discover python/tests --pattern test_train.py
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from layerscope.train import Batch, Item, Passes, Policy, loss
from layerscope.train.policy import blocks, dense

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
FAMILIES = Path(__file__).parents[2] / "fixtures" / "families"
PROMPT_LEN = 30


def load(family):
    return AutoModelForCausalLM.from_pretrained(FAMILIES / family, dtype=torch.float32, attn_implementation="eager").eval()


def relative(actual, expected):
    return float((actual - expected).detach().abs().max() / expected.abs().max().clamp_min(1e-6))


class Masks(unittest.TestCase):
    def test_rows_read_what_the_policy_shows(self):
        p, total = 9, 14
        positions = torch.arange(total)[None]
        real = torch.ones_like(positions, dtype=torch.bool)
        lengths = torch.tensor([[[[p]]]])
        for name, anchors in [("speed:2", set()), ("speed:2+bos", {0}), ("selfonly:2+bos+3-4", {0, 3, 4})]:
            policy = Policy.parse(name, 4, 2)
            for layer in range(4):
                mask = dense(policy.sees(layer, lengths), positions, positions, real)[0, 0] == 0
                for query in range(p - 1, total):  # decode rows
                    for key in range(total):
                        own = key == query if policy.self_only else key >= p - 1
                        expected = key <= query and (layer < 2 or own or key in anchors)
                        self.assertEqual(bool(mask[query, key]), expected, (name, layer, query, key))
                if layer >= 2:
                    for query in anchors:
                        self.assertEqual({key for key in range(total) if mask[query, key]}, {k for k in anchors if k <= query} | {query})
                # FlexAttention's masks are the same.
                from torch.nn.attention.flex_attention import create_mask
                sees = policy.sees(layer, torch.tensor(p))
                flex = create_mask(lambda b, h, q, k: sees(h, q, k), 1, 1, total, total, device="cpu")[0, 0]
                self.assertTrue(torch.equal(flex, mask))
                self.assertIsNotNone(blocks(sees, positions, positions, real))

    def test_heads_outside_a_set_keep_the_ends_of_the_prompt(self):
        p, total, layers, kv_heads = 9, 14, 4, 3
        positions = torch.arange(total)[None]
        real = torch.ones_like(positions, dtype=torch.bool)
        kept = {(0, head) for head in range(kv_heads)} | {(2, 1), (2, 2)}
        for name, cutoff, ends in [("keep:0+2.1-2", 4, set()), ("keep:0+2.1-2+bos+window=3", 4, {0, 5, 6, 7}),
                                   ("keep:0+2.1+2.2+sinks=2", 4, {0, 1}), ("speed:3+bos+keep:0+2.1-2+window=1", 3, {7})]:
            policy = Policy.parse(name, layers, kv_heads)
            for layer in range(layers):
                mask = dense(policy.sees(layer, torch.tensor([[[[p]]]])), positions, positions, real, kv_heads=kv_heads, of_each=2)[0] == 0
                for head in range(2 * kv_heads):
                    for query in range(total if layer < cutoff else 0):
                        whole = query < p - 1 or (layer, head // 2) in kept
                        for key in range(total):
                            expected = key <= query and (whole or key >= p - 1 or key in ends)
                            # With one KV head, rows that a cutoff makes are the same for all.
                            self.assertEqual(bool(mask[head % mask.shape[0], query, key]), expected, (name, layer, head, query, key))
                    for query in range(p - 1, total if layer >= cutoff else 0):
                        self.assertEqual({key for key in range(total) if mask[head % mask.shape[0], query, key]}, {0, *range(p - 1, query + 1)})
                self.assertIsNotNone(blocks(policy.sees(layer, torch.tensor(p)), positions, positions, real, kv_heads=kv_heads, of_each=2))

    def test_a_set_of_a_file_has_the_ends_that_it_was_searched_with(self):
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "half.json"
            path.write_text(json.dumps({"heads": "0+2.1", "layers": 4, "kv_heads": 2, "model": "m", "sha256": "", "policy": "keep:0+2.1+bos+window=16"}))
            searched = Policy.parse(f"keep:heads={path}", 4, 2).kept
            self.assertEqual((searched.first, searched.last, sorted(searched.heads)), (1, 16, [(0, 0), (0, 1), (2, 1)]))
            given = Policy.parse(f"keep:heads={path}+sinks=4", 4, 2).kept
            self.assertEqual((given.first, given.last), (4, 0))
            with self.assertRaises(ValueError):
                Policy.parse(f"keep:heads={path}", 5, 2)
            for damaged in ["{", "{}", "[]", "null", '{"heads": 3, "layers": 4, "kv_heads": 2, "policy": "keep:0"}']:
                path.write_text(damaged)
                with self.assertRaisesRegex(ValueError, "is no set of KV heads"):
                    Policy.parse(f"keep:heads={path}", 4, 2)

    def test_names_without_a_cutoff_or_a_set_are_refused(self):
        for name in ["full", "speed:0", "speed:4", "speed:2+x", "streaming:3", "keep:4", "keep:0.2", "keep:x", "selfonly:2+keep:0", "full+keep:0"]:
            with self.assertRaises(ValueError):
                Policy.parse(name, 4, 2)


class Gradients(unittest.TestCase):
    """Against fixtures/families/gradients.py, which masks and differentiates merged weights."""

    def test_logits_and_gradients(self):
        for family in ["llama31", "mistral", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "granite", "gpt_neox", "starcoder2"]:
            expected = load_file(FAMILIES / family / "gradients.safetensors")
            tokens, cutoff = expected["tokens"].tolist(), int(expected["cutoff"][0])
            model = PeftModel.from_pretrained(load(family), FAMILIES / family / "adapter", is_trainable=True).eval()
            layers = model.config.num_hidden_layers
            full = Policy.full(layers)
            item = Item("x", tokens[:PROMPT_LEN], tokens[PROMPT_LEN:] + [0])
            batch = Batch.of([item], "cpu")
            for case, policy in [("decode", full), ("all", Policy.parse(f"speed:{cutoff}+bos", layers, 1))]:
                model.zero_grad()
                logits = Passes(model, case).logits(batch, policy, full)[0]
                self.assertLess(relative(logits, expected[f"{case}.logits"]), 1e-4, (family, case))
                (logits * expected["weights"]).sum().backward()
                for name, parameter in model.named_parameters():
                    if "lora_" in name:
                        key = name.removeprefix("base_model.model.").removesuffix(".default.weight")
                        self.assertLess(relative(parameter.grad, expected[f"{case}.{key}"]), 1e-3, (family, case, key))

    def test_padding_changes_nothing(self):
        expected = load_file(FAMILIES / "llama31" / "gradients.safetensors")
        tokens = expected["tokens"].tolist()
        model = PeftModel.from_pretrained(load("llama31"), FAMILIES / "llama31" / "adapter").eval()
        layers = model.config.num_hidden_layers
        full, policy = Policy.full(layers), Policy.parse("speed:1+bos", layers, 1)
        short, long = Item("s", tokens[:11], tokens[11:14]), Item("l", tokens[:PROMPT_LEN], tokens[PROMPT_LEN:])
        for rows in ("decode", "all"):
            passes = Passes(model, rows)
            together = passes.logits(Batch.of([short, long], "cpu"), policy, full)
            for index, item in enumerate([short, long]):
                alone = passes.logits(Batch.of([item], "cpu"), policy, full)[0]
                self.assertLess(relative(together[index, :alone.shape[0]], alone), 1e-5, rows)


@unittest.skipUnless(os.environ.get("LAYERSCOPE"), "LAYERSCOPE names no binary")
class AgainstLayerscope(unittest.TestCase):
    """The same prompts, continuations and adapter: the same loss, and the same gradient, which the first moments of AdamW tell."""

    def check(self, family, rows, kept=None):
        with tempfile.TemporaryDirectory() as home:
            home = Path(home)
            folder = checkpoint(family, home)
            prompts = home / "prompts.jsonl"
            texts = ["helloworldabc", "thequickbrownfoxjumpsover", "lazydogs", "abcdefghijkl"]
            prompts.write_text("".join(json.dumps({"id": text, "prompt": text}) + "\n" for text in texts))
            config = load(family).config
            layers, kv_heads = config.num_hidden_layers, config.num_key_value_heads
            policy = kept or f"speed:{layers // 2}+bos"
            states = []
            for steps in (1, 2):
                out = home / f"adapter-{steps}"
                command = [os.environ["LAYERSCOPE"], "adapt", folder, "--weights", "f32", "--policy", policy, "--prompts", prompts,
                           "--out", out, "--rows", rows, "--steps", steps, "--batch", 3, "--max-new-tokens", 6, "--held-out", 0.25,
                           "--other-cutoffs", 0, "--rank", 4, "--learning-rate", 0.05, "--sft", 0.25, "--evaluate-every", 1, "--json"]
                # The first step of both is the same; the second begins with its adapter.
                told = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)
                states.append((out, told, load_file(out / "training.safetensors")))
            said = json.loads((states[0][0] / "continuations.json").read_text())["tokens"]
            letters = lambda text: [ord(letter) - 97 for letter in text]
            items = {text: Item(text, letters(text), said[text]) for text in texts}
            held_out = states[0][1]["held_out"]
            trained = Batch.of([item for text, item in items.items() if text not in held_out], "cpu")
            model = PeftModel.from_pretrained(load(family), states[0][0], is_trainable=True).eval()
            policy, full = Policy.parse(policy, layers, kv_heads), Policy.full(layers)
            passes = Passes(model, rows)
            unseen = Batch.of([items[text] for text in held_out], "cpu")
            _, kl = loss(passes.teacher(unseen, full), passes.logits(unseen, policy, full), unseen)
            self.assertLess(abs(float(kl) - states[0][1]["after"]["kl"]), 1e-4 * max(1, float(kl)), family)
            value, _ = loss(passes.teacher(trained, full), passes.logits(trained, policy, full), trained, 0.25)
            value.backward()
            gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            norm = torch.sqrt(sum((g ** 2).sum() for g in gradients.values()))
            clip = 1 / norm if norm > 1 else 1
            names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "o_proj",
                     "gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}
            checked = 0
            for name, gradient in gradients.items():
                layer = next(part for part in name.split(".") if part.isdigit())
                target = next(names[part] for part in name.split(".") if part in names)
                key = f"{layer}.{target}.{'a' if 'lora_A' in name else 'b'}.first"
                before, after = states[0][2][key], states[1][2][key]
                of_step = (after - 0.9 * before) / 0.1
                self.assertLess(relative(of_step.reshape(gradient.shape), gradient * clip), 2e-3, (family, rows, key))
                checked += 1
            self.assertEqual(checked, 14 * model.config.num_hidden_layers)

    def test_loss_and_gradients(self):
        for family in ["llama31", "qwen3", "gemma2"]:
            for rows in ["decode", "all"]:
                with self.subTest(family=family, rows=rows):
                    self.check(family, rows)

    def test_loss_and_gradients_for_a_set_of_kv_heads(self):
        for family in ["llama31", "gemma2"]:
            for kept in ["keep:0+1.0+bos+window=2", "speed:1+bos+keep:0.1+bos"]:
                with self.subTest(family=family, kept=kept):
                    self.check(family, "decode", kept)


def checkpoint(family, home):
    """A family's checkpoint with a tokenizer of letters."""
    folder = home / family
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FAMILIES / family / name, folder / name)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(26)}, "merges": []}}))
    return folder


if __name__ == "__main__":
    unittest.main()
