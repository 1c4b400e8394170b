"""Acceptance lengths in plain torch, without the decoder.

Speculative decoding is lossless, so with greedy sampling its text is known in advance: the target's own greedy answer.
Drafts for every position of that answer are computed in one pass, and the steps are then simulated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.tree import Candidates, build, walk

from .draft_net import draft_forward
from .pieces import linear
from .shapes import DraftConfig, TargetConfig, Weights
from .target_net import target_forward


@torch.no_grad()
def draft_candidates(
    c: TargetConfig, w: Weights, dc: DraftConfig, dw: Weights, ids: Tensor, anchors: Tensor, width: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and log-probabilities (anchors, block - 1, width) of the drafts at each anchor of one text ids (S,)."""
    seg = torch.zeros_like(ids)[None]
    _, features = target_forward(c, w, ids[None], seg, dc.captured_layers)
    block = torch.full((len(anchors), dc.block), dc.mask_id, device=ids.device)
    block[:, 0] = ids[anchors]
    noise = torch.nn.functional.embedding(block, w["token_embd.weight"])[None]
    out = draft_forward(dc, dw, features, seg, anchors[None], torch.zeros_like(anchors)[None], noise)
    logits = linear(out[0, :, 1:], w["output.weight"]).float()
    best = logits.log_softmax(-1).topk(width, dim=-1)
    return best.indices.cpu().numpy(), best.values.double().cpu().numpy()


def steps(
    tokens: np.ndarray, log_probs: np.ndarray, text: Sequence[int], budget: int, *, chain: bool = False
) -> list[int]:
    """Tokens committed by each step over `text` (the answer, its first token included), as the decoder counts them."""
    out, at = [], 0
    while at < len(text) - 1:
        width = 1 if chain else tokens.shape[-1]
        drafts = Candidates(tokens[at][:, :width].astype(np.int64), log_probs[at][:, :width])
        tree = build(text[at], drafts, min(budget, tokens.shape[1]) if chain else budget)

        def draw(_: int, path: list[int], at: int = at) -> int:
            return text[at + 1 + len(path)] if at + 1 + len(path) < len(text) else -1

        accepted = len(walk(tree, draw).path) - 1
        took = min(accepted + 1, len(text) - 1 - at)
        out.append(took)
        at += took
    return out


def acceptance(
    c: TargetConfig, w: Weights, dc: DraftConfig, dw: Weights, texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    budgets: Sequence[int] = (22,), limit: int = 128,
) -> dict[str, float]:  # fmt: skip
    """Acceptance length over (prompt, greedy answer) pairs: "chain" of block - 1, and a tree of each budget."""
    device = w["output.weight"].device
    made: dict[str, list[int]] = {"chain": [], **{str(b): [] for b in budgets}}
    for prompt, answer in texts:
        text = list(answer)[:limit]
        if len(text) < 2:
            continue
        ids = torch.tensor([*prompt, *text], device=device)
        anchors = torch.arange(len(prompt), len(ids) - 1, device=device)
        tokens, log_probs = draft_candidates(c, w, dc, dw, ids, anchors)
        made["chain"] += steps(tokens, log_probs, text, dc.block - 1, chain=True)
        for b in budgets:
            made[str(b)] += steps(tokens, log_probs, text, b)
    return {name: sum(s) / len(s) for name, s in made.items() if s}
