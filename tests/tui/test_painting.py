"""What is laid out and drawn for a change: only what needs it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from textual._compositor import Compositor
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.geometry import Region, Size
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.widgets import literal
from dflash_tui.widgets.markdown import Paragraph
from dflash_tui.widgets.strip import TitleRow
from dflash_tui.widgets.transcript import TurnBlock

from .fake import FakeSession
from .support import ask, idle, loaded, settled, shows, wait_until

pytestmark = pytest.mark.usefixtures("frames")


class OnePage(App[None]):
    CSS = "#inner, Static { height: auto; }"

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Vertical(Static("one"), id="inner"))


class Told(literal.Static):
    """A widget that is measured before it is given its text, and placed before it is idle."""

    def on_mount(self) -> None:
        assert isinstance(self.parent, Widget)
        self.parent.arrange(Size(40, 20))
        self.update("one\ntwo")
        self.screen._refresh_layout()


async def test_a_text_that_comes_while_its_widget_is_mounted_has_its_room() -> None:
    app = OnePage()
    async with app.run_test(size=(40, 20)) as pilot:
        told = Told()
        await app.query_one("#inner").mount(told)
        await pilot.pause()
        assert told.size.height == 2


async def test_memory_that_reads_the_same_is_not_drawn_again(make_app: Callable[..., DFlashApp]) -> None:
    app = make_app(FakeSession())
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        row = app.chat.query_one(TitleRow)
        await wait_until(pilot, lambda: row.memory is not None)
        before, drawn = row.memory, list[object]()
        assert before is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row, "refresh", lambda *regions, **options: drawn.append(options))
            row.memory = replace(before, total=before.total + 1)
            assert not drawn
            row.memory = replace(before, total=before.total + (8 << 30))
            assert drawn


async def test_a_layout_arranges_the_screen_once(
    make_app: Callable[..., DFlashApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Widgets of hidden panels are refreshed too. Textual arranged all again at the next question for a place."""
    did: list[str] = []
    for name in ("_arrange_root", "reflow", "reflow_visible"):
        done = getattr(Compositor, name)
        monkeypatch.setattr(
            Compositor, name, lambda *a, name=name, done=done, **k: (did.append(name), done(*a, **k))[1]
        )
    app = make_app(FakeSession())
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        did.clear()
        await ask(pilot, "hi")
        await idle(pilot)
        hidden = app.chat.query_one("#panel-stats")
        assert not hidden.region
        hidden.refresh()
        await pilot.pause()
        assert app.chat.prompt.region
        layouts = did.count("reflow") + did.count("reflow_visible")
        assert layouts > 1
        assert did.count("_arrange_root") == layouts


async def test_a_frame_draws_one_panel(make_app: Callable[..., DFlashApp]) -> None:
    """A panel costs more than the text; the strip is live in each frame."""
    app = make_app(FakeSession())
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        gauges, drawn = app.chat.gauges, list[str]()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("strip", "stats", "tree"):
                patch.setattr(gauges, name, lambda name=name: drawn.append(name))
            patch.setattr(gauges, "_frames", 0)
            for _ in range(3):
                gauges.frame()
        assert drawn == ["strip", "stats", "strip", "tree", "strip", "stats"]


