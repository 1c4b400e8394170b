"""Tokens a step and a second in the decoder: `python -m tools.train_smollm measure --target F --draft F --bench DIR`.

Settings are those of `drafting`; "ngram" is `auto` with n-grams in place of the drafter, "several" with both.

Every prompt is answered with each setting and temperature. Answers are compared: with the same seed they are plain
decoding's, however they are drafted, but for near-ties on a CPU (docs/architecture.md, section 3).
"""

from __future__ import annotations

import argparse
import operator
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.bench.prompts import read_prompts
from dflash_core.drafters import draw_noise
from dflash_core.events import StepEvent
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from tools.train_demo.loop import Log

from .prompts import EVERYDAY, HELD

TOGETHER = "benchmarks together"


@dataclass
class Found:
    """Answers of one set with one setting at one temperature: tokens after the first, steps and seconds of each."""

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)  # seconds of the processor
    equal: int = 0
    compared: int = 0

    def add(self, other: Found) -> None:
        self.tokens += other.tokens
        self.steps += other.steps
        self.seconds += other.seconds
        self.processor += other.processor
        self.equal += other.equal
        self.compared += other.compared

    def row(self) -> dict[str, object]:
        """Tokens a step of all answers together, and the quartiles over the answers."""
        rates = [t / s for t, s in zip(self.tokens, self.steps, strict=True) if s]
        cuts = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
        together = round(sum(self.tokens) / max(1, sum(self.steps)), 3)
        return {
            "prompts": len(self.steps), "tokens": sum(self.tokens), "steps": sum(self.steps),
            "tokens_a_second": _rates(self.tokens, self.seconds),
            "tokens_a_second_together": round(sum(self.tokens) / max(sum(self.seconds), 1e-9), 1),
            "tokens_a_second_of_processor": _rates(self.tokens, self.processor),
            "tokens_a_step": together, "quartiles": [round(cut, 2) for cut in cuts], "equal": self.equal,
            "compared": self.compared,
        }  # fmt: skip


def _rates(tokens: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """The quartiles of the answers' tokens a second."""
    rates = list(map(operator.truediv, tokens, seconds))
    cuts = statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
    return [round(cut, 1) for cut in cuts]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", type=Path, required=True, help="SmolLM2's GGUF file")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--bench", type=Path, required=True, help="folder with the files of the benchmarks")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each set")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--drafting", nargs="+", default=["plain", "chain 7", "tree 22"], help="settings to compare")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=draw_noise.SHARE, help="what drafts see of the draws' noise")
    parser.add_argument("--sets", nargs="+", help="only these, all by default")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--plain", type=int, help="prompts of each set that plain decoding answers too; all by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("measured.jsonl"), help="lines of JSON")


def questions(folder: Path, count: int) -> dict[str, list[str]]:
    """Name of a set -> `count` of its questions, spread evenly over it."""
    texts = {name: [task.text for task in read_prompts(folder / file)] for name, file in HELD.items()}
    texts["everyday"] = list(EVERYDAY)
    return {name: every[:: max(1, len(every) // count)][:count] for name, every in texts.items()}


def answer(engine: Engine, ids: Sequence[int], knobs: Knobs) -> tuple[list[int], int, float, float]:
    """The tokens of an answer, its number of steps, and their seconds by the clock and of the processor, without those
    of reading the prompt."""
    tokens, steps, began = list[int](), 0, (time.perf_counter(), time.process_time())
    for event in engine.generate(ids, knobs):
        tokens += event.tokens
        if isinstance(event, StepEvent):
            steps += 1
        else:
            began = time.perf_counter(), time.process_time()
    return tokens, steps, time.perf_counter() - began[0], time.process_time() - began[1]


def engines(a: argparse.Namespace) -> dict[str, Engine]:
    """The engine of each setting of `a.drafting`: one for each drafter."""
    target = load_target(a.target, device=a.device)
    drafts = {"ngram": "ngram", "several": f"{a.draft}+ngram"}
    named = {drafts.get(drafting, str(a.draft)) for drafting in a.drafting}
    loaded = {name: Engine(target, load_draft(name, target=target)) for name in named}
    return {drafting: loaded[drafts.get(drafting, str(a.draft))] for drafting in a.drafting}


def measured(by: Mapping[str, Engine], texts: Sequence[str], heat: float, a: argparse.Namespace) -> dict[str, Found]:
    """What every setting of `a.drafting` finds on `texts`. Answers are compared with those of the first setting."""
    found = {drafting: Found() for drafting in a.drafting}
    for number, text in enumerate(texts):
        target = by[a.drafting[0]].target
        ids = build_prompt(Prompting(target.tokenizer, target.template, False), [Message("user", text)]).ids
        first: list[int] | None = None
        for drafting, one in found.items():
            if drafting == "plain" and a.plain is not None and number >= a.plain:
                continue
            asked = "auto" if drafting in ("ngram", "several") else drafting
            knobs = Knobs(drafting=asked, max_tokens=a.tokens, temperature=heat, top_p=a.top_p, seed=number)
            tokens, steps, seconds, processor = answer(by[drafting], ids, knobs)
            one.tokens.append(len(tokens) - 1)
            one.steps.append(steps)
            one.seconds.append(seconds)
            one.processor.append(processor)
            if first is not None:
                one.compared += 1
                one.equal += tokens == first
            first = first or tokens
    return found


def main(a: argparse.Namespace) -> None:
    by, log = engines(a), Log(a.out)
    draw_noise.SHARE = a.noise
    for heat in a.temperatures:
        together = {drafting: Found() for drafting in a.drafting}
        for name, texts in questions(a.bench, a.prompts).items():
            if a.sets and name not in a.sets:
                continue
            for drafting, one in measured(by, texts, heat, a).items():
                log(temperature=heat, set=name, drafting=drafting, **one.row())
                if name in HELD:
                    together[drafting].add(one)
        for drafting, one in together.items():
            log(temperature=heat, set=TOGETHER, drafting=drafting, **one.row())
