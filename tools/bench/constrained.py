"""What a grammar costs a step: answers with and without one, by turns.

python -m tools.bench.constrained [--folder FOLDER --model 27b] [--device cuda] [--tokens 192] [--rounds 7]

Prints a JSON object per setting: milliseconds per step without a grammar, within one that allows anything, and within a
JSON schema; `open_more`: by how much a step within the first takes longer. Without --folder the demo pair.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from dflash_core.bench.family_models import MODELS
from dflash_core.constraints.base import Constraint
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_core.lab.schedule import interleave
from tools.bench.engines import synthetic_or_demo
from tools.bench.tool import run_tool

CONTEXT = 2048
ANYTHING = Grammar("regex", r"(.|\n){2000,}")  # an answer ends where a grammar may end and the model would
SCHEMA = Grammar("schema", json.dumps({"type": "array", "items": {"enum": ["alpha", "beta", "gamma"]}, "minItems": 64}))
GRAMMARS = {"none": None, "open": ANYTHING, "schema": SCHEMA}
SETTINGS = [(drafting, temperature) for drafting in ("plain", "tree 23", "auto") for temperature in (0.0, 1.0)]


def step_ms(engine: Engine, knobs: Knobs, constraint: Constraint | None) -> tuple[float, float]:
    """Milliseconds per step after the first one, and tokens per step."""
    prompt = engine.target.tokenizer.encode("Tell me a story.")
    began, steps, tokens = 0.0, 0, 0
    for event in engine.generate(prompt, knobs, constraint=constraint):
        if not steps:
            began = time.perf_counter()
        steps, tokens = steps + 1, tokens + len(event.tokens)
    return (time.perf_counter() - began) * 1e3 / max(steps - 1, 1), tokens / steps


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, help="folder of synthetic files, written if missing (the demo pair)")
    add("--model", choices=MODELS, default="27b", help="which synthetic files")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--tokens", type=int, default=192)
    add("--rounds", type=int, default=7)
    args = parser.parse_args()
    engine = synthetic_or_demo(args.model, args.folder, args.device, CONTEXT)
    compiler = Grammars(engine.target.tokenizer, engine.target.config.vocab_size)
    for drafting, temperature in SETTINGS:
        knobs = Knobs(drafting=drafting, temperature=temperature, max_tokens=args.tokens, ignore_eos=True)
        times = {name: list[float]() for name in GRAMMARS}
        rates = {name: list[float]() for name in GRAMMARS}
        for slot in interleave(len(GRAMMARS), 1, args.rounds + 1):
            name, grammar = list(GRAMMARS.items())[slot.setting]
            taken, rate = step_ms(engine, knobs, compiler.constraint(grammar) if grammar else None)
            if slot.repeat:  # the first of each warms up
                times[name].append(taken)
                rates[name].append(rate)
        found = {name: round(median(each), 4) for name, each in times.items()}
        line = {
            "drafting": drafting, "temperature": temperature, "ms": found,
            "open_more": round(found["open"] / found["none"] - 1, 4),
            "tokens_per_step": {name: round(median(each), 2) for name, each in rates.items()},
        }  # fmt: skip
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_tool(main)
