"""The drafter against a float64 twin written from the formulas, row by row: masks, windows, and the cached context."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_core import Knobs, load_draft
from dflash_core.backends.cpu.dflash import CpuDFlash
from dflash_core.config import DraftConfig
from dflash_core.formats.weights import WeightFile
from dflash_core.models.dflash import DFlash
from dflash_core.models.matrix import Weights
from support.golden import golden, target

LENGTH, ANCHOR, WINDOW = 40, 17, 24


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def rotated(head: np.ndarray, position: int, base: float) -> np.ndarray:
    half = len(head) // 2
    angle = position * base ** (-2 * np.arange(half) / len(head))
    a, b = head[:half], head[half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def twin(file: WeightFile, config: DraftConfig, features: np.ndarray, noise: np.ndarray, window: int) -> np.ndarray:
    """Hidden rows of the block, (block, hidden); every query looks at every key and asks whether it may see it."""
    w = {name: file.float32(name).astype(np.float64) for name in file.tensors}
    fused = norm(features.astype(np.float64) @ w["fc.weight"].T, w["enc.output_norm.weight"])
    h, start = noise.astype(np.float64), len(features)
    d, group = config.key_length, config.head_count // config.head_count_kv
    for layer in range(config.block_count):
        p = f"blk.{layer}."
        x = norm(h, w[p + "attn_norm.weight"])
        rows = np.concatenate([fused, x])
        keys = (rows @ w[p + "attn_k.weight"].T).reshape(len(rows), -1, d)
        values = (rows @ w[p + "attn_v.weight"].T).reshape(len(rows), -1, d)
        queries = (x @ w[p + "attn_q.weight"].T).reshape(len(x), -1, d)
        out = np.zeros_like(queries)
        for j in range(len(x)):
            for head in range(config.head_count):
                q = rotated(norm(queries[j, head], w[p + "attn_q_norm.weight"]), start + j, config.rope_freq_base)
                scores, seen = [], []
                for position in range(len(rows)):
                    behind = start + j - position
                    if config.causal[layer] and behind < 0:
                        continue
                    if config.sliding[layer] and behind >= config.sliding_window:
                        continue
                    if window and position < start - window:
                        continue
                    k = norm(keys[position, head // group], w[p + "attn_k_norm.weight"])
                    scores.append(q @ rotated(k, position, config.rope_freq_base) / np.sqrt(d))
                    seen.append(position)
                weights = np.exp(np.array(scores) - max(scores))
                out[j, head] = weights / weights.sum() @ values[seen, head // group]
        h = h + out.reshape(len(x), -1) @ w[p + "attn_output.weight"].T
        x = norm(h, w[p + "ffn_norm.weight"])
        gate = x @ w[p + "ffn_gate.weight"].T
        h = h + (gate / (1 + np.exp(-gate)) * (x @ w[p + "ffn_up.weight"].T)) @ w[p + "ffn_down.weight"].T
    return norm(h, w["output_norm.weight"])


def variant(sliding: tuple[bool, ...], causal: tuple[bool, ...]) -> CpuDFlash:
    """The golden drafter's weights under other masks, in float64."""
    loaded = load_draft(golden("tiny-dflash"), target())
    config = replace(loaded.config, sliding_window=WINDOW if any(sliding) else 0, sliding=sliding, causal=causal)
    model = DFlash(Weights(loaded.file, dtype=torch.float64), config)
    return CpuDFlash(loaded.file, config, model, target(), loaded.mask_token, loaded.weight_bytes)


MASKS = [
    ((False, False), (False, False)),
    ((True, False), (True, False)),
    ((True, True), (True, True)),
    ((True, False), (False, False)),
    ((False, False), (True, False)),
]


@pytest.mark.parametrize(("sliding", "causal"), MASKS, ids=str)
@pytest.mark.parametrize("window", [0, 7, 30])
def test_masks_and_windows(sliding: tuple[bool, ...], causal: tuple[bool, ...], window: int) -> None:
    draft = variant(sliding, causal)
    features = np.random.default_rng(3).standard_normal((LENGTH, 512))
    block = [ANCHOR] + [draft.mask_token] * (draft.config.block_size - 1)
    noise = target().model.token_embd.rows(block)
    expected = twin(draft.file, draft.config, features, noise.numpy(), window)
    states = draft.model.new_states()
    for at in (0, 13, 14):  # the context arrives in pieces, as it does after steps of different length
        end = {0: 13, 13: 14, 14: LENGTH}[at]
        draft.model.update_cache(torch.from_numpy(features[at:end]), at, states)
    ours = draft.model.forward(noise.double(), LENGTH, states, window).numpy()
    # The rotary frequencies are rounded to float32, as every implementation of the model does.
    assert np.abs(ours - expected).max() < 1e-5
    again = draft.model.forward(noise.double(), LENGTH, states, window).numpy()
    assert np.array_equal(ours, again), "noise rows must not stay in the context"


def test_the_session_drafts_from_committed_features_only() -> None:
    draft = load_draft(golden("tiny-dflash"), target())
    ids = list(range(100, 100 + LENGTH))
    session = target().session(draft)
    session.prefill(ids[:30])
    session.verify([*ids[30:33], 5, 6, 7], [-1, 0, 1, 0, 1, 3])
    session.commit([0, 1, 2])
    session.verify([9, 9, 9], [-1, 0, 1])  # a pass that is never committed
    features = target().hidden(ids[:33], draft.config.target_layers)
    assert np.abs(session.draft(ANCHOR, 0) - draft.logits(features, ANCHOR)).max() < 1e-3
    # Rotary positions are relative, so a window equals a context that begins there.
    assert np.abs(session.draft(ANCHOR, 8) - draft.logits(features[-8:], ANCHOR)).max() < 1e-3


def test_the_draft_window_is_a_knob() -> None:
    from dflash_core import Engine

    trees = []
    for window in (0, 4):
        engine = Engine(target(), load_draft(golden("tiny-dflash"), target()))
        events = list(engine.generate(list(range(60)), Knobs(mode="tree", draft_window=window, max_tokens=3)))
        trees.append(events[1].tree)  # type: ignore[union-attr]
    assert trees[0] != trees[1]
