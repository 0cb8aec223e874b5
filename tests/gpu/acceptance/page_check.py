"""Tests of the page on made-up figures, in a temporary repository, and of the table in docs/gpu.md."""

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from acceptance.bars import bars
from acceptance.speed import PAPER


def check(make):
    """Runs `make` where nothing was measured, where something was, and after the code and the documentation changed."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        commit = repository(root)
        page = root / "docs" / "benchmarks" / "README.md"

        def made():
            make(root)
            return page.read_text()

        assert made().splitlines()[2] == "Nothing has been measured on a GPU yet."
        write(page.with_name("dry.json"), measurement(commit) | {"dry_run": True})
        write(page.with_name("cpu.json"), [{"processor": "Made-up processor", "rows": []}])
        assert "Nothing has been measured" in made(), "dry runs are no measurements, nor are those of processors"
        write(page.with_name("card.json"), measurement(commit) | {"remarks": ["What is odd here."]})
        text = made()
        for words in ["\n- What is odd here.\n", "## Made-up card", "has not changed since", "speed:24+bos", "1.32", "| **failed** |", "out of memory", "Policies"]:
            assert words in text, words
        for picture in ["card-policies.svg", "card-pytorch.svg"]:
            assert f"({picture})" in text
            drawing = ElementTree.parse(page.with_name(picture)).getroot()
            assert len(list(drawing.iter())) > 30, picture
        add(root, "docs/text.md")
        assert "has not changed since" in made()
        add(root, "crates/code.rs")
        assert "**Stale.** Measured at commit" in made()
        write(page.with_name("card.json"), measurement("0" * 40))
        assert "is not known here" in made()
        sparse = {key: value for key, value in measurement(commit).items() if key not in ("bench", "pytorch", "statistics", "frontier")}
        write(page.with_name("card.json"), sparse)
        assert "Not measured." in made()


def check_table(root):
    """The table of what fits is the one that docs/fits.py makes."""
    table = subprocess.run([sys.executable, root / "docs" / "fits.py", "--table"], capture_output=True, text=True, check=True).stdout
    assert table in (root / "docs" / "gpu.md").read_text(), "docs/gpu.md has another table than `python3 docs/fits.py --table`"


def measurement(commit):
    """A record as `accept.py` writes it."""
    figures = {
        "machine": {"gpu": "Made-up card", "driver": "580.0", "torch": "2.0", "cuda": "13.0", "copy_bytes_per_s": 4e12,
                    "matmul_flops_per_s": 7e14, "cpu": "Made-up processor"},
        "model": "llama-3.1-8b",
        "bench": [row(policy, length) for length in PAPER.lengths for policy in PAPER.policies.split(",")],
        "pytorch": [
            {"length": length, "ttft_s": length * 1e-4, "tpot_s": 0.02, "attention": "flash", "torch": "2.0", "transformers": "5.0"}
            for length in (8_192, 32_768)
        ] + [{"length": 131_072, "error": "out of memory", "torch": "2.0", "transformers": "5.0"}],
        "statistics": {"length": 32_768, "ttft_ratio": 1.01, "tpot_ratio": 1.05},
        "frontier": {"length": 32_768, "steps": 64, "rounds": 4, "frontier_s": 1.0, "prefill_s": 2.0},
    }
    sections = [{"name": "bench", "title": "policies", "status": "done", "seconds": 60.0, "note": "a | b"}]
    return {
        "schema": 1, "dry_run": False, "measured": "2000-01-01T00:00:00+00:00", "sections": sections, "budget_s": 450, "seconds": 400,
        "commit": {"id": commit, "date": "2000-01-01T00:00:00+00:00", "changed": False},
        "bars": bars(figures, PAPER), **figures,
    }


def row(policy, length):
    """As `layerscope bench` has it."""
    ttft, kv = (1.0, 1.0) if policy == "full" else (0.76, 0.75)
    return {
        "policy": policy, "length": length, "new_tokens": 128, "repeats": 3, "ttft_s": {"median": ttft * length * 1e-4},
        "tpot_s": {"median": 0.01 * kv}, "kv_bytes": int(kv * length * 131_072), "peak_bytes": 2 * length * 131_072,
        "ttft_ratio": ttft, "ttft_ratio_model": kv, "tpot_ratio": kv, "tpot_ratio_model": 0.9,
    }


def write(path, record):
    path.write_text(json.dumps(record))


def repository(root):
    git(root, "init", "-q")
    return add(root, "crates/first.rs")


def add(root, path):
    """Commits a new file; the commit."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("made up\n")
    git(root, "add", path)
    git(root, "-c", "user.name=check", "-c", "user.email=check@localhost", "-c", "commit.gpgsign=false", "commit", "-q", "-m", path)
    return git(root, "rev-parse", "HEAD")


def git(root, *words):
    return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout.strip()
