"""Calls in tags, as newer Qwen models write them: <function=NAME>, <parameter=KEY>, values as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.lark import Lark, either, literal
from dflash_core.text.tool_calls.parser import BrokenCallError, Emit, EndedCallError, Reading, TaggedParser, collected
from dflash_core.text.tool_calls.schemas import kinds_of, mapping, quoted, resolved, typed

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_FOLLOW = (PARAMETER, FUNCTION_END, TaggedParser.close)
_LINES = re.compile(f"\n(?:{FUNCTION}|{FUNCTION_END}|{PARAMETER_END})")


class XmlParser(TaggedParser):
    """Implements `parser.Parser`. Qwen3-Coder often forgets <tool_call>: a known function at the beginning of a line
    is a call too."""

    bare = FUNCTION

    def accepts(self, begin: str, before: str) -> Reading[bool]:
        if begin == self.open:
            return True
        if before and not before.endswith("\n"):
            return False
        # The longest name that is known bounds what is read ahead.
        names = self.schemas.names
        ahead = yield from self.reader.peek(len(FUNCTION) + max(map(len, names), default=0) + 1)
        return any(ahead.startswith(f"{FUNCTION}{name}>") for name in names)

    def read_block(self) -> Reading[None]:
        reader = self.reader
        if (yield from reader.skip(self.open)):
            yield from reader.space()
        while True:
            yield from self._function()
            yield from reader.space()
            if not (yield from reader.comes(FUNCTION)):
                break
        yield from reader.skip(self.close)

    def _function(self) -> Reading[None]:
        reader = self.reader
        yield from reader.expect(FUNCTION)
        name = yield from self._tag()
        self.start(name)
        count = 0
        while True:
            yield from reader.space()
            if not (yield from reader.skip(PARAMETER)):
                break
            key = yield from self._tag()
            self.arguments((", " if count else "{") + quoted(key) + ": ")
            yield from self._value(name, key)
            count += 1
        if (yield from reader.peek(1)):  # at the end of a turn, and before </tool_call>, it may be missing
            if not (yield from reader.skip(FUNCTION_END)) and not (yield from reader.comes(self.close)):
                found = yield from reader.peek(12)
                raise BrokenCallError(f"a tool call has {found!r}, expected {PARAMETER} or {FUNCTION_END}")
        elif self.cut:
            raise EndedCallError
        self.arguments("}" if count else "{}")
        self.end()

    def _tag(self) -> Reading[str]:
        """The rest of an opening tag; what it names."""
        parts: list[str] = []
        if (yield from self.reader.up_to((">", "\n"), parts.append)) != ">":
            raise BrokenCallError("a tag of a tool call is not closed")
        yield from self.reader.take(1)
        return "".join(parts)

    def _value(self, name: str, key: str) -> Reading[None]:
        kinds = self.schemas.kinds(name, key)
        if kinds == ("string",):
            self.arguments('"')
            yield from self._raw(lambda text: self.arguments(quoted(text)[1:-1]))
            self.arguments('"')
        else:
            self.arguments(typed((yield from collected(self._raw)), kinds))

    def _raw(self, emit: Emit) -> Reading[None]:
        """A value up to its closing tag, which is read: one line break after the opening tag and one before the closing
        one are not part of it."""
        reader = self.reader
        line = yield from reader.skip("\n")
        if line and (yield from self._closes(PARAMETER_END)):
            yield from reader.take(len(PARAMETER_END))
            return
        close = f"\n{PARAMETER_END}" if line else PARAMETER_END
        nested = f"\n{FUNCTION}"
        while True:
            end = yield from reader.up_to((close, nested), emit)
            if end == close and (yield from self._closes(close)):
                yield from reader.take(len(close))
                return
            length = (yield from self._nested()) if end == nested else 0
            emit((yield from reader.take(length or len(end))))

    def _closes(self, close: str) -> Reading[bool]:
        """Whether `close` comes next and is the end of the value: what may follow a value follows it. Values may hold
        the tag as text."""
        if not (yield from self.reader.comes(close)):
            return False
        count = len(close)
        while True:
            ahead = yield from self.reader.peek(count)
            rest = ahead[len(close) :].lstrip()
            if len(ahead) < count:  # the end of the answer
                return not rest or rest.startswith(_FOLLOW)
            if rest.startswith(_FOLLOW):
                return True
            if rest and not any(follow.startswith(rest) for follow in _FOLLOW):
                return False
            count += 1

    def _nested(self) -> Reading[int]:
        """The length of a value's rest if it holds whole calls as text; 0 where a function that it names does not
        end in it."""
        reader = self.reader
        while True:
            rest, depth = reader.rest, 0
            for line in _LINES.finditer(rest):
                if line[0].endswith("="):
                    depth += 1
                elif line[0].endswith(FUNCTION_END):
                    depth -= 1
                    if depth < 0:
                        break
                elif not depth and _follows(rest[line.end() :], reader.ended):
                    return line.start()
            if reader.ended:
                return 0
            yield


def _follows(rest: str, ended: bool) -> bool:
    return rest.lstrip().startswith(_FOLLOW) or (ended and not rest.strip())


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar: its parameters in their order, without those that are not required if
    the model leaves them out."""
    required = parameters.get("required")
    parts = [lark.token(XmlParser.open), literal(f"\n{FUNCTION}{name}>\n")]
    for key, schema in mapping(parameters.get("properties")).items():
        value = _written(lark, mapping(schema), parameters)
        optional = "" if isinstance(required, Sequence) and key in required else "?"
        parts.append(f"({literal(f'{PARAMETER}{key}>{chr(10)}')} {value}){optional}")
    return " ".join([*parts, literal(f"{FUNCTION_END}\n"), lark.token(XmlParser.close)])


def _written(lark: Lark, schema: Mapping[str, JSON], root: Mapping[str, JSON]) -> str:
    """A value and its closing tag."""
    schema, end = resolved(schema, root), f"\n{PARAMETER_END}\n"
    kinds, enum = kinds_of(schema, root), schema.get("enum")
    if kinds == ("string",) and isinstance(enum, Sequence):
        return f"{either([literal(str(one)) for one in enum])} {literal(end)}"
    if not kinds or "string" in kinds:
        return lark.text_until(end)
    return f"{lark.json(schema, root)} {literal(end)}"
