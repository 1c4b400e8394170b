"""How a training run of a draft head on the frozen demo target begins and ends: options, log, device, exit."""

from __future__ import annotations

import argparse
import os
from multiprocessing import active_children
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from dflash_core.demo import demo_target_path

from .loop import Log
from .pieces import prepare_card

WRITING_S = 25  # seconds set aside for the last check and for writing the file


def head_options(description: str | None, *, seconds: float, documents: int) -> argparse.ArgumentParser:
    """The options of every head; `seconds` and `documents` are defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=Path, default=demo_target_path(), help="the target to draft for")
    parser.add_argument("--time-limit", type=float, default=seconds, help="seconds in all")
    parser.add_argument("--documents", type=int, default=documents, help="documents to generate")
    parser.add_argument("--batch", type=int, default=16, help="rows of --length tokens")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=max(0, (os.cpu_count() or 1) - 2))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="compile nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def begun(a: argparse.Namespace, log_name: str) -> tuple[Log, torch.device, float]:
    """The log, the device, and when training has to end, by the monotonic clock."""
    a.out.mkdir(parents=True, exist_ok=True)
    log, device = Log(a.out / log_name), torch.device(a.device)
    if device.type == "cuda":
        prepare_card(compiled=not a.plain)
    return log, device, log.start + a.time_limit - WRITING_S


def rounded(values: Tensor) -> list[float]:
    """The values with four decimals, for the log."""
    return [round(float(value), 4) for value in values.detach()]


def end_now() -> NoReturn:
    """Exit without waiting for the worker processes that generate the next epoch: they are stopped."""
    for worker in active_children():
        worker.terminate()
    os._exit(0)
