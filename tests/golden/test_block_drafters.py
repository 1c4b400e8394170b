"""DFlash 2 and DSpark on the CPU: golden files, and a float64 reference over other sizes, masks, heads and formats."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.arch.draft_heads import Convolution, Markov, Selector
from dflash_core.backends.opened import Target
from dflash_core.config import DraftConfig, check_pair
from dflash_core.demo import demo_draft
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.draft import Draft, several
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import FormatError, KnobError, NumericsError, UnsupportedError
from dflash_core.events import StepEvent
from dflash_core.limits import Limits
from dflash_core.messages import Message
from dflash_core.policy.auto import AutoPolicy
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_core.tree import build
from dflash_core.turn_stats import turn_stats
from support import demo_pair
from support.behind import behind, draft_logits
from support.chosen import chosen_path
from support.draft_files import (
    FORMS,
    LAGUNA,
    PLAIN,
    SPARK,
    TWO,
    behind_ends,
    changed,
    gguf_keys,
    name_in,
    random_draft,
    random_weights,
    write_drafter,
    write_random,
)
from support.draft_twin import confidence, drafted, greedy_path
from support.formats import refused, without, write_gguf
from support.golden import golden, target
from support.shallow import shallow_target

LENGTH, ANCHOR = 33, 17


def test_the_golden_drafter() -> None:
    """Logits within 1e-3 of the reference, and the same greedy path of the selector; a chain drafts that path."""
    pair, z = load_target(golden("targets/q35moe-F16.gguf")), np.load(golden("targets/q35moe-dflash2.npz"))
    draft, anchor = load_draft(golden("targets/q35moe-dflash2"), pair), int(z["anchor"])
    assert draft.capabilities.kind == "dflash2"
    assert np.abs(draft_logits(draft, z["features"], anchor) - z["draft_logits"]).max() < 1e-3
    assert chosen_path(draft, z["features"], anchor) == z["path"].tolist()
    session = pair.session(draft)
    session.prefill(np.load(golden("targets/q35moe-F16.npz"))["ids"].tolist())
    drafts = session.propose(anchor, Knobs())
    assert build(anchor, drafts.cut(7, 1), 7).tokens[1:] == tuple(z["path"].tolist())


def around(config: DraftConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A target's embedding, a head whose scores are close to each other, and features of a context."""
    random = np.random.default_rng(5)
    embedding, head = random.standard_normal((2, 96, 32)).astype(np.float32)
    features = random.standard_normal((LENGTH, 32 * len(config.target_layers))).astype(np.float32)
    return embedding, head * 0.1, features


def two(**changes: Any) -> DraftConfig:
    return changed(PLAIN, **{**TWO, **changes})


def spark(**changes: Any) -> DraftConfig:
    return changed(PLAIN, **{**SPARK, **changes})


