"""Whole steps at several context lengths, by cache type, on this card: milliseconds of the synthetic 27B.

    python -m tools.bench.depths --folder FOLDER [--kv f16,q8_0] [--contexts 200,32768,131072]

Plain steps, and trees of 23 nodes and a root. Weights are read once; cache types run one after the other, steps of one
type are interleaved.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_core.bench.family_models import MODELS
from dflash_core.cache_types import TYPES
from dflash_core.engine import Engine
from dflash_core.fits import CardOptions
from dflash_core.knobs import Knobs
from dflash_core.loading import load_draft, load_target
from tools.bench.step_bench import CONTEXT, MAX_TOKENS, ROOM, StepBench, StepCase
from tools.bench.synthetic import synthetic_pair
from tools.bench.tool import run_tool

CONTEXTS = (200, 32_768, 131_072)
NODES = 23
STEPS, ROUNDS = 40, 3
BASE = Knobs(temperature=0.0, ignore_eos=True, max_tokens=MAX_TOKENS)


def cases(contexts: Sequence[int]) -> list[StepCase]:
    """A plain step and a tree after each context."""
    plain, tree = BASE.replace(drafting="plain"), BASE.replace(drafting=f"tree {NODES}")
    return [StepCase(name, knobs, depth) for name, knobs in (("plain", plain), ("tree", tree)) for depth in contexts]


def measure(folder: Path, model: str, kinds: Sequence[str], contexts: Sequence[int]) -> Iterator[str]:
    """Lines of a table. Raises UnsupportedError without a card, OutOfMemoryError where the longest does not fit."""
    pair = synthetic_pair(folder, MODELS[model])
    target = load_target(pair.target, "cuda", card=CardOptions())
    draft = load_draft(pair.draft, target)
    wanted = cases(contexts)
    yield " | ".join(["cache", *(f"{case.name} at {case.depth:,}" for case in wanted)])
    for kind in kinds:
        engine = Engine(target, draft, context_length=max(*contexts, CONTEXT - ROOM) + ROOM, kv=kind)
        yield " | ".join([kind, *(f"{ms:.3f}" for ms in _times(engine, wanted))])
        engine.leave()
        del engine  # two of them need not fit at the same time


def _times(engine: Engine, wanted: Sequence[StepCase]) -> list[float]:
    bench = StepBench(engine)
    rounds = [[bench.time(case, STEPS)[0] for case in wanted] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of synthetic files, written if missing")
    parser.add_argument("--model", choices=MODELS, default="27b")
    parser.add_argument("--kv", default=",".join(TYPES))
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    args = parser.parse_args()
    contexts = [int(one) for one in args.contexts.split(",")]
    for line in measure(args.folder, args.model, args.kv.split(","), contexts):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_tool(main)
