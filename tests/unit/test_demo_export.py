"""The decoder computes with exported files what the trainer computes: small random files, and the shipped ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.train_demo import export
from tools.train_demo import tokenizer as tok
from tools.train_demo.corpus import build
from tools.train_demo.draft_net import draft_forward
from tools.train_demo.rounding import quantised
from tools.train_demo.shapes import (
    DraftConfig,
    TargetConfig,
    Weights,
    default_captured_layers,
    draft_shapes,
    import_form,
    initialise,
    target_shapes,
)
from tools.train_demo.sizes import draft_configs, target_config
from tools.train_demo.target_net import target_forward
from tools.train_demo.vocabulary_loss import selected_losses

from dflash_core import load_draft, load_target
from dflash_core.arch.draft_heads import Convolution, Selector
from dflash_core.demo import demo_draft_path, demo_target_path
from support import behind
from support.chosen import chosen_path

TARGET = TargetConfig(vocab=600, hidden=64, layers=4, ffn=96)
DRAFT = DraftConfig(hidden=64, layers=2, ffn=96, captured_layers=(0, 2), mask_id=599, sliding=(False, False))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "tokenizer.json"
    tok.train((d.prompt() + d.answer() for d in build.sample("train", 200)), vocab=600).save(str(path))
    return path


def draft_logits(c: DraftConfig, weights: Weights, target: Weights, features: np.ndarray, anchor: int) -> np.ndarray:
    """(block - 1, vocab) by the trainer's drafter."""
    block = torch.full((1, 1, c.block), c.mask_id)
    block[..., 0] = anchor
    noise = torch.nn.functional.embedding(block, target["token_embd.weight"])
    seg = torch.zeros(1, len(features), dtype=torch.long)
    start = torch.tensor([[len(features)]])
    out = draft_forward(c, weights, torch.from_numpy(features)[None], seg, start, start * 0, noise)
    return (out[0, 0, 1:] @ target["output.weight"].T).numpy()


