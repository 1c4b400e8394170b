"""A scripted session: the test double of a loaded model pair. Nothing in src can reach it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from dflash_core.answer import Reread
from dflash_core.arch.recommended import NOTHING, Recommended
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import DFlashError
from dflash_core.events import Event, Piece, PrefillEvent, StageTimes, StepDrafts, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.messages import Call
from dflash_core.record import Line, Recorder, Start, TurnRecord, Turns
from dflash_core.text.reasoning import Effort, Reasoning
from dflash_core.text.template_values import Tools
from dflash_core.turn_stats import FoundRow, TurnReport, TurnTotals
from dflash_tui.application.requests import Requests
from dflash_tui.application.session import OnPrefill, Progress

ANSWER = """Speculative decoding keeps the target distribution intact: a cheap drafter proposes tokens, \
one target pass verifies them, and the longest matching path is kept.

```python
def follow(tree, posterior):
    node, path = tree.root, []
    while (tok := posterior[node]) in node.children:
        node = node.children[tok]; path.append(tok)
    return path, tok
```

- a bigger tree budget raises acceptance
- but each verify pass gets slower
"""
LENGTHS = (4, 6, 2, 8, 5, 3, 7, 1, 6, 5)
BLOCK = 16
CREATED = "2026-01-01T12:00:00.000+00:00"
REASON = "auto takes the tree for now"


@dataclass
class Message:
    role: str
    content: str
    thinking: str = ""
    report: TurnReport | None = None


def split(text: str) -> list[str]:
    """Text as tokens of about four characters."""
    return [text[at : at + 4] for at in range(0, len(text), 4)]


class Vocabulary:
    """Ids for token texts, made up as they come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        if text not in self.ids:
            self.ids[text] = len(self.texts)
            self.texts.append(text)
        return self.ids[text]


def step_tree(words: Vocabulary, path: list[str], root: str, mode: str) -> StepTree:
    """A plausible tree: the accepted path with one or two rejected siblings per depth."""
    if mode == "plain":
        return StepTree((words.id(root),), (-1,), (0,), (1.0,), (1.0,), (0,))
    tokens, parents, depths, probs, paths, accepted = [words.id(root)], [-1], [0], [1.0], [1.0], [0]
    parent = 0
    for depth, text in enumerate([*path[:-1], " lost", " tail", " end"], 1):
        own = 0.93 - 0.04 * depth
        for place, word in enumerate([text, " is", " the"][: 1 + depth % 3 if mode == "tree" else 1]):
            tokens.append(words.id(word))
            parents.append(parent)
            depths.append(depth)
            probs.append(own if place == 0 else 0.22 / (place + depth))
            paths.append(paths[parent] * probs[-1])
        parent = len(tokens) - (1 + depth % 3 if mode == "tree" else 1)
        if depth < len(path):
            accepted.append(parent)
    return StepTree(tuple(tokens), tuple(parents), tuple(depths), tuple(probs), tuple(paths), tuple(accepted))


def step_drafts(tree: StepTree, width: int = 4) -> StepDrafts:
    """Candidates that such a tree was built from: its nodes by depth, then words that are not in it."""
    depths = range(1, max(tree.depths) + 1)
    rows = [[node for node, depth in enumerate(tree.depths) if depth == wanted] for wanted in depths]
    tokens = [tuple(tree.tokens[node] for node in row) for row in rows]
    probs = [tuple(math.log(tree.probs[node]) for node in row) for row in rows]
    spare = range(9_000, 9_000 + width)
    return StepDrafts(
        tuple((*row, *spare)[:width] for row in tokens),
        tuple((*row, *(row[-1] - 1.0 - n for n in range(width)))[:width] for row in probs),
    )


