"""The runner: prompts in, events out, on any backend. Reuses what two prompts share, and stops where it should."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from dflash_core.backends.base import Backend, Checkpoint, Logits
from dflash_core.decoder import Decoder
from dflash_core.errors import ContextError
from dflash_core.events import Event, PrefillEvent, Stop
from dflash_core.knobs import Knobs

PREFILL_CHUNK = 256
MAX_CHECKPOINTS = 4


def check_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids as plain ints. Raises ContextError where there are none, or one is not in the vocabulary."""
    plain = [int(token) for token in ids]
    if not plain:
        raise ContextError("the prompt is empty; expected at least one token")
    wrong = next((token for token in plain if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ContextError(f"token {wrong} is outside the vocabulary of {vocab_size:,}; check the tokenizer")
    return plain


class Runner:
    """Runs answers on one backend, one at a time. Only `cancel` may be called from another thread."""

    def __init__(self, backend: Backend, stop_ids: frozenset[int], context_length: int, vocab_size: int) -> None:
        self.backend, self.stop_ids = backend, stop_ids
        self.context_length, self.vocab_size = context_length, vocab_size
        self._committed: list[int] = []
        self._checkpoints: list[Checkpoint] = []  # shortest first
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End the answer under way before its next step or prefill chunk; what is committed stays."""
        self._cancelled.set()

    def reset(self) -> None:
        """Forget every token."""
        self.backend.restore(None)
        self._committed.clear()
        self._checkpoints.clear()

    def generate(
        self,
        ids: Sequence[int],
        knobs: Knobs,
        *,
        keep: Sequence[int] = (),
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[Event]:
        """Answer the prompt `ids`: one PrefillEvent, then one StepEvent per step; the last one carries its `stop`.

        An answer cancelled between two steps just ends, so a last event without a stop means cancelled too; one
        cancelled in mid-prompt has a PrefillEvent without a token.
        `keep`: prompt lengths to keep a checkpoint at, because the next prompt will share that much;
        `on_prefill(done, total)` follows the prompt. Raises ContextError for a prompt that does not fit.
        """
        ids = check_ids(ids, self.vocab_size)
        if len(ids) >= self.context_length:
            raise ContextError(
                f"the prompt has {len(ids):,} tokens, the context holds {self.context_length:,} with the answer; "
                "shorten the prompt or start a new conversation"
            )
        self._cancelled.clear()
        return self._run(ids, knobs, frozenset(keep), on_prefill)

    def _run(
        self, ids: list[int], knobs: Knobs, keep: frozenset[int], on_prefill: Callable[[int, int], None] | None
    ) -> Iterator[Event]:
        try:
            started = time.perf_counter()
            reused = self._rewind(ids)
            logits = self._prefill(ids, keep, on_prefill)
            decoder = Decoder(self.backend, knobs, self.stop_ids, self.context_length)
            tokens: tuple[int, ...] = ()
            stop: Stop | None = "cancelled"
            if logits is not None:
                token, stop = decoder.first(logits)
                tokens = (token,)
            elapsed = (time.perf_counter() - started) * 1e3
            yield PrefillEvent(tokens, len(ids), reused, elapsed, decoder.plan.mode, decoder.plan.reason, stop)
            while stop is None and not self._cancelled.is_set():
                root = decoder.answer[-1]
                event = decoder.step()
                self._committed += [root, *event.tokens[:-1]]
                stop = event.stop
                if stop is None and self._cancelled.is_set():
                    event = dataclasses.replace(event, stop="cancelled")
                yield event
        except GeneratorExit:
            raise
        except BaseException:  # Ctrl+C in mid-pass too
            # A pass that failed half-way leaves a state nobody can vouch for.
            self.reset()
            raise

    def _rewind(self, ids: Sequence[int]) -> int:
        """Return the state to the longest usable prefix of `ids`; at least one token is left to run for its logits."""
        shared = 0
        for mine, theirs in zip(self._committed, ids):
            if mine != theirs:
                break
            shared += 1
        if shared < len(self._committed) or shared == len(ids):
            reachable = min(shared, len(ids) - 1)
            self._checkpoints = [point for point in self._checkpoints if point.length <= reachable]
            self.backend.restore(self._checkpoints[-1] if self._checkpoints else None)
            del self._committed[self.backend.length :]
        return len(self._committed)

    def _prefill(
        self, ids: Sequence[int], keep: frozenset[int], on_prefill: Callable[[int, int], None] | None
    ) -> Logits | None:
        """Run the rest of the prompt; returns the last logits, or None where it was cancelled."""
        logits: Logits | None = None
        while (at := len(self._committed)) < len(ids):
            if self._cancelled.is_set():
                return None
            stops = [length for length in keep if at < length < len(ids)]
            end = min([at + PREFILL_CHUNK, len(ids), *stops])
            logits = self.backend.prefill(ids[at:end])
            self._committed += ids[at:end]
            if end in keep:
                self._checkpoints = [*self._checkpoints, self.backend.checkpoint()][-MAX_CHECKPOINTS:]
            if on_prefill:
                on_prefill(end, len(ids))
        return logits
