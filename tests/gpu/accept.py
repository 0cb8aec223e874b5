#!/usr/bin/env python3
"""Acceptance on a machine with an NVIDIA GPU: are the figures right, and how fast is it?

    tests/gpu/pack.sh layerscope-gpu.tar.xz                  # where Rust and nvcc are; no GPU needed
    tar xf layerscope-gpu.tar.xz && cd layerscope-gpu        # on the machine with the GPU
    python3 tests/gpu/accept.py                              # under eight minutes; writes docs/benchmarks/….json
    python3 tests/gpu/page.py                                # tables and plots of all of them

Needs Python 3.10 with torch (for CUDA), transformers and numpy. Sections that check figures run side by side, then those
that measure time run one after the other. Each has a time limit; one that fails does not keep the others from running, and
what the budget (--budget, seconds) no longer allows is skipped and named. `--dry-run` runs on the CPU on small sizes whatever can
be run there: a test of this script. From 1,500 s on, every length is measured five times, as in the paper. The GPU is the first,
or the one that CUDA_VISIBLE_DEVICES names.

Exit code: 0 where every bar was reached, 1 where one was not or a section failed, 3 where something was not measured.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent))

from acceptance import on_device, parity, speed  # noqa: E402
from acceptance.bars import bars, sentence  # noqa: E402
from acceptance.programs import ROOT, Absent, Context, Failed, environment, find_programs  # noqa: E402


BUDGET = 450


@dataclass(frozen=True)
class Section:
    """A part of the acceptance. `needs` seconds are the least that it makes sense with, `limit` what it may take of a budget of
    `BUDGET` seconds; more where the budget is larger."""

    name: str
    title: str
    needs: float
    limit: float
    work: Callable


MACHINE = Section("machine", "what the machine reaches", 5, 60, speed.machine)
# Side by side: none of them measures time.
FIGURES = [
    Section("tests", "tests on the GPU", 10, 90, on_device.tests_on_device),
    Section("demo", "embedded model, GPU beside CPU", 5, 60, parity.demo),
    Section("parity", "random models, GPU beside CPU and PyTorch", 20, 90, parity.checkpoint),
    Section("sanitizer", "compute-sanitizer", 15, 60, on_device.sanitizer),
]
# One after the other, the most telling first.
TIMES = [
    Section("bench", "policies", 20, 120, speed.shorter_lengths),
    Section("longest", "policies at the longest length", 45, 160, speed.longest),
    Section("pytorch", "PyTorch", 25, 120, speed.pytorch),
    Section("frontier", "exact frontier", 15, 60, speed.frontier),
    Section("statistics", "statistics on and off", 20, 70, speed.with_statistics),
]


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="layerscope-acceptance-") as scratch:
        context = Context(
            device="cpu" if arguments.dry_run else "cuda", dry_run=arguments.dry_run, budget=arguments.budget,
            programs=find_programs(arguments.layerscope, arguments.bin), scratch=Path(scratch),
        )
        context.figures["machine"] = this_machine()
        results = []
        out = arguments.out
        for group in [[MACHINE], FIGURES, *[[section] for section in TIMES]]:
            wanted = [section for section in group if not arguments.only or section.name in arguments.only]
            with ThreadPoolExecutor(max_workers=max(len(wanted), 1)) as pool:
                results += pool.map(lambda section: carry_out(section, context), wanted)
            record = the_record(context, results)
            # After each group, so that what was measured is there whatever comes.
            if out := out or default_out(record):
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(record, indent=1) + "\n")
    print_summary(record, out)
    sys.exit(exit_code(record))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write (default: docs/benchmarks/GPU-DATE.json)")
    parser.add_argument("--budget", type=float, default=BUDGET, help=f"seconds that all of it may take (default: {BUDGET})")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, on small sizes")
    parser.add_argument("--only", type=lambda names: names.split(","), help="sections between commas: "
                        + ", ".join(section.name for section in [MACHINE, *FIGURES, *TIMES]))
    parser.add_argument("--layerscope", type=lambda path: Path(path).resolve(), help="the program, if not where it is looked for")
    parser.add_argument("--bin", type=Path, help="folder with our programs (default: bin, else cargo's target folder)")
    return parser.parse_args()


def carry_out(section, context):
    """Runs a section within its limit and what is left of the budget; how it went."""
    start, remaining = time.monotonic(), context.remaining()
    if remaining < section.needs:
        status, note = "skipped", f"{remaining:.0f} s of {context.budget:.0f} s are left, it needs {section.needs:.0f}"
    else:
        try:
            status, note = "done", section.work(context, min(section.limit * max(1.0, context.budget / BUDGET), remaining))
        except Absent as reason:
            status, note = "skipped", str(reason)
        except Failed as reason:
            status, note = "failed", str(reason)
        except Exception as error:  # noqa: BLE001  whatever it is, the other sections are to run
            status, note = "failed", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    print(f"[{time.monotonic() - context.started:4.0f} s] {section.title}: {status}, {seconds:.0f} s. {note}", flush=True)
    return {"name": section.name, "title": section.title, "status": status, "seconds": round(seconds, 1), "note": note}


def the_record(context, results):
    """What is written: machine, date, commit, sections, bars and figures."""
    rows = bars(context.figures, speed.plan(context))
    for row in rows:
        # Whether figures agree shows on small sizes too; times say nothing there.
        if context.dry_run and row["kind"] == "times" and row["status"] != "not measured":
            row["status"] = "dry run"
    return {
        "schema": 1, "dry_run": context.dry_run, "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(), "budget_s": context.budget, "seconds": round(time.monotonic() - context.started, 1),
        "sections": results, "bars": rows, **context.figures,
    }


def commit():
    """The commit that the programs were built from: the pack has it in a file, a checkout knows it itself."""
    path = ROOT / "commit.json"
    if path.exists():
        return json.loads(path.read_text())
    git = lambda *words: first_line(["git", "-C", str(ROOT), *words])
    return {"id": git("rev-parse", "HEAD"), "date": git("log", "-1", "--format=%cI"),
            "changed": bool(git("status", "--porcelain", "--untracked-files=no"))}


def this_machine():
    """What can be told without PyTorch."""
    query = "name,driver_version,memory.total,power.limit,clocks.max.sm"
    which = ["--id=" + number] if (number := os.environ.get("CUDA_VISIBLE_DEVICES")) else []
    line = first_line(["nvidia-smi", *which, f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    found = {"cpu": processor(), "python": platform.python_version()}
    if line:
        name, driver, memory, power, clock = [part.strip() for part in line.split(",")]
        found |= {"gpu": name, "driver": driver, "memory_mib": memory, "power_limit_w": power, "clock_mhz": clock}
    return found


def processor():
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*: (.*)$", text, re.M)
    return found[1] if found else platform.machine()


def first_line(command):
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment(), check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(output.stdout.splitlines()), "").strip()


def default_out(record):
    """Where measurements go unless told otherwise; a dry run leaves nothing."""
    gpu = record["machine"].get("gpu")
    if record["dry_run"] or not gpu:
        return None
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return ROOT / "docs" / "benchmarks" / f"{slug}-{record['measured'][:10]}.json"


def print_summary(record, out):
    print(f"\n{record['machine'].get('gpu', 'no GPU')}, commit {record['commit']['id'][:10] or 'unknown'}, "
          f"{record['seconds']:.0f} s{', dry run: times say nothing' if record['dry_run'] else ''}")
    for row in record["bars"]:
        print(sentence(row))
    found = [row["status"] for row in record["bars"]]
    counts = ", ".join(f"{found.count(status)} {status}" for status in sorted(set(found)))
    print(f"bars: {counts}; " + (f"written: {out}" if out else "nothing written"))


def exit_code(record):
    found = {row["status"] for row in record["bars"]}
    if any(section["status"] == "failed" for section in record["sections"]) or "failed" in found:
        return 1
    return 3 if not record["dry_run"] and "not measured" in found else 0


if __name__ == "__main__":
    main()
