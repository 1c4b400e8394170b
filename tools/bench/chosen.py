"""What `auto` costs a step on a card: each width that it may choose, and the fixed tree of that width, interleaved.

    python -m tools.bench.chosen [--model 27b] [--rounds 5] [--steps 60]

Every walk takes one node below the root, so weights are learned and the text grows from step to step. The pair is a
synthetic one, written to --folder where it is not there yet.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from dflash_core.backends.cuda.session import CudaSession
from dflash_core.bench.family_models import MODELS
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_core.lab.schedule import interleave
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.base import Decision
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import CHOICES, QueuedPolicy
from dflash_core.user_folders import user_folder
from tools.bench.engines import synthetic_engine
from tools.bench.replay import GivenCosts
from tools.bench.step_bench import MAX_TOKENS, StepBench, StepCase
from tools.bench.tool import run_tool

TRACE = ((1,),)


class OneWidth(QueuedPolicy):
    """`auto` if it always chose `rows` rows."""

    def __init__(self, drafter: Capabilities, rows: int) -> None:
        super().__init__(Arm(drafter, PairState(), GivenCosts(H200)))
        self._rows = rows
        self.begin([100], frozenset())

    def next(self, knobs: Knobs) -> Decision:
        return Decision("tree", self._rows - 1, "the width that is timed", depth=self.arm.depth(knobs, "answer"))


def cases() -> list[StepCase]:
    """For each width the fixed tree, then `auto`."""
    knobs, found = Knobs(temperature=0.0, ignore_eos=True, max_tokens=MAX_TOKENS), list[StepCase]()
    for rows in CHOICES:

        def policy(session: CudaSession, rows: int = rows) -> OneWidth:
            assert session.capabilities is not None
            return OneWidth(session.capabilities, rows)

        found.append(StepCase(f"{rows} rows", knobs.replace(mode="tree", budget=rows - 1), trace=TRACE))
        found.append(StepCase(f"{rows} rows by auto", knobs, trace=TRACE, policy=policy))
    return found


def compare(engine: Engine, rounds: int, steps: int) -> Iterator[str]:
    """Lines of a table: milliseconds of a step, how much longer than the fixed one, and microseconds of its tree."""
    bench, wanted = StepBench(engine), cases()
    walls = {case.name: list[float]() for case in wanted}
    trees = {case.name: list[float]() for case in wanted}
    for slot in interleave(len(wanted), 1, rounds):
        case = wanted[slot.setting]
        wall, events = bench.time(case, steps)
        walls[case.name].append(wall)
        trees[case.name] += [event.stages.tree for event in events]
    fixed = 0.0
    for case in wanted:
        middle, tree = statistics.median(walls[case.name]), statistics.median(trees[case.name])
        fixed = fixed if case.policy else middle
        yield f"{case.name:16} {middle:7.3f} ms, {middle / fixed - 1:+.2%}; the tree {tree * 1e3:.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="27b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=user_folder("cache") / "synthetic")
    options = parser.parse_args()
    for line in compare(synthetic_engine(options.model, options.folder), options.rounds, options.steps):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    run_tool(main)
