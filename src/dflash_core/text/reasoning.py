"""What a chat template can be asked for about reasoning: found by having it render, not by its name or words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dflash_core.errors import KnobError, TemplateError

EFFORTS = ("low", "medium", "high", "xhigh")  # levels that templates know, lowest first
DEFAULT_EFFORT = "medium"
Effort = Literal["", "low", "medium", "high", "xhigh"]  # that a template was given, "" for none
Variables = Mapping[str, str | bool]
Render = Callable[[Sequence[Mapping[str, str]], Variables], str]


class Asked(Protocol):
    """The knobs that are about reasoning."""

    @property
    def thinking(self) -> bool: ...
    @property
    def reasoning_effort(self) -> str: ...
    @property
    def preserve_thinking(self) -> str: ...


_SYSTEM = {"role": "system", "content": "a"}
_ASKED = ({"role": "user", "content": "a"},)
_ANSWERED = (*_ASKED, {"role": "assistant", "content": "b", "reasoning_content": "c"}, *_ASKED)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a template does with `reasoning_effort` and `preserve_thinking`.

    `accepted` are the levels of reasoning that it renders, () where it does not read them, and `added` what each
    writes into the prompt; `levels` are those to choose from, without one that only stands for another. `preserves`:
    whether it reads `preserve_thinking`, and `preserves_by_itself` what it does without being told.
    """

    accepted: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    added: tuple[str, ...] = ()  # to the prompt, by each accepted level
    preserves: bool = False
    preserves_by_itself: bool = False

    def variables(self, knobs: Asked) -> Variables:
        """What the template is given of `knobs`, beside `enable_thinking`; nothing that it does not read. A default
        level that it refuses is left to the template.

        Raises KnobError for another level that it refuses.
        """
        given: dict[str, str | bool] = {}
        if knobs.thinking and self.accepted:
            if knobs.reasoning_effort in self.accepted:
                given["reasoning_effort"] = knobs.reasoning_effort
            elif knobs.reasoning_effort != DEFAULT_EFFORT:
                raise KnobError(self.refusal(knobs))
        if self.preserves and knobs.preserve_thinking != "auto":
            given["preserve_thinking"] = knobs.preserve_thinking == "on"
        return given

    def adds(self, level: str) -> str:
        """What `level` writes into the prompt; "" for nothing."""
        return dict(zip(self.accepted, self.added)).get(level, "")

    def refusal(self, knobs: Asked) -> str:
        """The line about a level that the template refuses."""
        known = ", ".join(self.accepted)
        return f"reasoning_effort={knobs.reasoning_effort}: the model's template refuses it; expected {known}"

    def level(self, knobs: Asked) -> str:
        """How a turn with `knobs` reasons: off, on, or the level."""
        if not knobs.thinking:
            return "off"
        return knobs.reasoning_effort if knobs.reasoning_effort in self.accepted else "on"

    def changes(self, level: str) -> dict[str, bool | str]:
        """The knobs that make `level`: off, on, or one of the levels."""
        return {"thinking": level != "off"} | ({"reasoning_effort": level} if level in self.accepted else {})


def reasoning_of(render: Render) -> Reasoning:
    """What the template behind `render` reads. A template that fails for a plain question is asked nothing more."""

    def rendered(messages: Sequence[Mapping[str, str]], **variables: str | bool) -> str | None:
        try:
            return render(messages, variables)
        except TemplateError:
            return None

    plain = rendered(_ASKED)
    if plain is None:
        return Reasoning()
    texts = {level: rendered(_ASKED, reasoning_effort=level) for level in EFFORTS}
    accepted = tuple(level for level, text in texts.items() if text is not None)
    if all(texts[level] == plain for level in EFFORTS):
        accepted = ()
    # One engine's files have a level more, which is another's name.
    levels = tuple(level for level in accepted if level != "high" or texts[level] != texts["xhigh"])
    added = _added([rendered((_SYSTEM, *_ASKED), reasoning_effort=level) or texts[level] or "" for level in accepted])
    kept, gone = (rendered(_ANSWERED, preserve_thinking=preserve) for preserve in (True, False))
    preserves = kept is not None and gone is not None and kept != gone
    return Reasoning(accepted, levels, added, preserves, preserves and rendered(_ANSWERED) == kept)


def _added(texts: Sequence[str]) -> tuple[str, ...]:
    """What each of `texts` has that the shortest has not, in one piece."""
    least = min(texts, key=len, default="")
    found = []
    for text in texts:
        begin = common_prefix(text, least)
        end = common_prefix(text[begin:][::-1], least[begin:][::-1])
        found.append(text[begin : len(text) - end].strip())
    return tuple(found)


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items the two begin with alike."""
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
