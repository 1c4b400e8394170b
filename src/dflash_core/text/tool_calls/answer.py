"""The parts of an answer, as reasoning, text and calls, up to a stop string or the last call asked for.

Models forget to close their reasoning and call from within it. A call there counts, and ends the reasoning, if it is
complete and one of a known tool. Until that is certain it is not passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dflash_core.text.template_values import Tools
from dflash_core.text.thinking import partial_match_length
from dflash_core.text.tool_calls.forms import Form
from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.parts import CallEnd, CallStart, Malformed, Part, Text, Thinking
from dflash_core.text.tool_calls.schemas import Schemas


class StopStrings:
    """Passes text on up to the first stop string. What may be the beginning of one waits for more text."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._pending = ""
        self.found = ""
        self.dropped = 0
        """Bytes of text from the stop string on."""

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string."""
        if not self._strings:
            return text
        if self.found:
            self.dropped += len(text.encode())
            return ""
        text = self._pending + text
        at, found = min(((text.find(one), one) for one in self._strings if one in text), default=(-1, ""))
        if found:
            self.found, self._pending = found, ""
            self.dropped = len(text[at:].encode())
            return text[:at]
        end = len(text) - partial_match_length(text, self._strings)
        self._pending = text[end:]
        return text[:end]

    def finish(self) -> str:
        """The text that waited; no more follows, or something other than text."""
        pending, self._pending = self._pending, ""
        return pending


class AnswerParts:
    """Finds the calls of `tools` in one answer, however it is cut."""

    def __init__(self, form: Form, tools: Tools) -> None:
        self._form, self._schemas = form, Schemas(tools)
        self._parser = form.parser(self._schemas)
        self._pending = ""  # reasoning that was not passed on
        self._trial: Parser | None = None  # reads the pending reasoning, which may be a call
        self._known = False  # whether that has begun as one of a known tool
        self._thinks = bool(form.begins)  # whether calls may be in the reasoning

    def push(self, thinking: str, text: str) -> list[Part]:
        """The parts that the next reasoning, and text after it, make certain."""
        parts = self._think(thinking)
        if text:
            parts += [*self._give_up(), *self._parser.push(text)]
        return parts

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The other parts, see `Parser.finish`."""
        parts: list[Part] = []
        if self._trial is not None and not cut and self._counts(self._trial.finish()):
            parts = self._accept()
        return [*parts, *self._give_up(), *self._parser.finish(cut=cut)]

    def _think(self, thinking: str) -> list[Part]:
        if not thinking:
            return []
        if not self._thinks:  # it has been ended by a call, or is passed on as it is
            return self._parser.push(thinking) if self._form.begins else [Thinking(thinking)]
        parts: list[Part] = []
        self._pending += thinking
        while self._thinks:
            if self._trial is None:
                at = self._pending.find(self._form.begins)
                sure = at if at >= 0 else len(self._pending) - partial_match_length(self._pending, (self._form.begins,))
                parts += [Thinking(self._pending[:sure])] if sure else []
                self._pending = self._pending[sure:]
                if at < 0:
                    break
                self._trial, self._known, new = self._form.parser(self._schemas), False, self._pending
            else:
                new = thinking
            found = self._trial.push(new)
            counts = self._counts(found)
            if counts:
                return [*parts, *self._accept()]
            if counts is None:
                break
            # No call: the tag is text, and another may follow.
            begin = len(self._form.begins)
            parts.append(Thinking(self._pending[:begin]))
            self._pending, self._trial = self._pending[begin:], None
        return parts

    def _counts(self, found: list[Part]) -> bool | None:
        """Whether the first call is complete and of a known tool; None while that is not certain."""
        for part in found:
            if isinstance(part, CallStart):
                self._known = part.name in self._schemas.names
            elif isinstance(part, (Malformed, CallEnd)):
                return self._known and isinstance(part, CallEnd)
        return None

    def _accept(self) -> list[Part]:
        pending, self._pending, self._trial, self._thinks = self._pending, "", None, False
        return self._parser.push(pending)

    def _give_up(self) -> list[Part]:
        pending, self._pending, self._trial = self._pending, "", None
        return [Thinking(pending)] if pending else []


class AnswerShape:
    """An answer as reasoning, text and calls, up to a stop string or the last call asked for.

    `parser`: finds calls of tools; None: all is text. `parallel`: there may be more than one. The parts, joined, do
    not depend on how the answer was cut into pieces.
    """

    def __init__(
        self, stops: Sequence[str], parser: AnswerParts | None, *, parallel: bool = True, ends: Sequence[str] = ()
    ) -> None:
        """`ends`: texts after a call that begin what is no longer the model's own, such as the result of the call."""
        self.stops, self._parser, self._parallel = StopStrings(stops), parser, parallel
        self._ends = StopStrings(ends)
        self.calls = 0
        """Complete ones."""
        self.notes: list[str] = []
        self._one_is_enough = False
        self._known: dict[type[Part], str] = {}  # text before this answer's that it may begin with

    @property
    def over(self) -> bool:
        """Nothing that follows belongs to the answer."""
        return bool(self.stops.found or self._ends.found) or self._one_is_enough

    def go_on(self, begun: tuple[str, str], thinking: str, text: str) -> None:
        """The answer goes on after `begun`, which reads `thinking` and `text`. What of these waits to become certain
        is not passed on again."""
        parts = self._parser.push(*begun) if self._parser is not None else [Thinking(begun[0]), Text(begun[1])]
        for kind, whole in ((Thinking, thinking), (Text, text)):
            read = "".join(part.text for part in parts if isinstance(part, kind))
            if whole.startswith(read) and whole != read:
                self._known[kind] = whole[len(read) :]

    def push(self, thinking: str, text: str) -> list[Part]:
        """The parts of the next reasoning, and of text after it."""
        if self._parser is not None:
            return [*self._passed(self._parser.push(thinking, text))]
        if self._known:
            thinking, text = self._new(Thinking, thinking), self._new(Text, text)
        thought: list[Part] = [Thinking(thinking)] if thinking and not self.over else []
        sure = self.stops.push(text)
        return [*thought, Text(sure)] if sure else thought

    def finish(self, *, cut: bool) -> list[Part]:
        """What waited for more text. `cut`: a limit ended the answer, not the model."""
        parts = [*self._passed(self._parser.finish(cut=cut))] if self._parser is not None else []
        pending = self._pending()
        return [*parts, Text(pending)] if pending else parts

    def _pending(self) -> str:
        """The text that is no stop string after all."""
        return self.stops.push(self._ends.finish()) + self.stops.finish()

    def _new(self, kind: type[Part], text: str) -> str:
        return text.removeprefix(self._known.pop(kind, "")) if text else ""

    def _passed(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if self._known and isinstance(part, (Text, Thinking)):
                part = type(part)(self._new(type(part), part.text))
            if isinstance(part, Text):
                own = self._ends.push(part.text) if self.calls else part.text
                if not self._one_is_enough and (text := self.stops.push(own)):
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
