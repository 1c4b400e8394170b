"""The runner: prompts in, events out, on any backend. It reuses shared prefixes and applies stop conditions."""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import (
    MAX_CHECKPOINTS,
    PREFILL_CHUNK,
    AnswerOptions,
    Checkpoint,
    Logits,
    PrefillCancelled,
)
from dflash_core.backends.decoder import AnswerDecoder
from dflash_core.backends.guarded import guarded_step, watched
from dflash_core.backends.opened import Session
from dflash_core.constraints.base import Constraint
from dflash_core.errors import Code, ContextError, DFlashError, OutOfMemoryError
from dflash_core.events import Event, PrefillEvent, StepEvent, Stop
from dflash_core.guards.turn import TurnGuard
from dflash_core.ids import check_ids
from dflash_core.knobs import MAX_WIDTH, Knobs
from dflash_core.limits import Limits
from dflash_core.log_probs import LogProbs
from dflash_core.policy.base import FixedPolicy, Policy
from dflash_core.prefix import common_prefix
from dflash_core.snapshots.store import Snapshots
from dflash_core.tree import Candidates
from dflash_core.turn_stats import FoundRow


class Runner:
    """Runs answers on one session, one at a time; `generate` refuses a second one of another thread. Only `cancel` may
    be called from another thread."""

    def __init__(
        self,
        session: Session,
        stop_ids: frozenset[int],
        context_length: int,
        vocab_size: int,
        prefill_chunk: int = PREFILL_CHUNK,
        tree_width: int = MAX_WIDTH,
        policy: Policy | None = None,
        kv: str = "",
        snapshots: Snapshots | None = None,
    ) -> None:
        """`policy`: picks the steps of all answers; without one the knobs decide. `kv`: the session's types of
        keys and values, for events. `snapshots`: the store for sequences that the session does not hold."""
        self.session, self.stop_ids, self.prefill_chunk = session, stop_ids, prefill_chunk
        self.context_length, self.vocab_size, self._tree_width = context_length, vocab_size, tree_width
        self.policy, self._kv, self.snapshots = policy or FixedPolicy(session.capabilities), kv, snapshots
        self._scratch = False
        self._committed: list[int] = []
        self._window = EVERYTHING  # what `_committed` was read under
        self._checkpoints: list[Checkpoint] = []  # shortest first
        self._cancelled = threading.Event()
        self._changed: Knobs | None = None
        self._starting = threading.Lock()
        self._newest: tuple[weakref.ref[Generator[Event, None, None]], threading.Thread] | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.session.capabilities, self.context_length, self._tree_width, self.session.max_drafted)

    def cancel(self) -> None:
        """End the answer under way before its next step or prefill chunk; what is committed stays."""
        self._cancelled.set()

    def propose(self, before: Sequence[int], root: int, knobs: Knobs) -> Candidates:
        """The drafter's candidates for a step with `knobs` after the tokens `before` and `root`.

        Only the drafter runs, on the state that the session still holds, which does not change. Not while an answer
        is under way. Raises ContextError where the session does not hold `before`, or has no drafter.
        """
        if self.session.capabilities is None:
            raise ContextError("nothing to draft with: no drafter is loaded", code=Code.NO_DRAFTER)
        if not before or self._committed[: len(before)] != list(before):
            raise ContextError(
                "this turn is no longer in the session, which holds the newest one; answer it again first",
                code=Code.TURN_NOT_IN_SESSION,
            )
        return self.session.propose(root, knobs, len(before))

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """A scratch run: other prompts may be answered inside. Afterwards the session and its checkpoints are restored.
        What the other prompts overwrote is read again, which takes as long as a prompt of that length."""
        ids, window = list(self._committed), self._window
        lengths = frozenset(point.length for point in self._checkpoints)
        self._save_all()
        self._scratch = True
        try:
            yield
        finally:
            self._cancelled.clear()
            try:
                if not ids:
                    self.reset()
                elif ids != self._committed or window != self._window:
                    self._rewind(ids, window)
                    self._prefill(ids, lengths, None)
            except BaseException:
                self.reset()
                raise
            finally:
                self._scratch = False

    def change(self, knobs: Knobs) -> None:
        """Between two events: make the answer under way continue with these knobs (see `Knobs.in_mid_turn`)."""
        self._changed = knobs

    def reset(self) -> None:
        self._committed.clear()
        self._checkpoints.clear()
        self.session.restore(None)

    def generate(
        self,
        ids: Sequence[int],
        knobs: Knobs,
        *,
        keep: Sequence[int] = (),
        on_prefill: Callable[[int, int], None] | None = None,
        guard: TurnGuard | None = None,
        sinks: int = 0,
        constraint: Constraint | None = None,
        log_probs: LogProbs | None = None,
        ends: Collection[int] = (),
    ) -> Iterator[Event]:
        """Answer the prompt `ids`: one PrefillEvent, then one StepEvent per step; the last one carries its `stop`.

        An answer cancelled between two steps just ends, so a last event without a stop means cancelled too; one
        cancelled in mid-prompt has a PrefillEvent without a token. `keep`: prompt lengths to take a checkpoint at,
        because the next prompt will share that much; `on_prefill(done, total)` follows the prompt; `sinks`: tokens at
        the beginning that an attention window always shows, 64 at least. Positions that were read under another window
        are read again where they saw other positions. `ends`: ids that end this answer beside the stop tokens.
        An earlier answer of this thread that was left unfinished ends, as cancelled.
        Raises ContextError for a prompt that does not fit, KnobError for what the device does not support, and
        DFlashError while another thread answers, or an answer calls this itself.
        """
        ids = check_ids(ids, self.vocab_size)
        if len(ids) >= self.context_length:
            found = f"the prompt has {len(ids):,} tokens, the context holds {self.context_length:,} with the answer"
            raise ContextError(f"{found}; shorten the prompt or start a new conversation")
        knobs, stops = knobs.fixed(), self.stop_ids | frozenset(ends)
        window = AttentionWindow.of(knobs.attention_window, sinks)

        def answer() -> Generator[Event, None, None]:
            decoder = self.session.decoder(
                AnswerOptions(knobs, stops, self.context_length, self.policy, constraint, log_probs)
            )
            try:
                started = time.perf_counter()
                reused = self._rewind(ids, window)
                logits = self._prefill(ids, frozenset(keep), on_prefill)
                tokens: tuple[int, ...] = ()
                stop: Stop | None = "cancelled"
                if logits is not None:
                    if guard is not None:
                        decoder.halt_at(guard.limit)
                    token, stop = decoder.first(logits)
                    tokens = (token,)
                    self.policy.begin([*ids, token], frozenset() if knobs.ignore_eos else stops)
                elapsed = (time.perf_counter() - started) * 1e3
                ran = decoder.decision
                reason = self._reason(ran.reason, len(self._committed))
                read = PrefillEvent(tokens, len(ids), reused, elapsed, ran.mode, reason, stop, self._kv)
                read, *more = watched(decoder, guard, read) if tokens else (read,)
                if more:
                    self._commit(read.tokens[-1], more)
                yield read
                yield from map(self._with_notes, more)
                yield from self._steps(decoder, guard, more[-1].stop if more else read.stop)
            except GeneratorExit:
                try:
                    self._rest(decoder)
                except BaseException:
                    self.reset()
                    raise
                raise
            except BaseException as error:  # also after Ctrl+C during a pass
                # A pass that failed half-way leaves an undefined state.
                self.reset()
                if isinstance(error, OutOfMemoryError):
                    raise self.ran_out(error) from None
                raise
            finally:
                self.policy.end()
                if self.snapshots is not None and self._committed and not self._scratch:
                    self.snapshots.prepare(self.session, self._committed, self._window)

        with self._starting:
            self._end_earlier()
            self._cancelled.clear()
            self._changed = None
            begun = answer()
            self._newest = weakref.ref(begun), threading.current_thread()
        return begun

    def _end_earlier(self) -> None:
        """End an answer that was left unfinished: two at a time would write over each other's session."""
        earlier = self._newest[0]() if self._newest is not None else None
        if self._newest is None or earlier is None or (state := getgeneratorstate(earlier)) == GEN_CLOSED:
            return
        thread = self._newest[1]
        if state == GEN_RUNNING or (thread is not threading.current_thread() and thread.is_alive()):
            raise DFlashError(
                "this engine is writing another answer; wait until that has ended, or close it in its own thread,"
                " or give each thread an engine: Engine(target, load_draft(path, target))"
            )
        earlier.close()

    def _steps(self, decoder: AnswerDecoder, guard: TurnGuard | None, stop: Stop | None) -> Iterator[StepEvent]:
        while stop is None and not self._cancelled.is_set():
            root = decoder.answer[-1]
            if self._changed is not None:
                decoder.take(self._changed)
                self._changed = None
            events = [decoder.step()] if guard is None else guarded_step(decoder, guard)
            self._commit(root, events)
            stop = events[-1].stop
            if stop is None and self._cancelled.is_set() and not decoder.ahead:
                events[-1] = dataclasses.replace(events[-1], stop="cancelled")
            yield from map(self._with_notes, events)
        yield from map(self._with_notes, self._rest(decoder))

    def ran_out(self, error: OutOfMemoryError) -> OutOfMemoryError:
        """What to raise where memory ran out in mid-turn. The next turn may have enough again."""
        return error

    def _with_notes(self, event: StepEvent) -> StepEvent:
        reason = self._reason(event.reason, event.length)
        return event if reason is event.reason else dataclasses.replace(event, reason=reason)

    def _reason(self, reason: str, length: int) -> str:
        return f"{note}; {reason}" if (note := self._window.note(length)) else reason

    def learned(self) -> tuple[FoundRow, ...]:
        """What the policy has learned from answers so far."""
        return self.policy.found()

    @property
    def drafter_notes(self) -> tuple[str, ...]:
        """What answers so far have shown to be wrong with the drafters, a line each."""
        return self.policy.watch.notes

    def _rest(self, decoder: AnswerDecoder) -> Sequence[StepEvent]:
        """Steps that were under way when the answer was cancelled: their tokens are committed, so they belong to it."""
        root = decoder.answer[-1] if decoder.answer else None
        events = decoder.finish()
        if events:
            assert root is not None, "a step without a root"
            self._commit(root, events)
        return events

    def _commit(self, root: int, events: Sequence[Event]) -> None:
        """Count the tokens of `events` after `root`; all before any is yielded, as the consumer may stop at the
        first."""
        for event in events:
            self._committed += [root, *event.tokens[:-1]]
            root = event.tokens[-1]

    def _rewind(self, ids: Sequence[int], window: AttentionWindow = EVERYTHING) -> int:
        """Return the state to the longest usable prefix of `ids`; at least one token is left to run for its logits.

        Hidden states depend on the visible positions, so a prefix processed under another window is reused only as far
        as both windows see all of it.
        """
        if self.session.length != len(self._committed):
            self.reset()  # an earlier one failed half-way
        shared = self._window.same_until(window, common_prefix(self._committed, ids))
        whole = shared == len(self._committed) < len(ids)
        reachable = shared if whole else min(shared, len(ids) - 1)
        if not whole:
            self._save_what_goes(reachable)
        if window != self._window:
            self._window = window
            self.session.set_attention_window(window)
        self._checkpoints = [point for point in self._checkpoints if point.length <= reachable]
        if not self._resume(ids, reachable, whole=whole) and not whole:
            if not reachable or not self.session.cut(reachable):
                self.session.restore(self._checkpoints[-1] if self._checkpoints else None)
            del self._committed[self.session.length :]
        return len(self._committed)

    def _resume(self, ids: Sequence[int], reachable: int, *, whole: bool) -> bool:
        """Continue from a snapshot if one shares a longer prefix with `ids` than the session can return to."""
        if self.snapshots is None:
            return False
        newest = self._checkpoints[-1].length if self._checkpoints else 0
        snapshot = self.snapshots.resume(
            self.session, ids[:-1], reachable if whole or self.snapshots.cut else newest, self._window
        )
        if snapshot is None:
            return False
        self._committed = list(ids[: self.session.length])
        self._checkpoints = [point for point in self._checkpoints if point.length < len(self._committed)]
        if snapshot.length == len(self._committed):
            self._checkpoints.append(self.session.state_of(snapshot.length, snapshot.state.tensors))
        return True

    def _save_what_goes(self, reachable: int) -> None:
        """The session returns to at most `reachable` positions: save states that a later prompt may continue from."""
        lost = [point for point in self._checkpoints if point.length > reachable]
        # The state after an answer is not needed again if its conversation continues without the reasoning; it is if
        # the user switches to another conversation.
        whole = len(lost) == len(self._checkpoints) and 2 * reachable < len(self._committed)
        self._save(lost, whole=whole)

    def _save(self, points: Sequence[Checkpoint], *, whole: bool) -> None:
        """Save the state at the end of what is committed, if `whole`, and earlier ones, the newest of them last: a
        history that leaves out what an answer thought goes on from there. A sequence that can be cut needs
        only its end."""
        if self.snapshots is None or self._scratch:
            return
        stored = whole and self.snapshots.has(self._committed, self._window)
        found = [self.session.checkpoint()] if whole and not stored else []
        if not self.snapshots.cut:
            found += points
        elif not whole:
            found += points[-1:]
        for point in found:
            self.snapshots.save(self.session, self._committed[: point.length], point, self._window)

    def _save_all(self) -> None:
        """Save all states that the session could continue from: the next prompt may be unrelated."""
        if self._committed and self.session.length == len(self._committed):
            self._save(self._checkpoints, whole=True)

    def leave(self) -> None:
        """The session ends: save its states, on disk too if that is enabled."""
        if self.snapshots is not None:
            self._save_all()
            self.snapshots.write()
        self.session.leave()

    def _prefill(
        self, ids: Sequence[int], keep: frozenset[int], on_prefill: Callable[[int, int], None] | None
    ) -> Logits | None:
        """Run the rest of the prompt; returns the last logits, or None where it was cancelled."""
        logits: Logits | None = None
        while (at := len(self._committed)) < len(ids):
            if self._cancelled.is_set():
                return None
            # A step's code reads the last token, as where the same prompt comes again and is read from there.
            last = {len(ids) - 1} if self.session.in_chunks(len(ids) - at) else set()
            stops = [length for length in keep | last if at < length < len(ids)]
            end = min([at + self.prefill_chunk, len(ids), *stops])
            try:
                logits = self.session.prefill(ids[at:end], self._cancelled.is_set)
            except PrefillCancelled as cancelled:
                self._committed += ids[at : at + cancelled.committed]
                return None
            self._committed += ids[at:end]
            if end in keep:
                points = [*self._checkpoints, self.session.checkpoint()]
                self._checkpoints = points[-MAX_CHECKPOINTS:]
                self._save(points[:-MAX_CHECKPOINTS], whole=False)
            if on_prefill:
                on_prefill(end, len(ids))
        return logits