@torch.no_grad()
def test_a_written_target_gives_the_trained_logits(tokenizer: Path, tmp_path: Path) -> None:
    table = target_shapes(TARGET)
    weights = quantised(initialise(table, TARGET.layers, 1), table)
    export.write_target(tmp_path / "t.gguf", TARGET, weights, tokenizer)
    again = import_form(export.read_weights(tmp_path / "t.gguf"))
    for name, (shape, _) in table.items():
        assert again[name].shape == shape
        torch.testing.assert_close(again[name], weights[name], atol=1e-6, rtol=1e-5)
    ids = torch.randint(0, 600, (1, 90), generator=torch.Generator().manual_seed(2))
    hidden, captured_layers = target_forward(TARGET, weights, ids, torch.zeros_like(ids), (0, 2))
    loaded = load_target(tmp_path / "t.gguf", device="cpu")
    expected = (hidden[0] @ weights["output.weight"].T).numpy()
    np.testing.assert_allclose(loaded.logits(ids[0].tolist()), expected, atol=2e-4)
    np.testing.assert_allclose(loaded.hidden(ids[0].tolist(), layers=[0, 2]), captured_layers[0].numpy(), atol=2e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("window", [0, 24])
def test_a_written_drafter_gives_the_trained_logits(tokenizer: Path, tmp_path: Path, kind: str, window: int) -> None:
    c = replace(DRAFT, window=window, sliding=(window > 0, False))
    mask = tok.token_id("<|mask|>", 600)
    c = replace(c, mask_id=mask)
    target_table, table = target_shapes(TARGET), draft_shapes(c, kind)
    target = quantised(initialise(target_table, TARGET.layers, 3), target_table)
    weights = quantised(initialise(table, c.layers, 4), table)
    export.write_target(tmp_path / "t.gguf", TARGET, target, tokenizer)
    export.write_draft(tmp_path / "d.gguf", c, weights, tokenizer, TARGET.context, kind)
    loaded = load_draft(tmp_path / "d.gguf", target=load_target(tmp_path / "t.gguf", device="cpu"))
    features = np.random.default_rng(5).normal(size=(40, 128)).astype(np.float32)
    expected = draft_logits(c, weights, target, features, anchor=7)
    np.testing.assert_allclose(behind.draft_logits(loaded, features, anchor=7), expected, atol=2e-4)


@torch.no_grad()
def test_a_written_dflash2_head_gives_the_trained_logits_and_path(tokenizer: Path, tmp_path: Path) -> None:
    c = replace(DRAFT, block=6, conv=Convolution(2, 16), selector=Selector(32, 16), vocab=600)
    target_table, table = target_shapes(TARGET), draft_shapes(c, "Q4_0")
    target = quantised(initialise(target_table, TARGET.layers, 3), target_table)
    weights = initialise(table, c.layers, 4)
    for name in weights:
        if name.endswith("_conv_base") or name.startswith("selector_"):  # with an effect, as after training
            weights[name] += 0.5 * torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(6))
    weights = quantised(weights, table)
    export.write_target(tmp_path / "t.gguf", TARGET, target, tokenizer)
    export.write_draft(tmp_path / "d.gguf", c, weights, None, TARGET.context, "Q4_0")
    loaded = load_draft(tmp_path / "d.gguf", target=load_target(tmp_path / "t.gguf", device="cpu"))
    features = np.random.default_rng(5).normal(size=(40, 128)).astype(np.float32)
    expected = draft_logits(c, weights, target, features, anchor=7)
    np.testing.assert_allclose(behind.draft_logits(loaded, features, anchor=7), expected, atol=2e-4)
    tokens = np.array([7, *chosen_path(loaded, features, 7)])
    block = torch.full((1, 1, c.block), c.mask_id)
    block[..., 0] = 7
    noise = torch.nn.functional.embedding(block, target["token_embd.weight"])
    seg, start = torch.zeros(1, 40, dtype=torch.long), torch.tensor([[40]])
    hidden = draft_forward(c, weights, torch.from_numpy(features)[None], seg, start, start * 0, noise)[0, 0, 1:]
    tables = [weights[f"selector_{name}.weight"] for name in ("hidden", "predecessor", "successor")]

    def losses(depth: int, label: int) -> tuple[float, float]:
        """The trainer's losses of `label` after the path's token at `depth`: of the plain scores, and with the
        selector."""
        here, before = hidden[depth : depth + 1], torch.from_numpy(tokens[depth : depth + 1])
        found = selected_losses(here, target["output.weight"], before, torch.tensor([label]), torch.ones(1), *tables)[1]
        return float(found[0]), float(found[1])

    # By the trainer's scores each token of the path is the best after the one before, among the best few.
    best = torch.from_numpy(expected).topk(16).indices.tolist()
    for depth, few in enumerate(best):
        plain, scored = losses(depth, tokens[depth + 1])
        assert scored == pytest.approx(min(losses(depth, other)[1] for other in few), abs=1e-4)
        assert plain != scored


@torch.no_grad()
def test_the_shipped_files_are_what_the_trainer_computes() -> None:
    c = target_config()
    target = import_form(export.read_weights(demo_target_path()))
    loaded = load_target(demo_target_path(), device="cpu")
    ids = loaded.tokenizer.encode("What is 37 + 48? The drafter guesses a block of tokens.")
    row = torch.tensor([ids])
    hidden, captured_layers = target_forward(
        c, target, row, torch.zeros_like(row), default_captured_layers(c.layers, 5)
    )
    np.testing.assert_allclose(loaded.logits(ids), (hidden[0] @ target["output.weight"].T).numpy(), atol=1e-3)
    file = demo_draft_path()
    dc, _ = draft_configs(c)[file.name]
    weights = export.read_weights(file)
    features = captured_layers[0].numpy()
    expected = draft_logits(dc, weights, target, features, anchor=ids[-1])
    draft = load_draft(file, target=loaded)
    np.testing.assert_allclose(behind.draft_logits(draft, features, anchor=ids[-1]), expected, atol=1e-3)


def test_the_shipped_files_match_their_record() -> None:
    facts = json.loads((demo_target_path().parent / "demo.json").read_text(encoding="utf-8"))
    files = [demo_target_path(), demo_draft_path()]
    assert sum(f.stat().st_size for f in files) < 20_000_000
    for file in files:
        assert hashlib.sha256(file.read_bytes()).hexdigest() == facts["files"][file.name]["sha256"]
