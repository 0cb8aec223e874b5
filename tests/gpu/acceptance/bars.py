"""What has to be reached, and whether it is."""

from acceptance.shapes import SHAPES, step_bytes

AT_MOST, AT_LEAST = "at most", "at least"


def bar(name, value, comparison, limit, unit="", note=""):
    """One row: passed, failed, or not measured where there is no value."""
    if value is None or limit is None:
        status = "not measured"
    else:
        status = "passed" if (value <= limit if comparison == AT_MOST else value >= limit) else "failed"
    row = {"kind": "times", "name": name, "value": value, "comparison": comparison, "limit": limit, "unit": unit, "status": status}
    return row | ({"note": note} if note else {})


def bars(figures, plan):
    """Every bar, from what was measured."""
    right = [row | {"kind": "figures"} for row in correctness(figures)]
    return [*right, *beside_pytorch(figures, plan), *bandwidth(figures, plan), *statistics(figures),
            *cutoffs(figures, plan), *frontier(figures)]


def correctness(figures):
    """Tests, sanitizer and parity."""
    tests = figures.get("tests") or {}
    for program in ["kernels-tests", "families", "policies"]:
        result = tests.get(program)
        done = result and result["complete"]
        yield bar(f"{program} on the GPU: failed tests", len(result["failed"]) if done else None, AT_MOST, 0,
                  note=f"{result['passed']} passed" if done else "")
    checks = figures.get("sanitizer") or {}
    for name in ["memcheck recording", "memcheck kernels", "racecheck kernels"]:
        yield bar(f"compute-sanitizer, {name}: errors", checks.get(name, {}).get("errors"), AT_MOST, 0)
    parity = figures.get("parity") or {}
    for key, name in [("worst", "figures"), ("kl", "figures of the frontier")]:
        yield bar(f"demo: {name}, native, GPU − CPU in f32", parity.get("demo", {}).get(key), AT_MOST, 2e-3)
    for head_dim in (64, 128):
        parts = parity.get(f"head_dim_{head_dim}") or {}
        for part, name, limit in [
            ("f32", "f32, GPU − CPU", 1e-5), ("native", "bf16, GPU − CPU in f32", 2e-3), ("pytorch", "f32, GPU − PyTorch", 1e-5),
        ]:
            found = parts.get(part) or {}
            yield bar(f"heads of {head_dim}: figures, {name}", found.get("worst"), AT_MOST, limit)
            if part != "pytorch":
                yield bar(f"heads of {head_dim}: figures of the frontier, {name}", found.get("kl"), AT_MOST, limit)
            if part != "native":
                other = found["prompts"] - found["same_text"] if found else None
                yield bar(f"heads of {head_dim}: greedy texts that differ, {name}", other, AT_MOST, 0)


def row_of(figures, policy, length):
    rows = figures.get("bench") or []
    return next((row for row in rows if row["length"] == length and row["policy"].startswith(policy)), None)


def beside_pytorch(figures, plan):
    """TTFT of the full model as a share of PyTorch's."""
    for length in plan.lengths:
        ours = row_of(figures, "full", length)
        theirs = next((row for row in figures.get("pytorch") or [] if row["length"] == length and "ttft_s" in row), None)
        value = ours["ttft_s"]["median"] / theirs["ttft_s"] if ours and theirs else None
        yield bar(f"TTFT at {length:,} / PyTorch's", value, AT_MOST, 1.15, "×")


def bandwidth(figures, plan):
    """Bytes that a step reads over the time it takes, as a share of what a copy reaches here."""
    shape, copy = SHAPES[plan.shape], (figures.get("machine") or {}).get("copy_bytes_per_s")
    for length in list(plan.lengths)[1:]:
        row, value = row_of(figures, "full", length), None
        if row and copy and not plan.layers:
            value = step_bytes(shape, length, plan.new_tokens) / row["tpot_s"]["median"] / copy
        yield bar(f"TPOT at {length:,}: share of the memory bandwidth", value, AT_LEAST, 0.75)


def statistics(figures):
    """What attention statistics add."""
    found = figures.get("statistics") or {}
    yield bar("statistics on: TTFT", found.get("ttft_ratio"), AT_MOST, 1.02, "×")
    yield bar("statistics on: TPOT", found.get("tpot_ratio"), AT_MOST, 1.03, "×")


def cutoffs(figures, plan):
    """SPEED at three quarters of the layers at the longest length."""
    length = list(plan.lengths)[-1]
    full, cut = row_of(figures, "full", length), row_of(figures, "speed", length)
    both = full and cut
    gain = lambda key: full[key]["median"] / cut[key]["median"] if both else None
    predicted = 1 / cut["tpot_ratio_model"] if both else None
    name = plan.policies.split(",")[1]
    yield bar(f"{name} at {length:,}: TTFT gain", gain("ttft_s"), AT_LEAST, 1.30, "×", "the limit is 1.333")
    yield bar(f"{name} at {length:,}: TPOT gain", gain("tpot_s"), AT_LEAST, 0.95 * predicted if both else None, "×",
              f"bytes predict {predicted:.3f}" if both else "")
    # Text and anchor, which keep all layers, take a thousandth of it at the longest length.
    saved = 1 - cut["kv_bytes"] / full["kv_bytes"] if both else None
    yield bar(f"{name} at {length:,}: KV saved", saved, AT_LEAST, 0.2495)


def frontier(figures):
    """The exact frontier beside a prefill of the same length."""
    found = figures.get("frontier")
    value = found["frontier_s"] / found["prefill_s"] if found else None
    length = f" at {found['length']:,}" if found else ""
    yield bar(f"exact frontier{length} / one prefill", value, AT_MOST, 1.0, "×", "with attention knockout")


def sentence(row):
    """A row of the table in the terminal."""
    value = "–" if row["value"] is None else number(row["value"]) + row["unit"]
    limit = "" if row["limit"] is None else f"{row['comparison']} {number(row['limit'])}"
    note = f"  ({row['note']})" if row.get("note") else ""
    return f"{row['status']:12}  {row['name']:62}  {value:>10}  {limit}{note}"


def number(value):
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1e}" if value and abs(value) < 1e-2 else f"{value:.4g}"
