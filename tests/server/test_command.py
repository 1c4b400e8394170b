"""`serve` and `connect` on the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.cli.command_line import main
from dflash_tui.cli.options import build_parser
from dflash_tui.server.recipes import RECIPES, written
from dflash_tui.server.settings import RequestLog, ServerSettings
from support import demo_pair
from support.processes import run_python
from support.serving import running


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--no-api-key"),
        (["--cors", "*"], "--api-key"),
        (["--cors", "page.example"], "expected an origin"),
        (["--cors", "http://page.example/"], "expected an origin"),
        (["--api-key", "a b"], "printable ASCII"),
        (["--port", "70000"], "0 to 65535"),
        (["--queue", "0"], "from 1"),
        (["--log-prompts"], "--log FILE"),
    ],
)
def test_wrong_options_are_refused_before_a_load(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--demo", *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_port_in_use_is_told_before_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--demo", "--port", port]) == 1
    told = capsys.readouterr().err
    assert f"127.0.0.1:{port} cannot be listened on" in told
    assert "loading" not in told


def test_a_log_belongs_to_its_user_alone(tmp_path: Path) -> None:
    file, pipe = tmp_path / "log", tmp_path / "pipe"
    file.touch(mode=0o644)
    RequestLog(file).write({"status": 200}, {})
    assert file.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    with pytest.raises(DFlashError, match="cannot be written"):
        RequestLog(pipe)  # nobody reads it: opening must not wait


def test_a_log_that_cannot_be_written_is_told_before_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--demo", "--port", "0", "--log", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert f"--log {tmp_path} cannot be written" in told
    assert "loading" not in told


def test_recipes_name_the_server_and_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    with running(demo_pair.new_engine()) as server:
        for name in RECIPES:
            assert main(["connect", name, "--url", server.address + "/v1/", "--key", "k1"]) == 0
            told = capsys.readouterr()
            assert server.address in told.out
            assert "k1" in told.out
            assert "<" not in told.out
            assert told.err == ""
        assert main(["connect", "codex", "--url", server.address]) == 0
        config: Any = tomllib.loads(capsys.readouterr().out)
        assert (config["model"], config["model_context_window"]) == ("demo", 2048)
        assert main(["connect", "opencode", "--url", server.address]) == 0
        lines = capsys.readouterr().out.splitlines()
        found = json.loads("\n".join(line for line in lines if not line.startswith("#")))
        assert found["provider"]["dflash"]["models"]["demo"]["limit"]["context"] == 2048
    assert main(["connect", "claude", "--url", server.address]) == 0
    told = capsys.readouterr()
    assert "does not answer" in told.err
    assert int(re.findall(r"--context (\d+)", told.out)[0]) == int(re.findall(r"MAX_CONTEXT_TOKENS=(\d+)", told.out)[0])
    assert main(["connect"]) == 0
    assert "claude" in capsys.readouterr().out
    for url in ("file:///etc/passwd", "http://h:99999", ""):
        assert main(["connect", "claude", "--url", url]) == 1
        assert "expected an address such as" in capsys.readouterr().err
    assert main(["connect", "claude", "--url", server.address, "--key", "secret\n"]) == 1
    told = capsys.readouterr().err
    assert "characters that a header cannot carry" in told
    assert "secret" not in told


def test_a_server_that_wants_a_key_is_told_from_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(demo_pair.new_engine(), ServerSettings(port=0, keys=("k1",))) as server:
        assert main(["connect", "claude", "--url", server.address]) == 0
        assert f"note: {server.address}: it needs a key: --key or DFLASH_TUI_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("DFLASH_TUI_API_KEY", "k1")
        assert main(["connect", "claude", "--url", server.address]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "ANTHROPIC_AUTH_TOKEN=k1" in told.out


@pytest.mark.parametrize("name", RECIPES)
def test_values_of_recipes_are_quoted(name: str) -> None:
    """The model's name comes from a server that may be another's, and the lines go into a shell."""
    model, key = "a $(touch \"x\"); 'b'", "k$1;k"
    text = written(RECIPES[name], url="http://a", key=key, model=f"{model}\n\x1b[2J", context=2048)
    assert "\x1b" not in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if name == "codex":
        found: Any = tomllib.loads(text)
        assert found["model"].startswith(model)
        assert found["model_providers"]["dflash"]["experimental_bearer_token"] == key
    elif name == "opencode":
        assert json.loads("\n".join(lines))["provider"]["dflash"]["options"]["apiKey"] == key
    elif name == "continue":
        values = [line.partition(": ")[2] for line in lines if "name:" in line or "apiKey:" in line]
        assert json.loads(values[1]).startswith(model)
        assert json.loads(values[2]) == key
    else:
        # One word each: a shell that split or expanded a value would see others.
        words = [shlex.split(line) for line in lines if line]
        assert all(len(line) == 2 for line in words if line[0] == "export")
        assert any(word.endswith(f"={key}") for line in words for word in line)
        assert not any("$(" in line.replace(shlex.quote(one_line(f"{model}\n\x1b[2J")), "") for line in lines)


def test_the_command_line_needs_no_server() -> None:
    """The syntax of the command line is read without its libraries."""
    code = (
        "import sys; from dflash_tui.cli.options import build_parser; build_parser(); print('starlette' in sys.modules)"
    )
    assert run_python(code) == "False"
    assert build_parser().parse_args(["serve"]).port == 8080
