"""How inputs of matrix products are rounded on a card, and the choices that a user has by name; bytes of activations in
the forms that matmuls read (kernels/acts.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.errors import UnsupportedError

ROWS, GROUP = 64, 256
Q8_BLOCK, F16_BLOCK = 2208, 4384
Q8_GROUP, F16_GROUP = 16 * Q8_BLOCK, 8 * F16_BLOCK  # bytes of 64 rows x 256 k


def q8_read(plane_bits: int, spans: int) -> int:
    """Bytes that a launch reads of an int8 block, including its second plane or second scales."""
    return Q8_BLOCK + (Q8_BLOCK if plane_bits else 32 if spans > 1 else 0)


@dataclass(frozen=True, slots=True)
class Rounding:
    """The rounding of the inputs of one launch with integer weights; kernels/acts.cuh has the layouts.

    `half`: f16 instead of int8. `planes`: 2 for a second plane of int8 with 2 to 4 more bits, as many as the weight
    type allows. `spans`: scales per 256 inputs, 1 or 2; only 1 with a second plane.
    """

    half: bool = False
    planes: int = 1
    spans: int = 1

    def __str__(self) -> str:
        """The suffix of a product's name; empty for plain int8."""
        if self.half:
            return " f16"
        return f" {self.planes} planes" if self.planes > 1 else f" {self.spans} scales" if self.spans > 1 else ""


# Tensors whose inputs lose the most accuracy by coarse rounding, and the head, which in some files is the embedding.
OUTPUTS, HEADS = ("ssm_out", "ffn_down"), ("output", "token_embd")

INT8 = Rounding()
F16 = Rounding(half=True)


@dataclass(frozen=True, slots=True)
class Activations:
    """A named choice of roundings. `outputs`: for inputs of ssm_out and ffn_down, which lose the most accuracy by
    coarse rounding; `head`: for the head; `inputs`: for the other tensors, and for the whole drafter."""

    name: str
    inputs: Rounding
    outputs: Rounding
    head: Rounding

    def of(self, name: str) -> Rounding:
        """The rounding of the inputs of the tensor `name`, with or without its layer prefix."""
        role = name.removesuffix(".weight").split(".")[-1]
        return self.outputs if role in OUTPUTS else self.head if role in HEADS else self.inputs

    @property
    def drafter(self) -> Activations:
        """The roundings of the drafter's layers: there only speed matters, since the target verifies all drafts."""
        return Activations(self.name, self.inputs, self.inputs, self.inputs)


DEFAULT = Activations("int8", INT8, INT8, INT8)
MIXED = Activations("mixed", INT8, Rounding(planes=2), Rounding(spans=2))
CHOICES = {c.name: c for c in (DEFAULT, MIXED, Activations("f16", F16, F16, F16))}


def activations(name: str) -> Activations:
    """The choice of that name. Raises UnsupportedError."""
    if name not in CHOICES:
        raise UnsupportedError(f"activations {name!r}, expected one of {' '.join(CHOICES)}")
    return CHOICES[name]
