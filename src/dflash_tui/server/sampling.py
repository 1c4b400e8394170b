"""The knobs of a request: what it asks for, over the server's settings, over what the model's file recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_core.arch.recommended import NOTHING, Recommended
from dflash_core.errors import KnobError
from dflash_core.knobs import SPEC, Knobs, Value, spec_of
from dflash_core.limits import Limits
from dflash_tui.application.settings.presets import PresetError, Presets
from dflash_tui.server.asked import Asked
from dflash_tui.server.request_error import invalid

USUAL = Recommended(
    "most models",
    plain={"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    thinking={"temperature": 1.0, "top_p": 0.95, "top_k": 20},
)
"""For a model that nothing is recommended for: agents that send no temperature expect some sampling."""
TYPED = ("int", "float", "switch")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The knobs of a request that names none. `chosen`: those that the user has set, by --set, a profile or a file of
    settings. `recommended`: for the model. `greedy`: temperature 0 where nothing is recommended. `preset`: the name of
    the one that they are, of a client that has one."""

    knobs: Knobs = field(default_factory=Knobs)
    chosen: frozenset[str] = frozenset()
    recommended: Recommended = NOTHING
    greedy: bool = False
    preset: str = ""

    def knobs_for(self, thinking: bool) -> Knobs:
        """The defaults of an answer with or without reasoning."""
        guard: dict[str, Value] = {} if "answer_loop_guard" in self.chosen else {"answer_loop_guard": "off"}
        found = self.recommended if self.recommended.source or self.greedy else USUAL
        return found.applied(self.knobs.replace(thinking=thinking, **guard), self.chosen)


def of_clients(
    clients: Mapping[str, str], presets: Presets, recommended: Recommended, *, greedy: bool
) -> tuple[Mapping[str, Defaults], list[str]]:
    """The defaults of clients, from the names of their presets; and a line for each preset that does not exist."""
    found: dict[str, Defaults] = {}
    problems: list[str] = []
    for client, name in clients.items():
        try:
            changes = presets[name].changes
        except PresetError as error:
            problems.append(f"the client {client} has no preset: {error}")
            continue
        knobs = Knobs().replace(**changes)
        found[client.lower()] = Defaults(knobs, frozenset(changes), recommended, greedy=greedy, preset=name)
    return found, problems


def knobs_of(asked: Asked, defaults: Defaults, limits: Limits, remaining: int) -> Knobs:
    """The knobs of a request whose prompt leaves `remaining` positions. Raises RequestError."""
    known = limits.reasoning
    thinking = asked.thinking == "on" if asked.thinking else defaults.knobs.thinking
    changes = dict(asked.changes)
    if asked.effort and known is not None and known.accepted:
        changes["reasoning_effort"] = nearest(asked.effort, known.accepted)
    try:
        # Together: one at a time, the shape of a tree would turn an `auto` that comes with it into a tree.
        checked = {name: _checked(name, value, asked) for name, value in changes.items()}
        knobs = defaults.knobs_for(thinking).replace(**checked)
        limits.check_possible(knobs, changes)
    except KnobError as error:
        raise invalid(str(error)) from None
    knobs, _ = limits.within(knobs)
    # An agent asks for a round number whatever the context is. Reasoning leaves half of it to the answer.
    if knobs.thinking:
        budget = max(remaining // 2, 1)
        knobs = knobs.replace(thinking_budget=min(knobs.thinking_budget or budget, budget))
    most = int(SPEC["max_tokens"].maximum)
    return knobs.replace(max_tokens=max(1, min(asked.max_tokens or most, remaining, most)))


def _checked(name: str, value: Value, asked: Asked) -> Value:
    """The value of a knob, as its own type. Raises RequestError."""
    place = asked.places.get(name, name)
    try:
        spec = spec_of(name)
        # Extensions may be typed as on a command line.
        return spec.check(spec.parse(value) if isinstance(value, str) and spec.kind in TYPED else value)
    except KnobError as error:
        raise invalid(str(error).replace(f"{name}=", f"{place.rpartition('.')[2]}=", 1), place) from None


def nearest(word: str, levels: tuple[str, ...]) -> str:
    """The level that is nearest to an effort, the lower one of two."""
    order = ("low", "medium", "high", "xhigh")
    at = order.index(word)
    return min(levels, key=lambda level: (abs(order.index(level) - at), order.index(level)))
