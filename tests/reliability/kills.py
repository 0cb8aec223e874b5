#!/usr/bin/env python3
"""Kills layerscope at random moments, and checks that nothing is lost and nothing broken looks whole.

    tests/reliability/kills.py --layerscope target/release/layerscope --kills 1000

Each command runs undisturbed first. Then it is started again and again and killed (SIGKILL) after a random share of that time.
`record` must resume to the tables of the undisturbed run, byte for byte. `report`, `capture` and `bench` replace a file: after
each kill the file is whole, the old one or the new one. Prints a line for each command; exits with 1 where anything was lost.
"""
import argparse
import json
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = REPOSITORY / "fixtures/tiny/layerscope-tiny.gguf"
PROMPTS = REPOSITORY / "fixtures/tiny/demo.jsonl"
TABLES = [f"{table}.parquet" for table in ("layers", "heads", "steps", "tokens", "frontier", "knockout", "prompts")]


def tables(run):
    return {table: (run / table).read_bytes() for table in TABLES if table != "prompts.parquet"}


def whole_json(path):
    return isinstance(json.loads(path.read_text()), dict)


def whole_html(path):
    return path.read_text().rstrip().endswith("</html>")


def whole_safetensors(path):
    data = path.read_bytes()
    (header,) = struct.unpack("<Q", data[:8])
    ends = [tensor["data_offsets"][1] for name, tensor in json.loads(data[8:8 + header]).items() if name != "__metadata__"]
    return len(data) == 8 + header + max(ends)


class Command:
    """A command that writes one file, which is whole at every moment that it is there."""

    def __init__(self, name, arguments, file, is_whole):
        self.name, self.arguments, self.file, self.is_whole = name, arguments, file, is_whole

    def undisturbed(self, run):
        run(self.arguments)
        return None

    def check(self, _):
        if self.file.exists():
            assert self.is_whole(self.file), f"{self.file} is incomplete"

    def begin_again(self):
        # Every other time there is no old file.
        if random.random() < 0.5 and self.file.exists():
            self.file.unlink()

    def check_in_the_end(self, run, _):
        run(self.arguments)
        assert self.is_whole(self.file), f"{self.file} is incomplete"


class Record:
    """A recording resumes; what was killed and resumed equals the undisturbed run."""
    name = "record"

    def __init__(self, folder):
        self.folder, self.calm = folder / "killed", folder / "calm"

    def to(self, out):
        return ["record", MODEL, "--prompts", PROMPTS, "--max-new-tokens", "16", "--out", out]

    @property
    def arguments(self):
        return self.to(self.folder)

    def undisturbed(self, run):
        run(self.to(self.calm))
        return tables(self.calm)

    def check(self, expected):
        if not (self.folder / "manifest.json").exists():
            return
        if json.loads((self.folder / "manifest.json").read_text())["status"] == "complete":
            assert tables(self.folder) == expected, "a complete run differs from an undisturbed one"
            shutil.rmtree(self.folder)

    def begin_again(self):
        pass

    def check_in_the_end(self, run, expected):
        run(self.arguments)
        assert tables(self.folder) == expected, "the resumed run differs from an undisturbed one"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layerscope", default="layerscope")
    parser.add_argument("--kills", type=int, default=1000, help="over all commands")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    print(f"seed {arguments.seed}")

    def start(command):
        return subprocess.Popen([arguments.layerscope, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(command):
        done = subprocess.run([arguments.layerscope, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        recorded = Record(scratch)
        html, page, measured = scratch / "report.html", scratch / "report.json", scratch / "bench.json"
        activations = scratch / "activations.safetensors"
        prompt = "Anna has a red box. " * 40
        commands = [
            recorded,
            Command("report (HTML)", ["report", recorded.calm, "--out", html], html, whole_html),
            Command("report (JSON)", ["report", recorded.calm, "--out", page], page, whole_json),
            Command("capture", ["capture", MODEL, "--hook", "blocks.*.hook_resid_post", "--hook", "blocks.*.attn.hook_pattern", "--prompt", prompt, "--max-new-tokens", "4", "--out", activations],
                    activations, whole_safetensors),
            Command("bench", ["bench", MODEL, "--lengths", "64", "--new-tokens", "8", "--repeats", "1", "--out", measured], measured,
                    whole_json),
        ]
        failures = 0
        for command in commands:
            begun = time.monotonic()
            expected = command.undisturbed(run)
            whole = time.monotonic() - begun
            wanted, kills, starts = arguments.kills // len(commands), 0, 0
            try:
                while kills < wanted:
                    command.begin_again()
                    process = start(command.arguments)
                    starts += 1
                    time.sleep(random.random() * whole)
                    if process.poll() is None:
                        process.send_signal(signal.SIGKILL)
                        kills += 1
                    process.wait()
                    command.check(expected)
                command.check_in_the_end(run, expected)
                print(f"{command.name}: {kills} kills in {starts} starts of {whole:.2f} s, nothing lost", flush=True)
            except (AssertionError, ValueError, OSError) as error:
                failures += 1
                print(f"{command.name}: after {kills} kills: {error}", flush=True)
    sys.exit(1 if failures else 0)


main()