class Turn:
    """Yields the script step by step. `gate`, where given, lets one piece pass per release."""

    def __init__(self, session: FakeSession, message: Message, knobs: Knobs) -> None:
        self._session = session
        self._message = message
        self._knobs = knobs
        self._live = knobs
        self._totals = TurnTotals()
        prompt = next((one.content for one in reversed(session.conversation.messages) if one.role == "user"), "")
        start = Start(CREATED, session.title, "", "", prompt, tuple(range(120)), knobs, draft_block=BLOCK)
        self._recorder = Recorder(start, session.token_text)
        self._stopped = threading.Event()
        self._answers_now = False
        self.report: TurnReport | None = None
        self.record: TurnRecord | None = None
        self.text = ""
        self.thinking = ""
        self.calls: tuple[Call, ...] = ()
        self.calling = ""

    def stop(self) -> None:
        self._stopped.set()
        if self._session.gate is not None:
            self._session.gate.release()

    def answer_now(self) -> None:
        self._answers_now = True

    def change(self, knobs: Knobs) -> None:
        self._session.changes.append(knobs)
        self._live = self._live.in_mid_turn(knobs)

    def __iter__(self) -> Iterator[Piece]:
        script, knobs = self._session, self._knobs
        self._recorder.begin(script.conversation.watchers)
        mode = "tree" if knobs.mode == "auto" else knobs.mode
        thought = script.thinking if knobs.thinking else ""
        tokens = [*split(thought), *split(script.answer)]
        words = script.words
        began = time.monotonic()
        script.wait()
        if script.fail_after is not None and script.fail_after < 0:
            raise script.error
        prefill = PrefillEvent((words.id(tokens[0]),), 120, 60, 84.0, mode, REASON)
        yield self._piece(prefill, tokens[:1], 0, len(split(thought)))
        steps: list[StepEvent] = []
        at = 1
        while at < len(tokens) and not self._stopped.is_set():
            script.wait()
            if self._stopped.is_set():
                break
            if script.fail_after is not None and len(steps) >= script.fail_after:
                raise script.error
            if self._answers_now:
                tokens, thought = [*tokens[:at], *split(script.answer)], "".join(tokens[:at])
                self._answers_now = False
            count = 1 if mode == "plain" else LENGTHS[len(steps) % len(LENGTHS)]
            part = tokens[at : at + count]
            tree = step_tree(words, part, tokens[at - 1], mode)
            event = StepEvent(
                tuple(words.id(text) for text in part),
                tree,
                0 if mode == "plain" else min(max(tree.depths), BLOCK - 1),
                len(part) - 1,
                120 + at + len(part),
                StageTimes(2.1, 0.4, 11.2, 0.2, 0.9, 0.3),
                mode,
                REASON,
                drafts=step_drafts(tree),
                bonus=words.id(part[-1]),
                knobs=self._live,
            )
            steps.append(event)
            yield self._piece(event, part, at, len(split(thought)))
            at += len(part)
        stop = "cancelled" if self._stopped.is_set() else "stop token"
        ids = tuple(token for event in (prefill, *steps) for token in event.tokens)
        took = time.monotonic() - began if script.clock is None else script.clock * max(len(steps), 1)
        stats = self._totals.stats(prefill, took)
        if script.calls and not self._stopped.is_set():
            self.calls = script.calls.pop(0)
        self.report = TurnReport(
            self.text, self.thinking, ids, mode, REASON, stop, knobs, stats, effort=script.effort(knobs)
        )
        self._message.report = self.report
        self.record = self._recorder.end(self.report)
        script.conversation.turns.append(self.record)

    def _piece(self, event: Event, part: list[str], at: int, thought: int) -> Piece:
        thinking = "".join(part[: max(thought - at, 0)])
        text = "".join(part[max(thought - at, 0) :])
        self.text += text
        self.thinking += thinking
        self._message.content, self._message.thinking = self.text, self.thinking  # also if a turn breaks off
        # On the script's own clock, so that figures made from it do not depend on the machine's.
        place = len(self._recorder.events)
        clock = self._session.clock
        at = 0.084 + place * (self._session.pace if clock is None else clock)
        piece = Piece(event, text, thinking, at)
        self._totals.add(piece)
        self._recorder.add(piece)
        return piece


