"""A soak for the engine: random turns, each compared with plain decoding of the same prompt with the same knobs."""

from __future__ import annotations

import itertools
import time
import traceback
from functools import cache
from pathlib import Path

import numpy as np
from tools.train_demo.bench_prompts import held_questions

from abuse.report import Finding, Report, Watermark
from dflash_core import Engine
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import load_pair
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from support.compare import NEAR_TIE, first_difference, gap
from support.soaking import Done, Soak

CONTEXT = 256  # short, so that a thousand turns are compared in minutes
LONGEST = 28
QUESTIONS = 40
WARM = 60  # turns before memory is looked at


@cache
def engines() -> tuple[Engine, Engine]:
    """The demo pair, and its target alone for the plain answers: two sequences of their own."""
    engine = load_pair(demo_target_path(), demo_draft_path(), context_length=CONTEXT)
    return engine, Engine(engine.target, context_length=CONTEXT)


@cache
def questions() -> tuple[tuple[int, ...], ...]:
    target = engines()[0].target
    asked = held_questions()[:: max(1, len(held_questions()) // QUESTIONS)][:QUESTIONS]
    built = [
        build_prompt(Prompting(target.tokenizer, target.template, False), [Message("user", one.text)]) for one in asked
    ]
    return tuple(tuple(one.ids) for one in built)


def plain_answer(alone: Engine, done: Done) -> list[int]:
    """The answer of plain decoding, with knobs changed where the turn's were."""
    tokens: list[int] = []
    if not done.tokens:
        return tokens
    for event in alone.generate(done.ids, done.knobs.replace(mode="plain", max_tokens=len(done.tokens))):
        tokens += event.tokens
        if done.changed is not None and len(tokens) == done.changed[0]:
            alone.change(done.changed[1].replace(mode="plain"))
    return tokens


def compare(alone: Engine, done: Done, report: Report, seed: str) -> None:
    """Token for token; where the two best scores are nearer than the bound, what follows may differ."""
    plain = plain_answer(alone, done)
    agreed = first_difference(done.tokens, plain)
    report.counts["tokens"] += len(done.tokens)
    if agreed is None and len(plain) == len(done.tokens):
        return
    if agreed is not None:
        distance = gap(alone.target, done.ids, plain[:agreed], done.knobs_at(agreed))
        if distance < NEAR_TIE:
            report.near_ties += 1
            return
    what = (
        f"token {agreed}, gap {distance:.2g}"
        if agreed is not None
        else f"{len(plain)} tokens against {len(done.tokens)}"
    )
    report.differences.append(Finding("another answer than plain decoding", seed, f"{what}: {done}"))


def run(seed: int, folder: Path, *, turns: int = 0, seconds: float = 0.0) -> Report:
    """Turns on one engine until `turns` are done or `seconds` are over."""
    report, watermark, began = Report("soak", seed), Watermark(), time.monotonic()
    engine, alone = engines()
    engine.reset()
    soak = Soak(engine, np.random.default_rng(seed), questions(), CONTEXT, LONGEST)
    for number in itertools.count():
        if (turns and number >= turns) or (seconds and time.monotonic() - began > seconds):
            break
        name = f"{seed}, turn {number}"
        try:
            done = soak.turn()
        except Exception as error:
            trace = folder / f"soak-{seed}-{number}.trace"
            trace.write_text("".join(traceback.format_exception(error)))
            finding = Finding(f"{type(error).__name__}: {error}", name, "", str(trace))
            (report.differences if isinstance(error, AssertionError) else report.crashes).append(finding)
            engine.reset()
            continue
        report.counts["turns"] += 1
        compare(alone, done, report, name)
        if number % WARM == WARM - 1:
            watermark.look(report)
    report.counts.update({f"way {way}": count for way, count in soak.ends.items()})
    report.seconds = time.monotonic() - began
    return report
