"""The clipboard of the desktop, in addition to the terminal's own (OSC 52), which not every terminal supports."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

_COMMANDS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)
WAIT_S = 1.0


def copy_to_desktop(text: str) -> bool:
    """Hand a text to the desktop's clipboard; False where there is none. Not in a session from another machine, whose
    desktop is not the user's."""
    if "SSH_CONNECTION" in os.environ:
        return False
    for variable, command in _COMMANDS:
        if (variable and variable not in os.environ) or shutil.which(command[0]) is None:
            continue
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                command, input=text.encode(errors="replace"), timeout=WAIT_S, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode == 0:
                return True
    return False
