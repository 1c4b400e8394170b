"""Tools on the command line: which are there, and the calls of `ask`, over a server and given answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_core.conversation import Conversation
from dflash_tui.application.settings.config import user_file
from dflash_tui.application.tools import offered, rounds
from dflash_tui.cli import loading
from dflash_tui.cli.command_line import main
from support.light_tool_server import COMMAND
from support.scripted import ScriptedEngine

Answers = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path))


def settings(allow: str = "[]", more: str = "") -> None:
    file = user_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f'[mcp_servers.things]\ncommand = "{COMMAND[0]}"\nargs = ["{COMMAND[1]}"]\nallow = {allow}\n'
    file.write_text(text + more, encoding="utf-8")


def written(name: str, **arguments: object) -> str:
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Has the model give these answers; returns the prompts that it gets."""

    def given(*texts: str) -> list[str]:
        prompts: list[str] = []
        waiting = list(texts)

        def script(prompt: str) -> str:
            prompts.append(prompt)
            return waiting.pop(0)

        def begun(request: object, notes: object, system: str) -> tuple[Any, Conversation]:
            engine = ScriptedEngine(script, width=5)
            return engine, Conversation(engine, engine.target.tokenizer, engine.target.template, system)

        monkeypatch.setattr(loading, "begun_conversation", begun)
        return prompts

    return given


def ask(*words: str) -> int:
    return main(["ask", "--demo", "--set", "thinking=off", *words, "Go on."])


def test_servers_are_listed_with_their_tools(capsys: pytest.CaptureFixture[str]) -> None:
    settings(more='[mcp_servers.broken]\ncommand = "sh"\nargs = ["-c", "echo no luck >&2; exit 3"]\n')
    assert main(["tools"]) == 1
    out = capsys.readouterr().out
    assert "things has 9 tools\n  add                      Adds two numbers.\n" in out
    assert "broken: it has ended with code 3: no luck\n" in out
    assert main(["tools", "things", "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)["servers"]
    assert listed["state"] == "on"
    assert {"name": "add", "description": "Adds two numbers."} in listed["tools"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tools", "nothing"], "no server 'nothing' in the settings; there are: things"),
        (["ask", "--demo", "--allow", "add", "hi"], "--allow goes with --tools"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    settings()
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code > 0
    assert said in capsys.readouterr().err


def test_without_servers_and_without_the_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tools"]) == 1
    assert "write a table [mcp_servers.NAME] there" in capsys.readouterr().err
    settings()
    monkeypatch.setattr(offered, "find_spec", lambda name: None)
    assert main(["tools"]) == 1
    assert 'pip install "dflash-tui[tools]"' in capsys.readouterr().err


ALLOWED = [('["add"]', []), ("[]", ["--allow", "add"]), ("[]", ["--allow", "things"])]


@pytest.mark.parametrize(("allow", "words"), ALLOWED)
def test_an_allowed_call_is_made(
    answers: Answers, capsys: pytest.CaptureFixture[str], allow: str, words: list[str]
) -> None:
    settings(allow)
    prompts = answers("I add.\n\n" + written("add", a=2, b=3), "Five.")
    assert ask("--tools", *words) == 0
    shown = capsys.readouterr()
    assert "I add." in shown.out
    assert shown.out.endswith("Five.\n")
    assert "<tool_call>" not in shown.out
    assert 'tool: add {"a": 2, "b": 3}: done' in shown.err
    assert "<tool_response>\n5\n</tool_response>" in prompts[1]


def test_a_call_that_is_not_allowed_is_a_refusal(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    settings('["echo"]')
    prompts = answers(written("add", a=2, b=3), "Then not.")
    assert ask("--tools", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == "Then not."
    assert found["calls"] == [
        {"name": "add", "arguments": {"a": 2, "b": 3}, "outcome": "denied", "text": rounds.NOT_ASKED}
    ]
    assert rounds.NOT_ASKED in prompts[1]


def test_calls_without_end_are_ended(
    answers: Answers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings('["*"]')
    monkeypatch.setattr(rounds, "MAX_ROUNDS", 2)
    prompts = answers(*[written("add", a=1, b=1)] * 10)
    assert ask("--tools") == 0
    assert len(prompts) == 4
    assert capsys.readouterr().err.count(": done") == 2


def test_without_the_option_no_server_is_started(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    settings(more='[mcp_servers.never]\ncommand = "/no/such/program"\n')
    prompts = answers("Hello.")
    assert ask() == 0
    assert "never" not in capsys.readouterr().err
    assert "tools" not in prompts[0]
