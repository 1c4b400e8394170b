"""The panel of parameters: the most used ones first, the others folded away, and when a change applies is said once."""

from __future__ import annotations

from collections.abc import Callable

from textual.geometry import Region

from dflash_core.knobs import CONTEXT, SPEC, SPECS
from dflash_tui.app import DFlashApp
from dflash_tui.chat.layout import SHORT
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.params import FIRST, ROWLESS, WHEN

from .support import loaded, screen_text, shows, wait_until

SPEC_OF = {**SPEC, CONTEXT.name: CONTEXT}
OTHERS = len(SPECS) + 1 - len(FIRST) - len(ROWLESS)  # with the context
MakeApp = Callable[..., DFlashApp]


async def test_the_first_rows_and_one_key_for_the_others(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        await shows(pilot, "preset", "drafting", "p_min", "temperature", "thinking", f"▶ {OTHERS} more parameters")
        assert "top_k" not in screen_text(app)
        assert not app.chat.query("#params-others > *"), "rows that nobody sees slow down the start and every turn"
        await pilot.press("m")
        await shows(pilot, "speculation", "▼ fewer parameters")
        app.chat.inspector.params_panel.row("top_k").focus()
        await shows(pilot, "top_k")
        await pilot.press("m")
        await wait_until(pilot, lambda: "top_k" not in screen_text(app))
        assert app.focused is not None
        assert app.focused.id == "params-more", "the focus is on nothing that is out of sight"


async def test_what_is_not_at_its_default_is_named_while_it_is_folded_away(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        app.chat.tuning.set(seed=4, top_k=20)
        await shows(pilot, f"{OTHERS} more parameters  set: top_k, seed")
        app.chat.tuning.set(top_p=0.9, max_tokens=64, presence_penalty=0.1)
        await shows(pilot, f"{OTHERS} more parameters  5 set")
        await pilot.press("m")
        await wait_until(pilot, lambda: "5 set" not in screen_text(app))


async def test_the_help_of_every_parameter_is_shown_whole_beside_its_row(make_app: MakeApp) -> None:
    """In the lowest terminal that has it."""
    app = make_app()
    async with app.run_test(size=(120, SHORT)) as pilot:
        await loaded(pilot)
        await pilot.press("f2", "m")
        await shows(pilot, "▼ fewer")
        panel = app.chat.inspector.params_panel
        for name in ("drafting", "p_min", "attention_window", "draft", "seed", "end_in_thinking", "context"):
            row = panel.row(name)
            row.focus()
            await wait_until(pilot, lambda name=name: _help(app).startswith(SPEC_OF[name].help))
            rows = panel.query_one("#params-rows")
            await wait_until(pilot, lambda row=row, rows=rows: rows.region.contains_region(row.region))
            shown = panel.query_one("#params-help").region
            text = " ".join(" ".join(line[shown.x : shown.right] for line in _lines(app, shown)).split())
            assert text == _help(app), name


def _help(app: DFlashApp) -> str:
    return " ".join(str(app.chat.query_one("#params-help", Static).visual).split())


def _lines(app: DFlashApp, region: Region) -> list[str]:
    return screen_text(app).splitlines()[region.y : region.bottom]


async def test_the_next_start_remembers_that_they_are_unfolded(make_app: MakeApp) -> None:
    for folds in (True, False):
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await loaded(pilot)
            await pilot.press("f2")
            await shows(pilot, f"▶ {OTHERS} more" if folds else "▼ fewer")
            await pilot.press("m")


async def test_when_a_change_counts_is_said_once_per_group(make_app: MakeApp) -> None:
    for group in ("speculation", "sampling", "answer", "loading"):
        found = {spec.applies for spec in (*SPECS, CONTEXT) if spec.group == group and spec.name not in FIRST}
        assert len(found) == 1, group
    app = make_app()
    async with app.run_test(size=(120, 100)) as pilot:
        await loaded(pilot)
        await pilot.press("f2", "m")
        await shows(pilot, "▼ fewer")
        text = screen_text(app)
        assert text.count(WHEN["next step"]) == 2
        assert text.count("with /reload") == 1
        await pilot.press("down")
        await shows(pilot, "leave out a draft token", "? says more")
        assert screen_text(app).count("from the next turn") == 3, "not once more for the row"
