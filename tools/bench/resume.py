"""The time to continue a conversation that the session does not hold, compared with one that it holds.

python -m tools.bench.resume --folder FOLDER --reused 16384 --new 64

Prints one JSON object: milliseconds to the first token of the same turn, with the state in place and after a restore.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_core.backends.cuda.session import CudaSession
from dflash_core.bench.family_models import MODELS
from dflash_core.engine import Engine, load_pair
from dflash_core.events import PrefillEvent
from dflash_core.fits import CardOptions
from dflash_core.knobs import Knobs
from tools.bench.synthetic import synthetic_pair
from tools.bench.tool import run_tool

OTHER = 512  # tokens of the conversation in between
KNOBS = Knobs(drafting="plain", temperature=0.0, max_tokens=2, ignore_eos=True)


def first_token(engine: Engine, ids: Sequence[int], keep: Sequence[int] = ()) -> PrefillEvent:
    """Read a prompt, and draw its first tokens. After it comes what a person takes longer than: memory is made ready
    for the next copies."""
    first, *_ = engine.generate(ids, KNOBS, keep=keep)  # to its end, which what follows comes after
    assert isinstance(first, PrefillEvent)
    assert isinstance(engine.session, CudaSession)
    engine.session.device.host.settle()
    return first


def measure(engine: Engine, reused: int, new: int, rounds: int) -> dict[str, Any]:
    """Medians over `rounds`; the first round, which makes room for pages, is left out."""
    whole = [100 + at % 1000 for at in range(reused)]
    other = [7 + at % 500 for at in range(OTHER)]
    in_place, resumed, found = list[float](), list[float](), 0
    for at in range(rounds + 1):
        engine.reset()
        first_token(engine, [*whole, 3], keep=[reused])
        longer = [*whole, *(11 + (at + one) % 900 for one in range(new))]
        in_place.append(first_token(engine, longer).elapsed_ms)
        first_token(engine, other)
        event = first_token(engine, longer)
        found = event.reused_tokens
        resumed.append(event.elapsed_ms)
    first, second = statistics.median(in_place[1:]), statistics.median(resumed[1:])
    store = engine.snapshots.store if engine.snapshots else None
    return {
        "reused": found, "new": new, "in_place_ms": first, "resumed_ms": second, "ratio": second / first,
        "first_resume_ms": resumed[0], "stored_bytes": store.nbytes if store else 0,
    }  # fmt: skip


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="folder of synthetic files, written if missing")
    add("--model", choices=MODELS, default="27b", help="which synthetic files")
    add("--kv", default="auto")
    add("--reused", type=int, default=16_384)
    add("--new", type=int, nargs="+", default=[64, 512])
    add("--rounds", type=int, default=5)
    args = parser.parse_args()
    pair = synthetic_pair(args.folder, MODELS[args.model])
    room = args.reused + max(args.new) + 1024
    engine = load_pair(pair.target, pair.draft, "cuda", context_length=room, kv=args.kv, card=CardOptions())
    for new in args.new:
        found = {"kv": str(engine.kv.pair), **measure(engine, args.reused, new, args.rounds)}
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    run_tool(main)
