"""The first frame comes before torch; the loader's thread brings it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path


def test_the_first_frame_needs_no_torch(tmp_path: Path) -> None:
    program = f"""
    import asyncio, sys
    from pathlib import Path
    from dflash_tui.app import DFlashApp
    from dflash_tui.session import LoadRequest

    painted = []

    def load(progress):
        assert "torch" not in sys.modules, "torch came before the first frame"
        raise RuntimeError("that is all")

    app = DFlashApp(LoadRequest(), load, data_dir=Path({str(tmp_path)!r}))

    def frame():
        strips = app.chat._compositor.render_strips()
        return "".join(segment.text for strip in strips for segment in strip)

    begin = app.chat.pair.begin

    def seen():
        painted.append("Ask anything" in frame())
        begin()

    app.chat.pair.begin = seen

    async def main():
        async with app.run_test(size=(80, 24)) as pilot:
            while not painted or app.chat.loading_now:
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


# What may be imported before something is seen. A package that is added here is paid for at every start.
BEFORE_THE_FIRST_FRAME = {
    "dflash_core", "dflash_tui", "linkify_it", "markdown_it", "mdurl", "msgspec", "platformdirs", "pygments", "rich",
    "textual", "typing_extensions", "uc_micro",
}  # fmt: skip


def test_what_a_start_imports_before_its_first_frame(tmp_path: Path) -> None:
    """By the whole command line, in a terminal: what names the loader must not bring what it loads with."""
    found = tmp_path / "modules"
    program = f"""
    import sys
    from pathlib import Path
    import dflash_tui.app
    from dflash_tui.cli import main
    from dflash_tui.session import LoadRequest

    def first_frame(app):
        def begin():
            Path({str(found)!r}).write_text("\\n".join(sorted(sys.modules)))
            app.exit(0)

        app.chat.pair.begin = begin
        return app.run()

    dflash_tui.app.open_app = first_frame
    sys.argv = ["dflash-tui", "--demo"]
    main()
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    home = {f"XDG_{kind}_HOME": str(tmp_path) for kind in ("DATA", "CONFIG", "CACHE", "STATE")}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **home, "TERM": "xterm"}
    ) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux says so when the other end has closed
            while os.read(ours, 1 << 16):
                pass
        assert running.wait(60) == 0
    os.close(ours)
    packages = {name.partition(".")[0] for name in found.read_text().split()}
    others = {name for name in packages - sys.stdlib_module_names if not name.startswith("_")} - {"sitecustomize"}
    assert others <= BEFORE_THE_FIRST_FRAME


def test_the_decoder_is_not_imported_by_the_app_package() -> None:
    program = "import sys, dflash_tui.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=600, check=False).returncode == 0
