"""The parts of an answer whose reasoning was separated from its text before.

Models forget to close their reasoning and call from within it. A call there counts, and ends the reasoning, if it is
complete and one of a known tool. Until that is certain it is not passed on.
"""

from __future__ import annotations

from dflash_core.text.template_values import Tools
from dflash_core.text.tool_calls.forms import Form
from dflash_core.text.tool_calls.parser import Parser
from dflash_core.text.tool_calls.parts import CallEnd, CallStart, Malformed, Part, Thinking
from dflash_core.text.tool_calls.reader import partial_match_length
from dflash_core.text.tool_calls.schemas import Schemas


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
