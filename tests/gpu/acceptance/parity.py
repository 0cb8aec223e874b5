"""The figures that the GPU gives beside those of the CPU and of PyTorch."""

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor

from acceptance.programs import ROOT, Failed, countdown, run_json, torch_program

MASSES = ["bos_mass", "prompt_mass", "decode_mass"]
TOKENIZER = ROOT / "fixtures" / "tokenizer" / "llama-bpe.tokenizer.json"
PROMPTS = ROOT / "fixtures" / "prompts" / "five-categories.jsonl"
# Ids of that tokenizer.
VOCAB, BOS, EOS = 1770, 1765, 1766


def compare(found, expected):
    """The largest differences between two runs of the same prompts, over the prompts whose texts are the same; `worst` is
    that of the statistics, so of all but the KL; `kl_at` is where that differs most.

    Masses and entropy as they are, curvature as a share of 180 degrees, the frontier's KL as a share of the KL or, below
    one nat, in nats.
    """
    pairs = [(found_prompt, by_id(expected)[found_prompt["id"]]) for found_prompt in found]
    same = [(a, b) for a, b in pairs if a["generated"] == b["generated"]]
    differences = {"prompts": len(pairs), "same_text": len(same), "masses": 0.0, "entropy": 0.0, "curvature": 0.0, "kl": 0.0}

    def widen(key, a, b, unit=1.0, at=None):
        if (a is None) != (b is None):
            raise Failed(f"{key}: one side has no figure where the other has {a if b is None else b}")
        if a is not None:
            if not (math.isfinite(a) and math.isfinite(b)):
                raise Failed(f"{key}: {a} beside {b}")
            off = abs(a - b) / unit
            if at and off > differences[key]:
                differences[key + "_at"] = at | {"found": a, "expected": b}
            differences[key] = max(differences[key], off)

    for a, b in same:
        for name in MASSES:
            for pair in zip(a[name], b[name], strict=True):
                widen("masses", *pair)
        for pair in zip(a["prompt_entropy"], b["prompt_entropy"], strict=True):
            widen("entropy", *pair)
        for pair in zip(a.get("curvature_prompt_deg", []), b.get("curvature_prompt_deg", []), strict=True):
            widen("curvature", *pair, unit=180.0)
        for cut, other in zip(a.get("frontier", []), b.get("frontier", []), strict=True):
            if (cut["anchor"], cut["cutoff"]) != (other["anchor"], other["cutoff"]):
                raise Failed("the frontiers have different cutoffs")
            where = {"prompt": a["id"], "anchor": cut["anchor"], "cutoff": cut["cutoff"]}
            widen("kl", cut["kl"], other["kl"], unit=max(1.0, other["kl"]), at=where)
    if not same:
        raise Failed("no prompt was continued with the same text, so that there is nothing to compare")
    differences["worst"] = max(differences[key] for key in ["masses", "entropy", "curvature"])
    return differences


def by_id(prompts):
    return {prompt["id"]: prompt for prompt in prompts}


def demo(context, limit):
    """The embedded model on its prompts: on the device with weights as they are, and on the CPU in f32, since processors that multiply
    bf16 round weights as they are in ways of their own."""
    program, left = context.program("layerscope"), countdown(limit)
    tiny = ROOT / "fixtures" / "tiny"

    def record(device, weights):
        command = [program, "record", tiny / "layerscope-tiny.gguf", "--prompts", tiny / "demo.jsonl", "--json", "--weights", weights]
        return run_json([*command, "--device", device, "--out", context.scratch / f"demo-{device}-{weights}"], left())

    found, expected = record(context.device, "native"), record("cpu", "f32")
    differences = compare(found["show"]["prompts"], expected["show"]["prompts"])
    cutoffs = [run["recommendation"]["l_cut"] for run in (found, expected)]
    context.figures.setdefault("parity", {})["demo"] = differences | {"l_cut": cutoffs[0], "l_cut_cpu": cutoffs[1]}
    return (
        f"{differences['same_text']} of {differences['prompts']} texts the same, figures within "
        f"{differences['worst']:.1e}, cutoff {cutoffs[0]} (CPU: {cutoffs[1]})"
    )