CASES: dict[str, DraftConfig] = {
    "plain": dataclasses.replace(PLAIN, causal=(True, True)),
    "two": two(),
    "causal": two(causal=(True, True)),
    "window inside the block": two(sliding_window=5),
    "one tap, groups of one": two(conv=Convolution(1, 1)),
    "three taps, one group": two(conv=Convolution(3, 32), block_size=2),
    "more taps than rows": two(conv=Convolution(5, 8), block_size=4),
    "all candidates": two(selector=Selector(3, 96), block_size=16),
    "one candidate": two(selector=Selector(32, 1)),
    "scaled": two(embedding_scale=1.5, logit_scale=0.5, softcap=3.0),
    "one full layer": two(sliding=(False, True), target_layers=(1,), head_count=4, head_count_kv=2),
    "laguna": changed(PLAIN, **LAGUNA),
    "laguna's gates": changed(PLAIN, gated=True, head_count=4, head_count_kv=2, causal=(True, True)),
    "laguna's norms": changed(PLAIN, taps_normed=True, target_layers=(3, 0, 1), causal=(True, True)),
    "spark": spark(),
    "spark with an anchor": spark(anchor_first=False, block_size=8),
    "spark with few tokens": spark(draft_vocab=40, own_embedding=False),
    "spark without confidence": spark(markov=Markov(4), own_embedding=False, own_head=False),
    "spark by hidden alone": spark(markov=Markov(6, confidence=32)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_twin(tmp_path: Path, name: str, form: str) -> None:
    config = CASES[name]
    if form == "fork" and config.kind != "dflash2":
        pytest.skip("forks rename DFlash 2 alone")
    w = random_weights(config, seed=3)
    embedding, head, features = around(config)
    draft = behind_ends(write_drafter(tmp_path / "d", config, form, weights=w), embedding, head, double=True)
    found = dataclasses.replace(
        draft.config, name=config.name, flavour="z-lab", target_block_count=config.target_block_count
    )
    assert found == config, "every wrapping says the same"
    rows, logits = drafted(config, w, embedding, head, features, ANCHOR)
    ours = draft_logits(draft, features, ANCHOR)
    assert ours.shape == (config.depths, 96)
    assert np.array_equal(np.isneginf(ours), np.isneginf(logits))
    kept = np.isfinite(logits)
    assert np.abs(ours[kept] - logits[kept]).max() < 1e-4
    assert chosen_path(draft, features, ANCHOR) == greedy_path(config, w, rows, logits, ANCHOR)
    if config.heads.markov and config.heads.markov.confidence:
        assert draft.model.markov is not None
        for depth, before in ((0, ANCHOR), (2, 60)):
            said = draft.model.markov.accepted(torch.from_numpy(rows[depth]), before)
            assert said == pytest.approx(confidence(w, rows[depth], before), abs=1e-6)


def test_lagunas_file_leaves_out_its_window(tmp_path: Path) -> None:
    """As poolside's GGUF does: every layer has the window of its checkpoint, and a row sees none after it."""
    config = changed(PLAIN, **LAGUNA)
    keys = gguf_keys(config)
    for name in ("attention.sliding_window", "attention.sliding_window_pattern", "attention.causal"):
        del keys[f"dflash.{name}"]
    reader = gguf.GGUFReader(write_drafter(tmp_path / "a", config, "upstream"))
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    found, _ = open_drafter(write_gguf(tmp_path / "b.gguf", keys, tensors))
    assert (found.sliding_window, found.sliding, found.causal) == (512, (True, True), (True, True))
    keys["dflash.decoder_arch"] = "other"
    assert "decoder_arch is 'other', expected laguna" in refused(
        open_drafter, write_gguf(tmp_path / "b.gguf", keys, tensors), UnsupportedError
    )


def test_a_fused_tensor_of_other_heads_is_refused(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", changed(PLAIN, **LAGUNA))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_key_value_heads": 2}))
    assert "attn_qkv.weight has shape [64, 32], expected [96, 32] (attn_q, attn_k, attn_v) from" in refused(
        open_drafter, folder
    )
    (folder / "config.json").write_text(json.dumps(settings | {"gating": "per-element"}))
    assert "gating is 'per-element', expected 'per-head'" in refused(open_drafter, folder, UnsupportedError)


def test_the_pair_scores_count() -> None:
    """The random heads change the path, so a path without them would fail the comparison above."""
    for name in ("two", "spark"):
        config = CASES[name]
        w = random_weights(config, seed=3)
        embedding, head, features = around(config)
        rows, logits = drafted(config, w, embedding, head, features, ANCHOR)
        assert greedy_path(config, w, rows, logits, ANCHOR) != logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("plain", "fc.weight"),
        ("two", "fc.weight"),
        ("two", "selector_hidden.weight"),
        ("two", "selector_predecessor.weight"),
        ("spark", "output.weight"),
        ("spark", "markov_w2.weight"),
        ("spark", "conf_proj.weight"),
    ],
)
def test_scores_that_are_no_numbers_raise(tmp_path: Path, name: str, spoilt: str) -> None:
    """Wherever they come from: the network, or the tables that score a token by the one above it."""
    config = CASES[name]
    w = random_weights(config, seed=3)
    w[spoilt] = np.full_like(w[spoilt], np.nan)
    draft = behind_ends(write_drafter(tmp_path / "d", config, weights=w), *around(config)[:2])
    drafter = draft.drafter()
    drafter.observe(range(LENGTH), torch.from_numpy(around(config)[2]))
    said = f"the drafter produced numbers that are not finite at position {LENGTH}, expected logits"
    with pytest.raises(NumericsError, match=said):
        build(ANCHOR, drafter.propose(ANCHOR, Knobs()), 20)


