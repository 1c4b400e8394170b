"""The command line's grammar: what it accepts, what it refuses, and that it is quick."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from dflash_tui import __version__
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import Config
from dflash_tui.cli import command_line as cli
from dflash_tui.cli.options import build_parser


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[LoadRequest]:
    """The arguments that the app would be opened with; it is not opened."""
    requests: list[LoadRequest] = []

    def run_app(request: LoadRequest, config: Config) -> int:
        requests.append(request)
        return 0

    monkeypatch.setitem(sys.modules, "dflash_tui.launch", SimpleNamespace(run_app=run_app))
    monkeypatch.setattr(cli, "check_terminal", lambda *_: None)
    return requests


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LoadRequest, str, dict[str, Any]]]:
    """What `ask` was called with."""
    from dflash_tui.cli import ask

    calls: list[tuple[LoadRequest, str, dict[str, Any]]] = []

    def run(request: LoadRequest, prompt: str, **options: Any) -> int:
        calls.append((request, prompt, options))
        return 0

    monkeypatch.setattr(ask, "answer", run)
    return calls


def usage_error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1]


def test_no_command_opens_the_app_on_the_demo_pair(opened: list[LoadRequest]) -> None:
    assert cli.main([]) == 0
    [request] = opened
    assert request.target is None
    assert request.target is None
    assert request.device == "auto"
    assert request.knobs.budget == 22


def test_a_held_alt_key_stays_a_key(opened: list[LoadRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual reads the delay when it is imported; a key that repeats comes 30 times a second."""
    monkeypatch.setenv("ESCDELAY", "")
    monkeypatch.delenv("ESCDELAY")
    assert cli.main([]) == 0
    assert 0 < int(os.environ["ESCDELAY"]) < 1000 / 30
    monkeypatch.setenv("ESCDELAY", "70")
    assert cli.main([]) == 0
    assert os.environ["ESCDELAY"] == "70", "the user's own"


def test_the_app_is_not_opened_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 1
    assert capsys.readouterr().err == (
        "dflash-tui: the app needs a terminal; in a pipe or a script use: dflash-tui ask\n"
    )


def test_the_app_is_not_opened_on_a_terminal_without_a_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dflash_tui.terminal.output.on_a_terminal", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert cli.main([]) == 1
    assert capsys.readouterr().err == (
        "dflash-tui: the app needs a terminal with a cursor, and TERM is dumb; set xterm-256color, or use: "
        "dflash-tui ask\n"
    )


