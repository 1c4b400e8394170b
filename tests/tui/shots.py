"""Pictures of the main states, to look at: python -m tui.shots FOLDER, in tests/. Not a test."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from dflash_tui.app import DFlashApp
from dflash_tui.session import LoadRequest

from .fake import FakeSession, loader
from .scenes import send
from .support import idle, wait_until

SIZES = ((80, 24), (120, 40), (200, 60))


async def main(folder: Path, theme: str) -> None:
    import cairosvg

    def save(app: DFlashApp, name: str) -> None:
        svg = app.export_screenshot().replace("Fira Code, monospace", "DejaVu Sans Mono")
        cairosvg.svg2png(bytestring=svg.encode(), write_to=str(folder / f"{name}.png"))

    for size in SIZES:
        session = FakeSession(pace=0.004)
        with tempfile.TemporaryDirectory() as data:
            app = DFlashApp(LoadRequest(), loader(session), theme=theme, data_dir=Path(data))
            async with app.run_test(size=size) as pilot:
                await wait_until(pilot, lambda app=app: app.chat.session is not None)
                name = f"{size[0]}"
                save(app, f"{name}-empty")
                await pilot.press("ctrl+t")
                await send(pilot, "Explain tree verification in two lines and show the walk.")
                await wait_until(pilot, lambda app=app: bool(app.chat.transcript.turns))
                await idle(pilot)
                await pilot.pause(0.3)
                save(app, f"{name}-answer")
                for key, panel in (("f2", "params"), ("f3", "stats"), ("f4", "tree"), ("f5", "memory")):
                    if app.chat.has_class("-drawer"):
                        await pilot.press("escape")
                    if not (panel == app.chat.inspector.active and app.chat.has_class("-side")):
                        await pilot.press(key)
                    await pilot.pause(0.2)
                    if panel == "params":
                        await pilot.press("right", "right")
                        await pilot.pause(0.1)
                    save(app, f"{name}-{panel}")
                await pilot.press("ctrl+r")
                await idle(pilot)
                await pilot.press("f1")
                await pilot.pause(0.1)
                save(app, f"{name}-help")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target, sys.argv[2] if len(sys.argv) > 2 else "dflash-night"))
