"""Calls as JSON objects, {"name": ..., "arguments": {...}} in any order of the members, which are passed on while they
come; and the form of Qwen3 and Hermes, with such objects between <tool_call> and </tool_call>.

Strings may hold line breaks as they are, which models write and JSON forbids; they are passed on as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.lark import Lark, literal
from dflash_core.text.tool_calls.parser import (
    BrokenCallError,
    Emit,
    Parser,
    Reader,
    Reading,
    TaggedParser,
    collected,
    members,
)
from dflash_core.text.tool_calls.schemas import MAX_NESTING, parses, quoted, retyped

_CONTROL = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SCALAR_ENDS = (",", "}", "]", " ", "\n", "\r", "\t")


def read_arguments(parser: Parser, name: str) -> Reading[None]:
    """Read the arguments of the call of `name`, an object, and pass them on. Raises BrokenCallError."""
    if (yield from parser.reader.peek(1)) == "{":
        yield from _arguments(parser, parser.reader, name)
    else:
        yield from pass_on(parser, name, (yield from read_value(parser.reader)))


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
    yield from _arguments(parser, Reader(value), name)


def _arguments(parser: Parser, reader: Reader, name: str) -> Reading[None]:
    def member(index: int) -> Reading[None]:
        key = yield from _key(reader)
        parser.arguments((", " if index else "") + key + ": ")
        kinds = parser.schemas.kinds(name, json.loads(key))
        if (yield from reader.peek(1)) == '"' and (not kinds or "string" in kinds):
            yield from _string(reader, parser.arguments)
        else:
            parser.arguments(retyped((yield from read_value(reader)), kinds))

    parser.arguments("{")
    yield from members(reader, "{}", member)
    parser.arguments("}")


def _key(reader: Reader) -> Reading[str]:
    """The name of a member, as its JSON text, and the colon after it."""
    name = yield from _text(reader)
    yield from reader.space()
    yield from reader.expect(":")
    yield from reader.space()
    return name


def _text(reader: Reader) -> Reading[str]:
    return (yield from collected(lambda emit: _string(reader, emit)))


def _string(reader: Reader, emit: Emit) -> Reading[None]:
    """A string as its JSON text, quotes included."""
    yield from reader.expect('"')
    emit('"')
    while (yield from reader.up_to(('"', "\\"), lambda text: emit(text.translate(_CONTROL)))) != '"':
        escape, size = (yield from reader.take(2)), 2
        if escape == "\\u":
            escape, size = escape + (yield from reader.take(4)), 6
        if len(escape) == size and not _ESCAPE.fullmatch(escape):
            raise BrokenCallError(f"a tool call has {escape!r} in a string, which is no JSON")
        emit(escape)
    emit((yield from reader.take(1)))


def read_value(reader: Reader) -> Reading[str]:
    """Read a value; its JSON text. Raises BrokenCallError for what is none."""
    parts, depth = list[str](), 0
    while True:
        first = yield from reader.peek(1)
        if first == '"':
            yield from _string(reader, parts.append)
        elif depth or first in ("{", "["):
            end = yield from reader.up_to(('"', "{", "}", "[", "]"), parts.append)
            if end != '"':
                parts.append((yield from reader.take(1)))
                depth += 1 if end in "{[" else -1
        else:
            yield from reader.up_to(_SCALAR_ENDS, parts.append)
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
    """The name of the call."""
    reader = parser.reader
    name, waiting, done = "", "", False
    yield from reader.expect("{")
    yield from reader.space()
    while not (yield from reader.skip("}")):
        key = json.loads((yield from _key(reader)))
        if key == "function" and not (name or inner) and (yield from reader.peek(1)) == "{":
            name = yield from _object(parser, certain=certain, inner=True)
            done = True
        elif key in _NAMES and not name:
            name = json.loads((yield from _text(reader)))
            if certain:
                parser.start(name)
        elif key in _ARGUMENTS and not done and not waiting:
            if not name:
                waiting = yield from read_value(reader)
            else:
                if not certain:
                    parser.start(name)
                yield from read_arguments(parser, name)
                done = True
        elif key in _IGNORED:
            yield from read_value(reader)
        else:
            raise BrokenCallError(f"a tool call has {key!r}, expected a name and arguments")
        yield from reader.space()
        if done and not (yield from reader.peek(1)):  # the last brace may be missing at the end of the answer
            return name
        if (yield from reader.peek(1)) != "}":
            yield from reader.expect(",")
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
        yield from self.reader.expect(self.open)
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
