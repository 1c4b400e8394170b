"""A request for an answer, in the terms of the decoder, and what of it all APIs have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from dflash_core.constraints.grammar import Grammar
from dflash_core.errors import KnobError
from dflash_core.knobs import Value, spec_of
from dflash_core.messages import Message
from dflash_core.text.template_values import JSON, Tools
from dflash_core.text.tool_calls.schemas import broken, mapping
from dflash_tui.server.request_error import invalid

Choice = Literal["auto", "none", "required"]
ThinkingSwitch = Literal["on", "off", ""]
EFFORT_WORDS = {
    "none": "", "minimal": "", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh",
}  # fmt: skip
"""Words for efforts in requests, and the level of each; "" is no reasoning."""
SWITCHES = ("detail", "events", "special")
GRAMMARS: tuple[Literal["regex", "choice", "lark"], ...] = ("regex", "choice", "lark")
"""Keys of `dflash` that are no knobs: switches, and grammars that the APIs have no field for."""
Count = Annotated[int, msgspec.Meta(ge=1)]
"""A limit of tokens."""
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], msgspec.Meta(max_length=16)]
Tool = TypeVar("Tool")


@dataclass(frozen=True, slots=True)
class Asked:
    """`messages` as they came, an answer that comes last goes on; `ids` in their place is a prompt that no template is
    applied to; `place`: the request's own name of either. `changes`: knobs, by name, checked only as to their kind.
    `places`: the request's own name of a knob, where it is another. `thinking` "" leaves it to the server's settings;
    `effort` is a level of EFFORT_WORDS. `max_tokens` None: as many as fit.
    `choice`: whether the model may or must call its tools, `tool` the only one; `strict`: calls follow their schemas;
    `parallel`: more than one in an answer. `grammar`: what the answer conforms to, at `grammar_place` of the request.
    `log_probs`: answer with the probability of each token, and of so many others in its place. `events`: the stream
    has the lines of its record too; `timings`: each of its chunks has the figures so far."""

    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] | None = None
    place: str = "messages"
    tools: Tools = ()
    choice: Choice = "auto"
    tool: str = ""
    strict: bool = False
    parallel: bool = True
    changes: Mapping[str, Value] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    thinking: ThinkingSwitch = ""
    effort: str = ""
    grammar: Grammar | None = None
    grammar_place: str = ""
    log_probs: int | None = None
    events: bool = False
    timings: bool = False
    notes: tuple[str, ...] = ()


class Function(msgspec.Struct):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Request(msgspec.Struct, kw_only=True):
    """The fields that every API has."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    dflash: dict[str, Any] | None = None

    def switch(self, name: str) -> bool:
        """A switch of the object `dflash`. Raises RequestError."""
        value = (self.dflash or {}).get(name, False)
        if not isinstance(value, bool):
            raise invalid(f"expected true or false at dflash.{name}", f"dflash.{name}")
        return value

    def knobs(self) -> dict[str, Value | None]:
        """The knobs that the API has fields for; None where the request leaves a field out."""
        return {"temperature": self.temperature, "top_p": self.top_p}

    def asked(
        self,
        *,
        functions: Sequence[Function] = (),
        choice: str | Mapping[str, Any] | None = None,
        limits: Sequence[int | None],
        stop: str | Sequence[str] | None = None,
        form: tuple[Mapping[str, Any] | None, str] = (None, ""),
        effort: tuple[str | None, str] = (None, ""),
        thinking: ThinkingSwitch | None = None,
        **more: Any,
    ) -> Asked:
        """The request in the decoder's terms, from what all APIs have in common. `limits`: of tokens. `form`: what the
        answer's format must be; `effort`: the word for it; both with their places. `thinking` None: as the effort
        says. `more`: other fields of Asked, as they are. Raises RequestError."""
        changes, places = self._changes()
        grammar, place = grammar_of(*form, self.dflash or {})
        switch, level = effort_of(*effort)
        choice, allowed = allowed_of(choice)
        kind, tool = choice_of(choice)
        if allowed is not None:
            functions = [one for one in functions if one.name in allowed]
            if not functions and kind == "required":
                raise invalid("tool_choice allows none of the tools", "tool_choice")
        return Asked(
            tools=tools_of(functions),
            choice=kind,
            tool=tool,
            strict=any(one.strict for one in functions),
            changes=changes,
            places=places,
            max_tokens=min(filter(None, limits), default=None),
            stops=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            thinking=switch if thinking is None else thinking,
            effort=level,
            grammar=grammar,
            grammar_place=place,
            **more,
        )

    def _changes(self) -> tuple[dict[str, Value], dict[str, str]]:
        """Knobs of the object `dflash` and of the API's own fields, which go first; and the places of the others."""
        changes: dict[str, Value] = {}
        for name, value in (self.dflash or {}).items():
            place = f"dflash.{name}"
            if name in SWITCHES:
                self.switch(name)
            elif name not in GRAMMARS:
                if not isinstance(value, (bool, int, float, str)):
                    raise invalid(f"expected a number, a string, true or false at {place}", place)
                try:
                    changes[spec_of(name).name] = value
                except KnobError as error:
                    raise invalid(str(error), place) from None
        own = {name: value for name, value in self.knobs().items() if value is not None}
        if isinstance(seed := own.get("seed"), int) and seed < 0:
            del own["seed"]  # as with none: a random one
        return changes | own, {name: f"dflash.{name}" for name in changes.keys() - own.keys()}


