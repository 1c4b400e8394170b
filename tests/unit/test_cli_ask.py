"""`ask` from prompt to exit code, on a tiny real pair: what goes to stdout, what to stderr, and how it ends."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from text_data import QWEN_TEMPLATE

from dflash_core.events import PrefillEvent, StageTimes, StepEvent, StepTree
from dflash_core.formats.gguf import open_gguf
from dflash_core.knobs import SPECS, Knobs
from dflash_core.turn_stats import TurnReport, turn_stats
from dflash_tui.cli import ask
from dflash_tui.cli import command_line as cli
from dflash_tui.terminal.output import Notes, write_json
from support.documented import fields
from support.golden import COMMITTED as DATA
from support.hostile import replaced_template
from support.qwen38_templates import PUBLISHED

PAIR = ["--target", str(DATA / "tiny-Q4_K_M.gguf"), "--draft", str(DATA / "tiny-dflash")]
ENDLESS = ["--set", "max_tokens=3000", "--set", "ignore_eos=on", "--set", "budget=4"]
LIMIT_S = 600


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class TestPrompt:
    def read(self, words: list[str], piped: str | None) -> str:
        """`piped` None: standard input is a terminal."""
        if piped is None:
            return ask.read_prompt(words, Terminal())
        reading, writing = os.pipe()
        os.write(writing, piped.encode())
        os.close(writing)
        with open(reading, encoding="utf-8") as stdin:
            return ask.read_prompt(words, stdin)

    def test_words(self) -> None:
        assert self.read(["why", "is", "it?"], None) == "why is it?"

    def test_standard_input(self) -> None:
        assert self.read([], "from a pipe\nof two lines\n") == "from a pipe\nof two lines"

    def test_a_dash_reads_standard_input(self) -> None:
        assert self.read(["-"], "piped\n") == "piped"

    def test_words_then_standard_input(self) -> None:
        assert self.read(["explain"], "code\n") == "explain\n\ncode"
        assert self.read(["explain", "-"], "code\n") == "explain\n\ncode"

    def test_an_empty_pipe_adds_nothing(self) -> None:
        assert self.read(["explain"], "") == "explain"

    def test_a_terminal_without_words_is_no_prompt(self) -> None:
        assert self.read([], None) == ""

    def test_words_do_not_wait_for_a_pipe_that_stays_silent(self) -> None:
        reading, writing = os.pipe()
        started = time.monotonic()
        with open(reading, encoding="utf-8") as stdin:
            assert ask.read_prompt(["explain"], stdin) == "explain"
        os.close(writing)
        assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    ("target", "draft", "kind"),
    [
        ("q35moe-F16", "q35moe-dflash", "dflash"), ("q35moe-mtp-Q8_0", "", "mtp"), ("q3-F16", "q3-dflash", "dflash"),
        ("q3-Q8_0", "ngram", "ngram"), ("q3moe-Q8_0", "", ""),
    ],
)  # fmt: skip
def test_a_file_of_each_architecture_answers(
    target: str, draft: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = DATA / "targets" / draft
    pair = ["--target", str(DATA / "targets" / f"{target}.gguf")]
    pair += ["--draft", str(path) if path.is_dir() and draft else draft] if draft else []
    tokens = []
    for mode in ("plain", "tree"):
        asked = ["--set", f"mode={mode}", "--set", "max_tokens=8", "--set", "ignore_eos=on", "--device", "cpu"]
        assert cli.main([*pair, "ask", "hello", "--json", *asked]) == 0
        answer = json.loads(capsys.readouterr().out)
        tokens.append(answer["tokens"])
        assert answer["mode"] == (mode if kind in ("dflash", "mtp") else "plain" if not kind else answer["mode"])
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 8


def test_a_router_that_is_not_finite_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = open_gguf(DATA / "targets" / "q3moe-Q8_0.gguf")
    router = found.tensors["blk.1.ffn_gate_inp.weight"]
    broken = bytearray(found.path.read_bytes())
    broken[router.offset : router.offset + 4] = np.float32("nan").tobytes()
    (tmp_path / "a.gguf").write_bytes(broken)
    assert cli.main(["--target", str(tmp_path / "a.gguf"), "--device", "cpu", "ask", "hello"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = [line for line in captured.err.splitlines() if "router" in line]
    assert "blk.1.ffn_gate_inp.weight produced scores that are not finite" in line


def test_json_is_one_object_with_the_promised_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*PAIR, "ask", "hello", "--json", "--set", "max_tokens=12", "--set", "budget=6"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["text"]
    assert answer["thinking"] == ""
    assert len(answer["tokens"]) == answer["stats"]["tokens"] == 12
    assert answer["mode"] == "tree"
    assert answer["reason"]
    assert answer["stop"] == "max tokens"
    assert list(answer["knobs"]) == [spec.name for spec in SPECS]
    assert answer["knobs"]["drafting"] == "tree 6"
    stats = answer["stats"]
    assert {"steps", "acceptance_length", "accept_rate_by_depth", "tokens_per_second", "ttft_ms", "stage_ms"} <= set(
        stats
    )
    assert stats["acceptance_length"] == pytest.approx((stats["tokens"] - 1) / stats["steps"])
    assert set(stats["stage_ms"]) == {"draft", "tree", "verify", "accept", "commit", "host"}
    assert "12 tokens" in captured.err
    assert {*answer, *stats, *answer["timings"]} <= fields("ask"), "docs/command-line.md names every field"


def test_without_a_target_the_demo_pair_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "Hello!", "--json", "--set", "max_tokens=24", "--set", "mode=tree"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"].strip()
    assert answer["mode"] == "tree"


def test_the_answer_is_all_that_stdout_gets(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*PAIR, "ask", "hello", "--set", "max_tokens=8", "--set", "mode=ar"]
    assert cli.main([*argv, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["text"]
    assert cli.main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out == expected.rstrip("\n") + "\n"
    assert "loading the target" in captured.err
    assert "[plain" in captured.err


def test_plain_writes_whole_lines_and_no_control_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "Write a Python function that returns the largest of three numbers."
    assert cli.main(["ask", prompt, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["text"]
    writes: list[str] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    errors = Terminal()
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert cli.main(["ask", prompt, "--plain"]) == 0
    assert "".join(writes).rstrip("\n") == expected.rstrip("\n")
    assert all(text.endswith("\n") for text in writes[:-2] if text), "whole lines until the answer has ended"
    said = capsys.readouterr().err
    assert "answer:" in said.splitlines()
    writes.clear()
    notes = Notes(errors, plain=True)
    notes.progress("loading", 0.5)
    notes.progress("loading", 0.6)
    notes.thinking("hm\n")
    assert "".join(writes) == "loading\nhm\n"


def test_thinking_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*PAIR, "ask", "hello", "--set", "max_tokens=8", "--set", "thinking=on"]
    assert cli.main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["thinking"]
    assert cli.main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == answer["text"].strip()
    assert answer["thinking"].split()[0] in captured.err


def test_a_system_message_changes_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = []
    for extra in ([], ["--system", "Be brief."]):
        assert cli.main([*PAIR, "ask", "hello", "--json", "--set", "max_tokens=1", *extra]) == 0
        lengths.append(json.loads(capsys.readouterr().out)["stats"]["prompt_tokens"])
    assert lengths[1] > lengths[0]


def test_a_slow_model_is_announced_before_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_core.backends.cpu.target.time_step", lambda model, rows: 0.5 * rows)
    assert cli.main(["ask", "hi", *PAIR, "--set", "budget=9", "--set", "max_tokens=2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    at = next(n for n, line in enumerate(lines) if "about 5.0 s per step" in line)
    assert any("tok/s" in line for line in lines[at:])
    assert cli.main(["ask", "hi", *PAIR, "--set", "mode=ar", "--set", "max_tokens=2"]) == 0
    assert "per step" not in capsys.readouterr().err


def test_a_template_that_raises_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The template is checked before the weights are read, and its own message is shown."""
    sound = (DATA / "tiny-Q4_K_M.gguf").read_bytes()
    at = sound.index(b"tokenizer.chat_template") + len("tokenizer.chat_template") + 4
    length = int.from_bytes(sound[at : at + 8], "little")
    template = b"{{ raise_exception('no such role here') }}".ljust(length)
    path = tmp_path / "raises.gguf"
    path.write_bytes(sound[: at + 8] + template + sound[at + 8 + length :])
    assert cli.main(["ask", "hi", "--target", str(path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dflash-tui: ")
    assert "no such role here" in last


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("not a model")
    assert cli.main(["--target", str(wrong), "ask", "hello", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = [line for line in captured.err.splitlines() if line.startswith("dflash-tui: ")]
    assert "not a GGUF file" in line


def test_a_prompt_over_the_context_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*PAIR, "ask", "word " * 6000]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "context" in captured.err.splitlines()[-1]


def test_files_go_below_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("noted")
    monkeypatch.chdir(tmp_path)
    prompts: list[str] = []
    monkeypatch.setattr(ask, "answer", lambda request, prompt, **_: prompts.append(prompt) or 0)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert cli.main(["ask", "--file", "a.md", "What is this?"]) == 0
    assert prompts == ["What is this?\n\nFile a.md, 5 bytes:\n```md\nnoted\n```"]


@pytest.mark.parametrize(
    ("shell", "prompt_holds"), [("printf 'caf\\351 \\377' | {ask}", "\ufffd"), ("{ask} hello <&-", "hello")]
)
def test_odd_standard_input_is_no_failure(shell: str, prompt_holds: str) -> None:
    """Bytes that are not UTF-8, and an input that is closed."""
    seen = "from dflash_tui import cli; from dflash_tui.cli import ask; import sys; "
    seen += "ask.answer = lambda request, prompt, **_: print(ascii(prompt)) or 0; sys.exit(cli.main())"
    command = shell.format(ask=f"{sys.executable} -c '{seen}' ask")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert ascii(prompt_holds)[1:-1] in done.stdout


@pytest.mark.parametrize("command", ["ask hello", "models", "config"])
def test_a_closed_standard_output_is_refused(command: str) -> None:
    """Before a model is loaded: the answer would be lost."""
    line = f"{sys.executable} -m dflash_tui {command} >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 1
    [refusal] = done.stderr.splitlines()
    assert "standard output is closed" in refusal


def test_notes_that_a_full_disk_does_not_take_lose_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `ask hello 2> /mnt/full/log`: /dev/full refuses every write."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert cli.main([*PAIR, "ask", "hello", "--set", "max_tokens=4", "--set", "ignore_eos=on"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["serve", "--help"]])
def test_help_that_a_full_disk_cuts_off_is_a_failure(argv: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dflash_tui", *argv]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "dflash-tui: the output is cut off: no space left on its disk; write it to another one\n"


def start(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dflash_tui", *PAIR, "ask", "hello", *ENDLESS, *argv]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=hear_ctrl_c,
    )


def hear_ctrl_c() -> None:
    """A shell that runs the tests in the background has told its children to ignore Ctrl+C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_keeps_the_text_and_exits_130() -> None:
    process = start()
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert first
    assert (first + out).endswith("\n")
    assert "interrupted; the answer is incomplete" in err
    assert "Traceback" not in err
    assert "cancelled]" in err


def test_ctrl_c_with_json_prints_the_object_so_far() -> None:
    process = start("--json")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("reading the prompt"):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    answer = json.loads(out)
    assert answer["stop"] == "cancelled"
    assert len(answer["tokens"]) < 3000
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    process = start()
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(timeout=LIMIT_S) == 0
    assert "Traceback" not in err
    assert "Broken" not in err


class FakeTurn:
    """A turn that is interrupted from the keyboard in mid-step, with a piece of text still held back."""

    def __init__(self) -> None:
        self.text, self.thinking, self.report = "kept", "", None
        self.closed = False

    def __iter__(self) -> FakeTurn:
        return self

    def __next__(self) -> None:
        signal.raise_signal(signal.SIGINT)  # asks the turn to stop
        signal.raise_signal(signal.SIGINT)  # does not wait for it

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.text += " whole"
        self.closed = True


def test_a_second_ctrl_c_does_not_wait_for_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    turn = FakeTurn()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # see hear_ctrl_c
    try:
        assert ask._show_turn(turn, Notes(), quiet=False, lines=False) is True  # type: ignore[arg-type]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert turn.closed
    assert capsys.readouterr().out == "kept whole\n"


def test_figures_in_one_line() -> None:
    prefill = PrefillEvent((1,), prompt_tokens=5, reused_tokens=0, elapsed_ms=210, mode="tree", reason="asked for")
    tree = StepTree((1, 2), (-1, 0), (0, 1), (1.0, 0.5), (1.0, 0.5), (0, 1))
    step = StepEvent((2, 3), tree, 1, 1, 8, StageTimes(), "tree", "asked for", "stop token")
    stats = turn_stats(prefill, [step], decode_s=0.5)
    report = TurnReport("hi", "", (1, 2, 3), "tree", "asked for", "stop token", Knobs(), stats)
    assert ask.figures(report) == (
        "[tree (asked for): 3 tokens, 4.0 tok/s, first after 210 ms, acceptance length 2.00; stop token]"
    )
    first = dataclasses.replace(report, stats=turn_stats(prefill, [], decode_s=0.0), stop="max tokens")
    assert ask.figures(first) == "[tree (asked for): 1 token, first after 210 ms; max tokens]", "no step, no speed"


class TestNotes:
    def test_progress_overwrites_itself_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Terminal()
        notes = Notes(stream)
        notes.progress("loading", 0.5)
        notes.thinking("hm")
        notes.line("done")
        assert stream.getvalue() == "\r\x1b[Kloading 50%\r\x1b[K\x1b[2mhm\x1b[0m\ndone\n"

    def test_no_colour_where_none_is_wanted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        stream = Terminal()
        Notes(stream).thinking("hm")
        assert stream.getvalue() == "hm"

    def test_progress_in_a_file_is_a_line_per_phase(self) -> None:
        stream = io.StringIO()
        notes = Notes(stream)
        for share in (0.0, 0.5, 1.0):
            notes.progress("loading", share)
        notes.progress("ready", 1.0)
        notes.end_line()
        assert stream.getvalue() == "loading\nready\n"


def test_json_escapes_only_where_the_stream_must() -> None:
    for encoding, expected in (("utf-8", '{"a": "ü"}\n'), ("ascii", '{"a": "\\u00fc"}\n')):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        write_json({"a": "ü"}, stream)
        assert raw.getvalue().decode(encoding) == expected


def test_levels_of_reasoning_are_those_of_the_files_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_long = PUBLISHED + "{#" + " " * (len(QWEN_TEMPLATE.encode()) - len(PUBLISHED) - 4) + "#}"
    model = str(replaced_template(DATA / "tiny-Q4_K_M.gguf", tmp_path / "qwen38.gguf", as_long))
    asked = ["ask", "hi", "--target", model, "--json", "--set", "thinking=on", "--set", "max_tokens=2", "--set"]
    found = {}
    for level in ("low", "medium", "xhigh"):
        assert cli.main([*asked, f"reasoning_effort={level}"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["effort"], told["knobs"]["reasoning_effort"]) == (level, level)
        found[level] = told["stats"]["prompt_tokens"]
    assert found["medium"] < found["low"]
    assert found["medium"] < found["xhigh"]
    assert cli.main([*asked, "reasoning_effort=high"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "dflash-tui: reasoning_effort=high: the model's template refuses it; expected low, medium, xhigh"
