"""What decoding raises for JSON that is damaged, and what is wrong with it in plain words."""

from __future__ import annotations

import re

import msgspec

# msgspec's own errors, and what passes through it: text that is not UTF-8, and too deep nesting.
DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_PLACE = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$")
_TYPES = re.compile(r"Expected `(?P<expected>[^`]+)`(?:, got `(?P<found>[^`]+)`|(?P<limit>.*))")
_FIELD = re.compile(r"Object (?:(?P<unknown>contains unknown)|missing required) field `(?P<name>[^`]+)`")
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.+)")
_NAMES = {
    "object": "an object", "array": "an array", "str": "a string", "int": "a whole number", "float": "a number",
    "bool": "true or false", "null": "null",
}  # fmt: skip


def misread(error: Exception) -> tuple[str, str]:
    """What was found and what was expected, and the path of the field; "" for the whole."""
    message = str(error)
    path = place["path"] if (place := _PLACE.search(message)) else ""
    message = _PLACE.sub("", message)
    if types := _TYPES.match(message):
        kinds = [one for one in types["expected"].split(" | ") if one != "null"] or ["null"]
        expected = " or ".join(_NAMES.get(one, one) for one in kinds)
        found = f"found {_NAMES.get(types['found'], types['found'])}, " if types["found"] else ""
        return f"{found}expected {expected}{types['limit'] or ''}", path
    if field := _FIELD.match(message):
        words = "is no field; check its spelling" if field["unknown"] else "is missing; add it"
        return words, f"{path}.{field['name']}" if path else field["name"]
    if value := _VALUE.match(message):
        return f"found {value['value']}, which is none of its values", path
    return f"{message[:1].lower()}{message[1:]}" if isinstance(error, msgspec.ValidationError) else message, path


def in_words(error: Exception, found: str = "") -> str:
    """The same in one line: the path of the field, and what is wrong there. `found`: a value beyond its limit."""
    words, path = misread(error)
    if found and words.startswith("expected"):
        words = f"found {found}, {words}"
    return f"{path}{' ' if words.startswith('is ') else ': '}{words}" if path else words
