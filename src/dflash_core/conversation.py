"""Chat turns over a decoder: the prompt of each turn, its pieces as they come; an interrupted turn keeps its text."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from dflash_core.clean import encodable
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import ContextError, DFlashError
from dflash_core.events import Event, Piece, PrefillEvent, StepEvent
from dflash_core.guards.turn import TurnGuard
from dflash_core.knobs import RANDOM_SEED, READ_AGAIN, SPEC, Knobs
from dflash_core.messages import Message, Prompt, build_prompt, to_template, visible_end
from dflash_core.prefix import common_prefix
from dflash_core.record import Line, Recorder, Start, TurnRecord
from dflash_core.text.detokenizer import Detokenizer
from dflash_core.text.prompt import render_ids
from dflash_core.text.template import ChatTemplate
from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.turn_stats import PartTotals, TurnReport, turn_stats
from dflash_core.turns import Turns

if TYPE_CHECKING:
    from dflash_core.runner import Runner

OnPrefill = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Models:
    """Target and drafter: the names under which turns are stored, and the drafter's capabilities (None: no drafter)."""

    target: str = ""
    draft: str = ""
    drafter: Capabilities | None = None


@dataclass(frozen=True, slots=True)
class Reread:
    """About how many tokens of the conversation a turn reads again, of those `known` from the turn before, and the
    change that is the reason."""

    tokens: int
    known: int
    why: str


