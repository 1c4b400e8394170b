"""A device that is lost takes the process with it: /reload restarts the program, and the conversation goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.errors import KernelError
from dflash_tui.app import DFlashApp
from dflash_tui.application.session import LAST, LISTED, LoadRequest
from dflash_tui.application.starting import arguments_again, resume_line
from dflash_tui.chat.state import AppState
from dflash_tui.cli.options import build_parser
from dflash_tui.launch import open_app

from .fake import ANSWER, FakeSession
from .support import ask, idle, loaded, says, shows, talking, wait_until

MakeApp = Callable[..., DFlashApp]
LOST = KernelError("the GPU gave up in gdn_recurrence (illegal address); reload the engine", reload=True)


async def test_a_lost_device_keeps_the_conversation_for_a_new_process(make_app: MakeApp) -> None:
    app = make_app(FakeSession(fail_after=3, error=LOST))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "✗ the GPU gave up in gdn_recurrence (illegal address)", "/reload restarts the program")
        answer = app.chat.transcript.answer
        assert answer is not None
        said = answer.text
        assert said
        card = app.chat.state.conversation.card
        assert card is not None
        app.chat.prompt.text = "half a thought"
        await pilot.pause()
        app.chat.parts.program.reload()
        await pilot.pause()
    assert app.again[-7:] == ["--demo", "--context", "0", "--kv", "auto", "--resume", card.id]

    again = make_app(FakeSession(), resume=card.id)
    async with again.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await shows(pilot, "❯ hi", "half a thought", "resumed: hi")
        assert [message.content for message in again.chat.state.session.conversation.messages] == ["hi", said]  # type: ignore[union-attr]
        again.chat.prompt.text = ""
        await ask(pilot, "on")
        await idle(pilot)
        assert again.chat.transcript.answer.text == ANSWER  # type: ignore[union-attr]
        assert not again.again


async def test_a_load_that_finds_the_device_lost_says_the_same(make_app: MakeApp) -> None:
    def load(progress: Callable[[str, float], None]) -> FakeSession:
        raise LOST

    app = make_app(load=load)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "the model did not load: the GPU gave up", "/reload restarts the program")
        await ask(pilot, "/reload")
        await wait_until(pilot, lambda: bool(app.again))
    assert "--resume" not in app.again


async def test_an_unknown_conversation_is_said(make_app: MakeApp) -> None:
    app = make_app(FakeSession(), resume="nothing")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "no conversation 'nothing'; dflash-tui conversations list shows them")


REQUEST = LoadRequest(Path("b.gguf"), Path("d"), context=4096)


@pytest.mark.parametrize(
    ("given", "request_", "expected"),
    [
        ("", LoadRequest(), "--demo --context 0 --kv auto --resume 12"),
        ("--demo --set budget=4 --resume=9", LoadRequest(), "--set budget=4 --demo --context 0 --kv auto --resume 12"),
        ("--target a.gguf --draft=x", REQUEST, "--target b.gguf --draft d --context 4096 --kv auto --resume 12"),
        ("--trace t --no-mouse --context 512", LoadRequest(), "--no-mouse --demo --context 0 --kv auto --resume 12"),
        ("--resume --continue --no-mouse", LoadRequest(), "--no-mouse --demo --context 0 --kv auto --resume 12"),
        (
            "--attach http://a --attach-key k --no-mouse",
            LoadRequest(attach="http://b", attach_model="m"),
            "--attach-key k --no-mouse --attach http://b --attach-model m --context 0 --kv auto --resume 12",
        ),
        ("--attach http://a", LoadRequest(), "--demo --context 0 --kv auto --resume 12"),
        ("--demo --kv f16", LoadRequest(kv="q8_0/q4_0"), "--demo --context 0 --kv q8_0/q4_0 --resume 12"),
    ],
)
def test_the_command_line_is_that_of_the_present_state(given: str, request_: LoadRequest, expected: str) -> None:
    arguments = arguments_again(given.split(), request_, "12")
    assert arguments == expected.split()
    assert build_parser().parse_args(arguments).resume == "12"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "--resume 12"),
        ("--demo --resume 9 --set budget=4", "--demo --set budget=4 --resume 12"),
        ("--target a.gguf --trace t --continue", "--target a.gguf --resume 12"),
        ("--resume", "--resume 12"),
        ("--attach http://a --attach-key k", "--attach http://a --resume 12"),
        ("--key=k --attach http://a", "--attach http://a --resume 12"),
    ],
)
def test_the_command_to_come_back_with(given: str, expected: str) -> None:
    assert resume_line(given.split(), "12") == f"dflash-tui {expected}"


@pytest.mark.parametrize(
    ("given", "resume"),
    [("", ""), ("--continue", LAST), ("--resume", LISTED), ("--resume 9a", "9a"), ("--resume=9", "9")],
)
def test_the_conversation_that_a_command_line_names(given: str, resume: str) -> None:
    assert build_parser().parse_args(given.split()).resume == resume


def test_quitting_says_how_to_come_back(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is a conversation to come back to."""
    monkeypatch.setattr(sys, "argv", ["dflash-tui", "--demo"])
    for resumable, line in (("", ""), ("12ab", "dflash-tui: to come back: dflash-tui --demo --resume 12ab\n")):
        monkeypatch.setattr(AppState, "resumable", resumable)
        app = make_app()
        monkeypatch.setattr(app, "run", lambda mouse: 0)
        open_app(app)
        assert capsys.readouterr().err == line


