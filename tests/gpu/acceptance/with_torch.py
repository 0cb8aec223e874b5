"""What runs in PyTorch, each part as a program of its own that prints JSON.

    python -m acceptance.with_torch machine  --device cuda
    python -m acceptance.with_torch make     --out FOLDER --layers 8 --hidden 1024 …
    python -m acceptance.with_torch figures  --model FOLDER --sequences FILE.json --device cuda
    python -m acceptance.with_torch speed    --shape llama-3.1-8b --lengths 8192:3,32768:3 --steps 8 --device cuda
"""

import argparse
import json
import math
import statistics
import time

import torch


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device, work):
    """Seconds that `work` takes until the device is done, and what it returns."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return time.perf_counter() - start, result


def machine(arguments):
    """What the machine can do at best: bytes copied within its memory, operations of a product in bf16."""
    device = arguments.device
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    large = device == "cuda"
    count = min(4 << 30, torch.cuda.mem_get_info()[0] // 4) // 4 if large else 16 << 20
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copies = 20 if large else 3
    target.copy_(source)
    rounds = [timed(device, lambda: [target.copy_(source) for _ in range(copies)])[0] for _ in range(3)]
    found["copy_bytes_per_s"] = 2 * 4 * count * copies / statistics.median(rounds)
    side = 8192 if large else 256
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    products = 10
    for _ in range(3):
        a @ b
    rounds = [timed(device, lambda: [a @ b for _ in range(products)])[0] for _ in range(3)]
    found["matmul_flops_per_s"] = 2 * side**3 * products / statistics.median(rounds)
    print(json.dumps(found))


def make(arguments):
    """A Llama with random weights in bf16, as a Hugging Face folder. Queries and keys are large enough for attention to
    prefer some tokens to others, as it does in trained models."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = arguments.hidden // arguments.head_dim
    config = LlamaConfig(
        hidden_size=arguments.hidden, num_hidden_layers=arguments.layers, num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1), head_dim=arguments.head_dim,
        intermediate_size=arguments.hidden * 11 // 4, vocab_size=arguments.vocab, max_position_embeddings=8192,
        bos_token_id=arguments.bos, eos_token_id=arguments.eos, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}, dtype="bfloat16",
    )
    torch.manual_seed(arguments.seed)
    model = LlamaForCausalLM(config)
    deviation = {"q_proj": 1.3, "k_proj": 1.3, "lm_head": 2.0}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                scale = next((scale for part, scale in deviation.items() if part in name), 1.0)
                weight.normal_(0.0, scale / math.sqrt(weight.shape[1] if "embed" not in name else 1.0))
    model.bfloat16().save_pretrained(arguments.out, safe_serialization=True)
    print(json.dumps({"parameters": sum(weight.numel() for weight in model.parameters())}))


@torch.inference_mode()
def figures(arguments):
    """Greedy tokens and figures by layer of given sequences, in f32 with eager attention.

    The queries are the last prompt token, position p-1, and the generated tokens that are fed back. With a_j the
    probabilities of one query over the keys j: bos_mass = a_0, prompt_mass = the sum over j = 1 … p-2, decode_mass = the
    rest; prompt_entropy = -Σ q ln q / ln(p-2) with q = a / prompt_mass over the prompt. Means over heads and queries.
    """
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="eager")
    model = model.eval().to(arguments.device)
    with open(arguments.sequences) as file:
        sequences = json.load(file)
    found = []
    for sequence in sequences:
        prompt, generated = sequence["prompt_tokens"], sequence["generated"]
        p = len(prompt)
        rows = torch.tensor([prompt[-1:] + generated[:-1]], device=arguments.device)
        cache = DynamicCache()
        model(input_ids=torch.tensor([prompt[:-1]], device=arguments.device), past_key_values=cache, logits_to_keep=1)
        output = model(input_ids=rows, past_key_values=cache, output_attentions=True)
        layers = [masses(attention[0].double(), p) for attention in output.attentions]
        greedy = output.logits[0].argmax(-1).tolist()
        found.append({"id": sequence["id"], "greedy": greedy} | {key: [layer[key] for layer in layers] for key in layers[0]})
    print(json.dumps({"sequences": found}))


