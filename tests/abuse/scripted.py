"""The scripted session with answers that are hard to draw, and faults on request."""

from __future__ import annotations

from dflash_core.errors import ContextError, DFlashError
from tui.fake import ANSWER, FakeSession

ANSWERS = (
    ANSWER,
    "plain words, one line",
    "| a | b |\n|---|---|\n| 1 | [x](http://example.org/) |\n\n> quoted\n> > twice\n\n1. one\n2. two\n   - three\n",
    "```python\ndef f(x):\n\treturn '\x1b[31m' + x\n```\n\n~~~\nno end of this fence",
    "木" * 90 + "\n\n" + "é" * 40 + "👩‍👩‍👧" * 12 + "\n\n# [bold]Title[/bold] $x^2$ [@click=app.quit]no[/]\n",
    "word " * 90,
    "- item\n" * 6 + "\n<div>html</div>\n\n***\n\nend\r\nof it\u202e",
)
PACE_S = 0.001


class Scripted(FakeSession):
    """`arm` has the next turn go wrong."""

    def arm(self, fault: str) -> None:
        """refuse: the prompt does not fit; early: an error before the first token; fail: one after some steps; break:
        a fault of the program."""
        self.refuse = ContextError("the conversation has 9 tokens, the context 8") if fault == "refuse" else None
        self.fail_after = {"early": -1, "fail": 3, "break": 3}.get(fault)
        self.error = DFlashError("the device is gone") if fault in ("fail", "early") else RuntimeError("broken")


def scripted() -> Scripted:
    return Scripted(pace=PACE_S)
