"""As a program: the app over a script whose every word is marked. `python -m abuse.killed MARK`; it is there to be
killed."""

from __future__ import annotations

import sys

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.session import LoadRequest, SessionLike
from dflash_tui.launch import open_app
from tui.fake import FakeSession

PACE_S = 0.004


def main(mark: str) -> int:
    session = FakeSession(answer=" ".join(f"a{mark}x{number}x" for number in range(150)), thinking="", pace=PACE_S)

    def load(_: object) -> SessionLike:
        return session

    return open_app(DFlashApp(LoadRequest(), load, Knobs()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