def masses(attention, p):
    """The figures of one layer from its attention `[heads, queries, keys]`."""
    prompt = attention[..., 1 : p - 1]
    prompt_mass = prompt.sum(-1)
    q = prompt / prompt_mass[..., None]
    entropy = -torch.special.xlogy(q, q).sum(-1) / math.log(p - 2)
    return {
        "bos_mass": attention[..., 0].mean().item(), "prompt_mass": prompt_mass.mean().item(),
        "decode_mass": attention[..., p - 1 :].sum(-1).mean().item(),
        "prompt_entropy": entropy[prompt_mass > 1e-6].mean().item(),
    }


@torch.inference_mode()
def speed(arguments):
    """TTFT and TPOT of a shape with random weights in bf16; a line for each length.

    TTFT: from token ids on the host to the first token on the host. TPOT: a step from token to token, with the cache that
    transformers uses unless told otherwise. Attention is PyTorch's, through its flash kernels where they take the work.
    """
    from acceptance.shapes import SHAPES
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers import __version__ as transformers_version

    shape, device = SHAPES[arguments.shape], arguments.device
    config = LlamaConfig(
        hidden_size=shape.hidden, num_hidden_layers=arguments.layers or shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.feed_forward,
        vocab_size=shape.vocab, max_position_embeddings=131_328, tie_word_embeddings=shape.tied_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_base}, attn_implementation="sdpa",
    )
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    model.eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    about = {"torch": torch.__version__, "transformers": transformers_version}
    once(model, 256, 4, device)
    for entry in arguments.lengths.split(","):
        length, repeats = map(int, entry.split(":"))
        try:
            # Does not count: libraries load kernels, and PyTorch takes its memory.
            warm_up, _, _ = once(model, length, 2, device)
            runs = [once(model, length, arguments.steps, device) for _ in range(repeats)]
        except torch.OutOfMemoryError:
            print(json.dumps({"length": length, "error": "out of memory"} | about), flush=True)
            torch.cuda.empty_cache()
            continue
        ttft, steps = [run[0] for run in runs], [step for run in runs for step in run[1]]
        result = {
            "length": length, "ttft_s": statistics.median(ttft), "ttft_repeats_s": ttft, "warm_up_s": warm_up,
            "tpot_s": statistics.median(steps), "steps": len(steps), "attention": runs[-1][2],
        }
        if device == "cuda":
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(result | about), flush=True)


def once(model, length, steps, device):
    """TTFT, the times of `steps` steps, and which attention it was."""
    ids = torch.randint(100, model.config.vocab_size - 100, (1, length), generator=torch.Generator().manual_seed(length))

    def first():
        output = model(input_ids=ids.to(device), use_cache=True, logits_to_keep=1)
        return output.logits[0, -1].argmax().item(), output.past_key_values

    def follow(token, cache):
        output = model(input_ids=torch.tensor([[token]], device=device), past_key_values=cache, use_cache=True)
        return output.logits[0, -1].argmax().item()

    def run():
        ttft, (token, cache) = timed(device, first)
        times = []
        for _ in range(steps):
            seconds, token = timed(device, lambda: follow(token, cache))
            times.append(seconds)
        return ttft, times

    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return *run(), "flash"
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        return *run(), "PyTorch's choice"


def main():
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(required=True)
    for part in [machine, make, figures, speed]:
        options = parts.add_parser(part.__name__)
        options.set_defaults(part=part)
        options.add_argument("--device", default="cpu")
        if part is make:
            options.add_argument("--out", required=True)
            for name in ["layers", "hidden", "head-dim", "vocab", "bos", "eos", "seed"]:
                options.add_argument(f"--{name}", type=int, required=True)
        if part is figures:
            options.add_argument("--model", required=True)
            options.add_argument("--sequences", required=True)
        if part is speed:
            options.add_argument("--shape", required=True)
            options.add_argument("--layers", type=int)
            options.add_argument("--lengths", required=True)
            options.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    arguments.part(arguments)


if __name__ == "__main__":
    main()
