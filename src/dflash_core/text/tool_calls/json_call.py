"""Calls as JSON objects, {"name": ..., "arguments": {...}} in any order of the members, which are passed on while they
come; and the form of Qwen3 and Hermes, with such objects between <tool_call> and </tool_call>.

Strings may hold line breaks as they are, which models write and JSON forbids; they are passed on as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.lark import Lark, literal
from dflash_core.text.tool_calls.parser import BrokenCallError, Parser, Reader, Reading, TaggedParser
from dflash_core.text.tool_calls.schemas import MAX_NESTING, Schemas, parses, quoted, retyped

_CONTROL = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}
_ESCAPES = '"\\/bfnrt'
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_SCALAR_ENDS = (",", "}", "]", " ", "\n", "\r", "\t")


def read_arguments(parser: Parser, name: str) -> Reading[None]:
    """Read the arguments of the call of `name`, an object, and pass them on. Raises BrokenCallError."""
    reader = parser.reader
    first = yield from reader.peek(1)
    if first == "{":
        yield from _members(reader, parser.arguments, parser.schemas, name)
        return
    yield from pass_on(parser, name, (yield from read_value(reader)))


def pass_on(parser: Parser, name: str, value: str) -> Reading[None]:
    """The arguments of a call that were read before its name: `value`, JSON text. An object in a string is one too."""
    loaded = json.loads(value)
    if isinstance(loaded, str):
        value = loaded.strip()
        loaded = json.loads(value) if parses(value) else loaded
    if loaded is None:
        value = "{}"
    elif not isinstance(loaded, dict):
        raise BrokenCallError(f"arguments of {name} are no JSON object")
    inner = Reader()
    inner.put(value)
    inner.end()
    yield from _members(inner, parser.arguments, parser.schemas, name)


def _members(reader: Reader, emit: Callable[[str], None], schemas: Schemas, name: str) -> Reading[None]:
    def member(index: int) -> Reading[None]:
        key = yield from read_string(reader)
        yield from reader.space()
        yield from expect(reader, ":")
        yield from reader.space()
        emit((", " if index else "") + key + ": ")
        kinds = schemas.kinds(name, json.loads(key))
        if (yield from reader.peek(1)) == '"' and (not kinds or "string" in kinds):
            yield from _string(reader, emit)
        else:
            emit(retyped((yield from read_value(reader)), kinds))

    yield from expect(reader, "{")
    emit("{")
    yield from separated(reader, "}", member)
    emit("}")


def separated(reader: Reader, end: str, member: Callable[[int], Reading[None]]) -> Reading[None]:
    """Read members with commas between them, and `end`. `member` reads one, given how many there were before it."""
    index = 0
    while True:
        yield from reader.space()
        if not index and (yield from reader.skip(end)):
            return
        yield from member(index)
        index += 1
        yield from reader.space()
        if (yield from reader.skip(end)):
            return
        yield from expect(reader, ",")


def expect(reader: Reader, text: str) -> Reading[None]:
    """Read `text`. Raises BrokenCallError where something else comes."""
    if not (yield from reader.skip(text)):
        found = yield from reader.peek(12)
        raise BrokenCallError(f"a tool call has {found!r}, expected {text!r}" if found else ENDED)


ENDED = "the answer ended within a tool call"


def read_string(reader: Reader) -> Reading[str]:
    """Read a string; its JSON text, quotes included."""
    parts: list[str] = []
    yield from _string(reader, parts.append)
    return "".join(parts)


def _string(reader: Reader, emit: Callable[[str], None]) -> Reading[None]:
    yield from expect(reader, '"')
    emit('"')

    def passed(text: str) -> None:
        emit(text.translate(_CONTROL))

    while True:
        end, _ = yield from reader.until(('"', "\\"), passed)
        if not end:
            raise BrokenCallError(ENDED)
        if end == '"':
            emit((yield from reader.take(1)))
            return
        escape = yield from reader.take(2)
        if escape == "\\u":
            escape += yield from reader.take(4)
            if len(escape) == 6 and not _HEX.fullmatch(escape[2:]):
                raise BrokenCallError(f"a tool call has {escape!r} in a string, which is no JSON")
        elif len(escape) == 2 and escape[1] not in _ESCAPES:
            raise BrokenCallError(f"a tool call has {escape!r} in a string, which is no JSON")
        emit(escape)


def read_value(reader: Reader) -> Reading[str]:
    """Read a value; its JSON text. Raises BrokenCallError for what is none."""
    parts: list[str] = []
    depth = 0
    while True:
        first = yield from reader.peek(1)
        if first == '"':
            yield from _string(reader, parts.append)
        elif depth:
            end, _ = yield from reader.until(('"', "{", "}", "[", "]"), parts.append)
            if not end:
                raise BrokenCallError(ENDED)
            if end != '"':
                parts.append((yield from reader.take(1)))
                depth += 1 if end in "{[" else -1
        elif first and first in "{[":
            parts.append((yield from reader.take(1)))
            depth = 1
        else:
            end, _ = yield from reader.until(_SCALAR_ENDS, parts.append)
            if not end:
                raise BrokenCallError(ENDED)
        if depth > MAX_NESTING:
            raise BrokenCallError(f"a tool call has values more than {MAX_NESTING} deep")
        if not depth:
            break
    value = "".join(parts)
    if not parses(value):
        raise BrokenCallError(f"a tool call has a value that is no JSON: {quoted(value[:40])}")
    return value


_NAMES, _ARGUMENTS, _IGNORED = ("name", "function"), ("arguments", "parameters"), ("id", "type")


def read_call(parser: Parser, *, certain: bool) -> Reading[None]:
    """Read a call, and pass it on while it comes. `certain`: it cannot be anything else, so it begins with its name,
    and arguments may be missing. Otherwise it begins with its arguments. Raises BrokenCallError."""
    yield from _object(parser, certain=certain)
    parser.end()


def _object(parser: Parser, *, certain: bool, inner: bool = False) -> Reading[str]:
    reader = parser.reader
    name, waiting, done = "", "", False
    yield from expect(reader, "{")
    yield from reader.space()
    while not (yield from reader.skip("}")):
        key = json.loads((yield from read_string(reader)))
        yield from reader.space()
        yield from expect(reader, ":")
        yield from reader.space()
        if key == "function" and not (name or inner) and (yield from reader.peek(1)) == "{":
            name = yield from _object(parser, certain=certain, inner=True)
            done = True
        elif key in _NAMES and not name:
            name = json.loads((yield from read_string(reader)))
            if certain:
                parser.start(name)
        elif key in _ARGUMENTS and not done and not waiting:
            if name:
                if not certain:
                    parser.start(name)
                yield from read_arguments(parser, name)
                done = True
            else:
                waiting = yield from read_value(reader)
        elif key in _IGNORED:
            yield from read_value(reader)
        else:
            raise BrokenCallError(f"a tool call has {key!r}, expected a name and arguments")
        yield from reader.space()
        if done and not (yield from reader.peek(1)):  # the last brace may be missing at the end of the answer
            return name
        if (yield from reader.peek(1)) != "}":
            yield from expect(reader, ",")
            yield from reader.space()
    if not done:
        if not name or not (certain or waiting):
            raise BrokenCallError("a tool call without a name or arguments")
        if not certain:
            parser.start(name)
        yield from pass_on(parser, name, waiting or "{}")
    return name


def json_call(lark: Lark, name: str, parameters: Mapping[str, JSON], key: str) -> str:
    """A call of `name` as a part of a grammar, with its arguments as `key`."""
    head = f'{{"name": {quoted(name)}, "{key}": '
    return f"{literal(head)} {arguments_grammar(lark, parameters)} {literal('}')}"


def arguments_grammar(lark: Lark, parameters: Mapping[str, JSON]) -> str:
    """The arguments of a call, as JSON, as a part of a grammar: those that are declared, if any are and the schema does
    not say otherwise."""
    closed: Mapping[str, JSON] = {"additionalProperties": False} if "properties" in parameters else {}
    return lark.json({**closed, **parameters, "type": "object"}, parameters)


class HermesParser(TaggedParser):
    """Implements `parser.Parser`."""

    def read_block(self) -> Reading[None]:
        yield from expect(self.reader, self.open)
        while True:
            yield from self.reader.space()
            yield from read_call(self, certain=True)
            yield from self.reader.space()
            # Some write several objects into one block, and some forget the closing tag at the end.
            if (yield from self.reader.peek(1)) != "{":
                break
        yield from self.reader.skip(self.close)


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar."""
    begin, end = lark.token(HermesParser.open), lark.token(HermesParser.close)
    return f'{begin} "\\n" {json_call(lark, name, parameters, "arguments")} "\\n" {end}'
