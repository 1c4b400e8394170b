"""Steps of one loaded pair whose products are computed in several ways (plan.Way), interleaved in one run.

    python -m dflash_core.bench.ways plain prefetch=0 prefetch=2 [--rounds 5] [--steps 200]

The pair is synthetic, written to --folder where it is not there yet. A way changes no bit of a result: the logits of
passes are compared before anything is timed, and the trees of the steps that are.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dflash_core.backends.cuda.plan import Way
from dflash_core.backends.cuda.projection import AnyProjection
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.bench.interleave import interleave
from dflash_core.bench.steps import CONTEXT, DEEP, Case, StepBench, default_cases, shown
from dflash_core.bench.synthetic import synthetic_pair
from dflash_core.bench.synthetic_models import MODELS
from dflash_core.engine import Engine
from dflash_core.errors import KernelError
from dflash_core.loading import CardOptions, load_draft, load_target
from dflash_core.user_folders import user_folder

CASES = ("ar", "tree 15", "tree 23", "tree 39", f"ar at {DEEP:,}")
CHAINS = (1, 3, 7)  # lengths of chains that may be named: passes of few rows
PROMPT, ROWS = 40, (1, 2, 4, 8, 16, 24)  # of the passes whose bits are compared
COMPARED = 16  # steps of a case whose trees are


def projections(session: CudaSession) -> Iterator[AnyProjection]:
    """Every product of the session's steps."""
    for group in session.target.projections():
        yield from group
    yield session.head.full
    if session.draft_weights is not None:
        yield from session.draft_weights.projections()


def take(session: CudaSession, way: Way) -> None:
    """Have the session's steps computed in this way from here on, which may not change the size of any buffer."""
    for projection in projections(session):
        projection.replan(replace(session.device.card, way=way, ways=()))
    session.forget_launches()


def compare(
    engine: Engine, ways: Sequence[Way], rounds: int, steps: int, names: Sequence[str] = CASES
) -> Iterator[str]:
    """Lines of a table: milliseconds of a step and of its verify pass, by case and way. Raises KernelError where a way
    changes a bit."""
    bench = StepBench(engine)
    session = bench.session
    cases = [case for case in default_cases(16, depths=CHAINS) if case.name in names]
    wanted = None
    trees: dict[Case, list[tuple[int, ...]]] = {}
    for way in ways:
        take(session, way)
        found = []
        for rows in ROWS:
            session.restore(None)
            session.prefill(list(range(100, 100 + PROMPT)))
            found.append(session.verify(list(range(rows)), list(range(-1, rows - 1))).tobytes())
        if wanted not in (None, found):
            raise KernelError(f"the way {way} changes bits, expected those of {ways[0]}")
        wanted = found
    walls: dict[tuple[Case, Way], list[float]] = {(case, way): [] for case in cases for way in ways}
    verify: dict[tuple[Case, Way], list[float]] = {key: [] for key in walls}
    draft: dict[tuple[Case, Way], list[float]] = {key: [] for key in walls}
    for slot in interleave(len(ways), 1, rounds):
        way = ways[slot.setting]
        take(session, way)
        for case in cases:
            wall, events = bench.time(case, steps)
            seen = [tuple(event.tree.tokens) for event in events[:COMPARED]]
            if trees.setdefault(case, seen) != seen:
                raise KernelError(
                    f"the way {way} drafts other tokens in {shown(case.name)}, expected those of {ways[0]}"
                )
            walls[case, way].append(wall)
            draft[case, way] += [event.stages.draft for event in events]
            verify[case, way] += [event.stages.verify for event in events]
    for (case, way), times in walls.items():
        middle, pass_ms = statistics.median(times), statistics.median(verify[case, way])
        yield (
            f"{shown(case.name):12} {way!s:28} {middle:7.3f} ms ({min(times):.3f} to {max(times):.3f}), "
            f"draft {statistics.median(draft[case, way]):.3f}, verify {pass_ms:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ways", nargs="+", type=Way.of, metavar="WAY")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=user_folder("cache") / "synthetic")
    parser.add_argument("--model", choices=MODELS, default="27b")
    known = [case.name for case in default_cases(16, depths=CHAINS)]
    parser.add_argument("--cases", nargs="+", choices=known, default=CASES)
    options = parser.parse_args()
    if any(way.split_k for way in options.ways):
        parser.error("split_k gives other sums in other buffers; compare it with bench.kernels --gap")
    pair = synthetic_pair(options.folder, MODELS[options.model])
    target = load_target(pair.target, "cuda", card=CardOptions(tune=False))
    engine = Engine(target, load_draft(pair.draft, target), context_length=CONTEXT)
    for line in compare(engine, options.ways, options.rounds, options.steps, options.cases):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
