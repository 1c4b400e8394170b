"""The first frame is drawn before torch is imported; the loader's thread imports it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dflash_tui.__main__ import LATE


def test_the_first_frame_needs_no_torch(tmp_path: Path) -> None:
    program = f"""
    import asyncio, sys
    from pathlib import Path
    from dflash_tui.app import DFlashApp
    from dflash_tui.application.session import LoadRequest

    painted = []

    def load(progress):
        assert "torch" not in sys.modules, "torch came before the first frame"
        raise RuntimeError("that is all")

    app = DFlashApp(LoadRequest(), load, data_dir=Path({str(tmp_path)!r}))

    def frame():
        strips = app.chat._compositor.render_strips()
        return "".join(segment.text for strip in strips for segment in strip)

    begin = app.chat.parts.program.begin

    def seen():
        painted.append("Ask anything" in frame())
        begin()

    app.chat.parts.program.begin = seen

    async def main():
        async with app.run_test(size=(80, 24)) as pilot:
            while not painted or app.chat.state.loading:
                await pilot.pause(0.02)

    asyncio.run(main())
    heavy = [name for name in ("torch", "transformers", "gguf", "tokenizers", "jinja2", "numpy") if name in sys.modules]
    sys.stdout.write(f"{{painted}} {{heavy}}")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[True] []", result.stdout + result.stderr


# What may be imported before the first frame. Every addition slows each start.
BEFORE_THE_FIRST_FRAME = {
    "dflash_core",
    "dflash_tui",
    "msgspec",
    "platformdirs",
    "rich",
    "textual",
    "typing_extensions",
}
OWN = 115  # modules of this program: 114 when this was written, and 185 where a part imports all that it may ever use


def started(tmp_path: Path, then: str) -> tuple[bytes, dict[str, Any]]:
    """Run the whole command line in a terminal: all that it draws, and what `then` has put into `found`.

    `then` is the body of a function, which is run with `app` in place of the first load; `seen` are the modules that
    were there with the first frame.
    """
    program = f"""
    import asyncio, gc, json, sys
    from pathlib import Path
    import dflash_tui.launch

    found = {{}}

    def open_app(app):
        chat = app.chat
        displayed = chat.displayed

        def first():
            displayed()
            if "seen" not in found and chat.is_mounted and not app._batch_count and chat.size.area:
                found["seen"] = sorted(sys.modules)
                found["collector"] = gc.isenabled()
                chat.parts.program.begin = lambda: app.call_later(tell)

        async def then():
{textwrap.indent(textwrap.dedent(then), " " * 12)}

        async def tell():
            await then()
            Path({str(tmp_path / "found")!r}).write_text(json.dumps(found))
            app.exit(0)

        chat.displayed = first
        return app.run()

    dflash_tui.launch.open_app = open_app
    sys.argv = ["dflash-tui", "--demo"]
    from dflash_tui.__main__ import run
    sys.exit(run())
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    home = {f"XDG_{kind}_HOME": str(tmp_path) for kind in ("DATA", "CONFIG", "CACHE", "STATE")}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    drawn = b""
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **home, "TERM": "xterm"}
    ) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux says so when the other end has closed
            while part := os.read(ours, 1 << 16):
                drawn += part
        assert running.wait(600) == 0, drawn.decode(errors="replace")
    os.close(ours)
    return drawn, json.loads((tmp_path / "found").read_text())


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """Ended as soon as a load would begin."""
    return started(tmp_path_factory.mktemp("start"), "pass")


def test_what_a_start_imports_before_its_first_frame(start: tuple[bytes, dict[str, Any]]) -> None:
    """Code that names the loader must not import what the loader needs, and parts of the chat come when used."""
    seen = set(start[1]["seen"]) - {LATE}
    packages = {name.partition(".")[0] for name in seen}
    others = {name for name in packages - sys.stdlib_module_names if not name.startswith("_")} - {"sitecustomize"}
    assert others <= BEFORE_THE_FIRST_FRAME
    assert len([name for name in seen if name.startswith("dflash_")]) <= OWN
    assert "sqlite3" not in seen


def test_a_load_begins_when_the_first_frame_is_on_the_terminal(start: tuple[bytes, dict[str, Any]]) -> None:
    """The whole frame, not a part of it."""
    text = re.sub(rb"\x1b\[[0-9;]*m", b"", start[0])
    assert b"Ask anything" in text
    assert b"Write a Python function" in text


def test_the_collector_works_again_when_something_was_loaded_or_not(tmp_path: Path) -> None:
    then = """
    for end in (chat.parts.program.loaded, chat.parts.program.not_loaded):
        gc.disable()
        ended = end()
        if ended is not None:
            await ended
        found[end.__name__] = gc.isenabled()
    """
    _, found = started(tmp_path, then)
    assert not found["collector"], "nearly all that a start makes stays"
    assert found["loaded"]
    assert found["not_loaded"]


def test_a_command_has_a_collector() -> None:
    program = """
    import dflash_tui.cli.config, gc, sys
    from dflash_tui.__main__ import run

    dflash_tui.cli.config.paths = lambda call: 0 if gc.isenabled() else 3
    sys.argv = ["dflash-tui", "config", "path"]
    sys.exit(run())
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=600, check=False).returncode == 0


def test_rules_for_tensors_without_memory_are_imported_for_plans_alone() -> None:
    """They take a third of the time of `import torch`."""
    program = """
    import dflash_tui.cli, sys
    from dflash_tui.__main__ import run

    def main():
        import torch

        assert torch.arange(4).sum() == 6
        if "torch._decomp" in sys.modules:
            return 3
        import dflash_core.backends.cuda.meta
        from torch._meta_registrations import register_meta

        return 0 if "torch._decomp" in sys.modules and callable(register_meta) else 4

    dflash_tui.cli.main = main
    sys.exit(run())
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=600, check=False).returncode == 0


def test_the_decoder_is_not_imported_by_the_app_package() -> None:
    program = "import sys, dflash_tui.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=600, check=False).returncode == 0


def test_the_bench_sees_the_first_frame_and_the_loaded_pair(tmp_path: Path) -> None:
    out = tmp_path / "start.json"
    command = [sys.executable, "-m", "tools.bench.start", "--rounds", "1", "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text())["start"]
    [first], [loaded] = found["first_frame"], found["loaded"]
    assert 0 < first["processor"] < loaded["processor"], "torch is imported between the two"
    assert "first frame" in result.stdout
