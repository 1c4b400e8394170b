"""Gemma assistants on a card, emulated and real: the CPU's chains wherever a sequence goes, and a text that is plain
decoding's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.bench.synthetic import synthetic_pair

from dflash_core import Knobs, load_draft, load_target
from dflash_core.backends.base import Checkpoint
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Session
from dflash_core.bench.family_models import GEMMA_31B, gemma4, gemma4_assistant, own_values
from dflash_core.bench.synthetic_models import Model
from dflash_core.cache_types import CachePair
from dflash_core.errors import ContextError
from dflash_core.events import StepEvent
from dflash_core.knobs import Value
from dflash_core.runner import Runner
from support.assistant_device import PRESENT, AssistantPair, assistant_pair
from support.device_pairs import CONTEXT, TOLERANCE, close, device_named
from support.grids import full

WAYS: list[dict[str, Value]] = [
    {"drafting": "chain 3", "mtp_depth": 3}, {"drafting": "tree 18", "mtp_depth": 4, "chain_seed": True},
    {"drafting": "auto"}, {"drafting": "tree 22", "tree_width": 3, "mtp_depth": 6},
]  # fmt: skip


# Scores are not divided by the root of the head size, so halves of keys and queries tell more than elsewhere; and the
# state of one token is the input of the next.
ROUNDED = 2 * TOLERANCE
ALIKE = 0.997  # correlation of logits; a window that is one position too long gives 0.83 to 0.993


def agreed(pair: AssistantPair) -> list[int]:
    """The reference's prompt; of a target with experts a random one of which the device reads every position as the CPU
    does, because nowhere rounding decides between two experts."""
    session, rng = pair.sessions()[0], np.random.default_rng(5)
    prompts = [pair.ids, *(rng.integers(0, pair.target.config.vocab_size, 20).tolist() for _ in range(40))]
    for prompt in prompts:
        found, expected = session.verify(prompt, range(-1, len(prompt) - 1)), pair.target.logits(prompt)
        if np.abs(found - expected).max() < 2 * ROUNDED:
            return prompt
    raise AssertionError("no prompt is read alike")


def close_chains(found: np.ndarray, expected: np.ndarray) -> None:
    """The same chain up to a near-tie of two tokens, after which both go on with different ones. The cells that get
    logits may differ by those whose scores are nearly equal."""
    for ours, theirs in zip(found, expected, strict=True):
        both = np.isfinite(ours) & np.isfinite(theirs)
        assert both.sum() > 0.8 * np.isfinite(theirs).sum()
        assert np.corrcoef(ours[both], theirs[both])[0, 1] > ALIKE
        if ours.argmax() != theirs.argmax():
            token = ours.argmax()
            assert not np.isfinite(theirs[token]) or theirs.max() - theirs[token] < 2 * ROUNDED
            break


def answer(pair: AssistantPair, tokens: int = 14, **knobs: Value) -> tuple[list[int], list[StepEvent]]:
    asked = Knobs().replace(**{"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **knobs})  # type: ignore[arg-type]
    vocabulary = pair.target.config.vocab_size
    runner = Runner(pair.sessions()[0], frozenset(), CONTEXT, vocabulary)
    events = list(runner.generate(pair.ids, asked))
    return [token for event in events for token in event.tokens], [one for one in events if isinstance(one, StepEvent)]


def test_a_draft_from_where_the_target_has_no_rows_is_refused(
    device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target's rings hold the newest positions alone; a draft from the end needs no others."""
    pair = assistant_pair(device_name, PRESENT[0])
    session = pair.sessions()[0]
    session.prefill(pair.ids)
    monkeypatch.setattr(session.drafter, "_reaches", lambda length, before: before - length < 3)
    drafted = session.draft(pair.ids[-1], 0)
    assert np.array_equal(session.draft(pair.ids[-1], 0, at=session.length), drafted, equal_nan=True)
    with pytest.raises(ContextError, match="no longer has its cache of the context before position 4"):
        session.draft(pair.ids[4], 0, at=4)
    assert np.array_equal(session.draft(pair.ids[-1], 0), drafted, equal_nan=True)


@pytest.mark.parametrize("name", PRESENT)
def test_a_chain_is_that_of_the_cpu(device_name: str, name: str) -> None:
    """Twice, since a draft leaves nothing behind. Where the whole prompt is read alike, it is the reference's too."""
    pair = assistant_pair(device_name, name)
    prompt, (ours, theirs) = agreed(pair), pair.sessions()
    for session in (ours, theirs):
        session.prefill(prompt)
    anchor, told = int(pair.expected["anchor"]), pair.expected["chain_tokens"].tolist()
    for _ in range(2):
        chain = ours.draft(anchor, 0)[: len(told)]
        close_chains(chain, theirs.draft(anchor, 0)[: len(told)])
    given = np.isfinite(chain)
    assert given.all() != bool(pair.draft.config.cells)
    if prompt == pair.ids:
        logits = pair.expected["centroid_logits" if pair.draft.config.cells else "dense_logits"]
        close(chain[given], logits[given], ROUNDED)
        assert chain.argmax(-1).tolist() == told


