"""How far an experiment is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """`done` of `total` parts; `left_s`, the seconds that the others will take, is None until it can be told."""

    done: int
    total: int
    left_s: float | None
    doing: str
