"""The measured runs of an experiment, and its progress, as data."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.lab.grid import Arm
from dflash_core.turn_stats import TurnReport


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured run. `right` is None where the answer cannot be scored, or was cut off by max_tokens."""

    setting: int
    prompt: int
    repeat: int
    report: TurnReport
    right: bool | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """The key that this run shares with runs of other arms."""
        return self.prompt, self.repeat


@dataclass(frozen=True, slots=True)
class Excluded:
    """A prompt that could not be measured."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The measured runs. `left`: the arms that were not dropped; None: all of them. `about` names machine and models;
    `complete` is False if it was cancelled before its last run had ended."""

    arms: tuple[Arm, ...]
    axes: tuple[str, ...]
    prompts: tuple[str, ...]
    repeats: int
    trials: tuple[Trial, ...]
    excluded: tuple[Excluded, ...]
    complete: bool
    about: tuple[tuple[str, str], ...] = ()
    base: int | None = None
    left: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """`done` of `total` parts; `left_s`: estimated seconds for the others, None until known."""

    done: int
    total: int
    left_s: float | None
    doing: str
