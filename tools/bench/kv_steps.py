"""Steps of a synthetic pair with several types of cache, by turns in one process.

python -m tools.bench.kv_steps [--model 27b] [--kv q4_0 q4_0+1024] [--depth 32768] [--prompt 8192] [--rounds 5]

Prints a JSON object per type: medians of milliseconds a step and a prompt, and their ratio to the first type's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median

from dflash_core.bench.family_models import MODELS
from dflash_core.engine import Engine
from dflash_core.loading import load_draft, load_target
from dflash_core.user_folders import user_folder
from tools.bench.step_bench import DEEP, ROOM, STEPS, StepBench, default_cases
from tools.bench.synthetic import synthetic_pair
from tools.bench.tool import run_tool


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, default="27b")
    add("--kv", nargs="+", default=["q4_0", "q4_0+1024"], help="the first one is compared with")
    add("--depth", type=int, default=DEEP, help="committed positions")
    add("--prompt", type=int, default=8192, help="tokens of a prompt that is read (0: none)")
    add("--rounds", type=int, default=5)
    add("--folder", type=Path, default=user_folder("cache") / "synthetic")
    args = parser.parse_args()
    pair = synthetic_pair(args.folder, MODELS[args.model])
    target = load_target(pair.target, "cuda")
    context = args.depth + ROOM
    benches = {
        kv: StepBench(Engine(target, load_draft(pair.draft, target), context_length=max(context, DEEP + ROOM), kv=kv))
        for kv in args.kv
    }
    cases = [case for case in default_cases(16, contexts=(args.depth, 8192)) if case.depth == args.depth]
    prompt = f"prompt of {args.prompt:,}"
    names = [case.name for case in cases] + [prompt] * bool(args.prompt)
    walls = {kv: {name: list[float]() for name in names} for kv in benches}
    for turn in range(args.rounds):
        for kv in list(benches)[:: -1 if turn % 2 else 1]:
            for case in cases:
                walls[kv][case.name].append(benches[kv].time(case, STEPS)[0])
            if args.prompt:
                walls[kv][prompt].append(benches[kv].prompt_ms(args.prompt))
    first = {name: median(times) for name, times in walls[args.kv[0]].items()}
    for kv, of in walls.items():
        found = {name: median(times) for name, times in of.items()}
        line = {
            "kv": kv, "ms": {name: round(ms, 4) for name, ms in found.items()},
            "ratio": {name: round(ms / first[name], 4) for name, ms in found.items()},
        }  # fmt: skip
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    run_tool(main)
