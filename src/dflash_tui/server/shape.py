"""The shape of an answer: its pieces as reasoning, text and calls, up to a stop string or the last call wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dflash_core.events import Piece
from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.parts import CallEnd, Malformed, Part, Text, Thinking
from dflash_tui.server.stops import StopStrings


class AnswerShape:
    """`parser`: finds calls of tools; None: all is text. `parallel`: there may be more than one. The parts, joined, do
    not depend on how the answer was cut into pieces."""

    def __init__(self, stops: Sequence[str], parser: Parser | None, *, parallel: bool = True) -> None:
        self._stops, self._parser, self._parallel = StopStrings(stops), parser, parallel
        self.calls = 0
        """Complete ones."""
        self.notes: list[str] = []
        self._one_is_enough = False

    @property
    def over(self) -> bool:
        """Nothing that follows belongs to the answer."""
        return bool(self._stops.found) or self._one_is_enough

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
        thinking = [Thinking(piece.thinking)] if piece.thinking and not self.over else []
        if self._parser is None:
            return [*thinking, *self._passed([Text(piece.text)])]
        return [*thinking, *self._passed(self._parser.push(piece.text))]

    def finish(self, *, cut: bool) -> list[Part]:
        """What was held back. `cut`: a limit ended the answer, not the model."""
        rest = self._passed(self._parser.finish(cut=cut)) if self._parser is not None else iter(())
        parts = list(rest)
        held = self._stops.finish()
        return [*parts, Text(held)] if held else parts

    def _passed(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, Text):
                if not self._one_is_enough and (text := self._stops.push(part.text)):
                    yield Text(text)
                continue
            if self.over:
                continue
            if held := self._stops.finish():
                yield Text(held)
            yield part
            if isinstance(part, Malformed):
                self.notes.append(part.reason)
            elif isinstance(part, CallEnd) and part.complete:
                self.calls += 1
                self._one_is_enough = not self._parallel
