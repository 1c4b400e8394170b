"""The app around the chat: themes, models, keys, completion, notices, measuring, and a message that does not render."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from dflash_core.demo import demo_target_path
from dflash_core.errors import DeviceError, FormatError
from dflash_core.memory import HostMemory
from dflash_tui import log
from dflash_tui.app import DFlashApp
from dflash_tui.chat.ui_bench import measure_lag, measure_tax, tax_table
from dflash_tui.figures.meter import Meter
from dflash_tui.hub.header import Header
from dflash_tui.hub.room import Room
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.screens.themes import ThemesScreen
from dflash_tui.session import Loader, LoadRequest, Progress
from dflash_tui.settings.config import Config, Settings, config_folder, load_config, user_file
from dflash_tui.slash import table as slash
from dflash_tui.terminal.notices import desktop_notice
from dflash_tui.widgets.completions import Completions
from dflash_tui.widgets.note import Note
from dflash_tui.widgets.streamed import Streamed
from dflash_tui.widgets.text_dialog import TextScreen

from .fake import FakeSession, loader
from .scenes import answered, send
from .support import idle, leave, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
Snapshot = Callable[[str, str], None]
Size = tuple[int, int]


# Colours


async def test_a_theme_is_tried_and_kept(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemesScreen))
        await pilot.press("down")
        await wait_until(pilot, lambda: app.theme == "dflash-paper")
        assert not user_file().exists(), "trying is not choosing"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert app.theme == "dflash-paper"
    again = make_app(config=load_config({}, {}, project=Path("none")))
    async with again.run_test(size=(80, 24)):
        assert again.theme == "dflash-paper"


async def test_esc_takes_a_tried_theme_back(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemesScreen))
        await pilot.press("down", "down")
        await wait_until(pilot, lambda: app.theme != "dflash-night")
        await leave(pilot)
        assert app.theme == "dflash-night"
        assert not user_file().exists()


async def test_a_theme_by_name(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(100, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme none such")
        await shows(pilot, "no theme 'none such'; there are")
        await send(pilot, "/theme dflash-paper")
        await shows(pilot, "theme dflash-paper, from now on")


async def test_a_user_theme_comes_from_the_config_folder(make_app: MakeApp) -> None:
    folder = config_folder() / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('name = "mine"\nprimary = "#ff0000"\n')
    (folder / "bad.toml").write_text('name = "bad"\n\nprimary = "no colour"\n')
    app = make_app(theme="mine")
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        assert app.theme == "mine"
        await shows(pilot, "bad.toml", "primary")


async def test_a_read_only_config_folder_is_said(make_app: MakeApp) -> None:
    config_folder().parent.mkdir(parents=True, exist_ok=True)
    config_folder().write_text("a file where the folder should be")
    app = make_app()
    async with app.run_test(size=(120, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/theme dflash-paper")
        await shows(pilot, "cannot", "written")  # the path before it may break the line
        assert app.theme == "dflash-paper", "for as long as the app is open"


# Settings


async def test_wrong_settings_are_told_once_the_app_is_there(make_app: MakeApp) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text('mouse = 1\n[keys]\n"turn.retri" = "f10"\n')
    app = make_app(config=load_config({}, {}))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await shows(pilot, "line 1: mouse", "turn.retri: no such action")


async def test_a_key_for_an_action_that_has_none_and_none_for_one_that_has(make_app: MakeApp) -> None:
    app = make_app(config=Config(Settings(keys={"lab.sweep": "f10", "view.side": "", "turn.retry": ""})))
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        shown = app.chat.has_class("-side")
        await pilot.press("ctrl+b", "f12", "ctrl+r")
        await pilot.pause()
        assert app.chat.has_class("-side") == shown
        assert len(app.chat.transcript.turns[-1].answers) == 1
        assert "F1 Help  Retry" in screen_text(app), "without a key it can still be clicked"
        await pilot.press("f10")
        await wait_until(pilot, lambda: app.screen is not app.chat)
        await shows(pilot, "Sweep")


async def test_what_names_a_key_names_the_users(make_app: MakeApp) -> None:
    keys = {"turn.retry": "f10,alt+g", "view.params": "", "view.stats": "alt+s", "lab.sweep": "ctrl+l"}
    keys["lab.tune"] = "alt+u"
    app = make_app(config=Config(Settings(keys=keys)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.tour_seen()
        await shows(pilot, "Alt+U finds the best setting", "‹Stats› Alt+S")
        app.chat.say("F2 tunes the next turn. F3 shows speed")
        await shows(pilot, "/params tunes the next turn. Alt+S shows speed")
        app.chat.say("Ctrl+R answers again, F4 and F12 are as they were")
        await shows(pilot, "F10 answers again, F4 and F12 are as they were")
        await app.chat.transcript.note(Note("it failed", "Ctrl+R tries again."))
        await shows(pilot, "F10 tries again.")


async def test_a_remapped_key_works_and_is_shown(make_app: MakeApp) -> None:
    app = make_app(config=Config(Settings(keys={"turn.retry": "f10", "view.side": ""})))
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await pilot.press("f10")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns[-1].answers) == 2)
        await idle(pilot)
        assert "F10 Retry" in screen_text(app)
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert len(app.chat.transcript.turns[-1].answers) == 2, "the old key does nothing"
        await pilot.press("f1")
        await shows(pilot, "F10")
        assert "Ctrl+R" not in screen_text(app)


# Slash commands


async def test_completion(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "s", "e")
        await shows(pilot, "/set NAME VALUE")
        await pilot.press("tab")
        assert app.chat.prompt.text == "/set "
        await shows(pilot, "budget")
        await pilot.press("b", "u", "tab", "8")
        assert app.chat.prompt.text == "/set budget 8"
        await wait_until(pilot, lambda: not app.chat.query_one(Completions).display)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat.knobs.budget == 8)


async def test_another_completion_is_marked_with_the_arrows(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "t")
        names = [row.text for row in app.chat.query_one(Completions).rows]
        assert len(names) > 2
        await pilot.press("down", "down", "up", "tab")
        assert app.chat.prompt.text == names[1]


async def test_enter_takes_a_completion_that_was_marked_on_purpose(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "s", "w", "enter")
        await shows(pilot, "did you mean /sweep?")
        assert app.chat.prompt.text == "/sw", "what is offered unasked is not taken by Enter"
        app.chat.prompt.text = ""
        await pilot.press("slash", "s", "down", "enter")
        await wait_until(pilot, lambda: app.chat.prompt.text == "/sweep ")


async def test_completions_say_what_each_is(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for typed, said in (("/set tree_w", "candidates per draft position"), ("/preset wi", "a larger tree")):
            app.chat.prompt.text = typed
            await shows(pilot, said)
        app.chat.prompt.text = "/"
        await shows(pilot, "more")
        assert app.chat.query_one(Completions).size.height == 7, "a row each, however long"


async def test_messages_are_not_completed(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for text in ("//set", "a /set", "/set\nmore", "hello"):
            assert slash.complete(text, app.chat) == []
        assert slash.complete("/think o", app.chat)[0].text == "/think on "
        assert {row.text for row in slash.complete("/", app.chat)} == {f"/{name} " for name in slash.SLASH}


async def test_an_unknown_command_names_the_nearest(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/retyr")
        await shows(pilot, "did you mean /retry?")
        assert app.chat.prompt.text == "/retyr", "what was typed stays"


# Models


async def models(pilot: Pilot[int], app: DFlashApp) -> None:
    """Open the list of models."""
    await loaded(pilot)
    await send(pilot, "/load")
    await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))


def models_app(make_app: MakeApp, requests: list[LoadRequest], **options: object) -> DFlashApp:
    def loaders(request: LoadRequest) -> object:
        requests.append(request)
        return loader(FakeSession(title=request.target.name if request.target else "demo pair"))

    return make_app(loaders=loaders, **options)


async def test_another_model_from_the_list(make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("big.gguf", "deep/other.gguf"):
        shutil.copy(demo_target_path(), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    requests: list[LoadRequest] = []
    app = models_app(make_app, requests)
    async with app.run_test(size=(100, 30)) as pilot:
        await models(pilot, app)
        await shows(pilot, "big.gguf", "other.gguf", "no drafter")
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: len(requests) == 1)
        await shows(pilot, "big.gguf")
        assert requests[0].target == tmp_path / "big.gguf"
        assert requests[0].draft is None
        # It is written down once the load has ended, which the list's own words do not wait for.
        await wait_until(pilot, lambda: load_config({}, {}, project=Path("none")).settings.target is not None)
    found = load_config({}, {}, project=Path("none"))
    assert found.settings.target == tmp_path / "big.gguf"


async def test_a_model_that_does_not_load_is_not_what_the_next_start_opens(make_app: MakeApp, tmp_path: Path) -> None:
    def loaders(request: LoadRequest) -> Loader:
        def load(progress: Progress) -> FakeSession:
            if request.target is not None and request.target.name == "bad.gguf":
                raise FormatError("bad.gguf is not a GGUF file")
            return FakeSession()

        return load

    for name in ("good", "bad"):
        (tmp_path / f"{name}.gguf").write_bytes(b"")
    app = make_app(loaders=loaders)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, f"/load {tmp_path / 'good.gguf'}")
        await wait_until(pilot, lambda: app.chat.session is not None and user_file().exists())
        await send(pilot, f"/load {tmp_path / 'bad.gguf'}")
        await shows(pilot, "the model did not load: bad.gguf")
    assert load_config({}, {}, project=Path("none")).settings.target == tmp_path / "good.gguf"


async def test_a_path_that_is_not_there_is_refused_in_the_dialog(make_app: MakeApp) -> None:
    app = models_app(make_app, [])
    async with app.run_test(size=(100, 30)) as pilot:
        await models(pilot, app)
        target = app.screen.query_one("#models-target", Input)
        target.focus()
        target.value = "/none/such.gguf"
        await pilot.press("enter")
        await shows(pilot, "/none/such.gguf: no such file or folder")
        assert target.value == "/none/such.gguf", "what was typed stays"
        await pilot.press("escape")
        assert target.value == ""
        await leave(pilot)
        assert app.chat.session is not None
        await send(pilot, "/load /none/such.gguf")
        await shows(pilot, "/none/such.gguf: no such file or folder")


async def test_a_path_completes(make_app: MakeApp, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.gguf").write_bytes(b"")
    app = models_app(make_app, [])
    async with app.run_test(size=(100, 30)) as pilot:
        await models(pilot, app)
        target = app.screen.query_one("#models-target", Input)
        target.focus()
        target.value = f"{tmp_path}/mo"
        target.cursor_position = len(target.value)
        for expected in (f"{tmp_path}/models/", f"{tmp_path}/models/x.gguf"):
            await wait_until(pilot, lambda expected=expected: target._suggestion == expected)
            await pilot.press("right")
            assert target.value == expected


async def test_the_first_start_asks_once(make_app: MakeApp) -> None:
    app = models_app(make_app, [], first_run=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(pilot, "Welcome", "demo pair", "free")
        await pilot.press("enter")
        await loaded(pilot)
        await wait_until(pilot, lambda: app.screen is app.chat)
    found = load_config({}, {}, project=Path("none"))
    assert "target" in found.origins, "so that the next start does not ask"
    assert found.settings.target is None


# The end of a long answer


@pytest.mark.parametrize(
    ("how", "seconds", "blurred", "rings"),
    [
        ("bell", 30.0, None, True),
        ("bell", 30.0, True, True),
        ("bell", 30.0, False, False),
        ("bell", 3.0, True, False),
        ("off", 30.0, True, False),
        ("desktop", 30.0, True, True),
    ],
)
async def test_a_long_answer_calls(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, how: str, seconds: float, blurred: bool | None, rings: bool
) -> None:
    app = make_app(config=Config(Settings(notify=how)))
    rung: list[bool] = []
    monkeypatch.setattr(app, "bell", lambda: rung.append(True))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        if blurred is not None:
            (app.on_app_blur if blurred else app.on_app_focus)()
        app.tell_away(seconds, "the answer is complete")
        assert bool(rung) == rings


def test_a_desktop_notice_is_safe_and_passes_tmux() -> None:
    assert desktop_notice("done", {}) == "\x1b]9;done\x07"
    assert desktop_notice("x\x1b]0;y\x07", {}).count("\x1b") == 1
    inside = desktop_notice("done", {"TMUX": "/tmp/x"})
    assert inside == "\x1bPtmux;\x1b\x1b]9;done\x07\x1b\\"


# The log


def test_the_log_keeps_figures_and_says_where_it_cannot(tmp_path: Path) -> None:
    assert log.begin("info", path=tmp_path / "a" / "x.log") == ""
    log.LOG.info("loaded %s", "pair")
    log.LOG.debug("not at this level")
    assert (tmp_path / "a" / "x.log").read_text().endswith("INFO loaded pair\n")
    (tmp_path / "file").write_text("")
    assert "this run leaves no log" in log.begin("info", path=tmp_path / "file" / "x.log")
    log.LOG.error("goes nowhere")
    assert all(isinstance(handler, logging.NullHandler) for handler in log.LOG.handlers)


async def test_a_turn_is_logged_without_its_text(make_app: MakeApp, tmp_path: Path) -> None:
    log.begin("debug", path=tmp_path / "x.log")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, "a secret question")
    text = (tmp_path / "x.log").read_text()
    assert "loaded Qwen3.5-demo" in text
    assert "turn: 110 tokens" in text
    assert "secret" not in text
    assert "Speculative" not in text


# What does not render


@pytest.mark.parametrize("where", ["feed", "finish"])
async def test_a_message_that_does_not_render_is_shown_as_it_is(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole = getattr(Streamed, where)

    async def fails(self: Streamed, *text: str) -> None:
        if where == "feed" and self._raw is None:
            self.text += text[0]
        if self._raw is None and (where == "finish" or len(self.text) > 20):
            raise RuntimeError("a fault of the renderer")
        await whole(self, *text)

    monkeypatch.setattr(Streamed, where, fails)
    app = make_app(FakeSession(answer="Some **text** that nobody can render, of a few words."))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await shows(pilot, "cannot be rendered (RuntimeError)", "Some **text** that nobody can render, of a few words.")
        await idle(pilot)
        assert app.is_running
        monkeypatch.undo()
        await send(pilot, "again")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns) == 2)
        await idle(pilot)


@pytest.mark.parametrize("leaving", ["the answer is removed", "the app ends"])
async def test_an_answer_that_leaves_the_screen_is_no_fault(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, leaving: str
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log.LOG, "error", lambda message, **_: logged.append(message))
    app = make_app(FakeSession(answer="Some text."))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await idle(pilot)
        answer = await app.chat.transcript.turns[-1].add_answer(app.chat.knobs)
        with monkeypatch.context() as ending:
            if leaving == "the app ends":
                ending.setattr(app, "_exit", True)  # what quitting does first; widgets go later
            else:
                answer.remove()
            await answer.add("A paragraph.\n\nAnd one more.\n\n", "", Meter())
            await answer.end(Meter(), None, "failed")
            await answer.fail("it failed", "try again")
    assert logged == []


# Measuring


async def test_bench_in_the_app_leaves_the_conversation(make_app: MakeApp) -> None:
    session = FakeSession(pace=0.001)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        before = list(session.conversation.messages)
        flow = app.chat.flow
        await send(pilot, "/bench")
        await wait_until(pilot, lambda: isinstance(app.screen, TextScreen))
        await shows(pilot, "What the app costs the decoder", "headless", "in the app", "lost")
        await leave(pilot)
        assert app.chat.flow is flow
        assert session.conversation.messages == before
        assert len(app.chat.transcript.turns) == 1
        assert not app.chat.transcript.has_class("-measuring"), "the conversation is seen again"


async def test_the_app_may_end_while_bench_runs(make_app: MakeApp) -> None:
    app = make_app(FakeSession(pace=0.001))
    async with app.run_test() as pilot:
        await loaded(pilot)
        await send(pilot, "/bench")
        await wait_until(pilot, lambda: bool(app.chat.query(".-measured")))
    assert not app.fault


async def test_bench_counts_what_both_arms_decoded(make_app: MakeApp) -> None:
    app = make_app(FakeSession(pace=0.001))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        found = {}

        async def run() -> None:
            found["tax"] = await measure_tax(app.chat, ("one", "two"), rounds=2)

        app.chat.run_worker(run())
        await wait_until(pilot, lambda: "tax" in found)
        tax = found["tax"]
        assert [pair.prompt for pair in tax.pairs] == ["one", "two"]
        assert all(len(arm) == 2 for pair in tax.pairs for arm in (pair.headless, pair.app))
        assert {one.tokens for pair in tax.pairs for one in (*pair.headless, *pair.app)} == {tax.pairs[0].tokens}
        headless, shown = tax.rates
        assert tax.loss == pytest.approx(1 - shown / headless)
        assert tax_table(tax).splitlines()[-1].startswith("all")


async def test_bench_is_refused_where_it_would_mislead(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(3))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await shows(pilot, "writing")
        await send(pilot, "/bench")
        await shows(pilot, "no answer under way")
        app.chat.flow.stop()
        await idle(pilot)


async def test_a_fed_document_is_shown_whole(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_tui.chat import ui_bench

    documents = {name: text[:900] for name, text in ui_bench.DOCUMENTS.items()}
    monkeypatch.setattr(ui_bench, "DOCUMENTS", documents)
    monkeypatch.setattr(ui_bench, "RATE", 3_000)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        found = []

        async def run() -> None:
            found.extend(await measure_lag(app.chat, tuple(documents)))

        app.chat.run_worker(run())
        await wait_until(pilot, lambda: len(found) == len(documents))
        assert [lag.document for lag in found] == list(documents)
        for lag in found:
            assert lag.tokens == 225
            assert 0 <= lag.percentile(0.5) <= lag.percentile(0.95) <= max(lag.late_ms)


# Pictures in text


def no_management() -> None:
    raise DeviceError("no driver")


async def test_snapshots_of_the_dialogs(
    make_app: MakeApp,
    snapshot: Snapshot,
    picture: Callable[[str, DFlashApp], None],
    size: Size,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "near").mkdir()
    model = tmp_path / "near" / "Qwen3.6-27B-Q4_K_M.gguf"
    model.write_bytes(b"GGUF")
    os.truncate(model, 16_547_400_000)  # of that size, and nearly all of it a hole
    monkeypatch.chdir(tmp_path / "near")
    monkeypatch.setattr("dflash_tui.hub.room.host_memory", lambda: HostMemory(64 << 30, 12 << 30, 0))
    monkeypatch.setattr("dflash_tui.hub.room.Management", no_management)
    header = Header("target", "", "Qwen3.6 27B", "qwen35", 26_900_000_000, "Q4_K", 262_144, 5120, own_head=True)
    monkeypatch.setattr("dflash_tui.hub.find.read_header", lambda path, folder: header)
    room = Room(32_768, 32_768, 19 << 30, 0, "12.0 GiB of main memory, on the CPU")
    monkeypatch.setattr("dflash_tui.screens.models.room_for", lambda request, freed: room)
    app = models_app(make_app, [], first_run=True)
    prefix = f"{size[0]}x{size[1]}"
    async with app.run_test(size=size) as pilot:
        await shows(pilot, "Welcome", "fits, 32,768 positions")
        await loaded(pilot)
        await shows(pilot, "● demo pair")
        snapshot(f"{prefix}-first-run", await settled(pilot))
        if size == (80, 24):
            picture("first-run", app)
        await leave(pilot)
        await send(pilot, "/theme")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemesScreen))
        assert app.screen.query_one(OptionList).highlighted == 0
        snapshot(f"{prefix}-themes", await settled(pilot))
        await leave(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "t")
        snapshot(f"{prefix}-completion", await settled(pilot))