def checkpoint(context, limit):
    """Random Llamas with heads of 64 and of 128, recorded on the device and on the CPU, and run in PyTorch."""
    sizes = ["--layers", "3", "--hidden", "256"] if context.dry_run else ["--layers", "8", "--hidden", "1024"]
    prompts, left = write_prompts(context), countdown(limit)
    with ThreadPoolExecutor() as pool:
        work = [pool.submit(one_checkpoint, context, head_dim, sizes, prompts, left) for head_dim in (64, 128)]
        found = {f"head_dim_{head_dim}": each.result() for head_dim, each in zip((64, 128), work)}
    context.figures.setdefault("parity", {}).update(found)
    worst = lambda part: max(each[part]["worst"] for each in found.values())
    return (
        f"figures within {worst('f32'):.1e} (f32) and {worst('native'):.1e} (bf16) of the CPU's in f32, within "
        f"{worst('pytorch'):.1e} of PyTorch's; {greedy_sentence(found)}"
    )


def greedy_sentence(found):
    same = sum(each[part]["same_text"] for each in found.values() for part in ("f32", "pytorch"))
    total = sum(each[part]["prompts"] for each in found.values() for part in ("f32", "pytorch"))
    return f"{same} of {total} greedy texts in f32 the same"


def write_prompts(context):
    """Prompts of several lengths that are continued greedily, and two whose continuation is given: in bf16 a greedy text
    may take another turn, and then its figures are others."""
    with open(PROMPTS) as file:
        texts = [json.loads(line)["prompt"] for line in file]
    long = "\n".join(texts)
    sizes = [40, 300, 900] if context.dry_run else [40, 700, 1500, 5000]
    lines = [{"id": f"greedy-{size}", "category": "greedy", "prompt": long[:size]} for size in sizes]
    lines += [
        {"id": f"given-{index}", "category": "given", "prompt": text, "answer": long[1000 + 80 * index :][:60]}
        for index, text in enumerate(texts[:2])
    ]
    path = context.scratch / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def one_checkpoint(context, head_dim, sizes, prompts, left):
    folder = context.scratch / f"head-dim-{head_dim}"
    ids = ["--vocab", str(VOCAB), "--bos", str(BOS), "--eos", str(EOS), "--seed", str(head_dim)]
    run_json(torch_program("make", "--out", str(folder), "--head-dim", str(head_dim), *sizes, *ids), left())
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")

    def record(device, weights):
        out = context.scratch / f"run-{head_dim}-{device}-{weights}"
        command = [context.program("layerscope"), "record", folder, "--prompts", prompts, "--out", out, "--json"]
        command += ["--device", device, "--weights", weights, "--max-new-tokens", "24", "--failure-cases", "0"]
        shown = run_json(command, left())
        if failed := shown["show"]["manifest"]["prompts"]["failed"]:
            raise Failed(f"prompts failed on {device} with {weights} weights: {failed}")
        return shown["show"]["prompts"]

    expected = record("cpu", "f32")
    # The run folder of a device that is the CPU is the same: it would be resumed, not made.
    found = expected if context.device == "cpu" else record(context.device, "f32")
    return {
        "f32": compare(found, expected), "native": compare(record(context.device, "native"), expected),
        "pytorch": beside_pytorch(context, folder, found, left()),
    }


def beside_pytorch(context, folder, found, limit):
    sequences = context.scratch / f"{folder.name}-sequences.json"
    sequences.write_text(json.dumps([{key: prompt[key] for key in ("id", "prompt_tokens", "generated")} for prompt in found]))
    command = torch_program("figures", "--model", str(folder), "--sequences", str(sequences), "--device", context.device)
    theirs = run_json(command, limit)["sequences"]
    # Texts that were given are not PyTorch's to choose.
    for sequence in theirs:
        ours = by_id(found)[sequence["id"]]["generated"]
        sequence["generated"] = ours if sequence["id"].startswith("given") else sequence["greedy"]
    keys = ["id", "generated", *MASSES, "prompt_entropy"]
    return compare([{key: prompt[key] for key in keys} for prompt in found], theirs)
