"""The numbers that multiply whole NVFP4 matrices: tensors of their own in a file, part of the matrices here."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.weights import shown

SCALE, INPUT_SCALE = ".scale", ".input_scale"
"""Endings of the names: what multiplies the weights, and what other programs round activations by."""


def with_factors(file: GGUFFile, others: Container[str] = ()) -> GGUFFile:
    """The file without its scale tensors, which are now the `factors` of their matrices; `others` are tensors of the
    model that are called alike.

    A matrix has one, a tensor of experts one per expert: NAME.scale or NAME.weight.scale for NAME.weight (llama.cpp's
    converter). Scales of activations are left out: these are rounded here by what they are. Raises FormatError, and
    UnsupportedError for a factor of another type of tensor.
    """
    found = [name for name in file.tensors if name.endswith((SCALE, INPUT_SCALE)) and name not in others]
    tensors = {name: info for name, info in file.tensors.items() if name not in found}
    for name in found:
        if name.endswith(INPUT_SCALE):
            continue
        base = name.removesuffix(SCALE).removesuffix(".weight") + ".weight"
        info = tensors.get(base)
        if info is None:
            raise FormatError(f"{file.path} has no {shown(base)}, which {shown(name)} multiplies; convert it again")
        if info.type != "NVFP4":
            raise UnsupportedError(
                f"{file.path}: {shown(name)} multiplies a tensor of type {info.type}, expected NVFP4; use another file"
                " of the model"
            )
        factors = file.float32(name).reshape(-1)
        count = info.shape[0] if len(info.shape) > 2 else 1
        if len(factors) != count or not np.isfinite(factors).all():
            raise FormatError(
                f"{file.path}: {shown(name)} has {len(factors):,} numbers, expected {count:,} finite; convert it again"
            )
        tensors[base] = replace(info, factors=tuple(map(float, factors)))
    return replace(file, tensors=tensors)
