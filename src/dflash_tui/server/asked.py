"""A request for an answer, in the terms of the decoder, whatever API it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dflash_core.constraints.grammar import Grammar
from dflash_core.knobs import Value
from dflash_core.messages import Message
from dflash_core.text.template_values import Tools

GRAMMAR = "grammar"
"""The key of the grammar in `Asked.places`."""
Choice = Literal["auto", "none", "required"]
ThinkingSwitch = Literal["on", "off", ""]


@dataclass(frozen=True, slots=True)
class Asked:
    """`messages` as they came; `ids` in their place is a prompt that no template is applied to. `changes`: knobs, by
    name, checked only as to their kind. `places`: the request's own name of a knob, where it is another. `thinking` ""
    leaves it to the server's settings; `effort` is a word of `EFFORTS`, or "". `max_tokens` None: as many as fit.
    `choice`: whether the model may or must call its tools, `tool` the only one; `strict`: calls follow their schemas;
    `parallel`: more than one in an answer. `grammar`: what the answer conforms to. `log_probs`: answer with
    the probability of each token, and of so many others in its place. `events`: the stream has the lines of its
    record too."""

    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] | None = None
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
    log_probs: int | None = None
    events: bool = False
    notes: tuple[str, ...] = ()
