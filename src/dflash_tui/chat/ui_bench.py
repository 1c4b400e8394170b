"""The UI tax: the same turns with the app showing them and without, alternating, in one run; and how late the app gets.

Without the app means: on the same kind of thread in the same process, while the app shows nothing of it. `/bench`
measures in the app that is open; `dflash-tui bench --ui` opens one in a pseudo-terminal of its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from dflash_core.bench.prompts import PROMPTS
from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.chat.desk import Desk
from dflash_tui.chat.flow import Flow
from dflash_tui.chat.running import Running
from dflash_tui.chat.ui_feed import DOCUMENTS, RATE, FedTurn
from dflash_tui.figures.meter import Meter
from dflash_tui.session import OnPrefill, TurnLike
from dflash_tui.text.bars import change
from dflash_tui.widgets.transcript import TurnBlock

ROUNDS = 7
LOOK_S = 0.05  # how often the end of a turn is looked for, in both arms alike
BEAT_S = 0.01  # how often the app's loop is asked for a sign of life
Say = Callable[[str], None]
Opener = Callable[[OnPrefill], TurnLike]


@dataclass(frozen=True, slots=True)
class Timed:
    """One turn: the tokens of its steps, and the seconds from its first token to its last, by the decoder's clock."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt: a turn per round without the app and one with it. Both decode the same tokens."""

    prompt: str
    headless: tuple[Timed, ...]
    app: tuple[Timed, ...]

    @property
    def tokens(self) -> int:
        return self.headless[0].tokens

    @property
    def seconds(self) -> tuple[float, float]:
        """The median time of each arm."""
        return median(one.seconds for one in self.headless), median(one.seconds for one in self.app)


@dataclass(frozen=True, slots=True)
class UiTax:
    """What the app costs, over the median times of all prompts together."""

    pairs: tuple[Pair, ...]

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

    def to_json(self) -> dict[str, Any]:
        """Everything measured, for `--json`."""
        headless, app = self.rates
        rows = [
            {
                "prompt": pair.prompt,
                "tokens": pair.tokens,
                "headless_s": [one.seconds for one in pair.headless],
                "app_s": [one.seconds for one in pair.app],
            }
            for pair in self.pairs
        ]
        return {
            "headless_tokens_per_second": headless,
            "app_tokens_per_second": app,
            "loss": self.loss,
            "prompts": rows,
        }


@dataclass(frozen=True, slots=True)
class Lag:
    """How late the app's loop was, in milliseconds, every 10 ms of a message that was fed at a fixed rate."""

    document: str
    tokens: int
    late_ms: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """The lateness that `share` of the beats stay within, ms."""
        ordered = sorted(self.late_ms)
        return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]

    def to_json(self) -> dict[str, Any]:
        """The figures of the table, for `--json`."""
        figures = {"p50_ms": self.percentile(0.5), "p95_ms": self.percentile(0.95), "max_ms": max(self.late_ms)}
        return {"document": self.document, "tokens": self.tokens, "tokens_per_second": RATE, **figures}


async def measure_tax(
    chat: Desk, prompts: Sequence[str] = PROMPTS, rounds: int = ROUNDS, say: Say = lambda text: None
) -> UiTax:
    """Run every prompt in both arms, alternating, after one round of warm-up. The conversation is left as it is.

    Raises DFlashError where a turn fails, where the user stops one, or where both arms do not decode the same.
    """
    knobs = chat.knobs.replace(temperature=0.0)
    pairs: dict[str, tuple[list[Timed], list[Timed]]] = {prompt: ([], []) for prompt in prompts}
    for number in range(rounds + 1):
        say(f"round {number} of {rounds}" if number else "warming up")
        for prompt, arms in pairs.items():
            # Which arm goes first changes from round to round.
            for arm in (0, 1) if number % 2 else (1, 0):
                timed = await (_in_app if arm else _headless)(chat, prompt, knobs)
                if number:
                    arms[arm].append(timed)
            if len({one.tokens for arm in arms for one in arm}) > 1:
                raise DFlashError(f"the arms decoded different answers to {prompt!r}; there is nothing to compare")
    return UiTax(tuple(Pair(prompt, tuple(headless), tuple(app)) for prompt, (headless, app) in pairs.items()))


