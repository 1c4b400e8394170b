"""`states`, the settings of states, and what a load makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_core.memory import parse_bytes
from dflash_tui.application.engine_session import load_session, state_folder
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import load_config
from dflash_tui.cli.command_line import main

FOLDER = "dflash_tui.cli.states.user_folder"


def test_they_are_counted_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FOLDER, lambda kind: tmp_path)
    assert main(["states"]) == 0
    assert capsys.readouterr().out == f"none in {tmp_path / 'states'}\n"
    (tmp_path / "states").mkdir()
    for name in ("a.safetensors", "b.safetensors", "c.part", "d.state"):
        (tmp_path / "states" / name).write_bytes(b"x" * 512)
    assert main(["states", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 1024
    assert main(["states", "clear"]) == 0
    assert capsys.readouterr().out == "deleted 2 conversations, 1.0 KiB\n"
    assert not list((tmp_path / "states").iterdir())


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("keep_states = 3", "keep_states", 3),
        ('states_memory = "4GiB"', "states_memory", "4GiB"),
        ('states_memory = "auto"', "states_memory", "auto"),
        ("states_memory = 0", "states_memory", "0"),
    ],
)
def test_settings(line: str, name: str, value: object, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(line + "\n")
    config = load_config(environment={}, user=file, project=tmp_path / "none")
    assert getattr(config.settings, name) == value
    assert not config.problems
    config = load_config(environment={f"DFLASH_TUI_{name.upper()}": str(value)}, user=tmp_path / "none")
    assert getattr(config.settings, name) == value


@pytest.mark.parametrize(
    "line",
    ["keep_states = -1", "keep_states = 1.5", "keep_states = true", 'states_memory = "many"', "states_memory = 7"],
)
def test_settings_that_are_wrong(line: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(line + "\n")
    config = load_config(environment={}, user=file, project=tmp_path / "none")
    assert (config.settings.keep_states, config.settings.states_memory) == (0, "auto")
    [problem] = config.problems
    assert "expected" in problem


def test_a_reload_goes_on_from_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a longer context; the request carries the store from one session to the next."""
    from dataclasses import replace

    request = LoadRequest(device="cpu", context=1024, states_memory="1GiB")
    first = load_session(request, lambda phase, done: None)
    knobs = request.knobs.replace(max_tokens=8, temperature=0.0)
    list(first.conversation.ask("Count to three.", knobs))
    first.leave()
    assert request.states[0].max_bytes == parse_bytes("1GiB")
    second = load_session(replace(request, context=2048), lambda phase, done: None)
    second.conversation.set_messages(first.conversation.messages)
    turn = second.conversation.ask("And back?", knobs)
    list(turn)
    assert turn.report is not None
    assert turn.report.stats.reused_tokens > 0
    assert state_folder().count == 0
