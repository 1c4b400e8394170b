"""Guards on a card: steps under way when an answer halts change nothing, and the answer goes on as in plain decoding.

Emulated, with planted drafts so that walks lead past the halt.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from dflash_core import Knobs
from dflash_core.events import Event, GuardEvent, StepEvent
from dflash_core.guards.turn import Intervention
from dflash_core.knobs import Value
from dflash_core.runner import Runner
from support import engines
from support.device_pairs import pair, prompt
from support.grids import full
from support.host_drafts import PrimedText
from support.planted_device import planted

FILE = "tiny-F16.gguf"
IDS = prompt()[:7]
SPINE, AROUND = [0] * 15, [0, 0, 0, 2, 0, 1, 1]
CLOSED = GuardEvent("thinking budget", "thinking", "close", "told to")
STOPPED = GuardEvent("loop", "answer", "stop", "told to")

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]


@dataclass
class Script:
    """A guard that decides after `since` tokens to halt at token `at`. There it inserts `tokens`, or ends the answer if
    `tokens` is empty. If `tokens` is None, it withdraws the halt before that."""

    since: int
    at: int
    tokens: tuple[int, ...] | None
    instead: tuple[int, ...] = ()  # of a stop token, once
    request: bool = False  # inserted as soon as `since` tokens are there, wherever the answer is
    seen: list[int] = field(default_factory=list)
    over: bool = False

    @property
    def limit(self) -> int | None:
        return self.at if len(self.seen) >= self.since and not self.over and not self.request else None

    @property
    def intervention(self) -> Intervention | None:
        if len(self.seen) == self.at and not self.over and self.tokens is not None:
            return Intervention(CLOSED if self.tokens else STOPPED, self.tokens)
        return None

    @property
    def requested(self) -> Intervention | None:
        wanted = self.request and len(self.seen) >= self.since and not self.over
        return Intervention(CLOSED, self.tokens or ()) if wanted else None

    def ended(self) -> Intervention | None:
        return Intervention(CLOSED, self.instead) if self.instead and not self.over else None

    def see(self, tokens: Sequence[int], *, injected: bool = False) -> None:
        self.seen += tokens
        self.over = self.over or injected or (self.tokens is None and len(self.seen) >= self.since + 1)


def answer(run: Runner, guard: Script, **knobs: Value) -> tuple[tuple[int, ...], list[Event]]:
    given: dict[str, Value] = {"temperature": 0.0, "mode": "tree", "budget": 15, "max_tokens": 26, **knobs}
    events = list(run.generate(IDS, Knobs().replace(**given), guard=guard))
    tokens = tuple(token for event in events for token in event.tokens)
    assert tuple(guard.seen) == tokens
    assert tuple(run._committed) == (*IDS, *tokens[:-1])
    assert run.session.length == len(IDS) + len(tokens) - 1
    return tokens, events


def runner(session: object, *stops: int) -> Runner:
    return Runner(session, frozenset(stops), 192, pair("emulated", FILE).target.config.vocab_size)  # type: ignore[arg-type]


@functools.cache
def plain(at: int, tokens: tuple[int, ...], **knobs: Value) -> tuple[int, ...]:
    session = pair("emulated", FILE).sessions()[0]
    return answer(runner(session), Script(0, at, tokens), mode="plain", **knobs)[0]


@pytest.mark.parametrize(
    ("at", "ranks", "said"),
    [
        (1, SPINE, (90,)),
        (9, AROUND, (90, 91, 92)),
        full(16, SPINE, (90, 91)),
        full(17, SPINE, (90,)),
    ],
)
def test_a_halt_in_mid_walk_is_exact(at: int, ranks: list[int], said: tuple[int, ...]) -> None:
    expected = plain(at, said)
    assert expected[at : at + len(said)] == said
    tokens, events = answer(runner(planted(FILE, expected, ranks)[0]), Script(0, at, said))
    assert tokens == expected
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert [step.tokens for step in steps if step.guard] == [said]
    assert max(step.accepted_depth for step in steps) > 2, "walks past a point are what this is about"


def test_a_halt_that_comes_up_while_steps_are_under_way() -> None:
    """Decided with token 17, when another step of 16 is already queued."""
    expected = plain(36, (90,), max_tokens=39)
    tokens, _ = answer(runner(planted(FILE, expected, SPINE)[0]), Script(2, 36, (90,)), max_tokens=39)
    assert tokens == expected


def test_a_halt_that_is_taken_back() -> None:
    """The card may have halted by then: the answer goes on as if it had not."""
    expected = plain(25, (90,))[:25]
    for since, at in ((0, 2), (0, 17), (2, 22)):
        session = planted(FILE, expected, SPINE)[0]
        tokens, _ = answer(runner(session), Script(since, at, None), max_tokens=25)
        assert tokens == expected


def test_a_stop_ends_it_there() -> None:
    expected = plain(25, (90,))
    tokens, events = answer(runner(planted(FILE, expected, SPINE)[0]), Script(0, 21, ()))
    assert tokens == expected[:21]
    assert events[-1].stop == "loop"
    assert isinstance(events[-1], StepEvent)
    assert events[-1].guard == STOPPED


def test_other_ends_come_first() -> None:
    expected = plain(9, (90, 91))
    for most in (9, 10, 11, 12):
        tokens, events = answer(runner(planted(FILE, expected, SPINE)[0]), Script(0, 9, (90, 91)), max_tokens=most)
        assert (tokens, events[-1].stop) == (expected[:most], "max tokens")


def test_draws_and_penalties_go_on_behind_it() -> None:
    """History, seed and positions are those of one answer."""
    knobs: dict[str, Value] = {
        "temperature": 1.2, "top_k": 40, "repetition_penalty": 1.3, "presence_penalty": 0.5, "seed": 6,
    }  # fmt: skip
    expected = plain(12, (90,), **knobs)
    tokens, _ = answer(runner(planted(FILE, expected, AROUND)[0]), Script(0, 12, (90,)), **knobs)
    assert tokens == expected
    mine, reference = pair("emulated", FILE).sessions()
    assert answer(runner(reference), Script(0, 12, (90,)), **knobs)[0] == expected
    assert mine is not reference


def test_a_drafter_on_the_host_hears_of_it() -> None:
    expected = plain(13, (90, 91))
    loaded = pair("emulated", FILE)
    from dflash_core.backends.cuda.session import CudaSession

    drafter = PrimedText([*IDS[-3:], *expected])
    session = CudaSession(loaded.device_target, host_drafter=drafter, context=192)
    run = runner(session)
    tokens, _ = answer(run, Script(0, 13, (90, 91)))
    assert tokens == expected
    observed = drafter._text.tokens[: drafter._length].tolist()
    assert observed[-len(run._committed) :] == run._committed


def test_a_stop_token_is_replaced_exactly() -> None:
    """It ends a walk, or comes after it; drafts and state go on from what stands in its place."""
    free = plain(26, (90,))
    at = next(n for n in range(9, 20) if free[n] not in free[:n])
    guard = Script(0, 99, (), instead=(90, 91))
    session, reference = pair("emulated", FILE).sessions()
    expected, _ = answer(runner(session, free[at]), guard, mode="plain")
    assert expected[: at + 2] == (*free[:at], 90, 91)
    assert answer(runner(reference, free[at]), Script(0, 99, (), instead=(90, 91)))[0] == expected
    for drafts, instead in ((free, (90, 91)), (expected, (90, 91)), (expected, (90,))):
        run = runner(planted(FILE, drafts, SPINE)[0], free[at])
        tokens, events = answer(run, Script(0, 99, (), instead=instead))
        assert tokens[: at + len(instead)] == expected[: at + len(instead)]
        assert tokens == expected or len(instead) == 1
        assert [event.guard for event in events if event.guard] == [CLOSED]


def test_a_stop_token_that_comes_first_is_replaced() -> None:
    free = plain(26, (90,))
    expected, _ = answer(
        runner(pair("emulated", FILE).sessions()[0], free[0]), Script(0, 99, (), instead=(90,)), mode="plain"
    )
    tokens, events = answer(runner(planted(FILE, expected, SPINE)[0], free[0]), Script(0, 99, (), instead=(90,)))
    assert tokens == expected
    assert (tokens[0], events[0].guard) == (90, CLOSED)


def test_a_request_is_met_behind_the_steps_under_way() -> None:
    """They count; what follows is what plain decoding says after the same tokens."""
    free = plain(26, (90,))
    for since in (1, 12):
        run = runner(planted(FILE, free, SPINE)[0])
        tokens, events = answer(run, Script(since, 99, (90,), request=True), max_tokens=40)
        at = next(sum(len(one.tokens) for one in events[:n]) for n, event in enumerate(events) if event.guard)
        assert since <= at <= since + 48
        assert at < 32, "what follows is compared"
        assert tokens[: at + 8] == plain(at, (90,), max_tokens=at + 8)
