"""Formulas in Markdown, shown as their source: a terminal draws no TeX, and Markdown would take backslashes,
underscores and signs at the beginning of a line out of it."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

# Between single dollars no space stands at the ends and no digit follows: "$5 and $10" are prices.
_FORMULA = re.compile(
    r"\$\$(?:\\.|[^$\\])+\$\$|\$(?!\s)(?:\\.|[^$`\\])+(?<!\s)\$(?!\d)|\\\((?:\\[^()]|[^\\])+\\\)|\\\[(?:\\[^\[\]]|[^\\])+\\\]",
    re.DOTALL,
)
_CLOSING = {"$$": "$$", "\\[": "\\]"}  # what a formula on lines of its own begins and ends with


def add_maths(parser: MarkdownIt) -> None:
    """Let a parser leave formulas as they are."""
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.block.ruler.before("fence", "formula", _lines, {"alt": ["paragraph", "reference", "blockquote", "list"]})


def _formula(state: StateInline, silent: bool) -> bool:
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    state.pos = found.end()
    for number, line in enumerate(() if silent else found[0].split("\n")):
        if number:
            state.push("hardbreak", "br", 0)
        state.push("text", "", 0).content = line
    return True


def _lines(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """A formula whose first line is only its opening: a paragraph up to the line that closes it, or to an empty one."""
    closing = _CLOSING.get(_line(state, first))
    if closing is None or state.is_code_block(first):
        return False
    last = first + 1
    while last < end and not state.isEmpty(last) and state.sCount[last] >= state.blkIndent:
        last += 1
        if _line(state, last - 1).endswith(closing):
            break
    if not silent:
        state.line = last
        state.push("paragraph_open", "p", 1).map = [first, last]
        inline = state.push("inline", "", 0)
        inline.content = state.getLines(first, last, state.blkIndent, False).strip()
        inline.map, inline.children = [first, last], []
        state.push("paragraph_close", "p", -1)
    return True


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()
