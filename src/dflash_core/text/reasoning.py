"""Finds which settings of reasoning a chat template supports: by rendering it, not by its name or words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_core.errors import KnobError, LateTemplateError, TemplateError
from dflash_core.knobs import DEFAULT_EFFORT, EFFORTS, Knobs
from dflash_core.prefix import common_prefix
from dflash_core.text.template_values import Messages, Variables

Effort = Literal["", "low", "medium", "high", "xhigh"]  # the level that a template was given, "" for none
Render = Callable[[Messages, Variables], str]


_SYSTEM = {"role": "system", "content": "a"}
_ASKED = ({"role": "user", "content": "a"},)
_ANSWERED = (*_ASKED, {"role": "assistant", "content": "b", "reasoning_content": "c"}, *_ASKED)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a template does with `reasoning_effort` and `preserve_thinking`.

    `accepted`: the levels of reasoning that it renders, () where it does not read them; `added`: what each adds to the
    prompt. `levels`: those to choose from, one of each group that adds the same. `required`: it renders nothing without
    a level. `preserves`: whether it reads `preserve_thinking`. `always`: the model thinks whatever the prompt says, so
    that thinking off is its lowest level.
    """

    accepted: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    added: tuple[str, ...] = ()  # to the prompt, by each accepted level
    preserves: bool = False
    required: bool = False
    always: bool = False

    def variables(self, knobs: Knobs) -> Variables:
        """The variables that the template gets from `knobs` in addition to `enable_thinking`: only those that it reads.
        A default level that it refuses is left out.

        Raises KnobError for another level that it refuses.
        """
        given: dict[str, str | bool] = {}
        if self.required or self.always:
            given["reasoning_effort"] = self.levels[0] if self.always else _usual(self.levels)
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

    def refusal(self, knobs: Knobs) -> str:
        """The line about a level that the template refuses."""
        known = ", ".join(self.accepted)
        return f"reasoning_effort={knobs.reasoning_effort}: the model's template refuses it; expected {known}"

    def level(self, knobs: Knobs) -> str:
        """The reasoning of a turn with `knobs`: off, on, or the level."""
        if not knobs.thinking:
            return self.levels[0] if self.always else "off"
        return knobs.reasoning_effort if knobs.reasoning_effort in self.accepted else "on"

    def changes(self, level: str) -> dict[str, bool | str]:
        """The knobs to change for `level`: off, on, or one of the levels."""
        return {"thinking": level != "off"} | ({"reasoning_effort": level} if level in self.accepted else {})


def reasoning_of(render: Render, efforts: Sequence[str] = EFFORTS) -> Reasoning:
    """What the template of `render` supports, of the levels `efforts`. One that fails for a plain question at every
    level supports nothing.

    A template that ran into its time limit is not rendered again: a dozen times that limit is too long to load.
    """
    late = False

    def rendered(messages: Messages, **variables: str | bool) -> str | None:
        nonlocal late
        if late:
            return None
        try:
            return render(messages, variables)
        except TemplateError as error:
            late = isinstance(error, LateTemplateError)
            return None

    def both(**variables: str) -> tuple[str | None, ...]:
        # Some templates write the level only if there is a system message, and some refuse system messages.
        return tuple(rendered(messages, **variables) for messages in (_ASKED, (_SYSTEM, *_ASKED)))

    plain = both()
    texts = {level: found for level in efforts if any(found := both(reasoning_effort=level))}
    required = not any(plain)
    if required and not texts:
        return Reasoning()
    if all(texts.get(level) == plain for level in efforts):
        texts = {}
    levels = tuple(level for level in texts if level == _usual([one for one in texts if texts[one] == texts[level]]))
    shortest = min((text or bare or "" for bare, text in (*texts.values(), plain) if text or bare), key=len)
    added = tuple(_added(text or bare or "", shortest) for bare, text in texts.values())
    own = {"reasoning_effort": _usual(levels)} if required else {}
    preserved, dropped = (rendered(_ANSWERED, preserve_thinking=preserve, **own) for preserve in (True, False))
    preserves = preserved is not None and dropped is not None and preserved != dropped
    return Reasoning(tuple(texts), levels, added, preserves, required)


def _usual(levels: Sequence[str]) -> str:
    """The default level if `levels` (lowest first) has it, else the highest."""
    return DEFAULT_EFFORT if DEFAULT_EFFORT in levels else levels[-1]


def _added(text: str, shortest: str) -> str:
    """The part of `text` that the shortest text lacks: one piece of whole words."""
    words, base = (re.findall(r"\w+|\W", one) for one in (text, shortest))
    begin = common_prefix(words, base)
    end = common_prefix(words[begin:][::-1], base[begin:][::-1])
    return "".join(words[begin : len(words) - end]).strip()
