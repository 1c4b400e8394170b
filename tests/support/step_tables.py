"""Tables of docs/benchmarks.md, made from what `dflash-tui bench --out FILE` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_core.events import STAGES
from dflash_core.memory import gib

Found = Mapping[str, Any]

# llama.cpp on the same files and card, July 2026: ms per plain step, and a pass of so many rows in plain steps.
PEER_AR, PEER_PREFILL, PEER_CHAIN = 80.7, 2479, 36.3
PEER_ROWS = {"16": 2.1, "24": 2.4, "40": 3.0, "64": 3.5}
BARS_ROWS = {"16": 1.12, "24": 1.32, "40": 1.75, "64": 2.5}


def bars_table(found: Found) -> str:
    """Each required figure of the step benchmark, what was measured, and what llama.cpp does on the same files."""
    case = {one["name"]: one for one in found["cases"]}
    ar = case["plain"]["wall"]["median"]
    deep = next(one for name, one in case.items() if name.startswith("plain at"))
    bushy = case["bushy tree 23"]["stages"]["verify"] / case["tree 23"]["stages"]["verify"]
    prompt = found["prefill_tokens"] / found["prefill_ms"]["median"] * 1e3
    known = {"target", "drafter", "target KV", "drafter KV", "CUDA context", "other processes"}
    besides = sum(size if held is None else held for name, size, held in found["memory"] if name not in known)
    rows: list[tuple[str, str, str, bool, str]] = [
        ("plain decoding", f"{1e3 / ar:.1f} tok/s", ">= 160", 1e3 / ar >= 160, f"{PEER_AR}"),
    ]
    for count, ratio in found["verify_in_plain_steps"].items():
        bar = BARS_ROWS[count]
        what = f"verify of {count} rows, in plain steps"
        rows.append((what, f"{ratio:.2f}", f"<= {bar}", ratio <= bar, f"{PEER_ROWS[count]}"))
    chain = next(one for name, one in case.items() if name.startswith("chain"))["wall"]["median"]
    tree = case["tree 23"]["wall"]["median"]
    deep_share = ar / deep["wall"]["median"]
    idle = max(one["idle"] for one in found["cases"])
    loop = found["plain_loop_ms"]["median"]
    rows += [
        ("whole step, chain of 15", f"{chain:.2f} ms", "<= 8.5", chain <= 8.5, f"{PEER_CHAIN}"),
        ("whole step, tree of 23 and root", f"{tree:.2f} ms", "<= 9.5", tree <= 9.5, ""),
        ("a bushy tree against a seeded one of its size", f"{bushy:.3f}", "<= 1.03", bushy <= 1.03, ""),
        (
            f"prompt of {found['prefill_tokens']:,}", f"{prompt:,.0f} tok/s", ">= 6,000", prompt >= 6000,
            f"{PEER_PREFILL:,}",
        ),
        (
            f"plain decoding at context length {deep['depth']:,}", f"{deep_share:.3f} of that at 200", ">= 0.88",
            deep_share >= 0.88, "0.95",
        ),
        ("idle between steps", f"{idle:.1%} at most", "<= 3 %", idle <= 0.03, ""),
        ("memory besides weights, keys, values, CUDA context", gib(besides), "<= 1.0 GiB", besides <= 1 << 30, ""),
        ("plain decoding against a one-row loop", f"{ar:.2f} against {loop:.2f} ms", "no slower", ar <= loop, ""),
    ]  # fmt: skip
    lines = ["| what | measured | bar | | llama.cpp |", "|---|---|---|---|---|"]
    lines += [
        f"| {what} | {got} | {bar} | {'reached' if ok else '**missed**'} | {peer} |"
        for what, got, bar, ok, peer in rows
    ]
    return "\n".join(lines) + "\n"


def steps_table(found: Found) -> str:
    """Milliseconds of every kind of step by its parts."""
    titles = ("step", "rows", "context", "wall", *STAGES, "tok/step")
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for one in found["cases"]:
        name = one["name"] + (" (forced)" if one["forced"] else "")
        times = " | ".join(f"{one['stages'][stage]:.3f}" for stage in STAGES)
        wall = one["wall"]
        spread = f"{wall['median']:.3f} ({wall['least']:.3f} to {wall['most']:.3f})"
        lines.append(
            f"| {name} | {one['nodes']} | {one['depth']:,} | {spread} | {times} | {one['acceptance_length']:.2f} |"
        )
    about = "; ".join(f"{key}: {value}" for key, value in found["about"].items())
    return f"{about}.\n\n" + "\n".join(lines) + "\n"


def memory_table(found: Found) -> str:
    """Device bytes by component, predicted and found."""
    lines = ["| component | predicted | found |", "|---|---|---|"]
    for name, size, held in found["memory"]:
        lines.append(f"| {name} | {gib(size)} | {'' if held is None else gib(held)} |")
    return "\n".join(lines) + "\n"
