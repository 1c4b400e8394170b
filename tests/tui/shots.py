"""Pictures of every screen, to look at: python -m tui.shots FOLDER [THEME] [COLUMNSxROWS], in tests/. Not a test."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from dflash_tui.app import DFlashApp
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import Config

from .fake import FakeSession, loader
from .gallery import walk
from .support import SIZES


async def main(folder: Path, theme: str, sizes: tuple[tuple[int, int], ...]) -> None:
    for size in sizes:
        with tempfile.TemporaryDirectory() as data:
            app = DFlashApp(
                LoadRequest(), loader(FakeSession()), config=Config(themes=((theme, ""),)), data_dir=Path(data)
            )
            async with app.run_test(size=size, notifications=True) as pilot:
                number = 0
                async for name in walk(app, pilot):
                    number += 1
                    svg = app.export_screenshot().replace("Fira Code, monospace", "DejaVu Sans Mono")
                    (folder / f"{size[0]}-{number:02}-{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    wanted = tuple((int(columns), int(rows)) for columns, _, rows in (text.partition("x") for text in sys.argv[3:]))
    asyncio.run(main(target, sys.argv[2] if len(sys.argv) > 2 else "dflash-night", wanted or SIZES))
