"""Compares `auto` with fixed settings in the real decoder: the demo pair answers sets of prompts with each in turn.

    OMP_NUM_THREADS=1 python -m tools.train_demo.fixed_modes FILE..

Each set begins with the start values that ship with the drafter. Speed is tokens per second of CPU time, from the first
token to the last, so that other programs hardly affect it. The mean over a set's answers is geometric. A set of ten
takes some 50 s on one core.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.bench.prompts import read_prompts, sample
from dflash_core.demo import demo_draft, demo_target_path
from dflash_core.lab.schedule import interleave
from dflash_core.messages import Message
from dflash_core.policy.saved import SavedValues, shipped_beside
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting

from .bench_prompts import held_questions
from .record_drafts import _say

LONGEST, LONGEST_PROMPT = 128, 600
AUTO, DEFAULT = "auto", "tree 22"
SETTINGS = {
    "plain": Knobs(drafting="plain"),
    "chain 15": Knobs(drafting="chain 22"),
    **{f"tree {budget}": Knobs(drafting=f"tree {budget}") for budget in (8, 15, 22, 40)},
    AUTO: Knobs(),
}


@dataclass
class Decoded:
    """An answer under one setting, all repeats added up, without the first token."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def speeds(engine: Engine, prompts: Sequence[Sequence[int]], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each prompt by setting, from answers that have more than one token."""
    found, names = defaultdict[tuple[str, int], Decoded](Decoded), list(SETTINGS)
    for slot in interleave(len(names), len(prompts), repeats):
        name = names[slot.setting]
        decoded = found[name, slot.prompt]
        engine.reset()
        steps = engine.generate(prompts[slot.prompt], SETTINGS[name].replace(max_tokens=LONGEST))
        next(steps)
        before = time.process_time()
        decoded.tokens += sum(len(step.tokens) for step in steps)
        decoded.seconds += time.process_time() - before
    return {name: [one.rate for n in range(len(prompts)) if (one := found[name, n]).tokens] for name in names}


def line(name: str, rates: Mapping[str, Sequence[float]]) -> str:
    """One line of output: the speed of `auto` over that of this set's best fixed setting, and over the default tree."""
    means = {setting: geometric_mean(values) for setting, values in rates.items()}
    best = max(means.keys() - {AUTO}, key=means.__getitem__)
    auto = means[AUTO]
    every = ", ".join(f"{setting} {mean:.0f}" for setting, mean in means.items())
    return f"{name}: {auto / means[best]:.3f} of {best}, {auto / means[DEFAULT]:.3f} of {DEFAULT}; tok/s {every}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="prompt sets: HumanEval, GSM8K, MT-bench, JSON lines")
    parser.add_argument("--answers", type=int, default=10, help="answers per set")
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    held = held_questions()
    sets = {"held": [one.text for one in held[:: len(held) // asked.answers][: asked.answers]]}
    sets |= {file.name: [task.text for task in sample(read_prompts(file), asked.answers)] for file in asked.files}
    target, draft, over = load_target(demo_target_path()), demo_draft("dflash"), list[float]()
    drafter = load_draft(draft, target)
    for name, texts in sets.items():
        built = [
            build_prompt(Prompting(target.tokenizer, target.template, False), [Message("user", text)]) for text in texts
        ]
        engine = Engine(target, drafter, saved=[SavedValues(None, "dflash", shipped_beside(draft))])
        rates = speeds(engine, [one.ids[:LONGEST_PROMPT] for one in built], asked.repeats)
        over += [auto / tree for auto, tree in zip(rates[AUTO], rates[DEFAULT], strict=True)]
        _say(line(name, rates))
    _say(f"all answers: {geometric_mean(over):.3f} of {DEFAULT}")


if __name__ == "__main__":
    main()
