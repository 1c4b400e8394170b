"""A trace of a live run, replayed: the same text, the same figures, the same trees; and no model."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dflash_core.memory import MemoryBreakdown
from dflash_core.record import Loaded, lines
from dflash_core.trace import TraceWriter, read_trace
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.replay import replaying
from dflash_tui.application.session import LoadRequest
from dflash_tui.cli import main
from dflash_tui.cli.replay import summary
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.screens.replay import WHAT, ReplayScreen
from dflash_tui.slash.table import complete
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.knob_row import KnobRow
from support.turns import step_of, turn_of

from .fake import FakeSession, loader
from .scenes import send
from .support import screen_text, settled, shows, smallest, wait_until

MakeApp = Callable[..., DFlashApp]
QUESTIONS = ("What is p_min?", "Write a function that reverses a list.")


def replay(path: Path, data: Path) -> DFlashApp:
    return DFlashApp(LoadRequest(), replaying(read_trace(path), path), data_dir=data, chat=ReplayScreen)


async def panels(pilot: object, app: DFlashApp) -> dict[str, str]:
    """What each panel and the steps screen show, as text."""
    shown = {}
    for name in ("stats", "tree", "params"):
        app.chat.action_panel(name)
        await pilot.pause()  # type: ignore[attr-defined]
        text = await settled(pilot)  # type: ignore[arg-type]
        shown[name] = "\n".join(line[-48:] for line in text.splitlines()[2:-5])  # above the strip and the prompt
    shown["answer"] = "\n".join(answer.text for turn in app.chat.transcript.turns for answer in turn.answers)
    shown["footers"] = "\n".join(answer._summary for turn in app.chat.transcript.turns for answer in turn.answers)
    shown["title"] = app.chat.query_one("#title").render().plain.split("ctx")[1]  # type: ignore[attr-defined]
    app.chat.action_open("steps")
    for key in ("right", "comma", "v"):
        shown[f"steps {key}"] = await settled(pilot)  # type: ignore[arg-type]
        await pilot.press(key)  # type: ignore[attr-defined]
    await pilot.press("escape")  # type: ignore[attr-defined]
    return shown


async def test_a_replay_shows_the_numbers_of_the_live_run(tmp_path: Path) -> None:
    path = tmp_path / "live.trace"
    with TraceWriter(path) as trace:
        request = LoadRequest(watchers=(trace,))
        app = DFlashApp(request, partial(load_session, request), data_dir=tmp_path / "live")
        async with app.run_test(size=(120, 60)) as pilot:
            await wait_until(pilot, lambda: app.chat.state.session is not None)
            for number, question in enumerate(QUESTIONS, 1):
                await send(pilot, question)
                await wait_until(pilot, lambda number=number: len(app.chat.state.session.turns) == number)  # type: ignore[union-attr]
                await wait_until(pilot, lambda: not app.chat.state.busy)
                # The policy is named: where it is not, a notice of the change lies over the panels of the live run.
                app.chat.tuning.set(budget=7, p_min=0.05)
            app.chat.state.knobs = app.chat.state.used
            app.chat.tuning.show()
            live = await panels(pilot, app)
            records = list(app.chat.state.session.turns)  # type: ignore[union-attr]
            ledger = app.chat.state.session.memory().components  # type: ignore[union-attr]
            learned = app.chat.state.session.learned()  # type: ignore[union-attr]
    assert list(read_trace(path).turns) == records
    app = replay(path, tmp_path / "replayed")
    async with app.run_test(size=(120, 60)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None and len(app.chat.state.session.turns) == 2)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        again = await panels(pilot, app)
        # Auto depends on times, and may have drafted nothing: then nothing was learned.
        assert ("stated learned found" in live["stats"]) == bool(learned)
        assert again["stats"] == live["stats"]
        assert "7" in live["params"]
        for name in live:
            # The memory in use is not a figure of the run, and a replay has no next turn.
            if name not in ("title", "params"):
                assert again[name] == live[name], name
        assert again["title"].split("mem")[0] == live["title"].split("mem")[0]
        assert app.chat.state.session.memory().components[:3] == ledger[:3]  # type: ignore[union-attr]


async def test_a_replay_says_that_it_has_no_model(tmp_path: Path) -> None:
    path = write(tmp_path / "a.trace")
    app = replay(path, tmp_path / "data")
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None and len(app.chat.state.session.turns) == 2)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        await shows(pilot, "replay of a.trace: a pair", "question 1", "A replay, without a model")
        assert "Ask anything" not in screen_text(app)
        blocks = len(app.chat.transcript.turns)
        await send(pilot, "And now?")
        await shows(pilot, "this is a replay, no model is loaded")
        await wait_until(pilot, lambda: app.chat.prompt.text == "And now?")
        assert len(app.chat.transcript.turns) == blocks, "nothing of it stays"
        assert not app.chat.state.busy
        commands = ("/plain", "/tune", "/policy reset", "/reload", "/reload 2048", f"/load {path}", "/set budget 9")
        for command in (*commands, "/think on", "/rename x", "/chats", "/past"):
            app.chat.query_one(Flash).hide()
            await send(pilot, command)
            await shows(pilot, "this is a replay, no model is loaded")
            assert app.screen is app.chat
        await pilot.press("ctrl+n")
        await shows(pilot, "the turns of a replay cannot be cleared", "question 1")


@smallest
async def test_the_keys_of_a_replay_are_those_that_do_something(tmp_path: Path, size: tuple[int, int]) -> None:
    app = replay(write(tmp_path / "a.trace"), tmp_path / "data")
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None and len(app.chat.state.session.turns) == 2)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        await shows(pilot, WHAT, "Ctrl+R Play again")
        footer = screen_text(app).splitlines()[-1]
        assert not [name for name in ("Send", "F8", "Tune", "Think", "Chats", "Retry") if name in footer]
        app.chat.prompt.insert("/steps")
        await shows(pilot, "Enter Send")
        offered = {one.text.split("/")[1].strip() for one in complete("/", app.chat.parts)}
        assert {"export", "find", "steps", "whatif", "retry", "quit"} <= offered
        assert not offered & {"plain", "set", "params", "apply", "preset", "chats", "load", "rename", "tour"}
        assert not complete("/set ", app.chat.parts)
        found = {hit.text async for hit in ActionProvider(app.chat).discover()}
        assert {"Stats", "Retry", "Steps"} <= found
        assert not found & {"Params", "Plain speed", "Smaller tree", "Rename chat", "Editor"}


@smallest
async def test_a_replay_has_no_sliders(tmp_path: Path, size: tuple[int, int]) -> None:
    """Nor keys that move one: they say why."""
    app = replay(write(tmp_path / "a.trace"), tmp_path / "data")
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None and len(app.chat.state.session.turns) == 2)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        await pilot.press("f3")
        await shows(pilot, "‹Stats› F3")
        assert "Params" not in screen_text(app)
        assert not any(isinstance(one, KnobRow) for one in app.chat.focus_chain)
        knobs = app.chat.state.knobs
        for key in ("f2", "alt+k", "ctrl+t", "f9", "alt+a", "alt+l", "ctrl+l", "ctrl+o"):
            app.chat.query_one(Flash).hide()
            await pilot.press(key)
            await shows(pilot, "this is a replay, no model is loaded")
            assert app.screen is app.chat
        assert app.chat.state.knobs == knobs


async def test_the_help_of_a_replay_names_what_has_an_effect(tmp_path: Path) -> None:
    app = replay(write(tmp_path / "live.trace"), tmp_path / "data")
    async with app.run_test(size=(120, 150)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None)
        await pilot.press("f1")
        await shows(pilot, "Enter runs a command", "answer again", "/export")
        text = screen_text(app)
        for refused in ("Enter sends", "send the message", "F8", "Ctrl+G", "/tune", "/load", "//text"):
            assert refused not in text


async def test_the_last_turn_runs_again_at_its_own_pace(tmp_path: Path) -> None:
    path = tmp_path / "slow.trace"
    with TraceWriter(path) as trace:
        for line in lines(turn_of([step_of()] * 6, step_s=0.1)):
            trace(line)
    app = replay(path, tmp_path / "data")
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None and len(app.chat.state.session.turns) == 1)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        first = app.chat.state.turn.report
        import time

        began = time.monotonic()
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns[-1].answers) == 2)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        assert time.monotonic() - began > 0.6
        assert app.chat.state.turn.report == first
        assert len(app.chat.state.session.turns) == 1  # type: ignore[union-attr]


def write(path: Path, *, cut: bool = False) -> Path:
    """A trace of two turns; cut off in the middle of the second turn's last step, or whole."""
    turns = [list(lines(turn_of([step_of()] * 4, prompt=f"question {number}"))) for number in range(2)]
    with TraceWriter(path) as trace:
        trace(Loaded("a pair", 4096, MemoryBreakdown("this machine", (), 10, 5)))
        for line in (*turns[0], *turns[1][:-2]):
            trace(line)
        size = path.stat().st_size
        for line in turns[1][-2:]:
            trace(line)
    if cut:
        path.write_bytes(path.read_bytes()[: size + 8])
    return path


