"""Records answers of the demo target with drafts after every position, for `tools/bench/replay.py`.

    python -m tools.train_demo.record_drafts --out FOLDER --prompts FOLDER

One file per set and temperature; the benchmark sets are made from the files in `--prompts` and left out without it.
Prompts that share text with the training corpus are left out, except in mt_bench, for which that is not recorded. A set
takes minutes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dflash_core import load_target
from dflash_core.backends.opened import Target
from dflash_core.bench.prompts import read_prompts
from dflash_core.demo import WEIGHTS, demo_draft_path, demo_target_path
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.sampling import probability
from dflash_core.text.prompt import Prompting
from tools.bench.recorded import Recorded, save

from . import export
from .acceptance import draft_candidates
from .answers import answer_all
from .bench_prompts import FILES, Question, file_questions, held_questions
from .shapes import DraftConfig, TargetConfig, Weights, import_form
from .sizes import draft_configs, target_config

LONGEST = {"held": 256, "repeat": 256}
LONGEST_ELSE = 128
BATCH = 16
SEED = 11
SETS = ("held", "repeat", "think", *FILES, "mt_bench")


class Recording:
    """The demo pair in plain torch, and how prompts become recorded answers."""

    def __init__(self) -> None:
        self.target: Target = load_target(demo_target_path(), device="cpu")
        self.config: TargetConfig = target_config()
        self.weights: Weights = import_form(export.read_weights(demo_target_path()))
        file = demo_draft_path()
        self.draft: DraftConfig = draft_configs(self.config)[file.name][0]
        self.draft_weights: Weights = export.read_weights(file)

    def prompt(self, messages: Sequence[Message], *, thinking: bool = False) -> list[int]:
        """A conversation up to its answer."""
        return list(build_prompt(Prompting(self.target.tokenizer, self.target.template, thinking), messages).ids)

    def text(self, answer: Sequence[int]) -> str:
        """The text of an answer without its stop token."""
        ids = [token for token in answer if token not in self.target.tokenizer.stop_ids]
        return self.target.tokenizer.decode(ids)

    def record(self, prompts: Sequence[Sequence[int]], most: int, temperature: float) -> list[Recorded]:
        """Answers to `prompts`, and the drafts after each of their tokens."""
        ids = [np.array(prompt) for prompt in prompts]
        answers = answer_all(
            self.config, self.weights, ids, batch=min(BATCH, len(ids)), most=most, temperature=temperature, seed=SEED
        )
        return [self._drafts(prompt, answer.tolist()) for prompt, answer in zip(prompts, answers) if len(answer) > 1]

    def _drafts(self, prompt: Sequence[int], answer: Sequence[int]) -> Recorded:
        ids = torch.tensor([*prompt, *answer])
        anchors = torch.arange(len(prompt), len(ids) - 1)
        tokens, log_probs = draft_candidates(
            self.config, self.weights, self.draft, self.draft_weights, ids, anchors
        )  # fmt: skip
        known = certain(self.target, prompt, answer)
        return Recorded(tuple(prompt), tuple(answer), tokens.astype(np.int64), log_probs, known)


def certain(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> tuple[float, ...]:
    """The target's own probability of each token of an answer."""
    logits = target.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
    return tuple(probability(row, token) for row, token in zip(logits, answer, strict=True))


def _fresh(questions: Sequence[Question], copies: set[int], most: int, part: int = 0) -> list[Question]:
    """About `most` of the questions that are no near-copies, evenly spread. Parts 1 to 3 take others, which lie between
    those of part 0."""
    clean = [one for one in questions if one.number not in copies]
    apart = max(1, len(clean) // most)
    return clean[apart * part // 4 :: apart][:most]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, default=None, help="a folder with HumanEval, gsm8k and MT-bench files")
    parser.add_argument("--texts", type=int, default=30, help="texts per set; three times as many of held")
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 0.8])
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    one = Recording()
    copies = {name: set(numbers) for name, numbers in _facts()["near_copies"].items()}
    held = _fresh(held_questions(), copies.get("held", set()), 3 * options.texts)
    for temperature in options.temperatures:
        answered: list[Recorded] = []
        for name in (name for name in SETS if name in options.sets):
            began = time.monotonic()
            if name == "held":
                prompts = [one.prompt([Message("user", ask.text)]) for ask in held]
            elif name == "repeat":
                prompts = _again(one, held, answered or one.record(
                    [one.prompt([Message("user", ask.text)]) for ask in held], LONGEST["held"], temperature
                ), 2 * options.texts)  # fmt: skip
            elif name == "think":
                asked = held[:: max(1, len(held) // options.texts)][: options.texts]
                prompts = [one.prompt([Message("user", ask.text)], thinking=True) for ask in asked]
            elif options.prompts is None:
                continue
            elif name == "mt_bench":
                tasks = read_prompts(options.prompts / "mt_bench.jsonl")
                prompts = [one.prompt([Message("user", task.text)]) for task in tasks[::2][: options.texts]]
            else:
                asked = _fresh(file_questions(options.prompts, name), copies.get(name, set()), options.texts)
                prompts = [one.prompt([Message("user", ask.text)]) for ask in asked]
            texts = one.record(prompts, LONGEST.get(name, LONGEST_ELSE), temperature)
            if name == "held":
                answered = texts
            save(options.out / f"{name}-{temperature:g}.npz", texts)
            tokens = sum(len(text.answer) for text in texts)
            took = time.monotonic() - began
            _say(f"{name} at {temperature:g}: {len(texts)} answers, {tokens:,} tokens, {took:.0f} s")


def _again(one: Recording, held: Sequence[Question], answered: Sequence[Recorded], most: int) -> list[list[int]]:
    """Conversations in which the same question is asked again after its answer."""
    by_prompt = {tuple(one.prompt([Message("user", ask.text)])): ask.text for ask in held}
    out = []
    for text in answered[:: max(1, len(answered) // most)][:most]:
        question = by_prompt[text.prompt]
        said = one.text(text.answer)
        turns = [Message("user", question), Message("assistant", said), Message("user", question)]
        out.append(one.prompt(turns))
    return out


def _facts() -> dict[str, dict[str, list[int]]]:
    facts: dict[str, dict[str, list[int]]] = json.loads((WEIGHTS / "demo.json").read_text(encoding="utf-8"))
    return facts


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