class Turn:
    """One answer in the making: iterate over it once, in any one thread, and it runs the engine.

    `text` and `thinking` grow with the pieces. When the iteration ends - at a stop token, after `stop`, or with an
    error of the engine, which is passed on - what there is of the answer has been appended to the conversation, and
    `report` is set unless the engine did not get as far as a first token. After an error, which is then in `error`,
    the report's `stop` reads "cancelled". `record` is the whole of it, step by step. `knobs` are the requested ones,
    with the drawn seed where a random one was requested.
    """

    def __init__(
        self,
        conversation: Conversation,
        prompt: Prompt,
        knobs: Knobs,
        *,
        on_prefill: OnPrefill | None = None,
    ) -> None:
        self._seed_source: Literal["random", "fixed"] = "fixed"
        if knobs.seed == RANDOM_SEED:  # a small number, which a user can type
            self._seed_source, knobs = "random", replace(knobs, seed=secrets.randbelow(2**31))
        self.prompt = prompt
        self.messages_sent = conversation.messages
        self.knobs = knobs
        self.text = ""
        self.thinking = ""
        self.report: TurnReport | None = None
        self.record: TurnRecord | None = None
        self.error: BaseException | None = None
        self.done = False
        self._conversation = conversation
        self._on_prefill = on_prefill
        self._stop_requested = False
        self._running = False
        self._stop_lock = threading.RLock()  # a signal handler may call `stop` on the thread that has the lock
        self._changed: Knobs | None = None
        self._began = time.perf_counter()
        self._recorder = Recorder(conversation._start(prompt, knobs), conversation.tokenizer.token_text)
        self.reread = conversation._reread(prompt, self.messages_sent, knobs)
        self._parts = PartTotals()
        self._decode_s = 0.0
        self._detokenizer = Detokenizer(conversation.tokenizer)
        self._split = ThinkingSplit(start_inside=prompt.opens_thinking)
        self._guard = TurnGuard(conversation.tokenizer, knobs, opens_thinking=prompt.opens_thinking)
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def stop(self) -> None:
        """End the answer as soon as possible; what there is of it stays. Callable from any thread, at any time.

        From a signal handler too.
        """
        with self._stop_lock:  # a turn that ends meanwhile would let the next one be cancelled instead
            self._stop_requested = True
            if self._running:
                self._conversation.engine.cancel()

    def change(self, knobs: Knobs) -> None:
        """Go on with what a running answer can take of `knobs`, from the next step; callable from any thread."""
        self._changed = knobs

    def answer_now(self) -> None:
        """Close the reasoning before the next step, or as soon as it begins, and go on to the answer. Callable from any
        thread; nothing happens in the answer itself."""
        self._guard.answer_now()

    def close(self) -> None:
        """End the turn where it is, from the thread that iterates over it; does nothing if it has ended.

        Raises DFlashError while another thread runs the turn.
        """
        try:
            self._pieces.close()
        except ValueError:  # "generator already executing"
            raise DFlashError("an answer is still being written; stop it first") from None
        if not self.done:  # it had not begun, so the generator's own ending did not run
            self._end()

    def _run(self) -> Generator[Piece, None, None]:
        engine = self._conversation.engine
        events: Iterator[Event] = iter(())
        try:
            self._began = time.perf_counter()
            self._recorder.begin(self._conversation.watchers)
            with self._stop_lock:
                self._running = not self._stop_requested
            if self._running:
                keep = (self.prompt.stable,) if self.prompt.stable else ()
                sinks: dict[str, Any] = {"sinks": self.prompt.sinks} if self.knobs.attention_window else {}
                events = engine.generate(
                    self.prompt.ids, self.knobs, keep=keep, on_prefill=self._prefilled, guard=self._guard, **sinks
                )
            while (event := self._next(events)) is not None:
                self._cancel_again()
                yield self._piece(event)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise
        finally:
            if isinstance(events, Generator):
                events.close()
            self._end()

    def _next(self, events: Iterator[Event]) -> Event | None:
        if self._changed is not None:
            changed, self._changed = self._changed, None
            self._conversation.engine.change(changed)
        start = time.perf_counter()
        event = next(events, None)
        if isinstance(event, StepEvent):
            self._decode_s += time.perf_counter() - start
        return event

    def _cancel_again(self) -> None:
        """Repeat a stop that was requested just before the engine began to listen."""
        if self._stop_requested:
            self._conversation.engine.cancel()

    def _prefilled(self, done: int, total: int) -> None:
        self._cancel_again()
        if self._on_prefill is not None:
            self._on_prefill(done, total)

    def _piece(self, event: Event) -> Piece:
        at = time.perf_counter() - self._began
        if isinstance(event, PrefillEvent) and self.reread is not None:
            # A saved state may have included them, or no saved state reaches so far into the prompt.
            again = max(self.reread.known - event.reused_tokens, 0)
            event = replace(event, read_again=again, read_why=self.reread.why if again else "")
        thinking, text = self._split.push(self._detokenizer.push(event.tokens))
        self.thinking += thinking
        self.text += text
        if event.stop is not None:
            more_thinking, more_text = self._flush()
            thinking, text = thinking + more_thinking, text + more_text
        piece = Piece(event, text, thinking, at)
        self._parts.add(piece)
        self._recorder.add(piece)
        return piece

    def _flush(self) -> tuple[str, str]:
        """The pending text of the detokeniser and the split, also added to the turn; nothing the second time."""
        thinking, text = self._split.push(self._detokenizer.finish())
        more_thinking, more_text = self._split.finish()
        thinking, text = thinking + more_thinking, text + more_text
        self.thinking += thinking
        self.text += text
        return thinking, text

    def _end(self) -> None:
        thinking, text = self._flush()
        events = self._recorder.events
        if events and isinstance(prefill := events[0], PrefillEvent):
            last = events[-1]
            steps = [event for event in events if isinstance(event, StepEvent)]
            self.report = TurnReport(
                text=self.text,
                thinking=self.thinking,
                tokens=tuple(id for event in events for id in event.tokens),
                mode=last.mode,
                reason=last.reason,
                stop=last.stop or "cancelled",
                knobs=self.knobs,
                stats=turn_stats(prefill, steps, self._decode_s, self._parts),
                guards=tuple(event.guard for event in events if event.guard is not None),
                learned=self._conversation.engine.learned(),
                effort=self.prompt.effort,
                notes=self._conversation.engine.drafter_notes if self.knobs.mode != "plain" else (),
                seed_source=self._seed_source,
            )
        record = self._recorder.end(self.report, text, thinking)
        self.record = record if self.report is not None else None
        with self._stop_lock:
            self._running = False
        self.done = True
        self._conversation._ended(self)