async def test_a_trace_that_is_cut_off_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.trace", cut=True)
    steps = 3
    app = replay(path, tmp_path / "data")
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.chat.state.session is not None and len(app.chat.state.session.turns) == 2)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        await shows(pilot, "cut.trace is incomplete", f"turn 2 after {steps} steps", "question 1")
        report = app.chat.state.turn.report
        assert report is not None
        assert (report.stats.steps, report.stop) == (steps, "cancelled")
        await pilot.press("f3")
        await shows(pilot, "3.00 tok/step")


def test_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.trace", cut=True)
    assert main(["replay", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert shown == json.loads(json.dumps(summary(read_trace(path))))
    assert (shown["title"], shown["context_length"]) == ("a pair", 4096)
    first, second = shown["turns"]
    assert (first["prompt"], first["target"], first["ended"], first["stop"]) == (
        "question 0", "target.gguf", True, "stop token",
    )  # fmt: skip
    assert first["stats"]["acceptance_length"] == 3.0
    assert first["stats"]["tokens_per_second"] == pytest.approx(150)
    assert (second["ended"], second["stop"]) == (False, "cancelled")
    assert second["stats"]["acceptance_length"] == 3.0
    assert "is incomplete" in err


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"hello", "not a trace"),
        (gzip.compress(b'{"trace":"dflash-tui","version":3}\n', mtime=0), "a trace of version 3, expected 2"),
        (None, "does not exist; check the path"),
    ],
)
def test_what_is_no_trace_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, says: str
) -> None:
    path = tmp_path / "x"
    if data is not None:
        path.write_bytes(data)
    assert main(["replay", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dflash-tui: ")
    assert says in err


def test_a_pipe_gets_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(write(tmp_path / "a.trace"))]) == 1
    assert "use: dflash-tui replay FILE --json" in capsys.readouterr().err


