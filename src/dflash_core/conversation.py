"""Chat turns over a decoder: the prompt of each turn, its pieces as they come; an interrupted turn keeps its text.

A turn may call tools. Its calls are in the message that it adds; the next turn is then asked with their results.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dflash_core.answer import Answer, OnPrefill, Reread
from dflash_core.clean import encodable
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import ContextError, DFlashError
from dflash_core.events import Piece
from dflash_core.knobs import READ_AGAIN, SPEC, Knobs
from dflash_core.messages import Call, Message
from dflash_core.prefix import common_prefix
from dflash_core.prompting import build_prompt, render, visible_end
from dflash_core.record import Line, Start, Turns
from dflash_core.text.prompt import Prompt, Prompting
from dflash_core.text.template import ChatTemplate
from dflash_core.text.template_values import NO_TOOLS, Tools
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.answer import AnswerParts, AnswerShape
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Malformed, Part, Text, Thinking

if TYPE_CHECKING:
    from dflash_core.runner import Runner


@dataclass(frozen=True, slots=True)
class Models:
    """Target and drafter: the names under which turns are stored, and the drafter's capabilities (None: no drafter)."""

    target: str = ""
    draft: str = ""
    drafter: Capabilities | None = None


class Turn(Answer):
    """The answer to the last message of a conversation, to which it is appended when the iteration ends.

    Complete calls of the conversation's tools are in `calls`, not in its text; `record` has the text as the model wrote
    it. `calling`: the tool whose call is being written, or "".
    """

    def __init__(
        self, conversation: Conversation, prompt: Prompt, knobs: Knobs, *, on_prefill: OnPrefill | None = None
    ) -> None:
        self._conversation, self.messages_sent = conversation, conversation.messages
        self.tools_sent, self.calls, self.calling, self._arguments = conversation.tools, tuple[Call, ...](), "", ""
        # Calls of a model that goes on calling are no text, also where its tools have gone.
        uses_tools = bool(conversation.tools) or any(message.calls for message in conversation.messages)
        form = conversation.template.tools.form if uses_tools else None
        stops = form.stops if form is not None else ()
        parser = AnswerParts(form, conversation.tools) if form is not None else None
        self._shape = AnswerShape((), parser, ends=stops) if parser is not None else None
        super().__init__(
            conversation.engine, conversation.tokenizer, prompt, knobs, conversation._start, keep=prompt.keep,
            watchers=conversation.watchers, on_prefill=on_prefill, shown=form.shown if form is not None else (),
            ends=stops,
        )  # fmt: skip
        self.reread = conversation._reread(prompt, self.messages_sent, self.knobs)

    def _take(self, parts: Iterable[Part]) -> tuple[str, str]:
        """Take the calls out of parts; returns the reasoning and the text that they have beside."""
        thinking = text = ""
        for part in parts:
            if isinstance(part, Text):
                text += part.text
            elif isinstance(part, Thinking):
                thinking += part.text
            elif isinstance(part, CallStart):
                self.calling, self._arguments = part.name, ""
            elif isinstance(part, CallArguments):
                self._arguments += part.text
            elif isinstance(part, (CallEnd, Malformed)):
                if isinstance(part, CallEnd) and part.complete:
                    arguments = json.loads(self._arguments or "{}")
                    self.calls += (Call(f"call_{secrets.token_hex(8)}", self.calling, arguments),)
                self.calling = ""
        return thinking, text

    def _add(self, piece: Piece) -> Piece:
        if self._shape is None:
            return super()._add(piece)
        thinking, text = self._take(self._shape.push(piece.thinking, piece.text))
        if self._shape.over:
            self.stop()
        return super()._add(replace(piece, text=text, thinking=thinking))

    def _finish(self, thinking: str, text: str, *, cut: bool) -> None:
        if self._shape is not None:
            last = [*self._shape.push(thinking, text), *self._shape.finish(cut=cut)]
            thinking, text = self._take(last)
        super()._finish(thinking, text, cut=cut)

    def _notes(self) -> tuple[str, ...]:
        return (*super()._notes(), *(self._shape.notes if self._shape is not None else ()))

    def _ended(self) -> None:
        self._conversation._ended(self)


