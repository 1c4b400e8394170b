"""Edge cases of a session of the CUDA backend: how answers begin, end and break off.

Emulated, with planted drafts where long walks are needed. The expected tokens are plain decoding's on the same device.
"""

from __future__ import annotations

import functools
import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from dflash_core import Knobs
from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.drafters.dflash import DFlash
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_STOP_IDS
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.drafters.dflash import open_dflash
from dflash_core.errors import DFlashError, KnobError, NumericsError, UnsupportedError
from dflash_core.events import Event, StepEvent
from dflash_core.knobs import Value
from dflash_core.runner import Runner
from support import engines
from support.device_pairs import close, pair, prompt, same_candidates
from support.grids import full
from support.planted_device import planted
from support.shallow import shallow_draft

FILE = "tiny-F16.gguf"
IDS = prompt()[:7]
# Deep walks: along the spine, and off it at depths 3, 5 and 6.
SPINE, AROUND = [0] * 15, [0, 0, 0, 2, 0, 1, 1]

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]


def runner(session: CudaSession, context: int = 192, stops: frozenset[int] = frozenset()) -> Runner:
    return Runner(session, stops, context, pair("emulated", FILE).target.config.vocab_size)


def fresh() -> CudaSession:
    return pair("emulated", FILE).sessions()[0]


def answer(run: Runner, ids: tuple[int, ...] = IDS, **knobs: Value) -> tuple[list[int], list[Event]]:
    given: dict[str, Value] = {"temperature": 0.0, "mode": "tree", "budget": 15, "max_tokens": 8, **knobs}
    events = list(run.generate(ids, Knobs().replace(**given)))
    return [token for event in events for token in event.tokens], events


@functools.cache
def plain(count: int = 48, ids: tuple[int, ...] = IDS) -> tuple[int, ...]:
    """The tokens of plain decoding."""
    return tuple(answer(runner(fresh()), ids, mode="plain", max_tokens=count)[0])


def goes_on_rightly(run: Runner, said: tuple[int, ...]) -> None:
    """The state is that of `said`, and the next turn is that of a fresh prompt."""
    assert tuple(run._committed) == said
    assert run.session.length == len(said)
    follow = (*said, 5, 6)
    if len(follow) + 4 < run.context_length:
        mine, events = answer(run, follow, mode="plain", max_tokens=4)
        assert events[0].reused_tokens == len(said)  # type: ignore[union-attr]
        assert tuple(mine) == plain(4, follow)


def dealt(name: str, values: tuple[int, ...]) -> pytest.MarkDecorator:
    """Parameters `name` and `ranks`: each value with one of two kinds of walk, alternately; with `full`, with both."""
    cases = [
        pytest.param(value, ranks, id=f"{value}-{kind}", marks=() if (at + turn) % 2 == 0 else pytest.mark.full)
        for at, value in enumerate(values)
        for turn, (kind, ranks) in enumerate((("around", AROUND), ("spine", SPINE)))
    ]
    return pytest.mark.parametrize((name, "ranks"), cases)


@pytest.mark.parametrize("ids", [(3,), full((3, 4))])
def test_the_shortest_prompts(ids: tuple[int, ...]) -> None:
    run = runner(fresh())
    for knobs in ({"mode": "plain"}, {"mode": "tree", "budget": 7}):
        run.reset()
        assert tuple(answer(run, ids, max_tokens=4, **knobs)[0]) == plain(4, ids)


def test_a_prompt_that_leaves_room_for_one_token() -> None:
    run = runner(fresh(), context=len(IDS) + 1)
    tokens, events = answer(run)
    assert (tuple(tokens), [event.stop for event in events]) == (plain()[:1], ["context full"])
    assert run.session.length == len(IDS)
    # The whole prompt is committed already, so its last token runs again for its logits.
    assert answer(run)[0] == tokens


@dealt("room", (2, 6, 14))
def test_the_context_ends_in_mid_walk(ranks: list[int], room: int) -> None:
    context = len(IDS) + room
    run = runner(planted(FILE, plain(), ranks)[0], context)
    tokens, events = answer(run, max_tokens=100)
    assert tuple(tokens) == plain()[:room]
    assert events[-1].stop == "context full"
    assert tuple(run._committed) == (*IDS, *tokens[:-1])
    assert run.session.length == context - 1


