"""Names and words that are not UTF-8: every message works, every refusal is one line, in the app and on the command
line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import ConfigError, remember
from support.golden import golden

from .support import ask, idle, loaded

ODD = os.fsdecode(b"mod\xe9l \xff")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    target, draft = tmp_path / f"{ODD}.gguf", tmp_path / ODD
    try:
        shutil.copy(golden("tiny-Q4_K_M.gguf"), target)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    shutil.copytree(golden("tiny-dflash"), draft)
    return target, draft


async def test_the_app(pair: tuple[Path, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    request = LoadRequest(*pair, device="cpu", knobs=Knobs(max_tokens=8, thinking=False))
    app = DFlashApp(request, partial(load_session, request), data_dir=data)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        assert app.chat.state.turn.report is not None
        await ask(pilot, "and again")
        await idle(pilot)
        assert len(app.chat.state.session.turns) == 2  # type: ignore[union-attr]
    [entry] = CurrentConversation(data).store.list()
    assert entry.messages == 4
    assert "mod?l ?" in entry.card.model


def run(
    home: Path, *arguments: str, program: tuple[str, ...] = ("-m", "dflash_tui")
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOME": str(home), "PYTHONUTF8": "1"}
    env |= {f"XDG_{kind}_HOME": str(home) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    command = [sys.executable, *program, *arguments]
    nothing = subprocess.DEVNULL
    return subprocess.run(command, stdin=nothing, capture_output=True, text=True, timeout=600, env=env, check=False)


SHORT = ("--set", "max_tokens=6")


def test_ask_with_a_trace_and_its_replay(pair: tuple[Path, Path], tmp_path: Path) -> None:
    model = ("--target", str(pair[0]), "--draft", str(pair[1]))
    trace = str(tmp_path / os.fsdecode(b"tr\xe9ce"))
    done = run(tmp_path, *model, "ask", f"hi {ODD}", "--system", ODD, *SHORT, "--json", "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"]
    done = run(tmp_path, "replay", trace, "--json")
    assert done.returncode == 0, done.stderr
    [turn] = json.loads(done.stdout)["turns"]
    assert (turn["target"], turn["draft"], turn["system"]) == ("mod?l ?.gguf", "mod?l ?", "mod?l ?")


COMMANDS: dict[tuple[str, ...], int] = {
    ("inspect", "MODEL"): 0,
    ("--target", "MODEL.gguf", "inspect"): 0,
    ("--target", "MODEL.none", "ask", "hi"): 1,
    ("conversations", "list", "MODEL"): 0,
    ("conversations", "export", "MODEL"): 1,
    ("conversations", "import", "MODEL"): 1,
    ("--set", "MODEL=1", "ask", "hi"): 2,
    ("--theme", "MODEL", "config"): 0,
    ("--demo", "sweep", "budget=4", "--prompts", "MODEL"): 1,
    ("replay", "MODEL"): 1,
    ("MODEL",): 2,
}
# Each command in a process of its own would import everything again. A list of arguments per line; the exit is shown.
EACH = """
import sys
from dflash_tui.cli import main
for number in range(int(sys.argv[1])):
    words = sys.argv[2:][: sys.argv[2:].index("")]
    del sys.argv[2 : 3 + len(words)]
    print("begin", file=sys.stderr)
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    print("code", code, file=sys.stderr, flush=True)
"""


def test_every_command(pair: tuple[Path, Path], tmp_path: Path) -> None:
    words = [word.replace("MODEL", str(pair[1])) for arguments in COMMANDS for word in (*arguments, "")]
    done = run(tmp_path, str(len(COMMANDS)), *words, program=("-c", EACH))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stderr.split("begin\n")[1:]
    for (arguments, code), one in zip(COMMANDS.items(), said, strict=True):
        *lines, end = one.splitlines()
        assert end == f"code {code}", (arguments, one)
        assert code != 1 or len(lines) == 1, (arguments, one)


def test_it_is_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        remember("target", tmp_path / ODD, tmp_path / "config.toml")
    assert not (tmp_path / "config.toml").exists()
