"""Runs the jobs of a sweep on a Ray cluster: a task per job, each with a GPU or a group of cores, calls the program.

    python -m layerscope.sweep_ray sweep.toml --out sweep
    python -m layerscope.sweep_ray sweep.toml --out sweep --address auto --workers 8 --gpus 1

The folder, the models and the prompt files must be where every node sees them. A job whose worker or node is lost runs again, wherever
there is room, and goes on where it stopped, since every finished prompt is kept; so does the same command after an interruption.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._binary import LayerscopeNotFound, find_binary

# Times that a job is tried anew after its worker was lost; each goes on where the one before stopped.
RETRIES = 5
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    asked = _asked(arguments)
    try:
        import ray
    except ImportError:
        print("layerscope: Ray is not installed; pip install 'layerscope[ray]'", file=sys.stderr)
        return 2
    try:
        binary = find_binary()
    except LayerscopeNotFound as error:
        print(f"layerscope: {error}", file=sys.stderr)
        return 2
    plan = _plan(binary, asked)
    if isinstance(plan, int):
        return plan
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failed = _run(ray, binary, asked, plan)
    except KeyboardInterrupt:
        print(f"layerscope: interrupted; the same command resumes {plan['out']}", file=sys.stderr)
        return INTERRUPTED
    for name, reason in failed.items():
        print(f"layerscope: {name}: {reason}", file=sys.stderr)
    collected = subprocess.run([*_sweep(binary, asked, plan["out"]), "--collect", *(["--json"] if asked.json else [])])
    return collected.returncode or (1 if failed else 0)


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m layerscope.sweep_ray",
        description="Runs the jobs of a sweep on a Ray cluster, then writes sweep.parquet and sweep.html.",
        epilog="Example: python -m layerscope.sweep_ray sweep.toml --out sweep --address auto",
    )
    parser.add_argument("file", help="sweep.toml")
    parser.add_argument("--out", metavar="FOLDER", help="folder that every node sees; what the file says where none is given")
    parser.add_argument("--address", help="address of the cluster, e.g. auto; one on this machine where none is given")
    parser.add_argument("--workers", type=_at_least(1, int), metavar="N", help="jobs at once; one per GPU, or else one per node")
    parser.add_argument("--cpus", type=_at_least(0, float), metavar="N", help="cores of each job; all, shared evenly, where nothing is said")
    parser.add_argument("--gpus", type=_at_least(0, float), metavar="N", help="GPUs of each job; 1 where the cluster has any")
    parser.add_argument("--device", help="where jobs run, as layerscope record takes it")
    parser.add_argument("--json", action="store_true", help="print one JSON object: the ranking")
    return parser.parse_args(arguments)


def _at_least(least: int, kind: Callable[[str], float]) -> Callable[[str], float]:
    """What argparse reads numbers with, within the bounds that `[ray]` of the file has."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        return value

    number.__name__ = kind.__name__
    return number


def _sweep(binary: str, asked: argparse.Namespace, out: str | None) -> list[str]:
    command = [binary, "sweep", os.path.abspath(asked.file)]
    return command + (["--out", out] if out else [])


def _plan(binary: str, asked: argparse.Namespace) -> dict[str, Any] | int:
    """The jobs and what `[ray]` of the file says, or the exit code of the program that says what is wrong."""
    out = os.path.abspath(asked.out) if asked.out else None
    listed = subprocess.run([*_sweep(binary, asked, out), "--dry-run", "--json"], stdout=subprocess.PIPE, encoding="utf-8")
    if listed.returncode:
        return listed.returncode
    return json.loads(listed.stdout)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _do(command: list[str], threads: int, job: int, log: str) -> int:
    """Does one job; its exit code."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        # The program ends with this process, so that no lost worker's job goes on beside its repetition.
        options = ["--job", str(job), "--with-parent", str(os.getpid())]
        command = [command[0], "--threads", str(threads), *command[1:], *options]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode


def _run(ray: Any, binary: str, asked: argparse.Namespace, plan: dict[str, Any]) -> dict[str, str]:
    """Does every job that is not done, and says why some failed, by name."""
    jobs = deque(job for job in plan["jobs"] if not job["done"])
    if not jobs:
        return {}
    total = len(jobs)
    mine = not ray.is_initialized()
    if mine:
        address = asked.address or plan["ray"]["address"] or os.environ.get("RAY_ADDRESS") or "local"
        # Nobody looks at the dashboard of a cluster that ends with this process.
        alone = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **alone)
    at_once, cpus, gpus = _shares(ray, asked, plan["ray"], total)
    command = _sweep(binary, asked, plan["out"]) + (["--device", asked.device] if asked.device else [])
    # A task holds its cores and GPUs only while it runs, so that a job that was lost with its node finds room on the others.
    do = ray.remote(_do).options(num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD")
    if not any(node["Resources"].get("CPU", 0.0) >= cpus and node["Resources"].get("GPU", 0.0) >= gpus for node in _alive(ray)):
        print(f"layerscope: no node has {cpus:g} cores and {gpus:g} GPUs; jobs wait for one that has", file=sys.stderr, flush=True)
    running: dict[Any, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    losses: Counter[str] = Counter()
    try:
        while jobs or running:
            while jobs and len(running) < at_once:
                job = jobs.popleft()
                running[do.remote(command, max(1, int(cpus)), job["job"], job["log"])] = job
            for reference in ray.wait(list(running))[0]:
                job = running.pop(reference)
                name = job["name"]
                reason, is_lost = _outcome(ray, reference, job)
                if is_lost:
                    losses[name] += 1
                    if losses[name] <= RETRIES:
                        print(f"layerscope: {name}: its worker was lost; it runs again", file=sys.stderr, flush=True)
                        jobs.append(job)
                        continue
                if reason:
                    failed[name] = reason
                done = total - len(jobs) - len(running)
                print(f"layerscope: {done} of {total}: {name}: {reason or 'done'}", file=sys.stderr, flush=True)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if mine:
            ray.shutdown()
    return failed


def _outcome(ray: Any, reference: Any, job: dict[str, Any]) -> tuple[str | None, bool]:
    """Why a job failed, none where it is done; and whether its worker was lost."""
    try:
        code = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return f"{error.cause}; its log is {job['log']}", False
    except ray.exceptions.RayError as error:
        return f"its worker was lost {RETRIES + 1} times ({type(error).__name__}); its log is {job['log']}", True
    return (f"it ended with exit code {code}; its log is {job['log']}" if code else None), False


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _shares(ray: Any, asked: argparse.Namespace, said: dict[str, Any], jobs: int) -> tuple[int, float, float]:
    """Number of jobs at once, and cores and GPUs of each."""
    nodes = [node["Resources"] for node in _alive(ray)]
    all_cpus, all_gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
    gpus = next((number for number in (asked.gpus, said["gpus"]) if number is not None), 1.0 if all_gpus else 0.0)
    # Cores of each node, and the jobs that it has GPUs for, or one; nodes that have none are left out.
    hosts = [(node.get("CPU", 1.0), int(node.get("GPU", 0.0) // gpus) if gpus else 1) for node in nodes]
    hosts = [(cores, count) for cores, count in hosts if count] or [(1.0, 1)]
    at_once = max(1, min(asked.workers or said["workers"] or sum(count for _, count in hosts), jobs))
    # No more than any of these nodes has, so that a job finds room on each.
    even = min(all_cpus // at_once, *(cores // count for cores, count in hosts))
    cpus = next((number for number in (asked.cpus, said["cpus"]) if number is not None), max(1.0, even))
    return at_once, float(cpus), float(gpus)


if __name__ == "__main__":
    sys.exit(main())
