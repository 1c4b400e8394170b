"""What goes wrong is said where it happened, with the next step; nothing typed or generated is lost."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.worker import WorkerFailed

from dflash_core.errors import DFlashError, FormatError, TemplateError
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.store import database
from dflash_tui.application.session import LoadRequest
from dflash_tui.launch import run_app
from dflash_tui.widgets.flash import Flash, Note

from .fake import ANSWER, FakeSession
from .support import ask, idle, loaded, screen_text, shows, smallest, wait_until

MakeApp = Callable[..., DFlashApp]
Size = tuple[int, int]


@smallest
async def test_a_load_failure_is_explained_and_can_be_retried(make_app: MakeApp, size: Size) -> None:
    session, attempts = FakeSession(), []

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        attempts.append(1)
        if len(attempts) == 1:
            raise FormatError("x.gguf is not a GGUF: it begins with 'PK', expected 'GGUF'; download it again")
        return session

    app = make_app(load=load)
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: bool(app.chat.query(Note)))
        await shows(pilot, "the model did not load: x.gguf is not a GGUF", "Ctrl+R loads again, /load another")
        await ask(pilot, "hi")
        assert app.chat.prompt.text == "hi"
        await shows(pilot, "your text stays here")
        await pilot.press("ctrl+r")
        await loaded(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: session.asked == [("hi", app.chat.state.used)])
        await idle(pilot)


async def test_a_message_queued_before_a_failed_load_is_sent_after_the_next(make_app: MakeApp) -> None:
    session, attempts = FakeSession(), []

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        attempts.append(1)
        if len(attempts) == 1:
            while not app.chat.state.waiting:
                time.sleep(0.01)
            raise DFlashError("no such file")
        return session

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, "hi")
        await shows(pilot, "waits for a model")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(session.asked) == 1)
        await idle(pilot)
        assert "waits for a model" not in screen_text(app)


@smallest
async def test_an_error_in_mid_turn_keeps_the_text(make_app: MakeApp, size: Size) -> None:
    session = FakeSession(fail_after=3)
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "✗ the device was lost in mid-step", "Ctrl+R tries again", "failed")
        answer = app.chat.transcript.answer
        assert answer is not None
        assert len(answer.text) > 10
        assert ANSWER.startswith(answer.text)
        session.fail_after = None
        await pilot.press("ctrl+r")
        await idle(pilot)
        assert session.asked[-1][0] == "<retry>"
        assert app.chat.transcript.answer.text == ANSWER  # type: ignore[union-attr]
        assert answer.text, "the broken answer stays, folded"


async def test_a_refused_message_comes_back_to_the_prompt(make_app: MakeApp) -> None:
    session = FakeSession(refuse=TemplateError("the chat template refused this message"))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "the chat template refused", "Ctrl+R tries again")
        assert app.chat.prompt.text == "hi"
        session.refuse = None
        await pilot.press("ctrl+r")
        await idle(pilot)
        assert [prompt for prompt, _ in session.asked] == ["hi", "hi"], "a refused message is asked, not retried"
        assert app.chat.prompt.text == ""


async def test_a_fault_of_the_program_leaves_a_trace(make_app: MakeApp, tmp_path: Path) -> None:
    session = FakeSession(fail_after=2, error=ZeroDivisionError("by zero"))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "fault in the program: ZeroDivisionError: by zero")
        assert str(tmp_path / "data" / "last-error.txt") in app.chat.query(Note).last().advice
        assert "ZeroDivisionError" in (tmp_path / "data" / "last-error.txt").read_text()
        session.fail_after = None
        await ask(pilot, "again")
        await idle(pilot)
        assert app.chat.transcript.answer.text == ANSWER  # type: ignore[union-attr]


async def test_a_breakdown_that_fails_stops_nothing(make_app: MakeApp) -> None:
    session = FakeSession()

    def broken() -> None:
        raise OSError("no driver")

    session.memory = broken  # type: ignore[method-assign,assignment]
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f5")
        await shows(pilot, "known when the model has loaded")
        await ask(pilot, "hi")
        await idle(pilot)
        assert app.chat.transcript.answer.text == ANSWER  # type: ignore[union-attr]


async def test_notes_of_the_pair_are_shown(make_app: MakeApp) -> None:
    app = make_app(FakeSession(notes=("the file has no chat template: plain ChatML is used",)))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, "· the file has no chat template: plain ChatML is used")


async def test_control_codes_of_a_model_never_reach_the_terminal(make_app: MakeApp) -> None:
    session = FakeSession(answer="a\x1b]0;owned\x07b\x1b[2Jc\u202edef\x9b31m [x](http://example.org) end.")
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "a�]0;owned�b�[2Jc�def�31m")
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(screen_text(app))


async def test_an_answer_without_text(make_app: MakeApp) -> None:
    app = make_app(FakeSession(answer=" "))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "1 tok")


@pytest.mark.parametrize("in_worker", [False, True])
async def test_a_fault_in_the_app_itself_keeps_what_was_typed_and_generated(
    make_app: MakeApp, tmp_path: Path, *, in_worker: bool
) -> None:
    app = make_app()

    async def broken() -> None:
        1 / 0  # noqa: B018

    async def use() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            await ask(pilot, "hi")
            await idle(pilot)
            app.chat.prompt.text = "half a thought"
            if in_worker:
                app.chat.run_worker(broken())
            else:
                app.chat.call_next(broken)
            await wait_until(pilot, lambda: False)

    with pytest.raises(WorkerFailed if in_worker else ZeroDivisionError):
        await use()
    data = tmp_path / "data"
    current = CurrentConversation(data)
    assert current.rescue().texts == ("half a thought",)
    assert [node.content for node in current.store.branches(current.store.list()[0].card.id).path] == ["hi", ANSWER]
    trace = (data / "last-error.txt").read_text()
    assert "in broken" in trace
    assert "ZeroDivisionError" in trace
    assert "\n" not in app.fault
    assert app.fault.startswith("fault in the program: ZeroDivisionError")
    assert "your text comes back at the next start; the conversation is saved" in app.fault
    assert str(data / "last-error.txt") in app.fault
    assert not app._exit_renderables, "no page of source on the terminal"


@pytest.mark.parametrize("first_run", [False, True])
async def test_an_sqlite_that_cannot_search_is_one_line(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, *, first_run: bool
) -> None:
    """The error occurs after the first frame, or when the first page opens over it."""

    def lacks() -> None:
        raise sqlite3.OperationalError("no such module: fts5")

    monkeypatch.setattr(database, "reference", lacks)
    app = make_app(first_run=first_run)

    async def use() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await wait_until(pilot, lambda: False)

    with pytest.raises(DFlashError):
        await use()
    assert app.fault == "this Python's SQLite has no full-text search (FTS5); use a Python that has it"
    assert app.return_code == 1


async def test_quitting_before_the_first_frame_opens_nothing(make_app: MakeApp) -> None:
    app = make_app()
    app.chat.displayed = lambda: None
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert app.return_value == 0
    assert not app.chat.state.past.folder.exists()


def test_a_fault_in_the_app_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def run(app: DFlashApp, *, mouse: bool) -> None:
        app._handle_exception(ZeroDivisionError("by zero"))

    monkeypatch.setattr(DFlashApp, "run", run)
    assert run_app(LoadRequest()) == 1
    error = capsys.readouterr().err
    assert error.startswith("dflash-tui: fault in the program: ZeroDivisionError: by zero; ")
    assert error.count("\n") == 1


async def test_a_data_folder_with_brackets_in_its_name_is_named_as_it_is(make_app: MakeApp, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    app = make_app(data_dir=tmp_path / "file" / "[/b][red]")
    async with app.run_test(size=(200, 60), notifications=True) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        assert "[/b][red]" in next(iter(app._notifications)).message
        await shows(pilot, "Data folder", "[/b]")


async def test_a_loader_that_has_just_ended_still_counts_as_loading(make_app: MakeApp) -> None:
    """Otherwise a message in that moment is refused, and Ctrl+R loads the model a second time."""
    go, loads = threading.Event(), []

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        loads.append(1)
        go.wait(600)
        return FakeSession()

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: app.chat.parts.program.running is not None)
        loading = app.chat.parts.program.running
        assert loading is not None
        go.set()
        while not loading.over:
            time.sleep(0.001)  # the app does not run meanwhile, so it has not looked
        await app.chat.action_retry()
        await loaded(pilot)
        assert loads == [1]


@smallest
async def test_a_refusal_goes_with_the_next_message(make_app: MakeApp, size: Size) -> None:
    session = FakeSession(gate=threading.Semaphore(0))
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "see @missing.txt")
        await shows(pilot, "no such file")
        app.chat.prompt.text = ""
        await ask(pilot, "hi")
        assert not app.chat.query_one(Flash).display, "it does not wait until it fades"
        session.gate.release(10_000)
        await idle(pilot)
