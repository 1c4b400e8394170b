"""Messages of GPT-OSS (harmony): reasoning, text and calls are messages of their own, with a channel and a recipient
in the header of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.json_call import arguments_grammar, read_arguments
from dflash_core.text.tool_calls.lark import Lark, literal
from dflash_core.text.tool_calls.parser import BrokenCallError, Parser, Reading
from dflash_core.text.tool_calls.parts import Thinking

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
        reader = self.reader
        begun = {Thinking: False, str: False}  # which kinds of text there have been: messages are apart

        def joined(kind: type, add: Callable[[str], None]) -> Callable[[str], None]:
            apart = begun[kind]

            def emit(text: str) -> None:
                nonlocal apart
                add("\n\n" + text if apart else text)
                apart, begun[kind] = False, True

            return emit

        while True:
            space = yield from reader.space()
            if not (yield from reader.peek(1)):
                return
            if (yield from self._header_comes()):
                channel = ""
                reader.mark()
                header, found = yield from self._header()
                recipient, named = _RECIPIENT.search(header), _CHANNEL.search(header)
                if not found:
                    self.text(reader.take_back())
                    continue
                if recipient:
                    name = recipient[1].removeprefix("functions.")

                    def call(name: str = name) -> Reading[None]:
                        yield from self._call(name)

                    yield from self.block(reader.take_back(), call)
                    continue
                reader.release()
                channel = named[1] if named else ""
            else:
                channel, found = "", True
                self.text(space)
            if channel == "analysis":
                emit = joined(Thinking, lambda text: self.add(Thinking(text)))
            else:
                emit = joined(str, self.text)
            yield from reader.until(_ENDS, emit)
            yield from self._end()

    def _header_comes(self) -> Reading[bool]:
        for text in _HEADERS:
            if (yield from self.reader.comes(text)):
                return True
        return False

    def _header(self) -> Reading[tuple[str, bool]]:
        parts: list[str] = []
        end, _ = yield from self.reader.until(_HEADER_ENDS, parts.append)
        yield from self.reader.take(len(end))
        return "".join(parts), end == MESSAGE

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
