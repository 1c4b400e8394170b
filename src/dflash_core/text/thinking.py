"""Splits what a model writes into its reasoning and its answer, while the text arrives in pieces."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def opens_thinking(prompt: str) -> bool:
    """Whether the model goes on inside a think block, because the prompt ends with an opening tag."""
    return prompt.rstrip().endswith(OPEN)


class ThinkingSplit:
    """Only a think block at the start of the output counts; a later tag is ordinary text of the answer.

    Line breaks around the reasoning and those between it and the answer belong to neither.
    """

    def __init__(self, start_inside: bool) -> None:
        self._inside = start_inside
        self._started = False  # whether the present part has anything but leading white space
        self._after_block = start_inside
        self._held = ""

    @property
    def inside(self) -> bool:
        """Whether the think block is open."""
        return self._inside

    @property
    def begun(self) -> bool:
        """Whether it is certain that the answer has begun, or that the block is open."""
        return self._inside or self._started

    def push(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer that have become certain with `text`; what may be part of a tag is held back."""
        self._held += text
        thinking = answer = ""
        while self._inside or not self._started:
            if self._inside:
                part, closed = self._take_thinking()
                thinking += part
                if not closed:
                    return thinking, answer
            elif not self._open_or_start():
                return thinking, answer
        answer, self._held = self._held, ""
        return thinking, answer

    def finish(self) -> tuple[str, str]:
        """What was held back; no more text follows."""
        rest, self._held = self._held, ""
        if self._inside:
            return rest if self._started else rest.lstrip("\n"), ""
        return "", rest if self._started or not self._after_block else rest.lstrip("\n")

    def _take_thinking(self) -> tuple[str, bool]:
        """Take reasoning from the held text, and tell whether its block ended."""
        if not self._started:
            self._held = self._held.lstrip("\n")
            self._started = bool(self._held)
        head, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._inside = self._started = False
            self._after_block = True
            self._held = rest
            return head.rstrip("\n"), True
        # Line breaks are held back too: if the tag comes next, they are not part of the reasoning.
        certain = len(head[: len(head) - _tag_start(head, CLOSE)].rstrip("\n"))
        self._held = head[certain:]
        return head[:certain], False

    def _open_or_start(self) -> bool:
        """Before the answer: enter a block or begin the answer; False while either is still possible."""
        body = self._held.lstrip()
        if body.startswith(OPEN):
            self._inside = True
            self._held = body.removeprefix(OPEN)
        elif OPEN.startswith(body):  # also where there is no body yet
            return False
        else:
            self._started = True
            self._held = self._held.lstrip("\n") if self._after_block else self._held
        return True


def _tag_start(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
