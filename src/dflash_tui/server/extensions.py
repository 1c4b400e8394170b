"""What requests may ask for beyond the fields of an API: sampling of local servers, and the object `dflash`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dflash_core.constraints.grammar import Grammar
from dflash_core.errors import KnobError
from dflash_core.knobs import Value, spec_of
from dflash_tui.server.asked import Choice, ThinkingSwitch
from dflash_tui.server.request_error import invalid
from dflash_tui.server.sampling import EFFORT_WORDS

SWITCHES = ("detail", "events", "special")
GRAMMARS: tuple[Literal["regex", "choice", "lark"], ...] = ("regex", "choice", "lark")
"""Keys of `dflash` that are no knobs: switches, and grammars that the APIs have no field for."""


def sampling_changes(**given: Value | None) -> dict[str, Value]:
    """The knobs that a request sets."""
    changes = {name: value for name, value in given.items() if value is not None}
    if isinstance(seed := changes.get("seed"), int) and seed < 0:
        del changes["seed"]  # as with none: a random one
    return changes


def extended(extra: Mapping[str, Any] | None) -> tuple[dict[str, Value], dict[str, str], Mapping[str, bool]]:
    """Knobs, their places in the request, and switches, of the object `dflash`. Raises RequestError."""
    changes: dict[str, Value] = {}
    switches: dict[str, bool] = {}
    for name, value in (extra or {}).items():
        place = f"dflash.{name}"
        if name in GRAMMARS:
            continue
        if name in SWITCHES:
            if not isinstance(value, bool):
                raise invalid(f"expected true or false at {place}", place)
            switches[name] = value
            continue
        if not isinstance(value, (bool, int, float, str)):
            raise invalid(f"expected a number, a string, true or false at {place}", place)
        try:
            changes[spec_of(name).name] = value
        except KnobError as error:
            raise invalid(str(error), place) from None
    return changes, {name: f"dflash.{name}" for name in changes}, switches


def effort_of(word: str | None, place: str) -> tuple[ThinkingSwitch, str]:
    """Whether to reason, and how long, of a word for an effort. Raises RequestError."""
    if word is None:
        return "", ""
    if word not in EFFORT_WORDS:
        known = ", ".join(EFFORT_WORDS)
        raise invalid(f"{place} is {word[:40]!r}, expected one of {known}", place)
    level = EFFORT_WORDS[word]
    return ("on" if level else "off"), level


def grammar_of(
    wanted: Mapping[str, Any] | None, place: str, extra: Mapping[str, Any] | None
) -> tuple[Grammar | None, str]:
    """The grammar that the answer follows, and its place in the request: `wanted`, a format in the form of either
    OpenAI API or of Anthropic's, at `place`, or one of the object `dflash`. Raises RequestError."""
    found = [(_of_format(wanted, place), place), *(_of_extension(kind, extra or {}) for kind in GRAMMARS)]
    given = [(grammar, where) for grammar, where in found if grammar is not None]
    if len(given) > 1:
        places = " and ".join(where for _, where in given)
        raise invalid(f"an answer follows one grammar, and {places} are given", given[1][1])
    return given[0] if given else (None, place)


def _of_extension(kind: Literal["regex", "choice", "lark"], extra: Mapping[str, Any]) -> tuple[Grammar | None, str]:
    value, place = extra.get(kind), f"dflash.{kind}"
    if value is None:
        return None, place
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            raise invalid(f"expected a list of strings at {place}", place)
        return Grammar.choice(value), place
    if not isinstance(value, str):
        raise invalid(f"expected a string at {place}", place)
    return Grammar(kind, value), place


def _of_format(wanted: Mapping[str, Any] | None, place: str) -> Grammar | None:
    kind = (wanted or {}).get("type", "text")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return Grammar.schema({"type": "object"})
    if kind != "json_schema":
        raise invalid(f"{place}.type is {str(kind)[:40]!r}, expected text, json_object or json_schema", f"{place}.type")
    inner = wanted.get("json_schema")
    holder, where = (inner, f"{place}.json_schema") if isinstance(inner, dict) else (wanted, place)
    schema = holder.get("schema")
    if not isinstance(schema, (dict, bool)):
        raise invalid(f"expected a JSON schema at {where}.schema", f"{where}.schema")
    return Grammar.schema(schema, lenient=holder.get("strict") is False)


def choice_of(choice: str | Mapping[str, Any] | None) -> tuple[Choice, str]:
    """Whether tools may or must be called, and the only one that may, of `tool_choice` in any dialect. Raises
    RequestError."""
    given: Mapping[str, Any] = {"type": choice or "auto"} if choice is None or isinstance(choice, str) else choice
    kind = given.get("type", "")
    if kind in ("auto", "none", "required"):
        return kind, ""
    if kind == "any":
        return "required", ""
    if kind not in ("function", "tool", "custom"):
        raise invalid(f"tool_choice is {str(kind)[:40]!r}, expected auto, none, required or a tool", "tool_choice")
    inner = given.get("function")
    name = (inner if isinstance(inner, dict) else given).get("name")
    if not isinstance(name, str) or not name:
        raise invalid("expected the name of a tool at tool_choice.name", "tool_choice")
    return "required", name
