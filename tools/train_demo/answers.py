"""The target's own answers to many prompts at once, in plain torch without the decoder."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import torch

from . import tokenizer as tok
from .data import ANSWER, Documents
from .decode import decode_state, target_step
from .shapes import TargetConfig, Weights


@torch.no_grad()
def answer_all(
    c: TargetConfig, w: Weights, prompts: list[np.ndarray], *, batch: int, most: int, temperature: float, seed: int,
    deadline: float = math.inf,
) -> list[np.ndarray]:  # fmt: skip
    """The target's answers to prompts (n,) of ids, as int32; the end token is part of those that end within `most`.

    All sequences of a batch advance together from position 0: a sequence still inside its prompt is fed the prompt.
    Prompts after the deadline get an empty answer.
    """
    device = w["output.weight"].device
    end = tok.token_id("<|im_end|>")
    draws = torch.Generator(device=device).manual_seed(seed)
    out: list[np.ndarray] = [np.zeros(0, np.int32) for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    groups = [order[i : i + batch] for i in range(0, len(order), batch)]
    np.random.default_rng(seed).shuffle(groups)  # else a deadline would drop the longest prompts
    for group in groups:
        if time.monotonic() > deadline:
            break
        # The last group is filled up to `batch` rows, so that compiled pieces see one shape.
        sizes = torch.tensor([len(prompts[i]) for i in group] + [1] * (batch - len(group)), device=device)
        longest = int(sizes.max())
        text = torch.zeros(batch, longest + most + 1, dtype=torch.long, device=device)
        host = np.zeros((len(group), longest), np.int64)
        for row, i in enumerate(group):
            host[row, : len(prompts[i])] = prompts[i]
        text[: len(group), :longest] = torch.from_numpy(host).to(device)
        done = sizes == 1
        ends = sizes + most
        state = decode_state(c, batch, longest + most, device, w["output.weight"].dtype)
        for t in range(longest + most - 1):
            logits = target_step(c, w, state, text[:, t])
            if temperature > 0:
                # Gumbel noise: the best of the noisy logits is a draw from their softmax.
                noise = torch.rand(logits.shape, device=device, generator=draws).clamp_(1e-10, 1 - 1e-7)
                logits = logits / temperature - (-noise.log()).log()
            token = logits.argmax(-1)
            writes = (t + 1 >= sizes) & ~done & (t + 1 < ends)
            text[:, t + 1] = torch.where(writes, token, text[:, t + 1])
            finished = writes & (token == end)
            ends = torch.where(finished, t + 2, ends)
            done |= finished | (t + 2 >= ends) & (t + 1 >= sizes)
            if t % 8 == 0 and bool(done.all()):  # reading it synchronises with the GPU
                break
        rows, stops = text.cpu().numpy(), ends.cpu().numpy()
        for row, i in enumerate(group):
            out[i] = rows[row, len(prompts[i]) : stops[row]].astype(np.int32)
    return out


def plain_prompts(documents: Documents, picked: Sequence[int], longest: int) -> list[np.ndarray]:
    """Prompts of the picked documents that ask for an answer without thinking."""
    closed = tok.token_id("</think>")
    out = []
    for i in picked:
        row = documents[i]
        size = int(np.argmax(row >= ANSWER))
        if size <= longest and closed in row[max(0, size - 3) : size]:
            out.append(row[:size].astype(np.int64))
    return out
