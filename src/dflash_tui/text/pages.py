"""Export of conversations for reading: Markdown, and an SVG picture. Both show the present branch."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dflash_core.clean import clean, one_line
from dflash_tui.application.amounts import figures
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.exchange import to_json
from dflash_tui.application.conversations.store import StoredConversation
from dflash_tui.application.conversations.tool_messages import tool_lines

KINDS = ("md", "json", "svg")
DOT = " · "
WIDTH = 100  # columns of a picture
_WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def render(conversations: Sequence[StoredConversation], kind: str) -> bytes:
    """A file's contents: `kind` is json, or for a single conversation md or svg."""
    if kind == "json":
        return to_json(conversations)
    [one] = conversations
    text = to_markdown(one) if kind == "md" else to_svg(one)
    return text.encode(errors="replace")


def to_markdown(one: StoredConversation) -> str:
    """The messages under headings, thinking folded, the figures of each answer below it."""
    parts = [f"# {one.card.title}", f"*{_about(one)}*"]
    if one.card.system:
        parts += ["## System", one.card.system]
    for node in one.branches.path:
        parts.append("## You" if node.asks else "## Results" if node.results else "## Answer")
        if node.thinking.strip():
            parts.append(f"<details><summary>Thinking</summary>\n\n{node.thinking.strip()}\n\n</details>")
        note = _note(node)
        parts += filter(None, (node.content.strip("\n"), *map(_fenced, tool_lines(node)), note and f"*{note}*"))
    return "\n\n".join(parts) + "\n"


def to_svg(one: StoredConversation) -> str:
    """A picture of the whole branch, as a terminal of 100 columns would show it. Opening it fetches nothing."""
    from rich.markdown import Markdown  # imports the base of all lexers; the chat needs it only here

    shown: list[RenderableType] = []
    for node in one.branches.path:
        if node.asks:
            shown.append(Text(f"❯ {clean(node.content)}", "bold"))
        elif node.role == "assistant":
            if node.thinking.strip():
                shown.append(Padding(Text(clean(node.thinking).strip(), "dim italic"), (0, 0, 0, 2)))
            shown.append(Markdown(clean(node.content)))
        shown += [Padding(Text(clean(text), "dim"), (0, 0, 0, 2)) for text in tool_lines(node)]
        if node.role == "assistant":
            shown.append(Text(_note(node), "dim"))
        shown.append(Text())
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        legacy_windows=False,
    )  # fmt: skip
    console.print(Group(*shown))
    # Clean the result again: a Markdown entity can stand for any character, and XML does not allow all of them.
    return clean(_WEB_FONTS.sub("", console.export_svg(title=one_line(one.card.title))))


def _fenced(text: str) -> str:
    marks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{marks}\n{text}\n{marks}"


def _about(one: StoredConversation) -> str:
    return DOT.join(filter(None, (one.card.model, f"{datetime.fromtimestamp(one.card.created):%d %B %Y}")))


def _note(node: Node) -> str:
    """The outcome and figures of an answer."""
    return DOT.join(filter(None, (node.outcome, figures(node.report) if node.report is not None else "")))
