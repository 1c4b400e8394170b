"""The held-out prompts that the pair is measured on: generated ones, and benchmark files from a folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dflash_core.bench.prompts import read_prompts

from .corpus import build
from .corpus.base import Exchange

FILES = {"HumanEval": ("HumanEval.jsonl.gz", "prompt"), "gsm8k_test": ("gsm8k_test.jsonl.gz", "question")}
HELD_DOCUMENTS = 4000
"""Generated held-out documents that are numbered and checked for near-copies."""


@dataclass(frozen=True)
class Question:
    """A prompt and, for generated ones, the expected exchange."""

    number: int
    text: str
    expected: Exchange | None = None


@cache
def _held() -> tuple[build.Document, ...]:
    return tuple(build.generated(HELD_DOCUMENTS, "held"))


def held_questions(families: Collection[str] | None = None) -> list[Question]:
    """The last question of every generated held-out document, of some families or of all, each text once."""
    out: dict[str, Question] = {}
    for number, document in enumerate(_held()):
        if families is None or document.exchange.family in families:
            text = document.exchange.user
            out.setdefault(text, Question(number, text, document.exchange))
    return list(out.values())


def file_questions(folder: Path, name: str) -> list[Question]:
    """The prompts of one benchmark file."""
    file, _ = FILES[name]
    return [Question(number, task.text) for number, task in enumerate(read_prompts(folder / file))]