@dealt("most", (1, 5, 17))
def test_max_tokens_in_mid_walk(ranks: list[int], most: int) -> None:
    run = runner(planted(FILE, plain(), ranks)[0])
    tokens, events = answer(run, max_tokens=most)
    assert tuple(tokens) == plain()[:most]
    assert events[-1].stop == "max tokens"
    goes_on_rightly(run, (*IDS, *tokens[:-1]))


@pytest.mark.parametrize("at", [0, full(1), 16])
def test_a_stop_token_anywhere_in_a_walk(at: int) -> None:
    stop = plain()[at]
    run = runner(planted(FILE, plain(), SPINE)[0], stops=frozenset({stop, 767}))
    tokens, events = answer(run, max_tokens=40)
    assert tuple(tokens) == plain()[: at + 1]
    assert events[-1].stop == "stop token"
    goes_on_rightly(run, (*IDS, *tokens[:-1]))
    ignored, events = answer(run, mode="plain", max_tokens=20, ignore_eos=True)
    assert (tuple(ignored), events[-1].stop) == (plain()[:20], "max tokens")


@pytest.mark.parametrize(
    ("way", "after"),
    [("cancel", 1), ("close", 1), ("cancel", 2), ("close", 3)]
    + [pytest.param(*one, marks=pytest.mark.full) for one in (("close", 2), ("cancel", 3))],
)
def test_given_up_between_events(after: int, way: str) -> None:
    """Also after the first token, before any step; the step under way is committed."""
    run = runner(planted(FILE, plain(), AROUND)[0])
    events, found = run.generate(IDS, Knobs(drafting="tree 15", temperature=0, max_tokens=60)), list[Event]()
    for event in events:
        found.append(event)
        if len(found) == after and way == "cancel":
            run.cancel()
        elif len(found) == after:
            events.close()  # type: ignore[attr-defined]
            break
    tokens = [token for event in found for token in event.tokens]
    assert tuple(tokens) == plain()[: len(tokens)]
    said = tuple(run._committed)
    assert said == (*IDS, *plain())[: len(said)]
    assert len(said) == len(IDS) + len(tokens) - 1 if way == "cancel" else len(said) >= len(IDS) + len(tokens) - 1
    goes_on_rightly(run, said)


def test_other_graphs_in_mid_turn() -> None:
    """Plain steps leave features for the drafter, trees grow beyond one pass, and the answer stays as it is."""
    session, _ = planted(FILE, plain(), AROUND)
    run, found, modes = runner(session), list[int](), list[str]()
    changes: list[dict[str, Value]] = [
        {"mode": "plain"}, {"mode": "plain"}, {"mode": "chain", "budget": 4}, {"mode": "tree", "budget": 22},
        {"mode": "plain"}, {"mode": "tree", "budget": 70}, {"mode": "plain"}, {"mode": "tree", "budget": 2},
    ]  # fmt: skip
    knobs = Knobs(drafting="tree 7", temperature=0, max_tokens=32)
    for count, event in enumerate(run.generate(IDS, knobs)):
        found += event.tokens
        modes += [event.mode] if isinstance(event, StepEvent) else []
        run.change(knobs.replace(**changes[count % len(changes)]))
    assert tuple(found) == plain()[:32]
    assert {"plain", "chain", "tree"} == set(modes)
    goes_on_rightly(run, (*IDS, *found[:-1]))


def test_sampling_that_begins_and_ends_in_mid_turn() -> None:
    """Draws follow the knobs of their step, whichever graph was queued before."""
    expected = runner(fresh()), Knobs(drafting="plain", temperature=0, max_tokens=9, seed=3)
    other = expected[1].replace(temperature=1.2, top_k=40, repetition_penalty=1.3)
    found = []
    for mode in ("plain", "tree"):
        run, tokens = runner(fresh()), list[int]()
        for count, event in enumerate(run.generate(IDS, expected[1].replace(mode=mode, budget=3))):
            tokens += event.tokens
            if count == 2:
                run.change(other.replace(mode=mode, budget=3))
            elif count == 5:
                run.change(expected[1].replace(mode=mode, budget=3))
        found.append(tokens)
    assert len(found[0]) == 9
    assert found[0] == found[1]


