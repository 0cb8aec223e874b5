"""Trains an adapter for a policy:

    PYTHONPATH=python python -m layerscope.train MODEL --policy speed:24+bos --prompts prompts.jsonl --out adapter
    PYTHONPATH=python accelerate launch --use_fsdp -m layerscope.train MODEL … --dtype bfloat16 --attention flex_attention
"""

import argparse
import hashlib
import json
import math
import random
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from . import Batch, Passes, Policy, loss, read
from .passes import kv_heads

WARM_UP = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or Hugging Face id")
    parser.add_argument("--gguf", help="GGUF file in that folder")
    parser.add_argument("--policy", required=True, help="speed:C or selfonly:C, with anchors, e.g. speed:22+bos; keep:SET, behind speed:C or not")
    parser.add_argument("--prompts", required=True, help="prompt file, JSON Lines")
    parser.add_argument("--continuations", help="continuations.json of `layerscope adapt`, instead of generating texts")
    parser.add_argument("--out", required=True, type=Path, help="folder for the adapter, in PEFT's format")
    parser.add_argument("--rows", choices=["decode", "all"], default="decode")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, help="twice the rank where none is given")
    parser.add_argument("--targets", default="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--other-cutoffs", type=float, default=0.25, help="share of steps at a cutoff above the policy's, or, beside a set, at full depth")
    parser.add_argument("--held-out", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=50)
    parser.add_argument("--sft", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attention", choices=["eager", "sdpa", "flex_attention"], default="sdpa")
    return parser.parse_args()


def main():
    a = arguments()
    accelerator = Accelerator()
    options = {"gguf_file": a.gguf} if a.gguf else {}
    tokenizer = AutoTokenizer.from_pretrained(a.model, **options)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=getattr(torch, a.dtype), attn_implementation=a.attention, **options)
    layers = model.config.get_text_config().num_hidden_layers
    try:
        policy = Policy.parse(a.policy, layers, kv_heads(model))
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None
    if policy.kept and a.rows == "all":
        raise SystemExit(f"{a.policy}: an adapter for a set of KV heads acts on decode rows; leave out --rows all")
    full, others = Policy.full(layers), policy.others(layers)
    model.to(accelerator.device).eval()

    @torch.no_grad()
    def generate(tokens, count):
        ids = torch.tensor([tokens], device=accelerator.device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False)
        return out[0, len(tokens):].tolist()

    items = read(a.prompts, tokenizer, a.max_new_tokens, a.continuations, generate)
    random.Random(a.seed).shuffle(items)
    count = max(1, round(len(items) * a.held_out))
    held_out, trained = items[:count], items[count:]
    if not trained:
        raise SystemExit(f"{a.prompts}: training needs at least two prompts, one of them held out")

    torch.manual_seed(a.seed)
    config = LoraConfig(r=a.rank, lora_alpha=a.alpha or 2 * a.rank, target_modules=a.targets.split(","), task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=a.learning_rate, weight_decay=0.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    bare = accelerator.unwrap_model(model)
    passes = Passes(bare, a.rows, a.attention == "flex_attention", model)

    def rate(step):
        rise = min((step + 1) / max(1, min(WARM_UP, a.steps // 5)), 1)
        return a.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * step / a.steps))

    @torch.no_grad()
    def evaluate(under):
        rows = kl = same = 0
        for start in range(0, len(held_out), a.batch):
            batch = Batch.of(held_out[start:start + a.batch], accelerator.device)
            teacher, student = passes.teacher(batch, full), passes.logits(batch, under, full)
            here = int(batch.decode_real.sum())
            rows, kl = rows + here, kl + here * float(loss(teacher, student, batch)[1])
            same += int((teacher.argmax(-1) == student.argmax(-1))[batch.decode_real].sum())
        return {"kl": kl / rows, "top1": same / rows, "answers": None}

    before, start, draw = evaluate(policy), time.time(), random.Random(a.seed + 1)
    accelerator.print(f"step 0: held-out KL {before['kl']:.4f}, same top token {100 * before['top1']:.1f} %")
    world, rank = accelerator.num_processes, accelerator.process_index
    counts = torch.zeros(2, dtype=torch.long, device=accelerator.device)  # decode rows, and all rows that are trained
    for step in range(a.steps):
        order = draw.sample(trained, min(a.batch * world, len(trained)))
        batch = Batch.of(order[rank::world] or order[:1], accelerator.device)
        under = draw.choice(others) if draw.random() < a.other_cutoffs else policy
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        value, _ = loss(passes.teacher(batch, full), passes.logits(batch, under, full), batch, a.sft)
        accelerator.backward(value)
        accelerator.clip_grad_norm_(bare.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        prompt_rows = batch.prompt_real.sum() if a.rows == "all" else 0
        counts += torch.stack([batch.decode_real.sum(), batch.decode_real.sum() + prompt_rows])
        if (step + 1) % a.evaluate_every == 0 or step + 1 == a.steps:
            now = evaluate(policy)
            accelerator.print(f"step {step + 1}: loss {float(value.detach()):.4f}, held-out KL {now['kl']:.4f}, same top token "
                              f"{100 * now['top1']:.1f} %, {time.time() - start:.0f} s")
    seconds = time.time() - start
    tokens, rows = accelerator.reduce(counts).tolist()
    training = {"steps": a.steps, "tokens": tokens, "rows": rows, "seconds": seconds, "prompts": len(trained), "held_out": len(held_out),
                "before": before, "after": evaluate(policy), "full_depth": evaluate(full)}
    if accelerator.is_main_process:
        bare.save_pretrained(a.out)
        model_files = sorted(Path(a.model).glob(a.gguf or "*.safetensors")) if Path(a.model).is_dir() else []
        info = {"rows": a.rows, "policy": a.policy, "model": Path(a.model).name, "model_sha256": sha256(model_files),
                "prompts": Path(a.prompts).name, "prompts_sha256": sha256([Path(a.prompts)]), "layerscope": "python", "training": training}
        (a.out / "layerscope.json").write_text(json.dumps(info, indent=2) + "\n")
        print(json.dumps(training))


def sha256(files):
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


if __name__ == "__main__":
    main()
