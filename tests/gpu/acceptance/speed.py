"""Times: ours, PyTorch's beside them, what statistics cost, what the frontier costs. One after the other, nothing beside."""

import statistics
from dataclasses import dataclass

from acceptance.programs import Failed, countdown, run_json, run_json_lines, torch_program


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    shape: str
    layers: int | None
    policies: str
    # Prompt lengths, the last of them the longest, which fills a context of 128K with the new tokens, and how often each is measured.
    lengths: dict
    new_tokens: int
    # The length at which statistics and the frontier are measured.
    middle: int
    steps: int


PAPER = Plan(
    "llama-3.1-8b", None, "full,speed:24+bos,pop:24,swiftkv:24,sliminfer", {8_192: 3, 32_768: 3, 130_944: 1}, 128, 32_768, 8
)
# The same with repeats as in the paper, where there is time.
PAPER_IN_FULL = Plan(
    "llama-3.1-8b", None, "full,speed:24+bos,pop:24,swiftkv:24,sliminfer", {8_192: 5, 32_768: 5, 130_944: 5}, 128, 32_768, 16
)
SMALL = Plan("smollm2-135m", 4, "full,speed:3+bos,pop:3,swiftkv:3,sliminfer:1=64", {64: 1, 128: 1, 256: 1}, 8, 128, 2)


def plan(context):
    if context.dry_run:
        return SMALL
    return PAPER_IN_FULL if context.budget >= 1500 else PAPER


def bench(context, lengths, policies, repeats, limit, *more):
    """`layerscope bench` on random weights in bf16: its results."""
    now = plan(context)
    command = [context.program("layerscope"), "bench", "--shape", now.shape, "--shape-weights", "bf16"]
    command += ["--layers", now.layers] if now.layers else []
    command += ["--device", context.device, "--policies", policies, "--lengths", ",".join(map(str, lengths))]
    command += ["--new-tokens", now.new_tokens, "--repeats", repeats, "--json", *more]
    report = run_json(command, limit)
    context.figures.setdefault("model", report["model"])
    if not report["results"]:
        raise Failed(f"interrupted after {limit:.0f} s, before there was a result")
    return report


def policies(context, limit, lengths):
    """The policies at these lengths."""
    now = plan(context)
    report = bench(context, lengths, now.policies, min(now.lengths[length] for length in lengths), limit)
    context.figures.setdefault("bench", []).extend(report["results"])
    words = [f"{row['length']:,}: {row['ttft_s']['median']:.3g} s, {1e3 * row['tpot_s']['median']:.3g} ms" for row in
             report["results"] if row["policy"] == "full"]
    return "full depth, TTFT and TPOT at " + "; ".join(words) + (" (interrupted)" if report["interrupted"] else "")


def shorter_lengths(context, limit):
    """The policies at all lengths but the longest."""
    return policies(context, limit, list(plan(context).lengths)[:-1])


def longest(context, limit):
    """The policies at the longest length: the paper's figure."""
    return policies(context, limit, list(plan(context).lengths)[-1:])


def with_statistics(context, limit):
    """The full model without and then with attention statistics."""
    now = plan(context)
    repeats, left = now.lengths[now.middle], countdown(limit)
    times = {}
    for on in (False, True):
        report = bench(context, [now.middle], "full", repeats, left(), *(["--statistics"] if on else []))
        times[on] = report["results"][0]
    ratio = lambda key: times[True][key]["median"] / times[False][key]["median"]
    context.figures["statistics"] = {
        "length": now.middle, "repeats": repeats, "ttft_ratio": ratio("ttft_s"), "tpot_ratio": ratio("tpot_s"),
        **{f"{key}_{name}": times[on][key] for key in ("ttft_s", "tpot_s") for on, name in ((False, "off"), (True, "on"))},
    }
    return f"TTFT × {ratio('ttft_s'):.3f}, TPOT × {ratio('tpot_s'):.3f} at {now.middle:,} tokens"


def frontier(context, limit):
    """What the exact frontier costs: a recorded run, then every cutoff with both anchors and attention knockout."""
    now = plan(context)
    tokens, steps = (now.middle, 64) if not context.dry_run else (64, 4)
    command = [context.program("recording_cost"), f"shape:{now.shape}", tokens, steps, "native", context.device, "json"]
    rounds, _ = run_json_lines(command, limit)
    # The first is for warming up, where there are others.
    counted = rounds[1:] or rounds
    median = {key: statistics.median(each[key] for each in counted) for key in counted[0] if key.endswith("_s")}
    context.figures["frontier"] = {"length": tokens, "steps": steps, "rounds": len(counted)} | median
    return (
        f"{median['frontier_s']:.3g} s beside a prefill of {median['prefill_s']:.3g} s at {tokens:,} tokens, "
        f"{len(counted)} rounds"
    )


def pytorch(context, limit):
    """The same shape in transformers, with PyTorch's attention."""
    now = plan(context)
    lengths = ",".join(f"{length}:{repeats}" for length, repeats in now.lengths.items())
    command = torch_program("speed", "--shape", now.shape, "--lengths", lengths, "--steps", str(now.steps))
    command += ["--device", context.device, *(["--layers", str(now.layers)] if now.layers else [])]
    rows, output = run_json_lines(command, limit)
    context.figures["pytorch"] = rows
    words = [f"{row['length']:,}: " + (row.get("error") or f"{row['ttft_s']:.3g} s, {1e3 * row['tpot_s']:.3g} ms") for row in rows]
    missing = len(now.lengths) - len(rows)
    return "TTFT and TPOT at " + "; ".join(words) + (f"; {missing} lengths missing: {output.last_words()}" if missing else "")


def machine(context, limit):
    """What copies and products reach at best here."""
    found = run_json(torch_program("machine", "--device", context.device), limit)
    context.figures["machine"].update(found)
    return (
        f"{found['copy_bytes_per_s'] / 1e9:,.0f} GB/s copied (read and written), "
        f"{found['matmul_flops_per_s'] / 1e12:,.3g} TFLOP/s in bf16"
    )
