"""What a conversation needs of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dflash_core.events import Event
from dflash_core.guards.base import Guard
from dflash_core.knobs import Knobs
from dflash_core.turn_stats import FoundRow

OnPrefill = Callable[[int, int], None]


class GenerationEngine(Protocol):
    """What a conversation needs of a decoder.

    `generate` yields one PrefillEvent, then StepEvents. The last event has `stop` set, except where it was cancelled
    between two steps; a stop token is the last id of its `tokens`. `keep` are prompt lengths after which the recurrent
    state, which cannot be rewound, is to be kept for a later prompt with the same beginning. `guard` watches the answer
    and may halt it. `sinks`: tokens at the beginning that an attention window always shows; passed only where a window
    is requested. `cancel` may be called from any thread. `change`, called between two events, makes the answer continue
    with other knobs as soon as possible. `learned` is what the policy has learned about the drafter from answers so
    far, `drafter_notes` what they have shown to be wrong with it.
    """

    @property
    def context_length(self) -> int: ...

    def generate(
        self,
        ids: Sequence[int],
        knobs: Knobs,
        *,
        keep: Sequence[int] = (),
        on_prefill: OnPrefill | None = None,
        guard: Guard | None = None,
        sinks: int = 0,
    ) -> Iterator[Event]: ...

    def cancel(self) -> None: ...

    def change(self, knobs: Knobs) -> None: ...

    def learned(self) -> tuple[FoundRow, ...]: ...

    @property
    def drafter_notes(self) -> tuple[str, ...]: ...
