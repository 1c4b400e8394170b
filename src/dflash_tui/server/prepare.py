"""Renders, counts and checks requests, on a thread of its own: a long prompt must not delay other clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from dflash_core.constraints.base import Constraint
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.engine import Engine
from dflash_core.errors import CompilerBusyError, GrammarError, KnobError, TemplateError
from dflash_core.knobs import Knobs
from dflash_core.log_probs import LogProbs
from dflash_core.messages import Message
from dflash_core.prompting import begun, build_prompt, going_on, visible_end
from dflash_core.record import Start
from dflash_core.text.prompt import Prompt, Prompting
from dflash_core.text.tool_calls.forms import tool_grammar
from dflash_tui.server.asked import Asked, check_followed
from dflash_tui.server.job import Prepared
from dflash_tui.server.parts import normalised
from dflash_tui.server.request_error import busy, invalid, too_deep, too_long
from dflash_tui.server.sampling import Defaults, knobs_of
from dflash_tui.server.written import WrittenAnswers

BYTES_PER_POSITION = 64
"""A text with more bytes than this for each position of the context is refused without being tokenised."""
BYTES_PER_TOKEN = 4
Result = TypeVar("Result")


class Preparer:
    """`names`: target and drafter, as records name them."""

    def __init__(self, engine: Engine, names: tuple[str, str], compiled: Callable[[float], None]) -> None:
        """`compiled` is called with the seconds that each grammar took."""
        self._engine, self._names, self._compiled = engine, names, compiled
        self.tokenizer, self._template = engine.target.tokenizer, engine.target.template
        self.support = self._template.tools
        form = self.support.form
        self._tagged = form is not None and form.begins in self.tokenizer.special  # a call is told from any text
        self._written = WrittenAnswers(self.tokenizer)
        self._grammars = Grammars(self.tokenizer, engine.vocab_size)
        self._thread = ThreadPoolExecutor(1, "dflash-render")

    async def on_thread(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the thread of rendering. Raises RequestError for schemas and arguments that are too deep."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RecursionError:
            raise too_deep() from None

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def prepare(self, asked: Asked, defaults: Defaults) -> Prepared:
        """A request that is ready to run. Raises RequestError."""
        asked, prompt, messages = self._prompt(asked, defaults)
        limits, capacity = self._engine.limits, self._engine.context_length
        if len(prompt.ids) >= capacity:
            raise too_long(len(prompt.ids), capacity, asked.place)
        knobs = knobs_of(asked, defaults, limits, capacity - len(prompt.ids))
        calls = asked.choice == "required" or (asked.choice == "auto" and (asked.grammar is None or self._tagged))
        form = self.support.form if asked.tools and calls else None
        return Prepared(
            asked=asked,
            prompt=prompt,
            knobs=knobs,
            form=form,
            start=partial(self._start, messages),
            answered=partial(self._answered, prompt, messages),
            constraint=self._constraint(asked, prompt, thinking=knobs.thinking),
            log_probs=LogProbs(asked.log_probs) if asked.log_probs is not None else None,
            begun=messages[-1] if prompt.begun else None,
        )

    def prompt(self, asked: Asked, defaults: Defaults) -> Prompt:
        """The prompt of a request. Raises RequestError."""
        return self._prompt(asked, defaults)[1]

    def _prompt(self, asked: Asked, defaults: Defaults) -> tuple[Asked, Prompt, tuple[Message, ...]]:
        """The prompt of a request and the messages in it; whether to reason is as the answer that goes on did."""
        if asked.ids is not None:
            return asked, Prompt(asked.ids, "", opens_thinking=False, stable=len(asked.ids)), ()
        messages = normalised(asked.messages, self.support, asked.place)
        if messages[-1].role != "assistant":
            return asked, self._of_messages(asked, defaults, messages), messages
        *history, last = messages
        prompt = self._of_messages(asked, defaults, history, last)
        if ids := self._written.begun(prompt, last):
            return asked, begun(prompt, self.tokenizer, ids), messages
        asked = replace(asked, thinking="on" if last.thinking else "off")
        prompt = self._of_messages(asked, defaults, history, last)
        return asked, going_on(prompt, self.tokenizer, last), messages

    def _of_messages(self, asked: Asked, defaults: Defaults, messages: Sequence[Message], *more: Message) -> Prompt:
        """The prompt for messages. `more`: what else comes into it."""
        capacity = self._engine.context_length
        knobs = knobs_of(asked, defaults, self._engine.limits, capacity)
        size = sum(len(one.content) + len(one.thinking) for one in (*messages, *more))
        if size > BYTES_PER_POSITION * capacity:
            raise too_long(size // BYTES_PER_TOKEN, capacity, asked.place)
        try:
            prompting = Prompting.of(self.tokenizer, self._template, knobs, asked.tools)
            prompt = build_prompt(prompting, messages)
            if knobs.attention_window:
                prompt = replace(prompt, sinks=visible_end(prompting, messages, prompt))
        except (TemplateError, KnobError) as error:
            raise invalid(f"the model's chat template refuses these messages: {error}", asked.place) from None
        if not prompt.ids:
            raise invalid("the prompt is empty", asked.place)
        return self._written.put_back(prompt, messages)

    def _answered(
        self, prompt: Prompt, messages: Sequence[Message], answer: Message, ids: Sequence[int], complete: bool
    ) -> None:
        """Remember an answer with what it goes on from."""
        before, ids = prompt.ids[: len(prompt.ids) - prompt.begun], (*prompt.answered, *ids)
        if messages and messages[-1].role == "assistant":
            *messages, first = messages
            answer = replace(answer, content=first.content + answer.content, thinking=first.thinking + answer.thinking)
        if complete:
            self._written.add(before, len(messages), answer, ids)
        else:
            self._written.add_cut(before, ids)

    def _start(self, messages: tuple[Message, ...], prompt: Prompt, knobs: Knobs) -> Start:
        """The beginning of a record."""
        drafter = self._engine.session.capabilities
        block, kind = (drafter.block, drafter.kind) if drafter else (0, "")
        system = messages[0].content if messages and messages[0].role == "system" else ""
        asked = next((one.content for one in reversed(messages) if one.role != "assistant"), "")
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        return Start(created, *self._names, system, asked, prompt.ids, knobs, block, kind, prompt.sinks)

    def _constraint(self, asked: Asked, prompt: Prompt, *, thinking: bool) -> Constraint | None:
        """What the answer must conform to: a format that the request names, or calls of its tools; not the reasoning.
        Raises RequestError for what cannot be followed."""
        required = asked.choice == "required"
        place = "tool_choice" if required else asked.grammar_place if asked.grammar is not None else "tools"
        began = time.perf_counter()
        try:
            grammar = self._grammar(asked, required=required)
            if grammar is None:
                return None
            found = self._grammars.of_answer(grammar, thinking=thinking, opens_thinking=prompt.opens_thinking)
            found.add(prompt.answered)
            return found
        except CompilerBusyError as error:
            raise busy(str(error), "compiler_busy") from None
        except GrammarError as error:
            raise invalid(str(error), place) from None
        finally:
            self._compiled(time.perf_counter() - began)

    def _grammar(self, asked: Asked, *, required: bool) -> Grammar | None:
        """The grammar of the answer: calls that are required, whose text no format is for; a format, or calls in its
        place; text with calls that follow their schemas. Where a call could begin anywhere in a text, a format leaves
        no calls, and those that are only strict are left as they are."""
        form, special, given = self.support.form, self.tokenizer.special, asked.grammar
        if not required and not (
            self._tagged and asked.tools and asked.choice == "auto" and (asked.strict or given is not None)
        ):
            return given
        if required or given is not None:
            check_followed(asked.tools, asked.tool)
        source = tool_grammar(
            form, asked.tools, special, name=asked.tool, several=asked.parallel,
            beside="" if required else "text" if given is None else "format",
        )  # fmt: skip
        if given is not None and not required:
            return replace(given, calls=source)
        # A form that reads the names of channels itself has them in its grammar too.
        channels = self.tokenizer.channels
        whole = form is not None and channels is not None and form.shown.issuperset(channels.tokens)
        return Grammar("lark", source, whole=whole)
