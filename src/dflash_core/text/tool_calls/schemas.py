"""The types that tools declare for their parameters, and what a model wrote as JSON of these types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from dflash_core.text.template_values import JSON, NO_TOOLS, Tools

# In the order in which a text is tried as one of several: as a string only if it is nothing else.
KINDS = ("null", "boolean", "integer", "number", "object", "array", "string")
_WORDS = {"null": {"null": "null", "None": "null"}}
_WORDS["boolean"] = {"true": "true", "True": "true", "false": "false", "False": "false"}
_INTEGER = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NESTED = {"object": dict, "array": list}
_MAX_DEPTH = 16  # of references and alternatives
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_VALUES = ("enum", "const", "default", "examples", "dependentRequired")  # which are no schemas
MAX_NESTING = 256  # of objects and arrays in a value


class Schemas:
    """The parameters of the tools of a request, which need not be well-formed: what is not known has no type."""

    def __init__(self, tools: Tools = NO_TOOLS) -> None:
        self._roots: dict[str, Mapping[str, JSON]] = {}
        for tool in tools:
            function = mapping(tool.get("function"))
            self._roots[str(function.get("name"))] = mapping(function.get("parameters"))
        self._kinds: dict[tuple[str, str], tuple[str, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._roots)

    def kinds(self, name: str, key: str) -> tuple[str, ...]:
        """The types, of KINDS and in their order, that the parameter `key` of the tool `name` may have; () where none
        is declared."""
        if (name, key) not in self._kinds:
            root = self._roots.get(name, {})
            schema = mapping(mapping(resolved(root, root).get("properties")).get(key))
            self._kinds[name, key] = kinds_of(schema, root)
        return self._kinds[name, key]


def typed(raw: str, kinds: Sequence[str]) -> str:
    """The JSON of a value that was written without quotes: of the first of `kinds` that it is. Without any it is JSON
    where it parses. What is none of them is a string: whoever gets the call says what is wrong with it."""
    text = raw.strip()
    if not kinds:
        return text if parses(text) else quoted(raw)
    for kind in kinds:
        if kind in _WORDS and text in _WORDS[kind]:
            return _WORDS[kind][text]
        if kind == "integer" and (match := _INTEGER.fullmatch(text)):
            return match[1]
        if kind == "number" and _NUMBER.fullmatch(text):
            return text
        if kind in _NESTED and text[:1] in "{[" and isinstance(_loaded(text), _NESTED[kind]):
            return text
    return quoted(raw)


def retyped(value: str, kinds: Sequence[str]) -> str:
    """JSON that a model wrote: a string where no string may be is taken for what it contains."""
    if not kinds or "string" in kinds or not value.startswith('"'):
        return value
    content = json.loads(value)
    made = typed(content, kinds)
    return value if made.startswith('"') else made


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parses(text: str) -> bool:
    return _loaded(text) is not _NOTHING


_NOTHING = object()


def _loaded(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOTHING


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def mapping(value: JSON) -> Mapping[str, JSON]:
    """`value` if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def resolved(schema: Mapping[str, JSON], root: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """The schema that a local reference into `root` means."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: JSON = root
        for step in reference[1:].split("/")[1:]:
            found = mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
        schema = mapping(found)
    return {}


def kinds_of(schema: Mapping[str, JSON], root: Mapping[str, JSON]) -> tuple[str, ...]:
    """The types, of KINDS and in their order, that a value by `schema` may have; `root`: what references are into."""
    found = _kinds(schema, root, _MAX_DEPTH)
    return tuple(kind for kind in KINDS if kind in found)


def _kinds(schema: Mapping[str, JSON], root: Mapping[str, JSON], depth: int) -> set[str]:
    schema = resolved(schema, root)
    declared = schema.get("type")
    found = {kind for kind in ([declared] if isinstance(declared, str) else _list(declared)) if isinstance(kind, str)}
    if found and schema.get("nullable") is True:
        found.add("null")
    for value in [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])] if not found else []:
        found.add(_kind_of(value))
    for key in ("anyOf", "oneOf", "allOf") if depth and not found else ():
        for one in _list(schema.get(key)):
            found |= _kinds(mapping(one), root, depth - 1)
    return found


def broken(parameters: Mapping[str, JSON], *, followed: bool) -> str:
    """What is wrong with the parameters of a tool; "" where nothing is. `followed`: calls must follow them, so no part
    may be unknown. Else the model only reads them, and may make sense of what they say."""
    declared = parameters.get("type") or "object"
    if "object" not in ([declared] if isinstance(declared, str) else _list(declared)):
        return f"parameters of the type {json.dumps(declared)[:40]}, expected object"
    fields, required = parameters.get("properties") or {}, parameters.get("required") or []
    if not isinstance(fields, Mapping) or not all(isinstance(one, (Mapping, bool)) for one in fields.values()):
        return "properties that are not schemas by their names"
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        return "a list of required properties that are not names"
    return _unknown(parameters) if followed else ""


def _unknown(schema: JSON) -> str:
    """A type or a reference that cannot be followed."""
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            declared, reference = node.get("type"), node.get("$ref")
            for kind in [declared] if isinstance(declared, str) else _list(declared):
                if isinstance(kind, str) and kind not in KINDS:
                    return f"the type {kind[:40]!r}, expected one of {', '.join(KINDS)}"
            if isinstance(reference, str) and not reference.startswith("#"):
                return f"the reference {reference[:40]!r}, expected one into the schema itself"
            for key, value in node.items():
                if key in _SCHEMAS_BY_NAME:
                    nodes += mapping(value).values()
                elif key not in _VALUES:
                    nodes.append(value)
        else:
            nodes += _list(node)
    return ""


def _list(value: JSON) -> Sequence[JSON]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _kind_of(value: JSON) -> str:
    names: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return names.get(type(value), "object" if isinstance(value, Mapping) else "array")
