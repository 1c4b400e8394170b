"""Calls of Gemma 4: call:NAME{key:value,...} between two tokens, with keys bare and strings between <|"|>."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_core.text.tool_calls.json_values import ENDED, expect
from dflash_core.text.tool_calls.parser import BrokenCallError
from dflash_core.text.tool_calls.reader import Reading
from dflash_core.text.tool_calls.schemas import MAX_NESTING, quoted, typed
from dflash_core.text.tool_calls.tagged import SPACE, TaggedParser

QUOTE = '<|"|>'
_SCALAR_ENDS = (",", "}", "]", "<")
_MAX_NESTING = MAX_NESTING // 4  # several frames each


class GemmaParser(TaggedParser):
    """Implements `parser.Parser`."""

    open, close = "<|tool_call>", "<tool_call|>"

    def read_block(self) -> Reading[None]:
        reader = self.reader
        yield from expect(reader, self.open)
        yield from reader.space()
        yield from expect(reader, "call:")
        name = yield from self._until("{")
        self.start(name.strip())
        yield from self._members(self.arguments, name.strip(), 0)
        self.end()
        yield from reader.space()
        yield from reader.skip(self.close)

    def _until(self, end: str) -> Reading[str]:
        parts: list[str] = []
        found, _ = yield from self.reader.until((end, "\n"), parts.append)
        if found != end:
            raise BrokenCallError(f"a tool call has a line without {end}" if found else ENDED)
        return "".join(parts)

    def _members(self, emit: Callable[[str], None], tool: str, depth: int) -> Reading[None]:
        """An object, as JSON. `tool`: the tool whose arguments these are, "" further inside."""
        reader, count = self.reader, 0
        yield from expect(reader, "{")
        emit("{")
        while True:
            yield from reader.space()
            if not count and (yield from reader.skip("}")):
                break
            if (yield from reader.skip(QUOTE)):
                key = yield from self._quoted()
                yield from reader.space()
            else:
                key = (yield from self._until(":")).strip()
            yield from expect(reader, ":")
            emit((", " if count else "") + quoted(key) + ": ")
            yield from self._value(emit, self.schemas.kinds(tool, key) if tool else (), depth)
            count += 1
            yield from reader.space()
            if (yield from reader.skip("}")):
                break
            yield from expect(reader, ",")
        emit("}")

    def _value(self, emit: Callable[[str], None], kinds: Sequence[str], depth: int) -> Reading[None]:
        reader = self.reader
        if depth > _MAX_NESTING:
            raise BrokenCallError(f"a tool call has values more than {_MAX_NESTING} deep")
        yield from reader.space()
        if (yield from reader.skip(QUOTE)):
            if kinds and "string" not in kinds:
                emit(typed((yield from self._quoted()), kinds))
                return
            emit('"')
            yield from self._string(lambda text: emit(quoted(text)[1:-1]))
            emit('"')
        elif (yield from reader.comes("{")):
            yield from self._members(emit, "", depth + 1)
        elif (yield from reader.skip("[")):
            yield from self._items(emit, depth)
        else:
            parts: list[str] = []
            end, _ = yield from reader.until(_SCALAR_ENDS, parts.append, SPACE)
            if not end:
                raise BrokenCallError(ENDED)
            emit(typed("".join(parts), kinds))

    def _items(self, emit: Callable[[str], None], depth: int) -> Reading[None]:
        reader, count = self.reader, 0
        emit("[")
        while True:
            yield from reader.space()
            if not count and (yield from reader.skip("]")):
                break
            emit(", " if count else "")
            yield from self._value(emit, (), depth + 1)
            count += 1
            yield from reader.space()
            if (yield from reader.skip("]")):
                break
            yield from expect(reader, ",")
        emit("]")

    def _quoted(self) -> Reading[str]:
        parts: list[str] = []
        yield from self._string(parts.append)
        return "".join(parts)

    def _string(self, emit: Callable[[str], None]) -> Reading[None]:
        """The rest of a string, its end read."""
        end, _ = yield from self.reader.until((QUOTE,), emit)
        if not end:
            raise BrokenCallError(ENDED)
        yield from self.reader.skip(QUOTE)
