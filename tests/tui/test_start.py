"""The first frame comes before torch; the loader's thread brings it."""

from __future__ import annotations

import subprocess
import sys
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
        painted.append("Ask anything" in frame())
        assert "torch" not in sys.modules, "torch came before the first frame"
        raise RuntimeError("that is all")

    app = DFlashApp(LoadRequest(), load, data_dir=Path({str(tmp_path)!r}))

    def frame():
        strips = app.chat._compositor.render_strips()
        return "".join(segment.text for strip in strips for segment in strip)

    async def main():
        async with app.run_test(size=(80, 24)) as pilot:
            while not painted:
                await pilot.pause(0.02)

    asyncio.run(main())
    heavy = [name for name in ("torch", "transformers", "gguf", "tokenizers", "jinja2", "numpy") if name in sys.modules]
    sys.stdout.write(f"{{painted}} {{heavy}}")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[True] []", result.stdout + result.stderr


def test_the_decoder_is_not_imported_by_the_app_package() -> None:
    program = "import sys, dflash_tui.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
