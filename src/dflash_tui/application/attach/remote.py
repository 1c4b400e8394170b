"""A session over the model of another engine. No torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

from dflash_core.events import Piece, PrefillEvent, Stop, TextEvent
from dflash_core.knobs import RANDOM_SEED, Knobs
from dflash_core.limits import Limits
from dflash_core.memory import MemoryBreakdown
from dflash_core.messages import Message
from dflash_core.record import End, Start, TurnRecord, line_of
from dflash_core.text.thinking import ThinkingSplit
from dflash_tui.application.attach.engine import Chunk, Engine, RemoteModel
from dflash_tui.application.attach.figures import UNKNOWN, Figures, Metrics, report
from dflash_tui.application.attach.server import CUT_OFF, AttachedServer, AttachError, Stream
from dflash_tui.application.attach.session import ServerSession, StreamedTurn
from dflash_tui.application.session import OnPrefill

SILENCE_S = 900.0  # while a long prompt is read, or a model loaded, most engines send nothing
COUNTED_S, LOOK_S = 0.5, 0.05  # how long counters may lag behind the end of a stream; between looks at them


class RemoteTurn(StreamedTurn):
    """An answer of another engine, piece by piece as it comes."""

    _session: RemoteSession

    def __init__(
        self, session: RemoteSession, stream: Stream, start: Start, on_prefill: OnPrefill | None, *, drawn: bool
    ) -> None:
        super().__init__(session, stream, on_prefill)
        self._start, self._drawn = start, drawn
        self._engine = session.engine
        self._split = ThinkingSplit(False)  # for servers that leave the tags in the text
        self._pieces: list[Piece] = []
        self._figures = UNKNOWN
        self._stop: Stop | None = None
        self._began = 0.0

    def pieces(self) -> Iterator[Piece]:
        before = self._engine.metrics(self._session.server)
        self._began = time.monotonic()
        self.watched(self._start)
        for _, data in self._stream:
            if data == b"[DONE]":
                self._stop = self._stop or "stop token"
            elif (chunk := self._engine.read(data)) is not None:
                yield from self._taken(chunk)
        if self._stop is None:
            if not self._stream.is_cut:
                raise AttachError(CUT_OFF)
            self._stop = "cancelled"
        self._end(before, self._stop)

    def settle(self) -> None:
        self._release()

    def _taken(self, chunk: Chunk) -> Iterator[Piece]:
        self._figures = self._figures.with_(chunk.figures)
        self._stop = chunk.stop or self._stop
        if chunk.read is not None and self._on_prefill is not None and not self._pieces:
            self._on_prefill(*chunk.read)
        self.take(chunk.calls)
        inner, text = self._split.push(chunk.text)
        if text or chunk.thinking or inner or chunk.calls:
            yield from self._arrived(text, chunk.thinking + inner)

    def _arrived(self, text: str, thinking: str) -> Iterator[Piece]:
        at = time.monotonic() - self._began
        if not self._pieces:
            it = self._figures
            cached = min(it.cached_tokens or 0, it.prompt_tokens or 0)
            name = self._engine.name
            read = PrefillEvent((), it.prompt_tokens or 0, cached, at * 1e3, "remote", name)
            yield self._add(Piece(read, at=at))
        yield self._add(Piece(TextEvent(self._figures.tokens or 0, reason=self._engine.name), text, thinking, at))

    def _add(self, piece: Piece) -> Piece:
        self._pieces.append(piece)
        self.text += piece.text
        self.thinking += piece.thinking
        self.watched(line_of(piece, {}))
        return piece

    def _release(self) -> tuple[str, str]:
        """Answer and reasoning that waited for the rest of a tag."""
        thinking, text = self._split.finish()
        self.text += text
        self.thinking += thinking
        return text, thinking

    def _thought(self) -> Figures:
        """The reasoning by this machine's clock, and by the engine's count when the last of it came."""
        thoughts = [piece for piece in self._pieces if piece.thinking]
        counts = [piece.event.count for piece in thoughts if isinstance(piece.event, TextEvent)]
        if not thoughts:
            return UNKNOWN
        return Figures(thinking_tokens=counts[-1], thinking_s=thoughts[-1].at - self._pieces[0].at)

    def _end(self, before: Metrics | None, stop: Stop) -> None:
        """The figures of the answer."""
        rest = self._release()
        its, engine = self._thought().with_(self._figures), self._engine
        sources = [f"figures of {engine.name}"]
        if engine.counts_drafts and its.tokens and not its.drafted:
            its = replace(its, steps=0)
            sources.append("it drafted nothing")
        if its.steps is None and its.tokens and stop != "cancelled" and before is not None:
            grown, how = self._session.drafts(before, its.tokens)
            its = its.with_(grown)
            sources.append(how)
        clock = []
        if self._pieces and its.first_token_ms is None:
            its = replace(its, first_token_ms=self._pieces[0].at * 1e3)
            clock.append("first token")
        if self._pieces and its.decode_s is None and its.tokens_per_second is None:
            its = replace(its, decode_s=self._pieces[-1].at - self._pieces[0].at)
            clock.append("speed")
        sources.append(f"by the clock of this machine: {', '.join(clock)}" if clock else "")
        sources.append(engine.remedy if its.steps is None else "")
        source, knobs = "; ".join(filter(None, sources)), self._start.knobs
        self.report = found = report(
            its, self.text, self.thinking, stop, knobs, engine.name, source, drawn=self._drawn
        )  # fmt: skip
        self.watched(End(found, *rest))
        if self._pieces:
            self.record = TurnRecord(self._start, tuple(self._pieces), found, rest=rest, ended=True)


class RemoteSession(ServerSession):
    """What the panels show, as far as the engine tells it. Each question is a request of its own."""

    def __init__(self, server: AttachedServer, engine: Engine, model: RemoteModel) -> None:
        shown = model.name.rsplit("/", 1)[-1]
        super().__init__(server, shown)
        self.engine, self._model, self.context_length = engine, model.name, model.context
        self.limits = Limits(None, model.context, taken=engine.taken, engine=engine.name)
        self.knobs = Knobs()
        hidden = "tree, candidates and stages of a step are not visible there"
        self.notes = (f"attached to {engine.name}: {shown} at {server.url}; {hidden}",)
        self.missing = {
            "tree": f"{engine.name} reports no trees and candidates",
            "steps": f"{engine.name} reports no steps; F3 has the figures of the answer",
            "memory": "",
            "change": f"{engine.name} cannot change an answer while it writes it; stop it, and ask again",
        }
        self.count = lru_cache(256)(self._tokens)

    def turn(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> RemoteTurn:
        drawn = knobs.seed == RANDOM_SEED
        knobs = replace(knobs, seed=secrets.randbelow(2**31)) if drawn else knobs
        system = messages[0].content if messages and messages[0].role == "system" else ""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        start = Start(created, self._model, "", system, messages[-1].content, (), knobs)
        body = self.engine.body(self._model, messages, knobs) | self.offered()
        return RemoteTurn(self, Stream(self.server, self.engine.path, body, SILENCE_S), start, on_prefill, drawn=drawn)

    def drafts(self, before: Metrics, tokens: int) -> tuple[Figures, str]:
        """What an answer of so many tokens added to the engine's counters, once they have counted it, and a sentence on
        its drafts."""
        end = time.monotonic() + COUNTED_S
        while (now := self.engine.metrics(self.server)) is not None:
            if (found := self.engine.grown(before, now, tokens)) is not None:
                return found, "drafts: by the growth of its counters" if found.steps else "it drafted nothing"
            if time.monotonic() > end:
                return UNKNOWN, self.engine.recent(now)
            time.sleep(LOOK_S)
        return UNKNOWN, ""

    def preview(self, text: str, knobs: Knobs) -> str:
        return self.engine.preview(self.server, self._model, (*self.messages, Message("user", text)), knobs)

    def memory(self) -> MemoryBreakdown:
        """What the engine tells of it."""
        try:
            components, about = self.engine.memory(self.server, self._model)
        except AttachError as error:
            components, about = (), str(error)
        self.missing = {**self.missing, "memory": about}
        return MemoryBreakdown(self.engine.name, components, 0, 0)

    def _tokens(self, text: str) -> int:
        with suppress(AttachError):
            return self.engine.tokens(self.server, self._model, text)
        return 0
