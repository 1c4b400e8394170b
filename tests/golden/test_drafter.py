"""The drafter against a float64 reference written from the formulas, row by row: masks, windows, cached context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_core import Knobs, load_draft
from dflash_core.backends.cpu.dflash import load
from dflash_core.config import DraftConfig
from dflash_core.drafters.draft import Draft
from dflash_core.formats.weights import WeightFile
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.matrix import Weights
from support.behind import draft_logits
from support.draft_twin import hidden_rows
from support.golden import golden, target

LENGTH, ANCHOR, WINDOW = 40, 17, 24


def twin(file: WeightFile, config: DraftConfig, features: np.ndarray, noise: np.ndarray, window: int) -> np.ndarray:
    return hidden_rows(config, {name: file.float32(name) for name in file.tensors}, features, noise, window)


def variant(sliding: tuple[bool, ...], causal: tuple[bool, ...]) -> Draft:
    """The golden drafter's weights under other masks, in float64."""
    loaded = load_draft(golden("tiny-dflash"), target())
    config = replace(loaded.config, sliding_window=WINDOW if any(sliding) else 0, sliding=sliding, causal=causal)
    model, drafter = load(config, Weights(loaded.file, dtype=torch.float64), target().model)
    return replace(loaded, config=config, model=model, drafter=drafter)


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
    block = [ANCHOR] + [draft.config.mask_token] * (draft.config.block_size - 1)
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


def test_rows_that_no_query_sees_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, read = variant((True, False), (True, False)), list[slice]()
    states = draft.model.new_states()
    draft.model.update_cache(torch.zeros(LENGTH, 512, dtype=torch.float64), 0, states)
    whole = KVCache.read

    def noted(self: KVCache, runs: Sequence[slice]) -> tuple[torch.Tensor, torch.Tensor]:
        read.extend(runs)
        return whole(self, runs)

    monkeypatch.setattr(KVCache, "read", noted)
    block = [ANCHOR] + [draft.config.mask_token] * (draft.config.block_size - 1)
    noise, end = target().model.token_embd.rows(block).double(), LENGTH + len(block)
    for window, begins in ((0, (LENGTH - WINDOW + 1, 0)), (7, (LENGTH - 7, LENGTH - 7))):
        read.clear()
        draft.model.forward(noise, LENGTH, states, window)
        assert read == [slice(begin, end) for begin in begins]


def test_the_session_drafts_from_committed_features_only() -> None:
    draft = load_draft(golden("tiny-dflash"), target())
    ids = list(range(100, 100 + LENGTH))
    session = target().session(draft)
    session.prefill(ids[:30])
    session.verify([*ids[30:33], 5, 6, 7], [-1, 0, 1, 0, 1, 3])
    session.commit([0, 1, 2])
    session.verify([9, 9, 9], [-1, 0, 1])  # a pass that is never committed
    features = target().hidden(ids[:33], draft.config.target_layers)
    assert np.abs(session.draft(ANCHOR, 0) - draft_logits(draft, features, ANCHOR)).max() < 1e-3
    # Rotary positions are relative, so a window equals a context that begins there.
    assert np.abs(session.draft(ANCHOR, 8) - draft_logits(draft, features[-8:], ANCHOR)).max() < 1e-3


def test_the_draft_window_is_a_knob() -> None:
    from dflash_core import Engine

    trees = []
    for window in (0, 4):
        engine = Engine(target(), load_draft(golden("tiny-dflash"), target()))
        events = list(engine.generate(list(range(60)), Knobs(drafting="tree 22", draft_window=window, max_tokens=3)))
        trees.append(events[1].tree)  # type: ignore[union-attr]
    assert trees[0] != trees[1]
