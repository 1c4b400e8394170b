"""What helps, in each front end's words; the decoder's own messages name no key and no option."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dflash_core
from dflash_core.errors import MESSAGE, Code, ContextError, DFlashError, OutOfMemoryError, Shortage
from dflash_tui.application import advice

# Not the demo pair: its recipe is run by hand, and its training texts are about the app.
EXEMPT = {"demo"}


@pytest.mark.parametrize(
    ("error", "command_line", "app"),
    [
        (ContextError("gone", code=Code.TURN_NOT_IN_SESSION), "gone", "gone (Ctrl+R)"),
        (
            DFlashError("none", code=Code.NO_DRAFTER),
            "none (--draft FILE, mtp or ngram adds one)",
            "none (start it with --draft FILE, mtp or ngram)",
        ),
        (
            OutOfMemoryError("full", code=Code.DOES_NOT_FIT, shortage=Shortage(9, 8, 4096, on_card=True)),
            "full (--context 4096, --device cpu)",
            "full (start it with --context 4096 or --device cpu)",
        ),
        (
            OutOfMemoryError("full", code=Code.DOES_NOT_FIT, shortage=Shortage(9, 8, 0, pack_drafter=True)),
            "full (--draft-type q8_0)",
            "full (start it with --draft-type q8_0)",
        ),
        (DFlashError("plain"), "plain", "plain"),
    ],
)
def test_what_helps(error: DFlashError, command_line: str, app: str) -> None:
    assert advice.on_command_line(error) == command_line
    assert advice.in_app(error) == app


def test_every_code_is_known_to_a_front_end() -> None:
    """Every code is used by a front end; a load that does not fit is explained by its figures."""
    assert {*advice.ON_COMMAND_LINE, *advice.IN_APP, Code.DOES_NOT_FIT} == set(Code)


def test_a_long_refusal_keeps_its_advice() -> None:
    said = advice.on_command_line(DFlashError("x" * 2000, code=Code.NO_DEVICE))
    assert said.endswith("(--device cpu)")
    assert len(said) <= MESSAGE


def test_the_decoder_names_no_key_and_no_option() -> None:
    found = []
    keys = re.compile(r"Ctrl\+|Alt\+|--(device|draft|context|synthetic)\b")
    for path in sorted(Path(dflash_core.__file__).parent.rglob("*.py")):
        if EXEMPT & set(path.parts):
            continue
        if not any(part in (source := path.read_text()) for part in ("Ctrl", "Alt", "--")):
            continue
        tree = ast.parse(source)
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
            if text and keys.search(node.value):
                found.append(f"{path.name}:{node.lineno}: {node.value}")
    assert not found, "\n".join(found)
