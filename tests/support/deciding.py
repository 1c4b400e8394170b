"""Answers of the counting backend that a learned policy decides."""

from __future__ import annotations

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.decoder import Decoder
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.auto import AutoPolicy
from support.counting import CountingBackend


def decoded(backend: CountingBackend, knobs: Knobs, policy: AutoPolicy, tokens: int) -> list[StepEvent]:
    """The steps of an answer of `tokens` tokens, which must be the target's own."""
    decoder = Decoder(backend, AnswerOptions(knobs.replace(max_tokens=tokens), frozenset(), 10_000, policy))
    token, stop = decoder.first(backend.prefill([1]))
    policy.begin([1, token], frozenset())
    steps: list[StepEvent] = []
    while stop is None:
        steps.append(decoder.step())
        stop = steps[-1].stop
    assert decoder.answer == [(n + 2) % 40 for n in range(tokens)]
    assert list(policy.text) == [1, *decoder.answer]
    return steps
