"""Sliders, switches and choices: keys, typed values, mouse."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Input

from dflash_core.knobs import SPEC, SPEC_FORMER, SPECS, Value, spec_of
from dflash_tui.app import DFlashApp
from dflash_tui.widgets.knob_row import LEFT, ChoiceRow, KnobRow
from dflash_tui.widgets.slider import KINDS, DraftingRow, Slider
from support.grids import full

from .support import loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


class Host(App[None]):
    CSS_PATH = DFlashApp.CSS_PATH

    def __init__(self, *rows: KnobRow) -> None:
        super().__init__()
        self.rows = rows
        self.changes: list[tuple[str, Value]] = []
        self.refusals: list[str] = []

    def compose(self) -> ComposeResult:
        yield from self.rows
        yield Input()

    def on_knob_row_changed(self, event: KnobRow.Changed) -> None:
        self.changes.append((event.name, event.value))

    def on_knob_row_refused(self, event: KnobRow.Refused) -> None:
        self.refusals.append(event.reason)


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("budget", ["right"], 23),
        ("budget", ["left", "left"], 20),
        ("budget", ["shift+right"], 32),
        ("budget", ["shift+left", "shift+left", "shift+left"], 1),
        ("budget", ["home"], 1),
        ("budget", ["end"], 64),
        ("budget", ["1", "2", "8", "enter"], 128),
        ("budget", ["1", "2", "8", "enter", "right"], 128),
        ("budget", ["1", "2", "8", "enter", "left"], 127),
        ("budget", ["4", "backspace", "7", "enter"], 7),
        ("budget", ["right", "backspace"], 22),
        ("budget", ["9", "escape"], 22),
        ("p_min", ["right", "right"], 0.1),
        ("p_min", ["full_stop", "3", "enter"], 0.3),
        ("p_min", ["end", "left"], 0.95),
        ("temperature", ["shift+right"], 0.5),
        ("frequency_penalty", ["minus", "1", "enter"], -1.0),
        ("tree_temperature", ["home"], 0.05),
        ("max_tokens", ["right"], 528),
    ],
)
async def test_keys(name: str, keys: list[str], expected: Value) -> None:
    app = Host(Slider(spec_of(name)))
    async with app.run_test(size=(80, 10)) as pilot:
        app.rows[0].focus()
        await pilot.press(*keys)
        await pilot.pause()
        assert app.rows[0].value == expected
        assert type(app.rows[0].value) is type(spec_of(name).default)
        if expected != spec_of(name).default:
            assert app.changes[-1] == (name, expected)


async def test_a_typed_value_out_of_range_is_refused_with_the_range() -> None:
    app = Host(Slider(SPEC_FORMER["budget"]))
    async with app.run_test(size=(80, 10)) as pilot:
        app.rows[0].focus()
        await pilot.press("9", "9", "9", "enter")
        await pilot.pause()
        assert app.rows[0].value == 22
        assert app.refusals == ["budget=999: expected 1 to 256"]


async def test_a_typed_value_is_taken_when_the_focus_leaves() -> None:
    app = Host(Slider(SPEC_FORMER["budget"]))
    async with app.run_test(size=(80, 10)) as pilot:
        app.rows[0].focus()
        await pilot.press("3", "0", "tab")
        await pilot.pause()
        assert app.rows[0].value == 30


async def test_click_drag_and_wheel() -> None:
    slider = Slider(SPEC_FORMER["budget"])
    app = Host(slider)
    async with app.run_test(size=(80, 10)) as pilot:
        await pilot.click(slider, offset=(LEFT, 0))
        assert slider.value == 1
        await pilot.click(slider, offset=(slider.track[1] - 1, 0))
        assert slider.value == 64
        await pilot.mouse_down(slider, offset=(LEFT, 0))
        await pilot.hover(slider, offset=(sum(slider.track) // 2, 0))
        await pilot.mouse_up(slider, offset=(sum(slider.track) // 2, 0))
        assert 30 <= int(slider.value) <= 35
        await pilot.hover(slider, offset=(slider.track[1] - 1, 0))
        assert 30 <= int(slider.value) <= 35, "the drag ended with the button"
        before = int(slider.value)
        assert await pilot._post_mouse_events([_scroll_up()], slider, offset=(LEFT, 0))
        assert slider.value == before + 1


def _scroll_up() -> type:
    from textual.events import MouseScrollUp

    return MouseScrollUp


async def test_a_click_on_the_label_changes_nothing() -> None:
    slider = Slider(SPEC_FORMER["budget"])
    app = Host(slider)
    async with app.run_test(size=(80, 10)) as pilot:
        await pilot.click(slider, offset=(4, 0))
        assert slider.value == 22
        assert slider.has_focus


async def test_switch_and_choice() -> None:
    switch, choice = ChoiceRow(SPEC["thinking"]), ChoiceRow(SPEC_FORMER["mode"])
    app = Host(switch, choice)
    async with app.run_test(size=(80, 10)) as pilot:
        switch.focus()
        await pilot.press("space")
        assert switch.value is True
        await pilot.press("right")
        assert switch.value is False
        await pilot.press("backspace", "left")
        assert switch.value is True
        choice.focus()
        await pilot.press("right")
        assert choice.value == "tree"
        await pilot.press("right", "right", "right")
        assert choice.value == "plain"
        await pilot.press("enter", "right")
        assert choice.value == "tree"
        await pilot.click(choice, offset=(LEFT + 1, 0))
        assert choice.value == "auto"
        await pilot.pause()
        await shows(pilot, "‹auto›")


@pytest.mark.parametrize(
    ("start", "keys", "value"),
    [
        ("auto", ["space"], "auto up to 22"),
        ("auto", ["right"], "auto up to 22"),
        ("auto", ["left"], "plain"),
        ("plain", ["space"], "auto"),
        ("tree 8", ["space"], "chain 8"),
        ("tree 8", ["right", "shift+right"], "tree 19"),
        ("chain 8", ["home"], "chain 1"),
        ("auto up to 8", ["left"], "auto up to 7"),
        ("tree 8", ["1", "2", "8", "enter", "right"], "tree 128"),
        ("auto", ["9", "enter"], "tree 9"),
        ("plain", ["9", "escape"], "plain"),
        ("tree 8", ["backspace"], "auto"),
        ("tree 8", ["9", "9", "9", "enter"], "tree 8"),
    ],
)
async def test_one_row_has_the_kind_and_its_size(start: str, keys: list[str], value: str) -> None:
    row = DraftingRow(SPEC["drafting"], start)
    app = Host(row)
    async with app.run_test(size=(47, 10)) as pilot:
        row.focus()
        await pilot.press(*keys)
        assert row.value == value
        assert bool(app.refusals) == (keys[-2:] == ["9", "enter"] and len(keys) > 2)
        await shows(pilot, f"‹{row.kind}›")
        assert row.render().cell_length <= 47


async def test_a_click_sets_the_size_of_drafting() -> None:
    row = DraftingRow(SPEC["drafting"], "tree 8")
    app = Host(row)
    async with app.run_test(size=(80, 10)) as pilot:
        await pilot.click(row, offset=(row.track[1] - 1, 0))
        assert row.value == "tree 64"


@pytest.mark.parametrize("width", [40, 47, 80])
async def test_every_parameter_fits_its_row(width: int) -> None:
    kinds = {"int": Slider, "float": Slider, "drafting": DraftingRow}
    rows = [kinds.get(spec.kind, ChoiceRow)(spec) for spec in SPECS]
    app = Host(*rows)
    async with app.run_test(size=(width, 30)) as pilot:
        await pilot.pause()
        for row in rows:
            lines = row.render().split("\n")
            longest = max(line.cell_length for line in lines)
            assert longest <= max(width, LEFT + 4 + 8 + 13)
            if width >= 47:
                assert longest <= width
            assert row.size.height == len(lines), "each of its lines is seen"


@pytest.mark.parametrize("width", [40, full(44), 47, full(80)])
@pytest.mark.parametrize("name", ["draft", "mode"])
async def test_every_choice_is_seen_and_can_be_clicked(name: str, width: int) -> None:
    """The longest list of choices takes as many lines as it needs; one that nearly fits is set closer together
    instead."""
    spec = spec_of(name)
    row = ChoiceRow(spec)
    app = Host(row)
    async with app.run_test(size=(width, 10)) as pilot:
        await pilot.pause()
        if name == "mode" and width > 40:
            assert row.size.height == 1
        for choice in (*spec.choices[1:], spec.choices[0]):
            word = spec.show(choice)
            line, start = next(
                (y, at.start()) for y, text in enumerate(screen_text(app).splitlines())
                if (at := re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text[LEFT:]))
            )  # fmt: skip
            await pilot.click(row, offset=(LEFT + start, line))
            assert row.value == choice
            await pilot.pause()
            await shows(pilot, f"‹{word}›")


async def test_the_rows_of_the_app_show_every_choice(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        panel = app.chat.inspector.params_panel
        panel.unfold(True)
        row = panel.row("draft")
        row.focus()

        def words() -> list[str]:
            lines = screen_text(app).splitlines()[row.region.y : row.region.bottom]
            return [word for line in lines for word in line[row.region.x + LEFT : row.region.right].split()]

        await wait_until(pilot, lambda: words() == ["‹auto›", *SPEC["draft"].choices[1:]])
        assert row.size.height == 3
        for kind in KINDS:
            app.chat.tuning.set(drafting=kind)
            await shows(pilot, f"‹{kind}›")
        assert {row.size.height for name, row in panel._rows.items() if name != "draft" and row.display} == {1}


async def test_the_app_can_set_a_value_without_an_event() -> None:
    slider = Slider(SPEC_FORMER["budget"])
    app = Host(slider)
    async with app.run_test(size=(80, 10)) as pilot:
        slider.value, slider.staged = 40, True
        await pilot.pause()
        assert app.changes == []
        await shows(pilot, "•tree budget")
