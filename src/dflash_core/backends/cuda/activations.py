"""How inputs of matrix products are rounded on a card, and what of it a user chooses by name."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Rounding:
    """Of the inputs of one launch, where its weights are of integer types; kernels/acts.cuh has the layouts.

    `half`: halves in place of integers. `planes`: 2 for a second plane of int8, which adds the 2 to 4 bits that the
    weights' codes leave room for. `spans`: scales per 256 inputs, 1 or 2; not with a second plane.
    """

    half: bool = False
    planes: int = 1
    spans: int = 1

    def __str__(self) -> str:
        """What is added to the name of a product; nothing where it is plain."""
        if self.half:
            return " f16"
        return f" {self.planes} planes" if self.planes > 1 else f" {self.spans} scales" if self.spans > 1 else ""


# Tensors whose inputs cost the most where they are coarse, and the head, which some files have as the embedding.
OUTPUTS, HEADS = ("ssm_out", "ffn_down"), ("output", "token_embd")

INT8 = Rounding()
F16 = Rounding(half=True)


@dataclass(frozen=True, slots=True)
class Activations:
    """A choice: roundings by what the inputs are. `outputs`: those of ssm_out and ffn_down, which cost the most when
    they are coarse. The drafter's are `inputs` throughout."""

    name: str
    inputs: Rounding
    outputs: Rounding
    head: Rounding

    def of(self, name: str) -> Rounding:
        """Of the inputs of the tensor of that name, as in a file or without its layer."""
        role = name.removesuffix(".weight").split(".")[-1]
        return self.outputs if role in OUTPUTS else self.head if role in HEADS else self.inputs

    @property
    def drafter(self) -> Activations:
        """What the drafter's layers take: its rounding is no matter of exactness, its time is."""
        return Activations(self.name, self.inputs, self.inputs, self.inputs)


DEFAULT = Activations("int8", INT8, INT8, INT8)
MIXED = Activations("mixed", INT8, Rounding(planes=2), Rounding(spans=2))
CHOICES = {c.name: c for c in (DEFAULT, MIXED, Activations("f16", F16, F16, F16))}


def activations(name: str) -> Activations:
    """The choice of that name. Raises UnsupportedError."""
    if name not in CHOICES:
        raise UnsupportedError(f"activations {name!r} are unknown, expected one of {' '.join(CHOICES)}")
    return CHOICES[name]
