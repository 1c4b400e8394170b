"""`--attach` on the command line: the list of servers, and what it does not go with."""

from __future__ import annotations

from functools import partial

import pytest

from dflash_tui.application.attach import attaching
from dflash_tui.cli import command_line
from dflash_tui.cli.command_line import main
from support.engine_recordings import VLLM
from support.engine_server import replaying


def test_without_an_address_it_lists_what_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with replaying(VLLM) as server:
        monkeypatch.setattr(attaching, "find", partial(attaching.find, [server.url], 60.0))
        assert main(["--attach"]) == 0
    assert capsys.readouterr().out == f"{server.url}  vLLM: test-model\n"
    assert main(["--attach"]) == 1  # it has ended
    shown = capsys.readouterr()
    assert (shown.out, "nothing answers on the usual ports" in shown.err) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--attach", "ftp://here"], "expected an address such as http://127.0.0.1:8080"),
        (["--attach", "http://127.0.0.1:9"], "the app needs a terminal"),
    ],
)
def test_refusals(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert said in capsys.readouterr().err


def test_it_goes_with_the_app(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--attach", "http://127.0.0.1:9", "ask", "hi"])
    assert "--attach goes with the app, not with ask" in capsys.readouterr().err


def test_a_key_of_the_environment_is_the_server_s(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setenv("DFLASH_TUI_API_KEY", "of-the-environment")
    monkeypatch.setattr(command_line, "check_terminal", lambda *_: None)
    monkeypatch.setattr("dflash_tui.launch.run_app", lambda request, config: asked.append(request) or 0)
    for key, expected in ((), "of-the-environment"), (("--key", "typed"), "typed"):
        assert main(["--attach", "http://127.0.0.1:9", *key, "--attach-model", "m"]) == 0
        assert (asked[-1].attach, asked[-1].attach_key, asked[-1].attach_model) == ("http://127.0.0.1:9", expected, "m")
        assert expected not in repr(asked[-1])
