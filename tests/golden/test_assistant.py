"""Gemma 4's assistants against their golden files: logits of a chain, losslessness, targets that they do not fit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.cache_types import CachePair
from dflash_core.errors import DFlashError, FormatError, MismatchError
from dflash_core.events import StepEvent
from support.assistant_device import PRESENT, loaded
from support.compare import generated
from support.gguf_copy import stored, write_copy
from support.golden import golden, other_targets, target

TOLERANCE = 1e-3


@pytest.mark.parametrize("name", PRESENT)
def test_a_chain_is_the_references(name: str) -> None:
    """Positions 0..39 are committed; all four tokens stand at position 40. Window layers see the last 16 before it."""
    of, draft, expected = loaded(name)
    session = of.session(draft)
    session.prefill(expected["ids"].tolist())
    logits = session.draft(int(expected["anchor"]), 0)[: len(expected["chain_tokens"])]
    assert logits.argmax(-1).tolist() == expected["chain_tokens"].tolist()
    given = np.isfinite(logits)
    theirs = expected["centroid_logits" if draft.model.centroids is not None else "dense_logits"]
    assert np.abs(logits[given] - theirs[given]).max() < TOLERANCE
    if draft.model.centroids is None:
        assert given.all()
    else:  # the reference gives the others less than the least of those that the centroids choose
        assert all((row[~seen] < row[seen].min()).all() for row, seen in zip(theirs, given, strict=True))
        assert given.sum(-1).tolist() == [6 * 384 // 24] * 4


@pytest.mark.parametrize("name", PRESENT)
def test_its_drafts_change_no_token(name: str) -> None:
    """Trees and chains with the assistant give plain decoding's tokens, greedy and sampled, past the window."""
    of, draft, expected = loaded(name)
    ids = expected["ids"].tolist()
    for sampling in ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 20, "seed": 5}):
        plain = generated(Engine(of), ids, Knobs(drafting="plain", max_tokens=40, ignore_eos=True, **sampling))
        for drafting in ("tree 12", "chain 3", "auto"):
            knobs = Knobs(drafting=drafting, max_tokens=40, ignore_eos=True, mtp_depth=3, **sampling)
            engine = Engine(of, draft)
            events = list(engine.generate(ids, knobs))
            assert [token for event in events for token in event.tokens] == plain, knobs
            if drafting != "auto":
                assert any(isinstance(event, StepEvent) and len(event.tree.tokens) > 1 for event in events)


@pytest.mark.parametrize("name", PRESENT)
def test_a_draft_behind_an_earlier_position_is_that_of_a_session_there(name: str) -> None:
    of, draft, expected = loaded(name)
    ids, here, there = expected["ids"].tolist(), of.session(draft), of.session(draft)
    here.prefill(ids)
    there.prefill(ids[:23])
    np.testing.assert_allclose(here.draft(7, 0, 23), there.draft(7, 0), rtol=1e-4, atol=1e-4)
    assert here.cut(23)
    np.testing.assert_allclose(here.draft(7, 0), there.draft(7, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
def test_it_reads_packed_keys(kv: str) -> None:
    """Whatever the cache's type: as near to the exact ones as the target's own logits are."""
    of, draft, expected = loaded("gemma4-e-assistant-F16")
    exact, packed = of.session(draft), of.session(draft, kv=CachePair.parse(kv))
    for session in (exact, packed):
        session.prefill(expected["ids"].tolist())
    ours, theirs = packed.draft(int(expected["anchor"]), 0)[0], exact.draft(int(expected["anchor"]), 0)[0]
    given = np.isfinite(ours) & np.isfinite(theirs)
    assert given.sum() > 40
    assert 0 < np.abs(ours[given] - theirs[given]).max() < 0.5


def test_an_assistant_of_another_target_is_refused() -> None:
    path = other_targets("gemma4-e-assistant-F16.gguf")[0]
    with pytest.raises(MismatchError, match=r"does not fit target .*: it reads keys of layers with a window, expected"):
        load_draft(path, target("q3-F16.gguf"))
    with pytest.raises(MismatchError, match=r"does not fit target .* KV heads of .* of layer .*, expected .* KV heads"):
        load_draft(path, target("gptoss-MXFP4.gguf"))
    with pytest.raises(DFlashError, match=r"is an assistant of Gemma's .*expected a target"):
        load_target(path)
    with pytest.raises(DFlashError, match="does not fit target"):
        load_draft(golden("tiny-dflash"), target("gemma4-e-F16.gguf"))


def test_an_incomplete_assistant_is_refused(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(other_targets("gemma4-e-assistant-F16.gguf")[0])
    rest = [tensor for tensor in stored(reader) if tensor.name != "nextn.post_projection.weight"]
    path = write_copy(tmp_path / "a.gguf", reader, rest)
    with pytest.raises(FormatError, match=r"1 of .* tensors are missing: nextn.post_projection.weight"):
        load_draft(path, target("gemma4-e-F16.gguf"))
