"""What sampling costs on a card: steps of a tree of 23 drafts, greedy and with every kind of sampling, interleaved; and
what log-probabilities cost, with those of 0, 5 and 20 of the likeliest tokens.

    python -m tools.bench.sampled [--rounds 5] [--steps 200] [--drafting "tree 23"] [--only log-probabilities]

The pair is the synthetic 27B one, written to --folder where it is not there yet: nearly flat logits, the hardest case.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_core.engine import Engine
from dflash_core.knobs import Knobs, Value
from dflash_core.lab.schedule import interleave
from dflash_core.user_folders import user_folder
from tools.bench.engines import synthetic_engine
from tools.bench.step_bench import MAX_TOKENS, StepBench, StepCase
from tools.bench.tool import run_tool

GREEDY = "greedy"
PENALTIES: dict[str, Value] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
KINDS: dict[str, dict[str, Value]] = {
    GREEDY: {"temperature": 0.0},
    "temperature": {},
    "top_k 40": {"top_k": 40},
    "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
    "top_k 2,000": {"top_k": 2000},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "penalties": PENALTIES,
    "penalties alone": {"temperature": 0.0, **PENALTIES},
    "all of them": {"top_k": 40, "top_p": 0.95, "min_p": 0.05, **PENALTIES},
    "all but top_k": {"top_p": 0.95, "min_p": 0.05, **PENALTIES},
}
TOPS = (0, 5, 20)


def cases(drafting: str, only: str) -> list[StepCase]:
    """A case per kind of sampling, at a temperature of 0.8 unless it says otherwise, then with log-probabilities; the
    greedy one, and those whose names contain `only`."""
    base = Knobs(drafting=drafting, temperature=0.8, ignore_eos=True, max_tokens=MAX_TOKENS)
    found = [StepCase(name, base.replace(**knobs)) for name, knobs in KINDS.items()]
    found += [
        StepCase(f"log-probabilities {top}, {name}", base.replace(**KINDS[name]), top=top)
        for name in (GREEDY, "temperature")
        for top in TOPS
    ]
    return [case for case in found if case.name in (GREEDY, "temperature") or only in case.name]


def compare(engine: Engine, wanted: Sequence[StepCase], rounds: int, steps: int) -> Iterator[str]:
    """Lines of a table: milliseconds of a step, and how much longer than a greedy one."""
    bench = StepBench(engine)
    walls: dict[str, list[float]] = {case.name: [] for case in wanted}
    for slot in interleave(len(wanted), 1, rounds):
        case = wanted[slot.setting]
        wall, _ = bench.time(case, steps)
        walls[case.name].append(wall)
    greedy = statistics.median(walls[GREEDY])
    for name, times in walls.items():
        middle = statistics.median(times)
        yield f"{name:32} {middle:7.3f} ms ({min(times):.3f} to {max(times):.3f}), {middle / greedy - 1:+.2%} of greedy"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=user_folder("cache") / "synthetic")
    parser.add_argument("--drafting", default="tree 23", help="of every step (tree 23)")
    parser.add_argument("--only", default="", help="part of the names of the kinds that are timed")
    options = parser.parse_args()
    wanted = cases(options.drafting, options.only)
    for line in compare(synthetic_engine("27b", options.folder), wanted, options.rounds, options.steps):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    run_tool(main)
