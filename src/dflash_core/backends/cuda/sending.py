"""Small copies to the device that are not waited for."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def send(values: npt.NDArray[Any], to: Tensor) -> None:
    """Copy `values` to a tensor of their size and type, in order with what is queued.

    From page-locked memory, which torch keeps until it is read: from any other it would wait for all that is queued.
    """
    source = torch.from_numpy(values)
    to.copy_(source.pin_memory() if to.is_cuda else source, non_blocking=True)
