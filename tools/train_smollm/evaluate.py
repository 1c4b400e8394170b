"""Acceptance on held-out prompts, simulated over the target's own answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tools.train_demo import data
from tools.train_demo.selector_head import SelectorHead
from tools.train_demo.shapes import Weights

from .llama import LlamaConfig
from .scripts import ANSWER, Scripts
from .writing import Manner, Writer

BATCH = 16
"""Texts whose drafts are made at once."""


@dataclass(frozen=True)
class Answered:
    """Prompts with the target's answers, a row each: tokens with the ANSWER bit and seg (n, S), and where each answer
    begins and ends (n,)."""

    tokens: Tensor
    seg: Tensor
    begins: list[int]
    ends: list[int]


def answered(
    c: LlamaConfig, w: Weights, sets: Mapping[str, Sequence[list[int]]], heats: Sequence[float], *, longest: int,
    graph: bool, seed: int,
) -> dict[str, dict[float, Answered]]:  # fmt: skip
    """The target's answers of at most `longest` tokens to every prompt, at each temperature."""
    prompts = [ids for one in sets.values() for ids in one]
    rows = [(prompts[0], ANSWER)] * 2 + [(ids, ANSWER) for ids in prompts]
    length = max(map(len, prompts)) + longest + 1
    length += -length % 8  # what fused attention wants of a mask
    writer = Writer(
        c, w, Scripts.of(rows, [2]), Manner(again=0.0, longest_answer=longest), batch=len(prompts), length=length,
        seed=seed,
    )  # fmt: skip
    if graph:
        writer.capture()
    out: dict[str, dict[float, Answered]] = {name: {} for name in sets}
    for heat in heats:
        writer.begin(torch.arange(2, 2 + len(prompts), device=writer.at.device), heat)
        tokens, seg = writer.fill()
        at = 0
        for name, one in sets.items():
            here = slice(at, at + len(one))
            at += len(one)
            own = (tokens[here] >= data.ANSWER).cpu().numpy()
            begins = [len(ids) for ids in one]
            ends = [b + int(np.argmin(row[b:])) for b, row in zip(begins, own, strict=True)]
            out[name][heat] = Answered(tokens[here], seg[here], begins, ends)
    return out


def leading(right: np.ndarray) -> np.ndarray:
    """Leading right tokens of each block: (n, depths) booleans -> (n,)."""
    counts: np.ndarray = np.cumprod(right, axis=-1).sum(-1)
    return counts


def walked(accepted: Sequence[int]) -> list[tuple[int, int]]:
    """The steps over one answer whose blocks have `accepted` right tokens from each position on: (what a step accepted,
    what it committed)."""
    out, at, last = [], 0, len(accepted)
    while at < last:
        took = min(int(accepted[at]) + 1, last - at)
        out.append((int(accepted[at]), took))
        at += took
    return out


@torch.no_grad()
def acceptance(model: SelectorHead, head: Weights, texts: Answered) -> dict[str, dict[str, object]]:
    """For the plain scores and the selector's path: tokens a step, steps, and the share of steps that accept at least
    1, 2, .. drafts."""
    depths = model.config.block - 1
    steps: dict[str, list[tuple[int, int]]] = {"plain": [], "selector": []}
    longest = max(e - b for b, e in zip(texts.begins, texts.ends, strict=True))
    for at in range(0, len(texts.begins), BATCH):
        here = slice(at, at + BATCH)
        tokens, seg = texts.tokens[here], texts.seg[here]
        begins = torch.tensor(texts.begins[here], device=tokens.device)
        anchor = (begins[:, None] + torch.arange(longest, device=tokens.device)).clamp(max=tokens.shape[1] - 1)
        hidden = model.hidden(head, tokens, seg, anchor, torch.zeros_like(anchor))
        ids = (tokens & (data.ANSWER - 1)).long()
        root = ids.gather(1, anchor)
        index = anchor[..., None] + torch.arange(1, depths + 1, device=tokens.device)
        ends = torch.tensor(texts.ends[here], device=tokens.device)
        inside = index < ends[:, None, None]
        truth = ids.gather(1, index.clamp(max=ids.shape[1] - 1).flatten(1)).view(index.shape)
        for name, path in zip(steps, model.paths(head, hidden, root), strict=True):
            counts = leading(((path == truth) & inside).cpu().numpy())
            for row, (b, e) in enumerate(zip(texts.begins[here], texts.ends[here], strict=True)):
                steps[name] += walked(counts[row, : max(0, e - b - 1)].tolist())
    out: dict[str, dict[str, object]] = {}
    for name, taken in steps.items():
        found = np.array(taken or [(0, 0)])
        rates = [round(float((found[:, 0] >= depth).mean()), 4) for depth in range(1, depths + 1)]
        out[name] = {"tokens_a_step": round(float(found[:, 1].mean()), 4), "steps": len(found), "depths": rates}
    return out
