"""Golden files of other architectures than qwen35: logits, hidden states, chunks, greedy text, drafters, MTP heads."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.opened import Target
from dflash_core.errors import MismatchError
from support.behind import draft_logits
from support.compare import generated
from support.golden import golden, other_models, other_targets, target
from support.grids import full
from support.mtp_files import apart
from support.mtp_logits import mtp_logits

NAMES = [path.stem for path in other_models()]
EXPERTS = [name for name in NAMES if name.startswith("q3") and "moe" in name]
DRAFTS = [path.stem for path in other_targets("*-dflash")]
HEADS = [name for name in NAMES if "mtp" in name]
TOLERANCE, MARGIN = 2e-3, 1e-5


def path(name: str) -> Path:
    return other_targets(f"{name}.gguf")[0]


@functools.cache
def told(name: str) -> Any:
    return np.load(other_targets(f"{name}.npz")[0])


@functools.cache
def loaded(name: str) -> Target:
    return load_target(path(name))


def strict(name: str, margins: str, rows: int) -> int:
    """How many of the first `rows` are compared: those before a token whose experts were chosen by a tiny margin.

    Nothing is excused in the files at hand; others may have such a token.
    """
    if margins not in told(name):
        return rows
    close = np.flatnonzero(told(name)[margins][:rows] < MARGIN)
    kept = int(close[0]) if len(close) else rows
    assert kept > rows // 2, f"{name}: the comparison ends at row {kept} of {rows}"
    return kept


def differ(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_logits_and_hidden_states(name: str, packed: bool) -> None:
    expected, found = told(name), load_target(path(name), packed=packed)
    assert found.packed == packed
    rows, layers = strict(name, "router_margin", 40), range(found.config.block_count)
    logits = found.logits(expected["ids"])
    assert differ(logits[:rows], expected["logits"][:rows]) < TOLERANCE
    clear = expected["gap"][0] > TOLERANCE
    assert rows < 40 or not clear or logits[-1].argmax() == expected["greedy"][0]
    hidden = found.hidden(expected["ids"], layers).reshape(40, len(layers), -1).swapaxes(0, 1)
    # The reference's last layer is after the final norm: what the logits are made of.
    assert differ(hidden[:-1, :rows], expected["hidden"][1:-1, :rows]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
# A row at a time is decoding, which test_greedy_text walks; test_hidden_states_of_long_prompts reads all in one pass.
@pytest.mark.parametrize("chunk", [full(1), 7, full(64), 65, full(200)])
def test_long_prompts_in_any_chunks(name: str, chunk: int) -> None:
    expected, session, parts = told(name), loaded(name).session(), []
    ids, rows = expected["long_ids"].tolist(), expected["long_rows"]
    for at in range(0, len(ids), chunk):
        part = ids[at : at + chunk]
        parts.append(session.verify(part, range(-1, len(part) - 1)))
        session.commit(range(len(part)))
    compared = rows < strict(name, "long_router_margin", len(ids))
    logits = np.concatenate(parts)[rows]
    assert differ(logits[compared], expected["long_logits"][compared]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_of_long_prompts(name: str) -> None:
    expected, found = told(name), loaded(name)
    layers = range(found.config.block_count - 1)
    rows = expected["long_hidden_rows"]
    compared = rows < strict(name, "long_router_margin", 200)
    hidden = found.hidden(expected["long_ids"], layers).reshape(200, len(layers), -1).swapaxes(0, 1)[:, rows]
    assert differ(hidden[:, compared], expected["long_hidden"][1:-1][:, compared]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text(name: str) -> None:
    expected = told(name)
    knobs = Knobs(drafting="plain", max_tokens=32, temperature=0, ignore_eos=True)
    answer = generated(Engine(loaded(name)), expected["ids"].tolist(), knobs)
    for ours, theirs, gap in zip(answer, expected["greedy"], expected["gap"], strict=True):
        if ours != theirs:
            assert gap < TOLERANCE, "no near-tie"
            break


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_timed_before_one_is_run(name: str) -> None:
    """By its layers alone: those that read another's keys too, and those that get an input of their own."""
    assert loaded(name).step_seconds(3) > 0


@pytest.mark.parametrize("name", DRAFTS)
def test_drafters(name: str) -> None:
    expected, of = told(name), name.replace("-dflash", "-F16")
    draft = load_draft(other_targets(name)[0], loaded(of))
    features = loaded(of).hidden(told(of)["ids"], draft.capabilities.captured_layers)
    assert differ(features, expected["features"]) < TOLERANCE
    assert loaded(of).logits(told(of)["ids"])[-1].argmax() == expected["anchor"]
    assert differ(draft_logits(draft, expected["features"], int(expected["anchor"])), expected["draft_logits"]) < 1e-3
    session = loaded(of).session(draft)
    session.prefill(told(of)["ids"].tolist())
    assert differ(session.draft(int(expected["anchor"]), 0), expected["draft_logits"]) < 1e-3


@pytest.mark.parametrize("name", HEADS)
def test_mtp_heads_with_experts(name: str) -> None:
    expected, found = told(name), loaded(name)
    ids = expected["ids"].tolist()
    assert differ(mtp_logits(found, ids), expected["mtp_logits"]) < 1e-3
    session = found.session(load_draft("mtp", found))
    session.prefill(ids)
    chain = session.draft(found.logits(ids)[-1].argmax(), 0)[: len(expected["chain_tokens"])]
    assert differ(chain, expected["chain_logits"]) < 1e-3
    assert chain.argmax(-1).tolist() == expected["chain_tokens"].tolist()


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("beside_whole", [False, True])
def test_a_head_with_experts_in_a_file_of_its_own(name: str, fused: bool, beside_whole: bool, tmp_path: Path) -> None:
    expected, (trunk, head) = told(name), apart(path(name), tmp_path, fused=fused)
    of = loaded(name) if beside_whole else load_target(trunk)
    session = of.session(load_draft(head, of))
    session.prefill(expected["ids"].tolist())
    anchor = int(expected["logits"][-1].argmax())
    assert differ(session.draft(anchor, 0)[: len(expected["chain_logits"])], expected["chain_logits"]) < 1e-3


def test_a_drafter_of_the_dense_sibling_is_noted() -> None:
    """Its file says nothing that this target contradicts: the same width, depth and vocabulary."""
    name, folder = "q3moe-Q8_0", other_targets("q3-dflash")[0]
    note = (
        "the drafter's name does not mention experts, which this target has: if it was made for a dense model, few "
        "drafts will be accepted"
    )
    assert note in load_draft(folder, loaded(name)).notes
    assert note not in load_draft(folder, loaded("q3-F16")).notes
    assert note not in load_draft(other_targets("q35moe-dflash")[0], loaded("q35moe-F16")).notes
    answer = [
        generated(Engine(loaded(name), draft), [5, 6, 7], Knobs(max_tokens=12, ignore_eos=True))
        for draft in (None, load_draft(folder, loaded(name)))
    ]
    assert answer[0] == answer[1], "the text is the target's"


@pytest.mark.parametrize("name", DRAFTS)
def test_a_drafter_of_another_model_is_refused(name: str) -> None:
    other = next(one for one in NAMES if one.split("-")[0] != name.split("-")[0])
    for of in (loaded(other), target()):
        with pytest.raises(MismatchError, match=r"does not fit target .*; use the drafter that was made for this"):
            load_draft(other_targets(name)[0], of)
    with pytest.raises(MismatchError, match="vocabulary of 768 tokens, expected"):
        load_draft(golden("tiny-dflash"), loaded(name.replace("-dflash", "-F16")))