def test_forms_hold_the_same_tensors(tmp_path: Path) -> None:
    config = two()
    opened = [open_drafter(write_drafter(tmp_path / form.replace("-", ""), config, form))[1] for form in FORMS]
    for other in opened[1:]:
        assert other.tensors.keys() == opened[0].tensors.keys() == config.tensors().keys()
        for name in config.tensors():
            assert np.array_equal(other.float32(name), opened[0].float32(name))


def damaged(tmp_path: Path, config: DraftConfig, form: str, **changes: np.ndarray | None) -> Path:
    """A drafter with some tensors replaced, or left out where the replacement is None."""
    w = random_weights(config)
    for name in changes:
        found = changes[name]
        if found is None:
            del w[name]
        else:
            w[name] = found
    return write_drafter(tmp_path / "d", config, form, weights=w)


@pytest.mark.parametrize("form", ["z-lab", "upstream", "fork"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selector_predecessor.weight": None}, "tensors are missing: selector_predecessor.weight"),
        ({"selector_hidden.weight": np.zeros((12, 32), np.float32)}, "has shape [12, 32], expected [8, 32]"),
        ({"selector_successor.weight": np.zeros((96, 4), np.float32)}, "has shape [96, 4], expected [96, 8]"),
        ({"blk.1.ffn_conv_proj.weight": None}, "tensors are missing: blk.1.ffn_conv_proj.weight"),
        ({"blk.0.attn_conv_base": np.zeros((2, 3, 32), np.float32)}, "has shape [2, 3, 32], expected [2, 2, 32]"),
    ],
)
def test_files_without_their_tables(tmp_path: Path, changes: dict[str, Any], message: str, form: str) -> None:
    assert message in refused(open_drafter, damaged(tmp_path, two(), form, **changes))


@pytest.mark.parametrize("form", ["z-lab", "upstream"])
def test_settings_that_do_not_fit(tmp_path: Path, form: str) -> None:
    uneven = changed(two(), conv=Convolution(2, 12))
    path = write_drafter(tmp_path / "a", uneven, form, weights=random_weights(two()))
    assert "expected a multiple of conv_group_size (12)" in refused(open_drafter, path)
    many = two(selector=Selector(8, 97))
    assert "selector_top_k is 97, expected 96 at most" in refused(
        open_drafter, write_drafter(tmp_path / "b", many, form)
    )
    narrow = spark(markov=Markov(8, confidence=36))
    assert "the confidence head has 36 inputs, expected 32 or 40" in refused(
        open_drafter, write_drafter(tmp_path / "c", narrow, form)
    )


def test_a_file_without_its_rank(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", without(gguf_keys(two()), "dflash.selector_rank"), random_weights(two()))
    assert "a.gguf has no dflash.selector_rank, expected a whole number" in refused(open_drafter, path)


def test_mixed_families(tmp_path: Path) -> None:
    w = {name_in("fork" if "blk.1" in name else "upstream", name): x for name, x in random_weights(two()).items()}
    assert refused(open_drafter, write_gguf(tmp_path / "a.gguf", gguf_keys(two()), w)) == (
        "a.gguf mixes two families of tensor names, upstream (blk.0.attn_conv_base) and fork (blk.1.attn_conv.base),"
        " expected one; convert the drafter again"
    )


@pytest.mark.parametrize("name", ["sample_from_anchor", "confidence_head_with_markov", "enable_confidence_head"])
def test_flags_that_are_none(tmp_path: Path, name: str) -> None:
    path = write_drafter(tmp_path / "d", spark())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {name: ["yes"]}))
    assert f"{name} is ['yes'], expected true or false" in refused(open_drafter, path)


@pytest.mark.parametrize("kind", ["gated", "rnn"])
def test_other_markov_heads(tmp_path: Path, kind: str) -> None:
    path = write_drafter(tmp_path / "d", spark())
    config = json.loads((path / "config.json").read_text())
    config["dflash_config"]["markov_head_type"] = kind
    (path / "config.json").write_text(json.dumps(config))
    message = refused(open_drafter, path, UnsupportedError)
    assert f"has a Markov head of type {kind}, expected vanilla" in message


