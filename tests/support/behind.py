"""Drafts after a context of which only the features count, not the tokens that they belong to."""

from __future__ import annotations

import numpy as np
import torch

from dflash_core.backends.base import Logits
from dflash_core.backends.cpu.dflash import CpuDFlashDrafter
from dflash_core.backends.cuda.chunk import HEADROOM
from dflash_core.backends.cuda.drafters.base import PENDING_ROWS
from dflash_core.backends.cuda.drafters.dflash import DFlash
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target import CudaTarget
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.drafters.draft import Draft
from dflash_core.models.norm import rms_norm


def draft_logits(draft: Draft | None, features: Logits, anchor: int, card: DeviceTarget | None = None) -> Logits:
    """Logits (block - 1, vocab) of a block after a context with these features (n, layers * hidden) and `anchor`.
    `card`: the target of a drafter on a card, where that has none."""
    assert draft is not None
    if draft.drafter is None:
        return card_behind(draft, features, card).draft(anchor, 0)
    return behind(draft, features).logits(anchor, 0)


def behind(draft: Draft, features: Logits) -> CpuDFlashDrafter:
    """A drafter on the CPU that has seen a context."""
    assert draft.drafter is not None
    drafter = draft.drafter()
    assert isinstance(drafter, CpuDFlashDrafter)
    drafter.observe(range(len(features)), torch.from_numpy(features).to(draft.model.output_norm.dtype))
    return drafter


def card_behind(draft: Draft, features: Logits, card: DeviceTarget | None = None) -> CudaSession:
    """The same on a card: a session whose drafter has seen a context, and whose target has not."""
    if card is None:
        assert isinstance(draft.target, CudaTarget)
        card = draft.target.model
    session = CudaSession(card, draft.model, context=len(features))
    drafter, rows = session.drafter, torch.from_numpy(np.ascontiguousarray(features, np.float32))
    assert isinstance(drafter, DFlash)
    with session.device.stream():
        for part in rows.split(PENDING_ROWS):
            norms = drafter.draft.aux_norm
            if norms is not None:
                taps = part.to(norms.device).view(len(part), *norms.shape)
                part = rms_norm(taps, norms, drafter.draft.config.rms_eps).flatten(1)
            drafter.pending_rows[: len(part)] = (part * HEADROOM).to(drafter.pending_rows.device)
            drafter.state.host["length"] += len(part)
            drafter.update_cache(session.launch)
    return session
