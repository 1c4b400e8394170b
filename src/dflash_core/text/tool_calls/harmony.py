"""Messages of GPT-OSS (harmony): reasoning, text and calls are messages of their own, with a channel and a recipient
in the header of each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.json_call import arguments_grammar, read_arguments
from dflash_core.text.tool_calls.lark import Lark, literal
from dflash_core.text.tool_calls.parser import BrokenCallError, Parser, Reading
from dflash_core.text.tool_calls.parts import Text, Thinking

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (END, CALL, RETURN, START)
_HEADER_ENDS = (MESSAGE, END, CALL, RETURN)
_HEADERS = (START, CHANNEL, CONSTRAIN, MESSAGE, "assistant", "to=")
_RECIPIENT = re.compile(r"to=(?!assistant\b)([^\s<]+)")  # a result is addressed to the assistant
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class HarmonyParser(Parser):
    """Implements `parser.Parser`. The prompt ends after the assistant's name, within the first header."""

    def parse(self) -> Reading[None]:
        reader, begun = self.reader, set[type]()
        while True:
            space = yield from reader.space()
            if not (yield from reader.peek(1)):
                return
            channel = ""
            if (yield from self._header_comes()):
                reader.mark()
                parts: list[str] = []
                end, _ = yield from reader.until(_HEADER_ENDS, parts.append)
                yield from reader.take(len(end))
                header, text = "".join(parts), reader.take_back()
                if end != MESSAGE:
                    if end or not self.cut or text.startswith("assistant"):
                        self.text(text)
                    continue
                if recipient := _RECIPIENT.search(header):
                    yield from self.block(text, self._call(recipient[1].removeprefix("functions.")))
                    continue
                channel = named[1] if (named := _CHANNEL.search(header)) else ""
            else:
                self.text(space)
            yield from self._message(Thinking if channel == "analysis" else Text, begun)
            yield from self._end()

    def _message(self, kind: type[Text] | type[Thinking], begun: set[type]) -> Reading[None]:
        """A message, apart from an earlier one of its kind."""
        apart = "\n\n" if kind in begun else ""

        def emit(text: str) -> None:
            nonlocal apart
            self.add(kind(apart + text))
            apart = ""
            begun.add(kind)

        yield from self.reader.until(_ENDS, emit)

    def _header_comes(self) -> Reading[bool]:
        for text in _HEADERS:
            if (yield from self.reader.comes(text)):
                return True
        return False

    def _call(self, name: str) -> Reading[None]:
        reader = self.reader
        self.start(name)
        yield from reader.space()
        yield from read_arguments(self, name)
        yield from reader.space()
        if (yield from reader.peek(1)) and not (yield from self._end()):
            raise BrokenCallError(f"arguments of {name} go on after their end")
        self.end()

    def _end(self) -> Reading[bool]:
        """Read what a message ends with; the beginning of the next one also ends it."""
        for end in (END, CALL, RETURN):
            if (yield from self.reader.skip(end)):
                return True
        return (yield from self.reader.comes(START))


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar: the reasoning may come before it."""
    channel, message = lark.token(CHANNEL), lark.token(MESSAGE)
    thinks = f'{channel} "analysis" {message} {lark.text()} {lark.token(END)} {lark.token(START)} "assistant"'
    head = (
        f"{channel} {literal(f'commentary to=functions.{name} ')} {lark.token(CONSTRAIN)} {literal('json')} {message}"
    )
    return f"({thinks})? {head} {arguments_grammar(lark, parameters)}"