def test_the_newest_step_may_end_the_turn_while_room_is_made() -> None:
    """The step that is queued has reached the end when a larger tree asks for memory."""
    run = runner(planted(FILE, plain(), SPINE)[0])
    found: list[int] = []
    for count, event in enumerate(run.generate(IDS, Knobs(drafting="tree 15", temperature=0, max_tokens=33))):
        found += event.tokens
        if count == 1:  # the second of two steps of 16 has run by now
            run.change(Knobs(drafting="tree 90", temperature=0))
    assert tuple(found) == plain()[:33]
    goes_on_rightly(run, (*IDS, *found[:-1]))


@pytest.mark.parametrize("seed", [1, full(2), full(3), full(4)])
def test_random_sampling_equals_the_references(seed: int) -> None:
    """No draw of these seeds is a near-tie of two tokens, which rounding would decide."""
    rng = np.random.default_rng(seed)
    ours, reference = pair("emulated", FILE).sessions()
    config = pair("emulated", FILE).target.config
    runs = runner(ours), Runner(reference, frozenset(), 192, config.vocab_size)
    for _ in range(4):
        knobs: dict[str, Value] = {
            "mode": "plain",
            "temperature": float(rng.choice([0.0, 0.5, 1.0, 5.0])),
            "top_k": int(rng.choice([0, 1, 7, 5000])),
            "top_p": float(rng.choice([0.0, 0.5, 1.0])),
            "min_p": float(rng.choice([0.0, 0.125, 1.0])),
            "repetition_penalty": float(rng.choice([0.5, 1.0, 1.5])),
            "frequency_penalty": float(rng.choice([-1.0, 0.0, 0.5])),
            "presence_penalty": float(rng.choice([0.0, 0.25])),
            "seed": int(rng.choice([0, 7, 2**32 + 1, 2**63 - 1])),
        }
        found = []
        for run in runs:
            run.reset()
            found.append(answer(run, max_tokens=12, **knobs)[0])
        assert found[0] == found[1], knobs


def test_an_edited_prompt_goes_back_to_a_checkpoint() -> None:
    """The shared part of the prompts is reused; keys, states and the drafter's cache are those of a fresh sequence."""
    run, ids = runner(fresh()), prompt()[:30]
    list(run.generate(ids, Knobs(drafting="tree 7", temperature=0, max_tokens=5), keep=(20,)))
    edited = (*ids[:20], 9, 8, 7)
    events = list(run.generate(edited, Knobs(drafting="tree 7", temperature=0, max_tokens=4)))
    assert events[0].reused_tokens == 20  # type: ignore[union-attr]
    assert tuple(token for event in events for token in event.tokens) == plain(4, edited)
    alone = fresh()
    alone.prefill(edited)
    run.generate(edited, Knobs())
    run.session.restore(None)
    run.session.prefill(edited)
    close(run.session.draft(4, 0), alone.draft(4, 0), 1e-6)


def test_a_prompt_of_chunks_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint cuts a long prompt into a part for the library and one for the kernels."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 24)
    ids = prompt()[:40]
    for keep in ((), (5,), (10, 38)):
        run = runner(fresh())
        events = list(run.generate(ids, Knobs(drafting="tree 7", temperature=0, max_tokens=3), keep=keep))
        assert tuple(token for event in events for token in event.tokens) == plain(3, ids)
        tokens, again = answer(run, (*ids[:39], 3), mode="plain", max_tokens=3)
        assert again[0].reused_tokens == max(keep, default=0)  # type: ignore[union-attr]
        assert tuple(tokens) == plain(3, (*ids[:39], 3))


