"""The drafter under training on disk: bfloat16, in files small enough to be sent back one by one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tools.train_demo.shapes import Weights

MOST = 15 << 20
"""Bytes of a file."""
NAME = "drafter-{}.safetensors"


def save(folder: Path, weights: Weights) -> None:
    """Write the weights as drafter-1.safetensors, drafter-2 and so on; each file replaces an older one as a whole."""
    parts: list[Weights] = [{}]
    size = 0
    for name, w in weights.items():
        size += 2 * w.numel()
        if size > MOST and parts[-1]:
            parts.append({})
            size = 2 * w.numel()
        parts[-1][name] = w.detach().to("cpu", torch.bfloat16).contiguous()
    for number, part in enumerate(parts, 1):
        new = folder / (NAME.format(number) + ".new")
        save_file(part, new)
        new.replace(folder / NAME.format(number))


def load(folder: Path) -> Weights:
    """The weights in float32."""
    files = sorted(folder.glob(NAME.format("*")))
    return {name: w.float() for file in files for name, w in load_file(file).items()}
