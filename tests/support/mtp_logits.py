"""Logits of an MTP head for a whole text, each from the target's own hidden state before it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from dflash_core import load_draft
from dflash_core.backends.base import PREFILL_CHUNK, Logits
from dflash_core.backends.cuda.drafters.mtp import Mtp
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.opened import Target
from dflash_core.drafters.draft import Draft


def mtp_logits(target: Target, ids: Sequence[int]) -> Logits:
    """Of the head in a target's file, (n - 1, vocab): row p is from token p + 1 and the hidden state of position p."""
    head = load_draft("mtp", target)
    return teacher_forced(head, ids, target.hidden(ids, [target.config.block_count - 1]))


@torch.inference_mode()
def teacher_forced(head: Draft, tokens: Sequence[int], outputs: Logits) -> Logits:
    """Logits (n - 1, vocab) of n tokens with the outputs (n, hidden) of the target's last layer."""
    model, parts = head.model, []
    cache, hidden = model.new_state(), model.hidden(torch.from_numpy(outputs).to(model.enorm.dtype))
    for at in range(0, len(tokens) - 1, PREFILL_CHUNK):
        end = min(at + PREFILL_CHUNK, len(tokens) - 1)
        parts.append(model.logits(model.forward(tokens[at + 1 : end + 1], hidden[at:end], at, cache)))
    return torch.cat(parts).float().numpy()


def teacher_forced_on_card(session: CudaSession, tokens: Sequence[int], outputs: Logits) -> Logits:
    """The same by the head of an empty session."""
    drafter, rows = session.drafter, []
    assert isinstance(drafter, Mtp)
    with session.device.stream():
        for at, (token, root) in enumerate(itertools.pairwise(tokens)):
            drafter.tokens[drafter.length % len(drafter.tokens)] = token
            drafter.state.host["length"] += 1
            drafter.store(torch.from_numpy(outputs[at : at + 1]).to(drafter.hidden.device))
            rows.append(drafter.chain(root, 1, None, session.head, session.launch))
    return np.concatenate(rows)
