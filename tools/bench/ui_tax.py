"""The UI tax: the same turns with and without the app showing them, alternating in one run; and the loop lag.

"Without the app" means on the same kind of thread in the same process, while the app shows nothing of it.
`tools/bench/ui.py` opens an app in a pseudo-terminal and calls this module there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import mean, median, quantiles
from typing import Any, cast

from textual.screen import Screen

from dflash_core.bench.prompts import PROMPTS
from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.application.amounts import change
from dflash_tui.application.background import DecoderUse, Running
from dflash_tui.application.engine_session import EngineSession
from dflash_tui.application.figures.meter import Meter
from dflash_tui.application.session import OnPrefill, TurnLike
from dflash_tui.chat.flow import Flow
from dflash_tui.chat.state import AppState, ShownTurn
from dflash_tui.widgets.transcript import Transcript, TurnBlock
from tools.bench.ui_feed import DOCUMENTS, RATE, FedTurn

ROUNDS = 7
SPAN_S = 0.5  # seconds of decoding in each arm of a prompt per round: short turns are repeated
MAX_TURNS = 4  # turns in an arm of a round
MAX_TOKENS = 256  # tokens of a turn: the app's cost per second does not change after that
LOOK_S = 0.05  # seconds between checks for the end of a turn, the same in both arms
BEAT_S = 0.01  # seconds between probes of the app's loop
Say = Callable[[str], None]
Opener = Callable[[OnPrefill], TurnLike]


@dataclass(frozen=True, slots=True)
class Timed:
    """One turn: the tokens of its steps, and the seconds from its first token to its last, by the decoder's clock.

    `app_s`: processor time of the app's thread for the whole turn, from the message to the last frame.
    """

    tokens: int
    seconds: float
    steps: int = 0
    app_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt in one mode: equal numbers of turns without the app and with it. Both take the same steps."""

    prompt: str
    headless: tuple[Timed, ...]
    app: tuple[Timed, ...]
    mode: str = ""

    @property
    def tokens(self) -> int:
        return self.headless[0].tokens

    @property
    def seconds(self) -> tuple[float, float]:
        """The median time of each arm."""
        return median(one.seconds for one in self.headless), median(one.seconds for one in self.app)

    def of_round(self, number: int, rounds: int) -> tuple[float, float]:
        """The mean time of each arm's turns in a round."""
        turns = len(self.headless) // rounds
        part = slice(number * turns, (number + 1) * turns)
        return mean(one.seconds for one in self.headless[part]), mean(one.seconds for one in self.app[part])


@dataclass(frozen=True, slots=True)
class UiTax:
    """The cost of the app, over the median times of all prompts together."""

    pairs: tuple[Pair, ...]
    rounds: int = 1

    @property
    def rates(self) -> tuple[float, float]:
        """tok/s without the app and with it."""
        tokens = sum(pair.tokens for pair in self.pairs)
        headless, app = (sum(times) for times in zip(*(pair.seconds for pair in self.pairs)))
        return tokens / headless, tokens / app

    @property
    def loss(self) -> float:
        """The share of the headless speed that is lost."""
        headless, app = self.rates
        return 1 - app / headless

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of the losses of single rounds, over all prompts: its lower and upper end."""
        losses = []
        for number in range(self.rounds):
            headless, app = (sum(times) for times in zip(*(pair.of_round(number, self.rounds) for pair in self.pairs)))
            losses.append(1 - headless / app)
        if len(losses) < 2:
            return losses[0], losses[0]
        low, _, high = quantiles(losses, n=4, method="inclusive")
        return low, high

    @property
    def app_ms(self) -> tuple[float, float]:
        """Processor time of the app's thread for a turn, in ms, median of the turns: without showing it and
        with."""
        alone, shown = ([one.app_s for pair in self.pairs for one in getattr(pair, arm)] for arm in ("headless", "app"))
        return median(alone) * 1e3, median(shown) * 1e3

    def to_json(self) -> dict[str, Any]:
        """Everything measured, for `--json`."""
        headless, app = self.rates
        rows = [
            {
                "prompt": pair.prompt,
                "mode": pair.mode,
                "tokens": pair.tokens,
                "steps": pair.headless[0].steps,
                "headless_s": [one.seconds for one in pair.headless],
                "app_s": [one.seconds for one in pair.app],
            }
            for pair in self.pairs
        ]
        return {
            "headless_tokens_per_second": headless,
            "app_tokens_per_second": app,
            "loss": self.loss,
            "loss_middle_half": self.spread,
            "app_thread_ms_headless": self.app_ms[0],
            "app_thread_ms_in_app": self.app_ms[1],
            "prompts": rows,
        }


@dataclass(frozen=True, slots=True)
class Lag:
    """How late the app's loop was, in milliseconds, sampled every 10 ms while text was fed at a fixed rate."""

    document: str
    tokens: int
    late_ms: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """The quantile `share` of the lateness, in ms."""
        ordered = sorted(self.late_ms)
        return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]

    def to_json(self) -> dict[str, Any]:
        """The figures of the table, for `--json`."""
        figures = {"p50_ms": self.percentile(0.5), "p95_ms": self.percentile(0.95), "max_ms": max(self.late_ms)}
        return {"document": self.document, "tokens": self.tokens, "tokens_per_second": RATE, **figures}


