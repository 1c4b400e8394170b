"""Answers by the reference decoder on any session: it copies a pass's logits to the host and draws there."""

from __future__ import annotations

from typing import Any

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.decoder import Decoder
from dflash_core.knobs import Knobs
from dflash_core.runner import Runner


class HostRunner(Runner):
    """A `Runner` without a policy. `of`: on the session of another, which then forgets its tokens."""

    @classmethod
    def of(cls, other: Runner) -> HostRunner:
        other.reset()
        return cls(other.session, other.stop_ids, other.context_length, other.vocab_size)

    def decoder(self, knobs: Knobs, constraint: Any = None, log_probs: Any = None, *_: object) -> Decoder:
        options = AnswerOptions(knobs, self.stop_ids, self.context_length, None, constraint, log_probs)
        return Decoder(self.session, options)
