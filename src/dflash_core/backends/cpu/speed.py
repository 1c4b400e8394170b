"""How slow a pass of the reference backend will be, before one is run."""

from __future__ import annotations

import time

import torch

from dflash_core.arch.spec import LayerSpec
from dflash_core.models.rows import Rows
from dflash_core.models.target import TargetModel


@torch.inference_mode()
def time_step(model: TargetModel, rows: int) -> float:
    """Predicted seconds of one target pass of `rows` rows: one timed layer per kind, times their number, plus the
    head in proportion to its weights. Rows are of different tokens, so that they choose different experts."""
    spec = model.spec
    tokens = [row % spec.vocab_size for row in range(rows)]
    batch = Rows.of(tokens, range(-1, rows - 1), 0)
    x = model.embed(tokens)
    given = model.given(tokens, x)
    seconds: dict[LayerSpec, float] = {}
    for index, block in enumerate(model.blk):
        if block.spec not in seconds:
            for _ in range(2):  # the first pass pays for page faults and thread pools that no later one sees
                states = model.new_states()
                if (source := model.state_of(index)) != index:
                    model.layer(source, x, batch, states, given)  # whose keys it reads
                started = time.perf_counter()
                model.layer(index, x, batch, states, given)
                seconds[block.spec] = time.perf_counter() - started
    total = sum(seconds[block.spec] for block in model.blk)
    hidden = spec.embedding_length
    weights = {layer: layer.active_numbers(hidden) for layer in seconds}
    return total + min(seconds[layer] / weights[layer] for layer in seconds) * spec.vocab_size * hidden