@dataclass(frozen=True, slots=True)
class Place:
    """Where measured turns are shown: the transcript of a screen. `figures` draws those of the turn."""

    state: AppState
    screen: Screen[Any]
    figures: Callable[[], None]


async def measure_tax(
    place: Place, prompts: Sequence[str] = PROMPTS, rounds: int = ROUNDS, say: Say = lambda text: None
) -> UiTax:
    """Run every prompt in both arms, alternating, after one round of warm-up. The conversation is left as it is.

    No policy that learns from times is used: its steps would differ from turn to turn, so that one arm might decode
    the same answer in 45 steps and the other in 18. Instead of mode auto, the modes that it chooses from are measured.

    Raises DFlashError if a turn fails, or if the arms do not take the same steps.
    """
    cases = {(prompt, mode): _Arms([], []) for mode in _modes(place) for prompt in prompts}
    for number in range(rounds + 1):
        for at, ((prompt, mode), arms) in enumerate(cases.items(), 1):
            of_round = f"round {number:,} of {rounds:,}" if number else "warming up"
            say(f"{of_round} · prompt {at} of {len(cases)}, {mode}")
            knobs = place.state.knobs.replace(
                temperature=0.0, mode=mode, max_tokens=min(place.state.knobs.max_tokens, MAX_TOKENS)
            )
            # Which arm goes first changes from turn to turn.
            for turn in range(arms.turns):
                for shown in (False, True) if (number + turn) % 2 else (True, False):
                    timed = await (_in_app if shown else _headless)(place, prompt, knobs)
                    if number:
                        (arms.app if shown else arms.headless).append(timed)
                    else:
                        arms.turns = min(math.ceil(SPAN_S / max(timed.seconds, SPAN_S / MAX_TURNS)), MAX_TURNS)
            if len({(one.tokens, one.steps) for one in (*arms.headless, *arms.app)}) > 1:
                raise DFlashError(f"the arms decoded {prompt!r} in different steps; there is nothing to compare")
    pairs = (Pair(prompt, tuple(arms.headless), tuple(arms.app), mode) for (prompt, mode), arms in cases.items())
    return UiTax(tuple(pairs), rounds)


@dataclass
class _Arms:
    """The measured turns of a prompt in a mode; `turns`: how many each arm has per round."""

    headless: list[Timed]
    app: list[Timed]
    turns: int = 1


def _modes(place: Place) -> tuple[str, ...]:
    session, mode = place.state.session, place.state.knobs.mode
    if mode != "auto":
        return (mode,)
    return ("plain", "tree") if session is not None and session.limits.drafter is not None else ("plain",)


async def measure_lag(place: Place, names: Sequence[str] = tuple(DOCUMENTS), say: Say = lambda text: None) -> list[Lag]:
    """Feed each document to an answer at `RATE` and watch the loop. Raises DFlashError as `measure_tax` does."""
    lags = []
    for name in names:
        say(f"feeding {name} at {RATE} tok/s")
        turn = FedTurn(DOCUMENTS[name], RATE)
        late: list[float] = []
        watch = asyncio.create_task(_watch(late))
        try:
            block, meter = await _shown(place, name, partial(_fed, turn), Knobs())
        finally:
            watch.cancel()
        if block.answers[-1].text != DOCUMENTS[name]:
            raise DFlashError(f"the app shows a different text from the {name} that it was fed; please report this")
        lags.append(Lag(name, meter.tokens, tuple(late)))
    return lags


def _fed(turn: FedTurn, on_prefill: OnPrefill) -> TurnLike:
    return turn


async def _watch(late: list[float]) -> None:
    """Note how late each beat comes, in milliseconds."""
    while True:
        due = time.perf_counter() + BEAT_S
        await asyncio.sleep(BEAT_S)
        late.append(max(time.perf_counter() - due, 0.0) * 1e3)