async def measure_lag(chat: Desk, names: Sequence[str] = tuple(DOCUMENTS), say: Say = lambda text: None) -> list[Lag]:
    """Feed each document to an answer at `RATE` and watch the loop. Raises DFlashError as `measure_tax` does."""
    lags = []
    for name in names:
        say(f"feeding {name} at {RATE} tok/s")
        turn = FedTurn(DOCUMENTS[name], RATE)
        late: list[float] = []
        watch = asyncio.create_task(_watch(late))
        try:
            block, meter = await _shown(chat, name, partial(_fed, turn), Knobs())
        finally:
            watch.cancel()
        if block.answers[-1].text != DOCUMENTS[name]:
            raise DFlashError(f"the app shows another text than the {name} that it was fed; please report this")
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


def _opener(chat: Desk, prompt: str, knobs: Knobs) -> Opener:
    if chat.session is None:
        raise DFlashError("no model is loaded; nothing can be measured")
    conversation = chat.session.scratch_conversation()
    return lambda on_prefill: conversation.ask(prompt, knobs, on_prefill=on_prefill)


async def _headless(chat: Desk, prompt: str, knobs: Knobs) -> Timed:
    running, meter = Running(_opener(chat, prompt, knobs)), Meter()
    running.start()
    while not running.over:
        await asyncio.sleep(LOOK_S)
    for piece in running.drain():
        meter.add(piece)
    return _timed(running, meter)


async def _in_app(chat: Desk, prompt: str, knobs: Knobs) -> Timed:
    _, meter = await _shown(chat, prompt, _opener(chat, prompt, knobs), knobs)
    return Timed(meter.totals.tokens, meter.decode_s)


async def _shown(chat: Desk, prompt: str, open_turn: Opener, knobs: Knobs) -> tuple[TurnBlock, Meter]:
    """Run a turn as the app runs each, then take it off the screen."""
    with _apart(chat) as flow:
        transcript = chat.transcript  # at the end of the app it can no longer be asked for
        block = await transcript.add_turn(prompt)
        block.add_class("-measured")
        try:
            await flow.begin(block, open_turn, knobs)
            running, meter = flow.running, flow.meter
            assert running is not None
            assert meter is not None
            while flow.busy:
                await asyncio.sleep(LOOK_S)
        finally:
            await transcript.take_away(block)
    _timed(running, meter)
    return block, meter


@contextmanager
def _apart(chat: Desk) -> Iterator[Flow]:
    """A flow in place of the screen's own, so that its turns are drawn but neither kept nor followed by others."""
    if chat.busy:
        raise DFlashError("an answer is being written; measure when it has ended")
    own, chat.flow = chat.flow, Flow(chat.screen, _Host(chat), chat.past.folder)
    try:
        yield chat.flow
    finally:
        if chat.flow.running is not None:
            chat.flow.running.stop()
        chat.flow = own


class _Host:
    """What a measured turn does to the screen: its figures are drawn, and that is all."""

    def __init__(self, chat: Desk) -> None:
        self._chat = chat

    def draw_figures(self) -> None:
        self._chat.draw_figures()

    def turn_began(self) -> None:
        pass

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        pass


def _timed(running: Running, meter: Meter) -> Timed:
    if running.error is not None:
        raise DFlashError(f"a turn failed, so there is nothing to compare: {running.error}")
    if running.stopping or not meter.totals.tokens:
        raise DFlashError("a turn was stopped, so there is nothing to compare")
    return Timed(meter.totals.tokens, meter.decode_s)


def tax_table(tax: UiTax) -> str:
    """The tax as lines of text."""
    lines = [f"{'median tok/s':<34}{'headless':>10}{'in the app':>12}{'lost':>8}"]
    for pair in tax.pairs:
        headless, app = pair.seconds
        prompt = pair.prompt if len(pair.prompt) <= 32 else pair.prompt[:31] + "…"
        lines.append(_tax_line(prompt, pair.tokens / headless, pair.tokens / app))
    return "\n".join([*lines, _tax_line("all", *tax.rates)])


def _tax_line(what: str, headless: float, app: float) -> str:
    """Two speeds, and what is lost from one to the other as they are shown."""
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