def by_name(tools: Iterable[tuple[str, Tool]]) -> dict[str, Tool]:
    """Tools by their names, in the order of the request; one that is sent twice counts once. Raises RequestError where
    two of one name differ: nobody could tell which of them a call means."""
    found: dict[str, Tool] = {}
    for name, tool in tools:
        if not name.strip():
            raise invalid("a tool without a name; give it one", "tools")
        if found.setdefault(name, tool) != tool:
            raise invalid(f"two different tools are named {name[:40]!r}; give each a name of its own", "tools")
    return found


def tools_of(functions: Sequence[Function]) -> Tools:
    """Functions as templates take them, keys in the order of the request. Raises RequestError as `by_name`, and for
    broken parameters."""
    found: list[dict[str, JSON]] = []
    for one in by_name((one.name, one) for one in functions).values():
        _check(one.name, one.parameters or {}, followed=one.strict is True)
        function: dict[str, JSON] = {"name": one.name}
        if one.description is not None:
            function["description"] = one.description
        function["parameters"] = one.parameters or {"type": "object", "properties": {}}
        found.append({"type": "function", "function": function})
    return found


def check_followed(tools: Tools, name: str) -> None:
    """Calls must follow the schemas of these tools; `name`: of the only one that may be called, "" for any. Raises
    RequestError where they cannot."""
    for function in (mapping(tool.get("function")) for tool in tools):
        if name in ("", function.get("name")):
            _check(str(function["name"]), mapping(function["parameters"]), followed=True)


def _check(name: str, parameters: Mapping[str, JSON], *, followed: bool) -> None:
    if wrong := broken(parameters, followed=followed):
        raise invalid(f"the tool {name[:40]!r} has {wrong}", "tools")


def effort_of(word: str | None, place: str) -> tuple[ThinkingSwitch, str]:
    """Whether to reason, and how long, of a word for an effort. Raises RequestError."""
    if word is None:
        return "", ""
    if word not in EFFORT_WORDS:
        raise invalid(f"{place} is {word[:40]!r}, expected one of {', '.join(EFFORT_WORDS)}", place)
    level = EFFORT_WORDS[word]
    return ("on" if level else "off"), level


def grammar_of(form: Mapping[str, Any] | None, place: str, extension: Mapping[str, Any]) -> tuple[Grammar | None, str]:
    """The grammar that the answer follows, and its place in the request: `form`, a format in the form of either
    OpenAI API or of Anthropic's, at `place`, or one of the object `dflash`. Raises RequestError."""
    given = [(_of_format(form, place), place)] if form and form.get("type", "text") != "text" else []
    given += [_of_extension(kind, extension[kind]) for kind in GRAMMARS if extension.get(kind) is not None]
    if len(given) > 1:
        places = " and ".join(where for _, where in given)
        raise invalid(f"an answer follows one grammar, and {places} are given", given[1][1])
    return given[0] if given else (None, place)


def _of_extension(kind: Literal["regex", "choice", "lark"], value: object) -> tuple[Grammar, str]:
    place = f"dflash.{kind}"
    if kind != "choice":
        if not isinstance(value, str):
            raise invalid(f"expected a string at {place}", place)
        return Grammar(kind, value), place
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise invalid(f"expected a list of strings at {place}", place)
    return Grammar.choice(value), place


def _of_format(form: Mapping[str, Any], place: str) -> Grammar:
    kind = form["type"]
    if kind == "json_object":
        return Grammar.schema({"type": "object"})
    if kind != "json_schema":
        raise invalid(f"{place}.type is {str(kind)[:40]!r}, expected text, json_object or json_schema", f"{place}.type")
    inner = form.get("json_schema")
    holder, where = (inner, f"{place}.json_schema") if isinstance(inner, dict) else (form, place)
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
    return "required", _named(given)


def allowed_of(
    choice: str | Mapping[str, Any] | None,
) -> tuple[str | Mapping[str, Any] | None, frozenset[str] | None]:
    """`tool_choice` without its list of the only tools that may be called, and their names; None where there is no
    list. Raises RequestError."""
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return choice, None
    inner = choice.get("allowed_tools", choice)
    tools = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
        raise invalid("expected a list of tools at tool_choice.tools", "tool_choice")
    return {"type": inner.get("mode", "auto")}, frozenset(map(_named, tools))


def _named(tool: Mapping[str, Any]) -> str:
    """The name of a tool that `tool_choice` names, in the form of either OpenAI API. Raises RequestError."""
    inner = tool.get("function")
    name = (inner if isinstance(inner, dict) else tool).get("name")
    if not isinstance(name, str) or not name:
        raise invalid("expected the name of a tool at tool_choice.name", "tool_choice")
    return name
