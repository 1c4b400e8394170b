"""Calls of Gemma 4: call:NAME{key:value,...} between two tokens, with keys bare and strings between <|"|>."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash_core.text.template_values import JSON
from dflash_core.text.tool_calls.lark import Lark, either, literal
from dflash_core.text.tool_calls.parser import (
    SPACE,
    BrokenCallError,
    Emit,
    EndedCallError,
    Reading,
    TaggedParser,
    collected,
    members,
)
from dflash_core.text.tool_calls.schemas import MAX_NESTING, kinds_of, mapping, quoted, resolved, typed

QUOTE = '<|"|>'
_SCALAR_ENDS = (",", "}", "]", "<")
_MAX_NESTING = MAX_NESTING // 4  # several frames each
_GRAMMAR_DEPTH = 6  # of objects and arrays; what is deeper is text


class GemmaParser(TaggedParser):
    """Implements `parser.Parser`."""

    open, close = "<|tool_call>", "<tool_call|>"

    def read_block(self) -> Reading[None]:
        reader = self.reader
        yield from reader.expect(self.open)
        yield from reader.space()
        yield from reader.expect("call:")
        name = (yield from self._until("{")).strip()
        self.start(name)
        yield from self._object(self.arguments, name, 0)
        self.end()
        yield from reader.space()
        yield from reader.skip(self.close)

    def _until(self, end: str) -> Reading[str]:
        parts: list[str] = []
        if (yield from self.reader.up_to((end, "\n"), parts.append)) != end:
            raise BrokenCallError(f"a tool call has a line without {end}")
        return "".join(parts)

    def _object(self, emit: Emit, tool: str, depth: int) -> Reading[None]:
        """An object, as JSON. `tool`: the tool whose arguments these are, "" further inside."""
        reader = self.reader

        def member(index: int) -> Reading[None]:
            if (yield from reader.skip(QUOTE)):
                key = yield from collected(self._string)
                yield from reader.space()
            else:
                key = (yield from self._until(":")).strip()
            yield from reader.expect(":")
            emit((", " if index else "") + quoted(key) + ": ")
            yield from self._value(emit, self.schemas.kinds(tool, key) if tool else (), depth)

        emit("{")
        yield from members(reader, "{}", member)
        emit("}")

    def _value(self, emit: Emit, kinds: Sequence[str], depth: int) -> Reading[None]:
        reader = self.reader

        def item(index: int) -> Reading[None]:
            emit(", " if index else "")
            yield from self._value(emit, (), depth + 1)

        if depth > _MAX_NESTING:
            raise BrokenCallError(f"a tool call has values more than {_MAX_NESTING} deep")
        yield from reader.space()
        if (yield from reader.skip(QUOTE)):
            if kinds and "string" not in kinds:
                emit(typed((yield from collected(self._string)), kinds))
                return
            emit('"')
            yield from self._string(lambda text: emit(quoted(text)[1:-1]))
            emit('"')
        elif (yield from reader.comes("{")):
            yield from self._object(emit, "", depth + 1)
        elif (yield from reader.comes("[")):
            emit("[")
            yield from members(reader, "[]", item)
            emit("]")
        else:
            parts: list[str] = []
            end, _ = yield from reader.until(_SCALAR_ENDS, parts.append, SPACE)
            if not end:
                raise EndedCallError
            emit(typed("".join(parts), kinds))

    def _string(self, emit: Emit) -> Reading[None]:
        """The rest of a string, its end read."""
        yield from self.reader.up_to((QUOTE,), emit)
        yield from self.reader.skip(QUOTE)


def grammar(lark: Lark, name: str, parameters: Mapping[str, JSON]) -> str:
    """A call of `name`, as a part of a grammar."""
    members = _object(lark, parameters, parameters, _GRAMMAR_DEPTH)
    return f"{lark.token(GemmaParser.open)} {literal(f'call:{name}')} {members} {lark.token(GemmaParser.close)}"


def _object(lark: Lark, schema: Mapping[str, JSON], root: Mapping[str, JSON], depth: int) -> str:
    """The members in their order. Commas depend on which of the optional ones are there, so these follow the others."""
    required = schema.get("required")
    names = required if isinstance(required, Sequence) else ()
    needed, others = list[str](), list[str]()
    for key, one in mapping(schema.get("properties")).items():
        (needed if key in names else others).append(f"{literal(f'{key}:')} {_value(lark, mapping(one), root, depth)}")
    more = [f'("," {member})?' for member in others]
    if needed:
        body = " ".join([' "," '.join(needed), *more])
    else:
        starts = [" ".join([member, *more[at + 1 :]]) for at, member in enumerate(others)]
        body = f"{either(starts)}?" if starts else ""
    return f'"{{" {body} "}}"'


def _value(lark: Lark, schema: Mapping[str, JSON], root: Mapping[str, JSON], depth: int) -> str:
    schema, quote = resolved(schema, root), lark.token(QUOTE)
    text = f"{quote} {lark.text()} {quote}"
    kinds, enum, inner = kinds_of(schema, root), schema.get("enum"), depth - 1
    if not depth:
        return text
    if kinds == ("string",) and isinstance(enum, Sequence):
        return f"{quote} {either([literal(str(one)) for one in enum])} {quote}"
    bodies = [text] if "string" in kinds or not kinds else []
    if "object" in kinds:
        bodies.append(_object(lark, schema, root, inner))
    if "array" in kinds:
        item = lark.rule(_value(lark, mapping(schema.get("items")), root, inner))
        bodies.append(f'"[" ({item} ("," {item})*)? "]"')
    for kind in ("null", "boolean", "integer", "number"):
        if kind in kinds:
            only = {key: schema[key] for key in ("enum", "minimum", "maximum") if key in schema and len(kinds) == 1}
            bodies.append(lark.json({"type": kind, **only}, root))
    return lark.rule(either(bodies))