@pytest.mark.parametrize("window", [1, 5, 16, 40])
def test_a_drafter_whose_window_is_shorter_than_the_context(window: int) -> None:
    """One causal layer with a window, one that sees all of the context; at the end of the context, too."""
    loaded = pair("emulated", FILE)
    config = replace(loaded.draft.config, sliding_window=window, sliding=(True, False), causal=(True, False))
    opened = replace(open_dflash(shallow_draft(), loaded.target), config=config)
    draft = opened.load()
    upload = DeviceUpload(loaded.device_target.device, loaded.draft.file)
    ours = CudaSession(
        loaded.device_target,
        on_device(config, upload, loaded.device_target, CHOICES["f16"]),
        context=60,
    )
    upload.close()
    reference = loaded.target.session(draft)
    for session in (ours, reference):
        session.prefill(prompt()[:59])
    for knob in (0, 3, 30):
        close(ours.draft(7, knob), reference.draft(7, knob))
        close(ours.draft(7, knob, 20), reference.draft(7, knob, 20))


def test_two_sessions_of_one_target_do_not_meet() -> None:
    first, second = runner(fresh()), runner(fresh())
    other = prompt()[10:19]
    expected = plain(5), plain(5, other)
    knobs = Knobs(drafting="tree 5", temperature=0, max_tokens=5)
    pairs = zip(first.generate(IDS, knobs), second.generate(other, knobs), strict=False)
    found = [*map(list, zip(*((a.tokens, b.tokens) for a, b in pairs), strict=True))]
    for tokens, right in zip(found, expected, strict=True):
        flat = tuple(token for part in tokens for token in part)
        assert flat == right[: len(flat)]
        assert len(flat) > 2


