"""Our own tests on the GPU instead of its emulation, and under compute-sanitizer."""

import re
import shutil
import time
from itertools import zip_longest
from pathlib import Path

from acceptance.programs import ROOT, Absent, Failed, run

# Tests that ask for a GPU take this one instead of the emulated one.
ON_DEVICE = {"LAYERSCOPE_TEST_DEVICE": "cuda"}
CRATES = {"kernels-tests": "kernels", "families": "engine", "policies": "engine"}
# How compute-sanitizer tells of memory that the driver refuses.
REFUSED = "Program hit CUDA_ERROR_OUT_OF_MEMORY"
SANITIZERS = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"]


def variables(program, device="cuda"):
    """Tests find their fixtures from the folder of their crate."""
    return ({} if device == "cpu" else ON_DEVICE) | {"CARGO_MANIFEST_DIR": str(ROOT / "crates" / CRATES[program])}


def libtest(output):
    """Counts and the names of what failed, from what a test program prints."""
    results = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (\w+)", output.stdout, re.M))
    named = lambda outcome: sorted(name for name, found in results.items() if found == outcome)
    found = {"passed": len(named("ok")), "failed": named("FAILED"), "ignored": len(named("ignored"))}
    complete = re.search(r"^test result: ", output.stdout, re.M) is not None
    found |= {"complete": complete and not output.timed_out, "seconds": round(output.seconds, 1)}
    return found | ({"said": said(output)} if found["failed"] or not found["complete"] else {})


def said(output):
    """The first lines of each failed test, or the last words of a program that did not come to its end."""
    parts = re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:$)", output.stdout, re.M | re.S)
    return {name: text.strip()[:600] for name, text in parts} or output.last_words()


def tests_on_device(context, limit):
    """The kernels' unit tests, then the engine's tests of model families and policies."""
    start, found = time.monotonic(), {}
    present = [program for program in CRATES if program in context.programs]
    if not present:
        raise Absent("the test programs are not here; `tests/gpu/pack.sh` makes them")
    for program in present:
        left = limit - (time.monotonic() - start)
        if left < 3:
            break
        output = run([context.program(program)], left, **variables(program, context.device))
        found[program] = libtest(output)
    context.figures["tests"] = found
    return "; ".join(f"{program} {sentence(result)}" for program, result in found.items())


def sentence(result):
    words = f"{result['passed']} passed, {len(result['failed'])} failed"
    if result["failed"]:
        words += " (" + ", ".join(result["failed"][:6]) + (", …)" if len(result["failed"]) > 6 else ")")
    return words if result["complete"] else words + ", not finished"


def sanitizer(context, limit):
    """compute-sanitizer over a recording and over the kernels' tests: memcheck, and racecheck where time allows."""
    tool = next(filter(None, map(shutil.which, SANITIZERS)), None)
    if context.device == "cpu":
        raise Absent("there is no GPU in a dry run")
    if tool is None:
        raise Absent("compute-sanitizer is not installed")
    start = time.monotonic()
    left = lambda share=1.0: limit * share - (time.monotonic() - start)
    found = context.figures["sanitizer"] = {}
    result, _ = check(tool, "memcheck", recording(context), left(0.5))
    found["memcheck recording"] = result
    groups = test_groups(context)
    for kind, share in [("memcheck", 0.7), ("racecheck", 1.0)]:
        errors, tested, told = 0, 0, []
        for group in groups:
            if left(share) < 10:
                break
            command = [context.program("kernels-tests"), "--exact", "--test-threads", "1", *group]
            result, output = check(tool, kind, command, left(share), **variables("kernels-tests"))
            # Where nothing ran, nothing was checked.
            if result["errors"] is None or not libtest(output)["passed"]:
                break
            # Two tests ask for more memory than there is, and see to it that they are refused.
            refused = (output.stdout + output.stderr).count(REFUSED)
            errors, tested = errors + result["errors"] - refused, tested + len(group)
            told += [result["said"]] if "said" in result else []
        total = sum(map(len, groups))
        if tested:
            found[f"{kind} kernels"] = {"errors": errors, "tests": tested, "of": total} | ({"said": told} if told else {})
    words = [f"{name}: {result['errors']} errors" + coverage(result) for name, result in found.items()]
    return "; ".join(word.replace("None errors", "not finished") for word in words)


def coverage(result):
    return f" in {result['tests']} of {result['of']} tests" if "tests" in result else ""


def recording(context):
    """A short recording of the embedded model: prefill, decode, probes, frontier, and text under a policy."""
    prompts = context.scratch / "two.jsonl"
    lines = (ROOT / "fixtures" / "tiny" / "demo.jsonl").read_text().splitlines(keepends=True)
    prompts.write_text("".join(lines[:2]))
    model, out = ROOT / "fixtures" / "tiny" / "layerscope-tiny.gguf", context.scratch / "checked"
    command = [context.program("layerscope"), "record", model, "--prompts", prompts, "--out", out]
    return [*command, "--device", context.device, "--max-new-tokens", "6", "--failure-cases", "1"]


def check(tool, kind, command, limit, **more):
    """Errors that the tool found in a run of a program, none known where it did not finish; and what was printed."""
    output = run([tool, "--tool", kind, "--error-exitcode", "86", *command], limit, **more)
    printed = output.stdout + output.stderr
    summary = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", printed)
    if not summary or output.timed_out or "Device not supported" in printed:
        return {"errors": None, "said": output.last_words()}, output
    errors = sum(int(a or b) for a, b in summary)
    return {"errors": errors} | ({"said": printed[:3000]} if errors else {}), output


def test_groups(context):
    """Names of the tests that need a device, in groups with one of each module: the first groups cover most kernels."""
    program = "kernels-tests"
    output = run([context.program(program), "--list"], 20, **variables(program))
    names = [name for name in re.findall(r"^(\S+): test$", output.stdout, re.M) if "cuda" in name]
    if not names:
        raise Failed("kernels-tests names no test of a GPU")
    modules = {}
    for name in names:
        modules.setdefault(name.rsplit("::", 1)[0], []).append(name)
    return [list(filter(None, group)) for group in zip_longest(*modules.values())]
