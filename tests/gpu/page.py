#!/usr/bin/env python3
"""Makes docs/benchmarks/README.md: tables and plots of every measurement there, and whether the code has changed since.

    python3 tests/gpu/page.py             # reads docs/benchmarks/*.json, writes README.md and the plots beside them
    python3 tests/gpu/page.py --check     # tests this script on made-up figures in a temporary folder, and docs/gpu.md's table

A file may have `"remarks"`, sentences written by hand: why something failed, what was done about it. They stand above its tables.
Needs nothing but Python 3.10 and git.
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from acceptance import plots  # noqa: E402
from acceptance.bars import number  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
INTRODUCTION = """\
`tests/gpu/accept.py` measures, `tests/gpu/page.py` makes this page; [docs/gpu.md](../gpu.md) tells how. Times are medians of one
sitting: TTFT from a prompt's token ids to the first token, TPOT a step from token to token, batch 1. `speed:24+bos` is the full
model whose prefill stops after 24 of 32 layers, but for position 0. `pop` and `swiftkv` are efficiency-faithful, quality not
representative: no model is trained for them here. All weights are random, which speed does not notice.
"""
NOTHING = """\
Nothing has been measured on a GPU yet.

The kernels are compiled for GPUs and run by the tests in an emulation on the CPU, which says whether they are right, and
nothing about how fast they are. Once `tests/gpu/accept.py` has run on a machine with a GPU, this page shows for each machine:

- whether our tests, compute-sanitizer and the comparisons with the CPU and with PyTorch pass there;
- TTFT, TPOT and KV of Llama 3.1 8B's shape in bf16 at 8K, 32K and 128K tokens, full and with three quarters of the layers
  (`speed`, `pop`, `swiftkv`), beside what the cost model says and beside PyTorch in the same sitting;
- the share of the memory bandwidth that decoding reaches;
- what attention statistics cost, and what the exact frontier costs beside one prefill.

