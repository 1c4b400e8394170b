"""The shape of an answer: its pieces as reasoning, text and calls, up to a stop string or the last call wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dflash_core.events import Piece
from dflash_core.text.stop_strings import StopStrings
from dflash_core.text.tool_calls.answer import AnswerParts
from dflash_core.text.tool_calls.parts import CallEnd, Malformed, Part, Text, Thinking


class AnswerShape:
    """`parser`: finds calls of tools; None: all is text. `parallel`: there may be more than one. The parts, joined, do
    not depend on how the answer was cut into pieces."""

    def __init__(
        self, stops: Sequence[str], parser: AnswerParts | None, *, parallel: bool = True, ends: Sequence[str] = ()
    ) -> None:
        """`ends`: texts after a call that begin what is no longer the model's own, such as the result of the call."""
        self._stops, self._parser, self._parallel = StopStrings(stops), parser, parallel
        self._ends = StopStrings(ends)
        self.calls = 0
        """Complete ones."""
        self.notes: list[str] = []
        self._one_is_enough = False

    @property
    def over(self) -> bool:
        """Nothing that follows belongs to the answer."""
        return bool(self._stops.found or self._ends.found) or self._one_is_enough

    @property
    def stop_string(self) -> str:
        """The stop string that ended it."""
        return self._stops.found

    @property
    def dropped(self) -> int:
        """Bytes of text from the stop string on."""
        return self._stops.dropped

    def push(self, piece: Piece) -> list[Part]:
        """The parts of a piece."""
        return self.push_text(piece.thinking, piece.text)

    def push_text(self, thinking: str, text: str) -> list[Part]:
        """The parts of the next reasoning, and of text after it."""
        if self._parser is not None:
            return [*self._passed(self._parser.push(thinking, text))]
        thought = [Thinking(thinking)] if thinking and not self.over else []
        return [*thought, *self._passed([Text(text)])]

    def finish(self, *, cut: bool) -> list[Part]:
        """What waited for more text. `cut`: a limit ended the answer, not the model."""
        rest = self._passed(self._parser.finish(cut=cut)) if self._parser is not None else iter(())
        parts = list(rest)
        pending = self._pending()
        return [*parts, Text(pending)] if pending else parts

    def _pending(self) -> str:
        """The text that is no stop string after all."""
        return self._stops.push(self._ends.finish()) + self._stops.finish()

    def _passed(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, Text):
                own = self._ends.push(part.text) if self.calls else part.text
                if not self._one_is_enough and (text := self._stops.push(own)):
                    yield Text(text)
                continue
            if self.over:
                continue
            if pending := self._pending():
                yield Text(pending)
            yield part
            if isinstance(part, Malformed):
                self.notes.append(part.reason)
            elif isinstance(part, CallEnd) and part.complete:
                self.calls += 1
                self._one_is_enough = not self._parallel