def test_ask_writes_a_trace_that_says_what_its_json_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ask.trace"
    assert main(["ask", "--trace", str(path), "--json", "--set", "max_tokens=24", "What is p_min?"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked.pop("drafter") == "dflash", "what was loaded, which a replay says by file names"
    assert asked.pop("kv"), "how keys and values were kept, which is no part of a record"
    assert main(["replay", str(path), "--json"]) == 0
    [turn] = json.loads(capsys.readouterr().out)["turns"]
    assert {name: turn[name] for name in asked} == asked
    assert turn["draft"] == "demo drafter"


def test_a_trace_is_for_the_app_and_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--trace", str(tmp_path / "t"), "doctor"])
    assert left.value.code == 2
    assert "--trace goes with the app and with ask" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_a_killed_program_leaves_all_but_its_last_step(tmp_path: Path) -> None:
    path = tmp_path / "killed.trace"
    words = ["ask", "--trace", str(path), "--set", "ignore_eos=on", "--set", "max_tokens=1500", "Tell me a story."]
    program = subprocess.Popen(
        [sys.executable, "-m", "dflash_tui", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert program.stdout is not None
        program.stdout.read(80)  # the answer is on its way
        program.kill()
        said = program.stdout.read().decode(errors="ignore")
    finally:
        program.kill()
        program.wait()
    trace = read_trace(path)
    [turn] = trace.turns
    assert not turn.ended
    assert "is incomplete: it " in trace.problem
    assert turn.steps
    # What had been printed is there, but for the step that was being written.
    assert said[-40:-20] in turn.text or not said


async def test_a_trace_that_ends_early_is_said(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "a.trace") as trace:
        session = FakeSession()
        app = DFlashApp(LoadRequest(watchers=(trace,)), loader(session), data_dir=tmp_path / "data")
        async with app.run_test(size=(120, 40)) as pilot:
            await wait_until(pilot, lambda: app.chat.state.session is not None)
            trace.problem = "a.trace: the trace ends here: No space left on device; the turns themselves continue"
            await wait_until(pilot, lambda: bool(app._notifications))
            await pilot.pause(1.2)
            assert [one.message for one in app._notifications] == [trace.problem]


def test_a_replay_brings_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from dflash_tui.cli import main; import dflash_tui.app, dflash_tui.screens.replay;"
        f"main(['replay', {str(write(tmp_path / 'a.trace'))!r}, '--json']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=600).returncode == 0
