"""An engine whose answers are given: all else of it, prompts and their counts included, is the demo pair's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dflash_core.engine import Engine
from dflash_core.events import Event, PrefillEvent, StageTimes, StepEvent, StepTree, Stop
from dflash_core.knobs import Knobs
from support import demo_pair

Script = Callable[[str], str]
"""From the text of a prompt to that of its answer."""


class ScriptedEngine(Engine):
    """Answers by `script`, `width` tokens in a step."""

    def __init__(self, script: Script, width: int = 3) -> None:
        super().__init__(demo_pair.target(), demo_pair.draft())
        self._script, self._width = script, width

    def generate(self, ids: Sequence[int], knobs: Knobs, **_: Any) -> Iterator[Event]:
        self._cancelled.clear()
        tokenizer = self.target.tokenizer
        # Markers as the model writes them: special tokens by their ids.
        names = [b"".join(tokenizer.token_bytes(id) for id in ids).decode("utf-8", "replace")]
        answer = [*tokenizer.encode(self._script(names[0])), min(self.stop_ids & {tokenizer.special["<|im_end|>"]})]
        return self._told_of(ids, answer[: knobs.max_tokens], len(answer) > knobs.max_tokens)

    def _told_of(self, ids: Sequence[int], answer: Sequence[int], cut: bool) -> Iterator[Event]:
        last: Stop = "max tokens" if cut else "stop token"
        rest = [answer[at : at + self._width] for at in range(1, len(answer), self._width)]
        yield PrefillEvent(tuple(answer[:1]), len(ids), 0, 1.0, "tree", "script", None if rest else last)
        for at, tokens in enumerate(rest):
            if self._cancelled.is_set():
                return
            before = answer[at * self._width]
            yield _step(
                before, tokens, len(ids) + 1 + at * self._width + len(tokens), last if tokens is rest[-1] else None
            )


def _step(root: int, tokens: Sequence[int], length: int, stop: Stop | None) -> StepEvent:
    """A chain of drafts, all of them accepted, below the token before."""
    ones, nodes = (1.0,) * len(tokens), tuple(range(len(tokens)))
    path = (root, *tokens[:-1])
    tree = StepTree(path, tuple(range(-1, len(tokens) - 1)), nodes, ones, ones, nodes)
    depth = len(tokens) - 1
    return StepEvent(tuple(tokens), tree, depth, depth, length, StageTimes(), "tree", "script", stop, bonus=tokens[-1])


class Steps(ScriptedEngine):
    """Counts the steps that it makes; each waits for leave to be made."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "word " * 200, width=1)
        self.steps = 0
        self.permits = threading.Semaphore(0)

    def _told_of(self, ids: Sequence[int], answer: Sequence[int], cut: bool) -> Iterator[Event]:
        for event in super()._told_of(ids, answer, cut):
            self.permits.acquire()
            self.steps += 1
            yield event