class Conversation:
    """Messages, and the turns that add to them. One turn at a time; `messages` may be read from any thread.

    `turns` has every turn that was answered here. `watchers` are called with each line of a running turn's record,
    on the thread that runs it, and must not raise.
    """

    def __init__(
        self,
        engine: Runner,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        system: str = "",
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.models = Models()
        self.messages: tuple[Message, ...] = ()
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self._turn: Turn | None = None
        self._read: tuple[Prompt, tuple[Message, ...], Knobs] | None = None  # of the newest turn
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
        self.messages = tuple(
            replace(one, content=encodable(one.content), thinking=encodable(one.thinking)) for one in messages
        )

    def ask(self, prompt: str, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        """A turn that answers `prompt`; an earlier turn that was left unfinished ends first, with what it has.

        Raises TemplateError, ContextError, KnobError for a level of reasoning that the template refuses, or DFlashError
        while another turn runs; `prompt` is then not added.
        """
        self._close_turn()
        return self._begin((*self.messages, Message("user", encodable(prompt))), knobs, on_prefill=on_prefill)

    def reading(self, knobs: Knobs) -> Reread | None:
        """What the next message would read again under `knobs`, because they, the system message or an earlier message
        changed since the last turn; None for nothing, or where it is not known. Raises TemplateError and KnobError."""
        if self._read is None:
            return None
        messages = (*self.messages, Message("user", "a"))
        given = self.template.reasoning.variables(knobs)
        turns = [to_template(message) for message in messages]
        now = render_ids(self.tokenizer, self.template, turns, thinking=knobs.thinking, variables=given)
        return self._reread(Prompt(now.ids, now.text, now.opens_thinking, stable=0), messages, knobs)

    def _reread(self, prompt: Prompt, messages: tuple[Message, ...], knobs: Knobs) -> Reread | None:
        if self._read is None:
            return None
        last, earlier, before = self._read
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
        edited = not why and [one.content for one in present[: len(past)]] != [one.content for one in past]
        fallback = "an earlier message" if edited else "how the model's template writes earlier turns"
        return Reread(last.stable - common, last.stable, f"{' and '.join(why) or fallback} changed")

    def preview(self, text: str, knobs: Knobs) -> str:
        """The prompt that asking `text` would give the model. Raises TemplateError and KnobError."""
        messages = [*map(to_template, (*self.messages, Message("user", text)))]
        given = self.template.reasoning.variables(knobs)
        return render_ids(self.tokenizer, self.template, messages, thinking=knobs.thinking, variables=given).text

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        """A turn that answers the last user message again, in place of its answer.

        Raises TemplateError, ContextError, or DFlashError where there is nothing to answer or another turn runs; the
        messages are then as they were.
        """
        self._close_turn()
        last = max((n for n, message in enumerate(self.messages) if message.role == "user"), default=None)
        if last is None:
            raise DFlashError("nothing to retry: no question has been asked yet")
        return self._begin(self.messages[: last + 1], knobs, on_prefill=on_prefill)

    def _begin(self, messages: tuple[Message, ...], knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        capacity = self.engine.context_length
        # A message of megabytes is refused before a template renders the text. Templates may trim a message.
        text = messages[-1].content
        if len(text) >= capacity and (needed := self.tokenizer.min_tokens(text.strip())) >= capacity:
            raise ContextError(
                f"the message has {needed:,} tokens at the very least and the context holds {capacity:,}, one of them "
                "for the answer; shorten the message",
                needed=needed,
                capacity=capacity,
            )
        given = self.template.reasoning.variables(knobs)
        prompt = build_prompt(self.tokenizer, self.template, messages, knobs.thinking, given)
        if "reasoning_effort" in given:
            prompt = replace(prompt, effort=knobs.reasoning_effort)
        if knobs.attention_window:
            sinks = visible_end(self.tokenizer, self.template, messages, prompt, knobs.thinking, given)
            prompt = replace(prompt, sinks=sinks)
        if len(prompt.ids) >= capacity:
            raise ContextError(
                f"the conversation has {len(prompt.ids):,} tokens with this message and the context holds "
                f"{capacity:,}, one of them for the answer; shorten the message or start a new conversation",
                needed=len(prompt.ids),
                capacity=capacity,
            )
        self.messages = messages
        self._turn = Turn(self, prompt, knobs, on_prefill=on_prefill)
        return self._turn

    def _close_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()

    def _start(self, prompt: Prompt, knobs: Knobs) -> Start:
        """What the record of a turn that answers the newest message begins with."""
        return Start(
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            target=self.models.target,
            draft=self.models.draft,
            system=self.system,
            prompt=self.messages[-1].content,
            prompt_ids=prompt.ids,
            knobs=knobs,
            draft_block=self.models.drafter.block if self.models.drafter else 0,
            draft_kind=self.models.drafter.kind if self.models.drafter else "",
            sinks=prompt.sinks,
        )

    def _ended(self, turn: Turn) -> None:
        """Called by a turn when it ends. Even an empty answer is added: templates want the roles to alternate."""
        if turn.record is not None:
            self.turns.append(turn.record)
            self._read = turn.prompt, turn.messages_sent, turn.knobs
        if turn is self._turn:
            self._turn = None
            self.messages += (Message("assistant", turn.text, turn.thinking, turn.report),)
