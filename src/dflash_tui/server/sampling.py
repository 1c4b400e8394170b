"""The knobs of a request: what it asks for, over the server's settings, over what the model's file recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_core.errors import KnobError
from dflash_core.knobs import SPEC, Knobs, Value, spec_of
from dflash_core.limits import Limits
from dflash_tui.server.asked import Asked
from dflash_tui.server.request_error import invalid

_FILE_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Keys of a GGUF file, and the knobs that they recommend values for."""
_USUAL: Mapping[bool, Mapping[str, Value]] = {
    True: {"temperature": 1.0, "top_p": 0.95, "top_k": 20},
    False: {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}
"""By thinking: for files without such keys. The values are those of the model cards of Qwen3.6."""
EFFORT_WORDS = {
    "none": "", "minimal": "", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh",
}  # fmt: skip
"""Words for efforts in requests, and the level of each; "" is no reasoning."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The knobs of a request that names none. `chosen`: those that the user has set, by --set, a profile or a file of
    settings. `recommended`: values of the model's file. `greedy`: without either, temperature 0."""

    knobs: Knobs = field(default_factory=Knobs)
    chosen: frozenset[str] = frozenset()
    recommended: Mapping[str, Value] = field(default_factory=dict)
    greedy: bool = False

    def knobs_for(self, thinking: bool) -> Knobs:
        """The defaults of an answer with or without reasoning."""
        values = {} if self.greedy and not self.recommended else dict(self.recommended or _USUAL[thinking])
        values |= {"answer_loop_guard": "off", "thinking": thinking}
        given = {name: value for name, value in values.items() if name not in self.chosen or name == "thinking"}
        return self.knobs.replace(**given)


def recommended(metadata: Mapping[str, object]) -> dict[str, Value]:
    """The sampling that a model's file recommends; values out of range are left out."""
    found: dict[str, Value] = {}
    for key, name in _FILE_KEYS.items():
        value = metadata.get(key)
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, (int, float)):
            try:
                found[name] = SPEC[name].check(value)
            except KnobError:
                continue
    return found


def knobs_of(asked: Asked, defaults: Defaults, limits: Limits, room: int) -> Knobs:
    """The knobs of a request whose prompt leaves `room` positions. Raises RequestError."""
    known = limits.reasoning
    thinking = asked.thinking == "on" if asked.thinking else defaults.knobs.thinking
    changes = dict(asked.changes)
    if asked.effort and known is not None and known.accepted:
        changes["reasoning_effort"] = nearest(asked.effort, known.accepted)
    try:
        knobs = defaults.knobs_for(thinking)
        for name, value in changes.items():
            knobs = _changed(knobs, name, value, asked)
        limits.check_possible(knobs, changes)
    except KnobError as error:
        raise invalid(str(error)) from None
    knobs, _ = limits.within(knobs)
    # An agent asks for a round number whatever the context is. Reasoning leaves half of it to the answer.
    if knobs.thinking:
        budget = max(room // 2, 1)
        knobs = knobs.replace(thinking_budget=min(knobs.thinking_budget or budget, budget))
    most = int(SPEC["max_tokens"].maximum)
    return knobs.replace(max_tokens=max(1, min(asked.max_tokens or most, room, most)))


def _changed(knobs: Knobs, name: str, value: Value, asked: Asked) -> Knobs:
    place = asked.places.get(name, name)
    try:
        spec = spec_of(name)
        # Extensions may be typed as on a command line.
        typed = spec.parse(value) if isinstance(value, str) and spec.kind in ("int", "float", "switch") else value
        return knobs.replace(**{name: typed})
    except KnobError as error:
        raise invalid(str(error).replace(f"{name}=", f"{place.rpartition('.')[2]}=", 1), place) from None


def nearest(word: str, levels: tuple[str, ...]) -> str:
    """The level that is nearest to an effort, the lower one of two."""
    order = ("low", "medium", "high", "xhigh")
    at = order.index(word)
    return min(levels, key=lambda level: (abs(order.index(level) - at), order.index(level)))