async def test_the_last_conversation_is_offered_and_comes_back(make_app: MakeApp) -> None:
    """By a key of the first page and by options of the command line; a conversation that was begun is resumable."""
    async with talking(make_app, ("what is a fox", "an animal")) as (app, pilot, session):
        first = app.chat.state.resumable
        await pilot.press("ctrl+n")
        await shows(pilot, "Last    what is a fox", "just now; Alt+L goes on with it")
        assert app.chat.state.resumable == ""
        await says(pilot, session, "and a hare", "one too")
        second = app.chat.state.resumable
        await pilot.press("alt+l")
        await shows(pilot, "resumed: what is a fox")
        assert app.chat.state.resumable == first, "the last one besides that on the screen"
    for resume, keys, found in (
        ("", ("alt+l",), second),
        (LAST, (), second),
        (LISTED, ("enter",), second),
        (first, (), first),
    ):
        app = make_app(resume=resume)
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            if keys:
                await shows(pilot, "Last    and a hare" if keys == ("alt+l",) else "2 conversations")
            await pilot.press(*keys)
            await wait_until(pilot, lambda app=app, found=found: app.chat.state.resumable == found)


@pytest.mark.parametrize("resume", [LAST, LISTED])
async def test_where_there_is_no_conversation_yet(make_app: MakeApp, resume: str) -> None:
    app = make_app(resume=resume)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "there is no earlier conversation" if resume == LAST else "No conversation yet")
        assert not app.chat.state.resumable


def test_the_new_process_is_started_as_the_old_one_was(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "dflash_tui", "--verbose"])
    monkeypatch.setattr(sys, "argv", ["/there/__main__.py", "--verbose"])
    monkeypatch.setattr(os, "execv", lambda program, words: started.append([program, *words]))
    app = make_app()
    monkeypatch.setattr(app, "run", lambda mouse: app.restart("12", 0))
    monkeypatch.setattr(app, "exit", lambda code: None)
    open_app(app)
    words = ["python", "-X", "dev", "-m", "dflash_tui", "--verbose", "--demo"]
    words += ["--context", "0", "--kv", "auto", "--resume", "12"]
    assert started == [[sys.executable, *words]]
    assert capsys.readouterr().err == "dflash-tui: restarting, the conversation goes on\n"
