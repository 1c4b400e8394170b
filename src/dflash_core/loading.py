"""Files in, models out: `load_target` and `load_draft`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.backends.cuda.driver import find_driver
from dflash_core.backends.opened import Target
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import Code, DeviceError, UnsupportedError, cpu_instead
from dflash_core.fits import DEFAULT_CARD, CardOptions, MemoryEstimator
from dflash_core.memory import checked_experts, gib
from dflash_core.progress import Progress, silent

if TYPE_CHECKING:
    from dflash_core.backends.cuda.meta import PlannedCard


@cpu_instead()
def load_target(
    path: str | Path,
    device: str = "cpu",
    *,
    packed: bool | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
    card: CardOptions = DEFAULT_CARD,
) -> Target:
    """Load a target GGUF. `packed` keeps weights quantised in memory; by default only where floats would not fit.

    Raises FormatError, UnsupportedError, DeviceError, OutOfMemoryError.
    """
    target = open_target(path, device, progress=progress, card=card)
    target.check_memory(None, None)
    target.load(packed=packed, dtype=dtype, progress=progress or silent)
    return target


@cpu_instead()
def open_target(
    path: str | Path, device: str = "cpu", *, progress: Progress | None = None, card: CardOptions = DEFAULT_CARD
) -> Target:
    """Read a target's header only. Raises FormatError, UnsupportedError, DeviceError."""
    (progress or silent)("reading the target's header", 0.0)
    if device == "cuda":
        return _on_card(path, card)
    if device not in ("cpu", "auto"):
        raise DeviceError(f"unknown device {device!r}; expected auto, cpu or cuda", code=Code.NO_DEVICE)
    if device == "auto" and _driver_is_there():
        try:
            return _on_card(path, card)
        except (DeviceError, UnsupportedError) as error:
            return _on_cpu(path, card, f"the GPU is not used: {error}")
    return _on_cpu(path, card)


def _on_cpu(path: str | Path, card: CardOptions, *notes: str) -> Target:
    target = CpuTarget(path)
    words = {
        "activations": f"inputs of products as {card.activations} on the card",
        "draft_type": f"a drafter as {card.draft_type} on the card",
        "embedding": "a token embedding in main memory, not on the card",
        "experts": f"experts in main memory ({checked_experts(card.experts)}), not on the card",
        "reading": f"prompts in {card.reading} on the card",
        "tune": "no timing of the card's kernels",
        "vram_limit": f"a limit of {gib(card.vram_limit)} for the card",
    }
    given = (text for name, text in words.items() if getattr(card, name) != getattr(DEFAULT_CARD, name))
    target.notes = (*notes, *(f"{text}: no effect on the CPU" for text in given))
    return target


def _on_card(path: str | Path, card: CardOptions, device: Any = None) -> Target:
    """`device`: a substitute for the card, to plan with."""
    from dflash_core.backends.cuda.target import CudaTarget  # takes 0.1 s

    return CudaTarget(path, card, device=device)


def _driver_is_there() -> bool:
    try:
        find_driver()
    except DeviceError:
        return False
    return True


def load_draft(
    path: str | Path, target: Target, *, dtype: torch.dtype = torch.float32, progress: Progress | None = None
) -> Draft:
    """Load a drafter for `target`: a DFlash one (z-lab directory or safetensors file, or a GGUF of the three flavours),
    or "ngram", which needs no file.

    Raises FormatError, UnsupportedError, OutOfMemoryError, MismatchError where it was made for another target, and
    ContextError for two of one kind.
    """
    return open_draft(path, target).load(dtype=dtype, progress=progress)


@cpu_instead()
def estimator_of(
    target: str | Path,
    draft: str | Path | None = None,
    device: str = "auto",
    *,
    memory: int = 0,
    card: CardOptions = DEFAULT_CARD,
) -> MemoryEstimator:
    """What predicts the memory of a pair, for any number of plans: it reads only headers, and needs no card.

    `memory`: bytes of a card (or on the CPU, of main memory) to plan for; by default those of this machine. Raises what
    `open_target` and `open_draft` raise.
    """
    planned = planned_card(device, memory, card)
    opened = CpuTarget(target, memory) if planned is None else _on_card(target, card, planned.device())
    named = opened.own_draft if draft is None else draft
    return opened.estimator(open_draft(named, opened) if named is not None else None)


def planned_card(device: str, memory: int, card: CardOptions) -> PlannedCard | None:
    """The card to plan for, None for the CPU. Raises DeviceError or UnsupportedError."""
    if device == "cpu" or (device == "auto" and not memory and not card.vram_limit and not _driver_is_there()):
        return None
    from dflash_core.backends.cuda.meta import card_here, card_of

    # With a card, a limit makes it a smaller one; without a card, it is the size of the card to plan for.
    here = not memory and (device == "cuda" or _driver_is_there())
    return card_here() if here else card_of(memory or card.vram_limit)