async def test_text_that_grows_has_only_itself_measured(
    make_app: Callable[..., DFlashApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paragraphs before it are not measured, and the text itself not once for every container around it."""
    app = make_app(FakeSession())
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        block = await app.chat.transcript.add(TurnBlock("hi"))
        answer = await block.add_answer(Knobs())
        for number in range(4):
            await answer.body.feed(f"paragraph {number} " + "of some words " * 30 + "\n\n")
        await answer.body.feed("the last one")
        await wait_until(pilot, lambda: answer.body.region.height > 8)
        await settled(pilot)
        measured = list[Paragraph]()
        height = Paragraph.get_content_height

        def counted(self: Paragraph, container: Size, viewport: Size, width: int) -> int:
            if sys._getframe(1).f_code.co_name == "_get_box_model":
                measured.append(self)
            return int(height(self, container, viewport, width))

        monkeypatch.setattr(Paragraph, "get_content_height", counted)
        before = answer.body.region.height
        await answer.body.feed("\n".join(f"and a line more, {number}" for number in range(40)))
        await wait_until(pilot, lambda: answer.body.region.height > before)
        await settled(pilot)
        last = list(answer.query(Paragraph))[-1]
        assert set(measured) == {last}


async def test_thinking_that_is_counted_is_not_laid_out(make_app: Callable[..., DFlashApp]) -> None:
    """The count in the line changes with every frame, but it stays one line."""
    app = make_app(FakeSession())
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        block = await app.chat.transcript.add(TurnBlock("hi"))
        thinking = (await block.add_answer(Knobs())).thinking
        thinking.add("a thought")
        thinking.count(3, 0.1, running=True)
        await settled(pilot)
        thinking.count(40, 2.0, running=True)
        assert not thinking.line._layout_required
        await shows(pilot, "thinking… 2.0 s · 40 tok")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Size]:
    """One entry for each layout from now on."""
    layouts, reflow = list[Size](), Compositor.reflow
    monkeypatch.setattr(Compositor, "reflow", lambda self, *more: (layouts.append(self.size), reflow(self, *more))[1])
    return layouts


async def test_a_typed_character_is_not_laid_out(
    make_app: Callable[..., DFlashApp], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """Only another row of the prompt is: when its text wraps, and when it is one line again."""
    app = make_app(FakeSession())
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await settled(pilot)
        prompt, layouts = app.chat.prompt, counted(monkeypatch)
        await pilot.press("a", "b", "backspace", "left", "c")
        await settled(pilot)
        assert prompt.text == "ca"
        assert not layouts
        prompt.insert("word " * (size[0] // 5))
        await settled(pilot)
        assert prompt.size.height == 2
        assert layouts
        layouts.clear()
        await pilot.press("d")
        await settled(pilot)
        assert not layouts
        prompt.text = ""
        await settled(pilot)
        assert prompt.size.height == 1
        assert layouts


class Fitted(App[None]):
    """Texts in places of all kinds: of a fixed, a free and an automatic size, in a hidden one, behind others."""

    CSS = """
    Vertical, #line, #free { height: auto; }
    #narrow { width: auto; max-width: 30; }
    #narrow Static { width: auto; }
    .one { height: 1; }
    .few { max-height: 3; min-height: 2; }
    .full { height: 1fr; }
    """

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            with Vertical(id="free"):
                yield literal.Static("free")
                yield literal.Static("one", classes="one")
            with Vertical(id="narrow"):
                yield literal.Static("narrow")
            with Horizontal(id="line"):
                yield literal.Static("left")
                yield literal.Static("middle", classes="few")
                yield literal.Static("right", classes="full")
            with Vertical(id="hidden"):
                yield literal.Static("hidden")
        yield literal.Static("below", classes="full")

    @property
    def places(self) -> dict[Widget, Region]:
        return {one: one.region for one in self.screen.walk_children(Widget) if one.display}

    def forget(self) -> None:
        """Have everything measured again."""
        for one in self.screen.walk_children(Widget, with_self=True):
            one.refresh(layout=True)
            one._layout_required = False
            one._clear_arrangement_cache()
            one.clear_cached_dimensions()
            one._box_model_cache.clear()
        self.screen._refresh_layout(self.size)


TEXTS = ("", "short", "some words more", "words " * 12, "one\ntwo", "one\ntwo\nthree\nfour", "a\n\nb")


async def placed(app: Fitted, pilot: Pilot[None]) -> None:
    """Everything is where a layout from scratch places it."""
    await pilot.pause()
    there = app.places
    app.forget()
    assert app.places == there
    await pilot.pause()  # that layout requests others: the next text must not be placed by one of them


@pytest.mark.parametrize("place", range(8))
async def test_a_text_stays_where_a_layout_would_place_it(place: int) -> None:
    """One of one row by another, longer or not, or by one of several rows."""
    app = Fitted()
    async with app.run_test(size=(40, 20)) as pilot:
        text = list(app.query(literal.Static))[place]
        for content in ("short", "words", "some words more", "short", "a\nb", "some\nmore", "short"):
            text.update(content)
            await placed(app, pilot)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
async def test_texts_stay_where_a_layout_would_place_them(seed: int) -> None:
    """Texts change, widgets are hidden and shown, and the terminal changes its size, in any order."""
    draw = random.Random(seed)
    app = Fitted()
    async with app.run_test(size=(40, 20)) as pilot:
        texts, hidden = list(app.query(literal.Static)), app.query_one("#hidden")
        for _ in range(60):
            act = draw.randrange(8)
            if act == 0:
                hidden.display = not hidden.display
            elif act == 1:
                await pilot.resize_terminal(draw.choice((24, 40, 60)), 20)
            else:
                for text in draw.sample(texts, 2):
                    text.update(draw.choice(TEXTS))
            await placed(app, pilot)


async def test_a_text_that_was_not_laid_out_has_its_room_later() -> None:
    """In a terminal where it takes more rows, which was there before; and in a place that was hidden meanwhile."""
    app = Fitted()
    async with app.run_test(size=(24, 20)) as pilot:
        free, hidden = app.query_one("#free Static", literal.Static), app.query_one("#hidden")
        inside = hidden.query_one(literal.Static)
        await pilot.resize_terminal(40, 20)
        free.update("some words that are longer")
        await pilot.pause()
        assert free.size.height == 1
        hidden.display = False
        await pilot.pause()
        inside.update("one\ntwo")
        await pilot.pause()
        await pilot.resize_terminal(24, 20)
        assert free.size.height == 2
        hidden.display = True
        await pilot.pause()
        assert inside.size.height == 2


async def test_a_text_of_the_same_size_is_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fitted()
    async with app.run_test(size=(40, 20)) as pilot:
        layouts = counted(monkeypatch)
        free, one = app.query("#free Static").results()
        hidden = app.query_one("#hidden Static", literal.Static)
        hidden.parent.display = False  # type: ignore[union-attr]
        await pilot.pause()
        layouts.clear()
        for text, content in ((free, "else"), (one, "a\nb"), (free, "again"), (hidden, "one\ntwo")):
            text.update(content)
            await pilot.pause()
            assert not layouts
        free.update("a\nb")
        await pilot.pause()
        assert layouts
