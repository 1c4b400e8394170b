"""What a pair really holds of a card, compared with the plan, and how fast it decodes with its context nearly full.

python -m tools.bench.memory --folder FOLDER --positions 131072 --kv q8_0 --limit 24GiB [--window 4096]

Prints one JSON object. `found` is the driver's own figure of this process, its context included, at the end of the run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.bench.family_models import MODELS
from dflash_core.engine import load_pair
from dflash_core.fits import ON_CARD, ON_HOST, CardOptions, plan, requested_setup
from dflash_core.knobs import Knobs
from dflash_core.loading import estimator_of
from dflash_core.memory import parse_bytes
from tools.bench.step_bench import StepBench, StepCase, acceptance_pattern, spine
from tools.bench.synthetic import synthetic_pair
from tools.bench.tool import run_tool
from tools.bench.variants import cut

SPARE_POSITIONS = 512  # left of the context for the steps


def measure(
    target: Path,
    draft: Path | None,
    context: int,
    kv: str,
    limit: int,
    budget: int,
    acceptance: float,
    steps: int,
    *,
    window: int = 0,
    embedding: str = ON_CARD,
) -> dict[str, Any]:
    """Load, decode `steps` steps after a context that is nearly full, under an attention window if there is one, and
    compare."""
    card = CardOptions(vram_limit=limit, embedding=embedding)
    estimator = estimator_of(target, draft, "cuda", card=card)
    planned = plan(estimator, requested_setup(estimator, context, kv))
    engine = load_pair(target, draft, "cuda", context_length=context, kv=kv, card=card)
    machine = engine.machine
    assert isinstance(machine, CudaMachine), "a card's"
    bench = StepBench(engine)
    engine.session.set_attention_window(AttentionWindow.of(window))
    trace = tuple(spine(length) for length in acceptance_pattern(acceptance))
    knobs = Knobs(drafting=f"tree {budget}", temperature=0.0, ignore_eos=True, max_tokens=1 << 20, chain_seed=True)
    wall, events = bench.time(StepCase("forced", knobs, engine.context_length - SPARE_POSITIONS, trace), steps)
    tokens = sum(len(event.tokens) for event in events) / len(events)
    held = engine.memory()
    return {
        "card": machine.name,
        "context": engine.context_length,
        "kv": str(engine.kv.pair),
        "limit": limit,
        "window": window,
        "embedding": embedding,
        "planned": {one.name: one.bytes for one in planned.components},
        "planned_total": planned.total,
        "planned_fits": planned.fits,
        "found": held.measured,
        "found_by_component": {one.name: one.measured for one in held.components if one.measured is not None},
        "off": held.measured / planned.total - 1,
        "under_the_limit": not limit or held.measured <= limit,
        "step_ms": wall,
        "acceptance_length": tokens,
        "tokens_per_second": tokens / wall * 1e3,
    }


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, metavar="FOLDER", help="folder of synthetic files, written if missing")
    add("--model", choices=MODELS, default="27b", help="which synthetic files")
    add("--layers", type=int, default=0, help="of the synthetic target, where it is to be cut short")
    add("--target", type=Path)
    add("--drafter", type=Path)
    add("--positions", type=int, required=True)
    add("--kv", default="auto")
    add("--limit", type=parse_bytes, default=0)
    add("--budget", type=int, default=22)
    add("--accept", type=float, default=5.0)
    add("--steps", type=int, default=40)
    add("--window", type=int, default=0)
    add("--embedding", choices=(ON_CARD, ON_HOST), default=ON_CARD)
    args = parser.parse_args()
    if args.folder is not None:
        model = MODELS[args.model]
        pair = synthetic_pair(args.folder, cut(model, args.layers) if args.layers else model)
        args.target, args.drafter = pair.target, pair.draft
    found = measure(
        args.target, args.drafter, args.positions, args.kv, args.limit, args.budget, args.accept, args.steps,
        window=args.window, embedding=args.embedding,
    )  # fmt: skip
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    run_tool(main)