def test_a_list_of_tokens_that_is_none(tmp_path: Path) -> None:
    config = spark(draft_vocab=40)
    path = damaged(tmp_path, config, "upstream", d2t=np.full(40, 7, np.int64))
    with pytest.raises(FormatError, match="d2t names tokens 7 to 7 for 40 rows, expected each once and under 96"):
        behind_ends(path, np.zeros((96, 32), np.float32), np.zeros((96, 32), np.float32))


def test_the_speculators_format(tmp_path: Path) -> None:
    """Settings of layers are nested, captured layers are counted from the embedding, and a block has a row for the
    anchor unless the file says otherwise."""
    config = spark(anchor_first=False, draft_vocab=40, own_embedding=False)
    path = write_drafter(tmp_path / "d", config)
    flat = json.loads((path / "config.json").read_text())
    inner = flat.pop("dflash_config")
    outside = {"architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark", "draft_vocab_size": 40,
               "aux_hidden_state_layer_ids": [1, 3], "block_size": 7, "mask_token_id": 5, "markov_rank": 8}  # fmt: skip
    del flat["architectures"], flat["sample_from_anchor"], flat["is_causal"], inner["target_layer_ids"]
    (path / "config.json").write_text(json.dumps(outside | {"transformer_layer_config": flat}))
    found, file = open_drafter(path)
    assert dataclasses.replace(found, name=config.name) == config
    assert file.tensors.keys() == config.tensors().keys()


@pytest.mark.parametrize("layers", [(-1, 2), (-1,)])
def test_the_embedding_may_be_among_the_captured_layers(tmp_path: Path, layers: tuple[int, ...]) -> None:
    """In every form of file, and whole answers with it are plain decoding's."""
    changed = spark(target_layers=layers)
    for form in ("z-lab", "upstream"):
        assert open_drafter(write_drafter(tmp_path / form, changed, form))[0].target_layers == layers
    draft = random_draft(tmp_path, target(), "dspark", seed=3, target_layers=layers)
    tree, steps = answer(draft, Knobs(drafting="tree 9"))
    assert tree == answer(None, Knobs(drafting="plain"))[0]
    assert steps


def test_a_drafter_of_another_generation(tmp_path: Path) -> None:
    """It loads, with a note."""
    spec = dataclasses.replace(target().config, name="Qwen3.8 27B")
    config = dataclasses.replace(
        two(), embedding_length=spec.embedding_length, vocab_size=spec.vocab_size, target_layers=(0, 2),
        target_block_count=spec.block_count,
    )  # fmt: skip
    for name, noted in (("Qwen3.6-27B-DFlash2", True), ("Qwen3.8-27B-DFlash2", False), ("a drafter", False)):
        notes = check_pair(spec, dataclasses.replace(config, name=name), None)
        assert any("made for Qwen3.6, the target is Qwen3.8" in note for note in notes) == noted


TOKENS = 16
SAMPLED = {"temperature": 0.8, "top_k": 20, "seed": 7}


def answer(draft: Draft | None, knobs: Knobs, of: Target | None = None) -> tuple[list[int], list[StepEvent]]:
    engine = Engine(of or target(), draft)
    events = list(engine.generate(list(range(40, 70)), knobs.replace(ignore_eos=True, max_tokens=TOKENS)))
    steps = [event for event in events if isinstance(event, StepEvent)]
    return [token for event in events for token in event.tokens], steps


