"""Small copies to the device that the host does not wait for."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def send(values: npt.NDArray[Any], to: Tensor) -> None:
    """Copy `values` to a tensor of the same size and type, in stream order.

    The source is page-locked, and torch keeps it until it was read. From other memory, the copy would wait for all
    queued work.
    """
    source = torch.from_numpy(values)
    to.copy_(source.pin_memory() if to.is_cuda else source, non_blocking=True)
