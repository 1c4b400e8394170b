"""The tables of docs/schemas.md: what a trace and exports hold, by the types that write and read them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from dflash_core import record, trace
from dflash_core.knobs import Knobs
from dflash_core.lab.export import to_json
from dflash_core.lab.grid import Arm
from dflash_core.lab.results import Result, Trial
from dflash_tui.application.conversations import exchange
from support.turns import step_of, turn_of

LINES = (trace.TraceHeader, record.Loaded, record.Start, record.Read, record.Step, record.End)
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
KNOBS = "object: every [parameter](knobs.md) by its name"


def title(kind: type) -> str:
    return kind.__name__.removeprefix("_")


def is_object(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def shown(kind: Any) -> str:
    """A type as JSON has it."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Knobs:
        return KNOBS
    if is_object(kind):
        return f"[{title(kind)}](#{title(kind).lower()})"
    if origin is Literal:
        return " or ".join(f"`{one}`" if one else "empty" for one in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(map(shown, inside))
    if origin is tuple:
        same = len(inside) == 2 and inside[1] is ...
        return f"list of {shown(inside[0])}" if same else f"list: {', '.join(map(shown, inside))}"
    if origin is dict:
        return f"object of {shown(inside[1])}, by {shown(inside[0])}"
    return NAMES[kind]


def held(kind: Any) -> Iterator[type]:
    """The objects in a type, in their order."""
    if is_object(kind) and kind is not Knobs:
        yield kind
    for inside in get_args(kind):
        yield from held(inside)


def table(kind: type) -> str:
    """An object: what it is, and its fields."""
    lines = [f"### {title(kind)}", "", " ".join((kind.__doc__ or "").split()), ""]
    lines += ["| field | type | if absent |", "|---|---|---|"]
    if issubclass(kind, msgspec.Struct) and (tag := kind.__struct_config__.tag) is not None:
        lines.append(f"| `{kind.__struct_config__.tag_field}` | `{tag}` | |")
    for name, inside, default in fields(kind):
        lines.append(f"| `{name}` | {shown(inside)} | {default} |")
    return "\n".join(lines) + "\n"


def fields(kind: type) -> Iterator[tuple[str, Any, str]]:
    """Each field's name, type and default, "" where there is none that could be shown."""
    hints = get_type_hints(kind)
    for base in getattr(kind, "__orig_bases__", ()):  # of a generic one: what stands for its variable
        hints |= {name: get_args(base)[0] for name, hint in hints.items() if isinstance(hint, TypeVar)}
    known = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind)
    for field in known:
        plain = field.default is None or isinstance(field.default, str | int | float | tuple)
        default = msgspec.json.encode(field.default).decode() if plain else ""
        yield field.name, hints[field.name], f"`{default}`" if default else ""


def tables(kinds: Sequence[type], but: Sequence[type] = ()) -> str:
    """The objects and those within them, each once. `but`: those that have a table already."""
    waiting, done = list(kinds), list(but)
    made = []
    while waiting:
        kind = waiting.pop(0)
        if kind in done:
            continue
        done.append(kind)
        made.append(table(kind))
        waiting += [one for _, inside, _ in fields(kind) for one in held(inside)]
    return "\n".join(made)


def every(kinds: Sequence[type]) -> list[type]:
    """The objects and those within them."""
    found = list(kinds)
    for kind in found:
        found += [one for _, inside, _ in fields(kind) for one in held(inside) if one not in found]
    return found


def paths(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where each plain value of an example stands, and its type."""
    if isinstance(value, dict) and path.rpartition(".")[2] not in ("settings[]", "about", "stats"):
        for key, inside in value.items():
            yield from paths(inside, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        yield from max((list(paths(one, f"{path}[]")) for one in value), key=len)
    else:
        yield path, {dict: "object", list: "list"}.get(type(value)) or NAMES[type(value)]


def sweep_table() -> str:
    """What `sweep --json` and the export of a sweep hold, from a made-up result."""
    settings = (Arm("budget 4", Knobs(drafting="auto up to 4")), Arm("budget 8", Knobs(drafting="auto up to 8")))
    report = turn_of([step_of()]).report
    assert report is not None, "the made-up turn has ended"
    trials = tuple(Trial(setting, 0, repeat, report, True) for setting in range(2) for repeat in range(6))
    made = to_json(Result(settings, ("budget",), ("a prompt",), 6, trials, (), True, (("target", "a"),)))
    lines = ["| field | type |", "|---|---|", *(f"| `{path}` | {kind} |" for path, kind in paths(made))]
    return "\n".join(lines) + "\n"


def parts() -> dict[str, str]:
    """What docs/schemas.md must hold between its marks."""
    conversations = (exchange._File,)
    return {
        "trace": tables(LINES),
        "conversations": tables(conversations, but=every(LINES)),
        "sweep": sweep_table(),
    }
