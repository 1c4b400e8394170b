"""No text of a file, a model or a user is read as markup, and all output to a terminal goes through one place.

Checked in the source, so that it stays true: a widget or a stream that is used in another way fails here.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import textual.widgets
from textual.content import Content

import dflash_tui
from dflash_tui.widgets.literal import literal

SOURCE = Path(dflash_tui.__file__).parent
DOOR = "widgets/literal.py"
# Of Textual's widgets, those that read no markup in what we give them.
AS_IT_IS = {"Footer", "Input", "Markdown", "TextArea"}
# Labels of the lines of a code block, which Textual highlights and hands over as Content; and the tour, which draws
# cells of the screen below it that already follow these rules.
EXCEPTIONS = {("widgets/markdown.py", "Label"), ("screens/tour.py", "render")}
# Their text is markup to Textual, whatever widget they belong to.
MARKUP = {"border_title", "border_subtitle", "tooltip", "from_markup"}
# The probe writes JSON for the process that started it; the export to a pipe is a file's bytes.
STREAMS = {"terminal/output.py", "cli/probe.py"}


def faults(source: str, name: str) -> Iterator[str]:
    """What breaks the rules in a module, `name` relative to the package."""
    for node in ast.walk(ast.parse(source)):
        at = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.module == "textual.widgets" and name != DOOR:
            taken = {one.name for one in node.names} - AS_IT_IS
            yield from (f"{at} {one}: take it from {DOOR}" for one in taken if (name, one) not in EXCEPTIONS)
        elif isinstance(node, ast.ImportFrom) and node.module == "textual" and name != DOOR:
            yield from (f"{at} import the names" for one in node.names if one.name == "widgets")
        elif isinstance(node, ast.keyword) and node.arg == "markup" and name != DOOR:
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield f"{at} markup"
        elif isinstance(node, ast.Attribute) and node.attr in MARKUP and name != DOOR:
            yield f"{at} {node.attr} reads markup"
        elif isinstance(node, ast.FunctionDef) and node.name in ("render", "render_line"):
            method = bool(node.args.args) and node.args.args[0].arg == "self"
            if (
                method
                and (name, node.name) not in EXCEPTIONS
                and ast.unparse(node.returns or ast.Constant(None)) not in ("Content", "Strip")
            ):
                yield f"{at} {node.name} must return Content, in which nothing is markup"
        elif isinstance(node, ast.Call) and name not in STREAMS:
            called = ast.unparse(node.func)
            if called == "print" or called in ("sys.stdout.write", "sys.stderr.write"):
                yield f"{at} {called}: write_out and write_err make text safe to show"


def test_every_module_keeps_to_the_rules() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 100
    found = [
        fault
        for path in paths
        for fault in faults(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix())
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "from textual.widgets import Static",
        "from textual.widgets import Input, Button",
        "from textual import widgets",
        "Other(text, markup=True)",
        "Other(text, markup=how)",
        "self.border_title = name",
        "self.query_one(X).tooltip = name",
        "Content.from_markup(name)",
        "class A:\n    def render(self) -> str:\n        return name",
        "sys.stdout.write(name)",
        "print(name)",
    ],
)
def test_the_rules_find_what_they_forbid(source: str) -> None:
    assert len(list(faults(source, "screens/some.py"))) == 1


def test_the_widgets_that_are_taken_as_they_are_have_no_markup() -> None:
    for name in AS_IT_IS:
        assert "markup" not in inspect.signature(getattr(textual.widgets, name)).parameters


def test_a_text_becomes_content_as_it_is() -> None:
    shown = literal("[@click=app.quit]safe[/] [Q8]\x1b[31m.gguf\t!")
    assert isinstance(shown, Content)
    assert shown.plain == "[@click=app.quit]safe[/] [Q8]�[31m.gguf    !"
    assert not shown.spans
    styled = literal(Content.assemble("a\x9b", ("b", "bold"), "c"))
    assert isinstance(styled, Content)
    assert styled.plain == "a�bc"
    assert [(span.start, span.end) for span in styled.spans] == [(2, 3)]