[docs/gpu.md](../gpu.md) tells how to run it.
"""


def main():
    if sys.argv[1:] == ["--check"]:
        import acceptance.page_check

        acceptance.page_check.check(make)
        acceptance.page_check.check_table(ROOT)
        print("the page of made-up figures and the table in docs/gpu.md are as they should be")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        print(make(ROOT))


def make(root):
    """Writes the page and its plots into the checkout `root`; a sentence about it."""
    folder = root / "docs" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        # Those of processors are lists, by machine, and have a page of their own.
        if isinstance(record, dict) and not record["dry_run"]:
            records.append((path, record))
    records.sort(key=lambda pair: pair[1]["measured"], reverse=True)
    parts = ["# Benchmarks on GPUs\n", INTRODUCTION if records else NOTHING]
    for path, record in records:
        parts.append(section(path, record, staleness(root, record["commit"])))
    page = folder / "README.md"
    page.write_text("\n".join(parts))
    return f"{page}: {len(records)} measurements" if records else f"{page}: nothing has been measured yet"


def staleness(root, commit):
    """A sentence: is what was measured the code of now?"""
    measured = f"Measured at commit {commit['id'][:10] or 'unknown'} ({commit['date'][:10]})"
    if commit.get("changed"):
        measured += " with changes that were not committed"
    last = git(root, "log", "-1", "--format=%H", "--", "crates")
    if last is None or not commit["id"] or git(root, "cat-file", "-e", commit["id"]) is None:
        return f"{measured}; whether the code has changed since is not known here."
    if git(root, "merge-base", "--is-ancestor", last, commit["id"]) is None:
        return f"**Stale.** {measured}; the code has changed since."
    return f"{measured}; the code has not changed since."


def git(root, *words):
    """What git prints; `None` where it fails."""
    try:
        done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def section(path, record, stale):
    """One measurement."""
    machine = record["machine"]
    rows = record["bars"]
    counts = ", ".join(f"{sum(row['status'] == status for row in rows)} {status}" for status in ("passed", "failed", "not measured"))
    parts = [
        f"## {machine.get('gpu', 'unknown GPU')}, {record['measured'][:10]}\n", f"{stale}\n", machine_sentence(machine), *remarks(record),
        f"\n### What has to be reached: {counts}\n", bars_table(rows),
    ]
    if record.get("bench"):
        parts += ["\n### Policies\n", bench_table(record), *picture(path, "policies", policies_plot(record))]
    if record.get("pytorch"):
        parts += ["\n### Beside PyTorch\n", pytorch_table(record), *picture(path, "pytorch", pytorch_plot(record))]
    parts += ["\n### Statistics and frontier\n", costs(record)]
    parts += ["\n### What ran\n", table(["section", "", "seconds", ""], [
        [part["title"], part["status"], f"{part['seconds']:.0f}", part["note"]] for part in record["sections"]])]
    return "\n".join(parts) + f"\n\nAll figures: [{path.name}]({path.name})\n"


def remarks(record):
    """What whoever looked at the figures wrote into the file, a sentence each."""
    return ["", *[f"- {sentence}" for sentence in record["remarks"]]] if record.get("remarks") else []


def machine_sentence(machine):
    words = [f"driver {machine['driver']}"] if "driver" in machine else []
    words += [f"PyTorch {machine['torch']} (CUDA {machine['cuda']})"] if "torch" in machine else []
    words += [f"copies at {machine['copy_bytes_per_s'] / 1e12:.2f} TB/s (read and written)"] if "copy_bytes_per_s" in machine else []
    words += [f"bf16 products at {machine['matmul_flops_per_s'] / 1e12:.0f} TFLOP/s"] if "matmul_flops_per_s" in machine else []
    words += [f"processor {machine['cpu']}"] if "cpu" in machine else []
    sentence = ", ".join(words)
    return sentence[:1].upper() + sentence[1:] + "."


def table(head, rows):
    cell = lambda words: str(words).replace("|", "\\|").replace("\n", " ")
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def bars_table(rows):
    value = lambda row: "–" if row["value"] is None else number(row["value"]) + row["unit"]
    limit = lambda row: "" if row["limit"] is None else f"{row['comparison']} {number(row['limit'])}"
    status = {"passed": "passed", "failed": "**failed**"}
    return table(["", "measured", "to be", "", ""], [
        [row["name"], value(row), limit(row), status.get(row["status"], row["status"]), row.get("note", "")] for row in rows])


def bench_table(record):
    def line(row):
        peak = f"{row['peak_bytes'] / 2**30:.1f}" if row.get("peak_bytes") else "–"
        gain = lambda ratio: "–" if row.get(ratio) is None else f"{1 / row[ratio]:.2f}"
        return [
            f"{row['length']:,}", row["policy"], f"{row['ttft_s']['median']:.3f}", gain("ttft_ratio"), gain("ttft_ratio_model"),
            f"{1e3 * row['tpot_s']['median']:.2f}", gain("tpot_ratio"), gain("tpot_ratio_model"),
            f"{row['kv_bytes'] / 2**30:.2f}", peak, row["repeats"],
        ]

    head = ["prompt", "policy", "TTFT s", "gain", "predicted", "TPOT ms", "gain", "predicted", "KV GiB", "peak GiB", "repeats"]
    return f"{record.get('model', '')}, bf16.\n\n" + table(head, map(line, record["bench"]))


def policies_of(record):
    return list(dict.fromkeys(row["policy"] for row in record["bench"]))


def by_length(record, figure, policies):
    """(name of the length, {policy: figure}) for each length."""
    lengths = sorted({row["length"] for row in record["bench"]})
    return [
        (plots.length_name(length), {row["policy"]: figure(row) for row in record["bench"]
                                     if row["length"] == length and row["policy"] in policies})
        for length in lengths
    ]


def policies_plot(record):
    policies = policies_of(record)
    cut = [row for row in record["bench"] if row["policy"].startswith("speed") and row.get("ttft_ratio_model")]
    limit = max((1 / row["ttft_ratio_model"] for row in cut), default=None)
    mark = (limit, f"limit of speed: {limit:.3f}") if limit else None
    gain = lambda key: by_length(record, lambda row: 1 / row[key] if row.get(key) else None, policies)
    panels = [
        plots.bars("TTFT gain over full", "×", gain("ttft_ratio"), policies, mark),
        plots.bars("TPOT gain over full", "×", gain("tpot_ratio"), policies),
        plots.bars("KV", "GiB", by_length(record, lambda row: row["kv_bytes"] / 2**30, policies), policies),
    ]
    return plots.figure("TTFT gain, TPOT gain and KV of each policy by prompt length", panels, policies)


def beside(record):
    """{length: (our row of the full model, PyTorch's)}"""
    ours = {row["length"]: row for row in record.get("bench", []) if row["policy"] == "full"}
    return {row["length"]: (ours.get(row["length"]), row) for row in record["pytorch"]}


def pytorch_table(record):
    def line(length, ours, theirs):
        if "error" in theirs:
            return [f"{length:,}", "–", theirs["error"], "–", "–", "–", "–", ""]
        ttft, tpot = (ours[key]["median"] if ours else None for key in ("ttft_s", "tpot_s"))
        show = lambda value, unit=1.0: "–" if value is None else f"{unit * value:.3f}"
        ratio = lambda a, b: "–" if a is None else f"{a / b:.2f}"
        return [
            f"{length:,}", show(ttft), show(theirs["ttft_s"]), ratio(ttft, theirs["ttft_s"]), show(tpot, 1e3),
            show(theirs["tpot_s"], 1e3), ratio(tpot, theirs["tpot_s"]), theirs["attention"],
        ]

    first = record["pytorch"][0]
    about = f"PyTorch {first['torch']}, transformers {first['transformers']}, `sdpa` attention, `DynamicCache`, full depth."
    head = ["prompt", "TTFT s, ours", "PyTorch's", "ours/theirs", "TPOT ms, ours", "PyTorch's", "ours/theirs", "its attention"]
    return f"{about}\n\n" + table(head, [line(length, *pair) for length, pair in sorted(beside(record).items())])


def pytorch_plot(record):
    pairs = beside(record)
    series = ["layerscope", "PyTorch"]
    lengths = sorted(pairs)

    def found(key, unit):
        ours = {length: unit * pair[0][key]["median"] for length, pair in pairs.items() if pair[0]}
        theirs = {length: unit * pair[1][key] for length, pair in pairs.items() if key in pair[1]}
        return {"layerscope": ours, "PyTorch": theirs}

    panels = [
        plots.lines("TTFT", "s", lengths, found("ttft_s", 1.0), series, logarithmic=True),
        plots.lines("TPOT", "ms", lengths, found("tpot_s", 1e3), series),
    ]
    return plots.figure("TTFT and TPOT of the full model, ours and PyTorch's, by prompt length", panels, series)


def costs(record):
    """What statistics and the frontier cost, in sentences."""
    parts = []
    if found := record.get("statistics"):
        parts.append(
            f"With the attention statistics of every decode step TTFT takes {found['ttft_ratio']:.3f} times as long and TPOT "
            f"{found['tpot_ratio']:.3f} times, at {found['length']:,} tokens."
        )
    if found := record.get("frontier"):
        parts.append(
            f"The exact frontier of every cutoff with both anchors, with attention knockout, takes {found['frontier_s']:.3g} s at "
            f"{found['length']:,} tokens and {found['steps']} decode steps, where one recorded prefill takes {found['prefill_s']:.3g} s."
        )
    return " ".join(parts) or "Not measured."


def picture(path, name, drawing):
    """Writes a plot beside the measurement; the line that shows it."""
    file = path.with_name(f"{path.stem}-{name}.svg")
    file.write_text(drawing)
    return [f"\n![{drawing.split('<title>')[1].split('</title>')[0]}]({file.name})"]


if __name__ == "__main__":
    main()
