"""Answers by the reference decoder on any session: it copies a pass's logits to the host and draws there."""

from __future__ import annotations

from typing import Any

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.decoder import Decoder
from dflash_core.runner import Runner


class HostSession:
    """The session of another machine with the decoder of the CPU."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def decoder(self, options: AnswerOptions) -> Decoder:
        return Decoder(self._session, options)


class HostRunner(Runner):
    """A `Runner` without a policy. `of`: on the session of another, which then forgets its tokens."""

    @classmethod
    def of(cls, other: Runner) -> HostRunner:
        other.reset()
        session: Any = HostSession(other.session)
        return cls(session, other.stop_ids, other.context_length, other.vocab_size)
