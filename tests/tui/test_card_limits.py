"""Settings that a card does not support are reported where they are made: at the load, at the prompt, in the panel."""

from __future__ import annotations

from collections.abc import Callable

from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_tui.app import DFlashApp
from dflash_tui.widgets.flash import Flash

from .fake import FakeSession
from .scenes import send
from .support import loaded, wait_until


class NarrowSession(FakeSession):
    """On a card that keeps eight candidates per draft position, and has memory for trees of 64 nodes."""

    @property
    def limits(self) -> Limits:
        return Limits(self.capabilities, self.context_length, tree_width=8, budget=63)


def said(app: DFlashApp, text: str) -> bool:
    return text in app.chat.query_one(Flash).text


async def test_more_candidates_than_the_card_keeps(make_app: Callable[..., DFlashApp]) -> None:
    """A value that was set before the limit was known is lowered to it; afterwards it is refused at once."""
    app = make_app(NarrowSession(), Knobs(tree_width=20))

    async with app.run_test(size=(120, 50)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: said(app, "tree_width is 8 here, not 20"))
        assert app.chat.state.knobs == Knobs(tree_width=8)
        await send(pilot, "/set tree_width=9")
        await wait_until(pilot, lambda: said(app, "tree_width=9: the card keeps 8 candidates per draft position"))
        await pilot.press("f2", "m")
        row = app.chat.inspector.params_panel.row("tree_width")
        row.focus()
        await pilot.press("1", "2", "enter")
        await wait_until(pilot, lambda: said(app, "tree_width=12: the card keeps 8 candidates per draft position"))
        assert app.chat.state.knobs == Knobs(tree_width=8)
        assert row.value == 8


async def test_larger_trees_than_there_is_memory_for(make_app: Callable[..., DFlashApp]) -> None:
    """Lowered at the load, refused afterwards; the slider ends there, and a preset is taken as far as it goes."""
    app = make_app(NarrowSession(), Knobs(drafting="auto up to 200"))

    async with app.run_test(size=(120, 50)) as pilot:
        await loaded(pilot)
        await wait_until(
            pilot, lambda: said(app, "drafting is auto up to 63 here, not auto up to 200: there is memory for no more")
        )
        assert app.chat.state.knobs == Knobs(drafting="auto up to 63")
        await send(pilot, "/set budget=64")
        await wait_until(
            pilot, lambda: said(app, "drafting=auto up to 64: there is memory for trees of 63 drafted tokens")
        )
        await pilot.press("f2")
        row = app.chat.inspector.params_panel.row("drafting")
        row.focus()
        await pilot.press("home", "end")
        await pilot.pause()
        assert row.value == "auto up to 63"
        await pilot.press("9", "9", "enter")
        await wait_until(pilot, lambda: said(app, "N from 1 to 63"))
        app.chat.tuning.set_all(Knobs(drafting="auto up to 128", p_min=0.1))
        assert (app.chat.state.knobs.budget, app.chat.state.knobs.p_min) == (63, 0.1)