class Conversation:
    """Messages, and the turns that add to them. One turn at a time; `messages` may be read from any thread.

    `turns` has every turn that was answered here. `tools`: what the model may call, from the next turn on.
    `watchers` are called with each line of a running turn's record, on the thread that runs it, and must not raise.
    """

    def __init__(self, engine: Runner, tokenizer: Tokenizer, template: ChatTemplate, system: str = "") -> None:
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self.models = Models()
        self.messages: tuple[Message, ...] = ()
        self.turns = Turns()
        self.tools: Tools = NO_TOOLS
        self.watchers: list[Callable[[Line], None]] = []
        self._turn: Turn | None = None
        self._read: tuple[Prompt, tuple[Message, ...], Knobs, Tools] | None = None  # of the newest turn
        self.system = system

    @property
    def system(self) -> str:
        """The system prompt; setting it rewrites the first message, and "" removes that."""
        return self.messages[0].content if self.messages and self.messages[0].role == "system" else ""

    @system.setter
    def system(self, text: str) -> None:
        rest = tuple(message for message in self.messages if message.role != "system")
        self.messages = (Message("system", encodable(text)), *rest) if text else rest

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self.turns = Turns()
        self.set_messages(self.messages[:1] if self.system else ())

    def set_messages(self, messages: Sequence[Message]) -> None:
        """Go on from another history. A turn that is still running ends without being added to it."""
        self._turn = None
        self.messages = tuple(map(_encodable, messages))

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, special=False))

    @property
    def tools_note(self) -> str:
        """What a user of tools should know of this model; "" for nothing."""
        return self.template.tools.note or ""

    def ask(self, prompt: str | Sequence[Message], knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        """A turn that answers `prompt`: a message, or the results of the last turn's calls. An earlier turn that was
        left unfinished ends first, with what it has.

        Raises TemplateError, ContextError, KnobError for a level of reasoning that the template refuses, or DFlashError
        while another turn runs; `prompt` is then not added.
        """
        self._close_turn()
        asked = (Message("user", encodable(prompt)),) if isinstance(prompt, str) else tuple(map(_encodable, prompt))
        return self._begin((*self.messages, *asked), knobs, on_prefill=on_prefill)

    def reading(self, knobs: Knobs) -> Reread | None:
        """What the next message would read again under `knobs`, because they, the system message or an earlier message
        changed since the last turn; None for nothing, or where it is not known. Raises TemplateError and KnobError."""
        if self._read is None:
            return None
        messages, now = self._rendered("a", knobs)
        return self._reread(now, messages, knobs)

    def _rendered(self, text: str, knobs: Knobs) -> tuple[tuple[Message, ...], Prompt]:
        """The messages where `text` is asked next, and their prompt."""
        messages = (*self.messages, Message("user", text))
        return messages, render(self._prompting(knobs), messages)

    def _prompting(self, knobs: Knobs) -> Prompting:
        return Prompting.of(self.tokenizer, self.template, knobs, self.tools)

    def _reread(self, prompt: Prompt, messages: tuple[Message, ...], knobs: Knobs) -> Reread | None:
        if self._read is None:
            return None
        last, earlier, before, tools = self._read
        common = common_prefix(prompt.ids, last.ids[: last.stable])
        changed = [name for name in READ_AGAIN if getattr(knobs, name) != getattr(before, name)]
        if "attention_window" in changed:
            common = 0
        present, past = ([one for one in each if one.role != "system"] for each in (messages, earlier))
        if common >= last.stable or present[:1] != past[:1]:  # another conversation is not read again
            return None
        why = [SPEC[name].label for name in changed]
        if earlier[0].role + earlier[0].content != messages[0].role + messages[0].content:
            why.append("the system message")
        if tools != self.tools:
            why.append("the tools")
        edited = not why and [one.content for one in present[: len(past)]] != [one.content for one in past]
        fallback = "an earlier message" if edited else "how the model's template writes earlier turns"
        return Reread(last.stable - common, last.stable, f"{' and '.join(why) or fallback} changed")

    def preview(self, text: str, knobs: Knobs) -> str:
        """The prompt that asking `text` would give the model. Raises TemplateError and KnobError."""
        return self._rendered(text, knobs)[1].text

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        """A turn that answers the last message, or the last results of calls, again, in place of its answer.

        Raises TemplateError, ContextError, or DFlashError where there is nothing to answer or another turn runs; the
        messages are then as they were.
        """
        self._close_turn()
        asks = ("user", "tool")
        last = max((n for n, message in enumerate(self.messages) if message.role in asks), default=None)
        if last is None:
            raise DFlashError("nothing to retry: no question has been asked yet")
        return self._begin(self.messages[: last + 1], knobs, on_prefill=on_prefill)

    def _begin(self, messages: tuple[Message, ...], knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        capacity = self.engine.context_length
        # A message of megabytes is refused before a template renders the text. Templates may trim a message.
        text = messages[-1].content  # of several results the longest need not be the last: the count below has them all
        if len(text) >= capacity and (needed := self.tokenizer.min_tokens(text.strip())) >= capacity:
            found = f"the message has {needed:,} tokens at least and the context holds {capacity:,}"
            message = f"{found}, one of them for the answer; shorten the message"
            raise ContextError(message, needed=needed, capacity=capacity)
        prompting = self._prompting(knobs)
        prompt = build_prompt(prompting, messages)
        if "reasoning_effort" in prompting.variables:
            prompt = replace(prompt, effort=knobs.reasoning_effort)
        if knobs.attention_window:
            prompt = replace(prompt, sinks=max(visible_end(prompting, messages, prompt), prompt.head))
        if len(prompt.ids) >= capacity:
            found = (
                f"the conversation has {len(prompt.ids):,} tokens with this message and the context holds {capacity:,}"
            )
            message = f"{found}, one of them for the answer; shorten the message or start a new conversation"
            raise ContextError(message, needed=len(prompt.ids), capacity=capacity)
        self.messages = messages
        self._turn = Turn(self, prompt, knobs, on_prefill=on_prefill)
        return self._turn

    def _close_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()

    def _start(self, prompt: Prompt, knobs: Knobs) -> Start:
        """What the record of a turn that answers the newest message begins with."""
        models, created = self.models, datetime.now(UTC).isoformat(timespec="milliseconds")
        block, kind = (models.drafter.block, models.drafter.kind) if models.drafter else (0, "")
        asked = self.messages[-1].content
        return Start(
            created, models.target, models.draft, self.system, asked, prompt.ids, knobs, block, kind, prompt.sinks
        )

    def _ended(self, turn: Turn) -> None:
        """Called by a turn when it ends. Even an empty answer is added: templates want the roles to alternate."""
        if turn.record is not None:
            self.turns.append(turn.record)
            self._read = turn.prompt, turn.messages_sent, turn.knobs, turn.tools_sent
        if turn is self._turn:
            self._turn = None
            self.messages += (Message("assistant", turn.text, turn.thinking, turn.report, turn.calls),)


def _encodable(message: Message) -> Message:
    return replace(message, content=encodable(message.content), thinking=encodable(message.thinking))
