"""What apps share is what Textual computes for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode

from dflash_tui.app import DFlashApp

from .scenes import answered
from .support import settled

APPLY: Any = Stylesheet.apply
REPLACE_RULES: Any = Stylesheet.replace_rules


async def test_shared_styles_are_those_of_each_app(
    make_app: Callable[..., DFlashApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[RulesMap] = []

    def note(node: DOMNode, rules: RulesMap, animate: bool = False) -> None:
        found.append(rules)
        REPLACE_RULES(node, rules, animate)

    monkeypatch.setattr(Stylesheet, "replace_rules", staticmethod(note))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        for size, keys in (((80, 24), ["f2", "m"]), ((200, 60), ["f3", "alt+up"]), ((120, 40), ["escape", "ctrl+o"])):
            await pilot.resize_terminal(*size)
            await pilot.press(*keys)
            app.theme = "textual-light" if size[0] == 200 else app.theme
            await settled(pilot)
            for node in [app.screen, *app.screen.walk_children()]:
                styles = []
                for apply in (APPLY, APPLY.__wrapped__):
                    found.clear()
                    apply(app.stylesheet, node)
                    styles.append([*found])
                assert styles[0] == styles[1], f"{node} at {size}"
