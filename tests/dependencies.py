#!/usr/bin/env python3
"""Checks licences, sources and versions of all crates against deny.toml, from Cargo.lock and what was fetched for it."""

import json
import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Crates that the default build has in several versions, since its dependencies do not agree on one.
SEVERAL_VERSIONS = {"base64", "fancy-regex", "getrandom", "hashbrown", "itertools", "miniz_oxide", "rand", "rand_chacha", "rand_core", "syn",
                    "thiserror", "thiserror-impl"}


def main():
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    problems = []
    packages = json.loads(cargo("metadata", "--format-version", "1", "--locked", "--all-features"))["packages"]
    for package in packages:
        name = f"{package['name']} {package['version']}"
        expression = package["license"]
        if not expression or not is_allowed(expression, allowed):
            problems.append(f"{name} is under {expression}, which deny.toml does not allow")
    sources = {package["source"] for package in packages} - {None}
    if len(sources) != 1 or not sources.pop().startswith("registry+"):
        problems.append("crates come from more than one registry, or from none")
    versions = defaultdict(set)
    for line in cargo("tree", "--package", "layerscope", "--edges", "normal", "--prefix", "none").splitlines():
        name, version = line.split()[:2]
        versions[name].add(version)
    for name in sorted(versions):
        if len(versions[name]) > 1 and name not in SEVERAL_VERSIONS:
            problems.append(f"the default build has {name} in several versions: {', '.join(sorted(versions[name]))}")
    raise SystemExit("\n".join(problems) or 0)


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def is_allowed(expression, allowed):
    """Whether an SPDX expression can be met: some side of each OR, both of each AND."""
    expression = re.sub(r"\s*/\s*", " OR ", expression)
    tokens = re.findall(r"[()]|[\w.+-]+", expression)

    def either():
        met = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            met = both() or met
        return met

    def both():
        met = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            met = one() and met
        return met

    def one():
        token = tokens.pop(0)
        if token == "(":
            met = either()
            tokens.pop(0)
            return met
        if tokens and tokens[0] == "WITH":
            token = f"{token} WITH {tokens.pop(1)}"
            tokens.pop(0)
        return token in allowed

    return either()


assert is_allowed("GPL-2.0 OR MIT", {"MIT"}) and is_allowed("(A OR B) AND C/D", {"B", "D"})
assert is_allowed("A WITH e OR B", {"A WITH e"}) and not is_allowed("A AND B", {"A"}) and not is_allowed("A WITH e", {"A"})

if __name__ == "__main__":
    main()
