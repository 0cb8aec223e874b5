"""Where the programs are, and running them with a time limit."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class Failed(Exception):
    """A section could not do its work; the text says why."""


class Absent(Exception):
    """A section has nothing to work with here; the text says what is missing."""


@dataclass
class Output:
    """What a program left."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool

    def last_words(self):
        """The end of what it said, for a message."""
        lines = [line for line in (self.stderr + self.stdout).splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-500:]


@dataclass
class Context:
    """What all sections share."""

    device: str
    dry_run: bool
    budget: float
    programs: dict
    scratch: Path
    started: float = field(default_factory=time.monotonic)
    figures: dict = field(default_factory=dict)

    def remaining(self):
        return self.budget - (time.monotonic() - self.started)

    def program(self, name):
        """Path of one of our programs."""
        path = self.programs.get(name)
        if path is None:
            raise Absent(f"{name} is not here")
        return str(path)


def library_folders():
    """Folders with the libraries of CUDA: those that PyTorch brings, and the toolkit's."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    candidates = [packages / "cu13" / "lib", packages / "cublas" / "lib", Path("/usr/local/cuda/lib64")]
    return [str(path) for path in candidates if list(path.glob("libcublas.so*"))]


def environment(**more):
    """Ours, with the libraries of CUDA to be found."""
    folders = [os.environ.get("LD_LIBRARY_PATH", ""), *library_folders()]
    paths = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)), "PYTHONPATH": str(Path(__file__).parents[1])}
    return {**os.environ, **paths, **more}


def run(command, limit, **variables):
    """Runs a program. At the limit it is interrupted as by Ctrl-C, so that it can print what it has, then killed."""
    start = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        stdin=subprocess.DEVNULL, env=environment(**variables), start_new_session=True,
    )
    timed_out = False
    try:
        stdout, stderr = process.communicate(timeout=max(limit, 1))
    except subprocess.TimeoutExpired:
        timed_out = True
        stdout, stderr = stop(process)
    except BaseException:
        stop(process)
        raise
    return Output(process.returncode, stdout, stderr, time.monotonic() - start, timed_out)


def stop(process):
    """Ends a program and what it has started; what it printed."""
    for sign, patience in [(signal.SIGINT, 8), (signal.SIGKILL, None)]:
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            pass
        try:
            return process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
    return "", ""


def run_json(command, limit, **variables):
    """The one JSON object that a program prints; an incomplete one where it was interrupted and says so."""
    output = run(command, limit, **variables)
    try:
        return json.loads(output.stdout)
    except json.JSONDecodeError:
        pass
    if output.timed_out:
        raise Failed(f"no result within {limit:.0f} s: {command_name(command)}")
    raise Failed(f"{command_name(command)} ended with {output.code}: {output.last_words()}")


def run_json_lines(command, limit, **variables):
    """The JSON objects that a program prints, one a line, as far as it came; how it ended."""
    output = run(command, limit, **variables)
    lines = [line for line in output.stdout.splitlines() if line.startswith("{")]
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    if not found:
        why = f"no result within {limit:.0f} s" if output.timed_out else output.last_words()
        raise Failed(f"{command_name(command)} ended with {output.code}: {why}")
    return found, output


def command_name(command):
    """The program and its first words."""
    return " ".join([Path(str(command[0])).name, *map(str, command[1:3])])


def countdown(limit):
    """A function that tells the seconds left."""
    end = time.monotonic() + limit
    return lambda: end - time.monotonic()


def torch_program(*arguments):
    """Command line of a part that runs in PyTorch: a program of its own, since PyTorch keeps the GPU memory it took."""
    for package in ["torch", "transformers"]:
        if importlib.util.find_spec(package) is None:
            raise Absent(f"{package} is not installed for {sys.executable}")
    return [sys.executable, "-m", "acceptance.with_torch", *arguments]


def find_programs(named, folder):
    """Paths of our programs: in the pack's folder `bin`, else where cargo puts them."""
    candidates = [folder] if folder else [ROOT / "bin"]
    if named:
        candidates += [named.parent, named.parent / "examples"]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    candidates += [target / profile / sub for profile in ("release", "debug") for sub in ("", "examples")]
    programs = {"layerscope": named} if named else {}
    for name in ["layerscope", "recording_cost", "kernels-tests", "families", "policies"]:
        found = [candidate / name for candidate in candidates if (candidate / name).is_file()]
        if found:
            programs.setdefault(name, found[0].resolve())
    return programs