# Each kind greedy or sampled; with `full` both.
@pytest.mark.parametrize(
    ("kind", "sampled"),
    [("dflash2", False), ("dspark", True)]
    + [pytest.param(*one, marks=pytest.mark.full) for one in (("dflash2", True), ("dspark", False))],
)
def test_every_kind_is_lossless(tmp_path: Path, kind: str, sampled: bool) -> None:
    """Random drafters are hardly ever accepted (planted ones are, in test_lossless.py): here the real ones run."""
    draft = random_draft(tmp_path, shallow_target(), kind, seed=1, target_layers=(0, 1))
    assert draft.capabilities.kind == kind
    own = SAMPLED if sampled else {}
    plain = answer(None, Knobs(drafting="plain", **own), shallow_target())[0]
    trees = set()
    for knobs in (
        Knobs(**own), Knobs(drafting="tree 9", **own), Knobs(drafting="tree 9", by_parent=False, **own),
        Knobs(drafting="chain 15", p_min=0.05, **own), Knobs(drafting="tree 22", draft_window=9, **own),
        Knobs(drafting="tree 70", tree_width=3, tree_temperature=0.5, chain_seed=True, **own),
    ):  # fmt: skip
        tokens, steps = answer(draft, knobs, shallow_target())
        assert tokens == plain, knobs
        trees.add(steps[0].tree)
        assert max(step.drafted_depth for step in steps) <= draft.capabilities.depths
    assert len(trees) >= 5, "the settings shape the trees"


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_the_first_chain_is_the_greedy_path(tmp_path: Path, kind: str) -> None:
    draft = random_draft(tmp_path, target(), kind, seed=2)
    features = target().hidden(list(range(30)), draft.capabilities.captured_layers)
    session = target().session(draft)
    session.prefill(list(range(30)))
    drafts = session.propose(5, Knobs())
    w = {name: draft.file.float32(name) for name in draft.file.tensors}
    rows, logits = (one.double().numpy() for one in behind(draft, features).draft(5, 0))
    assert build(5, drafts.cut(20, 1), 20).tokens[1:] == tuple(greedy_path(draft.config, w, rows, logits, 5))


def test_by_parent_is_followed_by_those_who_can(tmp_path: Path) -> None:
    for kind, can in (("dflash", False), ("dflash2", True), ("dspark", True)):
        capabilities = random_draft(tmp_path, target(), kind).capabilities
        limits = Limits(capabilities, 512)
        assert ("by_parent" in capabilities.knobs) == can
        if can:
            limits.check(Knobs(by_parent=False), {"by_parent"})
        else:
            with pytest.raises(KnobError, match="by_parent has no effect on the dflash drafter"):
                limits.check(Knobs(by_parent=False), {"by_parent"})


def test_several_at_once_are_lossless_and_each_step_says_which(tmp_path: Path) -> None:
    """`auto` picks among four kinds step by step; a name picks one. The tokens are plain decoding's."""
    kinds = ("dflash", "dflash2", "dspark", "ngram")
    opened = [open_draft(write_random(tmp_path, target(), kind, seed=1), target()) for kind in kinds[:3]]
    draft = several(target(), [*opened, open_draft("ngram", target())]).load()
    plain = answer(None, Knobs(drafting="plain"))[0]
    engine, ids, seen = Engine(target(), draft), list(range(40, 70)), Counter[str]()
    assert isinstance(engine.policy, AutoPolicy)
    for knobs in (Knobs(), *(Knobs(drafting="tree 9", draft=kind) for kind in kinds)):  # type: ignore[arg-type]
        engine.reset()
        events = list(engine.generate(ids, knobs.replace(ignore_eos=True, max_tokens=TOKENS)))
        assert [token for event in events for token in event.tokens] == plain
        drafters = {event.drafter for event in events if isinstance(event, StepEvent)} - {""}
        assert knobs.draft == "auto" or drafters <= {knobs.draft}
        seen.update(drafters)
    assert set(seen) == set(kinds)
    steps = [event for event in events if isinstance(event, StepEvent)]
    [row] = turn_stats(events[0], steps, 1.0).drafters  # type: ignore[arg-type]
    assert (row.kind, row.steps, row.tokens) == ("ngram", len(steps), sum(len(step.tokens) for step in steps))


def test_the_demo_head_scores_by_parent_and_accepts_more() -> None:
    """At budget 22, on held-out prompts: the whole measurement is in docs/demo.md."""
    pair = demo_pair.target()
    draft = load_draft(demo_draft("dflash2"), pair)
    engine, lengths = Engine(pair, draft), {}
    asked = ("What is 37 + 48?", "Write a Python function that returns the largest of three numbers.")
    for by_parent in (True, False):
        steps = []
        for text in asked:
            engine.reset()
            ids = build_prompt(Prompting(pair.tokenizer, pair.template, False), [Message("user", text)]).ids
            steps += list(engine.generate(ids, Knobs(drafting="tree 22", by_parent=by_parent, max_tokens=48)))[1:]
        lengths[by_parent] = sum(len(step.tokens) for step in steps) / len(steps)
    assert lengths[True] >= lengths[False]
    assert lengths[True] > 3