def test_it_follows_the_sequence(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in chunks and passes, trees, and truncation to earlier checkpoints and to nothing, past the window."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 40)
    rng = np.random.default_rng(1)  # with one seed of five a choice of cells is nearly a tie, which rounding decides
    pair = assistant_pair(device_name, PRESENT[0])
    both = pair.sessions()
    kept: list[list[Checkpoint]] = []

    def everywhere(tokens: Sequence[int], path: Sequence[int] = ()) -> None:
        for session in both:
            session.prefill(tokens)
            if path:
                session.verify([int(token) for token in tokens[:3]], [-1, 0, 0])
                session.commit(path)
        chains(5)

    def chains(root: int) -> None:
        found, expected = (session.draft(root, 0)[:3] for session in both)
        close_chains(found, expected)

    for length in (3, 50, 9):
        everywhere(rng.integers(0, 380, length).tolist(), (0, 2))
        kept.append([session.checkpoint() for session in both])
    for place in (1, 0):
        for session, checkpoint in zip(both, kept[place], strict=True):
            session.restore(checkpoint)
        chains(6)
        everywhere(rng.integers(0, 380, 20).tolist())
    for session in both:
        session.restore(None)
    everywhere(rng.integers(0, 380, 45).tolist())


@pytest.mark.parametrize("dealt", [True, full(False)], ids=["dealt", "all"])
@pytest.mark.parametrize("name", PRESENT)
def test_its_drafts_change_no_token(device_name: str, name: str, dealt: bool) -> None:
    """Trees, chains and auto give plain decoding's tokens: the first assistant's each greedy or sampled, with `full`
    both."""
    pair, first = assistant_pair(device_name, name), name == PRESENT[0]
    sampled = {"temperature": 0.9, "top_k": 20, "seed": 4}
    greedy, drawn = (WAYS[::2], WAYS[1::2]) if dealt else (WAYS, WAYS[1:3])
    for sampling, ways in (({}, greedy if first else WAYS[1:3]), (sampled, drawn if first else ())):
        if not ways:
            continue
        plain, _ = answer(pair, 7, drafting="plain", **sampling)
        for way in ways:
            tokens, steps = answer(pair, 7, **way, **sampling)
            assert tokens == plain, way
            if way["drafting"] != "auto":
                assert any(len(step.tree.tokens) > 2 for step in steps)


def test_steps_draft_what_calls_from_the_host_do(device_name: str) -> None:
    pair = assistant_pair(device_name, PRESENT[0])
    tokens, steps = answer(pair, drafting="chain 3", mtp_depth=3)
    session: Session = pair.sessions()[0]
    text = [*pair.ids, tokens[0]]
    for step in steps[:3]:
        if session.length:
            session.restore(None)
        session.prefill(text[:-1])
        proposal = session.propose(text[-1], Knobs(drafting="chain 3", mtp_depth=3))
        assert step.drafts is not None
        assert [row[0] for row in step.drafts.tokens] == proposal.tokens[:, 0].tolist()
        text += step.tokens


@pytest.mark.parametrize("kv", ["q8_0", full("bf16"), "q8_0+384"])
def test_it_reads_packed_keys(device_name: str, kv: str) -> None:
    pair = assistant_pair(device_name, PRESENT[0])
    ours, theirs = pair.sessions(kv=CachePair.parse(kv))[0], pair.target.session(pair.draft, kv=CachePair.parse(kv))
    for session in (ours, theirs):
        session.prefill(pair.ids)
    anchor = int(pair.expected["anchor"])
    close_chains(ours.draft(anchor, 0)[:1], theirs.draft(anchor, 0)[:1])


def test_drafts_from_an_earlier_position_are_those_of_a_session_there(device_name: str) -> None:
    pair = assistant_pair(device_name, PRESENT[0])
    tokens, _ = answer(pair, 12, drafting="chain 2", mtp_depth=2)
    here = pair.sessions()[0]
    here.prefill([*pair.ids, *tokens])
    length = len(pair.ids) + len(tokens)
    before = here.draft(7, 0)
    there = pair.sessions()[0]
    there.prefill([*pair.ids, *tokens][: length - 1])
    np.testing.assert_array_equal(here.draft(9, 0, length - 1)[0], there.draft(9, 0)[0])
    np.testing.assert_array_equal(here.draft(7, 0), before)
    assert here.cut(length - 1)
    np.testing.assert_array_equal(here.draft(9, 0)[0], there.draft(9, 0)[0])


@pytest.mark.parametrize("activations", ["mixed", "int8"])
def test_rounded_activations_draft_alike(device_name: str, activations: str, tmp_path: Path) -> None:
    """The last row is read by the head and by the projection for the next token, in the form of the target's head."""
    model = small_gemma()
    pair = synthetic_pair(tmp_path, model)
    target = load_target(pair.target)
    draft = load_draft(pair.draft, target)
    device, chosen = device_named(device_name), CHOICES[activations]
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, *draft.files)]
        loaded = DeviceTarget(device, uploads[0], target.config, chosen)
        ours = CudaSession(loaded, on_device(draft.config, uploads[1], loaded, chosen), context=CONTEXT)
        for upload in uploads:
            upload.close()
    theirs, prompt = (
        target.session(draft),
        [3, 4, 5],
    )  # scores of random heads are far apart: more keys magnify rounding
    for session in (ours, theirs):
        session.prefill(prompt)
    found, expected = ours.draft(7, 0)[:3], theirs.draft(7, 0)[:3]
    for depth, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert np.corrcoef(one, other)[0, 1] > (0.9 if depth else 0.995)
        if one.argmax() != other.argmax():
            break


def small_gemma() -> Model:
    """Gemma 4 31B with six narrow layers and few words, and its assistant, in the types of published files."""
    settings = gemma4(6, 256, 2, (1, 1), 512, layers=6)
    words = replace(
        GEMMA_31B.vocabulary, size=1000, end_of_text=900, im_start=901, im_end=902, think=910, end_think=911
    )
    return replace(
        GEMMA_31B, name="small-gemma", settings=settings, vocabulary=words, names=own_values(6),
        assistant=gemma4_assistant(settings, 256, 512), draft=replace(GEMMA_31B.draft, mask_token_id=920),
    )  # fmt: skip
