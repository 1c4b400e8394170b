"""Random scalings of rotary positions, as Hugging Face's settings and as keys of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np


@dataclass(frozen=True)
class Scaled:
    """Fields that are None are left out of the file."""

    kind: str
    factor: float
    original: int
    attention: float | None
    turns: tuple[float, float] | None

    @staticmethod
    def random(seed: int) -> Scaled:
        rng = np.random.default_rng(2000 + seed)
        return Scaled(
            kind="linear" if seed % 4 == 3 else "yarn",
            factor=float(rng.choice([1.5, 2, 4, 8])),
            original=int(rng.choice([24, 48, 100])),  # so short that a prompt of 150 tokens tells all pairs apart
            attention=(None, 1.0, 1.25)[seed % 3],
            turns=None if rng.integers(2) else (float(rng.choice([4, 8, 16])), float(rng.choice([0.5, 1, 2]))),
        )

    def hugging_face(self) -> dict[str, Any]:
        told: dict[str, Any] = {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "yarn":
            told["original_max_position_embeddings"] = self.original
            told |= {} if self.attention is None else {"attention_factor": self.attention}
            told |= dict(zip(("beta_fast", "beta_slow"), self.turns or ()))
        return told

    def keys(self, prefix: str) -> dict[str, Any]:
        """By their names in a GGUF file."""
        told: dict[str, Any] = {"type": self.kind, "factor": self.factor}
        if self.kind == "yarn":
            told["original_context_length"] = self.original
            told |= {} if self.attention is None else {"yarn_attn_factor": self.attention}
            told |= dict(zip(("yarn_beta_fast", "yarn_beta_slow"), self.turns or ()))
        return {f"{prefix}.rope.scaling.{name}": value for name, value in told.items()}

    def write(self, writer: gguf.GGUFWriter, prefix: str) -> None:
        for key, value in self.keys(prefix).items():
            {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)](key, value)
