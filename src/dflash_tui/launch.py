"""Opens the app in this terminal; a pair is loaded on a thread of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from dflash_core.progress import Progress
from dflash_core.trace import Trace
from dflash_tui.app import DFlashApp
from dflash_tui.application.background import any_aside
from dflash_tui.application.log import LOG
from dflash_tui.application.session import Loader, LoadRequest, SessionLike
from dflash_tui.application.settings.config import Config, user_file
from dflash_tui.application.starting import resume_line
from dflash_tui.server.settings import ServerSettings
from dflash_tui.terminal.hangup import watched
from dflash_tui.terminal.key_order import take_pastes
from dflash_tui.terminal.output import write_err


def share_the_interpreter() -> None:
    """The decoder's thread and the app share one interpreter. Switch between them often, so that a burst of rendering
    delays a step by half a millisecond instead of five."""
    sys.setswitchinterval(0.0005)


def run_app(request: LoadRequest, config: Config | None = None, serving: ServerSettings | None = None) -> int:
    """Open the app; returns the exit code. `serving`: let other programs use the pair."""
    share_the_interpreter()
    chosen = config is None or "target" in config.origins or request.attach
    first_run = not chosen and not user_file().exists()
    return open_app(
        DFlashApp(
            request, loader(request), loaders=loader, check=check, first_run=first_run, config=config, serving=serving
        )
    )


def run_replay(trace: Trace, path: Path) -> int:
    """Show a trace until it is left; returns the exit code."""
    from dflash_tui.application.replay import replaying
    from dflash_tui.screens.replay import ReplayScreen

    # A temporary folder: a replay must not add to the user's conversations or prompt history.
    with tempfile.TemporaryDirectory(prefix="dflash-replay-") as folder:
        return open_app(DFlashApp(LoadRequest(), replaying(trace, path), data_dir=Path(folder), chat=ReplayScreen))


def loader(request: LoadRequest) -> Loader:
    """What loads the pair of a request, or attaches to its server. Called on a thread of its own: it imports torch for
    a pair, and numpy for a server."""

    def load(progress: Progress) -> SessionLike:
        if request.attach:
            from dflash_tui.application.attach.attaching import attach

            return attach(request, progress)
        from dflash_tui.application.engine_session import load_session

        return load_session(request, progress)

    return load


def check(request: LoadRequest) -> None:
    """Raises DFlashError where the headers of the files show that they cannot be loaded, or no server answers. Not for
    the app's own thread."""
    if request.attach:
        from dflash_tui.application.attach.attaching import check_server

        check_server(request)
        return
    from dflash_tui.application.memory_estimate import estimator_for  # imports torch

    estimator_for(request)


def open_app(app: DFlashApp) -> int:
    """Run an app in the terminal until it is left; returns the exit code."""
    for name in ("COLUMNS", "LINES"):  # if a shell exports them, they would override every resize
        os.environ.pop(name, None)
    take_pastes()
    with watched((0, 1, 2)):
        code = app.run(mouse=app.settings.mouse)
    app.signals.restore()
    if code is None:
        code = app.return_code or 0
    state, parts = app.state, app.chat.made
    serves_on = parts is not None and parts.serving.stuck  # its threads have not ended in time
    if app.fault:
        write_err(f"dflash-tui: {app.fault}")
    elif not (app.again or state.busy or state.turn.lost or serves_on):
        _keep_states(app)
    if state.resumable and not app.again:
        write_err(f"dflash-tui: to come back: {resume_line(sys.argv[1:], state.resumable)}")
    for line in parts.downloads.last_words() if parts is not None else ():
        write_err(f"dflash-tui: {line}")
    if app.again:
        along = ", and so do the downloads" if parts is not None and parts.downloads.handed_over else ""
        write_err(f"dflash-tui: restarting, the conversation goes on{along}")
        sys.stderr.flush()
        # The interpreter's own command line, up to the program's arguments.
        os.execv(sys.executable, [*sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1], *app.again])
    under_way = parts is not None and (parts.program.running is not None or parts.downloads.under_way)
    if any_aside() or under_way or state.busy or state.experiment is not None or serves_on:
        # A daemon thread inside torch or a connection can crash the interpreter while it shuts down.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _keep_states(app: DFlashApp) -> None:
    """After the app's end: write the conversation state that the settings ask to keep."""
    session = app.state.session
    if app.settings.keep_states and session is not None:
        try:
            session.leave()
        except Exception:  # only an optimization: the conversation itself is saved
            LOG.warning("the state of the conversation is not saved", exc_info=True)
