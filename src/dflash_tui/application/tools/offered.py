"""Tools as the model is offered them: their names, their schemas, and which are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import msgspec

from dflash_core.clean import encodable, one_line
from dflash_core.errors import DFlashError
from dflash_core.text.template_values import Tools

PACKAGES = ("mcp", "mcp_types", "jsonschema")
INSTALL = 'pip install "dflash-tui[tools]"'
MAX_TOOLS = 256
"""Of one server."""
MAX_BYTES = 64 * 1024
"""Of one tool's description and schema: the model reads all of it with every conversation."""
_MAX_NAME = 64
_WORD = 120  # characters of a reason


def needs() -> None:
    """Raises DFlashError where packages are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise DFlashError(f"tools need the package {missing[0]}, which is not installed: {INSTALL}")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool. `own`: its name at its server; `name`: the one that the model gets. `parameters`: a JSON schema."""

    server: str
    own: str
    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A tool that is not offered, and why."""

    name: str
    why: str


def listed(server: str, found: Sequence[object]) -> tuple[tuple[OfferedTool, ...], tuple[LeftOut, ...]]:
    """The tools of a server's list, in its form of JSON, and those of it that cannot be used."""
    tools: dict[str, OfferedTool] = {}
    left_out: list[LeftOut] = []
    for place, one in enumerate(found):
        name = one.get("name") if isinstance(one, Mapping) else None
        shown = one_line(name, _WORD) if isinstance(name, str) and name.strip() else f"number {place + 1}"
        why = f"the server has more than {MAX_TOOLS} tools" if len(tools) >= MAX_TOOLS else problem(one)
        if not why and name in tools:
            why = "another tool has its name"
        if why or not isinstance(one, Mapping) or not isinstance(name, str):
            left_out.append(LeftOut(shown, one_line(why, _WORD)))
            continue
        description = encodable(one.get("description") or "")
        tools[name] = OfferedTool(server, name, _name(name), description, one["inputSchema"])
    return tuple(tools.values()), tuple(left_out)


def problem(tool: object) -> str:
    """Why a tool of a list cannot be used; "" if it can."""
    from jsonschema import Draft202012Validator, SchemaError

    if not isinstance(tool, Mapping):
        return "not an object"
    if not isinstance(tool.get("name"), str) or not tool["name"].strip():
        return "it has no name"
    if not isinstance(tool.get("description"), (str, type(None))):
        return "its description is no text"
    schema = tool.get("inputSchema")
    if not isinstance(schema, Mapping):
        return "it has no schema of its arguments"
    if schema.get("type") != "object":
        return f"its arguments are of type {schema.get('type')!r}, expected an object"
    try:
        if (size := len(msgspec.json.encode([tool.get("description"), schema]))) > MAX_BYTES:
            return f"its description and schema have {size:,} bytes, more than {MAX_BYTES:,}"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is broken: {error.message}"
    except RecursionError:
        return "its schema is nested too deeply"
    except Exception as error:  # of a reference that leads nowhere, and whatever else a schema can be
        return f"its schema cannot be read: {error}"
    return ""


def together(of_servers: Sequence[Sequence[OfferedTool]]) -> tuple[OfferedTool, ...]:
    """The tools of all servers, with names that are unique: those of several have their server before them."""
    found = [tool for tools in of_servers for tool in tools]
    names = [tool.name for tool in found]
    taken = set[str]()
    unique: list[OfferedTool] = []
    for tool in found:
        name = tool.name if names.count(tool.name) == 1 else _name(f"{tool.server}_{tool.name}")
        number = 2
        while name in taken:
            ending = f"_{number}"
            name, number = tool.name[: _MAX_NAME - len(ending)] + ending, number + 1
        taken.add(name)
        unique.append(replace(tool, name=name))
    return tuple(unique)


def for_template(tools: Sequence[OfferedTool]) -> Tools:
    return [
        {
            "type": "function",
            "function": {"name": one.name, "description": one.description, "parameters": one.parameters},
        }
        for one in tools
    ]


def _name(text: str) -> str:
    """A name that every form of calls can write."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:_MAX_NAME] or "tool"
