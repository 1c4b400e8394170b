"""The progress of an experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """`done` of `total` parts; `left_s`: estimated seconds for the others, None until known."""

    done: int
    total: int
    left_s: float | None
    doing: str
