"""The arms of an experiment as a user types them, checked before anything runs: a pair, or all combinations of axes.

budget=4,15,22      these values
budget=4..63        from 4 to 63 in round steps, both ends included
budget=4..63:8      from 4 in steps of 8, and 63
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_core.drafters.capabilities import DRAFT_KNOBS
from dflash_core.drafting import canonical
from dflash_core.errors import KnobError
from dflash_core.knobs import Knobs, Spec, Value, described, parse_settings, spec_of
from dflash_core.limits import Limits
from dflash_core.policy.base import FixedPolicy

MAX_VALUES = 12  # of a range without a step
MAX_SETTINGS = 256
NICE = (1, 2, 4, 5, 8)
TREE_OR_CHAIN = "drafting=chain | drafting=tree"  # the preset of a comparison
ONLY_IN_TREES = frozenset({"tree_width", "chain_seed"})


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter and its values, each once, in the given order."""

    name: str
    values: tuple[Value, ...]

    @property
    def spec(self) -> Spec:
        return spec_of(self.name)


Role = Literal["", "now", "auto", "plain"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting of an experiment: its knobs, and the label that distinguishes it from others.

    `role`: the present setting, `auto`, plain decoding, or none. `model`: which of several loaded pairs runs it.
    """

    label: str
    knobs: Knobs
    role: Role = ""
    model: int = 0


def parse_axis(text: str) -> Axis:
    """Read `name=values`. Raises KnobError: unknown name, a value out of range, an invalid range."""
    name, _, values = (part.strip() for part in text.partition("="))
    if not name or not values:
        raise KnobError(f"{text}: expected NAME=VALUES, for example budget=4,15,22 or budget=4..63:8")
    spec, out = spec_of(name), list[Value]()
    if name == "policy":
        raise KnobError("policy is a former name; sweep whole settings: drafting=auto,tree=8,chain=7")
    for part in values.split(","):
        out += _range(spec, part) if ".." in part else [spec.parse(part)]
    return Axis(name, tuple(dict.fromkeys(out)))


def parse_axes(words: Sequence[str]) -> tuple[Axis, ...]:
    """One or two axes, each a word `name=values` or two words `name values`. Raises KnobError."""
    axes = tuple(map(parse_axis, joined(words)))
    if not 1 <= len(axes) <= 2:
        raise KnobError(f"{len(axes)} parameters to sweep, expected one or two; for example budget=4..63 p_min=0,0.1")
    if len({axis.name for axis in axes}) < len(axes):
        raise KnobError(f"{axes[0].name} is given twice; name two different parameters, or one")
    return axes


def joined(words: Sequence[str]) -> list[str]:
    """Words `name=values`: two words without an equals sign are joined, and a drafting without its name is named."""
    out = list[str]()
    for word, before in zip(words, ["", *words]):
        if out and (before.endswith(",") or out[-1].endswith("=")):
            out[-1] += word
        elif all(map(canonical, word.rstrip(",").split(","))):
            out.append(f"drafting={word}")
        else:
            out.append(word if "=" in word else f"{word}=")
    return out


def settings(axes: Sequence[Axis], base: Knobs, limits: Limits) -> tuple[Arm, ...]:
    """Every combination, the last axis fastest.

    Raises KnobError for combinations that the loaded pair with these `limits` cannot run, with the valid range.
    """
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_SETTINGS:
        raise KnobError(f"{count:,} combinations, at most {MAX_SETTINGS} are run; give a larger step: 4..63:8")
    out = []
    for values in itertools.product(*(axis.values for axis in axes)):
        changes = {axis.name: value for axis, value in zip(axes, values)}
        label = ", ".join(f"{axis.spec.label} {show(axis.spec, value)}" for axis, value in zip(axes, values))
        arm = Arm(label, base.replace(**changes))
        if any(changes.get(name, getattr(arm.knobs, name)) != getattr(arm.knobs, name) for name in ("mode", "budget")):
            raise KnobError(f"{label}: {changes['mode']} has no size; sweep sizes with mode=tree or mode=chain")
        check(arm, frozenset(changes), limits)
        out.append(arm)
    return tuple(out)


def check(arm: Arm, changed: frozenset[str], limits: Limits) -> None:
    """Raise KnobError if `arm` cannot run as requested, or if a `changed` value has no effect."""
    knobs, drafter = arm.knobs, limits.drafter and limits.drafter.named(arm.knobs.draft)
    limits.check(knobs, changed)
    if knobs.max_tokens < 2:
        raise KnobError("max_tokens=1 leaves no step to measure; expected 2 or more")
    mode = FixedPolicy(drafter).next(knobs).mode
    if mode == "plain" and (idle := sorted(changed & DRAFT_KNOBS)):
        why = "no drafter is loaded" if drafter is None else "drafting is plain"
        raise KnobError(f"{idle[0]} changes nothing where {why}; sweep it with drafting=tree and a drafter")
    if mode == "chain" and (idle := sorted(changed & ONLY_IN_TREES)):
        raise KnobError(f"{idle[0]} changes nothing in a chain; sweep it with drafting=tree")
    if drafter and mode == "chain" and "budget" in changed and knobs.budget > drafter.depths:
        found = f"the drafter's block of {drafter.block} makes chains of at most {drafter.depths}"
        raise KnobError(f"drafting={knobs.drafting}: {found}; expected 1 to {drafter.depths}, or a tree")


def show(spec: Spec, value: Value) -> str:
    """A value in its shortest spelling."""
    return f"{value:g}" if isinstance(value, float) else spec.show(value)


def _range(spec: Spec, text: str) -> list[Value]:
    span, _, step_text = text.partition(":")
    if spec.kind not in ("int", "float"):
        raise KnobError(f"{spec.name}={text}: a range needs numbers; expected {spec.allowed}")
    low_text, _, high_text = span.partition("..")
    low, high = (spec.parse(end) for end in (low_text, high_text))
    assert not isinstance(low, str)
    assert not isinstance(high, str)
    if low > high:
        raise KnobError(f"{spec.name}={text}: the range runs backwards; write {high_text}..{low_text}")
    try:
        step = (int if spec.kind == "int" else float)(step_text) if step_text else _nice_step(spec, high - low)
    except ValueError:
        step = 0
    if not (0 < step < math.inf):
        kind = "a whole number" if spec.kind == "int" else "a number"
        raise KnobError(f"{spec.name}: the step {step_text!r} is not {kind} above 0; for example {spec.name}=1..9:2")
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MAX_SETTINGS:
        raise KnobError(f"{spec.name}={text}: {count:,} values, at most {MAX_SETTINGS} are run; give a larger step")
    # Rounded: 3 * 0.1 is not 0.3 in binary, and labels and equal values would show it.
    return [*(spec.check(round(low + place * step, 9)) for place in range(count)), high]


def _nice_step(spec: Spec, span: float) -> float:
    """The smallest of 1, 2, 4, 5, 8, 10, 20, ... times the parameter's own step that gives few enough values."""
    unit = 1 if spec.kind == "int" else spec.step
    steps = (unit * nice * 10.0**power for power in itertools.count() for nice in NICE)
    return next(step for step in steps if span / step <= MAX_VALUES - 1)


def parse_pair(text: str, base: Knobs, limits: Limits) -> tuple[Arm, Arm]:
    """Two settings from `name=value ... | name=value ...`; without a bar, `base` against the given one.

    For an empty text, the preset. Both draw with the same seed where it is to be random. Raises KnobError: unknown or
    impossible settings, or two that are the same.
    """
    base = base.fixed()
    left, bar, right = (text.strip() or TREE_OR_CHAIN).partition("|")
    if not bar:
        left, right = "", left
    sides = [[word for word in side.split(" ") if word] for side in (left, right)]
    a, b = (_setting(words, base, limits) for words in sides)
    if not bar:
        names = [word.partition("=")[0] for word in sides[1]]
        a = Arm(", ".join(described(base, names)) + " (now)", base)
    if a.knobs == b.knobs:
        raise KnobError(f"both settings are the same ({a.label}); give two that differ, for example {TREE_OR_CHAIN}")
    return a, b


def _setting(words: list[str], base: Knobs, limits: Limits) -> Arm:
    if wrong := [word for word in words if "=" not in word]:
        raise KnobError(f"{wrong[0]}: expected NAME=VALUE, for example {TREE_OR_CHAIN}")
    changes = dict(word.split("=", 1) for word in words)
    label = " ".join(" ".join(words).split())  # a size is behind a no-break space
    arm = Arm(label or "now", base.replace(**parse_settings(changes)))
    check(arm, frozenset(changes), limits)
    return arm