# ---- What breaks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["go on", "close"])
def test_numbers_that_are_not_finite_end_one_turn(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the answer is given up while the step that computes them is under way."""
    session = fresh()
    run, weights = runner(session), session.target.output_norm
    right = weights.clone()
    events = run.generate(IDS, Knobs(drafting="plain", temperature=0, max_tokens=30))
    next(events)
    next(events)
    weights[:] = float("nan")
    said = r"^the target produced numbers that are not finite at position \d+, expected logits; its file is damaged"
    try:
        next(events)  # was under way when they came
        with pytest.raises(NumericsError, match=said):
            next(events) if way == "go on" else events.close()  # type: ignore[attr-defined]
    finally:
        weights.copy_(right)
    assert (run.session.length, run._committed) == (0, [])
    assert tuple(answer(run, mode="plain")[0]) == plain()[:8]


def test_without_a_drafter_that_has_no_number_the_answer_goes_on() -> None:
    """No candidate has an id then; the value in its place must still be a valid token. Steps that were queued already
    draft in vain, all later ones are plain."""
    session = fresh()
    run, weights = runner(session), session.draft_weights.output_norm
    right = weights.clone()
    weights[:] = float("nan")
    try:
        tokens, events = answer(run)
    finally:
        weights.copy_(right)
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert tuple(tokens) == plain()[:8]
    assert [step.mode for step in steps[3:]] == ["plain"] * len(steps[3:])
    assert steps[-1].reason == "dflash is left out, its numbers are not finite; no other drafter is loaded"
    for step in steps:
        assert np.isfinite([*step.tree.probs, *step.tree.path_probs, *sum(step.drafts.log_probs, ())]).all()
    (note,) = run.drafter_notes
    assert note.startswith("dflash is left out: the drafter produced numbers that are not finite at position")
    assert tuple(answer(run)[0]) == plain()[:8]


def test_a_turn_that_breaks_off_leaves_nothing_to_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's copy of the state then dates from the start of the turn: no more rows than are pending may be used."""
    monkeypatch.setattr(DFlash, "max_pending", 72)
    session = fresh()
    run, waited = runner(session), list[int]()
    update = CudaSession.update_drafter

    def watched(self: CudaSession) -> None:
        assert self.drafter is not None
        waited.append(self.drafter.pending)
        update(self)

    monkeypatch.setattr(CudaSession, "update_drafter", watched)
    events = run.generate(IDS, Knobs(drafting="plain", temperature=0, max_tokens=120))
    for _ in range(80):
        next(events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert run.session.length == 0
    assert tuple(answer(run, max_tokens=3)[0]) == plain()[:3]
    assert max(waited) <= 72


def test_a_drafter_that_fails_beside_the_conversation_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = fresh()
    session.prefill(prompt()[:20])
    right = session.draft(3, 0)

    def fail(*_: object) -> None:
        raise DFlashError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(CudaSession, "launch", fail)
        with pytest.raises(DFlashError):
            session.draft(3, 0, 6)
    assert session.length == 20
    assert np.array_equal(session.draft(3, 0), right)


def test_what_a_session_holds_goes_with_it() -> None:
    """Its memory is freed at once: the app freezes the garbage collector, and a card has no room for two models."""
    session = fresh()
    answer(runner(session), max_tokens=3)
    held = [weakref.ref(one) for one in (session, session.memory, session.drafter, session.steps, session.chunk_pass)]
    gc.collect()
    gc.disable()
    try:
        del session
        assert [one() for one in held] == [None] * len(held)
    finally:
        gc.enable()


# ---- What is refused, or said ---------------------------------------------------------------------------------------


def test_more_stop_tokens_than_a_card_checks_for() -> None:
    session, stops = fresh(), frozenset(range(MAX_STOP_IDS))
    assert session.decoder(AnswerOptions(Knobs(), stops, 192)).stop_ids == stops
    with pytest.raises(UnsupportedError, match=r"^17 tokens that end an answer, expected at most 16 on a card; ") as e:
        session.decoder(AnswerOptions(Knobs(), stops | {16}, 192))
    assert "\n" not in str(e.value)
    assert not session.decoder(AnswerOptions(Knobs(ignore_eos=True), stops | {16}, 192)).stop_ids


def test_more_candidates_than_a_card_keeps() -> None:
    session = fresh()
    with pytest.raises(
        KnobError, match=r"^tree_width=9: the card keeps 8 candidates per draft position; expected 1 to"
    ):
        session.decoder(AnswerOptions(Knobs(tree_width=9), frozenset(), 192))
    decoder = session.decoder(AnswerOptions(Knobs(tree_width=3), frozenset(), 192))
    decoder.take(Knobs(tree_width=20))
    assert decoder.knobs.tree_width == 8  # its events report this value too


def test_the_largest_budget_says_what_it_is() -> None:
    """A tree's masks hold 256 nodes with the root, so a budget of 256 becomes 255. With memory for less it ends there,
    and the turn goes on."""
    small = CudaSession(pair("emulated", FILE).device_target, fresh().draft_weights, context=192, nodes=64)
    assert small.max_drafted == 63
    decoder = small.decoder(AnswerOptions(Knobs(drafting="tree 64"), frozenset(), 192))
    said = "drafting is set; budget 63: there is memory for trees of 64 nodes with its root"
    assert (decoder.knobs.budget, decoder.decision.reason) == (63, said)
    decoder.take(Knobs(drafting="tree 22"))
    decoder.take(Knobs(drafting="tree 255"))
    assert (decoder.knobs.budget, decoder.decision.reason) == (63, said)
    session = fresh()
    decoder = session.decoder(AnswerOptions(Knobs(drafting="tree 256"), frozenset(), 192))
    assert decoder.knobs.budget == 255
    assert (
        decoder.decision.reason == "drafting is set; budget 255: a tree on a card has at most 256 nodes with its root"
    )
    decoder.take(Knobs(drafting="tree 255"))
    assert (decoder.knobs.budget, decoder.decision.reason) == (255, "drafting is set")
    decoder.take(Knobs(drafting="chain 256"))
    assert (decoder.knobs.budget, decoder.decision.reason) == (
        256,
        "drafting is set",
    )  # a chain ends with the block anyway


def test_a_chain_records_every_candidate() -> None:
    """As on the CPU: where the walk left the chain, the rank that the drafter gave the target's token is known."""
    ours, reference = pair("emulated", FILE).sessions()
    config = pair("emulated", FILE).target.config
    runs = runner(ours), Runner(reference, frozenset(), 192, config.vocab_size)
    steps = [answer(run, mode="chain", budget=4, max_tokens=2, tree_width=5)[1][1] for run in runs]
    mine, theirs = steps
    assert isinstance(mine, StepEvent)
    assert isinstance(theirs, StepEvent)
    same_candidates(mine.drafts, theirs.drafts)
    assert {len(row) for row in mine.drafts.tokens} == {5}
