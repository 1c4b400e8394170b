"""MTP heads on the CPU: the reference's logits, a cache that follows the sequence, the target's own text, and
refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.train_demo.mtp_net import mtp_forward
from tools.train_demo.shapes import TargetConfig

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.cpu.chain import CpuMtpDrafter
from dflash_core.demo import demo_dflash2_path, demo_draft, demo_mtp_path, demo_target_path
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.mtp import OWN_HEAD
from dflash_core.engine import load_pair
from dflash_core.errors import ContextError, KnobError, MismatchError, UnsupportedError
from dflash_core.events import StepEvent
from dflash_core.lab.grid import parse_pair
from dflash_core.tree import Candidates
from support.compare import generated
from support.golden import BESIDE, golden, target
from support.grids import full
from support.mtp_files import HEAD, variant, with_head
from support.mtp_logits import mtp_logits, teacher_forced

REFERENCES = BESIDE.parent / "targets"
IDS = list(range(40, 60))
TOKENS = 40
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7}


@cache
def head() -> Draft:
    return load_draft(HEAD, target())


@cache
def plain(sampled: bool = False) -> tuple[int, ...]:
    knobs = Knobs(drafting="plain", ignore_eos=True, max_tokens=TOKENS, **SAMPLED if sampled else {})
    return tuple(generated(Engine(target()), IDS, knobs))


# ---- Logits ----------------------------------------------------------------------------------------------------------


def test_pairs_and_chains_are_the_references() -> None:
    told = np.load(HEAD.with_suffix(".npz"))
    ids = told["ids"].tolist()
    found = teacher_forced(head(), ids, target().hidden(ids, [3]))
    np.testing.assert_allclose(found, told["mtp_logits"], atol=1e-4)
    session = target().session(head())
    session.prefill(ids)
    for _ in range(2):  # a chain's rows in the cache do not affect the next chain
        chain = session.draft(int(told["anchor"]), 0)
        assert chain.shape == (8, 768)
        np.testing.assert_allclose(chain[:4], told["chain_logits"], atol=1e-4)
        assert chain[:4].argmax(-1).tolist() == told["chain_tokens"].tolist()


@pytest.mark.parametrize("name", ["tiny-mtp-F16"])
def test_a_file_with_its_own_head(name: str) -> None:
    if not (path := BESIDE / f"{name}.gguf").exists() or not (told := REFERENCES / f"{name}.npz").exists():
        pytest.skip("the references are not beside this checkout")
    loaded, reference = load_target(path), np.load(told)
    np.testing.assert_allclose(mtp_logits(loaded, reference["ids"].tolist()), reference["mtp_logits"], atol=1e-4)
    assert loaded.own_draft == "mtp"


@pytest.mark.parametrize(
    ("own", "without"),
    [((), ("shared_head_norm.weight",)), (("embed_tokens",), ()), (("embed_tokens", "shared_head_head"), ())],
)
def test_what_a_head_lacks_is_the_targets(own: tuple[str, ...], without: tuple[str, ...], tmp_path: Path) -> None:
    """Against the network that trains the demo pair's head, which shares no code with the decoder's."""
    loaded = load_draft(variant(tmp_path / "head.gguf", own=own, without=without), target())
    file, of = loaded.file, target()
    names = {name.removeprefix("blk.4."): torch.from_numpy(file.float32(name)) for name in file.tensors}
    names.setdefault("nextn.shared_head_norm.weight", torch.from_numpy(of.file.float32("output_norm.weight")))
    embedding = names.get("nextn.embed_tokens.weight", torch.from_numpy(of.file.float32("token_embd.weight")))
    output = names.get("nextn.shared_head_head.weight", torch.from_numpy(of.file.float32("output.weight")))
    sizes = TargetConfig(vocab=768, hidden=256, layers=4, ffn=512, heads=2, kv_heads=1, head_dim=256)
    ids = torch.tensor([IDS])
    hidden = loaded.model.hidden(torch.from_numpy(of.hidden(IDS, [3])))[None]
    rows = [row @ output.T for row in mtp_forward(sizes, names, embedding, ids, ids * 0, hidden, 3)]
    np.testing.assert_allclose(teacher_forced(loaded, IDS, of.hidden(IDS, [3])), rows[0][0, :-1], atol=1e-4)
    # A chain after ten positions whose tokens are the true ones.
    cache, now = loaded.model.new_state(), hidden[0, 9:10]
    with torch.inference_mode():
        loaded.model.remember(IDS[1:10], hidden[0, :9], 0, cache)
        for depth in range(3):
            now = loaded.model.forward([IDS[10 + depth]], now, 9 + depth, cache)
            np.testing.assert_allclose(loaded.model.logits(now), rows[depth][0, 9:10], atol=1e-4)


# ---- In step with the sequence ---------------------------------------------------------------------------------------


def settled(engine: Engine) -> None:
    """It proposes what a fresh session proposes after the same tokens."""
    ids = engine._committed
    fresh = target().session(head())
    fresh.prefill(ids)
    np.testing.assert_allclose(engine.session.draft(9, 0), fresh.draft(9, 0), atol=2e-4)


def test_its_cache_holds_the_targets_hiddens_wherever_the_sequence_goes() -> None:
    engine = Engine(target(), head())
    knobs = Knobs(max_tokens=12, ignore_eos=True, mtp_depth=5)
    answer = generated(engine, IDS, knobs)
    settled(engine)
    for ids, keep in (([*IDS, *answer, 3, 4], (24,)), ([*IDS, *answer[:6], 9], ()), (IDS[:7], (5,)), ([1, 2], ())):
        list(engine.generate(ids, knobs, keep=keep))
        settled(engine)
    events = engine.generate(IDS, knobs)
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    settled(engine)
    with engine.scratch():
        generated(engine, [5, 6, 7], knobs)
    settled(engine)


def test_a_turn_is_drafted_again_as_it_was() -> None:
    engine = Engine(target(), head())
    knobs, text = Knobs(drafting="tree 22", ignore_eos=True, max_tokens=16, mtp_depth=4), list(IDS)
    for event in list(engine.generate(IDS, knobs)):
        if isinstance(event, StepEvent):
            again = engine.propose(text[:-1], text[-1], knobs)
            assert tuple(map(tuple, again.tokens.tolist())) == event.drafts.tokens
            assert len(event.drafts.tokens) == 4
        text += event.tokens


# ---- The text is the target's ----------------------------------------------------------------------------------------


class _Planted(CpuMtpDrafter):
    """It knows the answer, down to a random depth and at random ranks; its cache is kept as usual."""

    def __init__(self, answer: Sequence[int], seed: int) -> None:
        super().__init__(head().model)
        self.answer, self.chance = list(answer), np.random.default_rng(seed)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        real = super().propose(root, knobs, at)
        tokens, log_probs = real.tokens.copy(), real.log_probs.copy()
        begin = len(self._tokens) + 1 - len(IDS)
        right = len(tokens) if self.chance.random() < 0.5 else int(self.chance.integers(0, len(tokens) + 1))
        for depth, token in enumerate(self.answer[begin : begin + right]):
            others = [other for other in tokens[depth].tolist() if other != token]
            rank = min(int(self.chance.choice([0] * 12 + [1, 2])), tokens.shape[1] - 1)
            tokens[depth] = [*others[:rank], token, *others[rank:]][: tokens.shape[1]]
        return Candidates(tokens, log_probs)


@pytest.mark.parametrize("sampled", [full(False), True])
@pytest.mark.parametrize("seeds", [1, full(2)])
def test_every_setting_gives_plain_decodings_tokens(sampled: bool, seeds: int) -> None:
    accepted = Counter[int]()
    for seed in range(seeds):
        engine = Engine(target(), replace(head(), drafter=lambda kv, seed=seed: _Planted(plain(sampled), seed)))
        for knobs in (
            Knobs(drafting="tree 22"), Knobs(drafting="chain 8", mtp_depth=8), Knobs(drafting="tree 6", mtp_depth=2),
            Knobs(drafting="tree 40", mtp_depth=8, tree_width=3, chain_seed=True),
            Knobs(drafting="tree 22", mtp_depth=1),
            Knobs(drafting="tree 12", mtp_depth=5, p_min=0.001, tree_temperature=0.5),
            Knobs(),  # last: measured times decide how often it drafts, and each draft uses further random numbers
        ):  # fmt: skip
            engine.reset()
            knobs = knobs.replace(ignore_eos=True, max_tokens=TOKENS, **(SAMPLED if sampled else {}))
            events = list(engine.generate(IDS, knobs))
            assert tuple(token for event in events for token in event.tokens) == plain(sampled), (seed, knobs)
            steps = [event for event in events if isinstance(event, StepEvent)]
            if knobs.mode != "auto":  # by measured times, auto may draft from the text, or not at all
                assert max(step.drafted_depth for step in steps) <= knobs.mtp_depth
                accepted.update(step.accepted_depth for step in steps)
    assert set(accepted) >= {0, 1, 2, 3, 4}, accepted
    assert max(accepted) > 5, accepted


# ---- Picked, refused, said -------------------------------------------------------------------------------------------


def test_a_file_with_a_head_drafts_by_itself_and_says_so(tmp_path: Path) -> None:
    path = with_head(tmp_path / "whole.gguf")
    engine = load_pair(path)
    assert engine.limits.drafter is not None
    assert engine.limits.drafter.kind == "mtp"
    assert OWN_HEAD in engine.notes
    named = load_pair(path, "mtp")
    knobs = Knobs(max_tokens=8, ignore_eos=True)
    assert generated(engine, IDS, knobs) == generated(named, IDS, knobs) == list(plain()[:8])
    told = {one.name: one.bytes for one in engine.memory().components}
    assert told["drafter"] > 0
    assert told["drafter KV"] == engine.context_length * 4 * (2 * 256 + 256)
    found = mtp_logits(engine.target, np.load(HEAD.with_suffix(".npz"))["ids"].tolist())
    np.testing.assert_allclose(found, np.load(HEAD.with_suffix(".npz"))["mtp_logits"], atol=1e-4)
    other = load_pair(path, golden("tiny-dflash"))
    assert other.limits.drafter is not None
    assert other.limits.drafter.kind == "dflash"


def test_what_has_no_head_says_what_it_has() -> None:
    plain_file = load_target(golden("tiny-F16.gguf"))
    path = golden("tiny-F16.gguf")
    said = (
        f"{path} has 4 layers and no MTP block (nextn tensors) after them, expected one to draft with; "
        "draft with a DFlash drafter made for it, or from the text"
    )
    with pytest.raises(UnsupportedError) as refusal:
        load_draft("mtp", plain_file)
    assert str(refusal.value) == said
    assert load_pair(golden("tiny-F16.gguf")).limits.drafter is None


def test_a_head_of_another_model_is_refused() -> None:

    with pytest.raises(
        MismatchError, match=r"its head stands after layer 4, expected 8; hidden size 256, expected 384"
    ):
        load_draft(HEAD, load_target(demo_target_path()))


def test_knobs_that_it_does_not_follow() -> None:
    limits = Engine(target(), head()).limits
    with pytest.raises(KnobError, match="draft_window has no effect on the mtp drafter"):
        limits.check(Knobs(draft_window=64), {"draft_window"})
    limits.check(Knobs(mtp_depth=8), {"mtp_depth"})
    other = Engine(target(), load_draft(golden("tiny-dflash"), target())).limits
    with pytest.raises(KnobError, match="mtp_depth has no effect on the dflash drafter"):
        other.check(Knobs(mtp_depth=5), {"mtp_depth"})


def test_candidates_that_are_no_numbers_are_left_out() -> None:
    """Also beside another drafter, which goes on drafting, by the program's choice and by the user's."""
    knobs = Knobs(drafting="tree 22", max_tokens=24)
    plain = [token for event in Engine(target()).generate(IDS, knobs.replace(mode="plain")) for token in event.tokens]
    for name, beside in ((str(HEAD), None), (f"{golden('tiny-dflash')}+{HEAD}", "dflash")):
        for wanted in (knobs, knobs.replace(draft="mtp"), knobs.replace(mode="auto")):
            engine = load_pair(golden("tiny-F16.gguf"), name)
            loaded = engine.draft.parts[1] if engine.draft.parts else engine.draft
            loaded.model.norm[:] = float("nan")
            events = list(engine.generate(IDS, wanted))
            assert [token for event in events for token in event.tokens] == plain
            drafters = {event.drafter for event in events if isinstance(event, StepEvent)}
            assert drafters - {""} == ({beside} if beside else set()) or wanted.mode == "auto"
            assert "mtp" not in drafters
            if wanted.draft == "mtp" or beside is None:
                assert engine.drafter_notes[0].startswith("mtp is left out: the drafter produced numbers")


# ---- Beside another drafter ------------------------------------------------------------------------------------------


def test_several_drafters_are_compared_by_a_knob() -> None:
    engine = load_pair(golden("tiny-F16.gguf"), f"{golden('tiny-dflash')}+{HEAD}+ngram")
    assert engine.limits.drafter is not None
    assert engine.limits.drafter.kind == "dflash+mtp+ngram"
    alone = {
        "dflash": load_draft(golden("tiny-dflash"), target()),
        "mtp": head(),
        "ngram": load_draft("ngram", target()),
    }
    ids = [*IDS, *IDS[:5]]
    for name, draft in {"auto": alone["dflash"], **alone}.items():
        # In trees auto picks a drafter for each step, in chains it is the first.
        drafting = "chain 22" if name == "auto" else "tree 22"
        knobs = Knobs(drafting=drafting, max_tokens=12, ignore_eos=True, draft=name)
        single = Engine(target(), draft)
        found = []
        for one in (engine, single):
            one.reset()
            found.append(list(one.generate(ids, knobs.replace(draft="auto") if one is single else knobs)))
        for ours, expected in zip(*found, strict=True):
            assert ours.tokens == expected.tokens
            if isinstance(ours, StepEvent) and isinstance(expected, StepEvent):
                assert ours.drafts.tokens == expected.drafts.tokens, name
    a, b = parse_pair("draft=mtp | draft=dflash", Knobs(), engine.limits)
    assert (a.knobs.draft, b.knobs.draft) == ("mtp", "dflash")
    with pytest.raises(KnobError, match="draft has no effect on the mtp drafter"):
        Engine(target(), head()).limits.check(Knobs(draft="dflash"), {"draft"})
    two = load_pair(golden("tiny-F16.gguf"), f"{HEAD}+ngram").limits
    with pytest.raises(KnobError, match="draft=dflash: not loaded; expected auto, mtp, ngram"):
        two.check(Knobs(draft="dflash"), {"draft"})
    with pytest.raises(ContextError, match="two drafters of one kind"):
        load_draft("ngram+ngram", target())
    told = {one.name: one.bytes for one in engine.memory().components}
    assert told["drafter"] == sum(one.weight_bytes for one in alone.values())


def test_several_drafters_stand_where_the_sequence_stands() -> None:
    loaded = load_draft(f"{HEAD}+ngram", target())
    engine, knobs = Engine(target(), loaded), Knobs(max_tokens=12, ignore_eos=True)
    answer = generated(engine, IDS, knobs)
    for ids, keep in (([*IDS, *answer, 3, 4], (24,)), ([*IDS, *answer[:6], 9], ()), (IDS[:7], (5,))):
        list(engine.generate(ids, knobs, keep=keep))
        fresh = target().session(loaded)
        fresh.prefill(engine._committed)
        for name in ("mtp", "ngram"):
            ours, expected = (one.propose(9, Knobs(draft=name)) for one in (engine.session, fresh))
            np.testing.assert_array_equal(ours.tokens, expected.tokens)


def test_the_demo_pairs_head_is_mostly_right() -> None:
    """Trained: deep walks, and the text is plain decoding's."""
    engine = load_pair(demo_target_path(), demo_draft("dflash+mtp"))
    assert demo_mtp_path().stat().st_size < 3_000_000
    assert demo_dflash2_path().stat().st_size < 4_000_000
    ids = engine.target.tokenizer.encode(
        "<|im_start|>user\nWrite a Python function that reverses a string.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    found = {}
    for name in ("auto", "mtp"):
        engine.reset()
        knobs = Knobs(drafting="chain 8", mtp_depth=8, max_tokens=30, draft=name)
        events = list(engine.generate(ids, knobs))
        found[name] = [token for event in events for token in event.tokens]
    assert found["mtp"] == found["auto"]
    assert len(events) < 10, "thirty tokens in a few steps"