def _opener(place: Place, prompt: str, knobs: Knobs) -> Opener:
    if place.state.session is None:
        raise DFlashError("no model is loaded; nothing can be measured")
    conversation = cast(EngineSession, place.state.session).scratch_conversation()
    return lambda on_prefill: conversation.ask(prompt, knobs, on_prefill=on_prefill)


async def _headless(place: Place, prompt: str, knobs: Knobs) -> Timed:
    began = time.thread_time()
    running, meter = Running(DecoderUse(), _opener(place, prompt, knobs)), Meter()
    running.start()
    while not running.over:
        await asyncio.sleep(LOOK_S)
    for piece in running.drain():
        meter.add(piece)
    _checked(running, meter)
    return Timed(meter.totals.tokens, meter.decode_s, meter.totals.steps, time.thread_time() - began)


async def _in_app(place: Place, prompt: str, knobs: Knobs) -> Timed:
    began = time.thread_time()
    _, meter = await _shown(place, prompt, _opener(place, prompt, knobs), knobs)
    return Timed(meter.totals.tokens, meter.decode_s, meter.totals.steps, time.thread_time() - began)


async def _shown(place: Place, prompt: str, open_turn: Opener, knobs: Knobs) -> tuple[TurnBlock, Meter]:
    """Run a turn as the app does, then remove it from the screen."""
    with _apart(place) as flow:
        transcript = place.screen.query_one(Transcript)  # when the app has ended it can no longer be accessed
        block = await transcript.add(TurnBlock(prompt))
        try:
            await flow.begin(block, Running(place.state.decoder, open_turn), knobs)
            running, meter = place.state.turn.running, place.state.turn.meter
            assert running is not None
            assert meter is not None
            while place.state.busy:
                await asyncio.sleep(LOOK_S)
        finally:
            await transcript.take_away(block)
    _checked(running, meter)
    return block, meter


@contextmanager
def _apart(place: Place) -> Iterator[Flow]:
    """A flow whose turns are drawn in place of the one on the screen, but not stored; they start no queued turn."""
    state = place.state
    if state.busy:
        raise DFlashError("an answer is being written; measure when it has ended")
    own, state.turn = state.turn, ShownTurn()
    try:
        yield Flow(state, place.screen, place.figures)
    finally:
        if state.turn.running is not None:
            state.turn.running.stop()
        state.turn = own


def _checked(running: Running, meter: Meter) -> None:
    if running.error is not None:
        raise DFlashError(f"a turn failed, so there is nothing to compare: {running.error}")
    if running.stopping or not meter.totals.tokens:
        raise DFlashError("a turn was stopped, so there is nothing to compare")


def tax_table(tax: UiTax) -> str:
    """The tax as lines of text."""
    lines = [f"{'median tok/s':<34}{'headless':>10}{'in the app':>12}{'lost':>8}"]
    for pair in tax.pairs:
        headless, app = pair.seconds
        prompt = f"{pair.mode}: {pair.prompt}" if pair.mode else pair.prompt
        prompt = prompt if len(prompt) <= 32 else prompt[:31] + "…"
        lines.append(_tax_line(prompt, pair.tokens / headless, pair.tokens / app))
    return "\n".join([*lines, _tax_line("all", *tax.rates)])


def tax_notes(tax: UiTax) -> str:
    """The spread of the table's figures, and the processor time of the app's thread, as lines of text."""
    low, high = tax.spread
    alone, shown = tax.app_ms
    lines = (
        [f"lost in single rounds, the middle half of {tax.rounds}: {low:.1%} to {high:.1%}"] if tax.rounds > 1 else []
    )
    lines.append(f"the app's thread, of the processor per turn: {alone:.1f} ms headless, {shown:.1f} ms in the app")
    return "\n".join(lines)


def _tax_line(what: str, headless: float, app: float) -> str:
    """Two speeds, and the loss between them, computed from the values shown."""
    alone, shown = f"{headless:.1f}", f"{app:.1f}"
    return f"{what:<34}{alone:>10}{shown:>12}{0 - change(shown, alone):>8.1%}"


def lag_table(lags: Sequence[Lag]) -> str:
    """The lags as lines of text."""
    lines = [f"{f'loop lag in ms, fed at {RATE} tok/s':<44}{'median':>10}{'95 %':>12}{'most':>8}"]
    for lag in lags:
        figures = (lag.percentile(0.5), lag.percentile(0.95), max(lag.late_ms))
        lines.append(
            f"{lag.document + f', {lag.tokens:,} tokens':<44}{figures[0]:>10.1f}{figures[1]:>12.1f}{figures[2]:>8.1f}"
        )
    return "\n".join(lines)
