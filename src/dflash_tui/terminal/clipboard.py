"""What leaves the app for the desktop: copied texts and notifications.

A text is copied to the desktop's clipboard, to a buffer of tmux, to the terminal, to a file. A terminal does not answer
whether it took a text (OSC 52), and tmux drops that of programs by default. So the notice reports what is known, and
where nothing is known the text is in a file as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dflash_core.clean import clean
from dflash_core.files import writing
from dflash_tui.application.advice import at_home

_COMMANDS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)
FILE = "copied.txt"
WAIT_S = 1.0


def copied(text: str, what: str, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Hand over a text that the terminal was sent too; returns the notice of it. `what`: the text's name there.
    `folder`: where its file is, if it needs one. Takes up to a few seconds."""
    if _to_desktop(text, environment):
        return f"copied {what}"
    if "TMUX" in environment:
        if _tmux_passes_on() and _runs("tmux", "load-buffer", "-w", "-", text=text):
            return f"copied {what}, to the tmux buffer and the terminal's clipboard"
        if _runs("tmux", "load-buffer", "-", text=text):
            return f"copied {what}, to the tmux buffer only: tmux has no clipboard here, prefix ] pastes it"
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with writing(path, mode=0o600) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        return f"sent {what} to the terminal, which may have no clipboard; {path} cannot be written: {error.strerror}"
    return f"sent {what} to the terminal; if its clipboard is without it: {at_home(str(path))}"


def _to_desktop(text: str, environment: Mapping[str, str]) -> bool:
    """Not in a session from another machine, whose desktop is not the user's."""
    if "SSH_CONNECTION" in environment:
        return False
    return any(
        (not variable or variable in environment) and _runs(*command, text=text) for variable, command in _COMMANDS
    )


def _tmux_passes_on() -> bool:
    """Whether tmux hands its buffers to the terminal, and knows how."""
    return _output("show", "-gv", "set-clipboard") != "off" and "clipboard" in _output(
        "display", "-p", "#{client_termfeatures}"
    )


def _output(*command: str) -> str:
    """What a command of tmux prints; "" if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(("tmux", *command), timeout=WAIT_S, check=False, capture_output=True, text=True)
        return done.stdout.strip()
    return ""


def _runs(*command: str, text: str) -> bool:
    """Whether a command took `text`."""
    if shutil.which(command[0]) is None:
        return False
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, input=text.encode(errors="replace"), timeout=WAIT_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode == 0
    return False


def desktop_notice(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The control sequence (OSC 9) that makes the terminal show a notification; tmux passes it on if allowed."""
    sequence = f"\x1b]9;{clean(text)}\x07"
    if "TMUX" in environment:
        escaped = sequence.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{escaped}\x1b\\"
    return sequence
