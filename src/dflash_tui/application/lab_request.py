"""Parses the input of the lab's screens: `budget=4..63 p_min=0,0.1 repeats=3 prompts=FILE`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.arch.recommended import SAMPLING
from dflash_core.bench.prompts import SAMPLES, read_prompts, sample
from dflash_core.errors import DFlashError, KnobError
from dflash_core.knobs import Knobs
from dflash_core.lab.experiment import Case, default_repeats
from dflash_core.lab.grid import TREE_OR_CHAIN, Arm, Axis, joined, parse_axes, parse_pair
from dflash_core.limits import Limits

OPTIONS = ("repeats", "prompts", "samples")
SWEEP = "budget=4..63"
AB = TREE_OR_CHAIN


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure on: `prompts`, or else the last prompt of the conversation."""

    repeats: int | None = None
    prompts: Path | None = None
    samples: int = SAMPLES

    def cases(self, asked: Sequence[Case]) -> tuple[Case, ...]:
        """The prompts of the file, or else those `asked`. Raises FormatError, or DFlashError if there is none."""
        if self.prompts is not None:
            return tuple(map(Case.of, sample(read_prompts(self.prompts), self.samples)))
        if not asked:
            raise DFlashError("no prompt yet: ask something first, or name a file, prompts=FILE")
        return tuple(asked)

    def rounds(self, cases: int) -> int:
        """The requested repeats, or enough of them to show a difference."""
        return self.repeats or default_repeats(cases)


def adopted(arm: Arm, arms: Sequence[Arm], knobs: Knobs, brief: Sequence[str]) -> Knobs:
    """The setting of one of `arms` for a chat that has `knobs`: `brief`, and sampling that all of them had in common,
    were chosen for the measurement and stay the chat's."""
    common = [name for name in SAMPLING if all(getattr(one.knobs, name) == getattr(arm.knobs, name) for one in arms)]
    return arm.knobs.replace(**{name: getattr(knobs, name) for name in (*brief, *common)})


def parse_sweep(text: str) -> tuple[tuple[Axis, ...], Options]:
    """Axes and options. Raises KnobError."""
    settings, options = _words(text)
    return parse_axes(settings), _options(options)


def parse_ab(text: str, base: Knobs, limits: Limits) -> tuple[tuple[Arm, Arm], Options]:
    """Two settings and the options, which may be on either side of the bar. Raises KnobError."""
    sides = [_words(side) for side in text.split("|", 1)]
    pair = " | ".join(" ".join(settings) for settings, _ in sides)
    return parse_pair(pair, base, limits), _options([word for _, options in sides for word in options])


def parse_options(text: str) -> Options:
    """Options without a range. Raises KnobError."""
    unknown, options = _words(text)
    if unknown:
        raise KnobError(f"{unknown[0].rstrip('=')}: expected {', '.join(f'{name}=' for name in OPTIONS)}")
    return _options(options)


# Sizes of drafting as screens write them, tree 22 or auto up to 22: their spaces do not separate words.
_WITH_SIZE = re.compile(r"\b(?:tree|chain|auto(?: up to)?) +(?=\d)")
_NO_BREAK = "\u00a0"


def _words(text: str) -> tuple[list[str], list[str]]:
    """Split `name=value` pairs into settings and options; no name may occur twice."""
    try:
        found = shlex.split(_WITH_SIZE.sub(lambda size: size[0].replace(" ", _NO_BREAK), text))
    except ValueError:
        raise KnobError("a quotation mark is not closed; close it, or leave it out") from None
    words = joined(found)
    names = [word.partition("=")[0] for word in words]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise KnobError(f"{twice} is given twice; give it once")
    options = [word for word, name in zip(words, names) if name in OPTIONS]
    return [word for word in words if word not in options], options


def _options(words: Sequence[str]) -> Options:
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    found = Options(
        repeats=_count("repeats", given["repeats"]) if "repeats" in given else None,
        prompts=Path(given["prompts"]).expanduser() if "prompts" in given else None,
        samples=_count("samples", given["samples"]) if "samples" in given else SAMPLES,
    )
    if "samples" in given and found.prompts is None:
        raise KnobError("samples= draws from a file of prompts: give it, prompts=FILE")
    return found


def _count(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) < 1:
        raise KnobError(f"{name}={text}: expected a whole number from 1")
    return int(text[:9])
