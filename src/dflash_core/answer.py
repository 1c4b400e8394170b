"""One answer of the engine to a prompt: its text as it comes, its figures when it ends."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dflash_core.constraints.base import Constraint
from dflash_core.errors import DFlashError
from dflash_core.events import Event, Piece, PrefillEvent
from dflash_core.guards.turn import TurnGuard
from dflash_core.knobs import RANDOM_SEED, Knobs
from dflash_core.log_probs import LogProbs
from dflash_core.record import Line, Recorder, Start, TurnRecord
from dflash_core.text.prompt import Prompt
from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tokenizer import Detokenizer, Tokenizer
from dflash_core.turn_stats import TurnReport, TurnStats, TurnTotals

if TYPE_CHECKING:
    from dflash_core.runner import Runner

OnPrefill = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Reread:
    """About how many tokens of the conversation a turn reads again, of those `known` from the turn before, and the
    change that is the reason."""

    tokens: int
    known: int
    why: str


class Answer:
    """One answer in the making: iterate over it once, in any one thread, and it runs the engine.

    `text` and `thinking` grow with the pieces. When the iteration ends - at a stop token, after `stop`, or with an
    error of the engine, which is passed on - `report` is set unless the engine did not get as far as a first token.
    After an error, which is then in `error`, the report's `stop` reads "cancelled". `record` is the whole of it, step
    by step. `knobs` are the requested ones, with the drawn seed where a random one was requested.
    """

    def __init__(
        self,
        engine: Runner,
        tokenizer: Tokenizer,
        prompt: Prompt,
        knobs: Knobs,
        start: Callable[[Prompt, Knobs], Start],
        *,
        keep: Sequence[int] = (),
        watchers: Sequence[Callable[[Line], None]] = (),
        on_prefill: OnPrefill | None = None,
        shown: Collection[str] = (),
        constraint: Constraint | None = None,
        log_probs: LogProbs | None = None,
        ends: Collection[str] = (),
    ) -> None:
        """`start`: what the record begins with. `keep`: lengths of the prompt that later prompts will share. `shown`:
        names of special tokens that become text, although they are hidden otherwise. `ends`: names of special tokens
        that end it, beside the stop tokens. `watchers` are called with each line of the record, on the thread that
        iterates."""
        self._seed_source: Literal["random", "fixed"] = "fixed"
        if knobs.seed == RANDOM_SEED:  # a small number, which a user can type
            self._seed_source, knobs = "random", replace(knobs, seed=secrets.randbelow(2**31))
        self.prompt, self.knobs = prompt, knobs
        self.text = self.thinking = ""
        self.report: TurnReport | None = None
        self.record: TurnRecord | None = None
        self.error: BaseException | None = None
        self.done = False
        self.reread: Reread | None = None
        self._engine = engine
        self._ends = frozenset(tokenizer.special[name] for name in ends if name in tokenizer.special)
        self._guard = TurnGuard(tokenizer, knobs, opens_thinking=prompt.opens_thinking, begun=prompt.answered)
        self._watchers, self._on_prefill = watchers, on_prefill
        sinks = prompt.sinks if knobs.attention_window else 0
        options = {"sinks": sinks, "constraint": constraint, "log_probs": log_probs, "ends": self._ends}
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value}
        self._options |= {"keep": tuple(keep), "on_prefill": self._prefilled, "guard": self._guard}
        self._stop_requested = self._running = False
        self._stop_lock = threading.RLock()  # a signal handler may call `stop` on the thread that has the lock
        self._changed: Knobs | None = None
        self._began = time.perf_counter()
        self._read_at = self._at = 0.0  # of the prompt's piece and of the newest
        self._recorder, self._totals = Recorder(start(prompt, knobs), tokenizer.token_text), TurnTotals()
        self._read: PrefillEvent | None = None
        self._detokenizer = Detokenizer(tokenizer, shown)
        self._split = ThinkingSplit(start_inside=prompt.opens_thinking)
        self.begun = self._split.push(self._detokenizer.push(prompt.answered))
        """Reasoning and text of the prompt that this goes on from."""
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    @property
    def stats(self) -> TurnStats | None:
        """The figures so far; None before the first token. On the thread that iterates."""
        return self._totals.stats(self._read, self._at - self._read_at) if self._read is not None else None

    def stop(self) -> None:
        """End the answer as soon as possible; what there is of it stays. Callable from any thread and from a signal
        handler, at any time."""
        with self._stop_lock:  # a turn that ends meanwhile would let the next one be cancelled instead
            self._stop_requested = True
            if self._running:
                self._engine.cancel()

    def change(self, knobs: Knobs) -> None:
        """Go on with what a running answer can take of `knobs`, from the next step; callable from any thread."""
        self._changed = knobs

    def answer_now(self) -> None:
        """Close the reasoning before the next step, or as soon as it begins, and go on to the answer. Callable from any
        thread; nothing happens in the answer itself."""
        self._guard.answer_now()

    def close(self) -> None:
        """End the turn where it is, from the thread that iterates over it; does nothing if it has ended.

        Raises DFlashError while another thread runs the turn.
        """
        try:
            self._pieces.close()
        except ValueError:  # "generator already executing"
            raise DFlashError("an answer is still being written; stop it first") from None
        if not self.done:  # it had not begun, so the generator's own ending did not run
            self._end()

    def _run(self) -> Generator[Piece, None, None]:
        events: Iterator[Event] = iter(())
        try:
            self._began = time.perf_counter()
            self._recorder.begin(self._watchers)
            with self._stop_lock:
                self._running = not self._stop_requested
            if self._running:
                events = self._engine.generate(self.prompt.ids, self.knobs, **self._options)
            while (event := self._next(events)) is not None:
                yield self._piece(event)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise
        finally:
            if isinstance(events, Generator):
                events.close()
            self._end()

    def _next(self, events: Iterator[Event]) -> Event | None:
        if self._changed is not None:
            changed, self._changed = self._changed, None
            self._engine.change(changed)
        event = next(events, None)
        if event is not None and self._stop_requested:  # perhaps just before the engine began to listen
            self._engine.cancel()
        return event

    def _prefilled(self, done: int, total: int) -> None:
        if self._stop_requested:
            self._engine.cancel()
        if self._on_prefill is not None:
            self._on_prefill(done, total)

    def _piece(self, event: Event) -> Piece:
        self._at = at = time.perf_counter() - self._began
        if isinstance(event, PrefillEvent) and self.reread is not None:
            # A saved state may have included them, or no saved state reaches so far into the prompt.
            again = max(self.reread.known - event.reused_tokens, 0)
            event = replace(event, read_again=again, read_why=self.reread.why if again else "")
        ended = event.stop == "stop token" and event.tokens[-1] in self._ends  # by a token that is not the answer's own
        thinking, text = self._split.push(self._detokenizer.push(event.tokens[:-1] if ended else event.tokens))
        if event.stop is not None:
            more_thinking, more_text = self._flush()
            thinking, text = thinking + more_thinking, text + more_text
        if isinstance(event, PrefillEvent):
            self._read, self._read_at = event, at
        piece = Piece(event, text, thinking, at)
        self._totals.add(piece)
        self._recorder.add(piece)
        return self._add(piece)

    def _add(self, piece: Piece) -> Piece:
        """Add a piece to `text` and `thinking`; returns it as it is shown."""
        self.thinking += piece.thinking
        self.text += piece.text
        return piece

    def _flush(self) -> tuple[str, str]:
        """The pending text of the detokeniser and the split; nothing the second time."""
        thinking, text = self._split.push(self._detokenizer.finish())
        more_thinking, more_text = self._split.finish()
        return thinking + more_thinking, text + more_text

    def _finish(self, thinking: str, text: str, *, cut: bool) -> None:
        """Add what was pending at the end. `cut`: a limit or a user ended the answer, not the model."""
        self.thinking += thinking
        self.text += text

    def _notes(self) -> tuple[str, ...]:
        """What the report says of the answer."""
        return self._engine.drafter_notes if self.knobs.mode != "plain" else ()

    def _end(self) -> None:
        thinking, text = self._flush()
        events = self._recorder.events
        self._finish(thinking, text, cut=not events or events[-1].stop != "stop token")
        if (stats := self.stats) is not None:
            last = events[-1]
            self.report = TurnReport(
                self.text, self.thinking, tuple(id for event in events for id in event.tokens), last.mode, last.reason,
                last.stop or "cancelled", self.knobs, stats,
                guards=tuple(event.guard for event in events if event.guard is not None),
                learned=self._engine.learned(), effort=self.prompt.effort, notes=self._notes(),
                seed_source=self._seed_source,
            )  # fmt: skip
        record = self._recorder.end(self.report, text, thinking)
        self.record = record if self.report is not None else None
        with self._stop_lock:
            self._running = False
        self.done = True
        self._ended()

    def _ended(self) -> None:
        """The iteration has ended; for subclasses."""
