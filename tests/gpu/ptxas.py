#!/usr/bin/env python3
"""Registers of each kernel, from what nvcc said when it compiled them; fails where a kernel spills or has a stack frame.

    python3 tests/gpu/ptxas.py [kernels.ptxas]

Without an argument: the newest `kernels.ptxas` below the target folder ($CARGO_TARGET_DIR, else `target`), which a build
with `--features cuda` leaves there. Needs nothing but Python.
"""

import os
import re
import sys
from pathlib import Path

# Bytes that a kernel may have as stack frame and spill, by a pattern of its name and architecture, as in
# (r"attention_\w+ sm_120", 16, 32).
ALLOWED = [
    # Where sincosf reduces very large angles it keeps a few words; positions of a context stay far below.
    (r"rotate_\w+ sm_\d+", 32, 0),
]

START = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def read(report):
    """What the report says of each kernel and architecture."""
    kernels, kernel = [], None
    for line in report.splitlines():
        if start := START.search(line):
            kernel = {"name": start[1], "architecture": start[2], "registers": None, "frame": 0, "stores": 0, "loads": 0}
            kernels.append(kernel)
        elif (frame := FRAME.search(line)) and kernel:
            # Functions that were not inlined have lines of their own, which count towards the kernel before them.
            for key, bytes_ in zip(("frame", "stores", "loads"), map(int, frame.groups())):
                kernel[key] = max(kernel[key], bytes_)
        elif (used := USED.search(line)) and kernel:
            kernel["registers"] = int(used[1])
    return kernels


def allowance(kernel):
    name = f"{kernel['name']} {kernel['architecture']}"
    return next(((frame, spill) for pattern, frame, spill in ALLOWED if re.fullmatch(pattern, name)), (0, 0))


def table(kernels):
    """Lines of a table with a row for each kernel, and the kernels that exceed what is allowed."""
    width = max(len(kernel["name"]) for kernel in kernels)
    lines, over = [f"{'kernel':{width}}  arch     registers  stack  spill stores  loads"], []
    for kernel in sorted(kernels, key=lambda kernel: (kernel["name"], kernel["architecture"])):
        frame, spill = allowance(kernel)
        beyond = kernel["frame"] > frame or max(kernel["stores"], kernel["loads"]) > spill
        if beyond:
            over.append(kernel)
        lines.append(
            f"{kernel['name']:{width}}  {kernel['architecture']:7}  {kernel['registers'] or '?':>9}  {kernel['frame']:5}  "
            f"{kernel['stores']:12}  {kernel['loads']:5}{'  <- not allowed' if beyond else ''}"
        )
    return lines, over


def newest_report():
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target"))
    reports = list(target.glob("*/build/layerscope-kernels-*/out/kernels.ptxas"))
    if not reports:
        sys.exit(f"there is no kernels.ptxas below {target}: build with `--features cuda`, or name a report")
    return max(reports, key=lambda path: path.stat().st_mtime)


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else newest_report()
    kernels = read(path.read_text())
    if not kernels:
        sys.exit(f"{path} tells of no kernel: it must be nvcc's report with `-Xptxas -v`")
    lines, over = table(kernels)
    print("\n".join(lines))
    print(f"{len(kernels)} kernels in {path}")
    if over:
        sys.exit("spilling or with a stack frame: " + ", ".join(f"{k['name']} ({k['architecture']})" for k in over))


if __name__ == "__main__":
    main()
