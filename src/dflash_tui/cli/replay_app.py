"""The app over a trace. Importing this imports the whole app."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dflash_core.trace import Trace
from dflash_tui.app import DFlashApp
from dflash_tui.application.replay import replaying
from dflash_tui.application.session import LoadRequest
from dflash_tui.launch import open_app
from dflash_tui.screens.replay import ReplayScreen


def show(trace: Trace, path: Path) -> int:
    """Show the trace until it is left; returns the exit code."""
    # A temporary folder: a replay must not add to the user's conversations or prompt history.
    with tempfile.TemporaryDirectory(prefix="dflash-replay-") as folder:
        return open_app(DFlashApp(LoadRequest(), replaying(trace, path), data_dir=Path(folder), chat=ReplayScreen))
