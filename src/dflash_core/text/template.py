"""A model's chat template, which turns messages into the text of a prompt."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import replace

from dflash_core.errors import TemplateError
from dflash_core.knobs import EFFORTS, Knobs
from dflash_core.text.reasoning import Reasoning, reasoning_of
from dflash_core.text.render_process import RenderProcess
from dflash_core.text.sandbox import Compiled
from dflash_core.text.template_values import NO_TOOLS, NO_VARIABLES, Messages, Tools, Variables
from dflash_core.text.thinking import Channels, opens_thinking
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.support import ToolSupport, tool_support

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
COMPLETION = (
    "{% for message in messages %}"
    "{% if message.role == 'user' and not loop.first %}{{ '\n' }}{% endif %}"
    "{{ message.content }}"
    "{% endfor %}"
)
"""Of a model that goes on with a text: the messages one after the other."""
KNOWN = frozenset(
    {
        hashlib.sha256(CHATML.encode()).hexdigest(),
        hashlib.sha256(COMPLETION.encode()).hexdigest(),
        "9e631e45b4a8b3d5305c49d74d2cbfcf6d57f0084ac201d7e12e1b3a11f1695d",  # the demo pair's
        "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",  # published with Qwen3.5-4B
    }
)
"""SHA-256 of templates that were reviewed and are known to terminate: they render in this process. Any other template,
even one that differs by a single character, renders in a separate process at little cost, so the table need not
grow."""
_SOURCE_LENGTH = 2**20


class ChatTemplate:
    """The template of a model file. Where it has none or an empty one, `notice` says so: then it is plain ChatML, or
    only the messages where the vocabulary lacks ChatML's tokens.

    Thread-safe. A template that is not among the known ones has a process of its own for as long as this object exists.
    Raises TemplateError for a source that does not compile.
    """

    def __init__(
        self,
        source: str | None,
        variables: Mapping[str, str] | None = None,
        *,
        chatml: bool = True,
        channels: Channels | None = None,
    ) -> None:
        """`variables` are further names that the template may use, such as `bos_token`. `chatml`: whether the
        vocabulary has ChatML's tokens; `channels`: how the model names its reasoning."""
        self.notice: str | None = None
        self._channels = channels
        if source is None or not source.strip():  # an empty one would make every prompt empty
            source = CHATML if chatml else COMPLETION
            used = (
                "plain ChatML is used" if chatml else "like a base model it goes on with your text, and does not chat"
            )
            self.notice = f"the model file has no chat template; {used}"
        if len(source) > _SOURCE_LENGTH:
            raise TemplateError(f"the chat template has {len(source):,} characters, the limit is {_SOURCE_LENGTH:,}")
        self.source = source
        self._lock = threading.Lock()
        known = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest() in KNOWN
        self._renderer = (Compiled if known else RenderProcess)(source, variables or {})

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of the file that `tokenizer` came from. Raises TemplateError."""
        ids = {"bos_token": tokenizer.bos_token_id, "eos_token": tokenizer.eos_token_id}
        return cls(
            tokenizer.chat_template,
            {key: tokenizer.name(id) for key, id in ids.items() if id is not None},
            chatml=all(token in tokenizer.special for token in CHATML_TOKENS),
            channels=tokenizer.channels,
        )

    @functools.cached_property
    def without_effect(self) -> Mapping[bool, str]:
        """A note for the user, by the value of `thinking` that changes nothing, where the template writes the same
        prompt with thinking and without; else empty."""
        messages = [{"role": "user", "content": "a"}]
        try:
            on, off = (self.render(messages, thinking=thinking) for thinking in (True, False))
        except TemplateError:  # it refuses this message; the first turn will show the reason
            return {}
        if on != off or self.source == CHATML:  # of plain ChatML nothing is known
            return {}
        if self.reasoning.always:
            lowest = self.reasoning.levels[0]
            return {False: f"this model always thinks before it answers: thinking off is its lowest level, {lowest}"}
        # Mistral's say in a system message that the model thinks.
        if opens_thinking(on) or (self._channels is not None and self._channels.opening in on):
            return {False: "this model always thinks before it answers: thinking off changes nothing"}
        return {True: "this model does not support thinking: thinking on changes nothing"}

    @functools.cached_property
    def reasoning(self) -> Reasoning:
        """Which levels of reasoning it supports, and whether keeping the reasoning of earlier turns can be chosen."""

        def render(messages: Messages, variables: Variables) -> str:
            return self.render(messages, thinking=True, variables=variables)

        efforts = self._channels.efforts if self._channels is not None else ()
        found = reasoning_of(render, efforts or EFFORTS)
        return replace(found, always=bool(efforts and found.levels))

    @functools.cached_property
    def tools(self) -> ToolSupport:
        """What it does with tools, calls and their results."""

        def render(messages: Messages, tools: Tools, opens: bool) -> str:
            given = self.reasoning.variables(Knobs())
            return self.render(messages, thinking=True, generate=opens, variables=given, tools=tools)

        return tool_support(self.source, render)

    def render(
        self,
        messages: Messages,
        *,
        thinking: bool,
        generate: bool = True,
        variables: Variables = NO_VARIABLES,
        tools: Tools = NO_TOOLS,
    ) -> str:
        """The text of a prompt. `generate` ends it with the opening of the assistant's answer. `variables` are given
        to the template beside the usual ones. `tools`: the functions that the model may call.

        Raises TemplateError with the template's own words and line if it refuses the messages, fails, or exceeds a
        limit.
        """
        with self._lock:
            return self._renderer.render(
                messages, thinking=thinking, generate=generate, variables=variables, tools=tools
            )