class FakeConversation:
    def __init__(self, session: FakeSession) -> None:
        self._session = session
        self.messages: list[Message] = []
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self.tools: Tools = ()
        self.tools_note = ""

    def ask(self, prompt: str | Sequence[object], knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        self._session.asked.append((prompt if isinstance(prompt, str) else "<results>", knobs))
        if self._session.refuse is not None:
            raise self._session.refuse
        self.messages.append(Message("user", prompt if isinstance(prompt, str) else ""))
        return self._answer(knobs)

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> Turn:
        self._session.asked.append(("<retry>", knobs))
        del self.messages[-1]
        return self._answer(knobs)

    def reading(self, knobs: Knobs) -> Reread | None:
        return self._session.reread

    def preview(self, text: str, knobs: Knobs) -> str:
        if self._session.refuse is not None:
            raise self._session.refuse
        level = self._session.reasoning.adds(knobs.reasoning_effort) if self._session.reasoning else ""
        said = "".join(f"<{one.role}>{one.content}\n" for one in self.messages)
        return f"<system>{level}\n{said}<user>{text}\n"

    def set_messages(self, messages: Sequence[object]) -> None:
        self.messages = [Message(one.role, one.content, one.thinking, one.report) for one in messages]  # type: ignore[attr-defined]

    def _answer(self, knobs: Knobs) -> Turn:
        self.messages.append(Message("assistant", ""))
        return Turn(self._session, self.messages[-1], knobs)


@dataclass
class FakeSession:
    """What the tests script: the answer, its pace, its faults."""

    answer: str = ANSWER
    thinking: str = "The user wants two lines. First the idea, then the walk.\nKeep the code short.\n"
    pace: float = 0.0
    gate: threading.Semaphore | None = None
    clock: float | None = 0.0186
    refuse: DFlashError | None = None
    reasoning: Reasoning | None = None
    thinking_notes: Mapping[bool, str] = field(default_factory=dict)
    fail_after: int | None = None  # steps; -1 is before the first token
    error: Exception = field(default_factory=lambda: DFlashError("the device was lost in mid-step"))
    title: str = "Qwen3.5-demo Q8_0 + DFlash-b16"
    context_length: int = 32_768
    draft_block: int = BLOCK
    notes: tuple[str, ...] = ()
    knobs: Knobs = field(default_factory=Knobs)
    recommended: Recommended = NOTHING
    found: tuple[FoundRow, ...] = ()
    reread: Reread | None = None
    calls: list[tuple[Call, ...]] = field(default_factory=list)  # of the next turns, one after the other

    def __post_init__(self) -> None:
        self.words = Vocabulary()
        for text in (*split(self.thinking), *split(self.answer)):  # the same ids in every session, whatever ran before
            self.words.id(text)
        self.asked: list[tuple[str, Knobs]] = []
        self.changes: list[Knobs] = []
        self.conversation = FakeConversation(self)

    def wait(self) -> None:
        if self.gate is not None:
            self.gate.acquire()
        elif self.pace:
            time.sleep(self.pace)

    def memory(self) -> MemoryBreakdown:
        mib = 1 << 20
        owners = (
            Component("target weights", 9_216 * mib, "Q4_K 61 %, Q6_K 30 %, F32 9 %"),
            Component("draft weights", 1_229 * mib, "BF16"),
            Component("KV cache", 2_458 * mib, "32,768 positions, f16"),
            Component("states", 151 * mib, "48 gated delta net layers"),
            Component("scratch", 922 * mib),
        )
        return MemoryBreakdown("NVIDIA H200", owners, 24_576 * mib, 10_240 * mib, 14_100 * mib)

    def count(self, text: str) -> int:
        return len(split(text))

    @property
    def missing(self) -> Mapping[str, str]:
        return {}

    def watch(self, requests: Requests) -> bool:
        return False

    def token_text(self, token: int) -> str:
        return self.words.texts[token] if token < len(self.words.texts) else f" w{token}"

    @property
    def capabilities(self) -> Capabilities | None:
        return Capabilities("dflash", self.draft_block) if self.draft_block else None

    @property
    def limits(self) -> Limits:
        return Limits(
            self.capabilities,
            self.context_length,
            reasoning=self.reasoning,
            recommended=self.recommended,
            thinking_notes=self.thinking_notes,
        )

    def effort(self, knobs: Knobs) -> Effort:
        """The level that a template would have been given."""
        given = self.reasoning.variables(knobs) if self.reasoning is not None else {}
        return knobs.reasoning_effort if "reasoning_effort" in given else ""

    @property
    def turns(self) -> Turns:
        return self.conversation.turns

    def cancel(self) -> None:
        pass

    def decoder(self) -> NoReturn:
        raise DFlashError("a script has no decoder for other programs")

    def experiment(self, design: object) -> NoReturn:
        raise DFlashError("a script has nothing to measure with")

    def what_if(self, *args: object) -> NoReturn:
        raise DFlashError("a script has nothing to measure with")

    def scratch_conversation(self) -> FakeConversation:
        return FakeConversation(self)

    def learned(self) -> Sequence[FoundRow]:
        return self.found

    def forget_learned(self) -> None:
        self.found = ()

    def leave(self) -> None:
        self.left = True

    def clear(self) -> None:
        self.conversation = FakeConversation(self)


def loader(session: FakeSession):
    """A loader that returns the session at once."""

    def load(progress: Progress) -> FakeSession:
        progress("weights", 0.5)
        return session

    return load