@pytest.mark.parametrize("words", [["inspect", ""], ["ask", "--target", "", "hi"]])
def test_an_empty_name_is_no_file(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A variable of the shell that is not set; it stood for the current folder."""
    with pytest.raises(SystemExit) as refusal:
        cli.main(words)
    assert refusal.value.code == 2
    assert "found no name, expected a file or a folder" in capsys.readouterr().err


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "_dispatch", full)
    assert cli.main(["models"]) == 1
    assert "the output is cut off: no space left on its disk; write it to another one" in capsys.readouterr().err


def test_a_conversation_to_go_on_with(opened: list[LoadRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--resume", "12ab"]) == 0
    assert opened[0].resume == "12ab"
    assert "--resume and --continue go with the app, not with ask" in usage_error(
        capsys, "--resume", "12ab", "ask", "hi"
    )


def test_files_and_settings_reach_the_app(opened: list[LoadRequest], tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.touch()
    argv = ["--target", str(target), "--draft", str(tmp_path), "--device", "cpu", "--set", "budget=40"]
    assert cli.main([*argv, "--set", "thinking=on"]) == 0
    [request] = opened
    assert (request.target, request.draft, request.device) == (target, tmp_path, "cpu")
    assert request.knobs.budget == 40
    assert request.knobs.thinking is True


def test_options_are_understood_before_and_after_the_command(asked: list[Any]) -> None:
    cli.main(["--set", "budget=4", "--json", "ask", "hi", "--set", "top_k=20", "--set", "budget=5", "--device", "cpu"])
    [(request, prompt, options)] = asked
    assert prompt == "hi"
    assert options == {"system": "", "as_json": True, "plain": False, "tools": None}
    assert request.knobs.top_k == 20
    assert request.knobs.budget == 5
    assert request.device == "cpu"


def test_options_before_the_command_survive_it(asked: list[Any], tmp_path: Path) -> None:
    cli.main(["--target", str(tmp_path), "--device", "cpu", "ask", "hi"])
    [(request, _, options)] = asked
    assert request.target == tmp_path
    assert request.device == "cpu"
    assert options["as_json"] is False


def test_a_drafter_without_a_file_goes_with_the_demo_target(asked: list[Any]) -> None:
    cli.main(["--demo", "--draft", "text", "ask", "hi"])
    [(request, _, _)] = asked
    assert request.target is None
    assert str(request.draft) == "text"


@pytest.mark.parametrize("argv", [["--draft", "dflash2+mtp+ngram"], ["--draft", "dflash2", "--draft", "mtp+ngram"],
                                  ["--draft", "dflash2", "--draft", "mtp", "--draft", "ngram"]])  # fmt: skip
def test_several_drafters_by_a_plus_or_by_repeating(asked: list[Any], argv: list[str]) -> None:
    cli.main(["--demo", *argv, "ask", "hi"])
    [(request, _, _)] = asked
    assert str(request.draft) == "dflash2+mtp+ngram"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--set", "budgett=4"], "--set: unknown parameter 'budgett'; did you mean budget?"),
        (["--kv", ""], "dflash-tui: --kv: no cache type: expected auto, or one of"),
        (["--set", "budget=many"], "expected a whole number from 1 to 256"),
        (["--set", "budget=0"], "expected 1 to 256"),
        (["--set", "budget"], "expected NAME=VALUE"),
        (["--device", "tpu"], "--device: found 'tpu', expected auto, cpu, cuda;"),
        (["--demo", "--target", "x.gguf"], "--demo brings its own target and drafter"),
        (["--demo", "--draft", "x.gguf"], "--demo brings its own target and drafter"),
        (["--demo", "--draft", "nope"], "no drafter 'nope'; the demo pair has dflash, dflash2, mtp, ngram"),
        (["--demo", "--draft", "mtp+swa"], "no drafter 'swa'; the demo pair has dflash, dflash2, mtp, ngram"),
        (["--demo", "--draft", "mtp+"], "--draft mtp+: a plus without a drafter beside it; expected names joined"),
        (["--target", "x.gguf", "--draft", "+"], "--draft +: a plus without a drafter beside it"),
        (["--draft", "x"], "--draft needs a --target"),
        (["--json"], "--json needs a command"),
        (["--frobnicate"], "unrecognized arguments"),
        (["improvise"], "COMMAND: found 'improvise', expected ask, serve, connect,"),
        (["model.gguf"], "model.gguf is no command; to open a model: dflash-tui --target model.gguf"),
        (["plan", "model.gguf"], "dflash-tui plan: model.gguf: a model is given as --target model.gguf;"),
        (["connect", "vim"], "dflash-tui connect: NAME: found 'vim', expected claude, codex,"),
        (["."], ". is no command; to open a model: dflash-tui --target ."),
    ],
)
def test_wrong_usage_is_exit_code_2(
    argv: list[str], says: str, opened: list[LoadRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in usage_error(capsys, *argv)
    assert not opened


def test_help_names_the_drafters_and_the_first_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(kind in said for kind in ("dflash-tui models lists", "DFlash 2", "DSpark", "MTP", "n-grams"))
    assert "Qwen" not in said, "there are more families than one, and models lists them"
    assert "the first start of the app asks which" in said


def test_ask_without_a_prompt_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert "no prompt; give words" in usage_error(capsys, "ask")


@pytest.mark.parametrize("option", ["--target", "--draft"])
def test_a_missing_file_is_one_line_before_anything_opens(
    option: str, opened: list[LoadRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"--target": str(tmp_path), "--draft": str(tmp_path), option: str(tmp_path / "gone")}
    assert cli.main([word for pair in files.items() for word in pair]) == 1
    error = capsys.readouterr().err
    assert error == f"dflash-tui: {option} {tmp_path / 'gone'}: no such file or folder; check the path\n"
    assert not opened


def test_the_beginning_of_a_pairs_name_as_a_target_names_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--target", "qwen3.8"]) == 1
    assert "did you mean the pair qwen3.8-27b?" in capsys.readouterr().err


def test_an_unknown_option_names_its_command_and_a_parameter_its_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_error(capsys, "ask", "hi", "--bogus").startswith("dflash-tui ask: unrecognized arguments: --bogus")
    assert "give it as --set max_tokens=VALUE" in usage_error(capsys, "ask", "hi", "--max-tokens", "9")


def test_the_home_folder_is_understood(
    opened: list[LoadRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert cli.main(["--target=~/m.gguf"]) == 0
    assert opened[0].target == tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (PermissionError(13, "Permission denied", "/models/m.gguf"), 1, "/models/m.gguf: Permission denied"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_goes_wrong_outside_is_one_line(
    error: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_app(_request: LoadRequest, _config: Config) -> int:
        raise error

    monkeypatch.setitem(sys.modules, "dflash_tui.launch", SimpleNamespace(run_app=run_app))
    monkeypatch.setattr(cli, "check_terminal", lambda *_: None)
    assert cli.main([]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.split("\n")) <= 3


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_and_version_import_nothing_heavy(option: str) -> None:
    code = (
        "import sys\nfrom dflash_tui.cli import main\n"
        f"try: main([{option!r}])\nexcept SystemExit as e: assert not e.code\n"
        "heavy = {'torch', 'textual', 'rich', 'numpy', 'tokenizers', 'gguf'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert ("dflash-tui " + __version__ if option == "--version" else "doctor") in done.stdout


def test_help_names_every_parameter_and_exit_code() -> None:
    text = build_parser().format_help()
    from dflash_core.knobs import SPECS

    assert all(spec.name in text for spec in SPECS)
    assert "130 interrupted" in text


def test_a_context_is_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["ask", "--context", "many", "hi"])
    assert left.value.code == 2
    assert "context=many: expected a whole number from 0 to 1,048,576" in capsys.readouterr().err


def test_the_context_that_was_asked_for_is_the_one_that_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "--context", "64", "--json", "--set", "ignore_eos=on", "hi"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["stop"] == "context full"
    assert answer["stats"]["prompt_tokens"] + answer["stats"]["tokens"] == 64
